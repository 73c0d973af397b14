"""PPOLearner: RLlib's PPO learner, with minibatches of the right size for policies with memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.training_data import TrainingData
from torch import Tensor

from rlhf_ray.reward.optimizers import Adam
from rlhf_ray.rllib.policy import ActorCritic


class PPOLearner(PPOTorchLearner):  # type: ignore[misc]
    """RLlib's PPO learner with an optimiser that doesn't import torch's compiler."""

    adam_epsilon = 1e-8

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Register the optimiser (called by RLlib)."""
        params = self.get_parameters(self._module[module_id])
        optimizer = Adam(params, eps=self.adam_epsilon)
        self.register_optimizer(module_id=module_id, optimizer=optimizer, params=params, lr_or_lr_schedule=config.lr)

    def update(
        self,
        *arguments: Any,
        training_data: TrainingData | None = None,
        minibatch_size: int | None = None,
        **keywords: Any,
    ) -> Any:
        """Update the policy with rollouts.

        With memory, a minibatch consists of sequences: pieces of episodes. RLlib takes as many as have ``minibatch_size`` steps on
        average, but counts a step more for each, the one with the last observation: instead of 8 rollouts, it would take 7.
        """
        if minibatch_size and training_data is not None and self.module[DEFAULT_MODULE_ID].is_stateful():
            training_data.solve_refs()
            if training_data.episodes:
                steps = sum(map(len, training_data.episodes))
                minibatch_size = math.ceil(minibatch_size * (steps + len(training_data.episodes)) / steps)
        observations = self._observations(training_data)
        results = super().update(*arguments, training_data=training_data, minibatch_size=minibatch_size, **keywords)
        if observations is not None:
            # After the update: until here, the policy must be the one that acted.
            self.module[DEFAULT_MODULE_ID].unwrapped().network.statistics.observe(observations)
        return results

    def _observations(self, training_data: TrainingData | None) -> Tensor | None:
        """Return the observations ``[n, size]`` of rollouts, if the policy normalises them."""
        module = self.module[DEFAULT_MODULE_ID].unwrapped()
        if training_data is None or not isinstance(module, ActorCritic) or module.network.statistics is None:
            return None
        training_data.solve_refs()
        # Before the update, which adds a step to each episode.
        seen = [episode.get_observations() for episode in training_data.episodes or () if len(episode)]
        return torch.as_tensor(np.concatenate(seen)).flatten(1) if seen else None
