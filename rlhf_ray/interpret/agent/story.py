"""The causal story of a behaviour: object or concept, direction, action, with the strength of each link and a verdict.

A link is measured from moments of held-out episodes on: what the agent does, and what it does from the same moment on with the
direction taken away (its score held halfway between the classes) or moved (held at the other class's mean). Effects are compared
with the gap that the concept makes by itself: how much more often the agent behaves so where the concept holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import MEMORY, Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.hooks import edits_at
from rlhf_ray.agents.moments import Moments
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.interpret.agent.bases import Basis
from rlhf_ray.interpret.agent.bases.linear import Linear
from rlhf_ray.interpret.agent.controls import COUNT, random_bases
from rlhf_ray.interpret.agent.interventions import Intervention
from rlhf_ray.measure.intervals import MeanEstimate, bootstrap
from rlhf_ray.policies.env_actions import to_env_actions

Verdict = Literal[
    "necessary", "sufficient", "both", "contributes", "decodable only", "spurious", "not settled", "not read off"
]  # fmt: skip

READ = 0.8
"""AUC from which on a concept is read off a direction: well above chance, and below what single units reach by accident."""
HALF = 0.5
"""Share of the concept's gap that an intervention must close to be called necessary or sufficient: more than all else together."""
SUCCESS = 0.3
"""Share of the return that must be lost where the behaviour itself is only partly abolished. Guessing a cue of two costs a half."""
NONE = 0.1
"""An effect is absent if its interval stays within this (one action in ten, a tenth of the return) and is not clear of chance."""
SLOPE = 0.5
"""Log-odds per standard deviation of the score from which on a gradient says that a direction drives an action: odds of 5 to 3."""
FEWEST = 10
"""Moments of each class that a chain needs."""
RANDOM_MOMENTS = 64
"""Moments that random directions are tried at."""
SAME, ALIKE = 0.98, 0.9
"""Share of steps at which two concepts (two behaviours) say the same or the opposite, from which on they count as one."""


@dataclass(frozen=True)
class Behaviour:
    """What the agent does at a moment, yes or no.

    Attributes:
        name: in words, for example "jump".
        actions: numbers of Discrete actions; of a Box action, the one element that is looked at.
        above: of a Box action: the behaviour is a mean above this.
    """

    name: str
    actions: tuple[int, ...]
    above: float | None = None

    def done(self, logits: FloatArray, space: gym.Space[Any]) -> FloatArray:
        """Return 1 where the most likely action is the behaviour, ``[n]``, given logits ``[n, outputs]``."""
        if self.above is None:
            return np.isin(logits.argmax(1), self.actions).astype(np.float64)
        size = logits.shape[1] // 2
        taken = to_env_actions(logits[:, :size].reshape(-1, *(space.shape or ())), space).reshape(len(logits), -1)
        return np.asarray(taken[:, self.actions[0]] > self.above).astype(np.float64)

    def taken(self, actions: Array) -> FloatArray:
        """Return 1 where environment actions ``[n, T, …]`` are the behaviour, ``[n, T]``."""
        if self.above is None:
            return np.isin(actions, self.actions).astype(np.float64)
        return np.asarray(actions.reshape(*actions.shape[:2], -1)[:, :, self.actions[0]] > self.above).astype(float)

    def odds(self, logits: Tensor) -> Tensor:
        """Return the behaviour's log-odds ``[n]``; of a Box action the mean, in standard deviations of the policy."""
        if self.above is not None:
            mean, log_std = logits.chunk(2, -1)
            return mean[:, self.actions[0]] / log_std[:, self.actions[0]].exp().detach()
        own = list(self.actions)
        rest = [at for at in range(logits.shape[1]) if at not in own]
        return logits[:, own].logsumexp(1) - logits[:, rest].logsumexp(1)


