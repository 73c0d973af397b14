"""The pooled CNN: what it computes, on which images, and what tools see of it."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.functions import EnsembleReward
from rlhf_ray.reward.networks import make_network
from rlhf_ray.settings import RewardModelSettings

ACTIONS = gym.spaces.Discrete(4, start=2)
FORCES = gym.spaces.Box(-1, 1, (2,), np.float32)


def images(side=16, channels=3):
    return gym.spaces.Box(0, 255, (side, side, channels), np.uint8)


def settings(**changes):
    wanted = {"network": "pooled_cnn", "use_next_state": True, "convolutions": (4, 5), "ensemble_size": 2}
    return RewardModelSettings(**(wanted | changes))


def ensemble(space, **changes):
    torch.manual_seed(0)
    return RewardEnsemble(space, ACTIONS, settings(**changes))


def steps_of(space, n=6):
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
    steps = steps_of(space)
    given = (steps.observations, steps.actions - 2, steps.next_observations, steps.terminated)
    assert np.allclose(ours.predict(*given), theirs.predict(*given), atol=1e-5)


@pytest.mark.parametrize(("side", "channels"), [(16, 1), (16, 12), (84, 4)])
def test_images_of_any_size_and_any_number_of_channels_are_taken_and_tools_see_the_layers(side, channels):
    space = images(side, channels)
    reward = EnsembleReward(ensemble(space))
    steps = steps_of(space)
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
        (gym.spaces.Box(-1, 1, (5,), np.float32), ACTIONS, {}, "not uint8 images"),
        (images(), FORCES, {}, "one output per action"),
        (images(), ACTIONS, {"use_state": False, "use_next_state": False}, "needs an image"),
    ],
)
def test_what_it_cannot_take_is_refused(space, actions, changes, says):
    with pytest.raises(SettingError, match=says):
        make_network(space, actions, settings(**changes))


def test_continuous_actions_are_fine_if_they_are_no_input():
    network = make_network(images(), FORCES, settings(use_action=False))
    frames = torch.zeros(3, 2, 16, 16, 3, dtype=torch.uint8)
    rewards = network(network.encode(frames, torch.zeros(3, 1, 2), torch.zeros(3, dtype=torch.bool)))
    assert rewards.shape == (2, 3, 1)
