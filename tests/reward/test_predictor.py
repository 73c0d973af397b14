"""The predictor gives what the ensemble gives."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.predictor import Predictor
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, some_fragments


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh"])
@pytest.mark.parametrize(
    ("observations", "actions", "settings"),
    [
        (VECTORS, FORCES, {}),
        (VECTORS, CHOICES, {"use_next_state": True, "use_done": True}),
        (VECTORS, gym.spaces.Discrete(4, start=2), {"use_state": False}),
        (VECTORS, FORCES, {"use_state": False, "use_action": False, "use_done": True, "hidden": (8,)}),
        (VECTORS, gym.spaces.Box(-np.inf, 1.0, (2,)), {"ensemble_size": 1, "hidden": (8,) * 11}),
        (IMAGES, CHOICES, {"network": "mlp"}),
        (IMAGES, CHOICES, {"network": "cnn", "use_done": True}),
        (IMAGES, CHOICES, {"network": "cnn", "use_state": False}),
    ],
)
def test_it_gives_what_the_ensemble_gives(
    observations: gym.spaces.Box, actions: gym.Space[Any], settings: dict[str, Any], activation: Any
) -> None:
    torch.manual_seed(0)
    ensemble = RewardEnsemble(observations, actions, RewardModelSettings(activation=activation, **settings))
    ensemble.reward_mean.normal_()
    ensemble.reward_std.uniform_(0.5, 2.0)
    clips = some_fragments(4, observations=observations, actions=actions)
    steps = (clips.observations[:, 0], clips.actions[:, 0], clips.observations[:, 1], clips.terminated)
    predictor = Predictor(ensemble)
    for n in (1, 4):
        some = [array[:n] for array in steps]
        rewards = predictor.predict(*some)
        assert rewards.shape == (n,)
        assert rewards.dtype == np.float32
        np.testing.assert_allclose(rewards, ensemble.predict(*some), rtol=1e-4, atol=1e-5)


def test_it_is_of_one_version() -> None:
    ensemble = RewardEnsemble(VECTORS, FORCES, RewardModelSettings())
    clips = some_fragments(1)
    steps = (clips.observations[:, 0], clips.actions[:, 0], clips.observations[:, 1], clips.terminated)
    predictor = Predictor(ensemble)
    before = predictor.predict(*steps)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.add_(1.0)
    assert np.array_equal(predictor.predict(*steps), before)
