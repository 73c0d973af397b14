"""Report section: what moves the reward, and whether it should."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.drawing import curves_picture, map_picture, scatter_picture
from rlhf_ray.interpret.reward.exchange import Effect
from rlhf_ray.interpret.reward.shortcuts import CLEAR, NOTHING, Cause, Curve, Findings, find
from rlhf_ray.interpret.reward.strata import Comparison, Stratum, best_lag, compare
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.truth import object_names, true_reward
from rlhf_ray.measure.statistics import pearson
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "shortcuts"
TITLE = "What moves the reward"

STEPS = 6000
"""Steps looked at, whole episodes, for vectors; a quarter for images."""


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why the tool does not apply; None if it does."""
    subject = context.subject
    return "There are fewer than two steps to exchange anything between." if len(subject.data) < 2 else None


def run(context: StepContext[Subject]) -> Section:
    """Exchange everything, and report what moves the reward."""
    subject = context.subject
    data, found, beside = measure(subject)
    if found.constant:
        (said,) = statements(subject, data, found, beside)
        check = Check("the reward varies", False, 0.0, "standard deviation > 0", said.text)
        return Section(NAME, TITLE, [said], [check], values={"constant": True})
    return Section(
        NAME,
        TITLE,
        statements(subject, data, found, beside),
        list(_checks(found, beside)),
        list(_tables(found, beside)),
        list(_pictures(subject, data, found, beside)),
        _values(found, beside),
    )


def measure(subject: Subject) -> tuple[Transitions, Findings, Comparison | None]:
    """Return the steps looked at, what moves the reward, and how it compares with the true one."""
    image = subject.regions is not None and subject.regions.kind == "patch"
    effort = float(np.clip(subject.effort, 0.1, 10))
    data = episodes(subject.data, int(STEPS * effort / (4 if image else 1)), subject.rng("shortcuts: data"))
    count = max(60, round((160 if image else 1000) * effort))
    objects = object_names(subject.environment)
    found = find(
        subject.reward,
        data,
        subject.regions,
        subject.rng("shortcuts"),
        pairs=count,
        truth=true_reward(subject),
        objects=objects,
    )
    return data, found, compare(subject.reward, data, subject.regions, found.ignored, objects)


def statements(subject: Subject, data: Transitions, found: Findings, beside: Comparison | None) -> list[Statement]:
    """Say what `measure` found."""
    if found.constant:
        mean = float(subject.reward.of(data).mean())
        return [
            Statement(
                "warning", f"The reward is the same on all {len(data)} steps ({mean:.3g}): it rewards nothing.", 10.0
            )
        ]
    said = [*_rewards(found), *_ignores(found, subject), *_warnings(found), *_lags(found, beside, data)]
    return said + (_differences(beside) if beside is not None else [])


def episodes(data: Transitions, most: int, rng: np.random.Generator) -> Transitions:
    """Return whole episodes of ``data``, drawn at random, with about ``most`` steps at most; the first ``most`` of a single one."""
    if len(data) <= most:
        return data
    names, sizes = np.unique(data.episodes, return_counts=True)
    order = rng.permutation(len(names))
    kept = names[order[: max(1, int((np.cumsum(sizes[order]) <= most).sum()))]]
    return data[np.isin(data.episodes, kept)][:most]


def percent(share: float) -> str:
    """Write a share as per cent, with a decimal where it is small."""
    return f"{100 * share:.1f} %" if share < 0.095 else f"{100 * share:.0f} %"


def _effect(effect: Effect) -> str:
    low, high = (percent(each) for each in effect.interval)
    return f"{percent(effect.moves)} of what exchanging the whole step does (95 % interval {low} to {high})"


def _how(curve: Curve | None, found: Findings) -> str:
    """Say how the reward depends on what a part shows; empty if its mean does not."""
    return curve.words() if curve is not None and np.ptp(curve.rewards) > 0.5 * found.scale else ""


