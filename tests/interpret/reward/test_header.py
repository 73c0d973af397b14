"""The header's figures on rewards whose figures are known, and agents that are trained on rewards in tables."""

import gymnasium as gym
import numpy as np
import pytest

from benchmarks.planted_causes.environments import PENDULUM, played, potential, swing
from rlhf_ray.envs import make_env
from rlhf_ray.envs.ground_truth import ground_truth
from rlhf_ray.interpret.reward.steps import header
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.trained import share_of_gain, taught
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.reward.functions import CallableReward, TableReward
from tests.interpret.contexts import run_step, steps_of

SPACE, ACTIONS = gym.spaces.Box(-9, 9, (3,), np.float32), gym.spaces.Discrete(2)


def steps(n=600):
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(n, 3)).astype(np.float32)
    actions, rewards = rng.integers(2, size=n), seen[:, 0].astype(float)
    return steps_of(seen, np.roll(seen, -1, 0), actions=actions, rewards=rewards, length=20)


def subject(function, truth=lambda o, a, n, d: o[:, 0]):
    reward, true = (CallableReward(each, SPACE, ACTIONS) for each in (function, truth))
    return Subject(reward, steps(), truth=true)


def checks(made):
    return {check.name: check for check in run_step(header, made).checks}


def test_the_truth_is_exact_and_its_opposite_is_not():
    same = header.measure(subject(lambda o, a, n, d: 3 * o[:, 0] + 1))
    assert same.exact
    assert (same.pairs.mean, same.rank.mean) == (1.0, pytest.approx(1.0))
    assert same.level == pytest.approx(1 / 3, abs=1e-6)
    opposite = header.measure(subject(lambda o, a, n, d: -o[:, 0]))
    assert not opposite.exact
    assert opposite.pairs.mean == 0.0
    assert opposite.distances["epic"].value == pytest.approx(1.0, abs=1e-6)


def test_of_pairs_with_two_levels_half_are_ties():
    rng = np.random.default_rng(0)
    true = np.arange(600.0)
    levels = (true >= 300) * 1.0  # pairs across the levels are in order: half of all; the others are ties
    found = header.pairs_in_order(levels, true, np.arange(600) // 20, rng)
    assert found.mean == pytest.approx(0.75, abs=0.01)
    assert found.low < 0.75 < found.high


def test_shaping_by_any_potential_is_equivalent_however_it_orders_steps(monkeypatch):
    monkeypatch.setattr(header, "taught", lambda *arguments, **named: None)
    env = make_env(PENDULUM)

    def shaped(o, a, p, d):
        return swing(o, a, p, d) + 90 * (0.99 * np.sin(5 * potential(p)) - np.sin(5 * potential(o)))

    reward = CallableReward(shaped, env.observation_space, env.action_space)
    made = Subject(reward, played(PENDULUM), environment=PENDULUM, effort=0.3)
    assert header.measure(made).pairs.mean < 0.75
    found = checks(made)
    assert found["EPIC, ends of episodes kept"].value == pytest.approx(0.0, abs=1e-6)
    assert all(check.passed for check in found.values())


@pytest.mark.parametrize(
    ("estimate", "above"),
    [((0.9, 0.85, 0.95), True), ((0.7, 0.6, 0.75), False), ((0.8, 0.7, 0.9), None), ((0.9, None, None), None)],
)
def test_what_the_interval_leaves_open_is_undecided(estimate, above):
    assert header.beyond(MeanEstimate(*estimate), 0.8) is above


def test_a_constant_reward_and_an_unknown_truth():
    flat = checks(subject(lambda o, a, n, d: np.ones(len(o))))
    assert flat["the reward varies"].passed is False
    reward = CallableReward(lambda o, a, n, d: o[:, 0], SPACE, ACTIONS)
    unknown = Subject(reward, steps().with_(rewards=np.full(600, np.nan)))
    found = run_step(header, unknown)
    assert found.notes == ["The true reward is unknown: give it with --truth module:function."]
    assert "pairs of steps in the true order" not in checks(unknown)


def test_in_a_table_the_truth_teaches_all_and_its_opposite_less_than_random_actions():
    name = "rlhf_ray/EmptyMaze4-v0"
    truth = ground_truth(name)
    space, actions = truth.observation_space, truth.action_space
    whole = taught(truth, name, gamma=0.99)
    assert whole.exact
    assert (whole.share.mean, whole.best) == (pytest.approx(1.0), pytest.approx(whole.learned))
    opposite = CallableReward(lambda *step: -truth(*step), space, actions)
    assert taught(opposite, name, gamma=0.99).share.mean < 0.0
    assert taught(TableReward(np.zeros(16), actions=5), name, gamma=0.99).best == pytest.approx(whole.best)
    scaled = CallableReward(lambda *step: 5 * truth(*step), space, actions)
    assert taught(scaled, name, gamma=0.99).share.mean == pytest.approx(1.0)


def test_shares_of_a_gain_hold_the_true_share():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        start = rng.normal(size=24)
        chance, best, learned = (start + mean + rng.normal(size=24) for mean in (0.0, 4.0, 3.0))
        share = share_of_gain(chance, best, learned)
        held += share is not None and share.low <= 0.75 <= share.high
    assert held >= 180
    assert share_of_gain(chance, chance, learned) is None


@pytest.mark.slow
def test_ppo_learns_cart_pole_from_the_truth_and_nothing_from_its_opposite():
    env = make_env("CartPole-v1")
    pays, costs = (
        CallableReward(lambda o, a, n, d, by=by: np.full(len(o), by), env.observation_space, env.action_space)
        for by in (1.0, -1.0)
    )
    found = taught(costs, "CartPole-v1", gamma=0.99, effort=0.2)
    assert not found.exact
    assert found.best > 100 > found.learned
    assert found.share.high < 0.5
    assert taught(pays, "CartPole-v1", gamma=0.99, effort=0.2).share.mean == pytest.approx(1.0)
