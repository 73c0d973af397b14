"""How much of a reward its best equivalent of the true one explains: ``c * truth + constant + gamma * phi(s') - phi(s)``.

Potential shaping changes no optimal policy (Ng, Harada and Russell 1999), so what it explains is no fault. But along recorded steps
it explains much of any reward: a reward that depends on the state is nearly the difference of its own values there. So what counts
is the rest: of what no shaping explains, how much does the true reward? This is 1 for a shaped or scaled truth, and 0 for an
unrelated reward and for the truth's negation.

All shares are of episodes that the fit has not seen, with a 95 % interval over episodes. With
fewer than `EPISODES` episodes there is no interval; of a single one, steps are held out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.potential_basis import MOST, Basis, basis_of
from rlhf_ray.interpret.effects.regions import Regions
from rlhf_ray.measure.intervals import MeanEstimate, jackknife
from rlhf_ray.measure.statistics import constant
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.functions.potentials import LinearPotential
from rlhf_ray.reward.functions.shaped import ShapedReward
from rlhf_ray.study.figures import DRAWN

STEPS = 4000
"""Most steps that the fit takes, of whole episodes where possible."""
FEWEST, FOLDS = 50, 5
"""Least number of steps; parts that are held out in turn."""
EPISODES = 12
"""Fewest episodes for intervals: a fit to the rest of fewer errs by more than they show; they hold in 85 of 100 data sets."""
HOLDS = 0.98
"""Share of what no shaping explains that the truth must explain, with the whole interval, for the reward to be its equivalent. A
shaped truth reaches 1.00 if its potential is smooth; the truth cut off at its middle 0.96, as shaping can bend it."""
NEARLY, MORE = 0.9, 300
"""Share from which more features of a potential are tried, and how many: a potential that is no sum of a few has a truth that
explains 0.97 with 160, and one of a flawed reward explains no more with 300."""
RIDGE = 1e-6
"""Penalty of a fitted weight, relative to its column: features that are nearly the same share theirs."""
NOTHING_LEFT = 1e-9
"""Share of the variance that shaping leaves, below which nothing is left to explain: rounding."""


@dataclass(frozen=True)
class Equivalence:
    """What explains a reward, as shares of its variance.

    Attributes:
        truth: the true reward, scaled and shifted.
        shaping: shaping alone: any reward has much of it.
        both: the true reward, scaled, shifted and shaped.
        rest: of what no shaping explains, what the true reward explains; NaN if nothing is left.
        factor: c; 0 if the truth goes the other way.
        steps: steps that the fit rests on.
        steady: whether the true reward is the same on all steps.
        potential: that of the shaping fitted to all of them; None if the truth explains as much without it.
        basis: the features that potentials are made of.
    """

    truth: MeanEstimate
    shaping: MeanEstimate
    both: MeanEstimate
    rest: MeanEstimate
    factor: float
    steps: int
    steady: bool
    potential: LinearPotential | None = field(default=None, metadata=DRAWN)
    basis: Basis | None = field(default=None, metadata=DRAWN)

    @property
    def holds(self) -> bool:
        """Whether the reward is, with the whole interval, the true one up to scale and constant, or that and shaping."""
        both = [self.truth.low, self.rest.low if self.potential is not None else None]
        return any(low is not None and low >= HOLDS for low in both)

    @property
    def by_shaping(self) -> bool:
        """Whether it holds because of shaping: the truth alone explains less."""
        return self.potential is not None and self.rest.low is not None and self.rest.low >= HOLDS

    def without_shaping(self, reward: RewardFunction, gamma: float) -> RewardFunction:
        """Return the reward less the fitted shaping, if that is what makes it equivalent."""
        if not self.by_shaping or self.potential is None:
            return reward
        opposite = LinearPotential(-self.potential.weights, self.potential.features)
        return ShapedReward(reward, opposite, gamma, name=reward.name)


def equivalence(
    reward: RewardFunction, data: Transitions, gamma: float, regions: Regions | None, rng: np.random.Generator
) -> Equivalence | None:
    """Fit the best equivalent of the true rewards in ``data``.

    Returns:
        None if true rewards are unknown, the reward is constant, or there are fewer than `FEWEST` steps.
    """
    data = _part(data, rng)
    given, true = reward.of(data), data.rewards
    if len(data) < FEWEST or constant(given) or not np.isfinite(true).all():
        return None
    both = np.concatenate([data.observations, data.next_observations])
    tried: list[Equivalence] = []
    for most in (MOST, MORE):
        basis = basis_of(both, reward.observation_space, regions, rng, most)
        # Where episodes end, a constant is no shaping. It is tried first, so that a shifted truth's shaping is found too; but with
        # it, any constant reward for the end is shaping.
        tried += [
            _fitted(reward, data, gamma, basis, level, rng) for level in (True, False)[: 1 + data.terminated.any()]
        ]
        if any(each.holds for each in tried) or max(each.rest.mean for each in tried) < NEARLY:
            break
    return next((each for each in tried if each.holds), tried[0])


def _fitted(
    reward: RewardFunction, data: Transitions, gamma: float, basis: Basis | None, level: bool, rng: np.random.Generator
) -> Equivalence:
    given, true = reward.of(data), data.rewards
    deviation = float(given.std())
    given = (given - given.mean() * level) / deviation
    steady = constant(true)
    level = level and not steady
    truth = (true if steady or not level else true - true.mean())[:, None]
    truth = truth * (np.sign(true.mean()) if steady else 1.0) / max(float(np.sqrt(np.mean(truth**2))), 1e-300)
    one = np.ones((len(data), 1))
    effects = np.zeros((len(data), 0)) if basis is None else effects_of(basis, data, gamma)
    episodes = np.unique(data.episodes, return_inverse=True)[1]
    groups = episodes if episodes.max() > 0 else np.arange(len(data))
    alone = [one, *([] if steady else [truth])]
    shaping = [*([one] if level else []), effects]
    designs = [
        (one, 0),
        (np.concatenate(alone, 1), 1),
        (np.concatenate(shaping, 1), 0),
        (np.concatenate([*shaping, truth], 1), 1),
    ]
    order = rng.permutation(groups.max() + 1)
    errors = [_held_out(design, given, groups, own, order) for design, own in designs]
    sums, sizes = np.stack([np.bincount(episodes, error) for error in errors], 1), np.bincount(episodes)
    shares = [_explained(sums, sizes, *of) for of in ((1, 0), (2, 0), (3, 0), (3, 2))]
    if len(sizes) < EPISODES:  # what no episode changes is exact, however few there are
        shares = [each if each.low == each.high else MeanEstimate(each.mean, None, None) for each in shares]
    unshaped, of_shaping, joint, rest = shares
    weights = _fit(designs[3][0], given, 1)
    potential = None
    # A bonus for the end is shaping by a constant potential, and a level: as such it is told, and not hidden.
    ends = np.concatenate([*alone, data.terminated[:, None]], 1)
    with_ends = 1 - _held_out(ends, given, groups, 0, order).sum() / max(errors[0].sum(), 1e-300)
    bonus = with_ends >= HOLDS and 1 - with_ends < (1 - unshaped.mean) / 2
    if basis is not None and joint.low is not None and joint.low > unshaped.mean and not bonus:
        fitted = LinearPotential(weights[int(level) : -1] * deviation, basis)
        potential = fitted if _pays_for_changes(fitted, data, gamma) else None
    return Equivalence(unshaped, of_shaping, joint, rest, float(weights[-1]), len(data), steady, potential, basis)


def _pays_for_changes(potential: LinearPotential, data: Transitions, gamma: float) -> bool:
    """Return whether shaping by a potential pays for its changes rather than, by the discount, for being in a state."""
    going = data[~np.asarray(data.terminated, bool)]
    before, after = potential(going.observations), potential(going.next_observations)
    return bool(np.std(after - before) > (1 - gamma) * np.std(before))


def _part(data: Transitions, rng: np.random.Generator) -> Transitions:
    """Return whole episodes of about `STEPS` steps, or steps if one alone has more."""
    if len(data) <= STEPS:
        return data
    names, sizes = np.unique(data.episodes, return_counts=True)
    order = rng.permutation(len(names))
    chosen = order[np.cumsum(sizes[order]) <= STEPS]
    return data[np.isin(data.episodes, names[chosen])] if len(chosen) else data.sample(STEPS, rng)


def effects_of(basis: Basis, data: Transitions, gamma: float) -> FloatArray:
    """Return what one unit of each feature's potential adds to each reward, ``[n, k]``."""
    onward = gamma * ~np.asarray(data.terminated, bool)[:, None]
    return np.asarray(onward * basis(data.next_observations) - basis(data.observations))