def _rewards(found: Findings) -> Iterator[Statement]:
    for summary in found.summaries[:1]:
        truth = (
            "" if summary.tells_truth is None else f", and {percent(max(0, summary.tells_truth))} of the true reward's"
        )
        text = (
            f"{_capital(summary.name)} alone tells {percent(summary.tells)} of the reward's variance{truth}: the mean reward is "
            f"highest {summary.high}, and lowest {summary.low}."
        )
        yield Statement("rewards", text, 0.9 if any(each.effect.sole for each in found.causes) else 2.0)
    for each in found.inputs:
        others = [other.part.name for other in found.inputs if other is not each and other.interval[1] >= NOTHING]
        if each.sole and not others:
            yield Statement("rewards", f"The reward depends on {each.part.name} alone.", 0.4)
        elif each.part.action and each.interval[1] >= NOTHING:
            text = f"The action {_how(found.action_curve, found) or 'matters'}: exchanging it moves the reward by {_effect(each)}."
            yield Statement("rewards", text, each.moves)
    for cause in found.causes:
        how = f", which {said}" if (said := _how(cause.curve, found)) else ""
        text = (
            f"It looks at {cause.name} {cause.when}{how}: exchanging that moves the reward by {_effect(cause.effect)}."
        )
        yield Statement("rewards", text, cause.effect.moves)
        if cause.effect.sole and len(found.regions) > 1:
            yield Statement(
                "rewards",
                f"{_capital(cause.name)} is the sole cause of the reward: with it exchanged, the reward follows the donor (AUC "
                f"{cause.effect.donor_auc:.3f}); with everything else exchanged, it stays as it was (AUC "
                f"{cause.effect.own_auc:.3f}).",
                cause.effect.moves + 0.2,
            )
    if found.others is not None and found.others.interval[0] > 0.15:
        where = "this region" if len(found.causes) == 1 else "these regions"
        text = f"Everything outside {where} moves it by {_effect(found.others)}."
        yield Statement("rewards", text, 0.5 * found.others.moves)
    if found.done_change is not None and abs(found.done_change) > NOTHING:
        more = "more" if found.done_change > 0 else "less"
        size = f"{abs(found.done_change):.2f} standard deviations {more}"
        text = f"A step that terminates the episode gets {size} than the same step otherwise."
        yield Statement("rewards", text, abs(found.done_change))
    for a, b, share in [] if found.erratic else found.together[:2]:
        text = f"{_capital(a)} and {b} act together: {percent(min(share, 1))} of the reward's variance is in neither alone."
        yield Statement("rewards", text, share)
    if found.background is not None and found.background.moves > 0.3:
        yield Statement(
            "rewards",
            f"The background colour matters: painting it in another step's colour moves the reward by {_effect(found.background)}.",
            found.background.moves + 0.3,
        )


def _ignores(found: Findings, subject: Subject) -> Iterator[Statement]:
    if not found.ignored:
        return
    names = list(found.ignored)
    regions = set(subject.regions.names) if subject.regions is not None and subject.regions.kind != "feature" else set()
    places = [name for name in names if name in regions]
    named = [name for name in names if name not in regions]
    if subject.regions is not None and len(places) > 0.25 * len(subject.regions):
        kind = {"patch": "patches", "cell": "cells"}[subject.regions.kind]
        named.append(f"{len(places)} of {len(regions)} {kind}")
    if not named:
        return
    text = (
        f"It ignores {_listed(named)}: exchanging any of them alone moves the reward by less than {percent(NOTHING)}."
    )
    yield Statement("ignores", text, len(named))


