"""The report's section of inputs made to be rated high and low."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.interpret.reward.codes import codes_of
from rlhf_ray.interpret.reward.gallery import Tile, gallery
from rlhf_ray.interpret.reward.manifold import Manifold, frames_of, total_variation
from rlhf_ray.interpret.reward.prior import Prior, fit_prior
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.visualisation import (
    Objective,
    Visualisations,
    VisualisationSettings,
    optimise,
    seen_frames,
)
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "visualisation"
TITLE = "Inputs made to be rated high and low"

COUNT = 4
MOST_FEATURES = 12
PLAIN, REGULARISED, PRIOR, CELLS = "not regularised", "regularised", "with a prior", "a few cells changed"


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no such inputs."""
    subject = context.subject
    if not seen_frames(subject.reward):
        return "The reward sees no observations."
    if not subject.reward.observation_space.shape:
        return "The states are numbers in a table; the heat map shows the reward of each."
    if len(subject.data) < 20:
        return f"The data have {len(subject.data)} steps; at least 20 are needed to say what inputs look like."
    if codes_of(subject.data) is None and not subject.reward.differentiable:
        return "The reward has no gradients."
    return None


def run(context: StepContext[Subject]) -> Section:
    """Make inputs that the reward rates high and low, and say how far from the data they are."""
    subject = context.subject
    reward, frames = subject.reward, seen_frames(subject.reward)
    data = subject.data.sample(4000, subject.rng("visualisation"))
    seed = int(subject.rng("visualisation seed").integers(2**31))
    manifold = Manifold(data, frames, seed)
    rewards = reward.of(data)
    values: dict[str, Any] = {
        "data": {"lowest": float(rewards.min()), "highest": float(rewards.max()), "mean": float(rewards.mean())},
        "held_out_off": manifold.held_out_off,
    }
    checks = [
        Check(
            "real inputs count as real",
            manifold.held_out_off <= 0.1,
            manifold.held_out_off,
            "at most 10 % of held-out steps off the manifold",
            ""
            if manifold.held_out_off <= 0.1
            else "The data's episodes differ so much that the red frames say little.",
        )
    ]
    if float(rewards.std()) < 1e-9:
        return Section(
            NAME, TITLE, [Statement("warning", "The reward is constant: no input is rated higher than another.")]
        )
    prior = None
    if manifold.images:
        prior = fit_prior(data, frames, seed, steps=max(20, round(400 * subject.effort)))
        values["prior_explains"] = prior.explained
        checks.append(
            Check(
                "the prior knows the data",
                prior.explained >= 0.3,
                prior.explained,
                "at least 0.3 of the held-out images' variance",
                "" if prior.explained >= 0.3 else "Its images are blurred averages.",
            )
        )
    made = {
        (kind, low): optimise(reward, data, seed, Objective(low=low), COUNT, settings, manifold, prior)
        for kind, settings in _kinds(subject, manifold, codes_of(data) is not None).items()
        for low in (False, True)
    }
    values["made"] = {f"{kind}, {'low' if low else 'high'}": _values(each) for (kind, low), each in made.items()}
    checks += _checks(made, manifold)
    statements = _statements(made, rewards, prior)
    tables = [_table(made, rewards)]
    if not manifold.images and codes_of(data) is None:
        tables.append(_features(subject, manifold, made))
        statements += _moves(subject, manifold, made)
    pictures = _pictures(subject, manifold, made, rewards, data)
    return Section(NAME, TITLE, statements, checks, tables, pictures, values)


def _kinds(subject: Subject, manifold: Manifold, codes: bool) -> dict[str, VisualisationSettings]:
    settings = VisualisationSettings(
        action="best" if "action" in subject.reward.inputs else "fixed", steps=max(10, round(150 * subject.effort))
    )
    if codes:
        return {CELLS: settings}
    kinds = {PLAIN: settings.unregularised(), REGULARISED: settings}
    return kinds | {PRIOR: replace(settings, parametrisation="prior")} if manifold.images else kinds


def _values(made: Visualisations) -> dict[str, Any]:
    return {
        "rewards": [float(each) for each in made.rewards],
        "off": made.off,
        "reasons": [list(each.reasons) for each in made.distances],
    }


Made = dict[tuple[str, bool], Visualisations]


def _checks(made: Made, manifold: Manifold) -> list[Check]:
    checks = []
    if (PLAIN, False) in made and manifold.images:  # vectors stay within their bounds: their extremes may well be real
        flagged = float(np.mean(made[PLAIN, False].off + made[PLAIN, True].off))
        checks.append(
            Check(
                "inputs that nothing keeps near the data are flagged",
                flagged >= 0.5,
                flagged,
                "at least half of them off the manifold",
                ""
                if flagged >= 0.5
                else "The reward has its extremes near the data, or the distance misses something.",
            )
        )
    if manifold.mean_variation is not None:
        most = max(
            float(np.max([total_variation(of) for of in frames_of(made[REGULARISED, low].steps, manifold.frames)]))
            for low in (False, True)
        )
        ratio = most / max(manifold.mean_variation, 1e-9)
        checks.append(
            Check(
                "total variation of the regularised inputs, relative to the data's mean",
                ratio <= 1.05,
                ratio,
                "at most 1.05",
                "" if ratio <= 1.05 else "The reward pays for fine patterns.",
            )
        )
    return checks


