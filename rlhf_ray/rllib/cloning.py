"""Behaviour cloning: fits a policy to demonstrations, before other training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tree  # type: ignore[import-untyped]
from ray.rllib.core.columns import Columns
from torch import Tensor, nn

from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.optim.adam import Adam
from rlhf_ray.policies.env_actions import to_policy_actions
from rlhf_ray.policies.statistics import TakesVectors

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
        module: the policy, an `ActorCritic` or another torch RLModule; modified in place.
        demonstrations: from the module's environment (`Demonstrations.check`).
        epochs: passes over all steps; by default `EPOCHS`, or more to reach `LEAST_STEPS`.
        minibatch_size: steps per gradient step; for a policy with memory, that of as many episodes as have these steps on average.
        learning_rate: Adam's learning rate.
        seed: seeds the order of steps.

    Returns:
        The report.

    Raises:
        SettingError: the policy has a memory, but the demonstrations don't say where episodes end.
    """
    observations = torch.as_tensor(demonstrations.observations.astype(module.observation_space.dtype, copy=False))
    actions = torch.as_tensor(to_policy_actions(demonstrations.actions, module.action_space))
    if isinstance(network := getattr(module, "network", None), TakesVectors):
        network.observe(observations.float())
    generator = torch.Generator().manual_seed(seed)
    optimizer = Adam(module.parameters(), lr=learning_rate)
    stateful = bool(module.is_stateful())
    # Minibatches are drawn from single steps, or from episodes for a policy with memory.
    episodes = _episodes(demonstrations) if stateful else []
    drawn, size, chunk = len(actions), minibatch_size, CHUNK
    if stateful:
        drawn, steps = len(episodes), len(actions) / len(episodes)
        size, chunk = max(1, round(minibatch_size / steps)), max(1, round(CHUNK / steps))

    def log_likelihood(index: Tensor) -> Tensor:
        if not stateful:
            outputs, acted = module.forward_train({Columns.OBS: observations[index]}), actions[index]
            inputs = outputs[Columns.ACTION_DIST_INPUTS]
        else:
            chosen = [episodes[i] for i in index.tolist()]
            lengths = torch.tensor([len(rows) for rows in chosen])
            padded = nn.utils.rnn.pad_sequence([observations[rows] for rows in chosen], batch_first=True)
            state = tree.map_structure(
                lambda of: torch.stack([torch.as_tensor(of)] * len(chosen)), module.get_initial_state()
            )
            outputs = module.forward_train({Columns.OBS: padded, Columns.STATE_IN: state, Columns.SEQ_LENS: lengths})
            real = torch.arange(padded.shape[1]) < lengths[:, None]
            inputs, acted = outputs[Columns.ACTION_DIST_INPUTS][real], actions[torch.cat(chosen)]
        likelihood: Tensor = module.get_train_action_dist_cls().from_logits(inputs).logp(acted)
        return likelihood

    def mean() -> float:
        with torch.no_grad():
            return float(torch.cat([log_likelihood(part) for part in _split(torch.arange(drawn), chunk)]).mean())

    if epochs is None:
        epochs = max(EPOCHS, math.ceil(LEAST_STEPS / math.ceil(drawn / size)))
    before, taken = mean(), 0
    for _ in range(epochs):
        for batch in _split(torch.randperm(drawn, generator=generator), size):
            optimizer.zero_grad(set_to_none=True)
            (-log_likelihood(batch).mean()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            taken += 1
            for name, parameter in module.named_parameters():
                if name.rpartition(".")[2] == "log_std":
                    parameter.data.clamp_(min=LEAST_LOG_STD)
    return CloningReport(len(actions), before, mean(), taken)


def _episodes(demonstrations: Demonstrations) -> list[Tensor]:
    """Return the steps of each episode."""
    if demonstrations.terminals is None and demonstrations.timeouts is None:
        raise SettingError(
            "The demonstrations don't say where episodes end (terminals, timeouts), which a policy with memory needs: record them "
            "with `rlhf-ray record`, or set ppo.memory to none."
        )
    ends = np.zeros(len(demonstrations), dtype=bool)
    for flags in (demonstrations.terminals, demonstrations.timeouts):
        ends |= False if flags is None else flags
    return [torch.as_tensor(part) for part in np.split(np.arange(len(ends)), np.flatnonzero(ends[:-1]) + 1)]


def _split(index: Tensor, size: int) -> tuple[Tensor, ...]:
    parts: tuple[Tensor, ...] = torch.split(index, size)
    return parts