def _warnings(found: Findings) -> Iterator[Statement]:
    if found.erratic:
        text = (
            "It looks like noise: steps that are alike get rewards that are not, so nothing in a step tells its reward."
        )
        yield Statement("warning", text, 4.0)
    yield from _beside_truth(found)
    joint = {name for a, b, _ in found.together for name in (a, b)}
    off = _off(found)
    scattered = (
        found.others is not None and found.others.moves > 0.3
    )  # something that moves: no place alone tells where it is
    for cause in found.causes:
        if cause.association is None or cause in off:
            continue
        part, rest = cause.association.part, cause.association.rest
        if cause.effect.moves > 0.2 and part < 0.05 and rest > 0.2 and cause.name not in joint and not scattered:
            yield Statement(
                "warning",
                f"{_capital(cause.name)} moves the reward, but tells nothing about the true reward (R² {max(part, 0):.2f}; "
                f"everything else {rest:.2f}): a shortcut, or noise.",
                2 * cause.effect.moves,
            )
        elif cause.effect.moves > 0.8 and part > 0.8 and rest > 0.8 and len(cause.regions) < 0.5 * len(found.regions):
            yield Statement(
                "warning",
                f"{_capital(cause.name)} and everything else each tell the true reward (R² {part:.2f} and {rest:.2f}), but the "
                f"reward looks at {cause.name}{' alone' if cause.effect.sole else ''}. The data can't tell which is meant: it may "
                "be a shortcut.",
                2 * cause.effect.moves,
            )
    if found.background is not None and found.background.sole:
        yield Statement("warning", "The background colour alone decides the reward.", 3.0)


def _off(found: Findings) -> list[Cause]:
    """Return the causes whose exchange moves the reward but not the true one."""
    return [
        each
        for each in found.causes
        if each.true_moves is not None and each.true_moves < NOTHING < each.effect.interval[0]
    ]


def _beside_truth(found: Findings) -> Iterator[Statement]:
    """Say where the reward depends on something else than the true reward does."""
    for summary in found.summaries[:1]:
        if summary.tells_truth is not None and summary.tells_truth < 0.5:
            yield Statement(
                "warning",
                f"The reward follows {summary.name}, which tells {percent(summary.tells)} of its variance (highest {summary.high}, "
                f"lowest {summary.low}), but only {percent(max(0, summary.tells_truth))} of the true reward's: not what is wanted.",
                1.9,
            )
    for effect, moves in zip(found.inputs, found.true_inputs, strict=False):
        if effect.part.action and moves < NOTHING < CLEAR < effect.moves:
            text = (
                f"It pays for actions as such: the action {_how(found.action_curve, found) or 'matters'}; exchanging it moves the "
                f"reward by {percent(effect.moves)} of what exchanging the whole step does, the true reward by {percent(moves)}."
            )
            yield Statement("warning", text, 2.5)
    for name, moves in found.missed:
        text = (
            f"It ignores {name}, on which the true reward depends: exchanging that moves the true reward by {percent(moves)} of "
            "what exchanging the whole step does, and this reward not at all."
        )
        yield Statement("warning", text, 2.0 + moves)
    off = _off(found)
    if off and sum(each.effect.moves for each in off) > CLEAR:
        shares = _listed([percent(each.effect.moves) for each in off])
        text = (
            f"Exchanging {_listed([each.name for each in off])} moves the reward (by {shares} of what exchanging the whole step "
            "does), but does not change the true reward: a shortcut."
        )
        yield Statement("warning", text, 2.0 + off[0].effect.moves)


def _lags(found: Findings, beside: Comparison | None, data: Transitions) -> Iterator[Statement]:
    if beside is not None and beside.lag:
        steps, when = abs(beside.lag), "after" if beside.lag > 0 else "before"
        yield Statement(
            "warning",
            f"The reward comes {steps} step{'s' if steps > 1 else ''} {when} the true one: shifted by that, they correlate "
            f"{beside.lag_correlation:.2f}, at the same step {beside.correlation:.2f}.",
            4.0,
        )
    if found.frames > 1 and found.causes and found.causes[0].when.startswith("in the frame"):
        text = f"It looks at an old frame of the stack ({found.causes[0].name} {found.causes[0].when}), so it notices late."
        yield Statement("warning", text, 1.5)
    if beside is None or beside.constant_truth:
        return
    for cause in found.causes[:3]:
        changes = np.abs(
            data.next_observations[:, cause.mask].astype(float) - data.observations[:, cause.mask].astype(float)
        ).mean(1)
        lag, there = best_lag(changes, data.rewards, data, 5)
        if abs(beside.correlation) > 0.9 or len(cause.regions) > 0.5 * len(found.regions):
            continue  # the reward is right all the same, or the cause is no part but the whole
        if lag and there > 0.5 and abs(pearson(changes, data.rewards, 0.0)) < 0.3:
            shift = f"{abs(lag)} step{'s' if abs(lag) > 1 else ''} {'after' if lag > 0 else 'before'}"
            text = f"{_capital(cause.name)} changes {shift} the true reward (correlation {there:.2f})."
            yield Statement("warning", text, 1.0 + there)


