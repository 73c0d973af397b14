"""Each built-in network against a second computation, and what all of them have in common."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from rlhf_ray.policies.encoders import image_encoder
from rlhf_ray.reward.networks import NETWORKS, make_network
from rlhf_ray.reward.networks.mlp import StackedBatchNorm
from rlhf_ray.settings import RewardModelSettings, SettingError
from tests.made_up import CHOICES, FORCES, VECTORS

FRAMES = gym.spaces.Box(0, 255, (44, 44, 2), np.uint8)
FOR_IMAGES = ("cnn", "pooled_cnn", "small_cnn", "paper_cnn", "nature", "impala")
PER_ACTION = ("pooled_cnn", "small_cnn", "per_action")
SWITCHES = gym.spaces.MultiDiscrete([2, 3])


def _made(name: str, observations: gym.spaces.Box, actions: gym.Space[Any], **settings: Any) -> Any:
    torch.manual_seed(0)
    return make_network(observations, actions, RewardModelSettings(network=name, **settings)).eval()


def _encoded(network: Any, observations: gym.spaces.Box, actions: gym.Space[Any], n: int = 4) -> Any:
    rng = np.random.default_rng(0)
    low, high = (0, 256) if observations.dtype == np.uint8 else (-2, 3)
    seen = rng.integers(low, high, (n, 4, *observations.shape)).astype(observations.dtype)
    actions.seed(0)
    acted = np.stack([[actions.sample() for _ in range(3)] for _ in range(n)])
    ended = torch.arange(n) % 2 == 0
    return network.encode(torch.as_tensor(seen), torch.as_tensor(acted), ended), torch.as_tensor(seen), ended


@pytest.mark.parametrize("name", sorted(set(NETWORKS.parts) - {"large_cnn", "very_large_cnn"}))  # slow, and pooled_cnn
@pytest.mark.parametrize("regularised", [False, True])
@pytest.mark.parametrize(
    ("observations", "actions"), [(VECTORS, SWITCHES), (FRAMES, CHOICES), (VECTORS, FORCES), (FRAMES, SWITCHES)]
)
def test_members_differ_and_learn_and_a_fragments_reward_is_its_own(
    name: str, regularised: bool, observations: gym.spaces.Box, actions: gym.Space[Any]
) -> None:
    settings: dict[str, Any] = {"dropout": 0.3, "batch_norm": True} if regularised else {}
    if (name in FOR_IMAGES and observations is VECTORS) or (name in PER_ACTION and actions is FORCES):
        with pytest.raises(SettingError, match=rf"reward_model\.network is '{name}'"):
            _made(name, observations, actions)
        return
    network = _made(name, observations, actions, convolutions=(3, 4), hidden=(8, 8), use_next_state=True, **settings)
    inputs, _, _ = _encoded(network, observations, actions)
    rewards = network(inputs)
    assert rewards.shape == (3, 4, 3)
    assert rewards.dtype == torch.float32
    assert not torch.allclose(rewards[0], rewards[1])
    alone = network({key: of[1:2] for key, of in inputs.items()})
    torch.testing.assert_close(alone[:, 0], rewards[:, 1], rtol=1e-4, atol=1e-5)
    torch.autograd.backward(network.train()(inputs).square().sum())
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in network.parameters())


def test_the_papers_network_is_the_papers() -> None:
    frames = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    network = _made("paper_cnn", frames, CHOICES, use_action=False, hidden=(5,), activation="tanh")
    inputs, seen, _ = _encoded(network, frames, CHOICES, n=1)
    assert [tuple(p.shape) for p in network.convolutions[0].parameters() if p.dim() == 4] == [
        (16, 4, 7, 7),
        (16, 16, 5, 5),
        (16, 16, 3, 3),
        (16, 16, 3, 3),
    ]
    rewards = network(inputs)
    first, last = network.head.layers[0], network.head.layers[-1]
    for member, layers in enumerate(network.convolutions):
        values = seen[0, :-1].permute(0, 3, 1, 2) / 255
        for layer, stride in zip([of for of in layers if isinstance(of, nn.Conv2d)], (3, 2, 1, 1), strict=True):
            values = F.leaky_relu(F.conv2d(values, layer.weight, layer.bias, stride), 0.01)
        values = F.leaky_relu(values.flatten(1) @ first.weight[member] + first.bias[member], 0.01)
        assert values.shape == (3, 64)
        expected = values @ last.weight[member] + last.bias[member]
        torch.testing.assert_close(rewards[member, 0], expected[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "units"), [("nature", 512), ("impala", 256)])
def test_published_networks_have_the_policys_convolutions(name: str, units: int) -> None:
    network = _made(name, FRAMES, CHOICES)
    encoder, size = image_encoder(name, FRAMES.shape, None)
    assert size == units == network.head.layers[0].weight.shape[2]
    own, policys = (module.state_dict() for module in (network.convolutions[1], encoder[0]))
    assert {key: of.shape for key, of in own.items()} == {key: of.shape for key, of in policys.items()}
    encoder[0].load_state_dict(own)
    inputs, seen, _ = _encoded(network, FRAMES, CHOICES, n=1)
    features = torch.cat([encoder[0](seen[0, :-1].permute(0, 3, 1, 2).float()), inputs["features"][0]], 1)
    first, last = network.head.layers[0], network.head.layers[-1]
    values = F.relu(features @ first.weight[1] + first.bias[1]) @ last.weight[1] + last.bias[1]
    torch.testing.assert_close(network(inputs)[1, 0], values[:, 0], rtol=1e-4, atol=1e-4)


def test_one_output_per_action_is_selected_by_each_component() -> None:
    network = _made("per_action", VECTORS, SWITCHES, hidden=(6,), normalize_inputs="none")
    inputs, _, _ = _encoded(network, VECTORS, SWITCHES)
    outputs = network.head(inputs["features"].flatten(0, 1).expand(3, 12, 3)).view(3, 4, 3, 5)
    chosen = inputs["selects"].nonzero()[:, 2].view(4, 3, 2)
    for member, n, t in np.ndindex(3, 4, 3):
        expected = outputs[member, n, t, chosen[n, t]].sum()
        torch.testing.assert_close(network(inputs)[member, n, t], expected)
    with pytest.raises(SettingError, match="use 'mlp', or discrete actions"):
        _made("per_action", VECTORS, FORCES)


@pytest.mark.parametrize("observations", [VECTORS, FRAMES], ids=["vectors", "images"])
def test_a_shaped_reward_adds_the_difference_of_a_potential_that_ends_with_the_episode(
    observations: gym.spaces.Box,
) -> None:
    network = _made("shaped", observations, CHOICES, shaping_discount=0.9)
    inputs, seen, ended = _encoded(network, observations, CHOICES)

    def potential(states: Tensor) -> Tensor:
        frames = states.flatten(0, 1)[:, None].expand(-1, 2, *observations.shape)
        actions, none = torch.zeros(len(frames), 1, dtype=torch.int64), torch.zeros(len(frames), dtype=torch.bool)
        values: Tensor = network.potential(network.potential.encode(frames, actions, none))
        return values.view(3, *states.shape[:2])

    base = network.base({key.removeprefix("base."): of for key, of in inputs.items() if key.startswith("base.")})
    after = potential(seen[:, 1:])
    after[:, :, -1] *= (~ended).float()
    torch.testing.assert_close(network(inputs), base + 0.9 * after - potential(seen[:, :-1]), rtol=1e-4, atol=1e-5)


def test_batch_norm_of_members_is_that_of_each_alone() -> None:
    norm = StackedBatchNorm(3, 4)
    inputs = torch.randn(3, 20, 4) * 5 + 2
    alone = [nn.BatchNorm1d(4) for _ in range(3)]
    expected = torch.stack([of(inputs[member]) for member, of in enumerate(alone)])
    torch.testing.assert_close(norm(inputs), expected)
    norm.eval()
    assert not torch.allclose(norm(inputs), expected)
    torch.testing.assert_close(norm(inputs), torch.stack([of.eval()(inputs[i]) for i, of in enumerate(alone)]))
