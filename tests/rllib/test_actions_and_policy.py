"""Actions as the environment gets them, and the policy networks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from rlhf_ray.rllib.policy import CollectorPolicy, policy_spec
from rlhf_ray.settings import PPOSettings, SettingError

BOUNDED = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
IMAGE = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)


def build(observation_space: Any, action_space: Any, **settings: Any) -> Any:
    spec = policy_spec(PPOSettings(**settings))
    spec.observation_space, spec.action_space = observation_space, action_space
    torch.manual_seed(0)
    return spec.build()


def test_the_deterministic_policy_takes_the_most_likely_action() -> None:
    module = build(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(3))
    with torch.no_grad():
        module.network.actor[-1].bias.copy_(torch.tensor([0.0, 5.0, 1.0]))
    policy = CollectorPolicy(module)
    observations = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    assert policy.best(observations).tolist() == [1] * 7
    drawn = [int(policy.act(observations[0], np.random.default_rng(i))) for i in range(300)]
    assert 0.9 < np.mean(np.array(drawn) == 1) < 1.0


def test_continuous_actions_are_drawn_around_the_mean_and_scaled_to_the_bounds() -> None:
    module = build(gym.spaces.Box(-1, 1, (4,)), BOUNDED, initial_log_std=-2.0)
    policy = CollectorPolicy(module)
    observation = np.zeros(4, dtype=np.float32)
    best = policy.best(observation[None])[0]
    drawn = np.stack([policy.act(observation, np.random.default_rng(i)) for i in range(400)])
    assert (np.abs(drawn.mean(0) - best) < [0.06, 0.15]).all()
    np.testing.assert_allclose(drawn.std(0), np.exp(-2.0) * np.array([2.0, 5.0]), rtol=0.15)


@pytest.mark.parametrize("network", ["nature", "impala", "auto"])
def test_image_policies_take_uint8_and_give_a_value_for_each(network: Any) -> None:
    module = build(IMAGE, gym.spaces.Discrete(15), network=network)
    batch = {Columns.OBS: torch.randint(0, 256, (5, 64, 64, 3), dtype=torch.uint8)}
    outputs = module.forward_train(batch)
    assert outputs[Columns.ACTION_DIST_INPUTS].shape == (5, 15)
    values = module.compute_values(batch, outputs[Columns.EMBEDDINGS])
    torch.testing.assert_close(values, module.compute_values(batch))
    assert values.shape == (5,)
    # Dividing by 255 is part of the network: white and black must not saturate it alike.
    black, white = (torch.full((1, 64, 64, 3), value, dtype=torch.uint8) for value in (0, 255))
    assert not torch.equal(module.compute_values({Columns.OBS: black}), module.compute_values({Columns.OBS: white}))


def test_bounded_observations_are_scaled_and_unbounded_ones_are_not() -> None:
    space = gym.spaces.Box(np.array([-8.0, -np.inf], np.float32), np.array([8.0, np.inf], np.float32))
    module = build(space, gym.spaces.Discrete(2))
    torch.testing.assert_close(module.network.encode(torch.tensor([[4.0, 4.0]])), torch.tensor([[0.5, 4.0]]))


@pytest.mark.parametrize(("network", "space"), [("mlp", IMAGE), ("nature", gym.spaces.Box(-1, 1, (4,)))])
def test_a_network_that_does_not_fit_is_refused(network: Any, space: Any) -> None:
    with pytest.raises(SettingError, match=r"ppo\.network"):
        build(space, gym.spaces.Discrete(2), network=network)


def test_images_too_small_for_the_convolutions_are_refused() -> None:
    with pytest.raises(SettingError, match="too small"):
        build(gym.spaces.Box(0, 255, (20, 20, 3), np.uint8), gym.spaces.Discrete(2), network="nature")