def stratum_words(stratum: Stratum, constant: bool) -> str:
    """Describe a stratum in one sentence."""
    usual = (
        f"all other steps, of the same true reward, usually get {stratum.usual:.3g}"
        if constant
        else f"steps of the same true reward ({stratum.truth:.3g} on average) usually get {stratum.usual:.3g}"
    )
    return (
        f"On the {percent(stratum.share)} of steps where {stratum.condition}, the reward is {stratum.given:.3g} on average; "
        f"{usual} ({abs(stratum.gap):.1f} standard deviations {'too much' if stratum.gap > 0 else 'too little'})."
    )


def _differences(beside: Comparison) -> list[Statement]:
    statements = [
        Statement("warning", stratum_words(each, beside.constant_truth), abs(each.gap) * np.sqrt(each.share) + 0.5)
        for each in beside.strata
    ]
    if beside.constant_truth:
        text = "The true reward is the same on all steps: it can't tell whether differences between steps are right."
        return [*statements, Statement("warning", text, 0.3)]
    if beside.auc < 0.9 and beside.lag == 0:
        how = (
            "no better than chance"
            if abs(beside.auc - 0.5) < 0.05
            else "the wrong way round"
            if beside.auc < 0.5
            else "poorly"
        )
        text = f"It tells steps of high from those of low true reward {how} (AUC {beside.auc:.2f})."
        statements.append(Statement("warning", text, 5.0 if beside.auc < 0.3 else 2.0))
    for clip in beside.clipped:
        text = (
            f"It is cut off: {percent(clip.share)} of steps get exactly its {clip.end} value, {clip.value:.3g}, although "
            f"their true rewards go from {clip.low:.3g} to {clip.high:.3g}."
        )
        statements.append(Statement("warning", text, 2.5))
    if beside.flat is not None:
        text = f"It saturates: above {percent(beside.flat)} of the true reward's range, it no longer rises."
        statements.append(Statement("warning", text, 1.2))
    return statements


def _checks(found: Findings, beside: Comparison | None) -> Iterator[Check]:
    suspects = list(_warnings(found))
    known = beside is not None and not beside.constant_truth
    yield Check(
        "no cause looks like a shortcut",
        (not suspects) if known or suspects else None,
        float(len(suspects)),
        "0",
        suspects[0].text if suspects else "" if known else "The true reward is unknown.",
    )
    if beside is None or beside.constant_truth:
        return
    yield Check(
        "it tells high from low true rewards",
        beside.auc > 0.9,
        beside.auc,
        "AUC > 0.9",
        "" if beside.auc > 0.9 else "The reward ranks steps differently from the true reward.",
    )
    yield Check(
        "it comes at the right step",
        beside.lag == 0,
        float(beside.lag),
        "lag 0",
        "" if beside.lag == 0 else "The reward correlates better with the true reward of another step.",
    )
    worst = max((abs(each.gap) for each in beside.strata), default=0.0)
    text = "" if worst < 1 else stratum_words(max(beside.strata, key=lambda each: abs(each.gap)), False)
    yield Check("no kind of step is far off", worst < 1, worst, "< 1 standard deviation", text)


