"""The pace of updates: by the policy's divergence in closed form, by hand, and beside Adam of another learning rate."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.optim import FlatAdam, FlatParameters, next_pace
from rlhf_ray.policies.network import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.ppo_update import PPOLoss, PPORows, PPOUpdate

FOUR = gym.spaces.Discrete(4)
LOSS = PPOLoss(clip=0.2, value_coefficient=0.5, entropy_coefficient=0.01)


def update() -> tuple[PPOUpdate, PPORows]:
    """A policy, and each action once in each of eight states, as a policy draws that finds all equally good."""
    torch.manual_seed(0)
    network = ActorCriticNetwork(gym.spaces.Box(-1, 1, (3,), np.float32), FOUR, PolicyShape(hidden=(8, 8)))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    of = PPOUpdate(network, FOUR)
    states = torch.rand(8, 3).repeat_interleave(4, 0)
    column = torch.zeros(32)
    return of, PPORows(
        of.inputs_of(states), torch.arange(32) % 4, column + math.log(0.25), torch.randn(32), column, column
    )


def test_the_divergence_is_that_of_the_distributions() -> None:
    of, rows = update()
    _, parts = LOSS(of.network, FOUR, rows)
    now = torch.distributions.Categorical(logits=of.network.distribution(rows.inputs[::4]))
    before = torch.distributions.Categorical(logits=torch.zeros(8, 4))
    torch.testing.assert_close(parts["policy_kl"], torch.distributions.kl_divergence(before, now).mean())


@pytest.mark.parametrize(
    ("divergence", "pace"), [(0.041, 0.4 / 1.5), (0.039, 0.4), (0.011, 0.4), (0.009, 0.6), (math.nan, 0.4)]
)
def test_an_update_that_went_too_far_shortens_the_next(divergence: float, pace: float) -> None:
    assert next_pace(0.4, divergence, 0.02) == pytest.approx(pace)


def test_the_learning_rate_is_the_most() -> None:
    assert next_pace(0.9, 0.0, 0.02) == 1.0
    assert next_pace(1.0, 1e9, math.inf) == 1.0


def test_a_pace_is_a_smaller_learning_rate_and_is_kept_with_the_optimiser() -> None:
    (ours, rows), (theirs, _) = update(), update()
    optimizer, index = FlatAdam(ours.flat, lr=0.03), torch.arange(32).view(2, 16)
    paces = [float(ours.take_steps(optimizer, rows, LOSS, index, kl_target=0.001)["pace"])]
    paces.append(float(ours.take_steps(optimizer, rows, LOSS, index, kl_target=0.001)["pace"]))
    assert paces == pytest.approx([1.0, 1 / 1.5])
    assert optimizer.pace == pytest.approx(1 / 1.5**2)
    assert optimizer.param_groups[0]["lr"] == 0.03
    adam = FlatAdam(theirs.flat, lr=0.03)
    theirs.take_steps(adam, rows, LOSS, index)
    adam.param_groups[0]["lr"] = 0.03 / 1.5
    theirs.take_steps(adam, rows, LOSS, index)
    torch.testing.assert_close(ours.flat.values, theirs.flat.values)
    adam.load_state_dict(optimizer.state_dict())
    assert adam.pace == optimizer.pace
    optimizer.restart()
    assert optimizer.pace == 1.0


def test_a_restarted_optimiser_steps_as_a_new_one_does() -> None:
    ends = []
    for restarts in (True, False):
        flat = FlatParameters([torch.nn.Parameter(torch.ones(5))])
        optimizer = FlatAdam(flat, lr=0.1)
        if restarts:
            flat.gradient.copy_(torch.arange(5.0))
            optimizer.take_step()
            optimizer.restart()
            flat.values.fill_(1.0)
        for _ in range(3):
            flat.gradient.copy_(flat.values)
            optimizer.take_step()
        ends.append(flat.values.clone())
    assert torch.equal(*ends)


def test_a_state_of_torch_s_own_adam_is_of_full_pace() -> None:
    flat = FlatParameters([torch.nn.Parameter(torch.ones(5))])
    optimizer = FlatAdam(flat, lr=0.1)
    optimizer.pace = 0.5
    optimizer.load_state_dict(torch.optim.Adam(flat.parameters, lr=0.1).state_dict())
    assert optimizer.pace == 1.0
