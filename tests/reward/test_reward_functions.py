"""Reward functions: every kind answers the same call; gradients, layers and members where there are any."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.functions import (
    CallableReward,
    EnsembleReward,
    ImitationReward,
    NotDifferentiableError,
    RewardFunction,
    TableReward,
)
from rlhf_ray.settings import RewardModelSettings

VECTOR, IMAGE = gym.spaces.Box(-1, 1, (5,), np.float32), gym.spaces.Box(0, 255, (20, 24, 4), np.uint8)
DISCRETE, CONTINUOUS = gym.spaces.Discrete(3), gym.spaces.Box(-2, 2, (2,), np.float32)
ALL = RewardModelSettings(use_next_state=True, use_done=True, ensemble_size=2)


def ensemble(observations, actions):
    torch.manual_seed(0)
    return EnsembleReward(RewardEnsemble(observations, actions, ALL))


def of_imitation(observations, actions):
    nets = pytest.importorskip("imitation.rewards.reward_nets")
    make = nets.CnnRewardNet if len(observations.shape) == 3 else nets.BasicRewardNet
    return ImitationReward(make(observations, actions, use_next_state=True, use_done=True))


KINDS = {
    "ensemble, vectors, discrete": lambda: ensemble(VECTOR, DISCRETE),
    "ensemble, vectors, continuous": lambda: ensemble(VECTOR, CONTINUOUS),
    "ensemble, stacked images": lambda: ensemble(IMAGE, DISCRETE),
    "imitation, vectors": lambda: of_imitation(VECTOR, CONTINUOUS),
    "imitation, images": lambda: of_imitation(IMAGE, DISCRETE),
    "table": lambda: TableReward(np.arange(24.0).reshape(4, 6)),
    "callable": lambda: CallableReward(lambda o, a, n, d: n[:, 0] - d, VECTOR, DISCRETE),
}


def steps_for(reward: RewardFunction, n=7, seed=0):
    rng = np.random.default_rng(seed)
    reward.observation_space.seed(seed)
    reward.action_space.seed(seed)
    before, actions, after = (
        np.stack([space.sample() for _ in range(n)])
        for space in (reward.observation_space, reward.action_space, reward.observation_space)
    )
    return Transitions(before, actions, after, rng.random(n) < 0.3, rng.random(n), np.arange(n) // 3, np.arange(n) % 3)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_answers_the_same_call(kind):
    reward = KINDS[kind]()
    steps = steps_for(reward)
    rewards = reward.of(steps)
    assert rewards.shape == (7,)
    assert rewards.dtype == np.float64
    assert np.allclose(reward.members_of(steps).mean(0), rewards)
    assert np.allclose(reward.of(steps[2:3]), rewards[2:3], atol=1e-5)
    if not reward.differentiable:
        with pytest.raises(NotDifferentiableError):
            reward.forward(*reward.tensors(steps))
        return
    inputs = [of.requires_grad_() for of in reward.tensors(steps)]
    output = reward.forward(*inputs)
    assert np.allclose(output.detach().numpy(), rewards, atol=1e-4)
    grads = torch.autograd.grad(output.sum(), inputs)
    assert all(grad.abs().sum() > 0 for grad in grads)
    assert reward.layers()
    assert not np.allclose(reward.fresh(1).of(steps), reward.fresh(2).of(steps))


def test_an_adapter_keeps_its_own_copy():
    made = RewardEnsemble(VECTOR, DISCRETE, ALL)
    reward = EnsembleReward(made)
    steps = steps_for(reward)
    before = reward.of(steps)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(1.0)
    assert np.array_equal(reward.of(steps), before)


class TypedNetwork(torch.nn.Module):
    """One step of one member; takes images as the environment gives them."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, observations, actions, next_observations, terminated):
        assert observations.dtype == torch.uint8
        return self.layer(observations.float().mean((1, 2, 3))[:, None]).squeeze(-1)


def test_an_own_network_gets_images_as_the_environment_returns_them():
    settings = RewardModelSettings(network=TypedNetwork, ensemble_size=1)
    made = RewardEnsemble(IMAGE, DISCRETE, settings)
    reward = EnsembleReward(made)
    steps = steps_for(reward)
    given = (steps.observations, steps.actions, steps.next_observations, steps.terminated)
    assert np.allclose(reward.of(steps), made.predict(*given))
