"""The causal story of a behaviour: object or concept, direction, action, with the strength of each link and a verdict.

A link is measured from moments of held-out episodes on: what the agent does, and what it does from the same moment on with the
direction taken away (its score held halfway between the classes) or moved (held at the other class's mean). Effects are compared
with the gap that the concept makes by itself: how much more often the agent behaves so where the concept holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import MEMORY, Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.hooks import edits_at
from rlhf_ray.agents.moments import Moments
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.interpret.agent.action_groups import Behaviour
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import COUNT, random_bases
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.measure.intervals import MeanEstimate, bootstrap
from rlhf_ray.study.figures import fields_of

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
RANDOM_MOMENTS = 64
"""Moments that random directions are tried at."""


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
    def random_most(self) -> float:
        """The largest change with a random direction."""
        return max(map(abs, self.random), default=0.0)

    @property
    def stands_out(self) -> bool:
        """Whether its interval is clear of 0, and it is larger than with any random direction."""
        return not self.change.holds_zero and abs(self.change.mean) > self.random_most

    @property
    def absent(self) -> bool:
        """Whether the interval stays within `NONE`, and holds 0 unless random directions do as much."""
        low, high = self.change.low, self.change.high
        return low is not None and high is not None and max(-low, high) <= NONE and not self.stands_out


@dataclass(frozen=True)
class EditedLevel:
    """What the level's edit that moves a direction's score most does.

    Attributes:
        edit: its name.
        score: change of the score, in distances between the concept's classes.
        action: change of the behaviour, towards the concept.
    """

    edit: str
    score: MeanEstimate
    action: MeanEstimate


@dataclass(frozen=True)
class CausalChain:
    """A concept, its direction, and a behaviour.

    Attributes:
        concept, behaviour: names.
        auc: how well the direction's score tells the concept's classes apart on other levels.
        auc_random: the largest AUC of random directions.
        shares: frequency of the behaviour where the concept doesn't hold, and where it does.
        gradient: mean change of the behaviour's log-odds with a standard deviation of the score.
        gradient_random: the same of each random direction.
        removed: taking the direction away where the concept holds.
        moved: setting the score to its mean where the concept holds, at moments where it doesn't.
        back: the opposite.
        control: the change by moving as far along the direction that the action depends on most: shows what the test can see.
        yes_no: whether the concept is yes or no; else a number, whose classes lie below and above its median.
        success: change of the return with the direction taken away throughout, as a share of the return.
        edited: the same concept changed in the level itself, if an edit does that.
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
    yes_no: bool = True
    success: Link | None = None
    edited: EditedLevel | None = None

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
    def without_power(self) -> bool:
        """Whether nothing moves the action, not even the control: then an absent effect means nothing."""
        return self.control.holds_zero and all(link.change.holds_zero for link in self.links)

    @property
    def links(self) -> list[Link]:
        """All interventions."""
        return [self.removed, self.moved, self.back, *([self.success] if self.success is not None else [])]

    @property
    def largest(self) -> float:
        """The largest effect of an intervention."""
        return max(abs(link.change.mean) for link in self.links)

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
        """Return all figures and the verdict."""
        return fields_of(self) | {"gap": self.gap, "verdict": self.verdict}


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
        with torch.no_grad():
            edits = edits_at(interventions, self.steps) if interventions else {}
            step = agent.step(torch.as_tensor(self.observations), torch.as_tensor(self.memory), edits=edits)
        logits: FloatArray = step.logits.numpy()
        return logits


Response = Callable[[IntArray, Sequence[Intervention]], FloatArray]
"""How often the agent behaves so from some of the moments on, given their numbers and interventions, ``[n, behaviours]``."""


def respond_at_once(agent: Agent, moments: ChainMoments, behaviours: Sequence[Behaviour]) -> Response:
    """Return the response that asks for the action at the moment itself: it needs no environment."""

    def respond(rows: IntArray, interventions: Sequence[Intervention]) -> FloatArray:
        logits = moments[rows].logits(agent, interventions)
        return np.stack([behaviour.done(logits, agent.action_space) for behaviour in behaviours], 1)

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
        basis: one component: the concept's direction at ``site``, fitted to other episodes.
        values: what the site holds, ``[n, size]``, for random directions.
        auc: of the direction and of the best random one.
        respond: lets the agent act; None: `respond_at_once`.
        site: see `Intervention`.
        count: random directions.
        seed: seeds directions and intervals.
    """
    respond = respond_at_once(agent, moments, behaviours) if respond is None else respond
    on, off, every = np.flatnonzero(holds), np.flatnonzero(~holds), np.arange(len(holds))
    plain = respond(every, ())
    random = random_bases(basis, [0], values, None, count, seed)
    signs = np.random.default_rng([seed, 0x51]).choice([-1.0, 1.0], len(random))
    scores = _scores(agent, moments, basis, site)
    present, absent = float(scores[on].mean()), float(scores[off].mean())

    def change(direction: Directions, score: float, rows: IntArray) -> FloatArray:
        """Return the change of frequencies with the score held at ``score``."""
        held = Intervention(direction, [0], "ablate_mean", amount=np.array([score]), site=site)
        return respond(rows, [held]) - plain[rows]

    def links(score: float, home: float, rows: IntArray) -> list[Link]:
        changes = change(basis, score, rows)
        # Random directions are moved as far from their mean: their patterns have the same length.
        some = rows[:: max(1, len(rows) // RANDOM_MOMENTS)][:RANDOM_MOMENTS]
        controls = zip(random, signs, strict=True)
        others = [change(direction, sign * (score - home), some).mean(0) for direction, sign in controls]
        return [
            Link(bootstrap(changes[:, k], moments.levels[rows], seed), [float(other[k]) for other in others])
            for k in range(len(behaviours))
        ]

    removed, back = links(float(basis.midpoints[0]), present, on), links(absent, present, on)
    moved = links(present, absent, off)
    chains = []
    for k, behaviour in enumerate(behaviours):
        slopes = slope(agent, moments, behaviour, site)
        steepest = _steepest(basis, slopes)
        controls = []
        for sign in (1.0, -1.0):
            steered = Intervention(steepest, [0], "steer", amount=np.array([sign]), site=site)
            controls.append(bootstrap((respond(every, [steered]) - plain)[:, k], moments.levels, seed))
        gradient, *gradient_random = (
            float((slopes @ direction.patterns[0]).mean()) * float(direction.encode(values)[:, 0].std())
            for direction in (basis, *random)
        )
        shares = float(plain[off, k].mean()), float(plain[on, k].mean())
        control = max(controls, key=lambda estimate: abs(estimate.mean))
        about = basis.names[0], behaviour.name, *auc, shares, gradient, gradient_random
        chains.append(CausalChain(*about, removed[k], moved[k], back[k], control))
    return chains


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


def _scores(agent: Agent, moments: ChainMoments, basis: Directions, site: str) -> FloatArray:
    """Return the direction's score at each moment, ``[n]``."""
    seen: list[FloatArray] = []

    def look(values: Tensor) -> Tensor:
        pooled = values.flatten(2).mean(2) if values.dim() > 2 and values[0].numel() != len(basis.center) else values
        seen.append(basis.encode(pooled.flatten(1).double().numpy())[:, 0])
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
