"""What two agents are compared on: the same levels, and the same frames, half of them from each agent's own episodes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from scipy.special import softmax

from rlhf_ray.agents.agent import Agent, Edit
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import Moments
from rlhf_ray.agents.replay import replay, site_of, values_at
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.identity import identify
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.envs.identity import identity_of
from rlhf_ray.interpret.agent.questions.objects import masks_at
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.measure.intervals import MeanEstimate, linear_correlation
from rlhf_ray.policies.env_actions import policy_bounds

LEVELS, OWN = 200, 40
"""Levels that both play, and levels that each plays for the frames."""
LONGEST, LONGEST_SEEN = 1000, 300
"""Steps after which an episode is cut: of levels that both play, and of episodes whose frames are kept."""
COPIES, BATCH = 64, 256
"""Episodes, and frames, at a time."""
EPSILON = 0.1
"""Share of random actions in the frames' episodes, so that they hold more than the agents' habits."""
FRAMES = 2000
"""Frames that both look at, half from each agent's episodes."""
TWINS = 2
"""Untrained twins of each agent."""
NEAR = 0.1
"""Share of a Box action's range within which two actions are the same."""
LEAST = 0.02
"""How far actions have to move, in the mean, before a concept or an object counts as used."""
FIRST_LEVEL = 2_000_000


@dataclass(frozen=True)
class Onlooker:
    """An agent, or an untrained twin, that looks at the frames.

    Attributes:
        agent: the agent.
        thoughts: what it thinks along all episodes.
        moments: the frames that are compared.
    """

    agent: Agent
    thoughts: Episodes
    moments: Moments

    @property
    def site(self) -> str | None:
        """The layer that is looked into, of an agent without memory; None of others."""
        return next(iter(sites(self.agent)), None)

    @property
    def inside(self) -> FloatArray:
        """What it holds at the frames, ``[n, size]``."""
        values: FloatArray = self.moments.cut(values_at(self.agent, self.thoughts, self.site)).astype(np.float64)
        return values

    @property
    def acts(self) -> FloatArray:
        """What it does at the frames, ``[n, k]``; see `acts`."""
        return acts(self.moments.cut(self.thoughts.logits), self.agent.action_space)

    def react(
        self, seen: Array | None = None, rows: IntArray | None = None, edits: dict[str, Edit] | None = None
    ) -> FloatArray:
        """Return what it does at the frames when something is changed, ``[n, k]``.

        Args:
            seen: other frames in their place, ``[n, …]``. The memory before stays.
            rows: some of the frames; None: all.
            edits: changes of what it has in mind, of all frames.
        """
        moments = self.moments if rows is None else self.moments[rows]
        looked = torch.as_tensor(moments.cut(self.thoughts.observations) if seen is None else seen)
        memory = torch.as_tensor(moments.cut(self.thoughts.memory))
        size = len(looked) if edits else BATCH
        with torch.no_grad():
            logits = [
                self.agent.step(looked[start : start + size], memory[start : start + size], edits=edits or {}).logits
                for start in range(0, len(looked), size)
            ]
        return acts(torch.cat(logits).double().numpy(), self.agent.action_space)


@dataclass(frozen=True)
class Frames:
    """Frames that both agents look at.

    Attributes:
        episodes: played by the first agent, then by the second.
        by: who played each episode: 0 or 1.
        moments: the frames that are compared: half from each agent. No two are the same to both agents, or those in which
            nothing goes on would outweigh all others.
        agents: both agents.
        twins: each one's untrained twins; empty if it has none.
        levels: the level of each of these frames, ``[n]``: the same number where levels have the same content. Intervals are over
            these.
        masks: where each kind of object is in these frames, ``[n, height, width]`` by name.
    """

    episodes: Episodes
    by: IntArray
    moments: Moments
    agents: tuple[Onlooker, Onlooker]
    twins: tuple[Sequence[Onlooker], Sequence[Onlooker]]
    levels: IntArray
    masks: dict[str, BoolArray]

    @property
    def seen(self) -> Array:
        """These frames, ``[n, …]``."""
        return self.moments.cut(self.episodes.observations)

    @property
    def states(self) -> list[bytes]:
        """The environment's states at these frames; empty if the episodes have none."""
        states = self.episodes.env_states
        pairs = zip(self.moments.rows, self.moments.steps, strict=True) if len(states) else ()
        return [bytes(states[row][step]) for row, step in pairs]

    def beside_twins(
        self,
        own: Sequence[FloatArray],
        read: Callable[[Onlooker], FloatArray],
        compare: Callable[[FloatArray, FloatArray], float | None],
    ) -> tuple[float | None, float | None]:
        """Compare each agent with the other one's untrained twins: the control of a comparison of both. Means over twins.

        Args:
            own: what is compared, of each agent, ``[n, …]``.
            read: returns the same of a twin.
            compare: returns how alike two are; None if that is not defined.
        """
        first, second = (mean_of(compare(own[who], read(twin)) for twin in self.twins[1 - who]) for who in (0, 1))
        return first, second