def behaviours_of(episodes: Episodes, space: gym.Space[Any], names: Sequence[str] = ()) -> list[Behaviour]:
    """Return what the agent sometimes does: groups of actions that share a word of their names, and single actions.

    By its most likely action: what it does in one step in twenty at least, and does not do in as many; the most evenly split first.
    """
    found: list[Behaviour] = []
    real = episodes.real
    if isinstance(space, gym.spaces.Discrete):
        called = list(names) if len(names) == int(space.n) else [f"action {at}" for at in range(int(space.n))]
        words = list(dict.fromkeys(word for name in called for word in name.split("_")))
        groups: dict[tuple[int, ...], str] = {
            tuple(at for at, name in enumerate(called) if word in name.split("_")): word for word in words
        }
        alone: dict[tuple[int, ...], str] = {
            (at,): f"only {name}" if name in words else name.replace("_", " ") for at, name in enumerate(called)
        }
        unique: dict[tuple[int, ...], str] = {**alone, **groups}
        options = [Behaviour(name, actions) for actions, name in unique.items() if len(actions) < int(space.n)]
    else:
        flat = episodes.actions.reshape(*real.shape, -1)[real]
        called = list(names) if len(names) == flat.shape[1] else [f"action {at}" for at in range(flat.shape[1])]
        options = [
            Behaviour(f"{name} above its median", (at,), float(np.median(flat[:, at])))
            for at, name in enumerate(called)
        ]
    done = {option: option.done(episodes.logits[real], space) for option in options}
    often = [option for option in options if 0.05 <= done[option].mean() <= 0.95]
    for option in sorted(
        often, key=lambda each: (abs(round(done[each].mean(), 1) - 0.5), -len(each.actions), each.name)
    ):
        alike = [float((done[option] == done[other]).mean()) for other in found]
        if not any(share > ALIKE or share < 1.0 - ALIKE for share in alike):
            found.append(option)
    return found


def directions(values: FloatArray, concepts: Mapping[str, BoolArray | FloatArray]) -> dict[str, Linear]:
    """Fit a direction for each concept that holds the others still: one component each.

    The pattern is how the values' mean differs between the concept's classes at equal values of all other concepts, by least
    squares. The plain difference of means would hold the other concepts' directions as well: where the saw is, the pit is not. The
    filter is the reader with the least variance from anything else (inverse covariance times pattern).

    Args:
        values: ``[n, size]``.
        concepts: the classes ``[n]`` of each, 0 and 1; NaN where not defined.
    """
    rows = np.asarray(values, np.float64)
    center = rows.mean(0)
    centred = rows - center
    covariance = centred.T @ centred / max(len(rows), 1)
    ridge = 1e-3 * float(np.trace(covariance)) / max(len(covariance), 1) + 1e-12
    inverse = np.linalg.inv(covariance + ridge * np.eye(len(covariance)))
    found: dict[str, Linear] = {}
    filled = {name: _filled(each) for name, each in concepts.items()}
    for name, labels in concepts.items():
        known = np.isfinite(np.asarray(labels, np.float64))
        own = filled[name][known]
        if min((own > 0.5).sum(), (own < 0.5).sum()) < FEWEST:
            continue
        others = [filled[other][known] for other in concepts if other != name]
        left = _residual(own, others)
        if float(left.var()) < 0.1 * float(own.var()):  # the others tell it nearly: there is nothing to hold still
            left = own - own.mean()
        pattern = left @ centred[known] / float(left @ own)
        if float(np.linalg.norm(pattern)) < 1e-9:
            continue
        reader = inverse @ pattern
        filters = reader / float(reader @ pattern)
        scores = centred @ filters
        middle = 0.5 * (scores[known][own > 0.5].mean() + scores[known][own < 0.5].mean())
        found[name] = Linear(
            "concept", [name], center, pattern[None], filters[None], scores[:, None], np.array([middle])
        )
    return found


def _filled(labels: Array) -> FloatArray:
    numbers = np.asarray(labels, np.float64)
    known = np.isfinite(numbers)
    return np.where(known, numbers, numbers[known].mean() if known.any() else 0.0)


