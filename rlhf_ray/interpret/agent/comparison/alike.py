"""On the same frames: do two agents choose the same action, do their values go together, how alike is what they hold?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.interpret.agent.comparison.pair import AgentPair, Onlooker, correlation, mean_of, same_action
from rlhf_ray.measure.intervals import SHARE, MeanEstimate, blocks, estimate_mean, jackknife
from rlhf_ray.study.section import Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words, estimate

WORDS = Words(__file__)

WIDEST = 128
"""Principal components of what a wider layer holds."""
SHUFFLES = 20


@dataclass(frozen=True)
class ActionAgreement:
    """How often both choose the same most likely action.

    Attributes:
        same: on all frames, and ``chance``: with the second's actions shuffled among frames.
        by_frames_of: on the frames of each one's episodes, and ``chance_by_frames_of``.
        untrained: each with the other one's untrained twin.
    """

    same: MeanEstimate
    chance: float
    by_frames_of: tuple[MeanEstimate, MeanEstimate]
    chance_by_frames_of: tuple[float, float]
    untrained: tuple[float | None, float | None]


@dataclass(frozen=True)
class ValueAgreement:
    """The correlation of both values; ``chance``: shuffled among frames; ``untrained``: its size beside untrained twins."""

    correlation: MeanEstimate | None
    chance: MeanEstimate | None
    untrained: tuple[float | None, float | None]


@dataclass(frozen=True)
class SameFrames:
    """What both do and hold on the same frames.

    Attributes:
        frames: how many.
        actions: whether they act alike.
        values: whether they expect alike.
        held: similarity (linear CKA) of what both hold, and of its controls, by name; empty if one of them has nothing inside.
    """

    frames: int
    actions: ActionAgreement
    values: ValueAgreement
    held: dict[str, MeanEstimate | None]

    def twins(self, kind: str) -> float | None:
        """Return the mean similarity over both agents of a control, "untrained" or "ceiling"."""
        known = [self.held.get(f"{kind}_{who}") for who in (0, 1)]
        return mean_of(one.mean for one in known if one is not None)


def run(context: StepContext[AgentPair]) -> Section:
    """Compare actions, values and what both hold."""
    pair = context.subject
    figures = SameFrames(len(pair.frames.moments), _actions(pair), _values(pair), _held(pair))
    return WORDS.section(_statements(figures), tables=_tables(pair, figures), figures=figures)


def _actions(pair: AgentPair) -> ActionAgreement:
    frames, space = pair.frames, pair.space
    levels, rng = frames.levels, np.random.default_rng([pair.seed, 0xA1])

    def compare(one: FloatArray, other: FloatArray) -> float:
        return estimate_mean(same_action(one, other, space).astype(float), levels).mean

    one, other = (onlooker.acts for onlooker in frames.agents)
    same = same_action(one, other, space).astype(float)
    orders = [rng.permutation(len(other)) for _ in range(SHUFFLES)]
    shuffled = np.mean([same_action(one, other[order], space) for order in orders], axis=0, dtype=float)
    parts = [frames.by[frames.moments.rows] == who for who in (0, 1)]
    first, second = (estimate_mean(same[part], levels[part], SHARE) for part in parts)
    by_chance = [estimate_mean(shuffled[part], levels[part]).mean for part in parts]
    untrained = frames.beside_twins((one, other), lambda onlooker: onlooker.acts, compare)
    every = estimate_mean(same, levels, SHARE), estimate_mean(shuffled, levels).mean
    return ActionAgreement(*every, (first, second), (by_chance[0], by_chance[1]), untrained)


def _values(pair: AgentPair) -> ValueAgreement:
    frames, levels = pair.frames, pair.frames.levels

    def read(onlooker: Onlooker) -> FloatArray:
        return frames.moments.cut(onlooker.thoughts.values).astype(np.float64)

    def compare(one: FloatArray, other: FloatArray) -> float | None:
        value = correlation(one, other, levels)
        return None if value is None else abs(value.mean)

    one, other = map(read, frames.agents)
    order = np.random.default_rng([pair.seed, 0xA2]).permutation(len(other))
    both, shuffled = (correlation(one, values, levels) for values in (other, other[order]))
    return ValueAgreement(both, shuffled, frames.beside_twins((one, other), read, compare))


def _held(pair: AgentPair) -> dict[str, MeanEstimate | None]:
    """Compare what both hold, beside untrained twins, shuffled frames, and one half of an agent's units with the other."""
    if not all(agent.memory_size or agent.layers for agent in pair.agents):
        return {}
    frames, levels = pair.frames, pair.frames.levels
    one, other = (onlooker.inside for onlooker in frames.agents)
    rng = np.random.default_rng([pair.seed, 0xA3])
    distinct = rng.permutation(np.unique(levels))
    half = np.isin(levels, distinct[: len(distinct) // 2])
    compared = {"both": (one, other, levels)}
    if half.any():
        compared |= {
            f"half_{name}": (one[part], other[part], levels[part]) for name, part in (("a", half), ("b", ~half))
        }
    for who, inside in enumerate((one, other)):
        if inside.shape[1] > 1:
            units = rng.permutation(inside.shape[1])
            left, right = np.split(units, [len(units) // 2])
            compared[f"ceiling_{who}"] = inside[:, left], inside[:, right], levels
        for twin in frames.twins[who][:1]:
            compared[f"untrained_{who}"] = inside, twin.inside, levels
    compared["shuffled"] = one, other[rng.permutation(len(other))], levels
    return {name: _similarity_interval(*arrays) for name, arrays in compared.items()}


def similarity(one: FloatArray, other: FloatArray) -> float | None:
    """Return the linear CKA (Kornblith et al. 2019) of the same rows ``[n, size]``: 1 if equal up to rotation and scale."""
    x, y = one - one.mean(0), other - other.mean(0)
    scale = float(np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    return None if scale < 1e-12 else float(np.linalg.norm(x.T @ y) ** 2 / scale)


def _narrow(values: FloatArray) -> FloatArray:
    if values.shape[1] <= WIDEST:
        return values
    centred = values - values.mean(0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    narrow: FloatArray = centred @ vectors[:, -WIDEST:]
    return narrow


def _similarity_interval(x: FloatArray, y: FloatArray, groups: IntArray) -> MeanEstimate | None:
    """Estimate a similarity, from each group's sums of products."""
    x, y = _narrow(x), _narrow(y)
    value = similarity(x, y)
    if value is None:
        return None
    group, cut = blocks(groups), x.shape[1]
    both = np.concatenate([x - x.mean(0), y - y.mean(0), np.ones((len(x), 1))], 1)
    products = np.stack([both[group == number].T @ both[group == number] for number in range(int(group.max()) + 1)])

    def likeness(sums: FloatArray) -> FloatArray:
        mean = sums[:, -1, :-1]
        product = sums[:, :-1, :-1] - mean[:, :, None] * mean[:, None] / sums[:, -1:, -1:]
        one, other, across = product[:, :cut, :cut], product[:, cut:, cut:], product[:, :cut, cut:]
        first, second, joint = (np.linalg.norm(each, axis=(1, 2)) for each in (one, other, across))
        return np.asarray(joint**2 / np.maximum(first * second, 1e-300))

    return replace(jackknife(likeness, products, SHARE, products[:, -1, -1]), mean=value)


def _statements(figures: SameFrames) -> Iterator[Statement]:
    yield WORDS.statement("actions", 2.0, actions=figures.actions, untrained=mean_of(figures.actions.untrained))
    if figures.values.correlation is not None:
        yield WORDS.statement("values", 1.0, values=figures.values, untrained=mean_of(figures.values.untrained))
    if figures.held.get("both") is not None:
        untrained, ceiling = figures.twins("untrained"), figures.twins("ceiling")
        both, shuffled = figures.held["both"], figures.held["shuffled"]
        yield WORDS.statement("held", both=both, shuffled=shuffled, untrained=untrained, ceiling=ceiling)


def _tables(pair: AgentPair, figures: SameFrames) -> Iterator[Table]:
    actions, values = figures.actions, figures.values
    twins = [WORDS.text("untrained", name=name) for name in pair.names]
    estimates = [(actions.same, actions.chance), *zip(actions.by_frames_of, actions.chance_by_frames_of, strict=True)]
    heads = ["all frames", *(f"frames of {name}" for name in pair.names)]
    rows: list[list[Any]] = [
        [head, estimate(same), f"{chance:.2f}", *actions.untrained]
        for head, (same, chance) in zip(heads, estimates, strict=True)
    ]
    yield WORDS.table("actions", rows, twins, discrete=hasattr(pair.space, "n"))
    row = ["values", estimate(values.correlation), estimate(values.chance), *values.untrained]
    yield WORDS.table("values", [row], twins)
    if figures.held:
        yield WORDS.table("held", _held_rows(pair.names, figures.held))


def _held_rows(names: tuple[str, str], held: Mapping[str, MeanEstimate | None]) -> Iterator[list[str]]:
    for key, value in held.items():
        kind, _, who = key.rpartition("_")
        name = names[int(who)] if who in ("0", "1") else ""
        yield [WORDS.text(f"held_{kind}" if name else f"held_{key}", name=name), estimate(value)]


STEP = Step(WORDS.name, WORDS.title, run)
