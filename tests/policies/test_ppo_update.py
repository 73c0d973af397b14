"""PPO's update against torch's autograd and Adam, and against a plain loop for the advantages."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray import optim
from rlhf_ray.optim import FlatAdam, shuffled
from rlhf_ray.policies import ppo_update
from rlhf_ray.policies.actions import log_probability, sample
from rlhf_ray.policies.network import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.ppo_update import PPOLoss, PPORows, PPOUpdate, StackedMLPs, advantages, value_weight

BOX = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS: list[gym.Space[Any]] = [
    gym.spaces.Box(-1, 1, (2,), np.float32),
    gym.spaces.Discrete(4),
    gym.spaces.MultiDiscrete([3, 2]),
]
LOSS = PPOLoss(clip=0.2, value_coefficient=0.7, entropy_coefficient=0.02)


def policy(space: gym.Space[Any], seed: int = 0) -> PPOUpdate:
    torch.manual_seed(seed)
    network = ActorCriticNetwork(BOX, space, PolicyShape(hidden=(8, 8)))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return PPOUpdate(network, space)


def rows_of(update: PPOUpdate, count: int = 64) -> PPORows:
    """Steps of an older policy, so that some ratios are clipped, on either side."""
    generator = torch.Generator().manual_seed(1)
    observations = torch.randn(count, 3, generator=generator)
    inputs = update.inputs_of(observations)
    outputs, values = update.network.heads(inputs)
    outputs, values = outputs.detach(), values.detach()
    actions = sample(outputs, update.space, generator)
    before = log_probability(outputs, actions, update.space) + 0.4 * torch.randn(count, generator=generator)
    return PPORows(
        inputs,
        actions,
        before,
        torch.randn(count, generator=generator),
        values + 2.0 * torch.randn(count, generator=generator),
        values,
    )


@pytest.mark.parametrize("space", ACTIONS, ids=str)
@pytest.mark.parametrize("largest", [float("inf"), 1.0])
def test_gradients_without_autograd_are_autograd_s(space: gym.Space[Any], largest: float) -> None:
    update, loss = policy(space), dataclasses.replace(LOSS, largest_value_loss=largest)
    rows = rows_of(update)
    update.flat.gradient.zero_()
    loss(update.network, space, rows)[0].backward()
    expected = update.flat.gradient.clone()
    assert expected.abs().max() > 0.01
    update.flat.gradient.fill_(7.0)  # what is there must not count
    StackedMLPs(update.network, update.flat, space, loss, len(rows))(rows)
    torch.testing.assert_close(update.flat.gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_steps_are_those_of_torch_s_adam_and_clipping(space: gym.Space[Any]) -> None:
    ours, theirs = policy(space), policy(space)
    rows = rows_of(ours)
    index = torch.stack([torch.randperm(64)[:32] for _ in range(6)])
    ours.take_steps(FlatAdam(ours.flat, lr=1e-2), rows, LOSS, index, max_norm=0.5)
    adam = torch.optim.Adam(theirs.network.parameters(), lr=1e-2)
    for each in index:
        adam.zero_grad()
        part = PPORows(*(column[each] for column in rows.columns()))
        LOSS(theirs.network, space, part)[0].backward()
        torch.nn.utils.clip_grad_norm_(theirs.network.parameters(), 0.5)
        adam.step()
    for mine, other in zip(ours.network.parameters(), theirs.network.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_metrics_are_the_last_minibatch_s_before_its_step() -> None:
    update = policy(ACTIONS[0])
    rows = rows_of(update)
    expected, parts = LOSS(update.network, update.space, rows)
    found = update.take_steps(FlatAdam(update.flat, lr=1e-2), rows, LOSS, torch.arange(64)[None])
    torch.testing.assert_close(found["total_loss"], expected.detach())
    torch.testing.assert_close(found["entropy"], parts["entropy"].detach())
    assert found["steps_left_out"] == 0


def test_a_step_whose_gradient_is_not_finite_is_left_out() -> None:
    update = policy(ACTIONS[1])
    rows = rows_of(update)
    rows.targets[3] = float("nan")
    before = update.flat.values.clone()
    optimizer = FlatAdam(update.flat, lr=1e-2)
    found = update.take_steps(optimizer, rows, LOSS, torch.arange(64).view(2, 32))
    assert found["steps_left_out"] == 1
    assert torch.isfinite(update.flat.values).all()
    assert not torch.equal(update.flat.values, before)  # the other minibatch counts
    assert optimizer.state_dict()["state"][0]["step"] == 1


def test_clipped_values_and_images_go_by_autograd() -> None:
    update = policy(ACTIONS[0])
    rows = rows_of(update)
    clipping = dataclasses.replace(LOSS, clips_values=True)
    update.take_steps(FlatAdam(update.flat, lr=1e-3), rows, clipping, torch.arange(64)[None])
    _, parts = clipping(update.network, update.space, rows)
    assert parts["vf_loss"] >= parts["vf_loss_unclipped"]
    images = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    network = ActorCriticNetwork(images, ACTIONS[1], PolicyShape(network="nature"))
    of_images = PPOUpdate(network, ACTIONS[1])
    seen = torch.randint(0, 256, (16, 36, 36, 3), dtype=torch.uint8)
    assert of_images.inputs_of(seen) is seen
    before = of_images.flat.values.clone()
    column = torch.zeros(16)
    pixels = PPORows(seen, torch.arange(16) % 4, column - 1.4, torch.randn(16), column + 1.0, column)
    of_images.take_steps(FlatAdam(of_images.flat, lr=1e-3), pixels, LOSS, torch.arange(16).view(2, 8))
    assert not torch.equal(of_images.flat.values, before)
    assert of_images.values_of(seen).shape == (16,)


@pytest.mark.parametrize("scale", [0.1, 20.0])
def test_the_value_s_error_counts_by_its_targets_variance_where_actor_and_critic_share_layers(scale: float) -> None:
    images = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    torch.manual_seed(0)
    ours, theirs = (PPOUpdate(ActorCriticNetwork(images, ACTIONS[1], PolicyShape()), ACTIONS[1]) for _ in range(2))
    theirs.flat.values.copy_(ours.flat.values)
    seen, column = torch.randint(0, 256, (16, 36, 36, 3), dtype=torch.uint8), torch.zeros(16)
    rows = PPORows(seen, torch.arange(16) % 4, column - 1.4, torch.randn(16), scale * torch.randn(16), column)
    ours.take_steps(FlatAdam(ours.flat, lr=1e-3), rows, LOSS, torch.arange(16)[None])
    variance = np.var(rows.targets.numpy(), ddof=1)
    loss = dataclasses.replace(LOSS, value_coefficient=0.7 / variance if scale > 1 else 0.7)
    theirs.flat.gradient.zero_()
    loss(theirs.network, ACTIONS[1], rows)[0].backward()
    torch.testing.assert_close(ours.flat.gradient, theirs.flat.gradient, rtol=1e-4, atol=1e-6)
    assert value_weight(policy(ACTIONS[1]).network, rows.targets) == 1.0  # layers of their own


@pytest.mark.parametrize("kind", ["nature", "impala", "small"])
def test_images_in_bfloat16_give_nearly_the_same_gradient(kind: Any) -> None:
    torch.manual_seed(0)
    images = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    network = ActorCriticNetwork(images, ACTIONS[1], PolicyShape(network=kind))
    update = PPOUpdate(network, ACTIONS[1])
    seen = torch.randint(0, 256, (32, 36, 36, 3), dtype=torch.uint8)
    with torch.no_grad():
        exact, low = network.encode(seen), network.encode(seen, bfloat16=True)
    assert exact.dtype == low.dtype == torch.float32
    assert 0.0 < float((low - exact).norm() / exact.norm()) < 0.02
    column = torch.zeros(32)
    rows = PPORows(seen, torch.arange(32) % 4, column - 1.4, torch.randn(32), column + 1.0, column)
    gradients = []
    for bfloat16 in (False, True):
        update.flat.attach_gradients()
        update.flat.gradient.zero_()
        dataclasses.replace(LOSS, bfloat16=bfloat16)(network, ACTIONS[1], rows)[0].backward()  # type: ignore[no-untyped-call]
        gradients.append(update.flat.gradient.clone())
    assert float(torch.nn.functional.cosine_similarity(*gradients, 0)) > 0.99


def test_a_network_keeps_its_names_and_what_is_loaded_into_it_counts() -> None:
    update, other = policy(ACTIONS[0]), policy(ACTIONS[0], seed=5)
    names = {name for name, _ in ActorCriticNetwork(BOX, ACTIONS[0], PolicyShape(hidden=(8, 8))).named_parameters()}
    assert {name for name, _ in update.network.named_parameters()} == names
    update.network.load_state_dict(other.network.state_dict())
    torch.testing.assert_close(update.flat.values, other.flat.values)


def test_the_state_of_adam_is_torch_s_and_can_be_loaded_from_it() -> None:
    update, plain = policy(ACTIONS[0]), policy(ACTIONS[0])
    rows = rows_of(update)
    flat = FlatAdam(update.flat, lr=1e-2)
    adam = torch.optim.Adam(plain.flat.parameters, lr=1e-2)
    for _ in range(3):
        adam.zero_grad()
        LOSS(plain.network, plain.space, rows)[0].backward()
        adam.step()
    flat.load_state_dict(adam.state_dict())
    update.network.load_state_dict(plain.network.state_dict())
    state = flat.state_dict()["state"]
    assert len(state) == len(plain.flat.parameters)
    torch.testing.assert_close(state[2]["exp_avg"], adam.state_dict()["state"][2]["exp_avg"])
    # The next step is the same, also with gradients that are not in the vector.
    for optimizer, of in ((flat, update), (adam, plain)):
        of.network.zero_grad(set_to_none=True)
        LOSS(of.network, of.space, rows)[0].backward()
        optimizer.step()
    torch.testing.assert_close(update.flat.values, plain.flat.values, rtol=1e-5, atol=1e-6)


def test_minibatches_pass_over_all_rows() -> None:
    index = shuffled(10, epochs=3, minibatch_size=4)
    assert index.shape == (8, 4)
    first, second = index.flatten()[:10], index.flatten()[10:20]
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert not torch.equal(first, second)
    assert shuffled(10, 3, 4, shuffle=False).flatten()[:10].tolist() == list(range(10))
    assert shuffled(10, 3, 4, minibatches=2).shape == (2, 4)
    assert shuffled(3, 1, 8).shape == (1, 8)


def test_advantages_follow_their_definition() -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(12, 2)), rng.normal(size=(13, 2))
    terminated, cut = np.zeros((12, 2), bool), np.zeros((12, 2), bool)
    terminated[4, 0] = cut[7, 1] = True
    found = advantages(rewards, values, terminated, cut, gamma=0.9, decay=0.8)
    for copy in range(2):
        for step in range(12):
            total, weight = 0.0, 1.0
            for later in range(step, 12):
                following = 0.0 if terminated[later, copy] else values[later + 1, copy]
                total += weight * (rewards[later, copy] + 0.9 * following - values[later, copy])
                if terminated[later, copy] or cut[later, copy]:
                    break
                weight *= 0.9 * 0.8
            assert found[step, copy] == pytest.approx(total, abs=1e-5)


def test_an_update_on_images_is_the_same_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    count, space = 300, gym.spaces.Discrete(4)  # three parts of 100 images
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (count, 16, 16, 3), generator=generator, dtype=torch.uint8)
    numbers = torch.randn(4, count, generator=generator)
    rows = PPORows(pixels, torch.arange(count) % 4, -numbers[0].abs(), numbers[1], numbers[2], numbers[3])
    loss, seen = dataclasses.replace(LOSS, clips_values=True), []
    assert count / 3 < ppo_update.IMAGES_OF_A_GRADIENT < count / 2
    for cores in (1, 2, 3):
        monkeypatch.setattr(optim, "usable_cores", lambda cores=cores: cores)
        torch.manual_seed(0)
        images = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
        update = PPOUpdate(ActorCriticNetwork(images, space, PolicyShape(network="small")), space)
        if cores == 1:
            loss(update.network, space, rows)[0].backward()
            whole = update.flat.gradient.clone()
        parts = update.take_steps(FlatAdam(update.flat, lr=1e-2), rows, loss, torch.arange(count)[None])
        values = update.values_of(pixels)
        seen.append((update.flat.gradient.clone(), update.flat.values.clone(), values, parts["total_loss"]))
    torch.testing.assert_close(seen[0][0], whole, rtol=1e-4, atol=1e-6)
    assert whole.abs().max() > 0.01
    assert all(torch.equal(mine, other) for one in seen[1:] for mine, other in zip(seen[0], one, strict=True))
