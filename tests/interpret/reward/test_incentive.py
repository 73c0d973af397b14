"""Tests of the incentive test: a planted level shift and a planted changed ranking are told apart."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import make_env, make_vector_env
from rlhf_ray.envs.ground_truth import ground_truth
from rlhf_ray.interpret.reward import incentive, short_ppo
from rlhf_ray.interpret.reward.incentive import Incentive, TrialWorld, in_tables, incentives
from rlhf_ray.interpret.reward.steps import incentive as section
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.tabular import Tables, tables_of
from rlhf_ray.interpret.reward.teaching import LevelFit, highest_return, share_of_gain, well_taught
from rlhf_ray.measure.mdp import TabularMDP
from rlhf_ray.reward.functions import CallableReward, TableReward
from tests.interpret.contexts import run_step, why_not


def of_gridworld(name: str = "FixedGoal", size: int = 4):
    world = TrialWorld(f"rlhf_ray/{name}-v0", {"size": size})
    return world, tables_of(make_env(world.name, **world.options), 0.99)


def test_a_planted_level_shift_is_told_from_a_planted_ranking() -> None:
    world, tables = of_gridworld()
    elsewhere = np.where(np.arange(tables.mdp.states) == 3, 1.0, 0.0)[None, None, :]
    findings = {
        "same": 2 * tables.reward,
        "level": tables.reward + 0.5,  # living pays more than the goal
        "ranking": elsewhere + 0 * tables.reward,  # another cell
    }
    for wanted, learned in findings.items():
        found = in_tables(learned, tables, world)
        assert found.finding == wanted
        assert found.level_matters
    assert in_tables(tables.reward + 0.5, tables, world).level == pytest.approx(0.5)
    # Without ends, the same shift changes nothing.
    maze = tables_of(make_env("rlhf_ray/EmptyMaze4-v0"), 0.99)
    harmless = in_tables(maze.reward + 0.5, maze, TrialWorld("rlhf_ray/EmptyMaze4-v0"))
    assert (harmless.finding, harmless.level_matters) == ("same", False)
    assert harmless.level == pytest.approx(0.5)


def test_a_reward_of_0_that_any_cost_of_a_step_mends_has_no_shifted_level() -> None:
    world, tables = of_gridworld("CoinFlip")
    # It pays at only one of the goals that the true reward pays at: with a cost of each step, the agent goes to the others too.
    paid = np.unique(np.argwhere(tables.reward > 0)[:, 2])
    learned = tables.reward * (np.arange(tables.mdp.states) == paid[0])
    found = in_tables(learned, tables, world)
    assert found.correlation is not None
    assert not found.shifted
    assert found.finding != "level"
    if found.mends is not None:
        assert found.mends[0] in (0.0, None)


def test_a_reward_is_tried_in_shifted_worlds() -> None:
    env = make_env("rlhf_ray/CoinFlip-v0", size=3)
    disappearance = CallableReward(
        lambda o, a, s, d: 1.0 - (s == 3).sum(1), env.observation_space, env.action_space, "no goal is seen"
    )
    worlds = [TrialWorld(f"rlhf_ray/{name}-v0", {"size": 3}) for name in ("CoinFlip", "TwoGoals", "NoGoal")]
    found = {of.world.name: of.finding for of in incentives(disappearance, worlds)}
    assert found["rlhf_ray/CoinFlip-v0"] == "same"
    assert found["rlhf_ray/NoGoal-v0"] == "nothing to gain"
    with pytest.raises(SettingError, match="observations"):
        incentives(disappearance, [TrialWorld("CartPole-v1")])


def test_the_section_reports_and_skips() -> None:
    env = make_env("rlhf_ray/EmptyMaze4-v0")
    reward = TableReward(-env.unwrapped.ground_truth().table)
    subject = Subject(reward, None, environment="rlhf_ray/EmptyMaze4-v0")  # type: ignore[arg-type]
    assert why_not(section, subject) is None
    found = run_step(section, subject)
    assert [of.passed for of in found.checks] == [False]
    assert "No episode ends early" in found.statements[0].text
    assert why_not(section, Subject(reward, None)) is not None  # type: ignore[arg-type]


def test_ppo_trains_on_a_continuous_action() -> None:
    torch.set_num_threads(1)
    env = gym.make("Pendulum-v1")
    reward = CallableReward(lambda o, a, s, d: -np.abs(a[:, 0]), env.observation_space, env.action_space)
    policy = short_ppo.train("Pendulum-v1", reward, steps=1, gamma=0.9, seed=0)
    drawn = policy.to_env(policy.act(policy.inputs(np.zeros((1, 3))), None))
    assert drawn.shape == (1, 1)
    assert env.action_space.contains(drawn[0])


@pytest.mark.parametrize("gamma", [0.5, 0.99])
def test_the_constants_that_mend_are_those_of_the_closed_form(gamma: float) -> None:
    # One state: stay for ever, or end, which is the task. Staying pays as long as (stay - c) / (1 - gamma) > end - c.
    transitions = np.zeros((2, 2, 2))
    transitions[0, 0, 0] = transitions[0, 1, 1] = transitions[1, :, 1] = 1
    true = np.zeros((2, 2, 2))
    true[0, 1, 1] = 1
    mdp = TabularMDP(transitions, np.array([1.0, 0.0]), gamma, np.array([False, True]))
    learned = 0.2 * true + 0.7  # stay .7, end .9: the order of steps is that of the true reward
    found = in_tables(learned, Tables(mdp, true, np.arange(2)), TrialWorld("end"))
    assert found.finding == "level"
    assert (found.level, found.correlation, found.shifted) == (pytest.approx(3.5), pytest.approx(1.0), True)
    assert found.mends is not None
    assert found.mends[0] == pytest.approx((0.7 - (1 - gamma) * 0.9) / gamma, abs=1e-3)
    assert found.mends[1] is None
    assert found.share_without_level == pytest.approx(1.0)
    against = in_tables(0.7 - 0.2 * true, Tables(mdp, true, np.arange(2)), TrialWorld("end"))
    assert (against.finding, against.level) == ("ranking", None)  # although a large enough cost of each step mends it


def test_a_level_is_told_also_where_the_agent_does_not_fail() -> None:
    env = make_env("rlhf_ray/EmptyMaze4-v0")
    table = env.unwrapped.ground_truth().table
    reward = TableReward(table - 3.0)
    found = run_step(section, Subject(reward, None, environment="rlhf_ray/EmptyMaze4-v0"))  # type: ignore[arg-type]
    assert found.values["rlhf_ray/EmptyMaze4-v0"]["shifted"]
    assert found.values["rlhf_ray/EmptyMaze4-v0"]["level"] == pytest.approx(-3.0)
    assert "Its level is -3" in found.statements[0].text


def test_returns_are_by_start() -> None:
    returns = short_ppo.true_returns("CartPole-v1", None, episodes=32, seed=5)
    envs = make_vector_env("CartPole-v1", 16)
    envs.action_space.seed(5)
    env_seeds = envs.reset(seed=10_005)[0]
    lengths, ended = np.zeros(16), np.zeros(16, bool)
    while not ended.all():
        _, rewards, terminated, truncated, _ = envs.step(envs.action_space.sample())
        lengths += np.where(ended, 0, rewards)
        ended |= terminated | truncated
    envs.close()
    assert env_seeds.shape == (16, 4)
    np.testing.assert_array_equal(returns[:16], lengths)
    assert returns.shape == (32,)


def test_what_is_taught_is_decided_by_the_differences_of_each_start() -> None:
    rng = np.random.default_rng(0)
    start = 300 * rng.standard_normal(32)  # some starts are far better than others
    chance, best = -1200 + start, -1000 + start + rng.normal(0, 30, 32)
    unpaired = (best.mean() - chance.mean()) / np.hypot(best.std() / 32**0.5, chance.std() / 32**0.5)
    assert unpaired < 4
    assert well_taught(chance, best, best) is True
    assert well_taught(chance, best, chance + 0.2 * (best - chance)) is False
    assert well_taught(chance, best, chance + 0.7 * (best - chance) + rng.normal(0, 300, 32)) is None
    assert well_taught(chance, chance + rng.normal(0, 300, 32), best) is None  # it did not learn on the true reward


def test_the_interval_of_a_share_holds_the_shares_that_the_returns_do_not_rule_out() -> None:
    rng = np.random.default_rng(0)
    chance = rng.normal(0, 3, 40)
    best = chance + rng.normal(4, 2, 40)
    taught = chance + 0.5 * (best - chance) + rng.normal(0, 1.5, 40)
    share = share_of_gain(chance, best, taught)
    assert share.mean == pytest.approx((taught - chance).mean() / (best - chance).mean())
    by_hand = []  # tries each share
    for of in np.linspace(-1, 2, 30_001):
        left = taught - chance - of * (best - chance)
        if abs(left.mean()) <= 2 * left.std(ddof=1) / 40**0.5:
            by_hand.append(of)
    assert (share.low, share.high) == (pytest.approx(by_hand[0], abs=2e-4), pytest.approx(by_hand[-1], abs=2e-4))
    assert share_of_gain(chance, chance + rng.normal(0, 5, 40), taught).low is None
    for more in np.linspace(-0.5, 0.6, 23):  # undecided just if the interval holds the bound
        moved = taught + more * (best - chance)
        share = share_of_gain(chance, best, moved)
        assert (well_taught(chance, best, moved) is None) == (share.low <= 0.7 < share.high)


@pytest.mark.parametrize(
    ("mends", "fit", "level"),
    [
        ((-0.5, -0.5), LevelFit(1.0, -0.1, 0.7, 20.0), True),  # small beside the true range, but it mends
        ((0.0, None), LevelFit(1.0, 0.1, 0.7, 20.0), False),  # any cost of a step mends
        ((-0.5, -0.5), LevelFit(1.0, -4.0, 0.2, 20.0), False),  # unrelated
        (None, LevelFit(1.0, -4.0, 1.0, 20.0), False),
    ],
)
def test_a_constant_that_mends_a_related_reward_is_its_level(mends, fit, level) -> None:
    assert fit.is_level(mends) is level


def planted(monkeypatch: pytest.MonkeyPatch, returns: dict[tuple[str, str], float]) -> Incentive:
    """Run the test in CartPole with policies of planted returns, by what they were trained on and what judges."""
    env = gym.make("CartPole-v1")
    spaces = env.observation_space, env.action_space
    reward = CallableReward(lambda o, a, s, d: o[:, 0] + 0.5, *spaces, "own")
    truth = CallableReward(lambda o, a, s, d: o[:, 0] + 0 * a, *spaces, "true")
    monkeypatch.setattr(Pushing, "to_env", staticmethod(lambda actions: np.arange(len(actions)) % 2))

    def train(name: str, of: CallableReward, *, shift: float = 0.0, **options: object) -> Pushing:
        policy = Pushing(0.0)
        policy.of = f"{of.name} less {shift:.1f}" if shift else of.name
        return policy

    def play(name: str, policy: Pushing | None, episodes: int, truth: CallableReward, **options: object) -> np.ndarray:
        mean = returns[("chance" if policy is None else policy.of, truth.name)]
        return mean + np.random.default_rng(0 if policy is None else 1).normal(size=episodes)

    monkeypatch.setattr(short_ppo, "train", train)
    monkeypatch.setattr(short_ppo, "true_returns", play)
    return incentive._by_ppo(reward, TrialWorld("CartPole-v1"), 0.99, 0, 0.5, truth)


def test_a_training_that_gets_less_of_its_own_reward_than_another_agent_decides_nothing(monkeypatch) -> None:
    returns = {("chance", "true"): 0.0, ("true", "true"): 100.0, ("own", "true"): 40.0, ("own", "own"): -30.0}
    returns[("chance", "own")] = -90.0
    failed = planted(monkeypatch, returns | {("true", "own"): -20.0})
    assert (failed.finding, failed.mends) == ("undecided", None)
    assert failed.returns == tuple(pytest.approx(mean, abs=0.5) for mean in (-90, -20, -30))
    idle = planted(monkeypatch, returns | {("true", "own"): -40.0, ("chance", "own"): -30.0})
    assert (idle.finding, idle.mends) == ("undecided", None)  # no more of its own reward than random actions get
    mended = planted(monkeypatch, returns | {("true", "own"): -40.0, ("own less 0.5", "true"): 100.0})
    assert (mended.finding, mended.mends) == ("level", (pytest.approx(0.5), pytest.approx(0.5)))
    assert (mended.for_the_end, mended.harmless) == (True, False)


class Pushing(float):
    """A policy that pushes with no force, and the mean of its true returns."""

    inputs = act = staticmethod(lambda observations, *options: observations)
    to_env = staticmethod(lambda actions: np.zeros((len(actions), 1), np.float32))


@pytest.mark.parametrize("random", [-1074.0, -700.0])
def test_without_a_gain_on_the_true_reward_nothing_is_decided(monkeypatch: pytest.MonkeyPatch, random: float) -> None:
    env = gym.make("Pendulum-v1")
    reward = CallableReward(lambda o, a, s, d: o[:, 0], env.observation_space, env.action_space)
    spread = 250 * np.random.default_rng(0).standard_normal(512)
    monkeypatch.setattr(short_ppo, "train", lambda name, of, **options: Pushing(-1074.0 if of is None else -931.0))
    monkeypatch.setattr(
        short_ppo,
        "true_returns",
        lambda name, mean, episodes, **options: (
            np.roll(spread, int(mean or 0))[:episodes] + (random if mean is None else mean)
        ),
    )
    found = run_step(section, Subject(reward, None, environment="Pendulum-v1"))  # type: ignore[arg-type]
    assert found.values["Pendulum-v1"]["finding"] == "undecided"
    assert found.values["Pendulum-v1"]["share"] is None
    assert (found.checks[0].passed, found.checks[0].value) == (None, None)
    assert "did not learn on the true reward" in found.statements[0].text
    assert found.checks[0].says == found.statements[0].text  # said once in the verdict


@pytest.mark.parametrize(("environment", "level"), [("Pendulum-v1", 60.0), ("CartPole-v1", 0.0)])
def test_a_level_that_changes_no_optimum_is_taken_away_before_the_training(
    monkeypatch: pytest.MonkeyPatch, environment: str, level: float
) -> None:
    env = gym.make(environment)
    paid = {"Pendulum-v1": lambda o, a: -(np.arctan2(o[:, 1], o[:, 0]) ** 2), "CartPole-v1": lambda o, a: o[:, 0]}
    reward = CallableReward(lambda o, a, s, d: paid[environment](o, a) + 60, env.observation_space, env.action_space)
    shifts = []

    def train(name: str, of: object, *, shift: float = 0.0, **options: object) -> Pushing:
        shifts.append(shift)
        return Pushing(0.0)

    monkeypatch.setattr(short_ppo, "train", train)
    monkeypatch.setattr(short_ppo, "true_returns", lambda name, policy, episodes, **options: np.arange(float(episodes)))
    monkeypatch.setattr(
        Pushing, "to_env", staticmethod(lambda actions: np.zeros(len(actions), int)[:, *[None] * (level > 0)])
    )
    truth = CallableReward(lambda o, a, s, d: paid[environment](o, a), env.observation_space, env.action_space)
    incentive._by_ppo(reward, TrialWorld(environment), 0.99, 0, 0.01, truth)
    # By hand: the reward is the truth plus 60. CartPole's episodes end early, and there the level changes what is best.
    assert shifts[-1] == pytest.approx(level, abs=1e-6)


def test_without_rewards_that_vary_no_correlation_is_told() -> None:
    fit = incentive._fitted(np.array([1.0, 3.0]), np.full(2, -1.0), np.full(2, 0.5))
    assert (fit.correlation, fit.level, fit.related) == (None, 3.0, True)


@pytest.mark.soak
def test_ppo_tells_a_level_shift_in_cartpole() -> None:
    torch.set_num_threads(1)
    env = gym.make("CartPole-v1")
    shifted = CallableReward(lambda o, a, s, d: np.full(len(d), -1.0), env.observation_space, env.action_space)
    found = incentives(shifted, [TrialWorld("CartPole-v1")])[0]
    assert found.finding == "level"
    assert found.level == pytest.approx(-2)


def test_the_true_reward_that_is_given_judges():
    """To go one way is the task: the environment's own reward teaches something else, and that reward itself."""
    world = TrialWorld("rlhf_ray/FixedGoal-v0", {"size": 4})
    env = make_env(world.name, **world.options)
    space, actions = env.observation_space, env.action_space

    def up(observations, actions, next_observations, terminated):
        return 1.0 * (np.asarray(actions) == 1)

    other = CallableReward(up, space, actions)
    own = ground_truth(world.name, **world.options)
    assert incentives(other, [world], truth=other)[0].finding == "same"
    assert incentives(own, [world], truth=other)[0].share < 0.9
    assert incentives(own, [world])[0].finding == "same"


@pytest.mark.parametrize(
    ("paid", "ends", "top"),
    [
        ([0.0, 0, 1, 0, 1], [0, 0, 1, 0, 1], 1.0),  # only the end pays
        ([1.0, 1, 1, 1, 1], [0, 0, 1, 0, 1], None),  # the longer the better
        ([1.0, 0.5, 1, 1, 1], [0, 0, 0, 0, 0], 4.0),
        ([-1.0, -1, -1, -1, -1], [0, 0, 0, 0, 1], None),  # the earlier the end the better
        ([0.0, 0, 0, 0, 0], [0, 0, 0, 0, 0], None),  # a goal may never have been met
    ],
)
def test_the_highest_return_is_told_where_the_steps_show_it(paid, ends, top):
    assert highest_return(np.array(paid), np.array(ends, bool), 4) == top
