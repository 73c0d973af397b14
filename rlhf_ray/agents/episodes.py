"""Episodes: an agent's actions and activations, as a struct of padded arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import Agent
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.policies.actions import to_policy_actions


@dataclass(frozen=True)
class Episodes:
    """``n`` episodes of at most ``T`` steps, whole or from the middle. Rows after an episode's end are padding."""

    observations: Array  # ``[n, T + 1, …]``; that at ``lengths[i]`` is the final one
    actions: Array  # environment actions, ``[n, T, …]``
    logits: FloatArray  # inputs of the action distribution, ``[n, T, outputs]`` float32
    values: FloatArray  # ``[n, T]``
    # before each step, ``[n, T + 1, memory_size]`` float32; that at ``lengths[i]`` is the memory after the last step
    memory: FloatArray
    rewards: FloatArray  # true rewards, ``[n, T]``
    lengths: IntArray  # steps of each episode, ``[n]``
    # terminated, truncated: whether it ended so; neither if it was cut
    terminated: BoolArray
    truncated: BoolArray
    causes: Sequence[str]  # why each ended; empty strings if unknown
    levels: IntArray  # the seed of each level, ``[n]``
    # what the environment said about itself, ``[n, T + 1, …]`` by name
    states: Mapping[str, Array] = field(default_factory=dict)
    # outputs of layers at each step, ``[n, T, …]`` by name
    activations: Mapping[str, Array] = field(default_factory=dict)
    # the environment's states at each observation, ``env_states[i][t]``; empty if not kept
    env_states: Sequence[Sequence[bytes]] = ()

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def returns(self) -> FloatArray:
        """True return of each episode, ``[n]``."""
        return np.asarray((self.rewards * self.real).sum(1))

    @property
    def real(self) -> BoolArray:
        """Which steps are no padding, ``[n, T]``."""
        return np.asarray(np.arange(self.actions.shape[1])[None] < self.lengths[:, None])

    @property
    def ends(self) -> list[str]:
        """Each episode's cause of its end; where the environment tells none, how it ended: terminated, truncated or cut."""
        how = np.where(self.terminated, "terminated", np.where(self.truncated, "truncated", "cut"))
        return [cause or str(end) for cause, end in zip(self.causes, how, strict=True)]

    def select(self, rows: IntArray | Sequence[int]) -> Episodes:
        """Return the episodes ``rows``, in that order."""
        at = np.asarray(rows, np.int64)
        return Episodes(**{each.name: _pick(getattr(self, each.name), at) for each in fields(self)})

    @staticmethod
    def concatenate(parts: Sequence[Episodes]) -> Episodes:
        """Put episodes one after another, padded to the longest. All parts must hold the same fields."""
        steps = max(part.actions.shape[1] for part in parts)

        def of(values: Sequence[Any]) -> Any:
            if isinstance(values[0], Mapping):
                return {name: of([value[name] for value in values]) for name in values[0]}
            if not isinstance(values[0], np.ndarray):
                return [item for value in values for item in value]
            return np.concatenate([_padded(value, steps, part) for value, part in zip(values, parts, strict=True)])

        return Episodes(**{each.name: of([getattr(part, each.name) for part in parts]) for each in fields(Episodes)})


def _padded(values: Array, steps: int, part: Episodes) -> Array:
    """Pad the axis of time, where there is one, from the length of ``part`` to ``steps``."""
    have = part.actions.shape[1]
    if values.ndim < 2 or values.shape[1] not in (have, have + 1) or have == steps:
        return values
    return np.pad(values, [(0, 0), (0, steps - have), *[(0, 0)] * (values.ndim - 2)])


@dataclass(frozen=True)
class StepBatch:
    """``n`` steps of episodes, before the action is taken. Subclasses add what belongs to each moment, in fields ``[n, …]``."""

    rows: IntArray  # the row in `Episodes` of each, ``[n]``
    steps: IntArray  # steps since the start of the episode, ``[n]``

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, chosen: Any) -> Self:
        """Return some of the moments: by a slice, a mask or numbers."""
        if not isinstance(chosen, slice):
            chosen = np.asarray(chosen)
            chosen = chosen if chosen.dtype == bool else chosen.astype(np.int64)
        numbers = np.arange(len(self))[chosen]
        return replace(self, **{field.name: _pick(getattr(self, field.name), numbers) for field in fields(self)})

    def cut(self, values: Array) -> Array:
        """Return what ``values`` ``[episodes, T or T + 1, …]`` hold at the moments, ``[n, …]``."""
        return np.asarray(values[self.rows, self.steps])


def _pick(value: Any, numbers: IntArray) -> Any:
    if isinstance(value, Mapping):
        return {name: _pick(column, numbers) for name, column in value.items()}
    if isinstance(value, np.ndarray | Tensor):
        return value[numbers]
    return [value[number] for number in numbers] if isinstance(value, Sequence) and len(value) else value


@dataclass(frozen=True)
class Stretches(StepBatch):
    """Stretches of episodes: moments and the steps that follow."""

    lengths: IntArray  # steps of each, ``[n]``
    most: int  # steps of the longest possible; windows are padded to it

    @property
    def times(self) -> IntArray:
        """The step in its episode of each step, ``[n, most]``; padding repeats the last one."""
        within = np.minimum(np.arange(self.most)[None], self.lengths[:, None] - 1)
        return np.asarray(self.steps[:, None] + within)

    def window(self, values: Array) -> Array:
        """Return what ``values`` ``[episodes, T, …]`` hold along the stretches, ``[n, most, …]``."""
        return np.asarray(values[self.rows[:, None], self.times])

    def containing(self, row: int, step: int) -> int | None:
        """Return the stretch that holds this step of an episode; None if there is none."""
        there = np.flatnonzero((self.rows == row) & (self.steps <= step) & (step < self.steps + self.lengths))
        return int(there[0]) if len(there) else None


