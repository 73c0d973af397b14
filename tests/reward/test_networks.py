import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlhf_ray.reward.networks import CNN, MLP, make_network
from rlhf_ray.reward.networks.mlp import ActionEncoder, StackedLinear, StackedMLP
from rlhf_ray.settings import Activation, RewardModelSettings, SettingError
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS

INPUTS = ("use_state", "use_action", "use_next_state", "use_done")
COMBINATIONS = [chosen for n in range(1, 5) for chosen in itertools.combinations(INPUTS, n)]


def _networks(observations: gym.spaces.Box, actions: gym.Space[Any], inputs: tuple[str, ...], **changes: Any) -> Any:
    switches: dict[str, Any] = {name: name in inputs for name in INPUTS}
    torch.manual_seed(0)
    return make_network(observations, actions, RewardModelSettings(hidden=(16,), **switches, **changes))


def _encoded(networks: Any, step: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of steps, each as a fragment of its own."""
    frames = torch.stack([step["use_state"], step["use_next_state"]], 1)
    encoded: dict[str, Tensor] = networks.encode(frames, step["use_action"].unsqueeze(1), step["use_done"])
    return encoded


def _rewards(networks: Any, step: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        rewards: Tensor = networks(_encoded(networks, step)).squeeze(-1)
    return rewards


def _steps(observations: gym.spaces.Box, actions: gym.Space[Any], seed: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    if observations.dtype == np.uint8:
        states = torch.as_tensor(rng.integers(0, 256, (2, 8, *observations.shape), dtype=np.uint8))
    else:
        states = torch.as_tensor(rng.normal(size=(2, 8, *observations.shape)), dtype=torch.float32)
    if isinstance(actions, gym.spaces.Discrete):
        done = torch.arange(8) + seed
        done = done % int(actions.n) + int(actions.start)
    else:
        done = torch.as_tensor(rng.uniform(-1, 1, (8, *(actions.shape or ()))), dtype=torch.float32)
    terminated = torch.full((8,), seed % 2 == 1)
    return {"use_state": states[0], "use_action": done, "use_next_state": states[1], "use_done": terminated}


@pytest.mark.parametrize("inputs", COMBINATIONS, ids="+".join)
@pytest.mark.parametrize(("observations", "actions"), [(VECTORS, FORCES), (VECTORS, CHOICES), (IMAGES, CHOICES)])
def test_the_reward_sees_exactly_the_inputs_that_are_switched_on(
    observations: gym.spaces.Box, actions: gym.Space[Any], inputs: tuple[str, ...]
) -> None:
    networks = _networks(observations, actions, inputs)
    step, other = _steps(observations, actions, 0), _steps(observations, actions, 1)
    before = _rewards(networks, step)
    assert before.shape == (3, 8)
    for name in INPUTS:
        changed = (_rewards(networks, step | {name: other[name]}) != before).all(dim=0)
        assert changed.all() == changed.any() == (name in inputs), name


@pytest.mark.parametrize("inputs", [("use_state",), ("use_state", "use_next_state", "use_done")], ids="+".join)
def test_an_mlp_can_be_asked_for_images(inputs: tuple[str, ...]) -> None:
    networks = _networks(IMAGES, CHOICES, inputs, network="mlp")
    assert isinstance(networks, MLP)
    features = _encoded(networks, _steps(IMAGES, CHOICES, 0))["features"]
    assert features.shape == (8, 1, 20 * 20 * 3 * (len(inputs) - int("use_done" in inputs)) + int("use_done" in inputs))
    assert features.min() >= 0
    assert features.max() <= 1  # bytes are scaled
    assert networks({"features": features}).shape == (3, 8, 1)


def test_auto_is_the_cnn_for_images_and_the_mlp_for_vectors() -> None:
    assert isinstance(_networks(IMAGES, CHOICES, ("use_state",)), CNN)
    assert isinstance(_networks(VECTORS, CHOICES, ("use_state",)), MLP)


def test_state_and_next_state_have_weights_of_their_own() -> None:
    networks = _networks(IMAGES, CHOICES, ("use_state", "use_next_state"))
    step = _steps(IMAGES, CHOICES, 0)
    swapped = step | {"use_state": step["use_next_state"], "use_next_state": step["use_state"]}
    assert not torch.allclose(_rewards(networks, step), _rewards(networks, swapped))


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh"])
@pytest.mark.parametrize("hidden", [(5,), (7, 3)])
@pytest.mark.parametrize("members", [1, 4])
def test_stacked_networks_compute_what_separate_ones_do(
    members: int, hidden: tuple[int, ...], activation: Activation
) -> None:
    torch.manual_seed(0)
    stacked = StackedMLP(members, 6, hidden, activation)
    inputs = torch.randn(members, 9, 6)
    rewards = stacked(inputs)
    assert rewards.shape == (members, 9)
    rewards.square().sum().backward()
    function = {"relu": torch.relu, "tanh": torch.tanh, "leaky_relu": nn.functional.leaky_relu}[activation]
    layers = [layer for layer in stacked.layers if isinstance(layer, StackedLinear)]
    for member in range(members):
        weights = [layer.weight[member].detach().T.requires_grad_() for layer in layers]
        values = inputs[member]
        for weight, layer in zip(weights, layers, strict=True):
            values = nn.functional.linear(values, weight, layer.bias[member, 0].detach())
            if layer is not layers[-1]:
                values = function(values)
        assert torch.allclose(rewards[member], values[:, 0], atol=1e-6)
        torch.autograd.backward(values.square().sum())
        for weight, layer in zip(weights, layers, strict=True):
            assert weight.grad is not None
            assert layer.weight.grad is not None
            assert torch.allclose(layer.weight.grad[member], weight.grad.T, atol=1e-5)


def test_forward_leaves_its_inputs_as_they_are() -> None:
    # Activations work in place; the inputs are used again in the next update.
    for observations in (VECTORS, IMAGES):
        networks = _networks(observations, FORCES, ("use_state", "use_action"))
        inputs = _encoded(networks, _steps(observations, FORCES, 0))
        copies = {name: tensor.clone() for name, tensor in inputs.items()}
        torch.autograd.backward(networks(inputs).sum())
        for name, copy in copies.items():
            assert torch.equal(inputs[name], copy)


def test_discrete_actions_are_one_hot_from_wherever_they_start() -> None:
    encoder = ActionEncoder(gym.spaces.Discrete(3, start=-1))
    assert encoder(torch.tensor([-1, 1, 0])).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert encoder.size == 3


def test_bounded_actions_are_scaled_to_one_and_unbounded_ones_are_not() -> None:
    low, high = np.array([0.0, -np.inf, -4.0], np.float32), np.array([10.0, np.inf, -2.0], np.float32)
    encoder = ActionEncoder(gym.spaces.Box(low, high))
    actions = torch.tensor([[0.0, 123.0, -4.0], [10.0, -5.0, -2.0], [5.0, 0.0, -3.0]])
    assert torch.allclose(encoder(actions), torch.tensor([[-1.0, 123.0, -1.0], [1.0, -5.0, 1.0], [0.0, 0.0, 0.0]]))


def test_actions_of_higher_rank_are_flattened() -> None:
    actions = gym.spaces.Box(-1, 1, (2, 3), np.float32)
    networks = _networks(VECTORS, actions, ("use_action",))
    assert _encoded(networks, _steps(VECTORS, actions, 0))["features"].shape == (8, 1, 6)


def test_a_cnn_for_vectors_is_refused_with_the_remedy() -> None:
    with pytest.raises(SettingError, match=r"reward_model\.network is 'cnn'.*use 'mlp' or 'auto'"):
        _networks(VECTORS, CHOICES, ("use_state",), network="cnn")


@pytest.mark.parametrize("size", [(19, 64), (64, 19)])
def test_images_too_small_for_the_convolutions_are_refused_with_the_remedy(size: tuple[int, int]) -> None:
    small = gym.spaces.Box(0, 255, (*size, 3), np.uint8)
    with pytest.raises(SettingError, match=rf"images of {size[0]}x{size[1]} pixels are too small.*use 'mlp'"):
        _networks(small, CHOICES, ("use_state",))
    _networks(small, CHOICES, ("use_state",), network="mlp")
    _networks(small, CHOICES, ("use_action",))  # no convolutions where no image is seen


def test_actions_of_other_spaces_are_refused() -> None:
    with pytest.raises(SettingError, match="support Discrete, MultiDiscrete, MultiBinary and Box"):
        _networks(VECTORS, gym.spaces.Text(3), ("use_action",))


def test_each_component_of_a_multi_discrete_action_is_one_hot() -> None:
    encoder = ActionEncoder(gym.spaces.MultiDiscrete([2, 3], start=[0, 5]))
    assert encoder(torch.tensor([[1, 5], [0, 7]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    assert encoder(torch.zeros(4, 6, 2, dtype=torch.int64) + torch.tensor([0, 6])).shape == (4, 6, 5)
    grid = ActionEncoder(gym.spaces.MultiDiscrete([[2, 3], [2, 2]]))
    assert grid(torch.tensor([[[1, 2], [0, 1]]])).tolist() == [[0, 1, 0, 0, 1, 1, 0, 0, 1]]
    assert ActionEncoder(gym.spaces.MultiBinary(3))(torch.tensor([[1, 0, 1]])).tolist() == [[1.0, 0.0, 1.0]]
