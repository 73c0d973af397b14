"""Distances between any two reward functions, from recorded steps, with bootstrap intervals: EPIC, DARD, STARC, correlations.

The recorded steps are the coverage distribution. Potentials of terminated steps' next observations are 0, as in `distances`,
whose docstring defines the distances, the treatment of episode ends and what constant rewards get. Both rewards are
canonicalised with the same draws, so that EPIC and DARD are 0 for shaped rewards at any number of samples.

Intervals are 95 % percentile bootstraps over episodes (over steps, if there are fewer than `EPISODES`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure import statistics
from rlhf_ray.measure.distances import CONSTANT, pearson_distance, weighted_correlation
from rlhf_ray.measure.intervals import percentile_interval
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.value_features import STEPS_PER_VALUE, features, fewest_values, value_features

EPISODES = 10
"""Least number of episodes for a bootstrap over episodes."""
RESAMPLES = 200
"""Bootstrap resamples."""
SOLVES = 60
"""Bootstrap resamples of STARC, each of which fits the values anew."""
POOL = 4096
"""Most steps that a distance looks at."""
CHUNK = 8192
"""Steps per call of a reward. Bounds memory for images."""
SAME_ACTION = 1e3
"""Distance of different choices, such as Discrete actions: any observation is nearer than another action."""


DISTANCES = {
    "epic_published": "EPIC, as published",
    "epic": "EPIC, ends of episodes kept",
    "dard": "DARD",
    "starc": "STARC",
    "pearson": "linear correlation",
    "spearman": "rank correlation",
}
"""Names for people, in the order in which they are shown."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval.

    Attributes:
        value: the estimate.
        low: lower end.
        high: upper end.
        steps: number of recorded steps that it rests on.
        refused: why there is no estimate; value, low and high are NaN then.
    """

    value: float
    low: float
    high: float
    steps: int
    refused: str = ""

    def text(self, digits: int = 2) -> str:
        """Write the value with its interval; a dash if there is none."""
        if self.refused:
            return "–"
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

    def __str__(self) -> str:
        return self.text(3)


def correlation(
    first: RewardFunction, second: RewardFunction, steps: Transitions, rng: np.random.Generator, ranks: bool = False
) -> Estimate:
    """Correlate two rewards as they are, without canonicalisation.

    Args:
        first: a reward.
        second: the other reward.
        steps: the steps to compare them on.
        rng: draws the bootstrap.
        ranks: Spearman's correlation instead of Pearson's.

    Returns:
        The correlation; 0 if one reward is constant, 1 if both are.
    """
    values = [reward.of(steps) for reward in (first, second)]
    if ranks:
        values = [statistics.ranks(rewards) for rewards in values]
    resampled = weighted_correlation(values[0], values[1], _resamples(steps, rng))
    return _estimate(float(weighted_correlation(values[0], values[1])), resampled, len(steps))


def epic(
    first: RewardFunction,
    second: RewardFunction,
    steps: Transitions,
    gamma: float,
    rng: np.random.Generator,
    *,
    pairs: int = 512,
    draws: int = 128,
    ends: bool = True,
) -> Estimate:
    """Estimate the EPIC distance.

    With ``ends``, a constant counts where episodes end, as it does for the agent: it pays for staying alive or for ending. Without,
    it is the distance of Gleave et al. (2020), whose canonicalisation knows no ends and removes any constant.

    The mean rewards of the canonicalisation take ``2 * pairs * draws`` rewards of made-up steps, in batches.

    Args:
        first: a reward.
        second: the other reward.
        steps: coverage distribution.
        gamma: discount.
        rng: draws samples and bootstrap.
        pairs: steps on which the canonical rewards are compared.
        draws: actions and next states, drawn independently of each other, for the mean rewards.
        ends: whether potentials are 0 at the end of an episode.
    """
    pool = steps.sample(POOL, rng)
    n = len(pool)
    chosen, drawn = np.sort(rng.permutation(n)[:pairs]), rng.integers(n, size=(3, draws))
    leaving, actions, nexts = drawn[0], drawn[1], n + drawn[2]
    ended = pool.terminated[drawn[2]]
    over = pool.terminated[chosen] & ends
    weights = _resamples(pool[chosen], rng)
    draw_weights = rng.multinomial(draws, np.full(draws, 1 / draws), len(weights)) / draws
    canonical, resampled = [], []
    for reward in (first, second):
        rewards = reward.of(pool[chosen])
        before = _at(reward, pool, chosen[:, None], actions, nexts, ended)
        after = np.empty_like(before)
        after[~over] = _at(reward, pool, n + chosen[~over, None], actions, nexts, ended)
        after[over] = _at(reward, pool, leaving, actions, nexts, ended) - _at(
            reward, pool, leaving, actions, n + chosen[over, None], np.array(True)
        )
        means = gamma * after - before
        canonical.append(_flat_if_constant(rewards + means.mean(1), rewards))
        resampled.append(rewards + draw_weights @ means.T)
    distance = pearson_distance(weighted_correlation(canonical[0], canonical[1]))
    if not canonical[0].any() or not canonical[1].any():
        return _estimate(float(distance), np.full(1, float(distance)), len(chosen))
    return _estimate(
        float(distance), pearson_distance(weighted_correlation(resampled[0], resampled[1], weights)), len(chosen)
    )


def dard(
    first: RewardFunction,
    second: RewardFunction,
    steps: Transitions,
    gamma: float,
    rng: np.random.Generator,
    *,
    pairs: int = 512,
    neighbours: int = 8,
) -> Estimate:
    """Estimate the DARD distance, with the data itself as the transition model.

    DARD draws next states from a model of the environment. Here, an observation is followed by the actions and next observations
    of the recorded steps whose observations are nearest to it (Euclidean, features divided by their deviation; equal numbers for
    Discrete observations). After an observation and an action come the next observations of the steps nearest in both; of
    Discrete actions, in the observation among the steps of the same action. With few data or many dimensions, these may be steps
    that can't happen there: then use `rlhf_ray.measure.distances.dard` with the environment's own tables, or EPIC.

    Args:
        first: a reward.
        second: the other reward.
        steps: coverage distribution and transition model.
        gamma: discount.
        rng: draws samples and bootstrap.
        pairs: steps on which the canonical rewards are compared.
        neighbours: recorded steps that stand for the transitions out of an observation.
    """
    pool = steps.sample(POOL, rng)
    n = len(pool)
    chosen = np.sort(rng.permutation(n)[:pairs])
    over = pool.terminated[chosen]
    known = features(pool.observations, first.observation_space, pool.observations)
    here = _nearest(_squares(known[chosen], known), neighbours, rng)
    moves = features(pool.actions, first.action_space, pool.actions)
    moves *= SAME_ACTION if choices_of(first.action_space) else 1.0
    onward = _squares(features(pool.next_observations, first.observation_space, pool.observations)[chosen], known)
    of_actions = [_nearest(onward + _squares(moves[row], moves), neighbours, rng) for row in here.T]
    there = np.stack(of_actions, 1)  # [pairs, neighbours, neighbours]: from s', with the action of a step from s
    canonical = []
    for reward in (first, second):
        rewards = reward.of(pool[chosen])
        before = _at(reward, pool, chosen[:, None], here, n + here, pool.terminated[here]).mean(1)
        after = _at(reward, pool, n + chosen[:, None, None], there, n + there, pool.terminated[there]).mean((1, 2))
        crossed = _crossed(reward, pool, chosen, here, there).mean((1, 2))
        canonical.append(
            _flat_if_constant(rewards + gamma * np.where(over, 0, after) - before - gamma * crossed, rewards)
        )
    distance = float(pearson_distance(weighted_correlation(canonical[0], canonical[1])))
    weights = _resamples(pool[chosen], rng)
    return _estimate(distance, pearson_distance(weighted_correlation(canonical[0], canonical[1], weights)), len(chosen))


def starc(
    first: RewardFunction, second: RewardFunction, steps: Transitions, gamma: float, rng: np.random.Generator
) -> Estimate:
    """Estimate the STARC distance (VAL, L2). Refused where the steps can't tell it.

    The policy of the canonicalisation is the one that recorded the data. Its values are fitted by least-squares temporal
    differences: one weight for each observation if observations repeat, otherwise on `FEATURES` random Fourier features, so that
    shaping with a potential far from their span leaves a rest. Rewards are averaged over next states where the same observation
    and action occur again.

    It is refused with fewer than `STEPS_PER_VALUE` steps for each weight: one for each observation that repeats, or one for each
    feature of the observation (at most `FEATURES`) and a constant. It is refused, too, if the values leave nothing of a reward that
    is no shaping, as other next states show: whoever always acts alike in one observation gains nothing over his own values.

    Args:
        first: a reward.
        second: the other reward.
        steps: coverage distribution; steps of whole episodes.
        gamma: discount.
        rng: draws features and bootstrap.
    """
    steps = steps.sample(POOL, rng)
    needed = STEPS_PER_VALUE * fewest_values(steps, first.observation_space)
    if len(steps) < needed:
        return _refused(len(steps), f"{needed} steps are needed to fit the values, {STEPS_PER_VALUE} for each weight")
    pool, inputs, next_inputs = value_features(steps, first.observation_space, rng)
    onward = gamma * ~pool.terminated[:, None] * next_inputs
    given = np.stack([reward.of(pool) for reward in (first, second)], 1)
    same = _same_step(pool)

    def fitted(weights: FloatArray) -> FloatArray:
        weighted = weights[:, None] * inputs
        system = weighted.T @ (inputs - onward)
        system += 1e-9 * np.trace(np.abs(system)) / len(system) * np.eye(len(system))
        return np.linalg.solve(system, weighted.T @ given)

    def squared(weights: FloatArray) -> tuple[float, BoolArray]:
        values = fitted(weights)
        canonical = given + (onward - inputs) @ values
        norms = np.sqrt([_power(column, same, weights) for column in canonical.T])
        trivial = norms <= 1e3 * CONSTANT * np.abs(given).max(0)
        directions = np.where(trivial, 0, canonical / np.where(trivial, 1, norms))
        return min(1.0, _power(directions[:, 0] - directions[:, 1], same, weights) / 4), trivial

    distances, trivial = squared(np.ones(len(pool)))
    elsewhere = rng.permutation(len(pool))
    values = fitted(np.ones(len(pool)))
    moved = {"next_observations": pool.next_observations[elsewhere], "terminated": pool.terminated[elsewhere]}
    for number, reward in enumerate((first, second)):
        if trivial[number] and np.ptp(given[:, number]) > 0:
            rest = reward.of(pool.with_(**moved)) + (onward[elsewhere] - inputs) @ values[:, number]
            if isinstance(reward, RecordedReward) or np.abs(rest).max() > 1e-4 * np.abs(given[:, number]).max():
                return _refused(
                    len(pool), "in these steps, each observation has one action: no other one's gain is known"
                )
    drawn = [squared(of) for of in _resamples(pool, rng)[:SOLVES]]
    # In a few steps, drawn anew, a reward may cancel by chance, which says nothing.
    resampled = np.array([of for of, cancels in drawn if np.array_equal(cancels, trivial)] or [distances])
    # Resampling adds noise to the averages once more, which a square shows as bias. The interval spans the percentile bootstrap,
    # which has that bias, and the reversed one, which overcorrects if the noise is small.
    ends = [percentile_interval(draws) for draws in (resampled, 2 * distances - resampled)]
    return _estimate(float(np.sqrt(distances)), np.sqrt(np.clip([np.min(ends), np.max(ends)], 0, 1)), len(pool))


def all_distances(
    first: RewardFunction, second: RewardFunction, steps: Transitions, gamma: float, seed: int = 0, *, pairs: int = 512
) -> dict[str, Estimate]:
    """Compute every distance and correlation: ``epic``, ``epic_published``, ``dard``, ``starc``, ``pearson``, ``spearman``.

    EPIC takes ``pairs ** 2 / 2`` rewards of made-up steps from each reward, which is slow for images: 128 pairs do for those.
    """
    measures: dict[str, Callable[..., Estimate]] = {
        "epic": functools.partial(epic, pairs=pairs, draws=pairs // 4),
        "dard": functools.partial(dard, pairs=pairs),
        "starc": starc,
    }
    estimates = {
        name: measure(first, second, steps, gamma, np.random.default_rng([seed, number]))
        for number, (name, measure) in enumerate(measures.items())
    }
    published = functools.partial(epic, pairs=pairs, draws=pairs // 4, ends=False)
    estimates["epic_published"] = published(first, second, steps, gamma, np.random.default_rng([seed, 0]))
    for number, (name, ranks) in enumerate({"pearson": False, "spearman": True}.items()):
        estimates[name] = correlation(first, second, steps, np.random.default_rng([seed, 10 + number]), ranks)
    return estimates


class RecordedReward(RewardFunction):
    """The recorded true rewards of steps as a reward function, known for those steps only.

    Args:
        like: a reward of the same environment.
    """

    name = "recorded reward"

    def __init__(self, like: RewardFunction):
        self.observation_space, self.action_space = like.observation_space, like.action_space

    def of(self, steps: Transitions) -> FloatArray:
        """Return the recorded rewards, ``[n]`` float64."""
        return np.asarray(steps.rewards, np.float64)

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Raise: the reward of steps that were not recorded is unknown."""
        raise NotImplementedError("Recorded rewards are known for recorded steps only.")


