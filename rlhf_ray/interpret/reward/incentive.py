"""The incentive test: train on the learned reward, judge by the true one, in the original and in shifted environments.

A policy that does badly has one of two causes, and the remedies differ:

* a shifted *level*: the learned reward ranks steps as the true one does, but has a constant added. Between episodes of one
  length it changes nothing; where episodes can end early, it pays for staying alive or for ending. Subtract the constant, or let
  episodes have one length;
* a changed *ranking*: the learned reward prefers other behaviour. Collect comparisons there.

The test tells them apart by solving once more without constants: in tables, all that can matter are searched, and the interval that
mends is reported; a short PPO tries a few. Where ending early is the task, a cost of each step mends many rewards: a large one any,
the smallest one a reward of 0. So a level is only said of a reward that correlates with the true one (`LevelFit`), and has one.

Returns of PPO are compared by start: each of its policies, and random actions, play from the same ones. More episodes are played
until the comparison is decided. It stays undecided if PPO does not learn on the true reward either.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.spaces import seeded
from rlhf_ray.envs import make_env
from rlhf_ray.interpret.reward import short_ppo
from rlhf_ray.interpret.reward.preprocess.certificate import table_of
from rlhf_ray.interpret.reward.tabular import Tables, tables_of
from rlhf_ray.interpret.reward.teaching import (
    GOOD,
    SURE,
    Interval,
    LevelFit,
    gains,
    highest_return,
    mending,
    share_of_gain,
    standard_error,
    well_taught,
)
from rlhf_ray.measure.distances import starc
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.study.figures import fields_of

LINE = 0.99
"""Linear correlation from which the level is told beside a reward that teaches the task: of another shape, it has none."""
STEPS, EPISODES = 24_000, 32
"""Environment steps of each PPO and episodes of each judgement at effort 1."""
HIGHEST = 0.01
"""Share of the highest possible return that random actions may miss, and still leave nothing to gain."""
LONGER = 4
"""Factor of PPO's steps if it has not learned on the true reward."""
DOUBLINGS = 2
"""How often the episodes of a judgement are doubled while it is undecided."""
QUANTILES = (0.5, 0.05, 0.95)
"""Quantiles of the learned reward that PPO tries as constants, after the level."""

EXACT = "value iteration"

Finding = Literal["same", "level", "ranking", "nothing to gain", "undecided"]


