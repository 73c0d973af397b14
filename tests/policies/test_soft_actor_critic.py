"""SAC's networks and losses, against second computations."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, TanhTransform

from rlhf_ray.policies.soft_actor_critic import LOG_STD, SoftActorCriticNetwork
from rlhf_ray.settings import SettingError

OBSERVATIONS = gym.spaces.Box(np.array([-1, -np.inf, 2]), np.array([3, np.inf, 4]), dtype=np.float64)
BOX, DISCRETE = gym.spaces.Box(-2.0, 2.0, (2,)), gym.spaces.Discrete(3)
GAMMA, ALPHA = 0.9, 0.2


def network(actions: gym.Space[Any]) -> SoftActorCriticNetwork:
    torch.manual_seed(0)
    made = SoftActorCriticNetwork(OBSERVATIONS, actions, (7, 5), ALPHA)
    with torch.no_grad():  # targets that differ from the critics, and an actor with an opinion
        for parameter in [*made.targets.parameters(), *made.actor.parameters()]:
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def observations(n: int, seed: int = 1) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed)) + 1.0


def test_log_probabilities_are_those_of_a_tanh_of_a_gaussian_even_where_tanh_is_flat() -> None:
    net, obs = network(BOX), observations(50)
    mean, log_std = net.distribution(obs).chunk(2, -1)
    noise = torch.linspace(-2.0, 2.0, 100).reshape(50, 2)
    actions, logs = net.act(obs, noise)
    before = (mean + log_std.exp() * noise).double()
    torch.testing.assert_close(actions, torch.tanh(before).float())
    tanh = TanhTransform(cache_size=1)
    expected = Normal(mean.double(), log_std.exp().double()).log_prob(before) - tanh.log_abs_det_jacobian(
        before, tanh(before)
    )
    torch.testing.assert_close(logs, expected.sum(-1).float(), rtol=1e-4, atol=1e-4)
    with torch.no_grad():  # an actor that is certain, far out
        net.actor[-1].bias += 40.0
    assert torch.isfinite(net.act(obs)[1]).all()


def test_the_spread_stays_within_its_range() -> None:
    net = network(BOX)
    with torch.no_grad():
        net.actor[-1].weight *= 1e4
    log_std = net.distribution(observations(100)).chunk(2, -1)[1]
    assert log_std.min() >= LOG_STD[0]
    assert log_std.max() <= LOG_STD[1]
    assert log_std.std() > 1.0


def test_both_critics_and_their_targets_begin_independent_and_equal() -> None:
    torch.manual_seed(0)
    net = SoftActorCriticNetwork(OBSERVATIONS, BOX, (8,), 0.1)
    inputs = torch.randn(5, 5)
    values, targets = net.critics(inputs), net.targets(inputs)
    torch.testing.assert_close(values, targets)
    assert not torch.allclose(values[0], values[1])
    assert not any(parameter.requires_grad for parameter in net.targets.parameters())
    assert float(net.log_alpha.exp()) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("observed", "acted", "what"),
    [
        (gym.spaces.Box(0, 255, (64, 64, 3), np.uint8), BOX, "SAC takes vectors: set agent to ppo"),
        (OBSERVATIONS, gym.spaces.Box(-np.inf, np.inf, (1,)), "finite bounds"),
        (OBSERVATIONS, gym.spaces.MultiBinary(2), "Discrete actions, or Box actions"),
    ],
)
def test_other_spaces_are_refused_with_the_remedy(observed: Any, acted: Any, what: str) -> None:
    with pytest.raises(SettingError, match=what):
        SoftActorCriticNetwork(observed, acted, (8,), 0.1)


def test_target_entropies() -> None:
    assert network(BOX).auto_entropy == -2.0
    assert network(DISCRETE).auto_entropy == pytest.approx(0.5 * math.log(3))
