import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.policies.encoders import image_encoder
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.functions import EnsembleReward
from rlhf_ray.reward.networks import CNN, MLP, NETWORKS, make_network
from rlhf_ray.reward.networks.mlp import ActionEncoder, StackedBatchNorm, StackedLinear, StackedMLP
from rlhf_ray.settings import RewardModelSettings
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
def test_the_reward_sees_exactly_the_inputs_that_are_switched_on(observations, actions, inputs):
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
def test_stacked_networks_compute_what_separate_ones_do(members, hidden, activation):
    torch.manual_seed(0)
    stacked = StackedMLP(RewardModelSettings(ensemble_size=members, hidden=hidden, activation=activation), 6)
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


LOW, HIGH = np.array([0.0, -np.inf, -4.0], np.float32), np.array([10.0, np.inf, -2.0], np.float32)


@pytest.mark.parametrize(
    ("space", "actions", "encoded"),
    [
        (gym.spaces.Discrete(3, start=-1), [-1, 1, 0], [[1, 0, 0], [0, 0, 1], [0, 1, 0]]),
        (gym.spaces.MultiDiscrete([2, 3], start=[0, 5]), [[1, 5], [0, 7]], [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]),
        (gym.spaces.MultiDiscrete([[2, 3], [2, 2]]), [[[1, 2], [0, 1]]], [[0, 1, 0, 0, 1, 1, 0, 0, 1]]),
        (gym.spaces.MultiBinary(3), [[1, 0, 1]], [[1, 0, 1]]),
        (  # scaled to one where bounded
            gym.spaces.Box(LOW, HIGH),
            [[0.0, 123.0, -4.0], [10.0, -5.0, -2.0], [5.0, 0.0, -3.0]],
            [[-1, 123, -1], [1, -5, 1], [0, 0, 0]],
        ),
    ],
)
def test_actions_are_one_hot_from_wherever_they_start_or_scaled_to_their_bounds(space, actions, encoded):
    encoder = ActionEncoder(space)
    torch.testing.assert_close(encoder(torch.tensor(actions)), torch.tensor(encoded).float())
    assert encoder.size == len(encoded[0])
    stacked = torch.tensor(actions).expand(4, *torch.tensor(actions).shape)
    assert encoder(stacked).shape == (4, *torch.tensor(encoded).shape)


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


FRAMES = gym.spaces.Box(0, 255, (44, 44, 2), np.uint8)
FOR_IMAGES = ("cnn", "pooled_cnn", "small_cnn", "paper_cnn", "nature", "impala")
PER_ACTION = ("pooled_cnn", "small_cnn", "per_action")
SWITCHES = gym.spaces.MultiDiscrete([2, 3])


def _made(name: str, observations: gym.spaces.Box, actions: gym.Space[Any], **settings: Any) -> Any:
    torch.manual_seed(0)
    return make_network(observations, actions, RewardModelSettings(network=name, **settings)).eval()


def _inputs_of(network: Any, observations: gym.spaces.Box, actions: gym.Space[Any], n: int = 4) -> Any:
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
def test_members_differ_and_learn_and_a_fragments_reward_is_its_own(name, regularised, observations, actions):
    settings: dict[str, Any] = {"dropout": 0.3, "batch_norm": True} if regularised else {}
    if (name in FOR_IMAGES and observations is VECTORS) or (name in PER_ACTION and actions is FORCES):
        with pytest.raises(SettingError, match=rf"reward_model\.network is '{name}'"):
            _made(name, observations, actions)
        return
    network = _made(name, observations, actions, convolutions=(3, 4), hidden=(8, 8), use_next_state=True, **settings)
    inputs, _, _ = _inputs_of(network, observations, actions)
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
    inputs, seen, _ = _inputs_of(network, frames, CHOICES, n=1)
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
    inputs, seen, _ = _inputs_of(network, FRAMES, CHOICES, n=1)
    features = torch.cat([encoder[0](seen[0, :-1].permute(0, 3, 1, 2).float()), inputs["features"][0]], 1)
    first, last = network.head.layers[0], network.head.layers[-1]
    values = F.relu(features @ first.weight[1] + first.bias[1]) @ last.weight[1] + last.bias[1]
    torch.testing.assert_close(network(inputs)[1, 0], values[:, 0], rtol=1e-4, atol=1e-4)