def recorded_distances(reward: RewardFunction, steps: Transitions, gamma: float, seed: int = 0) -> dict[str, Estimate]:
    """Compute ``starc``, ``pearson`` and ``spearman`` of a reward and the true rewards of ``steps``.

    These three need no reward of steps that were not recorded; EPIC and DARD do.
    """
    truth = RecordedReward(reward)
    estimates = {"starc": starc(reward, truth, steps, gamma, np.random.default_rng([seed, 2]))}
    for number, (name, ranks) in enumerate({"pearson": False, "spearman": True}.items()):
        estimates[name] = correlation(reward, truth, steps, np.random.default_rng([seed, 10 + number]), ranks)
    return estimates


def _refused(steps: int, why: str) -> Estimate:
    return Estimate(math.nan, math.nan, math.nan, steps, why)


def _estimate(value: float, resampled: Array, steps: int) -> Estimate:
    low, high = resampled if len(resampled) == 2 else percentile_interval(resampled)
    return Estimate(value, min(value, float(low)), max(value, float(high)), steps)


def _power(values: FloatArray, groups: IntArray, weights: FloatArray) -> float:
    """Estimate the mean square of the groups' true means: that of their averages, less what noise adds to it."""
    count = np.bincount(groups, weights)
    safe = np.where(count > 0, count, 1)
    mean = np.bincount(groups, weights * values) / safe
    spread = np.bincount(groups, weights * (values - mean[groups]) ** 2) / np.where(count > 1, count - 1, 1)
    noise = np.where(count > 1, spread / safe, 0)
    return max(0.0, float((count * (mean**2 - noise)).sum() / count.sum()))