def _residual(own: FloatArray, others: Sequence[FloatArray]) -> FloatArray:
    design = np.column_stack([np.ones(len(own)), *others])
    found: FloatArray = own - design @ np.linalg.lstsq(design, own, rcond=None)[0]
    return found


@dataclass(frozen=True)
class At(Moments):
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
    def of(cls, episodes: Episodes, rows: IntArray, steps: IntArray) -> At:
        """Cut moments out of episodes that hold observations."""
        return cls(rows, steps, episodes.observations[rows, steps], episodes.memory[rows, steps], episodes.levels[rows])

    def logits(self, agent: Agent, interventions: Sequence[Intervention] = ()) -> FloatArray:
        """Return what the agent computes at each, ``[n, outputs]``, with interventions."""
        with torch.no_grad():
            edits = edits_at(interventions, self.steps) if interventions else {}
            step = agent.step(torch.as_tensor(self.observations), torch.as_tensor(self.memory), edits=edits)
        found: FloatArray = step.logits.numpy()
        return found


def slope(agent: Agent, at: At, behaviour: Behaviour, site: str = MEMORY) -> FloatArray:
    """Return the gradient of the behaviour's log-odds with respect to the site's values, ``[n, size]``."""
    leaves: list[Tensor] = []

    def leaf(values: Tensor) -> Tensor:
        leaves.append(values.detach().requires_grad_())
        return leaves[-1]

    with torch.enable_grad():
        step = agent.step(torch.as_tensor(at.observations), torch.as_tensor(at.memory), edits={site: leaf})
        odds = behaviour.odds(step.logits)
        total = odds.sum() + 0.0 * leaves[-1].sum()  # depends on the site even if the behaviour doesn't
        (found,) = torch.autograd.grad(total, leaves[-1])
    flat: FloatArray = (found.flatten(2).sum(2) if found.dim() > 2 else found).double().numpy()
    return flat


@dataclass(frozen=True)
class Link:
    """An effect on the behaviour's frequency, beside the same on random directions.

    Attributes:
        change: of the frequency.
        random: change with each random direction.
    """

    change: MeanEstimate
    random: Sequence[float] = ()

    @property
    def stands_out(self) -> bool:
        """Whether its interval is clear of 0, and it is larger than with any random direction."""
        return not self.change.holds_zero and abs(self.change.mean) > max(
            (abs(each) for each in self.random), default=0.0
        )

    @property
    def absent(self) -> bool:
        """Whether the interval stays within `NONE`, and holds 0 unless random directions do as much."""
        low, high = self.change.low, self.change.high
        return low is not None and high is not None and max(-low, high) <= NONE and not self.stands_out


