"""Behaviour cloning: fits a policy to demonstrations, before other training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from torch import Tensor

from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.optim import Adam
from rlhf_ray.policies.actions import to_policy_actions
from rlhf_ray.policies.encoders import TakesVectors

LEAST_LOG_STD = math.log(0.2)
"""Lower bound of a continuous policy's log standard deviation, for actions scaled to [-1, 1]. Demonstrations that never vary would
drive it to zero and leave PPO no exploration."""

EPOCHS, LEAST_STEPS = 50, 1500
"""Default passes, and the minimum number of gradient steps. On Pendulum, 50 passes over 20 episodes (1,600 steps) gave a policy as
good as the recorded one; over 5 episodes (400 steps) they were too few."""

CHUNK = 4096
"""Steps per forward pass without gradients."""


@dataclass(frozen=True)
class CloningReport:
    """Report of a cloning run.

    Attributes:
        steps: number of demonstrated steps.
        before: mean log-likelihood of a demonstrated action before the fit.
        after: the same after the fit.
        gradient_steps: number of gradient steps.
    """

    steps: int
    before: float
    after: float
    gradient_steps: int


def clone(
    module: Any,
    demonstrations: Demonstrations,
    *,
    epochs: int | None = None,
    minibatch_size: int = 128,
    learning_rate: float = 1e-3,
    seed: int = 0,
) -> CloningReport:
    """Fit a policy to demonstrations by maximum likelihood of their actions (with Adam). Doesn't train the value function.

    Args:
        module: the policy, an `ActorCritic` or another torch RLModule without memory; modified in place.
        demonstrations: from the module's environment (`Demonstrations.check`).
        epochs: passes over all steps; by default `EPOCHS`, or more to reach `LEAST_STEPS`.
        minibatch_size: steps per gradient step.
        learning_rate: Adam's learning rate.
        seed: seeds the order of steps.

    Returns:
        The report.

    Raises:
        SettingError: the policy has a memory.
    """
    if module.is_stateful():
        raise SettingError("Policies with memory can't start from demonstrations: set ppo.memory to none.")
    observations = torch.as_tensor(demonstrations.observations.astype(module.observation_space.dtype, copy=False))
    actions = torch.as_tensor(to_policy_actions(demonstrations.actions, module.action_space))
    if isinstance(network := getattr(module, "network", None), TakesVectors):
        network.observe(observations.float())
    generator = torch.Generator().manual_seed(seed)
    optimizer = Adam(module.parameters(), lr=learning_rate)

    def log_likelihood(index: Tensor) -> Tensor:
        inputs = module.forward_train({Columns.OBS: observations[index]})[Columns.ACTION_DIST_INPUTS]
        likelihood: Tensor = module.get_train_action_dist_cls().from_logits(inputs).logp(actions[index])
        return likelihood

    def mean() -> float:
        with torch.no_grad():
            return float(torch.cat([log_likelihood(part) for part in _split(torch.arange(len(actions)), CHUNK)]).mean())

    if epochs is None:
        epochs = max(EPOCHS, math.ceil(LEAST_STEPS / math.ceil(len(actions) / minibatch_size)))
    before, taken = mean(), 0
    for _ in range(epochs):
        for batch in _split(torch.randperm(len(actions), generator=generator), minibatch_size):
            optimizer.zero_grad(set_to_none=True)
            (-log_likelihood(batch).mean()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            taken += 1
            for name, parameter in module.named_parameters():
                if name.rpartition(".")[2] == "log_std":
                    parameter.data.clamp_(min=LEAST_LOG_STD)
    return CloningReport(len(actions), before, mean(), taken)


def _split(index: Tensor, size: int) -> tuple[Tensor, ...]:
    parts: tuple[Tensor, ...] = torch.split(index, size)
    return parts
