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
from rlhf_ray.agents.play import play
from rlhf_ray.agents.replay import replay, site_of
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.questions.objects import masks_at
from rlhf_ray.measure.intervals import MeanEstimate, linear_correlation

LEVELS, OWN = 200, 40
"""Levels that both play, and levels that each plays for the frames."""
LONGEST, LONGEST_SEEN = 1000, 300
"""Steps after which an episode is cut: of levels that both play, and of episodes whose frames are kept."""
COPIES = 64
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
class Frames:
    """Frames that both agents look at.

    Attributes:
        episodes: played by the first agent, then by the second.
        by: who played each episode: 0 or 1.
        thoughts: what each agent thinks along all of them.
        untrained: the same of each one's untrained twins; empty if it has none.
        moments: the frames that are compared: half from each agent. No two are the same to both agents, or those in which
            nothing goes on would outweigh all others.
        masks: where each kind of object is in these frames, ``[n, height, width]`` by name.
    """

    episodes: Episodes
    by: IntArray
    thoughts: tuple[Episodes, Episodes]
    untrained: tuple[Sequence[Episodes], Sequence[Episodes]]
    moments: Moments
    masks: dict[str, BoolArray]

    @property
    def seen(self) -> Array:
        """These frames, ``[n, …]``."""
        return self.moments.cut(self.episodes.observations)


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

    @property
    def digest(self) -> str:
        """Identify the agents, their names and the environment."""
        return f"{self.first.digest} {self.second.digest} {self.names} {self.environment}"

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
    def action_names(self) -> Sequence[str]:
        """What each action does; empty if unknown."""
        batch = self.make_batch(1)
        try:
            return tuple(batch.action_names)
        finally:
            batch.close()

    def count(self, normal: int, least: int) -> int:
        """Return how many of something to use with this effort."""
        return max(least, round(normal * self.effort))

    def levels(self, part: int, count: int) -> IntArray:
        """Return levels of a part of the comparison: no two parts share any."""
        return FIRST_LEVEL + 100_000 * self.seed + 10_000 * part + np.arange(count)

    def play(self, agent: Agent, levels: IntArray, **how: Any) -> Episodes:
        """Play levels; see `play`."""
        batch = self.make_batch(min(COPIES, len(levels)))
        try:
            return play(agent, batch, levels, seed=self.seed, **how)
        finally:
            batch.close()

    @cached_property
    def frames(self) -> Frames:
        """The frames that both look at."""
        batch = self.make_batch(1)
        batch.reset([int(self.levels(1, 1)[0])])
        states = bool(batch.edits) or bool(batch.masks())
        batch.close()
        count = self.count(OWN, 8)
        how = {"epsilon": EPSILON, "max_steps": LONGEST_SEEN, "keep_states": states}
        own = [self.play(agent, self.levels(1 + at, count), **how) for at, agent in enumerate(self.agents)]
        bare = [_without_memory(each) for each in own]  # what an agent had in mind is its own: it is replayed
        episodes, by = Episodes.concatenate(bare), np.repeat([0, 1], [len(each) for each in own])
        thoughts = [replay(agent, episodes, sites(agent)) for agent in self.agents]
        untrained: list[list[Episodes]] = [[], []]
        for at, agent in enumerate(self.agents):
            for twin in range(TWINS):
                fresh = agent.fresh(self.seed + 1 + twin)
                if fresh is not None:
                    untrained[at].append(replay(fresh, episodes, sites(fresh)))
        rng = np.random.default_rng([self.seed, 0xF0])
        every, times = _distinct(episodes, thoughts)
        half = self.count(FRAMES, 200) // 2
        chosen = np.sort(np.concatenate([rng.permutation(np.flatnonzero(by[every] == who))[:half] for who in (0, 1)]))
        rows, steps = every[chosen], times[chosen]
        masks = {}
        if states:
            batch = self.make_batch(min(COPIES, len(rows)))
            masks = masks_at(batch, [bytes(episodes.env_states[i][t]) for i, t in zip(rows, steps, strict=True)])
            batch.close()
        return Frames(
            episodes, by, (thoughts[0], thoughts[1]), (untrained[0], untrained[1]), Moments(rows, steps), masks
        )

    def decide(
        self,
        who: int,
        seen: Array | None = None,
        edits: dict[str, Edit] | None = None,
        at: IntArray | None = None,
        twin: int | None = None,
    ) -> FloatArray:
        """Return the logits of an agent, or of its untrained twin, at the frames that are changed, ``[n, outputs]``.

        Args:
            who: 0 or 1.
            seen: other frames in their place, ``[n, …]``. The memory before stays.
            edits: changes of what it has in mind, of all frames.
            at: some of the frames.
            twin: the number of an untrained twin.
        """
        agent, thoughts = self.agents[who], self.frames.thoughts[who]
        if twin is not None:
            fresh = agent.fresh(self.seed + 1 + twin)
            assert fresh is not None
            agent, thoughts = fresh, self.frames.untrained[who][twin]
        frames = self.frames
        moments = frames.moments if at is None else frames.moments[at]
        looked = moments.cut(frames.episodes.observations) if seen is None else seen
        memory = torch.as_tensor(moments.cut(thoughts.memory))
        with torch.no_grad():
            if edits:
                return agent.step(torch.as_tensor(looked), memory, edits=edits).logits.double().numpy()
            parts = [
                agent.step(torch.as_tensor(looked[at : at + 256]), memory[at : at + 256]).logits.double().numpy()
                for at in range(0, len(looked), 256)
            ]
        return np.concatenate(parts)


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
    bounded = isinstance(space, gym.spaces.Box) and np.isfinite(space.low).all() and np.isfinite(space.high).all()
    return np.clip(means, -1.0, 1.0) if bounded else means


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