@dataclass(frozen=True)
class TrialWorld:
    """An environment of the test: its name for ``make_env``, and options of its constructor."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


@dataclass(frozen=True)
class Incentive:
    """What the learned reward teaches in one environment. Returns are true ones.

    Attributes:
        world: the environment.
        solver: "value iteration" (discounted returns, exact) or "PPO" (undiscounted, measured).
        best: return after training on the true reward.
        learned: return after training on the learned one.
        without_level: return after training on the learned one less the constant that mends it best.
        random: return of random actions.
        level: the constant that the learned reward adds, in units of the true reward; None if the rewards are unrelated.
        level_matters: whether episodes end early, so that a constant changes what pays.
        starc: STARC distance of the rewards (value iteration only); None if not computed.
        finding: same, level, ranking, or nothing to gain; undecided if PPO did not learn enough on the true reward, or on
            the learned one: if the policy that was trained on the true reward gets more of the learned one, too, or random actions
            get as much of it.
        correlation: linear correlation of the two rewards, over all possible moves or on rollouts of random actions and of the
            policy that was trained on the true reward; None if the true reward is constant there.
        shifted: whether ``level`` is at least a tenth of the true reward's range, and the rewards are related (`LevelFit`).
        mends: the constants, on the learned reward's scale, that subtracted make it teach the task: from and to, each None if
            there is no such end; None if no constant does, or none was searched because it teaches the task as it is.
        gain_error: standard error of ``best - random``, by start; 0 where they are exact.
        interval: 95 % interval of `share`; None where it is exact, or there is no gain.
        returns: learned returns of random actions and of the policies that were trained on the true reward and on the learned one;
            None if not needed.
        top: highest possible return, if that can be told; None with value iteration, whose ``best`` it is.
    """

    world: TrialWorld
    solver: str
    best: float
    learned: float
    without_level: float
    random: float
    level: float | None
    level_matters: bool
    starc: float | None
    finding: Finding
    correlation: float | None
    shifted: bool
    mends: Interval | None = None
    gain_error: float = 0.0
    interval: tuple[float, float] | None = None
    returns: tuple[float, float, float] | None = None
    top: float | None = None

    @property
    def exact(self) -> bool:
        """Whether the returns are exact."""
        return self.solver == EXACT

    @property
    def gains(self) -> bool:
        """Whether there is a sure gain over random actions, so that shares of it can be told."""
        return self.exact or self.best - self.random > SURE * self.gain_error

    @property
    def is_line(self) -> bool:
        """Whether the reward is the true one up to scale and level, as far as can be told: then its level is one number."""
        return self.correlation is None or self.correlation >= LINE

    @property
    def share(self) -> float | None:
        """Share of the possible gain over random actions that the learned reward teaches; may be negative. None without a gain."""
        return _share(self.learned, self.best, self.random) if self.gains else None

    @property
    def harmless(self) -> bool:
        """Whether an agent may get the whole gain: then a level costs nothing, as far as can be told."""
        most = self.share if self.interval is None else self.interval[1]
        return most is not None and most >= 1 - 1e-6

    @property
    def for_the_end(self) -> bool | None:
        """Whether the constants that mend, subtracted, make ending early pay more; else staying does. None without any."""
        ends = [end for end in self.mends or () if end]
        return ends[0] > 0 if ends else None if self.mends is None else self.mends[1] is None

    @property
    def share_without_level(self) -> float:
        """The same, after the level is subtracted."""
        return _share(self.without_level, self.best, self.random)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return fields_of(self, "world") | {"share": self.share}


def incentives(
    reward: RewardFunction,
    worlds: Sequence[TrialWorld],
    *,
    gamma: float = 0.99,
    seed: int = 0,
    effort: float = 1.0,
    truth: RewardFunction | None = None,
) -> list[Incentive]:
    """Run the test in each of ``worlds``: by value iteration where the environment offers ``mdp_tables``, else by a short PPO.

    ``truth``: the true reward, if that is not the environments' own.

    Raises:
        SettingError: an environment's observations or actions differ from the reward's, or PPO can't learn from images.
    """
    return [_incentive(reward, world, gamma, seed, effort, truth) for world in worlds]


def _incentive(
    reward: RewardFunction, world: TrialWorld, gamma: float, seed: int, effort: float, truth: RewardFunction | None
) -> Incentive:
    env = make_env(world.name, **world.options)
    spaces = {
        "observations": (env.observation_space, reward.observation_space),
        "actions": (env.action_space, reward.action_space),
    }
    for what, (space, wanted) in spaces.items():
        if _kind(space) != _kind(wanted):
            raise SettingError(f"{world} has other {what} than the reward: {space} and {wanted}.")
    tables = tables_of(env, gamma)
    env.close()  # type: ignore[no-untyped-call]
    if tables is not None:
        if truth is not None:
            tables = replace(tables, reward=table_of(truth, tables.mdp, tables.observations))
        return in_tables(table_of(reward, tables.mdp, tables.observations), tables, world)
    if is_image(reward.observation_space):
        raise SettingError(f"{world} shows images, on which the short PPO of the incentive test doesn't learn.")
    return _by_ppo(reward, world, gamma, seed, effort, truth)


def _kind(space: Any) -> tuple[Any, ...]:
    return type(space), space.shape, getattr(space, "n", 0)


def in_tables(learned: FloatArray, tables: Tables, world: TrialWorld) -> Incentive:
    """Run the test by value iteration.

    Args:
        learned: the learned reward, ``[states, actions, states]``.
        tables: the environment.
        world: its name.
    """
    mdp = tables.mdp
    fit = level_of(learned, tables)
    best, taught = (mdp.policy_return(tables.reward, mdp.optimal_policy(table)) for table in (tables.reward, learned))
    chance = mdp.policy_return(tables.reward, mdp.uniform())

    def share(constant: float) -> float:
        policy = mdp.optimal_policy(learned - constant)
        return _share(mdp.policy_return(tables.reward, policy), best, chance)

    mends, mended = None, taught
    if best - chance > 1e-6 * max(1.0, abs(best)) and _share(taught, best, chance) < GOOD:
        possible = np.broadcast_to((mdp.transitions > 0) & ~mdp.terminal[:, None, None], learned.shape)
        rewards = np.broadcast_to(learned, possible.shape)[possible]
        mends, most = mending(share, float(rewards.min()), float(rewards.max()), mdp.gamma, fit.level)
        mended = chance + most * (best - chance)
    return Incentive(
        world,
        EXACT,
        best,
        taught,
        mended,
        chance,
        fit.in_true_units,
        bool(mdp.terminal.any()),
        starc(tables.reward, learned, mdp),
        _finding(best, taught, chance, fit.is_level(mends)),
        fit.correlation,
        fit.shifted,
        mends,
    )


def level_of(learned: FloatArray, tables: Tables) -> LevelFit:
    """Fit the level over all possible steps.

    The rewards are compared as they are. After canonicalisation, "1 for the end" and "-0.01 for each other step" are the same
    reward, and no level can be told.
    """
    mdp = tables.mdp
    weights = np.where(mdp.terminal[:, None, None], 0, mdp.transitions)
    return _fitted(learned, tables.reward, weights / weights.sum())


def _fitted(learned: FloatArray, true: FloatArray, weights: FloatArray) -> LevelFit:
    mean, true_mean = (float((weights * rewards).sum()) for rewards in (learned, true))
    spread = float((weights * (true - true_mean) ** 2).sum())
    counted = np.broadcast_to(true, weights.shape)[weights > 0]
    if spread <= 1e-12 * max(1.0, true_mean**2):  # the true reward is constant: take the scales to be the same
        return LevelFit(1.0, mean - true_mean, None, float(np.abs(counted).max(initial=0.0)))
    shared = float((weights * (true - true_mean) * (learned - mean)).sum())
    own_spread = float((weights * (learned - mean) ** 2).sum())
    correlation = shared / (spread * own_spread) ** 0.5 if own_spread > 0 else 0.0
    factor = shared / spread
    return LevelFit(factor, mean - factor * true_mean, correlation, float(np.ptp(counted)))


def _by_ppo(
    reward: RewardFunction, world: TrialWorld, gamma: float, seed: int, effort: float, truth: RewardFunction | None
) -> Incentive:
    options: dict[str, Any] = {"options": world.options, "seed": seed}
    steps, episodes = max(4096, int(STEPS * effort)), max(16, int(EPISODES * effort))

    def trained(rewarding: RewardFunction | None, shift: float = 0.0) -> short_ppo.ShortPolicy:
        return short_ppo.train(world.name, rewarding, steps=steps, gamma=gamma, shift=shift, **options)

    def played(policy: short_ppo.ShortPolicy | None, count: int, by: RewardFunction | None = truth) -> FloatArray:
        return short_ppo.true_returns(world.name, policy, episodes=count, truth=by, **options)

    on_truth, chance = trained(truth), played(None, episodes)
    fit, quantiles, early, top = _level_on_rollouts(reward, world, seed, on_truth, truth)
    best = played(on_truth, episodes)
    if not gains(best, chance):
        if top is not None and abs(top - float(chance.mean())) <= HIGHEST * abs(top):
            most, learned, random = (float(of.mean()) for of in (best, played(trained(reward), episodes), chance))
            told = world, "PPO", most, learned, learned, random
            level = fit.in_true_units
            return Incentive(*told, level, early, None, "nothing to gain", fit.correlation, fit.shifted, top=top)
        steps *= LONGER
        on_truth = trained(truth)
        fit, quantiles, early, _ = _level_on_rollouts(reward, world, seed, on_truth, truth)
    # Without early ends a level changes no optimum, but a value function that starts at 0 would have to learn it first.
    shift = fit.level if not early and fit.factor > 0 else 0.0
    policies = [None, on_truth, trained(reward, shift)]
    for doubled in range(DOUBLINGS + 1):
        count = episodes * 2**doubled
        chance, best, taught = (played(policy, count) for policy in policies)
        well = well_taught(chance, best, taught)
        if well is not None:
            break
    random, most, learned = (float(returns.mean()) for returns in (chance, best, taught))
    mends, mended = None, learned
    returns = None if well is not False else [played(policy, count, reward) for policy in policies]
    # What it prefers shows in what it gets of its own reward: more than random actions, and no less than another agent.
    reached = returns is None or (gains(returns[2], returns[0]) and not gains(returns[1], returns[2]))
    if well is False and early and reached:
        constants = [fit.level, *quantiles] if fit.factor > 0 else list(quantiles)
        for constant in constants:
            less = played(trained(reward, constant), count)
            mended = max(mended, float(less.mean()))
            if well_taught(chance, best, less):
                mends = (constant, constant)
                break
    finding: Finding = (
        "undecided" if well is None else "same" if well else "level" if fit.is_level(mends) else "ranking"
    )
    share = share_of_gain(chance, best, taught)
    return Incentive(
        world,
        "PPO",
        most,
        learned,
        mended,
        random,
        fit.in_true_units,
        early,
        None,
        finding if reached else "undecided",
        fit.correlation,
        fit.shifted,
        mends,
        standard_error(best - chance),
        None if share.low is None or share.high is None else (share.low, share.high),
        None if returns is None else (float(returns[0].mean()), float(returns[1].mean()), float(returns[2].mean())),
    )


def _level_on_rollouts(
    reward: RewardFunction, world: TrialWorld, seed: int, policy: short_ppo.ShortPolicy, truth: RewardFunction | None
) -> tuple[LevelFit, list[float], bool, float | None]:
    """Fit the level on random actions and then the policy's, as many of each.

    Also return `QUANTILES` of the learned reward, whether an episode terminated, and the `highest_return`.
    """
    env = make_env(world.name, **world.options)
    drawn = seeded(env.action_space, seed)
    rows: list[tuple[Any, Any, Any, bool]] = []
    true: list[float] = []
    ends: list[bool] = []
    steps = 2000
    observation, _ = env.reset(seed=seed)
    for number in range(steps):
        action = drawn.sample()
        if number >= steps // 2:
            action = policy.to_env(policy.act(policy.inputs(observation[None]), None))[0]
        after, rewarded, terminated, truncated, _ = env.step(action)
        rows.append((observation, action, after, terminated))
        true.append(float(rewarded))
        ends.append(terminated or truncated)
        observation = env.reset()[0] if terminated or truncated else after
    env.close()  # type: ignore[no-untyped-call]
    observations, actions, nexts, terminated_steps = (np.array([row[part] for row in rows]) for part in range(4))
    parts = observations, actions, nexts, terminated_steps.astype(bool)
    learned, paid = reward(*parts), np.array(true) if truth is None else truth(*parts)
    fitted = _fitted(learned, paid, np.full(len(true), 1 / len(true)))
    quantiles = [float(value) for value in np.quantile(learned, QUANTILES)]
    longest = max((len(list(steps)) for over, steps in itertools.groupby(ends) if not over), default=0) + 1
    return fitted, quantiles, bool(terminated_steps.any()), highest_return(paid, parts[3], longest)


def _share(value: float, best: float, chance: float) -> float:
    return (value - chance) / (best - chance) if best > chance else 0.0


def _finding(best: float, taught: float, chance: float, level: bool) -> Finding:
    if best - chance <= 1e-6 * max(1.0, abs(best)):
        return "nothing to gain"
    if _share(taught, best, chance) >= GOOD:
        return "same"
    return "level" if level else "ranking"


def shifted(environment: str) -> list[TrialWorld]:
    """Return the original environment and those that shift it: grid worlds with other goals; others alone."""
    worlds = [TrialWorld(environment)]
    if environment in GRIDS:
        worlds += [TrialWorld(name) for name in GRIDS if name != environment]
    return worlds


GRIDS = tuple(f"rlhf_ray/{name}-v0" for name in ("FixedGoal", "CoinFlip", "TwoGoals", "NoGoal"))
"""Grid worlds with one kind of observation, of which a reward learned in one is tried in the others."""
