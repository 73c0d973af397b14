"""Distances between any two reward functions, from recorded steps, with intervals over episodes: EPIC, DARD, STARC, correlations.

The recorded steps are the coverage distribution. Potentials of terminated steps' next observations are 0, as in `distances`,
whose docstring defines the distances, the treatment of episode ends and what constant rewards get. Both rewards are
canonicalised with the same draws, so that EPIC and DARD are 0 for shaped rewards at any number of samples.

Intervals are 95 % jackknifes over episodes (`rlhf_ray.measure.intervals`), whose steps and draws are left out in turn. With too few
episodes there is none, but for distances that are exactly 0 and those from a constant.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.data.transitions import GAMMA, Transitions
from rlhf_ray.measure import statistics
from rlhf_ray.measure.distances import CONSTANT, pearson_distance, weighted_correlation
from rlhf_ray.measure.intervals import CORRELATION
from rlhf_ray.reward.distance_estimates import (
    STEPS_PER_VALUE,
    Estimate,
    estimate,
    features,
    fewest_values,
    refused,
    value_features,
    without,
)
from rlhf_ray.reward.functions import RewardFunction

POOL = 4096
"""Most steps that a distance looks at."""
CHUNK = 8192
"""Steps per call of a reward. Bounds memory for images."""
SAME_ACTION = 1e3
"""Distance of different choices, such as Discrete actions: any observation is nearer than another action."""
SHAPED_ON, SHAPED_DRAWS = 64, 16
"""Steps, and draws for each, on which STARC looks whether a reward is nothing but shaping."""

DISTANCES = {
    "epic_published": "EPIC, as published",
    "epic": "EPIC, ends of episodes kept",
    "dard": "DARD",
    "starc": "STARC",
    "pearson": "linear correlation",
    "spearman": "rank correlation",
}
"""Names for people, in the order in which they are shown."""


def correlation(first: RewardFunction, second: RewardFunction, steps: Transitions, *, ranks: bool = False) -> Estimate:
    """Correlate two rewards as they are, without canonicalisation; by ``ranks``, Spearman's correlation instead of Pearson's.

    Returns:
        The correlation; 0 if one reward is constant, 1 if both are.
    """
    values = [reward.of(steps) for reward in (first, second)]
    exact = any(statistics.constant(rewards) for rewards in values)
    if ranks:
        values = [statistics.ranks(rewards) for rewards in values]
    keep, sizes = without(steps)
    others = weighted_correlation(values[0], values[1], keep)
    return estimate(weighted_correlation(values[0], values[1]), others, sizes, len(steps), exact, CORRELATION)


def epic(
    first: RewardFunction,
    second: RewardFunction,
    steps: Transitions,
    gamma: float = GAMMA,
    rng: np.random.Generator | None = None,
    *,
    pairs: int = 512,
    draws: int = 128,
    ends: bool = True,
) -> Estimate:
    """Estimate the EPIC distance.

    With ``ends``, a constant counts where episodes end, as it does for the agent: it pays for staying alive or for ending. Without,
    it is the distance of Gleave et al. (2020), whose canonicalisation knows no ends and removes any constant.

    The mean rewards of the canonicalisation take ``2 * pairs * draws`` rewards of made-up steps, in batches.

    ``pairs`` are the steps on which the canonical rewards are compared, ``draws`` the actions and next states, drawn
    independently of each other, of the mean rewards.
    """
    rng = rng or np.random.default_rng(0)
    pool = steps.sample(POOL, rng)
    chosen, drawn = np.sort(rng.permutation(len(pool))[:pairs]), rng.integers(len(pool), size=(3, draws))
    keep, sizes = without(pool)
    of_draws = keep[:, drawn].all(1)  # draws without any step of the episodes that are left out
    of_draws = of_draws / np.maximum(of_draws.sum(1, keepdims=True), 1)
    canonical, left, flat = [], [], []
    for reward in (first, second):
        rewards, means, scale = _means(reward, pool, chosen, drawn, gamma, ends)
        canonical.append(_flat_if_constant(rewards + means.mean(1), scale))
        flat.append(not canonical[-1].any())
        left.append(canonical[-1] if flat[-1] else rewards + of_draws @ means.T)
    distance = pearson_distance(weighted_correlation(canonical[0], canonical[1]))
    others = pearson_distance(weighted_correlation(left[0], left[1], keep[:, chosen]))
    others[~of_draws.any(1)] = math.nan
    return estimate(distance, others, sizes, len(chosen), any(flat))


def dard(
    first: RewardFunction,
    second: RewardFunction,
    steps: Transitions,
    gamma: float = GAMMA,
    rng: np.random.Generator | None = None,
    *,
    pairs: int = 512,
    neighbours: int = 8,
) -> Estimate:
    """Estimate the DARD distance, with the data itself as the transition model.

    DARD draws next states from a model of the environment. Here, an observation is followed by the actions and next observations
    of the recorded steps whose observations are nearest to it (Euclidean, features divided by their deviation; equal numbers for
    Discrete observations). After an observation and an action come the next observations of the steps nearest in both; of
    Discrete actions, in the observation among the steps of the same action. With few data or many dimensions, these may be steps
    that can't happen there: then use EPIC.

    ``pairs`` are the steps on which the canonical rewards are compared, ``neighbours`` the recorded steps that stand for
    the transitions out of an observation.
    """
    rng = rng or np.random.default_rng(0)
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
    keep, sizes = without(pool)
    canonical: list[FloatArray] = []
    for reward in (first, second):
        rewards = reward.of(pool[chosen])
        before = _at(reward, pool, chosen[:, None], here, n + here, pool.terminated[here])
        after = _at(reward, pool, n + chosen[:, None, None], there, n + there, pool.terminated[there])
        change = gamma * (np.where(over[:, None, None], 0, after) - _crossed(reward, pool, chosen, here, there))
        scale = np.abs(np.concatenate([rewards, before.ravel(), after.ravel()])).max(initial=0.0)
        whole = rewards + change.mean((1, 2)) - before.mean(1)
        rows = [_flat_if_constant(whole, scale)]
        for kept in keep:
            near, far = kept[here], kept[here][..., None] * kept[there]
            rows.append(
                rewards + _mean_of(change, far, (1, 2)) - _mean_of(before, near, (1,)) if rows[0].any() else rows[0]
            )
        canonical.append(np.stack(rows))
    weights = np.concatenate([np.ones((1, len(chosen))), keep[:, chosen]])
    distances = pearson_distance(weighted_correlation(canonical[0], canonical[1], weights))
    exact = not (canonical[0][0].any() and canonical[1][0].any())
    return estimate(distances[0], distances[1:], sizes, len(chosen), exact)


def starc(
    first: RewardFunction,
    second: RewardFunction,
    steps: Transitions,
    gamma: float = GAMMA,
    rng: np.random.Generator | None = None,
) -> Estimate:
    """Estimate the STARC distance (VAL, L2). Refused where the steps can't tell it.

    The policy of the canonicalisation is the one that recorded the data. Its values are fitted by least-squares temporal
    differences: one weight for each observation if observations repeat, otherwise on `FEATURES` random Fourier features, so that
    shaping with a potential far from their span leaves a rest. Rewards are averaged over next states where the same observation
    and action occur again. A reward that is nothing but shaping, and a constant where no episode ends, has no direction: its
    rewards of made-up steps tell (see `_shapes_only`), not the fit.

    It is refused with fewer than `STEPS_PER_VALUE` steps for each weight: one for each observation that repeats, or one for each
    feature of the observation (at most `FEATURES`) and a constant. It is refused, too, if the values leave nothing of a reward that
    is no shaping: whoever always acts alike in one observation gains nothing over his own values.
    """
    rng = rng or np.random.default_rng(0)
    steps = steps.sample(POOL, rng)
    needed = STEPS_PER_VALUE * fewest_values(steps, first.observation_space)
    if len(steps) < needed:
        return refused(len(steps), f"{needed} steps are needed to fit the values, {STEPS_PER_VALUE} for each weight")
    pool, inputs, next_inputs = value_features(steps, first.observation_space, rng)
    onward = gamma * ~pool.terminated[:, None] * next_inputs
    given = np.stack([reward.of(pool) for reward in (first, second)], 1)
    same = _same_step(pool)
    shaping = np.array([_shapes_only(reward, pool, gamma, rng) for reward in (first, second)])

    def squared(weights: FloatArray) -> tuple[float, BoolArray]:
        weighted = weights[:, None] * inputs
        system = weighted.T @ (inputs - onward)
        system += 1e-9 * np.trace(np.abs(system)) / len(system) * np.eye(len(system))
        canonical = given + (onward - inputs) @ np.linalg.solve(system, weighted.T @ given)
        norms = np.sqrt([_power(column, same, weights) for column in canonical.T])
        trivial = shaping | (norms <= 1e3 * CONSTANT * np.abs(given).max(0))
        directions = np.where(trivial, 0, canonical / np.where(trivial, 1, norms))
        return min(1.0, _power(directions[:, 0] - directions[:, 1], same, weights) / 4), trivial

    square, trivial = squared(np.ones(len(pool)))
    if (trivial & ~shaping & (np.ptp(given, axis=0) > 0)).any():
        return refused(len(pool), "in these steps, each observation has one action: no other one's gain is known")
    keep, sizes = without(pool)
    found = [squared(kept) if kept.any() else (math.nan, trivial) for kept in keep]  # none is left of a single episode
    others = [np.sqrt(of) if np.array_equal(cancels, trivial) else math.nan for of, cancels in found]
    return estimate(np.sqrt(square), np.array(others), sizes, len(pool), bool(trivial.any()))


def all_distances(
    first: RewardFunction,
    second: RewardFunction,
    steps: Transitions,
    gamma: float = GAMMA,
    seed: int = 0,
    *,
    pairs: int = 512,
) -> dict[str, Estimate]:
    """Compute every distance and correlation: ``epic``, ``epic_published``, ``dard``, ``starc``, ``pearson``, ``spearman``.

    EPIC takes ``pairs ** 2 / 2`` rewards of made-up steps from each reward, which is slow for images: 128 pairs do for those.
    """
    of_epic = functools.partial(epic, pairs=pairs, draws=pairs // 4)
    measures: dict[str, tuple[Callable[..., Estimate], int]] = {  # with the number of their draws
        "epic": (of_epic, 0),
        "dard": (functools.partial(dard, pairs=pairs), 1),
        "starc": (starc, 2),
        "epic_published": (functools.partial(of_epic, ends=False), 0),
    }
    estimates = {
        name: measure(first, second, steps, gamma, np.random.default_rng([seed, number]))
        for name, (measure, number) in measures.items()
    }
    return estimates | _correlations(first, second, steps)


def _correlations(first: RewardFunction, second: RewardFunction, steps: Transitions) -> dict[str, Estimate]:
    return {
        name: correlation(first, second, steps, ranks=ranks) for name, ranks in (("pearson", False), ("spearman", True))
    }


class RecordedReward(RewardFunction):
    """The recorded true rewards of steps as a reward function, known for those steps only."""

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
    starcs = starc(reward, truth, steps, gamma, np.random.default_rng([seed, 2]))
    return {"starc": starcs} | _correlations(reward, truth, steps)


def _means(
    reward: RewardFunction, pool: Transitions, chosen: IntArray, drawn: IntArray, gamma: float, ends: bool
) -> tuple[FloatArray, FloatArray, float]:
    """Return the rewards of ``chosen`` steps, what EPIC adds to each by each draw, ``[chosen, draws]``, and the largest reward."""
    n = len(pool)
    leaving, actions, nexts = drawn[0], drawn[1], n + drawn[2]
    ended = pool.terminated[drawn[2]]
    over = pool.terminated[chosen] & ends
    rewards = reward.of(pool[chosen])
    before = _at(reward, pool, chosen[:, None], actions, nexts, ended)
    after = np.empty_like(before)
    after[~over] = _at(reward, pool, n + chosen[~over, None], actions, nexts, ended)
    after[over] = _at(reward, pool, leaving, actions, nexts, ended) - _at(
        reward, pool, leaving, actions, n + chosen[over, None], np.array(True)
    )
    largest = max(float(np.abs(of).max(initial=0.0)) for of in (rewards, before, after))
    return rewards, gamma * after - before, largest


def _shapes_only(reward: RewardFunction, pool: Transitions, gamma: float, rng: np.random.Generator) -> bool:
    """Return whether a reward is ``constant + gamma * phi(s') - phi(s)``: EPIC's canonicalisation then leaves nothing of it.

    Where episodes end, that holds without a constant only. Of recorded rewards, only a constant is known to be that.
    """
    chosen, drawn = rng.permutation(len(pool))[:SHAPED_ON], rng.integers(len(pool), size=(3, SHAPED_DRAWS))
    if isinstance(reward, RecordedReward):
        rewards = reward.of(pool)
        return not rewards.any() or (statistics.constant(rewards) and not pool.terminated.any())
    # Steps that end an episode are few, and what tells a constant.
    chosen = np.unique(np.concatenate([chosen, np.flatnonzero(pool.terminated)[:SHAPED_ON]]))
    rewards, means, largest = _means(reward, pool, chosen, drawn, gamma, True)
    return not _flat_if_constant(rewards + means.mean(1), largest).any()


def _power(values: FloatArray, groups: IntArray, weights: FloatArray) -> float:
    """Estimate the mean square of the groups' true means: that of their averages, less what noise adds to it."""
    count = np.bincount(groups, weights)
    safe = np.where(count > 0, count, 1)
    mean = np.bincount(groups, weights * values) / safe
    spread = np.bincount(groups, weights * (values - mean[groups]) ** 2) / np.where(count > 1, count - 1, 1)
    noise = np.where(count > 1, spread / safe, 0)
    return max(0.0, float((count * (mean**2 - noise)).sum() / count.sum()))


def _flat_if_constant(canonical: FloatArray, largest: float) -> FloatArray:
    """Rounding is no direction: 32-bit networks leave about 1e-7 of their ``largest`` reward where their reward cancels."""
    centred = canonical - canonical.mean()
    return np.asarray(centred * (np.abs(centred).max(initial=0.0) > 1e-6 * largest))


def _mean_of(values: FloatArray, weights: FloatArray, axes: tuple[int, ...]) -> FloatArray:
    """Return weighted means over ``axes``; unweighted ones where all weights are 0."""
    total = weights.sum(axes)
    return np.asarray(
        np.where(total > 0, (weights * values).sum(axes) / np.where(total > 0, total, 1), values.mean(axes))
    )


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