def _flat_if_constant(canonical: FloatArray, given: FloatArray) -> FloatArray:
    """Rounding is no direction: 32-bit networks leave about 1e-7 of their size where their reward cancels."""
    centred = canonical - canonical.mean()
    return np.zeros_like(centred) if np.abs(centred).max() <= 1e-6 * np.abs(given).max(initial=0.0) else centred


def _resamples(steps: Transitions, rng: np.random.Generator) -> FloatArray:
    """Draw bootstrap weights ``[resamples, n]``: how often each step's episode was drawn. No row is empty."""
    names, episode = np.unique(steps.episodes, return_inverse=True)
    if len(names) < EPISODES:
        names, episode = np.arange(len(steps)), np.arange(len(steps))
    counts = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), RESAMPLES)
    return counts[:, episode].astype(np.float64)


def _at(
    reward: RewardFunction, pool: Transitions, states: IntArray, actions: IntArray, nexts: IntArray, ended: Array
) -> FloatArray:
    """Compute rewards of made-up steps. Indices broadcast; observation ``i`` of the pool is ``i``, next observation ``n + i``."""
    n, shape = len(pool), np.broadcast_shapes(states.shape, actions.shape, nexts.shape, ended.shape)
    flat = [np.broadcast_to(array, shape).reshape(-1) for array in (states, actions, nexts, ended)]
    values = np.empty(len(flat[0]))
    for start in range(0, len(values), CHUNK):
        part = slice(start, start + CHUNK)
        state, action, following, over = (array[part] for array in flat)
        values[part] = reward(
            _observations(pool, state, n), pool.actions[action], _observations(pool, following, n), over
        )
    return values.reshape(shape)


