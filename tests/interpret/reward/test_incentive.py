"""Tests of the incentive test: a planted level shift and a planted changed ranking are told apart."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import make_env
from rlhf_ray.interpret.reward import short_ppo
from rlhf_ray.interpret.reward.incentive import TrialWorld, in_tables, incentives, learned_enough
from rlhf_ray.interpret.reward.steps import incentive as section
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.tabular import tables_of
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
    assert "no constant mends it" in found.statements[0].text
    assert why_not(section, Subject(reward, None)) is not None  # type: ignore[arg-type]


def test_ppo_trains_on_a_continuous_action() -> None:
    torch.set_num_threads(1)
    env = gym.make("Pendulum-v1")
    reward = CallableReward(lambda o, a, s, d: -np.abs(a[:, 0]), env.observation_space, env.action_space)
    policy = short_ppo.train("Pendulum-v1", reward, steps=1, gamma=0.9, seed=0)
    drawn = policy.to_env(policy.act(policy.inputs(np.zeros((1, 3))), None))
    assert drawn.shape == (1, 1)
    assert env.action_space.contains(drawn[0])


@pytest.mark.parametrize("random", [-1121.0, -1200.0, -700.0])
def test_without_a_sure_gain_on_the_true_reward_nothing_is_decided(monkeypatch: pytest.MonkeyPatch, random) -> None:
    env = gym.make("Pendulum-v1")
    reward = CallableReward(lambda o, a, s, d: o[:, 0], env.observation_space, env.action_space)
    spread = 250 * np.tile([-1.0, 1.0], 16)
    monkeypatch.setattr(short_ppo, "train", lambda name, of, **options: -1074.0 if of is None else -931.0)
    monkeypatch.setattr(
        short_ppo, "true_returns", lambda name, mean, **options: spread + (random if mean is None else mean)
    )
    found = run_step(section, Subject(reward, None, environment="Pendulum-v1"))  # type: ignore[arg-type]
    assert found.values["Pendulum-v1"]["finding"] == "undecided"
    assert found.values["Pendulum-v1"]["share"] is None
    assert (found.checks[0].passed, found.checks[0].value) == (None, None)
    assert "hardly learned on the true reward" in found.statements[0].text
    assert found.checks[0].says == found.statements[0].text  # said once in the verdict


def test_a_gain_is_sure_if_its_error_is_smaller_than_the_margin_of_a_finding() -> None:
    assert learned_enough(970.0, 60.0)
    assert not learned_enough(300.0, 60.0)
    assert learned_enough(1.0, 0.0)
    assert not learned_enough(0.0, 0.0)  # as in MountainCar: there is something to gain, but PPO does not find it


@pytest.mark.soak
def test_ppo_tells_a_level_shift_in_cartpole() -> None:
    torch.set_num_threads(1)
    env = gym.make("CartPole-v1")
    shifted = CallableReward(lambda o, a, s, d: np.full(len(d), -1.0), env.observation_space, env.action_space)
    found = incentives(shifted, [TrialWorld("CartPole-v1")])[0]
    assert found.finding == "level"
    assert found.level == pytest.approx(-2)
