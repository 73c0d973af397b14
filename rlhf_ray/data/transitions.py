"""Transitions: single steps as arrays, with the episode and step that each one comes from; and whole recorded episodes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.fragments import Fragments, Trajectory
from rlhf_ray.data.vector_rollout import SUCCESS


@dataclass(frozen=True)
class Transitions:
    """``n`` steps of an environment. Steps of one episode are adjacent and in order.

    Attributes:
        observations: ``[n, *observation_shape]``: before each step.
        actions: ``[n, *action_shape]``, as given to the environment.
        next_observations: ``[n, *observation_shape]``: after each step; the episode's own last one where it ends.
        terminated: ``[n]`` bool: whether the step terminated the episode (truncation does not count).
        rewards: ``[n]`` float64: the true reward, NaN if unknown.
        episodes: ``[n]`` int64: number of the episode. Splits are by episode.
        steps: ``[n]`` int64: steps of the episode before this one.
        columns: more arrays ``[n, …]`` by name, for example ``truncated``, ``normalised_reward``, ``level_seed``, ``policy``, and
            ``state.NAME`` for what the environment says about its own state.

    Raises:
        ValueError: the arrays differ in length.
    """

    observations: Array
    actions: Array
    next_observations: Array
    terminated: BoolArray
    rewards: FloatArray
    episodes: IntArray
    steps: IntArray
    columns: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = {name: value for name, value in vars(self).items() if name != "columns"}
        lengths = {name: len(value) for name, value in {**own, **self.columns}.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"Transitions need arrays of one length; got {lengths}.")

    def __len__(self) -> int:
        return len(self.terminated)

    def __getitem__(self, index: IntArray | BoolArray | slice) -> Transitions:
        """Return the steps at ``index`` (an integer or boolean array, or a slice): copies for arrays, views for slices."""
        own = {name: value[index] for name, value in vars(self).items() if name != "columns"}
        return Transitions(**own, columns={name: value[index] for name, value in self.columns.items()})

    def with_(self, **changes: Any) -> Transitions:
        """Return the same steps with some arrays replaced."""
        return replace(self, **changes)

    def split(self, share: float, rng: np.random.Generator) -> tuple[Transitions, Transitions]:
        """Split by episode, never by step: neighbouring frames are nearly equal.

        The second part gets the ``share`` (0 < share < 1) of the episodes. Each part gets at least one if there are two.
        """
        names = np.unique(self.episodes)
        count = int(np.clip(round(share * len(names)), min(1, len(names) - 1), max(0, len(names) - 1)))
        second = np.isin(self.episodes, rng.permutation(names)[:count])
        return self[~second], self[second]

    def sample(self, most: int, rng: np.random.Generator) -> Transitions:
        """Return at most ``most`` steps drawn without replacement, in their order."""
        if len(self) <= most:
            return self
        return self[np.sort(rng.choice(len(self), most, replace=False))]

    @staticmethod
    def concatenate(parts: Sequence[Transitions]) -> Transitions:
        """Join ``parts``, which must have the same columns. Episodes are numbered anew, so that those of two parts never mix."""
        episodes, first = [], 0
        for part in parts:
            _, numbers = np.unique(part.episodes, return_inverse=True)
            episodes.append(numbers + first)
            first += int(numbers.max()) + 1 if len(part) else 0
        names = [name for name in vars(parts[0]) if name not in ("columns", "episodes")]
        return Transitions(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names},
            episodes=np.concatenate(episodes).astype(np.int64),
            columns={name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        )

    @staticmethod
    def of_fragments(fragments: Fragments) -> Transitions:
        """Convert fragments, each of which becomes one episode."""
        arrays = fragments.observations, fragments.actions, fragments.rewards, fragments.terminated, fragments.starts
        return Transitions.of_trajectories([Trajectory(*each) for each in zip(*arrays, strict=True)])

    @staticmethod
    def of_trajectories(trajectories: Sequence[Trajectory]) -> Transitions:
        """Convert trajectories, each of which becomes one episode."""
        steps = [np.arange(len(each)) for each in trajectories]
        ends = [(of == len(of) - 1) & each.terminated for of, each in zip(steps, trajectories, strict=True)]
        return Transitions(
            observations=np.concatenate([each.observations[:-1] for each in trajectories]),
            actions=np.concatenate([each.actions for each in trajectories]),
            next_observations=np.concatenate([each.observations[1:] for each in trajectories]),
            terminated=np.concatenate(ends),
            rewards=np.concatenate([each.rewards for each in trajectories]).astype(np.float64),
            episodes=np.repeat(np.arange(len(trajectories)), [len(each) for each in trajectories]),
            steps=np.concatenate([each.start + of for of, each in zip(steps, trajectories, strict=True)]),
        )


STATE = "state."
"""Prefix of the columns with the environment's state."""

