"""The incentive test: train on the learned reward, judge by the true one, in the original and in shifted environments.

A policy that does badly has one of two causes, and the remedies differ:

* a shifted *level*: the learned reward ranks behaviours as the true one does, but has a constant added. Between episodes of one
  length it changes nothing; where episodes can end early, it pays for staying alive or for ending. Subtract the constant, or let
  episodes have one length;
* a changed *ranking*: the learned reward prefers other behaviour, and no constant mends it. Collect comparisons there.

The test tells them apart by training once more on the learned reward without the constant.

A short PPO may fail to learn on the true reward, too. Then its gain over random actions is mostly noise: nothing is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.envs import make_env
from rlhf_ray.interpret.reward import short_ppo
from rlhf_ray.interpret.reward.preprocess.certificate import table_of
from rlhf_ray.interpret.reward.tabular import Tables, tables_of
from rlhf_ray.measure.distances import starc
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.study.figures import fields_of

GOOD, GOOD_PPO = 0.9, 0.7
"""A policy does well if it gets this share of what the best one gains over random actions; less with PPO, which is noisy."""
STEPS, EPISODES = 24_000, 32
"""Environment steps of each PPO and episodes of each judgement at effort 1."""
SURE = 2.0
"""Standard errors by which PPO's gain on the true reward may be wrong."""

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
        without_level: return after training on the learned one less its level.
        random: return of random actions.
        level: the constant that the learned reward adds, in units of the true reward; None if the rewards are unrelated.
        level_matters: whether episodes end early, so that a constant changes what pays.
        starc: STARC distance of the rewards (value iteration only); None if not computed.
        finding: same, level, ranking, or nothing to gain; undecided if PPO did not learn enough on the true reward.
        gain_error: standard error of ``best - random``; 0 where they are exact.
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
    gain_error: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether the returns are exact."""
        return self.solver == EXACT

    @property
    def share(self) -> float | None:
        """Share of the possible gain over random actions that the learned reward teaches; may be negative. None if undecided."""
        return None if self.finding == "undecided" else _share(self.learned, self.best, self.random)

    @property
    def share_without_level(self) -> float:
        """The same, after the level is subtracted."""
        return _share(self.without_level, self.best, self.random)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return fields_of(self, "world") | {"share": self.share}


def incentives(
    reward: RewardFunction, worlds: Sequence[TrialWorld], *, gamma: float = 0.99, seed: int = 0, effort: float = 1.0
) -> list[Incentive]:
    """Run the test in each of ``worlds``: by value iteration where the environment offers ``mdp_tables``, else by a short PPO.

    Raises:
        SettingError: an environment's observations or actions differ from the reward's, or PPO can't learn from images.
    """
    return [_incentive(reward, world, gamma, seed, effort) for world in worlds]


def _incentive(reward: RewardFunction, world: TrialWorld, gamma: float, seed: int, effort: float) -> Incentive:
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
        return in_tables(table_of(reward, tables.mdp, tables.observations), tables, world)
    if is_image(reward.observation_space):
        raise SettingError(f"{world} shows images, on which the short PPO of the incentive test doesn't learn.")
    return _by_ppo(reward, world, gamma, seed, effort)


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
    factor, level = level_of(learned, tables)
    mended_reward = learned - level if factor > 0 else learned
    policies = [mdp.optimal_policy(table) for table in (tables.reward, learned, mended_reward)]
    best, taught, mended = (mdp.policy_return(tables.reward, policy) for policy in policies)
    chance = mdp.policy_return(tables.reward, mdp.uniform())
    return Incentive(
        world,
        EXACT,
        best,
        taught,
        mended,
        chance,
        level / factor if factor > 0 else None,
        bool(mdp.terminal.any()),
        starc(tables.reward, learned, mdp),
        _finding(best, taught, mended, chance),
    )


def level_of(learned: FloatArray, tables: Tables) -> tuple[float, float]:
    """Fit ``learned = factor * true + level`` over all possible steps: factor and level, on the learned reward's scale.

    The rewards are compared as they are. After canonicalisation, "1 for the end" and "-0.01 for each other step" are the same
    reward, and no level can be told.
    """
    mdp = tables.mdp
    weights = np.where(mdp.terminal[:, None, None], 0, mdp.transitions)
    return _fitted(learned, tables.reward, weights / weights.sum())


def _fitted(learned: FloatArray, true: FloatArray, weights: FloatArray) -> tuple[float, float]:
    means = [float((weights * rewards).sum()) for rewards in (learned, true)]
    spread = float((weights * (true - means[1]) ** 2).sum())
    if spread <= 1e-12 * max(1.0, means[1] ** 2):  # the true reward is constant: take the scales to be the same
        return 1.0, means[0] - means[1]
    factor = float((weights * (true - means[1]) * learned).sum() / spread)
    return factor, means[0] - factor * means[1]


def _by_ppo(reward: RewardFunction, world: TrialWorld, gamma: float, seed: int, effort: float) -> Incentive:
    options: dict[str, Any] = {"options": world.options, "seed": seed}
    steps, episodes = max(4096, int(STEPS * effort)), max(16, int(EPISODES * effort))

    def judged(policy: short_ppo.ShortPolicy | None) -> tuple[float, float]:
        returns = short_ppo.true_returns(world.name, policy, episodes=episodes, **options)
        return float(returns.mean()), float(returns.std(ddof=1) / len(returns) ** 0.5)

    def trained(rewarding: RewardFunction | None, shift: float = 0.0) -> tuple[float, float]:
        return judged(short_ppo.train(world.name, rewarding, steps=steps, gamma=gamma, shift=shift, **options))

    factor, level, early = _level_on_rollouts(reward, world, seed)
    (chance, chance_error), (best, best_error), (taught, _) = judged(None), trained(None), trained(reward)
    error = float(np.hypot(chance_error, best_error))
    decided = learned_enough(best - chance, error)
    mended = taught
    if decided and early and factor > 0 and level and _share(taught, best, chance) < GOOD_PPO:
        mended, _ = trained(reward, level)
    return Incentive(
        world,
        "PPO",
        best,
        taught,
        mended,
        chance,
        level / factor if factor > 0 else None,
        early,
        None,
        _finding(best, taught, mended, chance, GOOD_PPO) if decided else "undecided",
        error,
    )


def learned_enough(gain: float, error: float) -> bool:
    """Return whether PPO's gain on the true reward is known well enough to be the 100 % of the other shares.

    Its error must not move a share of 100 % below `GOOD_PPO`. Without a gain, PPO can't tell whether there is one.

    Args:
        gain: true return above that of random actions.
        error: standard error of ``gain``.
    """
    return gain > 0 and SURE * error <= (1 - GOOD_PPO) * gain


def _level_on_rollouts(
    reward: RewardFunction, world: TrialWorld, seed: int, steps: int = 2000
) -> tuple[float, float, bool]:
    """Fit ``learned = factor * true + level`` on random actions; also return whether an episode terminated."""
    env = make_env(world.name, **world.options)
    env.action_space.seed(seed)
    rows: list[tuple[Any, Any, Any, bool]] = []
    true: list[float] = []
    observation, _ = env.reset(seed=seed)
    for _ in range(steps):
        action = env.action_space.sample()
        after, given, terminated, truncated, _ = env.step(action)
        rows.append((observation, action, after, terminated))
        true.append(float(given))
        observation = env.reset()[0] if terminated or truncated else after
    env.close()  # type: ignore[no-untyped-call]
    parts = [np.array([row[at] for row in rows]) for at in range(4)]
    learned = reward(parts[0], parts[1], parts[2], parts[3].astype(bool))
    fitted = _fitted(learned, np.array(true), np.full(len(true), 1 / len(true)))
    return *fitted, bool(parts[3].any())


def _share(value: float, best: float, chance: float) -> float:
    return (value - chance) / (best - chance) if best > chance else 0.0


def _finding(best: float, taught: float, mended: float, chance: float, good: float = GOOD) -> Finding:
    if best - chance <= 1e-6 * max(1.0, abs(best)):
        return "nothing to gain"
    if _share(taught, best, chance) >= good:
        return "same"
    return "level" if _share(mended, best, chance) >= good else "ranking"


def shifted(environment: str) -> list[TrialWorld]:
    """Return the original environment and those that shift it: grid worlds with other goals; others alone."""
    worlds = [TrialWorld(environment)]
    if environment in GRIDS:
        worlds += [TrialWorld(name) for name in GRIDS if name != environment]
    return worlds


GRIDS = tuple(f"rlhf_ray/{name}-v0" for name in ("FixedGoal", "CoinFlip", "TwoGoals", "NoGoal"))
"""Grid worlds with one kind of observation, of which a reward learned in one is tried in the others."""
