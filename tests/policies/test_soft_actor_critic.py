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

from rlhf_ray.policies.soft_actor_critic import LOG_STD, SoftActorCriticNetwork, actor_loss, critic_loss
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


def one_critic(of: Any, which: int, inputs: Tensor) -> Tensor:
    """Critic ``which``, layer by layer."""
    for i, (weight, bias) in enumerate(zip(of.weights, of.biases, strict=True)):
        inputs = inputs @ weight[which] + bias[which]
        inputs = inputs.clamp_min(0.0) if i < len(of.weights) - 1 else inputs
    return inputs


def scaled(of: Tensor) -> Tensor:
    return torch.stack([(of[:, 0] - 1.0) / 2.0, of[:, 1], of[:, 2] - 3.0], 1)


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


def test_the_target_of_a_continuous_step_is_the_lower_targets_soft_value() -> None:
    net, obs, after = network(BOX), observations(6), observations(6, seed=2)
    actions, rewards = torch.rand(6, 2) * 2 - 1, torch.arange(6.0)
    terminated = torch.tensor([False, True, False, False, True, False])
    torch.manual_seed(5)
    loss, mean = critic_loss(net, obs, actions, rewards, after, terminated, GAMMA)
    torch.manual_seed(5)
    acted, logs = net.act(after, torch.randn(6, 2))
    of_next = torch.cat([scaled(after), acted], -1)
    lower = torch.minimum(one_critic(net.targets, 0, of_next), one_critic(net.targets, 1, of_next)).squeeze(-1)
    target = rewards + GAMMA * torch.where(terminated, 0.0, lower - ALPHA * logs)
    given = torch.cat([scaled(obs), actions], -1)
    values = torch.stack([one_critic(net.critics, i, given).squeeze(-1) for i in (0, 1)])
    torch.testing.assert_close(loss, sum(((each - target) ** 2).mean() for each in values))
    torch.testing.assert_close(mean, values.mean())
    loss.backward()
    assert all(parameter.grad is None for parameter in [*net.actor.parameters(), *net.targets.parameters()])


def test_the_target_of_a_discrete_step_is_an_exact_expectation() -> None:
    net, obs, after = network(DISCRETE), observations(4), observations(4, seed=2)
    actions, rewards = torch.tensor([0, 2, 1, 2]), torch.tensor([1.0, -1.0, 0.5, 0.0])
    terminated = torch.tensor([False, False, True, False])
    loss, _ = critic_loss(net, obs, actions, rewards, after, terminated, GAMMA)
    chances = net.distribution(after).softmax(-1).detach()
    errors = []
    for row in range(4):
        soft = 0.0
        for action in range(3):
            lower = min(float(one_critic(net.targets, i, scaled(after))[row, action]) for i in (0, 1))
            chance = float(chances[row, action])
            soft += chance * (lower - ALPHA * math.log(chance))
        target = float(rewards[row]) + GAMMA * (0.0 if terminated[row] else soft)
        for i in (0, 1):
            errors.append((float(one_critic(net.critics, i, scaled(obs))[row, actions[row]]) - target) ** 2)
    assert float(loss) == pytest.approx(sum(errors) / 4, rel=1e-4)


def test_the_discrete_actors_optimum_is_the_softmax_of_the_lower_values() -> None:
    net, obs = network(DISCRETE), observations(1)
    net.critics.requires_grad_(False)
    lower = torch.minimum(*(one_critic(net.critics, i, scaled(obs)) for i in (0, 1)))
    best = (lower / ALPHA).softmax(-1)
    optimizer = torch.optim.Adam(net.actor.parameters(), lr=0.02)
    for _ in range(400):
        optimizer.zero_grad()
        loss, entropy = actor_loss(net, obs)
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(net.distribution(obs).softmax(-1), best, atol=5e-3, rtol=0.0)
    assert float(entropy) == pytest.approx(float(-(best * best.log()).sum()), abs=0.02)
    # The least possible loss is minus α times the log of the partition sum.
    assert float(loss) == pytest.approx(float(-ALPHA * (lower / ALPHA).logsumexp(-1)), abs=1e-3)


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