ACTIVATION = "activation."
"""Prefix of the columns with the outputs of the agent's layers."""


@dataclass(frozen=True)
class RecordedEpisode:
    """One whole episode.

    Attributes:
        trajectory: its steps.
        truncated: whether it was truncated after its last step. If it was neither truncated nor terminated, it was cut.
        policy: name of the policy that acted.
        level_seed: of its level, or of its reset if the environment has no levels.
        states: what the environment says about its state at each observation: arrays ``[steps + 1, …]`` by name.
        cause: why it ended, for example saw or timeout; empty if unknown.
        inside: the agent's internals by column: ``logits``, ``value`` and ``activation.NAME`` ``[steps, …]``; ``memory`` before
            each step and after the last, ``[steps + 1, …]``.
        env_states: the environment's state at each observation, ``steps + 1`` blobs; empty if not kept.
        normalised: ``[steps]``: rewards as `RewardNormaliser` divides them; None if unknown. A writer computes them itself.
    """

    trajectory: Trajectory
    truncated: bool = False
    policy: str = ""
    level_seed: int = 0
    states: Mapping[str, Array] = field(default_factory=dict)
    cause: str = ""
    inside: Mapping[str, Array] = field(default_factory=dict)
    env_states: Sequence[bytes] = ()
    normalised: FloatArray | None = None

    @property
    def succeeded(self) -> bool | None:
        """Whether a step reached the task's goal (`rlhf_ray.data.vector_rollout`); None if the environment doesn't say."""
        told = [self.states[name][1:] for name in SUCCESS if name in self.states]  # of steps, not of the reset
        known = any((values == values).any() for values in told)  # NaN where it was not told
        return any(bool((values == 1).any()) for values in told) if known else None

    def first(self, steps: int) -> RecordedEpisode:
        """Return the episode truncated after ``steps`` steps; itself if it has no more. Without ``inside`` and ``env_states``."""
        whole = self.trajectory
        if len(whole) <= steps:
            return self
        parts = whole.observations[: steps + 1], whole.actions[:steps], whole.rewards[:steps]
        cut = Trajectory(*parts, False, whole.start)
        states = {name: values[: steps + 1] for name, values in self.states.items()}
        return replace(self, trajectory=cut, truncated=True, states=states, inside={}, env_states=())


class StateBlobs(Sequence[bytes]):
    """The environment's states of one episode, decompressed one at a time: ``count`` rows of ``column`` from ``first`` on."""

    def __init__(self, column: pa.ChunkedArray, first: int, count: int):
        self._rows = column.slice(first, count)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return zlib.decompress(self._rows[index].as_buffer())


GAMMA = 0.99
"""Discount factor of agents that don't tell theirs."""


@dataclass
class RewardNormaliser:
    """Divides rewards by the running standard deviation of the discounted return, clipped to ±10.

    This is what ``VecNormalize`` of stable-baselines3 (``norm_obs=False``, one environment) and the published Procgen agents do to
    rewards. RLlib's PPO has no such option.

    Attributes:
        gamma: discount factor of the return.
        count, mean, variance: of the discounted returns so far.
    """

    gamma: float = GAMMA
    count: float = 1e-4
    mean: float = 0.0
    variance: float = 1.0

    def __call__(self, rewards: FloatArray) -> FloatArray:
        """Normalise the rewards ``[n]`` of the next episode. Unknown rewards (NaN) stay unknown."""
        normalised = np.full(len(rewards), np.nan)
        ret = 0.0
        for i, reward in enumerate(rewards.tolist()):
            if reward != reward:
                continue
            ret = self.gamma * ret + reward
            delta, total = ret - self.mean, self.count + 1.0
            squares = self.variance * self.count + delta * delta * self.count / total
            self.mean += delta / total
            self.count, self.variance = total, squares / total
            normalised[i] = min(10.0, max(-10.0, reward / (self.variance + 1e-8) ** 0.5))
        return normalised


