"""Measures causal chains: what an agent does from moments on, with a concept's directions taken away or moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import MEMORY, Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.hooks import edits_at
from rlhf_ray.agents.moments import Moments
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.interpret.agent.action_groups import Behaviour
from rlhf_ray.interpret.agent.story import NONE, CausalChain, Joint, Link
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import COUNT, orthogonal_bases
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.measure.intervals import MeanEstimate, estimate_difference, weighted_contrast

SAME = 0.98
"""Correlation with a concept from which on a number of an observation tells it: it is the concept, but for noise and rounding."""
RANDOM_MOMENTS = 64
"""Moments that random directions are tried at."""


@dataclass(frozen=True)
class ChainMoments(Moments):
    """Moments that links are measured at.

    Attributes:
        observations: what the agent sees, ``[n, …]``.
        memory: before the step, ``[n, memory_size]``.
        levels: ``[n]``.
    """

    observations: Array
    memory: FloatArray
    levels: IntArray

    @classmethod
    def cut_from(cls, episodes: Episodes, moments: Moments) -> ChainMoments:
        """Cut moments out of episodes that hold observations."""
        seen, memory = moments.cut(episodes.observations), moments.cut(episodes.memory)
        return cls(moments.rows, moments.steps, seen, memory, episodes.levels[moments.rows])

    def logits(self, agent: Agent, interventions: Sequence[Intervention] = ()) -> FloatArray:
        """Return what the agent computes at each, ``[n, outputs]``, with interventions."""
        return self.thoughts(agent, interventions)[0]

    def thoughts(self, agent: Agent, interventions: Sequence[Intervention] = ()) -> tuple[FloatArray, FloatArray]:
        """Return `logits`, and values ``[n]``."""
        with torch.no_grad():
            edits = edits_at(interventions, self.steps) if interventions else {}
            step = agent.step(torch.as_tensor(self.observations), torch.as_tensor(self.memory), edits=edits)
        return step.logits.numpy(), step.value.numpy()


Response = Callable[[IntArray, Sequence[Intervention]], FloatArray]
"""How often the agent behaves so from some of the moments on, given their numbers and interventions, and last its mean value,
``[n, behaviours + 1]``."""


def swapped(agent: Agent, moments: ChainMoments, seed: int = 0) -> float | None:
    """Return the share of moments at which the agent does something else with the memory of another moment; None without memory.

    Where that is none, nothing that the memory ever holds matters at once, so that it can't later either. Of Box actions, all that
    move by more than rounding are something else.
    """
    if not agent.memory_size or len(moments) < 2:
        return None
    turned = np.roll(np.random.default_rng([seed, 0x5B]).permutation(len(moments)), 1)
    own, other = moments.logits(agent), replace(moments, memory=moments.memory[turned]).logits(agent)
    if isinstance(agent.action_space, gym.spaces.Discrete):
        return float((own.argmax(1) != other.argmax(1)).mean())
    return float((np.abs(own - other) > 1e-6 * (1.0 + np.abs(own))).any(1).mean())


def sees(agent: Agent, moments: ChainMoments, concept: FloatArray, seed: int = 0) -> MeanEstimate | None:
    """Return the share of moments at which the agent acts otherwise with another moment's numbers in sight that tell a concept.

    Those are the numbers of its observation whose correlation with the concept is `SAME`; all else stays as it is. Of Box actions,
    means that move by more than a tenth of their standard deviation are something else.

    Args:
        agent: the agent.
        moments: its moments.
        concept: what it is there, ``[n]``; NaN where unknown.
        seed: seeds which moments are exchanged, and the interval, which is over levels.

    Returns:
        None if no number tells it, or observations are images.
    """
    known = np.flatnonzero(np.isfinite(concept))
    seen = np.asarray(moments.observations, np.float64)
    if seen.ndim != 2 or len(known) < 2 or float(concept[known].std()) < 1e-9:
        return None
    spread = seen[known].std(0)
    related = np.abs((seen[known] - seen[known].mean(0)).T @ (concept[known] - concept[known].mean())) / len(known)
    telling = np.flatnonzero(related >= SAME * np.maximum(spread, 1e-9) * concept[known].std())
    if not len(telling):
        return None
    turned = np.roll(np.random.default_rng([seed, 0x5E]).permutation(known), 1)
    some, other = moments[known], np.array(moments.observations[known])
    other[:, telling] = moments.observations[turned][:, telling]
    own, changed = some.logits(agent), replace(some, observations=other).logits(agent)
    if isinstance(agent.action_space, gym.spaces.Discrete):
        differs = own.argmax(1) != changed.argmax(1)
    else:
        size = own.shape[1] // 2
        differs = (np.abs(own - changed) > NONE * np.maximum(own.std(0), 1e-9))[:, :size].any(1)
    return _mean(differs.astype(np.float64), some.levels)


def respond_at_once(agent: Agent, moments: ChainMoments, behaviours: Sequence[Behaviour]) -> Response:
    """Return the response that asks for the action at the moment itself: it needs no environment."""

    def respond(rows: IntArray, interventions: Sequence[Intervention]) -> FloatArray:
        logits, values = moments[rows].thoughts(agent, interventions)
        return np.stack([*(behaviour.done(logits, agent.action_space) for behaviour in behaviours), values], 1)

    return respond


def measure(
    agent: Agent,
    moments: ChainMoments,
    holds: BoolArray,
    behaviours: Sequence[Behaviour],
    basis: Directions,
    values: FloatArray,
    auc: tuple[float, float],
    *,
    others: Mapping[str, FloatArray] = {},
    respond: Response | None = None,
    site: str = MEMORY,
    count: int = COUNT,
    seed: int = 0,
) -> list[CausalChain]:
    """Measure the links of a chain from a concept to each behaviour. What needs levels is added by `dataclasses.replace`.

    Args:
        agent: the agent.
        moments: of held-out episodes.
        holds: where the concept holds, ``[n]``; each class occurs.
        behaviours: the behaviours.
        basis: the concept's directions at ``site``, fitted to other episodes.
        values: what the site holds, ``[n, size]``, for random directions.
        auc: of the direction and of the best random one.
        others: the classes of other concepts at the moments, ``[n]`` each, NaN where unknown: it may act with one of them only.
        respond: lets the agent act; None: `respond_at_once`.
        site: see `Intervention`.
        count: random directions.
        seed: seeds directions and intervals.
    """
    respond = respond_at_once(agent, moments, behaviours) if respond is None else respond
    on, off, every = np.flatnonzero(holds), np.flatnonzero(~holds), np.arange(len(holds))
    plain = respond(every, ())
    random = orthogonal_bases(basis, range(len(basis)), values, None, count, seed)
    rng = np.random.default_rng([seed, 0x51])
    scores = scores_at(agent, moments, basis, site)
    present, absent = scores[on].mean(0), scores[off].mean(0)

    def change(direction: Directions, score: FloatArray, rows: IntArray) -> FloatArray:
        """Return the change of the response ``[rows, behaviours + 1]`` with the scores held at ``score``."""
        held = Intervention(direction, range(len(direction)), "ablate_mean", amount=score, site=site)
        return respond(rows, [held]) - plain[rows]

    def moves(score: FloatArray, home: FloatArray, rows: IntArray) -> _Changes:
        far = float(np.linalg.norm((score - home) @ basis.patterns))
        some = rows[:: max(1, len(rows) // RANDOM_MOMENTS)][:RANDOM_MOMENTS]
        instead = [change(each, _as_far(each, far, rng), some) for each in random]
        return _Changes(rows, change(basis, score, rows), some, instead)

    removed, back = moves(np.asarray(basis.midpoints), present, on), moves(absent, present, on)
    moved = moves(present, absent, off)
    levels = moments.levels
    spread = max(float(plain[:, -1].std()), 1e-9)
    value = moved.and_then(back).differs(-1, levels).scaled(1.0 / spread)
    chains = []
    for k, behaviour in enumerate(behaviours):
        slopes = slope(agent, moments, behaviour, site)
        steepest = _steepest(basis, slopes)
        controls = []
        for sign in (1.0, -1.0):
            steered = Intervention(steepest, [0], "steer", amount=np.array([sign]), site=site)
            controls.append(_mean((respond(every, [steered]) - plain)[:, k], levels))
        gradient, *gradient_random = (
            float((slopes @ direction.patterns[0]).mean()) * float(direction.encode(values)[:, 0].std())
            for direction in (basis, *random)
        )
        gap = estimate_difference(plain[:, k], holds, levels)
        control = max(controls, key=lambda estimate: abs(estimate.mean))
        chain = CausalChain(
            basis.names[0], behaviour.name, *auc, (float(plain[off, k].mean()), float(plain[on, k].mean())), gradient,
            gradient_random, removed.link(k, levels), moved.link(k, levels), back.link(k, levels), control,
            gap_estimate=gap, differs=moved.and_then(back).differs(k, levels),
            value=value,
        )  # fmt: skip
        if not chain.has_gap:
            joint = _joint(plain[:, k], holds, others, moved.and_then(back, -1.0), k, levels)
            chain = replace(chain, joint=joint)
        chains.append(chain)
    return chains


@dataclass(frozen=True)
class _Changes:
    """How the response changes at some moments ``rows``, ``[rows, behaviours + 1]``, and at fewer with each random direction."""

    rows: IntArray
    changes: FloatArray
    some: IntArray
    random: Sequence[FloatArray]

    def link(self, k: int, levels: IntArray) -> Link:
        """Return the mean changes of behaviour ``k``."""
        estimate = _mean(self.changes[:, k], levels[self.rows])
        return Link(estimate, [float(each[:, k].mean()) for each in self.random])

    def differs(self, k: int, levels: IntArray) -> Link:
        """Return the mean size of the changes of behaviour ``k``."""
        sizes = replace(self, changes=np.abs(self.changes), random=[np.abs(each) for each in self.random])
        return sizes.link(k, levels)

    def and_then(self, other: _Changes, sign: float = 1.0) -> _Changes:
        """Return both, the other's changes times ``sign``."""
        return _Changes(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.changes, sign * other.changes]),
            np.concatenate([self.some, other.some]),
            [np.concatenate([one, sign * two]) for one, two in zip(self.random, other.random, strict=True)],
        )


