"""Made-up clips, comparisons and environments for the tests. Not a test itself."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from scipy import stats

from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import Fragments, Trajectory
from rlhf_ray.data.rollout import rollout
from rlhf_ray.envs import make_env
from rlhf_ray.store.store import PreferenceStore
from rlhf_ray.teachers import Oracle

if TYPE_CHECKING:
    from rlhf_ray.reward import RewardEnsemble

VECTORS = gym.spaces.Box(-10.0, 10.0, (3,), np.float32)
IMAGES = gym.spaces.Box(0, 255, (20, 20, 3), np.uint8)
"""The smallest images that the reward networks' convolutions take."""
FORCES = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
CHOICES: gym.spaces.Discrete[Any] = gym.spaces.Discrete(4)


def some_fragments(
    n: int,
    length: int = 5,
    *,
    observations: gym.spaces.Box = VECTORS,
    actions: gym.Space[Any] = FORCES,
    seed: int = 0,
) -> Fragments:
    """``n`` different random clips. Their true reward is the mean of the observation plus the mean of the action."""
    rng = np.random.default_rng(seed)
    seen: npt.NDArray[Any]
    if observations.dtype == np.uint8:
        seen = rng.integers(0, 256, (n, length + 1, *observations.shape), dtype=np.uint8)
    else:
        seen = rng.normal(size=(n, length + 1, *observations.shape)).astype(np.float32)
    done: npt.NDArray[Any]
    if isinstance(actions, gym.spaces.Discrete):
        done = rng.integers(int(actions.n), size=(n, length)) + int(actions.start)
    else:
        assert actions.shape is not None
        done = rng.uniform(-1, 1, (n, length, *actions.shape)).astype(np.float32)
    scale = 255.0 if seen.dtype == np.uint8 else 1.0
    rewards = seen[:, :-1].reshape(n, length, -1).mean(-1) / scale + done.reshape(n, length, -1).mean(-1)
    return Fragments(
        observations=seen,
        actions=done,
        rewards=rewards.astype(np.float64),
        terminated=rng.random(n) < 0.5,
        starts=rng.integers(0, 100, n),
        policy_versions=rng.integers(-1, 5, n),
    )


def steps_of(fragments: Fragments, start: int = 0) -> tuple[npt.NDArray[Any], ...]:
    """Observations, actions (counted from ``start``), next observations and terminated of all steps, one after the other."""
    n, length = fragments.rewards.shape
    done = np.zeros((n, length), bool)
    done[:, -1] = fragments.terminated
    arrays = (fragments.observations[:, :-1], fragments.actions - start, fragments.observations[:, 1:], done)
    return tuple(array.reshape(n * length, *array.shape[2:]) for array in arrays)


def some_comparisons(n: int, length: int = 5, *, seed: int = 0, reward_version: int = 0, **spaces: Any) -> Comparisons:
    """``n`` comparisons of ``2 * n`` different random clips, answered by the oracle."""
    clips = some_fragments(2 * n, length, seed=seed, **spaces)
    pairs = Pairs.of(clips, np.arange(2 * n).reshape(n, 2), reward_version)
    return Comparisons(pairs, Oracle().answer(pairs, np.random.default_rng(0)))


def labels_in(store: Path | str) -> Comparisons:
    """The labels of a preference store that has some."""
    labels = PreferenceStore(store, create=False).load()
    assert labels is not None
    return labels


def wait_for(condition: Callable[[], Any], within_s: float = 90.0) -> None:
    """Wait until something has happened."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


class Planted:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


class Clock:
    """Tells the time ``now``, in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def same_fragments(one: Fragments, other: Fragments) -> bool:
    """Whether every array of the two is the same, in values, shape and dtype."""
    return all(
        mine.dtype == theirs.dtype and np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")
        for mine, theirs in zip(vars(one).values(), vars(other).values(), strict=True)
    )


def same_comparisons(one: Comparisons, other: Comparisons) -> bool:
    """Whether the two hold the same pairs in the same order, with the same answers."""
    return (
        one.pairs.ids == other.pairs.ids
        and np.array_equal(one.preferences, other.preferences)
        and same_fragments(one.pairs.left, other.pairs.left)
        and same_fragments(one.pairs.right, other.pairs.right)
    )


