"""What moves the reward, and whether it should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.comparison import Comparison, compare
from rlhf_ray.interpret.reward.drawing import curves_picture, map_picture, scatter_picture
from rlhf_ray.interpret.reward.exchange import NEARLY_ALL, NOTHING, Effect
from rlhf_ray.interpret.reward.findings import CLEAR, Cause, Findings
from rlhf_ray.interpret.reward.held import HeldReward, held
from rlhf_ray.interpret.reward.lags import Lag
from rlhf_ray.interpret.reward.late_causes import NO_PART, LateCause, late_causes
from rlhf_ray.interpret.reward.over_episodes import whole_episodes
from rlhf_ray.interpret.reward.proxies import Proxy, proxies
from rlhf_ray.interpret.effects.regions import Regions, object_names
from rlhf_ray.interpret.reward.shortcuts import find
from rlhf_ray.interpret.reward.strata import Stratum
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.true_reward import true_reward
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Check, Picture, Section, Statement, Strength, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words, share

WORDS = Words(__file__)

STEPS = 6000
"""Steps looked at, whole episodes, for vectors; a quarter for images, which take long; more at larger effort."""
PAIRS, PAIRS_OF_IMAGES, FEWEST_PAIRS, FEWEST_OF_IMAGES = 1000, 160, 300, 60
"""Pairs of steps at effort 1, and at any."""
OUTSIDE = 0.15
"""What the rest of the observation has to move the reward by, at least, to be named beside the causes."""
BACKGROUND, SCATTERED = 0.3, 0.3
"""What the background colour has to move the reward by to be named. The same of the rest of the observation, from which a cause may
be something that moves: no place alone tells where it is."""
MANY = 0.25
"""Share of the regions that are ignored from which they are counted, not named."""
UNRELATED, RELATED, STRONGLY = 0.05, 0.2, 0.8
"""R² of the true reward from a part: below, with the whole interval, it tells nothing; above, something; above, nearly all."""
SAME_ORDER = 0.999
"""Rank correlation with the true reward from which no cause is a fault: a bonus on one step in a thousand is below."""
FOLLOWS = 0.5
"""Share of the true reward's variance that a summary must tell to be what is wanted."""
TELLS_APART, CHANCE = 0.9, 0.5
"""AUC of high and low true rewards below which, with its whole interval, it is told; below chance, it is the wrong way round."""
FAR_OFF = 1.0
"""Standard deviations by which a kind of step may get too much or too little."""