def correlation(
    one: FloatArray, other: FloatArray, groups: IntArray, seed: int = 0, draws: int = 500
) -> MeanEstimate | None:
    """Return the correlation of ``[n]`` or ``[n, k]``, all columns together, with an interval by a bootstrap over groups.

    Columns are centred first. None if one of them does not vary.
    """
    x, y = (np.asarray(each, np.float64).reshape(len(each), -1) for each in (one, other))
    if not len(x):
        return None
    x, y = x - x.mean(0), y - y.mean(0)
    estimate = linear_correlation(x, y, np.repeat(groups, x.shape[1]), seed, draws)
    return None if math.isnan(estimate.mean) else estimate


Use = Literal["both", "differently", "first", "second", "unsettled", "neither"]
"""Who uses a feature: both, perhaps differently; one of them; one of them, and whether the other does less is not settled."""


def use_of(uses: tuple[bool, bool], differ: bool) -> Use:
    """Return who uses a feature. ``differ``: whether the effects on both differ by more than their intervals."""
    if all(uses):
        return "both"
    if any(uses) and not differ:
        return "unsettled"
    return "first" if uses[0] else "second" if uses[1] else "neither"


def beside_untrained(
    frames: Frames, read: Callable[[Episodes], FloatArray], compare: Callable[[FloatArray, FloatArray], float | None]
) -> tuple[float | None, float | None]:
    """Compare each agent with the other one's untrained twins: the control of a comparison of both. Means over twins."""
    first, second = (
        mean_of(compare(read(frames.thoughts[who]), read(twin)) for twin in frames.untrained[1 - who]) for who in (0, 1)
    )
    return first, second


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _distinct(episodes: Episodes, thoughts: Sequence[Episodes]) -> tuple[IntArray, IntArray]:
    """Return episode and step of all frames, without those that both agents saw before with the same memory."""
    known: set[bytes] = set()
    found = []
    for row, step in np.argwhere(episodes.real):
        parts = [episodes.observations[row, step], *(each.memory[row, step] for each in thoughts)]
        key = b"".join(hashlib.blake2b(np.ascontiguousarray(part).tobytes(), digest_size=16).digest() for part in parts)
        if key not in known:
            known.add(key)
            found.append((row, step))
    chosen = np.array(found, np.int64)
    return chosen[:, 0], chosen[:, 1]


def _without_memory(episodes: Episodes) -> Episodes:
    return replace(episodes, memory=np.zeros((*episodes.memory.shape[:2], 0), np.float32))