def _fit(design: FloatArray, given: FloatArray, own: int) -> FloatArray:
    """Fit by least squares; the last of ``own`` columns, the truth, gets no weight below 0."""
    size = np.sqrt((design**2).mean(0))
    size = np.where(size > 0, size, 1)
    scaled = design / size
    square = scaled.T @ scaled
    square[np.diag_indices_from(square)] += RIDGE * len(given)
    weights = np.linalg.solve(square, scaled.T @ given) / size
    if own and weights[-1] < 0:
        weights = np.append(_fit(design[:, :-1], given, 0), 0.0)
    return np.asarray(weights)


def _held_out(design: FloatArray, given: FloatArray, groups: IntArray, own: int, order: IntArray) -> FloatArray:
    """Return the squared error of each step in a fit to the other folds' groups, ``[n]``."""
    fold, errors = order[groups] % FOLDS, np.zeros(len(given))
    for number in range(FOLDS):
        held = fold == number
        errors[held] = (given[held] - design[held] @ _fit(design[~held], given[~held], own)) ** 2
    return errors


def _explained(sums: Array, sizes: IntArray, of: int, base: int) -> MeanEstimate:
    """Estimate the share of the squared error of model ``base`` that model ``of`` explains; NaN if nothing is left of it.

    The interval is that of what is left: a share of 0 is no bound, as a model may leave more.
    """

    def left(of_groups: Array) -> Array:
        known = of_groups[:, base] > NOTHING_LEFT * of_groups[:, 0]
        return np.where(known, of_groups[:, of] / np.where(known, of_groups[:, base], 1), np.nan)

    found = jackknife(left, sums, sizes=sizes)
    value, high, low = (
        None if each is None else float(np.clip(1 - each, 0, 1)) for each in (found.mean, found.low, found.high)
    )
    return MeanEstimate(math.nan if value is None else value, low, high)