def _mean(values: FloatArray, levels: IntArray) -> MeanEstimate:
    """Estimate the mean over moments, as shares are; its interval is over levels."""
    return weighted_contrast(values, np.ones((len(values), 1)), np.ones(1), levels)


def _joint(
    plain: FloatArray,
    holds: BoolArray,
    others: Mapping[str, FloatArray],
    moves: _Changes,
    k: int,
    levels: IntArray,
) -> Joint | None:
    """Return what the concept does together with the other concept that changes its gap most; None without another."""
    best = None
    for name, partner in others.items():
        cells = np.stack([(holds == a) & (partner == b) for a, b in ((1, 1), (0, 1), (1, 0), (0, 0))], 1).astype(
            np.float64
        )
        gap = weighted_contrast(plain, cells, np.array([1.0, -1.0, -1.0, 1.0]), levels, tests=len(others))
        if np.isfinite(gap.mean) and (best is None or abs(gap.mean) > abs(best.gap.mean)):
            halves, signs = np.stack([partner == 1, partner == 0], 1).astype(np.float64), np.array([1.0, -1.0])
            change = weighted_contrast(moves.changes[:, k], halves[moves.rows], signs, levels[moves.rows])
            random = [weighted_contrast(each[:, k], halves[moves.some], signs).mean for each in moves.random]
            best = Joint(name, gap, Link(change, [each for each in random if np.isfinite(each)]))
    return best


