"""Whatever a policy says, the environment gets an action of its space: each component in its bounds, in the space's dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray import envs
from rlhf_ray.agents.true_return import evaluate
from rlhf_ray.data.rollout import rollout
from rlhf_ray.data.spaces import fitted
from rlhf_ray.envs.batches import GymBatch
from rlhf_ray.policies.actions import policy_bounds, to_env_actions, to_env_actions_tensor, to_policy_actions
from tests.rllib.test_array_env_runner import runners

INF = np.inf


def box(low: Any, high: Any, dtype: Any = np.float32) -> gym.spaces.Box:
    return gym.spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


FLOATS = [
    box([-2, 0], [2, 10]),
    box([-2, -INF], [2, INF]),
    box([0, -INF, 3], [INF, -1, 5]),
    box([-INF], [INF]),
    box([0.1, -0.3], [0.3, 0.7], np.float64),  # as float32, two of these are outside
    box([0.1, -INF, 0.3], [INF, 0.7, 0.7], np.float64),
    box([0.1, -2], [0.3, 2], np.float16),
    box([-INF, 0, -1], [INF, INF, 1], np.float16),
]
OTHERS: list[gym.Space[Any]] = [
    box([0, -3], [5, 2], np.int8),
    box([0], [1], np.int64),
    box([[-1, -INF]], [[1, 0]], np.float64),
    box([-1e6, 0], [1e6, 0.7], np.float64),  # formal bounds
    box([-1e300, 0], [1, 1e300], np.float64),
    gym.spaces.MultiDiscrete([3, 2], dtype=np.int32),
    gym.spaces.MultiBinary(3),
    gym.spaces.Discrete(3, start=-1, dtype=np.int8),
]
ID = "test_action_bounds/Strict-v0"


class Strict(gym.Env[Any, Any]):
    """Refuses what isn't in its action space."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, space: gym.Space[Any], render_mode: str | None = None):
        self.action_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} of {getattr(action, 'dtype', None)}"
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 0.0, False, False, {}


@pytest.fixture
def strict(request: pytest.FixtureRequest) -> Iterator[str]:
    made: Any = Strict
    gym.register(ID, entry_point=made, max_episode_steps=10, kwargs={"space": request.param})
    yield ID
    del gym.registry[ID]


@pytest.mark.parametrize("space", FLOATS, ids=str)
def test_each_component_is_scaled_between_two_bounds_and_clipped_at_one(space: gym.spaces.Box) -> None:
    rng = np.random.default_rng(0)
    actions = np.concatenate([rng.normal(size=(40, *space.shape)), rng.normal(size=(20, *space.shape)) * 1e6])
    actions = actions.astype(np.float32)
    given = to_env_actions(actions, space)
    for action in fitted(given, space):
        assert action.dtype == space.dtype
        assert space.contains(action)
    expected = actions.astype(np.float64)
    for k, (low, high) in enumerate(zip(space.low.tolist(), space.high.tolist(), strict=True)):
        if np.isfinite(low) and np.isfinite(high):
            expected[:, k] = low + (expected[:, k] + 1) / 2 * (high - low)
        expected[:, k] = np.minimum(np.maximum(expected[:, k], low), high)
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)
    tensor = to_env_actions_tensor(torch.as_tensor(actions), space)
    assert tensor.dtype == torch.float32
    np.testing.assert_allclose(tensor.numpy(), given, rtol=1e-6)
    back = to_policy_actions(given, space)
    np.testing.assert_allclose(back, np.clip(actions, *policy_bounds(space)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("space", FLOATS, ids=str)
def test_environments_of_a_user_s_own_maker_get_them_too(space: gym.spaces.Box) -> None:
    outputs = iter(to_env_actions(np.random.default_rng(0).normal(size=(9, *space.shape)) * 9, space))
    rollout(Strict(space), lambda _: next(outputs), steps=9, seed=0)


@pytest.mark.parametrize("strict", [*FLOATS, *OTHERS], ids=str, indirect=True)
def test_environments_get_actions_of_their_space(strict: str) -> None:
    space, rng = envs.make_env(strict).action_space, np.random.default_rng(0)
    outputs = rng.normal(size=(10, *(space.shape or ()))) * 100
    if not isinstance(space, gym.spaces.Box):
        outputs = np.stack([space.sample() for _ in range(10)])
    given = to_env_actions(outputs, space)
    actions = iter(given)
    rollout(envs.make_env(strict), lambda _: next(actions), seed=0)
    batch = GymBatch(strict, 2)
    batch.reset([0, 1])
    batch.step(given[:2])
    for act in (None, lambda observations, first: given[: len(observations)]):
        evaluate(strict, act, episodes=2, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("strict", [FLOATS[2], FLOATS[5], FLOATS[6], OTHERS[0]], ids=str, indirect=True)
def test_both_env_runners_give_actions_of_the_space(strict: str) -> None:
    for runner in runners(strict, num_envs=2, rollout_length=30, initial_log_std=2.0):
        runner.sample()
        runner.sample(random_actions=True)
        runner.stop()