@dataclass(frozen=True)
class CausalChain:
    """A concept, its direction, and a behaviour.

    Attributes:
        concept, behaviour: names.
        auc: how well the direction's score tells the concept's classes apart on other levels, and ``shuffled`` the largest of
            random directions.
        shares: frequency of the behaviour where the concept holds not, and where it does.
        gradient: mean change of the behaviour's log-odds with a standard deviation of the score; ``gradient_random`` of each random
            direction.
        removed: taking the direction away where the concept holds.
        moved: setting the score to its mean where the concept holds, at moments where it does not.
        back: the opposite.
        control: the change by moving as far along the direction that the action depends on most: shows what the test can see.
        success: change of the return with the direction taken away throughout, as a share of the return.
        edit: the level's edit that changes the concept, if there is one.
        edit_score: change of the direction's score by that edit, in distances between the classes.
        edit_action: change of the behaviour by that edit, towards the concept.
        model: the same as ``removed`` inside the world model.
    """

    concept: str
    behaviour: str
    auc: float
    auc_random: float
    shares: tuple[float, float]
    gradient: float
    gradient_random: Sequence[float]
    removed: Link
    moved: Link
    back: Link
    control: MeanEstimate
    success: Link | None = None
    edit: str | None = None
    edit_score: MeanEstimate | None = None
    edit_action: MeanEstimate | None = None
    model: MeanEstimate | None = None

    @property
    def gap(self) -> float:
        """How much more often the agent behaves so where the concept holds."""
        return self.shares[1] - self.shares[0]

    @property
    def slopes(self) -> bool:
        """Whether the gradient says that the direction drives the behaviour: steep, and steeper than for most random directions."""
        random = float(np.median(np.abs(self.gradient_random))) if len(self.gradient_random) else 0.0
        return abs(self.gradient) >= max(SLOPE, random)

    def closes(self, link: Link, towards: float) -> float:
        """Return the share of the gap that a link closes; ``towards`` is the sign of the change that closes it."""
        return towards * link.change.mean / self.gap if abs(self.gap) > 1e-9 else 0.0

    @property
    def necessary(self) -> bool:
        """Whether the behaviour, or what it is for, fails without the direction.

        Where the return fails as with no random direction, the behaviour has to end as well, but random directions, moved as far as
        no memory ever was, may end it too.
        """
        links = [link for link in (self.removed, self.back) if link.stands_out]
        ending = self.ending if abs(self.gap) > NONE else []
        if any(link in links for link in ending):
            return True
        lost = self.success is not None and self.success.stands_out and self.success.change.mean <= -SUCCESS
        return lost and bool(links or ending)

    @property
    def ending(self) -> list[Link]:
        """The interventions that take the direction away and end the behaviour: they clearly close at least half of the gap."""
        links = (self.removed, self.back)
        return [link for link in links if not link.change.holds_zero and self.closes(link, -1.0) >= HALF]

    @property
    def sufficient(self) -> bool:
        """Whether the direction alone brings the behaviour about where it is absent."""
        return abs(self.gap) > NONE and self.moved.stands_out and self.closes(self.moved, 1.0) >= HALF

    @property
    def without_effect(self) -> bool:
        """Whether no intervention has any, although the test would have seen one."""
        return all(link.absent for link in self.links) and not self.control.holds_zero

    @property
    def links(self) -> list[Link]:
        """All interventions."""
        return [self.removed, self.moved, self.back, *([self.success] if self.success is not None else [])]

    @property
    def verdict(self) -> Verdict:
        """What follows from all that."""
        if self.auc < READ:
            return "not read off"
        if self.necessary or self.sufficient:
            return "both" if self.necessary and self.sufficient else "necessary" if self.necessary else "sufficient"
        if self.without_effect:
            return "spurious" if self.slopes else "decodable only"
        if any(link.stands_out for link in (self.removed, self.moved, self.back)):
            return "contributes"
        return "not settled"

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        plain = {
            name: asdict(value) if isinstance(value, Link | MeanEstimate) else value
            for name, value in vars(self).items()
        }
        return {**plain, "gap": self.gap, "verdict": self.verdict}


Response = Callable[[IntArray, Sequence[Intervention]], FloatArray]
"""How often the agent behaves so from some of the moments on, given their numbers and interventions, ``[n, behaviours]``."""


def at_once(agent: Agent, at: At, behaviours: Sequence[Behaviour]) -> Response:
    """Return the response that asks for the action at the moment itself: it needs no environment."""

    def respond(rows: IntArray, interventions: Sequence[Intervention]) -> FloatArray:
        there = at[rows]
        logits = there.logits(agent, interventions)
        return np.stack([each.done(logits, agent.action_space) for each in behaviours], 1)

    return respond