def _as_far(direction: Directions, distance: float, rng: np.random.Generator) -> FloatArray:
    """Return scores ``[k]`` whose values are ``distance`` from those of score 0, on a side drawn at random."""
    scores = rng.standard_normal(len(direction))
    found: FloatArray = scores * distance / max(float(np.linalg.norm(scores @ direction.patterns)), 1e-300)
    return found


def slope(agent: Agent, moments: ChainMoments, behaviour: Behaviour, site: str = MEMORY) -> FloatArray:
    """Return the gradient of the behaviour's log-odds with respect to the site's values, ``[n, size]``."""
    leaves: list[Tensor] = []

    def leaf(values: Tensor) -> Tensor:
        leaves.append(values.detach().requires_grad_())
        return leaves[-1]

    with torch.enable_grad():
        step = agent.step(torch.as_tensor(moments.observations), torch.as_tensor(moments.memory), edits={site: leaf})
        odds = behaviour.odds(step.logits)
        total = odds.sum() + 0.0 * leaves[-1].sum()  # depends on the site even if the behaviour doesn't
        (gradient,) = torch.autograd.grad(total, leaves[-1])
    flat: FloatArray = (gradient.flatten(2).sum(2) if gradient.dim() > 2 else gradient).double().numpy()
    return flat


def scores_at(agent: Agent, moments: ChainMoments, basis: Directions, site: str) -> FloatArray:
    """Return the directions' scores at each moment, ``[n, k]``."""
    seen: list[FloatArray] = []

    def look(values: Tensor) -> Tensor:
        pooled = values.flatten(2).mean(2) if values.dim() > 2 and values[0].numel() != len(basis.center) else values
        seen.append(basis.encode(pooled.flatten(1).double().numpy()))
        return values

    with torch.no_grad():
        agent.step(torch.as_tensor(moments.observations), torch.as_tensor(moments.memory), edits={site: look})
    return seen[-1]


def _steepest(basis: Directions, slopes: FloatArray) -> Directions:
    """Return the direction that the behaviour's log-odds depend on most, with a pattern as long as the basis's."""
    mean = slopes.mean(0)
    length = max(float(np.linalg.norm(mean)), 1e-12)
    pattern = mean / length * float(np.linalg.norm(basis.patterns[0]))
    filters = np.linalg.pinv(pattern[None]).T
    return Directions("steepest", ["steepest"], basis.center, pattern[None], filters, np.zeros((0, 1)), np.zeros(1))