def test_one_output_per_action_is_selected_by_each_component() -> None:
    network = _made("per_action", VECTORS, SWITCHES, hidden=(6,), normalize_inputs="none")
    inputs, _, _ = _inputs_of(network, VECTORS, SWITCHES)
    outputs = network.head(inputs["features"].flatten(0, 1).expand(3, 12, 3)).view(3, 4, 3, 5)
    chosen = inputs["selects"].nonzero()[:, 2].view(4, 3, 2)
    for member, n, t in np.ndindex(3, 4, 3):
        expected = outputs[member, n, t, chosen[n, t]].sum()
        torch.testing.assert_close(network(inputs)[member, n, t], expected)
    with pytest.raises(SettingError, match="use 'mlp', or discrete actions"):
        _made("per_action", VECTORS, FORCES)


@pytest.mark.parametrize("observations", [VECTORS, FRAMES], ids=["vectors", "images"])
def test_a_shaped_reward_adds_the_difference_of_a_potential_that_ends_with_the_episode(observations):
    network = _made("shaped", observations, CHOICES, shaping_discount=0.9)
    inputs, seen, ended = _inputs_of(network, observations, CHOICES)

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


LATER = gym.spaces.Discrete(4, start=2)
PUSHES = gym.spaces.Box(-1, 1, (2,), np.float32)


def images(side=16, channels=3):
    return gym.spaces.Box(0, 255, (side, side, channels), np.uint8)


def settings(**changes):
    wanted = {"network": "pooled_cnn", "use_next_state": True, "convolutions": (4, 5), "ensemble_size": 2}
    return RewardModelSettings(**(wanted | changes))


def ensemble(space, **changes):
    torch.manual_seed(0)
    return RewardEnsemble(space, LATER, settings(**changes))


def pictures_of(space, n=6):
    rng = np.random.default_rng(0)
    states = rng.integers(0, 256, (2, n, *space.shape), dtype=np.uint8)
    return Transitions(
        states[0], rng.integers(2, 6, n), states[1], np.arange(n) % 2 == 1, np.zeros(n), np.arange(n), np.zeros(n, int)
    )


def test_it_computes_what_imitations_network_does():
    nets = pytest.importorskip("imitation.rewards.reward_nets")
    space, from_zero = images(), gym.spaces.Discrete(4)
    theirs = nets.CnnRewardNet(space, from_zero, use_next_state=True, use_done=True, hid_channels=(4, 5))
    ours = RewardEnsemble(space, from_zero, settings(use_done=True, ensemble_size=1, activation="relu"))
    weights = [of for of in theirs.parameters() if of.dim()]
    for own, of in zip(ours.networks.parameters(), weights, strict=True):
        assert own.shape == of.shape
        own.data.copy_(of)
    steps = pictures_of(space)
    given = (steps.observations, steps.actions - 2, steps.next_observations, steps.terminated)
    assert np.allclose(ours.predict(*given), theirs.predict(*given), atol=1e-5)


@pytest.mark.parametrize(("side", "channels"), [(16, 1), (16, 12), (84, 4)])
def test_images_of_any_size_and_any_number_of_channels_are_taken_and_tools_see_the_layers(side, channels):
    space = images(side, channels)
    reward = EnsembleReward(ensemble(space))
    steps = pictures_of(space)
    inputs = [of.requires_grad_() for of in reward.tensors(steps)]
    seen = {}
    layers = {name: of for name, of in reward.layers().items() if isinstance(of, nn.Conv2d)}
    assert [name.rpartition(".")[2] for name in layers] == ["conv1", "conv2"] * 2
    hooks = [
        of.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out})) for name, of in layers.items()
    ]
    output = reward.forward(*inputs)
    for hook in hooks:
        hook.remove()
    assert np.allclose(output.detach().numpy(), reward.of(steps), atol=1e-5)
    grads = torch.autograd.grad(output.sum(), [*inputs[:3], *seen.values()])
    assert all(grad.abs().sum() > 0 for grad in grads)
    assert all(of.shape[2:] == (side, side) for of in seen.values())
    assert not np.allclose(reward.fresh(1).of(steps), reward.fresh(2).of(steps))


@pytest.mark.parametrize(
    ("space", "actions", "changes", "says"),
    [
        (gym.spaces.Box(-1, 1, (5,), np.float32), LATER, {}, "not uint8 images"),
        (images(), PUSHES, {}, "one output per action"),
        (images(), LATER, {"use_state": False, "use_next_state": False}, "needs an image"),
    ],
)
def test_what_it_cannot_take_is_refused(space, actions, changes, says):
    with pytest.raises(SettingError, match=says):
        make_network(space, actions, settings(**changes))


def test_continuous_actions_are_fine_if_they_are_no_input():
    network = make_network(images(), PUSHES, settings(use_action=False))
    frames = torch.zeros(3, 2, 16, 16, 3, dtype=torch.uint8)
    rewards = network(network.encode(frames, torch.zeros(3, 1, 2), torch.zeros(3, dtype=torch.bool)))
    assert rewards.shape == (2, 3, 1)
