"""The page's environments of a user: steps by hand, and equality with a second statement of the same rules."""

import gymnasium as gym
import numpy as np

import benchmarks.puck_and_shop  # noqa: F401 - registers them


def test_a_puck_without_force_stays_and_pays_its_distance() -> None:
    env = gym.make("Puck-v0")
    seen, _ = env.reset(seed=3)
    after, reward, *_ = env.step(np.zeros(2, np.float32))
    np.testing.assert_array_equal(after, seen)
    assert reward == np.float64(-np.hypot(*(env.unwrapped.place - env.unwrapped.goal)))


def test_a_push_moves_a_puck_by_its_force_and_walls_turn_it_round() -> None:
    env = gym.make("Puck-v0").unwrapped
    env.reset(seed=3)
    env.place, env.goal = np.array([1.495, 0.0]), np.array([1.5, 0.012])
    _, reward, *_ = env.step(np.array([1.0, 1.0], np.float32))
    np.testing.assert_allclose(env.place, [1.5, 0.012])
    np.testing.assert_allclose(env.velocity, [-0.006, 0.012])
    np.testing.assert_allclose(reward, -0.04, atol=1e-12)


def test_a_crate_comes_two_days_after_its_order_and_every_piece_is_sold_missed_or_kept() -> None:
    env = gym.make("Shop-v0").unwrapped
    env.reset(seed=5)
    env.stock = 0.0
    for action in (3, 0):
        _, reward, *_ = env.step(action)
        np.testing.assert_allclose(reward, -0.3 * env.demand)
    _, reward, *_ = env.step(0)
    sold = min(12.0, env.demand)
    assert env.stock == 12.0 - sold
    np.testing.assert_allclose(reward, 0.2 * sold - 0.3 * (env.demand - sold) - 0.06 * env.stock)