@dataclass(frozen=True)
class AgentPair:
    """Two agents of one environment.

    Attributes:
        first, second: the agents. Shapes, sizes and memories may differ.
        environment: the environment's name.
        make_batch: makes that many copies of it.
        seed: seeds every draw.
        effort: amount of work relative to the normal report.
    """

    first: Agent
    second: Agent
    environment: str
    make_batch: Callable[[int], EnvBatch]
    seed: int = 0
    effort: float = 1.0

    def __post_init__(self) -> None:
        for what in ("observation_space", "action_space"):
            mine, its = (getattr(agent, what) for agent in self.agents)
            if (type(mine), mine.shape, getattr(mine, "n", None)) != (type(its), its.shape, getattr(its, "n", None)):
                kind = what.replace("_", " ")
                raise SettingError(
                    f"The agents have different {kind}s, {mine} and {its}; compare agents of one environment."
                )

    @cached_property
    def digest(self) -> str:
        """Identify the agents and the environment by their code and weights, and the agents' names."""
        agents = self.first.digest, self.second.digest, self.names
        return identify(agents, identity_of(self.environment), self.make_batch)

    @property
    def agents(self) -> tuple[Agent, Agent]:
        """Both."""
        return self.first, self.second

    @property
    def names(self) -> tuple[str, str]:
        """What the report calls them."""
        if self.first.name == self.second.name:
            return f"{self.first.name} (first)", f"{self.second.name} (second)"
        return self.first.name, self.second.name

    @property
    def space(self) -> gym.Space[Any]:
        """The actions."""
        return self.first.action_space

    @cached_property
    def subjects(self) -> tuple[AgentSubject, AgentSubject]:
        """Each agent by itself. What doesn't depend on the agent is asked of the first."""
        about = self.environment, self.seed, self.effort, self.make_batch
        return AgentSubject(self.first, *about), AgentSubject(self.second, *about)

    def count(self, normal: int, least: int) -> int:
        """Return how many of something to use with this effort."""
        return self.subjects[0].count(normal, least)

    def groups(self, levels: Sequence[int] | IntArray) -> IntArray:
        """Return which levels are the same, ``[n]``; see `AgentSubject.groups`."""
        return self.subjects[0].groups(levels)

    def levels(self, part: int, count: int) -> IntArray:
        """Return levels of a part of the comparison: no two parts share any."""
        return FIRST_LEVEL + 100_000 * self.seed + 10_000 * part + np.arange(count)

    @cached_property
    def frames(self) -> Frames:
        """The frames that both look at."""
        batch = self.make_batch(1)
        batch.reset([int(self.levels(1, 1)[0])])
        states = bool(batch.edits) or bool(batch.masks())
        try:
            batch.states()
        except SettingError:
            states = False
        batch.close()
        how = {"epsilon": EPSILON, "max_steps": LONGEST_SEEN, "keep_states": states}
        count = self.count(OWN, 8)
        played = [
            subject.play(self.levels(1 + who, count), seed=self.seed, **how)
            for who, subject in enumerate(self.subjects)
        ]
        # What an agent had in mind is its own: it is replayed.
        bare = [replace(each, memory=np.zeros((*each.memory.shape[:2], 0), np.float32)) for each in played]
        episodes, by = Episodes.concatenate(bare), np.repeat([0, 1], [len(each) for each in played])
        thoughts = [replay(agent, episodes, sites(agent)) for agent in self.agents]
        every = _distinct(episodes, thoughts)
        rng, half = np.random.default_rng([self.seed, 0xF0]), self.count(FRAMES, 200) // 2
        chosen = [rng.permutation(np.flatnonzero(by[every.rows] == who))[:half] for who in (0, 1)]
        moments = every[np.sort(np.concatenate(chosen))]
        onlookers = [Onlooker(agent, each, moments) for agent, each in zip(self.agents, thoughts, strict=True)]
        twins = []
        for agent in self.agents:
            fresh = [agent.fresh(self.seed + 1 + twin) for twin in range(TWINS)]
            twins.append([Onlooker(twin, replay(twin, episodes, sites(twin)), moments) for twin in fresh if twin])
        levels = self.groups(episodes.levels)[moments.rows]
        frames = Frames(episodes, by, moments, (onlookers[0], onlookers[1]), (twins[0], twins[1]), levels, {})
        if not states:
            return frames
        batch = self.make_batch(min(COPIES, len(moments)))
        masks = masks_at(batch, frames.states)
        batch.close()
        return replace(frames, masks=masks)


