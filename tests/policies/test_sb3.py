"""Policies of Stable-Baselines3 act the same as policies of ours, and their files run nothing."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.policies.network import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.sb3 import is_sb3, sb3_weights
from rlhf_ray.rllib.starting import check_policy, policy_weights
from rlhf_ray.settings import SettingError

sb3 = pytest.importorskip("stable_baselines3", reason="the extra 'imitation'")

IMAGE = gym.spaces.Box(0, 255, (36, 40, 3), np.uint8)
HALF = gym.spaces.Box(np.array([-1, -np.inf, 2], np.float32), np.array([5, np.inf, 4], np.float32))
SPACES: dict[str, tuple[str, gym.spaces.Box, gym.Space[Any]]] = {
    "choices": ("MlpPolicy", HALF, gym.spaces.Discrete(4, start=2)),
    "bounded": ("MlpPolicy", HALF, gym.spaces.Box(np.array([-2, 0], np.float32), np.array([2, 5], np.float32))),
    "images": ("CnnPolicy", IMAGE, gym.spaces.Discrete(3)),
}


class Still(gym.Env[Any, Any]):
    """An environment of given spaces in which nothing happens."""

    def __init__(self, observations: gym.Space[Any], actions: gym.Space[Any]):
        self.observation_space, self.action_space = observations, actions

    def reset(self, **_: Any) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


def saved(path: Path, kind: str, observations: Any, actions: Any, algorithm: Any = None, **options: Any) -> Any:
    actions = gym.spaces.Discrete(int(actions.n)) if hasattr(actions, "n") else actions  # SB3 has no start
    model = (algorithm or sb3.PPO)(kind, Still(observations, actions), seed=0, device="cpu", **options)
    with torch.no_grad():  # biases start at 0, which would hide an error
        for each in model.policy.parameters():
            each.add_(0.05 * torch.randn(each.shape))
    model.save(path)
    return model


@pytest.mark.parametrize("kind", SPACES)
def test_it_acts_and_values_the_same(kind: str, tmp_path: Path) -> None:
    policy, observations, actions = SPACES[kind]
    model = saved(tmp_path / "model.zip", policy, observations, actions)
    weights = policy_weights(tmp_path / "model.zip", observations, actions)
    network = ActorCriticNetwork(observations, actions, PolicyShape())
    check_policy(weights, network.state_dict(), "model.zip", "ppo")
    network.load_state_dict({name: torch.as_tensor(value) for name, value in weights.items()})
    observations.seed(0)
    seen = np.stack([observations.sample() for _ in range(6)])
    with torch.no_grad():
        outputs, values = network.decide(network.encode(torch.as_tensor(seen)), network.initial_memory(6))
        tensor = model.policy.obs_to_tensor(seen if kind != "images" else seen.transpose(0, 3, 1, 2))[0]
        distribution = model.policy.get_distribution(tensor).distribution
        wanted = model.policy.predict_values(tensor).squeeze(-1)
    np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-4)
    if isinstance(actions, gym.spaces.Discrete):
        np.testing.assert_allclose(outputs.softmax(-1), distribution.probs, rtol=1e-3, atol=1e-5)
        return
    assert isinstance(actions, gym.spaces.Box)
    middle, half = (actions.low + actions.high) / 2, (actions.high - actions.low) / 2
    mean, log_std = outputs.numpy().reshape(6, 2, 2).transpose(1, 0, 2)
    np.testing.assert_allclose(mean * half + middle, distribution.mean, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.exp(log_std) * half, distribution.stddev, rtol=1e-4)


def test_what_does_not_fit_is_said_in_one_line(tmp_path: Path) -> None:
    _, observations, actions = SPACES["bounded"]
    network = ActorCriticNetwork(observations, actions, PolicyShape()).state_dict()

    def refused(match: str, **options: Any) -> None:
        saved(tmp_path / "model.zip", "MlpPolicy", observations, actions, **options)
        with pytest.raises(SettingError, match=match) as raised:
            check_policy(sb3_weights(tmp_path / "model.zip", observations, actions), network, "model.zip", "ppo")
        assert "\n" not in str(raised.value)

    refused("activation_fn=ReLU", policy_kwargs={"activation_fn": torch.nn.ReLU})
    refused("use_sde=True", use_sde=True)
    refused(r"its actor.0.weight has the shape \(32, 3\)", policy_kwargs={"net_arch": [32, 32]})
    refused("has the weight actor.latent_pi.0.weight", algorithm=sb3.SAC, buffer_size=10)
    saved(tmp_path / "model.zip", "MlpPolicy", observations, actions)
    with pytest.raises(SettingError, match="takes 3 numbers; the environment's observations have 5"):
        sb3_weights(tmp_path / "model.zip", gym.spaces.Box(-1, 1, (5,)), actions)
    with pytest.raises(SettingError, match="does not act in the environment's action space"):
        sb3_weights(tmp_path / "model.zip", observations, gym.spaces.Box(-1, 1, (3,)))


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, *call: Any):
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


def test_a_malicious_file_runs_nothing(tmp_path: Path) -> None:
    proof, weights = tmp_path / "proof", io.BytesIO()
    torch.save({"log_std": Call(os.mkdir, str(proof))}, weights)
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("data", "{}")
        archive.writestr("policy.pth", weights.getvalue())
    assert is_sb3(tmp_path / "model.zip")
    with pytest.raises(SettingError, match=r"can't be read as a model of Stable-Baselines3"):
        sb3_weights(tmp_path / "model.zip", HALF, gym.spaces.Discrete(2))
    assert not proof.exists()
    with pytest.raises(SettingError, match="nor a model of Stable-Baselines3"):
        policy_weights(tmp_path, HALF, gym.spaces.Discrete(2))
