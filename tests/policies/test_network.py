"""The policy network: nothing in it is idle."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.errors import SettingError
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape, actions

VECTOR, IMAGE = gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
ACTIONS = {"discrete": gym.spaces.Discrete(3), "box": gym.spaces.Box(-1.0, 1.0, (2,))}


@pytest.mark.parametrize("acts", ACTIONS)
@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("network", ["mlp", "small", "nature", "impala"])
def test_every_parameter_gets_a_gradient(network: str, memory: Any, acts: str) -> None:
    torch.manual_seed(0)
    seen = VECTOR if network == "mlp" else IMAGE
    shape = PolicyShape(network, hidden=(8, 8), features=16, memory=memory, memory_units=6)
    policy = ActorCriticNetwork(seen, ACTIONS[acts], shape)
    memories, total = policy.initial_memory(2), torch.zeros(())
    for _ in range(2):
        features = policy.encode(torch.as_tensor(np.stack([seen.sample() for _ in range(2)])))
        memories = policy.remember(features, memories)
        outputs, values = policy.decide(features, memories)
        total = total + (outputs - 1.0).square().sum() + values.square().sum()
    total.backward()
    idle = [name for name, of in policy.named_parameters() if of.grad is None or not of.grad.abs().max() > 0]
    assert idle == []


def test_observations_that_are_no_vector_name_the_wrapper_that_helps() -> None:
    seen: Any = gym.spaces.Dict({"seen": VECTOR, "actions": gym.spaces.Discrete(3)})
    with pytest.raises(SettingError, match=r"not Dict.*FlattenObservation"):
        ActorCriticNetwork(seen, ACTIONS["box"], PolicyShape("mlp"))


def test_discrete_samples_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4])
    drawn = actions.sample(
        probabilities.log().expand(4000, 4), gym.spaces.Discrete(4), torch.Generator().manual_seed(0)
    )
    assert (drawn.bincount(minlength=4) / 4000 - probabilities).abs().max() < 0.03


def test_continuous_samples_have_mean_and_deviation() -> None:
    logits = torch.tensor([1.0, -2.0, -1.0, 0.5]).expand(4000, 4)
    drawn = actions.sample(logits, gym.spaces.Box(-9.0, 9.0, (2,)), torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), logits[0, :2], atol=0.1, rtol=0.0)
    torch.testing.assert_close(drawn.std(0), logits[0, 2:].exp(), atol=0.0, rtol=0.05)