def rows_of(
    episodes: Sequence[RecordedEpisode], first: int, normalise: RewardNormaliser, policies: Sequence[str]
) -> dict[str, Any]:
    """Convert episodes to the columns of a chunk: one row per observation."""
    of = [episode.trajectory for episode in episodes]
    sizes = np.array([len(each) for each in of]) + 1
    last = np.cumsum(sizes) - 1
    final = np.zeros(int(sizes.sum()), bool)
    final[last] = True

    def of_steps(parts: Sequence[Array], unknown: Any) -> Array:
        values = np.concatenate(parts)
        rows = np.full((len(final), *values.shape[1:]), unknown, values.dtype)
        rows[~final] = values
        return rows

    terminated, truncated = np.zeros(len(final), bool), np.zeros(len(final), bool)
    terminated[last - 1] = [each.terminated for each in of]
    truncated[last - 1] = [episode.truncated for episode in episodes]
    rewards = [np.asarray(each.rewards, np.float64) for each in of]
    columns: dict[str, Any] = {
        "episode": np.repeat(first + np.arange(len(of)), sizes),
        "step": np.concatenate([each.start + np.arange(len(each) + 1) for each in of]),
        "final": final,
        "observation": np.concatenate([each.observations for each in of]),
        "action": of_steps([each.actions for each in of], 0),
        "reward": of_steps(rewards, np.nan),
        "normalised_reward": of_steps([normalise(each) for each in rewards], np.nan),
        "terminated": terminated,
        "truncated": truncated,
        "policy": _texts([episode.policy for episode in episodes], sizes, np.int8, policies),
        "level_seed": np.repeat(np.array([episode.level_seed for episode in episodes], np.int64), sizes),
    }
    columns |= {STATE + name: np.concatenate(parts) for name, parts in _states(episodes).items()}
    for name in episodes[0].inside:
        parts = [episode.inside[name] for episode in episodes]
        columns[name] = np.concatenate(parts) if name == "memory" else of_steps(parts, _unknown(parts[0]))
    if any(episode.cause for episode in episodes):
        columns["cause"] = _texts([episode.cause for episode in episodes], sizes, np.int32)
    if episodes[0].env_states:
        blobs = [zlib.compress(blob, 1) for episode in episodes for blob in episode.env_states]
        columns["env_state"] = pa.array(blobs, pa.large_binary())
    return columns


def _texts(of_episodes: Sequence[str], sizes: Array, kind: Any, first: Sequence[str] = ()) -> pa.Array:
    """Return a column that has each episode's text in all of its rows."""
    names = list(dict.fromkeys([*first, *of_episodes]))
    numbers = np.repeat(np.array([names.index(text) for text in of_episodes], kind), sizes)
    return pa.DictionaryArray.from_arrays(pa.array(numbers), pa.array(names, pa.string()))


def _states(episodes: Sequence[RecordedEpisode]) -> dict[str, list[Array]]:
    """Return the episodes' arrays of each state; blank in episodes without it."""
    examples = {name: values for episode in reversed(episodes) for name, values in episode.states.items()}

    def blank(episode: RecordedEpisode, like: Array) -> Array:
        return np.full((len(episode.trajectory) + 1, *like.shape[1:]), _unknown(like), like.dtype)

    return {
        name: [episode.states[name] if name in episode.states else blank(episode, like) for episode in episodes]
        for name, like in sorted(examples.items())
    }


def _unknown(like: Array) -> float:
    return np.nan if like.dtype.kind == "f" else 0


def steps_of(episodes: Iterable[RecordedEpisode], most: int | None = None) -> Transitions:
    """Join the first ``most`` steps of episodes; all by default. At least one episode.

    Columns: ``truncated``, ``level_seed``, ``policy``, ``normalised_reward`` where known, and ``state.NAME`` and
    ``next_state.NAME``, which are NaN (0 for integers) where the environment did not say.
    """
    taken, total = list[RecordedEpisode](), 0
    for episode in episodes:
        if most is not None and total >= most:
            break
        taken.append(episode)
        total += len(episode.trajectory)
    lengths = [len(episode.trajectory) for episode in taken]
    steps = Transitions.of_trajectories([episode.trajectory for episode in taken])
    truncated = np.zeros(len(steps), bool)
    truncated[np.cumsum(lengths) - 1] = [episode.truncated for episode in taken]
    columns: dict[str, Array] = {
        "truncated": truncated,
        "level_seed": np.repeat([episode.level_seed for episode in taken], lengths),
        "policy": np.repeat([episode.policy for episode in taken], lengths),
    }
    if all(episode.normalised is not None for episode in taken):
        columns["normalised_reward"] = np.concatenate([np.asarray(episode.normalised) for episode in taken])
    for name, parts in _states(taken).items():
        columns[STATE + name] = np.concatenate([part[:-1] for part in parts])
        columns[f"next_{STATE}{name}"] = np.concatenate([part[1:] for part in parts])
    return steps.with_(columns=columns)[:most]