@dataclass(frozen=True)
class Shortcuts:
    """What the step finds.

    Attributes:
        steps: number of steps looked at.
        mean: mean reward.
        regions: parts of the observations; None for tables.
        found: what moves the reward.
        beside: how it compares with the true one; None if that is unknown.
        late: causes that change at another step than the true reward.
        equivalent: whether it is the true reward but for shaping: then no cause is a fault.
        held: the reward with its shortcuts held, beside the true one; None without any, or without features.
        right: whether it is the true reward up to scale, or has its order of steps, which is known of recorded steps alone: then no
            cause that is not known to leave the true reward as it is can be called a fault.
        as_true: whether it is constant as the true reward is.
        known: whether the true reward is known for any step: then what moves it too is no shortcut.
        ends: whether some of the steps terminate their episode.
        proxies: causes in place of others, which the true reward needs.
        perhaps_late: see `Subject`.
    """

    steps: int
    mean: float
    regions: Regions | None
    found: Findings
    beside: Comparison | None = None
    late: tuple[LateCause, ...] = ()
    equivalent: bool = False
    held: HeldReward | None = None
    right: bool = False
    as_true: bool = False
    known: bool = False
    ends: bool = False
    proxies: tuple[Proxy, ...] = ()
    perhaps_late: bool = False

    @property
    def true(self) -> Comparison | None:
        """How it compares with a true reward that varies."""
        return None if self.beside is None or self.beside.constant_truth else self.beside

    @property
    def shortcuts(self) -> list[Cause]:
        """Causes whose exchange moves the reward but not the true one."""
        return [cause for cause in self.found.causes if cause.is_shortcut]

    def known_to_count(self, cause: Cause) -> bool:
        """Whether the true reward is known to look at a cause nearly alone, or to be told by it what the rest does not tell."""
        needed = cause.association is not None and cause.association.beside.low > 0
        return self.known and cause.true_moves is not None and (cause.true_moves > NEARLY_ALL or needed)

    @property
    def telling_nothing(self) -> list[Cause]:
        """Causes that tell nothing of the true reward, as far as the data show; none of a right reward."""
        together = {name for pair in self.found.together for name in (pair.first, pair.second)}
        scattered = self.found.others is not None and self.found.others.moves > SCATTERED
        return [
            cause
            for cause in ([] if self.right or scattered else self.found.causes)
            if (told := cause.association) is not None
            and not cause.is_shortcut
            and told.most < UNRELATED
            and told.rest > RELATED
            and not (cause.may_tell(told.part) or cause.may_tell(told.beside))
            and cause.effect.moves > CLEAR
            and cause.name not in together
            and (cause.true_moves is None or cause.true_moves < NOTHING)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return self.found.to_json() | ({} if self.beside is None else {"truth": values_of(self.beside)})


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why the step does not apply; None if it does."""
    return WORDS.text("few") if len(context.subject.data) < 2 else None


def run(context: StepContext[Subject]) -> Section:
    """Exchange everything, and report what moves the reward."""
    subject = context.subject
    data = _data(subject)
    figures = measure(subject, data)
    told = statements(figures)
    if figures.found.constant:
        checks = [] if figures.as_true else [WORDS.check("varies", False, 0.0, says=told[0].text)]
        return WORDS.section(told, checks, figures=figures)
    return WORDS.section(told, _checks(figures), _tables(figures), _pictures(subject, data, figures), figures)


def measure(subject: Subject, data: Transitions | None = None) -> Shortcuts:
    """Compute the figures; ``data``: the steps looked at, by default some of the subject's."""
    data = _data(subject) if data is None else data
    effort, objects = _effort(subject), object_names(subject.environment)
    usual, fewest = (PAIRS_OF_IMAGES, FEWEST_OF_IMAGES) if _shows_images(subject) else (PAIRS, FEWEST_PAIRS)
    count = max(fewest, round(usual * effort))
    options: dict[str, Any] = {"pairs": count, "truth": true_reward(subject), "objects": objects}
    found = find(subject.scaled, data, subject.regions, subject.rng("shortcuts"), **options)
    mean = float(subject.scaled.of(data).mean())
    if found.constant:
        ends = bool(subject.data.terminated.any())
        return Shortcuts(len(data), mean, subject.regions, found, as_true=subject.constant_as_true, ends=ends)
    looked_at = {effect.part.name for effect in found.inputs if effect.interval[1] >= NOTHING}
    # A shaping is of the state and the next state both.
    shaping = subject.shaping(data) if looked_at >= {"the state", "the next state"} else None
    beside = compare(subject.judged, data, subject.regions, found.ignored, objects, subject.lag, shaping)
    late = tuple(late_causes(found, beside, data, subject.rng("late")))
    known = options["truth"] is not None
    same = subject.equivalence is not None and subject.equivalence.holds
    right = not known and (
        same or (beside is not None and not beside.constant_truth and beside.agreement >= SAME_ORDER)
    )
    figures = Shortcuts(len(data), mean, subject.regions, found, beside, late, subject.shaped, right=right, known=known)
    figures = replace(figures, perhaps_late=subject.perhaps_late)
    regions, faultless = subject.regions, right or figures.equivalent or figures.true is None
    if faultless or regions is None or regions.kind != "feature":
        return figures
    if found.stand_in:
        figures = replace(figures, proxies=tuple(proxies(found, data, regions)))
    if not (faults := [*figures.shortcuts, *figures.telling_nothing]):
        return figures
    return replace(figures, held=held(subject.judged, data, faults, subject.rng("held")))


def _effort(subject: Subject) -> float:
    return float(np.clip(subject.effort, 0.1, 10))


def _shows_images(subject: Subject) -> bool:
    return subject.regions is not None and subject.regions.kind == "patch"


def _data(subject: Subject) -> Transitions:
    most = round(STEPS * max(1.0, _effort(subject)) / (4 if _shows_images(subject) else 1))
    return whole_episodes(subject.data, most, subject.rng("shortcuts: data"))


def statements(figures: Shortcuts) -> list[Statement]:
    """Say what `measure` found."""
    if figures.found.constant:
        key = "constant_as_true" if figures.as_true else "constant"
        return [WORDS.statement(key, 10.0, steps=figures.steps, mean=figures.mean, ends=figures.ends)]
    parts = (_inputs, _causes, _ignores, _warnings, _lags, _differences)
    return [statement for part in parts for statement in part(figures)]


def _by_deviations(low: float, high: float) -> Strength:
    """Say how strong a gap is, by its interval in standard deviations of the reward: strong from one on."""
    return "weak" if np.isnan(low) else strength((low / 2, high / 2), NOTHING)


def _inputs(figures: Shortcuts) -> Iterator[Statement]:
    """Say what a summary tells and which whole inputs count."""
    found = figures.found
    for summary in found.summaries[:1]:
        weight, tells = 0.9 if any(c.effect.decides for c in found.causes) else 2.0, (summary.tells, summary.tells)
        yield WORDS.statement("summary", weight, strength(tells, NOTHING), summary=summary)
    for effect in found.inputs:
        others = [other for other in found.inputs if other is not effect and other.interval[1] >= NOTHING]
        if effect.sole and not others:
            yield WORDS.statement("alone", 0.4, strength(effect.interval, NOTHING), effect=effect)
        elif effect.part.action and effect.interval[1] >= NOTHING and effect.interval[1] > found.floor:
            values = {"effect": effect, "curve": found.telling(found.action_curve)}
            yield WORDS.statement("action", effect.moves, strength(effect.interval, NOTHING), **values)


def _causes(figures: Shortcuts) -> Iterator[Statement]:
    found = figures.found
    for cause in found.causes:
        strong = strength(cause.effect.interval, NOTHING)
        yield WORDS.statement("cause", cause.effect.moves, strong, cause=cause, curve=found.telling(cause.curve))
        if cause.effect.decides and len(found.regions) > 1:
            yield WORDS.statement(
                "sole" if cause.effect.sole else "decides", cause.effect.moves + 0.2, strong, cause=cause
            )
    if found.others is not None and found.others.interval[0] > OUTSIDE:
        yield WORDS.statement("outside", 0.5 * found.others.moves, effect=found.others, causes=found.causes)
    change = found.done_change
    if change is not None and found.pays_for_the_end and not figures.equivalent:
        yield WORDS.statement("done", abs(change.value), _by_deviations(change.low, change.high), change=change)
    for pair in [] if found.erratic else found.together[:2]:
        strong = strength((pair.share.low, pair.share.high), NOTHING)
        yield WORDS.statement("together", pair.share.value, strong, pair=pair)
    if found.background is not None and found.background.interval[0] > BACKGROUND:
        strong = strength(found.background.interval, NOTHING)
        yield WORDS.statement("background", found.background.moves + 0.3, strong, effect=found.background)


def _ignores(figures: Shortcuts) -> Iterator[Statement]:
    told = {name for names, _ in figures.found.missed for name in names.split(" with ")}
    told |= {proxy.of for proxy in figures.proxies}
    regions, names = figures.regions, [name for name in figures.found.ignored if name not in told]
    if regions is not None and regions.kind != "feature":
        places = [name for name in names if name in set(regions.names)]
        named = [name for name in names if name not in set(regions.names)]
        if len(places) > MANY * len(regions):
            named.append(WORDS.text(regions.kind, ignored=len(places), regions=len(regions)))
        names = named
    if names:
        yield WORDS.statement("ignores", len(names), names=names, nothing=NOTHING)


def _warnings(figures: Shortcuts) -> Iterator[Statement]:
    """Say what looks like noise or a shortcut."""
    found = figures.found
    if found.noise is not None and found.noisy:
        strong = strength((found.noise.low, found.noise.high))
        yield WORDS.statement("noise" if found.erratic else "noisy", 4.0, strong, noise=found.noise)
    if figures.equivalent:
        return
    yield from () if figures.right else _beside_truth(figures)
    for cause in figures.telling_nothing:
        strong = strength(cause.effect.interval, NOTHING)
        yield WORDS.statement("tells_nothing", 2 * cause.effect.moves, strong, cause=cause, told=cause.association)
    for cause in found.causes:
        told, is_part = cause.association, len(cause.regions) < NO_PART * len(found.regions)
        if told is None or cause.is_shortcut or not is_part or figures.known_to_count(cause):
            continue
        if cause.effect.moves > NEARLY_ALL and min(told.part.value, told.rest) > STRONGLY:
            yield WORDS.statement("either", 2 * cause.effect.moves, cause=cause, told=told)
    if found.background is not None and found.background.decides:
        yield WORDS.statement("background_alone", 3.0, effect=found.background)


def _beside_truth(figures: Shortcuts) -> Iterator[Statement]:
    """Say where the reward depends on something else than the true reward does."""
    found = figures.found
    for summary in found.summaries[:1]:
        if summary.tells_truth is not None and summary.tells_truth < FOLLOWS:
            strong = strength((summary.tells, summary.tells), max(summary.tells_truth, NOTHING))
            yield WORDS.statement("not_wanted", 1.9, strong, summary=summary)
    for effect, true_moves in zip(found.inputs, found.true_inputs, strict=False):
        if effect.part.action and true_moves < NOTHING and effect.interval[0] > max(CLEAR, found.floor):
            values = {
                "effect": effect,
                "true_moves": true_moves,
                "curve": found.telling(found.action_curve),
                "found": found,
            }
            yield WORDS.statement("pays_for_actions", 2.5, strength(effect.interval, NOTHING), **values)
        if (
            effect.part.done
            and not found.pays_for_the_end
            and true_moves < NOTHING
            and effect.interval[0] > max(CLEAR, found.floor)
        ):
            strong = strength(effect.interval, NOTHING)
            yield WORDS.statement("decided_at_the_end", 2.5, strong, effect=effect, true_moves=true_moves)
    for name, moves in found.missed:
        yield WORDS.statement(
            "missed",
            2.0 + moves,
            strength((moves, moves), NOTHING),
            name=name,
            moves=moves,
            nothing=NOTHING,
            found=found,
        )
    for proxy in figures.proxies:
        effect = proxy.cause.effect
        strong = strength(effect.interval, NOTHING)
        yield WORDS.statement("proxy", 2.0 + effect.moves, strong, proxy=proxy, effect=effect)
    shortcuts = figures.shortcuts
    if sum(cause.effect.moves for cause in shortcuts) > CLEAR:
        shares = [share(cause.effect.moves) for cause in shortcuts]
        true = [share(cause.true_moves or 0.0) for cause in shortcuts]
        values = {"names": [cause.name for cause in shortcuts], "shares": shares, "true_shares": true, "found": found}
        of = shortcuts[0].effect
        yield WORDS.statement("shortcut", 2.0 + of.moves, strength(of.interval, NOTHING), **values)


def _lags(figures: Shortcuts) -> Iterator[Statement]:
    found, beside = figures.found, figures.beside
    if beside is not None and beside.lag is not None and beside.lag.off:
        yield WORDS.statement("lag", 4.0, _lag_strength(beside.lag), lag=beside.lag)
    elif figures.held is not None and figures.held.late:
        yield WORDS.statement("held_lag", 4.0, _lag_strength(figures.held.lag), held=figures.held, lag=figures.held.lag)
    if found.frames > 1 and found.causes and found.causes[0].when.startswith("in the frame"):
        yield WORDS.statement("old_frame", 1.5, cause=found.causes[0])
    for late in figures.late:
        weight, strong = 1.0 + abs(late.lag.correlation), _lag_strength(late.lag)
        yield WORDS.statement("late_cause", weight, strong, cause=late.cause, lag=late.lag)


def _lag_strength(lag: Lag) -> Strength:
    return strength((lag.low, lag.high), lag.chance)


def _differences(figures: Shortcuts) -> Iterator[Statement]:
    """Say on which steps, and how, the reward differs from the true one."""
    beside = figures.beside
    if beside is None:
        return
    if (back := beside.reversal) is not None:
        strong = strength((-back.agreement.high, -back.agreement.low))
        yield WORDS.statement("reversed", 5.0, strong, back=back)
    if figures.held is not None and figures.held.opposite:
        strong = strength((-figures.held.agreement.high, -figures.held.agreement.low))
        yield WORDS.statement("held_opposite", 5.0, strong, held=figures.held)
    if beside.blind is not None:
        yield WORDS.statement("blind", 4.0, strength((beside.blind.share, beside.blind.share)), blind=beside.blind)
    for stratum in beside.strata:
        weight = abs(stratum.gap.value) * np.sqrt(stratum.share) + 0.5
        strong = _by_deviations(stratum.gap.low, stratum.gap.high)
        key = "uneven" if beside.constant_truth else "stratum"
        yield WORDS.statement(key, weight, strong, stratum=stratum, beside=beside)
    if beside.constant_truth:
        if not figures.equivalent:
            yield WORDS.statement("constant_truth", 0.3)
        return
    if beside.auc.below(TELLS_APART) and beside.in_time:
        wrong = beside.auc.below(CHANCE)
        yield WORDS.statement("order", 5.0 if wrong else 2.0, auc=beside.auc, wrong=wrong)
    for cut in beside.clipped:
        yield WORDS.statement("clipped", 2.5, strength((cut.share, cut.share)), cut=cut)
    if beside.flat is not None:
        yield WORDS.statement("flat", 1.2, strength((1 - beside.flat, 1 - beside.flat)), flat=beside.flat)


def _checks(figures: Shortcuts) -> Iterator[Check]:
    suspects, true = list(_warnings(figures)), figures.true
    if (
        suspects or true is None or not (true.strata or true.reversal)
    ):  # a kind of step that is wrong may be a shortcut, too
        asked = true is not None and bool(figures.found.true_inputs)
        passed = not suspects if asked or suspects else None
        yield WORDS.check("no_shortcut", passed, float(len(suspects)), suspects=suspects)
    if true is None:
        return
    yield WORDS.check("order", true.auc.beyond(TELLS_APART), true.auc.value, least=TELLS_APART, auc=true.auc)
    if not figures.equivalent:  # the shaping that is left out may be a delay
        in_time = true.in_time and not (figures.held is not None and figures.held.late)
        passed = None if in_time and figures.perhaps_late else in_time
        yield WORDS.check("lag", passed, 0.0 if true.lag is None else float(true.lag.steps))
    worst = max(true.strata, key=lambda stratum: abs(stratum.gap.value), default=None)
    gap = 0.0 if worst is None else abs(worst.gap.value)
    yield WORDS.check("strata", gap < FAR_OFF, gap, stratum=worst, beside=true, most=FAR_OFF)


def _tables(figures: Shortcuts) -> Iterator[Table]:
    found, beside = figures.found, figures.beside
    effects = [*found.inputs, *([found.background] if found.background is not None else [])]
    yield WORDS.table("inputs", [_effect_row(effect, effect.part.name) for effect in effects])
    if found.causes:
        rows = []
        for cause in found.causes:
            rows.append(_effect_row(cause.effect, cause.name))
            if len(cause.moments) > 1:
                rows += [_effect_row(effect, f"… in {effect.part.name} only") for effect in cause.moments]
        if found.others is not None:
            rows.append(_effect_row(found.others, found.others.part.name))
        yield WORDS.table("causes", rows)
    if beside is not None and beside.strata:
        yield WORDS.table("strata", map(_stratum_row, beside.strata))
    if figures.true is not None:
        levels = [
            (f"{level.truth:.3g}", level.steps, round(level.given, 3), round(level.deviation, 3))
            for level in figures.true.levels
        ]
        yield WORDS.table("levels", levels)


def _effect_row(effect: Effect, name: str) -> tuple[Any, ...]:
    low, high = map(share, effect.interval)
    aucs = (round(effect.donor_auc, 3), round(effect.own_auc, 3))
    return (name, share(effect.moves), f"{low} to {high}", share(effect.rest), *aucs)


def _stratum_row(stratum: Stratum) -> tuple[Any, ...]:
    figures = (round(value, 3) for value in (stratum.given, stratum.usual, stratum.truth, stratum.gap.value))
    return (stratum.condition, stratum.steps, share(stratum.share), *figures, stratum.agreement)


def _pictures(subject: Subject, data: Transitions, figures: Shortcuts) -> Iterator[Picture]:
    found, regions = figures.found, subject.regions
    if regions is not None and len(found.regions):
        yield WORDS.picture("effects", map_picture(regions, found.regions, found.intervals))
    curves = [(f"{cause.name} {cause.when}", cause.curve) for cause in found.causes if cause.curve is not None]
    if curves:
        yield WORDS.picture("curves", curves_picture(curves))
    if figures.true is not None:
        worst = next(iter(figures.true.strata), None)
        orange = None if worst is None else worst.chosen
        yield WORDS.picture("truth", scatter_picture(data.rewards, subject.judged.of(data), orange), worst=worst)


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