def sites(agent: Agent) -> Sequence[str]:
    """Return the layer that is looked into, of an agent without memory; none of one that has nothing inside."""
    if agent.memory_size or not agent.layers:
        return ()
    return (site_of(agent),)


def acts(logits: FloatArray, space: gym.Space[Any]) -> FloatArray:
    """Return what an agent does, ``[n, k]``: probabilities of Discrete actions; means of Box actions, from -1 to 1 if bounded."""
    if isinstance(space, gym.spaces.Discrete):
        probabilities: FloatArray = softmax(logits.astype(np.float64), axis=1)
        return probabilities
    means: FloatArray = logits[:, : logits.shape[1] // 2].astype(np.float64)
    return (
        np.clip(means, *(end.flatten() for end in policy_bounds(space))) if isinstance(space, gym.spaces.Box) else means
    )


def moved(before: FloatArray, after: FloatArray, space: gym.Space[Any]) -> FloatArray:
    """Return how far `acts` moved, ``[n]``: total variation (0 to 1); of Box actions the mean share of the range -1 to 1."""
    size = np.abs(after - before)
    far: FloatArray = 0.5 * (size.sum(1) if isinstance(space, gym.spaces.Discrete) else size.mean(1))
    return far


def same_action(one: FloatArray, other: FloatArray, space: gym.Space[Any]) -> BoolArray:
    """Return where the most likely actions are the same, ``[n]``; Box: within `NEAR` of the range in every dimension."""
    if isinstance(space, gym.spaces.Discrete):
        return np.asarray(one.argmax(1) == other.argmax(1))
    return np.asarray((np.abs(one - other) <= 2 * NEAR).all(1))


def correlation(one: FloatArray, other: FloatArray, groups: IntArray) -> MeanEstimate | None:
    """Return the correlation of ``[n]`` or ``[n, k]``, all columns together, with an interval over groups.

    Columns are centred first. None if one of them does not vary.
    """
    x, y = (np.asarray(each, np.float64).reshape(len(each), -1) for each in (one, other))
    if not len(x):
        return None
    x, y = x - x.mean(0), y - y.mean(0)
    estimate = linear_correlation(x, y, np.repeat(groups, x.shape[1]))
    return None if math.isnan(estimate.mean) else estimate


Use = Literal["both", "differently", "first", "second", "unsettled", "neither", "open"]
"""Who uses a feature: both, perhaps differently; one of them; one of them, and whether the other does less is not settled; neither.

Open: neither was shown to, and one of them may.
"""


def use_of(uses: tuple[bool, bool], unused: tuple[bool, bool], differ: bool) -> Use:
    """Return who uses a feature.

    Args:
        uses: whether each was shown to use it.
        unused: whether an effect on each was shown to be absent.
        differ: whether the effects on both differ by more than their intervals.
    """
    if all(uses):
        return "both"
    if any(uses):
        return "unsettled" if not differ or not unused[uses.index(False)] else "first" if uses[0] else "second"
    return "neither" if all(unused) else "open"


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _distinct(episodes: Episodes, thoughts: Sequence[Episodes]) -> Moments:
    """Return all frames, without those that both agents saw before with the same memory."""
    first: dict[bytes, tuple[int, int]] = {}
    for row, step in np.argwhere(episodes.real):
        parts = [episodes.observations[row, step], *(each.memory[row, step] for each in thoughts)]
        key = b"".join(hashlib.blake2b(np.ascontiguousarray(part).tobytes(), digest_size=16).digest() for part in parts)
        first.setdefault(key, (row, step))
    rows, steps = np.array(list(first.values()), np.int64).T
    return Moments(rows, steps)