def _statements(made: Made, rewards: Array, prior: Prior | None) -> list[Statement]:
    """Say how far beyond the data's rewards made-up inputs get."""
    spread = float(rewards.std())
    said = []
    for (kind, low), each in made.items():
        if kind == PLAIN:
            continue
        real = float(rewards.min() if low else rewards.max())
        extreme = float(each.rewards.min() if low else each.rewards.max())
        beyond = (real - extreme if low else extreme - real) / spread
        off = sum(each.off)
        word = "lowest" if low else "highest"
        where = (
            f"all {len(each.off)} of them are off the manifold"
            if off == len(each.off)
            else f"{off} of {len(each.off)} are off it"
        )
        if beyond > 1.0:
            said.append(
                Statement(
                    "warning",
                    f"Made-up inputs ({kind}) reach reward {extreme:.2f}, where the data's {word} is {real:.2f}: "
                    f"{beyond:.1f} standard deviations beyond; {where}.",
                    min(beyond, 5.0) if off < len(each.off) else 0.5,
                )
            )
    if prior is not None and prior.explained < 0.3:
        said.append(
            Statement(
                "warning",
                f"The prior explains only {prior.explained:.0%} of the images' variance: its images say little.",
            )
        )
    return said


def _table(made: Made, rewards: Array) -> Table:
    rows: list[list[Any]] = [["the data", "", f"{rewards.min():.3g}", f"{rewards.max():.3g}", "", ""]]
    for (kind, low), each in made.items():
        reasons = sorted({reason for distance in each.distances for reason in distance.reasons}, reverse=True)
        rows.append(
            [
                kind,
                "low" if low else "high",
                f"{each.rewards.min():.3g}",
                f"{each.rewards.max():.3g}",
                f"{sum(each.off)} of {len(each.off)}",
                reasons[0] if reasons else "",
            ]
        )
    columns = ("inputs", "made for", "lowest reward", "highest reward", "off the manifold", "for example")
    return Table(columns, rows, "Rewards of made-up inputs beside those of the data.")


def _feature_rows(
    subject: Subject, manifold: Manifold, made: Made
) -> list[tuple[str, float, float, float, float, float]]:
    """Return each feature's name, data mean and spread, mean of the high and low inputs, and shift in spreads."""
    names = subject.regions.names if subject.regions is not None else None
    rows = []
    for frame in manifold.frames:
        real, high, low = (
            frames_of(each, [frame])[0].reshape(len(each), -1).astype(np.float64)
            for each in (subject.data, made[REGULARISED, False].steps, made[REGULARISED, True].steps)
        )
        for at in range(real.shape[1]):
            mean, std = float(real[:, at].mean()), float(real[:, at].std())
            up, down = float(high[:, at].mean()), float(low[:, at].mean())
            name = names[at] if names is not None and len(names) == real.shape[1] else f"feature {at}"
            called = f"{name} ({'before' if frame == 'state' else 'after'})" if len(manifold.frames) > 1 else name
            rows.append((called, mean, std, up, down, (up - down) / std if std > 1e-9 else 0.0))
    return sorted(rows, key=lambda row: -abs(row[5]))


def _features(subject: Subject, manifold: Manifold, made: Made) -> Table:
    rows = [
        [name, f"{mean:.3g} ± {std:.2g}", f"{high:.3g}", f"{low:.3g}"]
        for name, mean, std, high, low, _ in _feature_rows(subject, manifold, made)[:MOST_FEATURES]
    ]
    return Table(
        ("feature", "data", "rated high", "rated low"), rows, "Regularised inputs, the features that differ most."
    )


def _moves(subject: Subject, manifold: Manifold, made: Made) -> list[Statement]:
    name, mean, std, high, low, shift = _feature_rows(subject, manifold, made)[0]
    if abs(shift) < 1.0:
        return []
    return [
        Statement(
            "rewards",
            f"Inputs made to be rated high and low differ most in {name}: {high:.3g} and {low:.3g} (data: {mean:.3g} ± {std:.2g}).",
            min(abs(shift), 3.0) / 3.0,
        )
    ]


def _pictures(subject: Subject, manifold: Manifold, made: Made, rewards: Array, data: Any) -> list[Picture]:
    """Draw the inputs beside the data's highest and lowest."""
    grid = subject.regions.layout if subject.regions is not None and subject.regions.kind == "cell" else None
    if not manifold.images and grid is None:
        return []

    def frames(steps: Any) -> list[Array]:
        shown = [of[0] for of in frames_of(steps, manifold.frames)]
        return shown if grid is None else [of.reshape(grid) for of in shown]

    pictures = []
    for low in (False, True):
        word = "low" if low else "high"
        order = np.argsort(rewards if low else -rewards, kind="stable")[:COUNT]
        rows = [
            (
                "the data's " + ("lowest" if low else "highest"),
                [Tile(frames(data[i : i + 1]), f"{rewards[i]:.2f}") for i in order],
            )
        ]
        for (kind, of_low), each in made.items():
            if of_low == low:
                shown = [
                    Tile(
                        frames(each.steps[i : i + 1]),
                        f"{each.rewards[i]:.2f}" + ("\noff the manifold" if each.off[i] else ""),
                        each.off[i],
                    )
                    for i in range(len(each.steps))
                ]
                rows.append((kind, shown))
        caption = (
            f"Inputs rated {word}, with their rewards"
            + (" (before | after the step)" if len(manifold.frames) > 1 else "")
            + ". Red: off the manifold; the reward never learned what to say there."
        )
        pictures.append(Picture(f"rated_{word}", gallery(rows, float(np.max(data.observations))), caption))
    return pictures


STEP = Step(NAME, TITLE, run, why_not=why_not)