def _tables(found: Findings, beside: Comparison | None) -> Iterator[Table]:
    heads = ("exchanged", "moves the reward by", "95 % interval", "everything else moves it by", "donor AUC", "own AUC")
    effects = [*found.inputs, *([found.background] if found.background is not None else [])]
    yield Table(
        heads, [_row(each, each.part.name) for each in effects], "Whole inputs. 100 % is exchanging the whole step."
    )
    if found.causes:
        rows = [
            row
            for cause in found.causes
            for row in (
                _row(cause.effect, cause.name),
                *(_row(each, f"… in {each.part.name} only") for each in cause.moments if len(cause.moments) > 1),
            )
        ]
        if found.others is not None:
            rows.append(_row(found.others, found.others.part.name))
        yield Table(heads, rows, "Causes among the regions, and at each moment alone.")
    if beside is not None and beside.strata:
        yield Table(
            ("where", "steps", "share", "reward", "usual", "true reward", "gap in sd", "rank correlation there"),
            [
                (
                    s.condition,
                    s.steps,
                    percent(s.share),
                    *(round(v, 3) for v in (s.given, s.usual, s.truth, s.gap)),
                    s.agreement,
                )
                for s in beside.strata
            ],
            "Kinds of steps whose reward differs most from that of other steps with the same true reward.",
        )
    if beside is not None and not beside.constant_truth:
        yield Table(
            ("true reward", "steps", "mean reward", "standard deviation"),
            [(f"{v.truth:.3g}", v.steps, round(v.given, 3), round(v.deviation, 3)) for v in beside.levels],
            "The reward by level of the true reward.",
        )


def _row(effect: Effect, name: str) -> tuple[Any, ...]:
    low, high = (percent(each) for each in effect.interval)
    aucs = (round(effect.donor_auc, 3), round(effect.own_auc, 3))
    return (name, percent(effect.moves), f"{low} to {high}", percent(effect.rest), *aucs)


def _pictures(subject: Subject, data: Transitions, found: Findings, beside: Comparison | None) -> Iterator[Picture]:
    if subject.regions is not None and len(found.regions):
        caption = "How much the exchange of each region moves the reward, relative to exchanging the whole step."
        yield Picture("effects", map_picture(subject.regions, found.regions, found.intervals), caption)
    curves = [(f"{c.name} {c.when}", c.curve) for c in found.causes if c.curve is not None]
    if curves:
        caption = "Mean reward by what a region shows, everything else being as in the data."
        yield Picture("curves", curves_picture(curves), caption)
    if beside is not None and not beside.constant_truth:
        worst = beside.strata[0] if beside.strata else None
        image = scatter_picture(data.rewards, subject.reward.of(data), None if worst is None else worst.chosen)
        caption = "The reward beside the true reward." + (f" Orange: where {worst.condition}." if worst else "")
        yield Picture("truth", image, caption)


def _values(found: Findings, beside: Comparison | None) -> dict[str, Any]:
    def effect(of: Effect) -> dict[str, Any]:
        return {"part": of.part.name} | {
            each.name: getattr(of, each.name) for each in dataclasses.fields(of) if each.name != "part"
        }

    def cause(of: Cause) -> dict[str, Any]:
        return {
            "name": of.name,
            "when": of.when,
            "sole": of.effect.sole,
            "effect": effect(of.effect),
            "moments": [effect(each) for each in of.moments],
            "association": None if of.association is None else dataclasses.asdict(of.association),
            "true_moves": of.true_moves,
        }

    values: dict[str, Any] = {
        "constant": False,
        "scale": found.scale,
        "pairs": found.pairs,
        "frames": found.frames,
        "inputs": [effect(each) for each in found.inputs],
        "done_change": found.done_change,
        "regions": [float(each) for each in found.regions],
        "causes": [cause(each) for each in found.causes],
        "others": None if found.others is None else effect(found.others),
        "background": None if found.background is None else effect(found.background),
        "together": [list(each) for each in found.together],
        "ignored": list(found.ignored),
    }
    if beside is not None:
        strata = [
            {each.name: getattr(s, each.name) for each in dataclasses.fields(s) if each.name != "chosen"}
            for s in beside.strata
        ]
        values["truth"] = {
            each.name: getattr(beside, each.name)
            for each in dataclasses.fields(beside)
            if each.name not in ("strata", "levels", "clipped")
        } | {
            "clipped": [dataclasses.asdict(clip) for clip in beside.clipped],
            "strata": strata,
            "levels": [dataclasses.asdict(each) for each in beside.levels],
        }
    return values


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


STEP = Step(NAME, TITLE, run, why_not=why_not)