def measure(
    agent: Agent,
    at: At,
    holds: BoolArray,
    behaviours: Sequence[Behaviour],
    basis: Basis,
    values: FloatArray,
    auc: tuple[float, float],
    *,
    respond: Response | None = None,
    site: str = MEMORY,
    count: int = COUNT,
    seed: int = 0,
) -> list[CausalChain]:
    """Measure the links of a chain from a concept to each behaviour. What needs levels is added by `dataclasses.replace`.

    Args:
        agent: the agent.
        at: moments of held-out episodes.
        holds: where the concept holds, ``[n]``; both classes at least `FEWEST` times.
        behaviours: the behaviours.
        basis: one component: the concept's direction at ``site``, fitted to other episodes.
        values: what the site holds, ``[n, size]``, for random directions.
        auc: of the direction and of the best random one.
        respond: lets the agent act; None: `at_once`.
        site: see `Intervention`.
        count: random directions.
        seed: seeds directions and intervals.
    """
    respond = at_once(agent, at, behaviours) if respond is None else respond
    on, off, every = np.flatnonzero(holds), np.flatnonzero(~holds), np.arange(len(holds))
    plain = respond(every, ())
    random = random_bases(basis, [0], values, None, count, seed)
    signs = np.random.default_rng([seed, 0x51]).choice([-1.0, 1.0], len(random))
    with torch.no_grad():
        scores = _scores(agent, at, basis, site)
    present, absent = float(scores[on].mean()), float(scores[off].mean())

    def moved(of: Basis, score: float, rows: IntArray) -> FloatArray:
        """Return the change of frequencies with the score held at ``score``."""
        held = Intervention(of, [0], "ablate_mean", amount=np.array([score]), site=site)
        return respond(rows, [held]) - plain[rows]

    def link(score: float, home: float, rows: IntArray) -> list[Link]:
        changes = moved(basis, score, rows)
        # Random directions are moved as far from their mean: their patterns have the same length.
        some = rows[:: max(1, len(rows) // RANDOM_MOMENTS)][:RANDOM_MOMENTS]
        others = [moved(each, sign * (score - home), some).mean(0) for each, sign in zip(random, signs, strict=True)]
        return [
            Link(bootstrap(changes[:, k], at.levels[rows], seed), [float(each[k]) for each in others])
            for k in range(len(behaviours))
        ]

    removed, back = link(float(basis.midpoints[0]), present, on), link(absent, present, on)
    brought = link(present, absent, off)
    spread = float(basis.transform(values)[:, 0].std())
    found = []
    for k, behaviour in enumerate(behaviours):
        slopes = slope(agent, at, behaviour, site)
        steepest = _steepest(basis, slopes)
        powers = []
        for sign in (1.0, -1.0):
            steered = Intervention(steepest, [0], "steer", amount=np.array([sign]), site=site)
            powers.append(bootstrap((respond(every, [steered]) - plain)[:, k], at.levels, seed))
        found.append(
            CausalChain(
                basis.names[0],
                behaviour.name,
                *auc,
                (float(plain[off, k].mean()), float(plain[on, k].mean())),
                float((slopes @ basis.patterns[0]).mean()) * spread,
                [float((slopes @ of.patterns[0]).mean()) * float(of.transform(values)[:, 0].std()) for of in random],
                removed[k],
                brought[k],
                back[k],
                max(powers, key=lambda power: abs(power.mean)),
            )
        )
    return found


def _scores(agent: Agent, at: At, basis: Basis, site: str) -> FloatArray:
    """Return the direction's score at each moment, ``[n]``."""
    seen: list[FloatArray] = []

    def look(values: Tensor) -> Tensor:
        pooled = values.flatten(2).mean(2) if values.dim() > 2 and values[0].numel() != len(basis.center) else values
        seen.append(basis.transform(pooled.flatten(1).double().numpy())[:, 0])
        return values

    agent.step(torch.as_tensor(at.observations), torch.as_tensor(at.memory), edits={site: look})
    return seen[-1]


def _steepest(basis: Basis, slopes: FloatArray) -> Linear:
    """Return the direction that the behaviour's log-odds depend on most, with a pattern as long as the basis's."""
    mean = slopes.mean(0)
    length = max(float(np.linalg.norm(mean)), 1e-12)
    pattern = mean / length * float(np.linalg.norm(basis.patterns[0]))
    filters = np.linalg.pinv(pattern[None]).T
    return Linear("steepest", ["steepest"], basis.center, pattern[None], filters, np.zeros((0, 1)), np.zeros(1))