class Walk(gym.Env[npt.NDArray[np.float32], npt.NDArray[np.float32]]):
    """A random walk that actions push; the reward is larger the nearer it is to 0. Episodes have the given lengths in turn.

    ``observation[0]`` is the number of steps taken, ``[1]`` the number of the episode, ``[2]`` the position.

    Args:
        lengths: steps of the episodes, in turn, over and over.
        terminates: whether an episode ends by termination instead of truncation.
        numbered: whether observations tell the number of the episode; else they depend on nothing before the last reset.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: gym.spaces.Box

    def __init__(self, lengths: tuple[int, ...] = (20,), terminates: bool = False, numbered: bool = True):
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.lengths = lengths
        self.terminates = terminates
        self.numbered = numbered
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        self.position = float(self.np_random.normal())
        return self._observation(), {}

    def step(self, action: npt.NDArray[np.float32]) -> Any:
        self.steps += 1
        self.position += float(action[0]) + 0.1 * float(self.np_random.normal())
        over = self.steps >= self.lengths[self.episode % len(self.lengths)]
        return self._observation(), -abs(self.position), over and self.terminates, over and not self.terminates, {}

    def _observation(self) -> npt.NDArray[np.float32]:
        return np.array([self.steps, self.episode * self.numbered, self.position], np.float32)


class Drawn(Walk):
    """A walk that can be seen: the dark column is where it is."""

    render_mode = "rgb_array"
    drawn = 0
    """Frames drawn so far."""
    steps_in_all = 0

    def step(self, action: npt.NDArray[np.float32]) -> Any:
        self.steps_in_all += 1
        return super().step(action)

    def render(self) -> Any:
        self.drawn += 1
        frame = np.full((40, 60, 3), 128, np.uint8)
        frame[:, int(np.clip(30 + 5 * self.position, 0, 59))] = 0
        return frame


class AlwaysUp:
    """A policy for `Walk` with one action, and a count of how often it was asked."""

    def __init__(self, push: float):
        self.push = push
        self.asked = 0

    def begin(self, after: Any = None) -> "AlwaysUp":
        return self

    def see(self, observation: npt.NDArray[Any]) -> None: ...

    def act(self, observation: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[np.float32]:
        self.asked += 1
        return np.array([self.push], np.float32)


def played_at_random(environment: str, episodes: Iterable[int], steps: int) -> list[Trajectory]:
    """Episodes of an environment in which actions are random, by their seeds, each cut after ``steps``."""
    env = make_env(environment)
    env.action_space.seed(0)
    return [rollout(env, lambda _: env.action_space.sample(), steps=steps, seed=seed).trajectory for seed in episodes]


def joined(batches: Sequence[Comparisons]) -> Comparisons:
    """All comparisons of ``batches`` (at least one), in order."""
    pairs = Pairs(
        Fragments.concatenate([batch.pairs.left for batch in batches]),
        Fragments.concatenate([batch.pairs.right for batch in batches]),
        tuple(name for batch in batches for name in batch.pairs.ids),
        max(batch.pairs.reward_version for batch in batches),
    )
    named = any(batch.annotators for batch in batches)
    annotators = tuple(annotator for batch in batches for _, annotator in batch.keys) if named else ()
    return Comparisons(pairs, np.concatenate([batch.preferences for batch in batches]), annotators)


def opposite(comparisons: Comparisons) -> Comparisons:
    """The same pairs, with the other side better."""
    return Comparisons(comparisons.pairs, 1 - comparisons.preferences)


def right_about(comparisons: Comparisons, reward: "RewardEnsemble") -> npt.NDArray[np.bool_]:
    """Which of the comparisons, none of them a tie, the mean of the members predicts as answered, ``[n]``."""
    left, right = (reward.fragment_returns(side).mean(0) for side in (comparisons.pairs.left, comparisons.pairs.right))
    return (left > right) == (comparisons.preferences > 0.5)


def beats(chance: float, right: npt.ArrayLike) -> bool:
    """Whether more of ``right`` are true than a chance of ``chance`` gives: by luck, that is so one time in a million."""
    answers = np.asarray(right, bool)
    return bool(stats.binom.sf(answers.sum() - 1, answers.size, chance) < 1e-6)


def more_right(right: npt.ArrayLike, others: npt.ArrayLike) -> bool:
    """Whether some fits are right more often than others about the same comparisons, that neither knows.

    Compare fits of the same weights at the same seeds, so that they differ by what is tested alone: by other labels (to show that a
    fit learns: by the `opposite` ones) or by another setting. Chance is no measure of fits to few comparisons: one network in ten
    is right about four of five before it learns.

    Args:
        right, others: whether they are right about each. Those about which both are or neither is tell nothing.
    """
    one, other = np.asarray(right, bool), np.asarray(others, bool)
    return beats(0.5, one[one != other])