class WindowNumbers:
    """Numbers all windows of ``length`` observations of episodes of ``lengths`` steps; shorter ones have one. None crosses two."""

    def __init__(self, lengths: IntArray, length: int):
        self.length = length
        self._ends = np.cumsum(np.maximum(1, np.asarray(lengths) + 2 - length))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def starts(self, numbers: Sequence[int] | IntArray) -> StepBatch:
        """Return where the windows with these numbers start.

        Raises:
            IndexError: there is no such window.
        """
        chosen = np.asarray(numbers, np.int64)
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(self)):
            raise IndexError(f"There are {len(self)} windows; asked for {chosen.min()} to {chosen.max()}.")
        rows = np.searchsorted(self._ends, chosen, side="right")
        return StepBatch(rows, chosen - np.concatenate([[0], self._ends])[rows])


@dataclass(frozen=True)
class WorldStepBatch(StepBatch):
    """Steps with what came before and after. The first three fields are what a world model begins with."""

    # the context, ``[n, context, …]`` float32 in the environment's units; the last one is that of the moment
    observations: Tensor
    actions: Tensor  # between them, ``[n, context - 1, actions]``, one-hot or policy actions
    memory: Tensor  # the agent's before the moment's observation, ``[n, memory_size]``
    following: Tensor  # observations after it, ``[n, ahead, …]``
    given: Tensor  # actions that led to them, ``[n, ahead, actions]``
    rewards: Tensor  # of these actions, ``[n, ahead]``
    ended: Tensor  # whether the episode terminated with them, ``[n, ahead]`` float32

    @property
    def ahead(self) -> int:
        """How many steps of the recording follow."""
        return self.given.shape[1]


def moments_of(
    agent: Agent, episodes: Episodes, rows: IntArray, times: IntArray, *, context: int = 1, ahead: int = 0
) -> WorldStepBatch:
    """Cut moments out of episodes with observations: at the steps ``times`` of the episodes ``rows``, ``[n]`` each.

    ``context`` observations lead up to the moment; before an episode's start, its first one is repeated with action 0. ``ahead``
    steps follow; beyond an episode's end, its last observation is repeated.
    """
    rows, times = np.asarray(rows, np.int64), np.asarray(times, np.int64)
    lengths = episodes.lengths[rows]
    before = times[:, None] + np.arange(1 - context, 1)
    after = times[:, None] + np.arange(ahead)
    size = action_size(agent.action_space)
    inputs = action_inputs(episodes.actions, agent.action_space)

    def actions(at: IntArray, real: BoolArray) -> Tensor:
        taken = inputs[rows[:, None], np.clip(at, 0, inputs.shape[1] - 1)]
        return torch.as_tensor(np.where(real[..., None], taken, 0.0).reshape(*at.shape, size).astype(np.float32))

    def observations(at: IntArray) -> Tensor:
        return torch.as_tensor(episodes.observations[rows[:, None], at].astype(np.float32))

    real = after < lengths[:, None]
    within = np.clip(after, 0, episodes.actions.shape[1] - 1)
    last = after == lengths[:, None] - 1
    return WorldStepBatch(
        rows,
        times,
        observations(np.maximum(before, 0)),
        actions(before[:, :-1], before[:, :-1] >= 0),
        torch.as_tensor(episodes.memory[rows, times].astype(np.float32)),
        observations(np.minimum(after + 1, lengths[:, None])),
        actions(after, real),
        torch.as_tensor(np.where(real, episodes.rewards[rows[:, None], within], 0.0).astype(np.float32)),
        torch.as_tensor((episodes.terminated[rows][:, None] & last).astype(np.float32)),
    )


def draw_moments(
    agent: Agent, episodes: Episodes, count: int, rng: np.random.Generator, *, context: int = 1, ahead: int = 0
) -> WorldStepBatch:
    """Draw up to ``count`` different moments, whose context lies within the episode and that are followed by a step.

    Raises:
        SettingError: no episode is long enough.
    """
    within = episodes.real & (np.arange(episodes.real.shape[1]) >= context - 1)
    if not within.any():
        raise SettingError(f"No recorded episode has {context} steps; record longer episodes.")
    marked = np.argwhere(within)
    chosen = marked[np.sort(rng.permutation(len(marked))[:count])]
    return moments_of(agent, episodes, chosen[:, 0], chosen[:, 1], context=context, ahead=ahead)


def action_size(space: gym.Space[Any]) -> int:
    """Return the length of an action as a world model reads it."""
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    assert space.shape is not None
    return int(np.prod(space.shape))


def action_inputs(actions: Array, space: gym.Space[Any]) -> Array:
    """Convert environment actions ``[n, T, …]`` to what a world model reads, ``[n, T, actions]``: one-hot, or policy actions."""
    if isinstance(space, gym.spaces.Discrete):
        return np.eye(int(space.n), dtype=np.float32)[np.asarray(actions, np.int64)]
    return np.asarray(to_policy_actions(actions, space).reshape(*actions.shape[:2], action_size(space)))