def _observations(pool: Transitions, at: Array, n: int) -> Array:
    found: Array = pool.observations[at % n]
    later = at >= n
    found[later] = pool.next_observations[at[later] - n]
    return found


def _crossed(
    reward: RewardFunction, pool: Transitions, chosen: IntArray, here: IntArray, there: IntArray
) -> FloatArray:
    """Rewards from the next states of ``s`` to those of ``s'`` under the same action, ``[pairs, neighbours, neighbours]``."""
    n, over, ended = len(pool), pool.terminated[chosen], pool.terminated[here]
    middle = (n + here)[:, :, None]
    values = np.zeros(there.shape)
    live = ~over
    values[live] = _at(reward, pool, middle[live], there[live], n + there[live], pool.terminated[there[live]])
    start = np.broadcast_to(chosen[:, None, None], middle.shape)
    leave = live[:, None] & ended  # out of a terminal state: see `distances`
    if leave.any():
        at, which = np.nonzero(leave)
        then = there[at, which]
        values[at, which] = _at(reward, pool, start[at, 0], then, n + then, pool.terminated[then]) - _at(
            reward, pool, start[at, 0], then, middle[at, which], np.array(True)
        )
    if over.any():  # s' is terminal and stays so; from one terminal state to another the reward is 0
        to_end = _at(reward, pool, middle[over], there[over], (n + chosen[over])[:, None, None], np.array(True))
        values[over] = np.where(ended[over][:, :, None], 0, to_end)
    return values


def _squares(queries: FloatArray, known: FloatArray) -> FloatArray:
    """Compute the squared distances of all rows, ``[queries, known]``."""
    squares: FloatArray = (queries**2).sum(1)[:, None] - 2 * queries @ known.T + (known**2).sum(1)
    return np.maximum(squares, 0.0)


def _nearest(squares: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    """Find the columns of the ``count`` smallest values of each row, ``[rows, count]``; ties are broken at random."""
    count = min(count, squares.shape[1])
    return np.argpartition(squares + 1e-6 * rng.random(squares.shape), count - 1, axis=1)[:, :count]


def _same_step(pool: Transitions) -> IntArray:
    """Number the pairs of observation and action, ``[n]``."""
    rows = [np.asarray(array).reshape(len(pool), -1).astype(np.float64) for array in (pool.observations, pool.actions)]
    return np.unique(np.concatenate(rows, 1), axis=0, return_inverse=True)[1].reshape(-1)
