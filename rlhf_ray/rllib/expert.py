"""Experts: PPO on the true reward as the published Procgen agents train, to record their behaviour.

Cobbe et al. 2020 ("Leveraging Procedural Generation", appendix D) and the train-procgen code. RLlib 2.60's PPO follows them in:
epochs and minibatches, generalised advantage estimation, advantages normalised over the whole batch, the clipped ratio, the entropy
bonus, the global gradient norm, and the linear decay of the learning rate. This module adds what RLlib lacks: rewards divided by
the running deviation of the discounted return (`ReturnScaled`) and Adam's epsilon of 1e-5.

Not as published:

* The value loss is not clipped. RLlib's ``vf_clip_param`` limits the squared error itself, which is something else; it is off.
* Levels are unlimited unless the environment limits them; published "hard" runs use 500 or 100,000 levels.
* The statistics of `ReturnScaled` start anew in a resumed run, as RLlib's checkpoints omit those of learner connectors.
* A resumed run starts new episodes, so it is not bit for bit the uninterrupted one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from rlhf_ray.reward.optimizers import Adam
from rlhf_ray.rllib.reference import ReferencePPOConfig

CLIP = 10.0
"""Largest absolute value of a scaled reward, as in the published code."""


class ExpertPPOConfig(ReferencePPOConfig):
    """RLlib's PPO on the true reward with the published normalisation of rewards and Adam's epsilon."""

    def get_default_learner_class(self) -> type:
        """See RLlib."""
        return ExpertLearner

    def build_learner_connector(self, input_observation_space: Any, input_action_space: Any, device: Any = None) -> Any:
        """Build RLlib's pipeline, followed by `ReturnScaled`."""
        pipeline = PPOConfig.build_learner_connector(self, input_observation_space, input_action_space, device)
        pipeline.append(ReturnScaled(gamma=self.gamma))
        return pipeline


class ExpertLearner(PPOTorchLearner):  # type: ignore[misc]
    """RLlib's PPO learner with Adam's epsilon of the published code."""

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Register the optimiser (called by RLlib)."""
        params = self.get_parameters(self._module[module_id])
        optimizer = Adam(params, eps=1e-5)
        self.register_optimizer(module_id=module_id, optimizer=optimizer, params=params, lr_or_lr_schedule=config.lr)


class ReturnScaled(ConnectorV2):  # type: ignore[misc]
    """Divides rewards by the running standard deviation of the discounted return, and clips them to ±10.

    As ``VecNormalize`` of baselines, except that the statistics include the whole batch before it is scaled, not only earlier
    steps.

    Args:
        gamma: discount factor of the return.
    """

    def __init__(self, *arguments: Any, gamma: float, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self._gamma = gamma
        self._returns: dict[str, float] = {}
        """The discounted return so far of each unfinished episode."""
        self._count, self._mean, self._squares = 0.0, 0.0, 0.0

    def __call__(self, *, batch: dict[str, Any], episodes: list[Any], **kwargs: Any) -> dict[str, Any]:
        """Replace the rewards of the policy's steps; masked rows get 0."""
        columns = batch[DEFAULT_MODULE_ID]
        rewards, real = columns[Columns.REWARDS], columns[Columns.LOSS_MASK]
        unfinished: dict[str, float] = {}
        rows = rewards.cpu().numpy()
        mask = real.cpu().numpy()
        first = 0
        for episode in episodes:
            # RLlib has added one masked row to each episode.
            steps = rows[first : first + len(episode)][mask[first : first + len(episode)]]
            first += len(episode)
            ret, returns = self._returns.get(episode.id_, 0.0), np.empty(len(steps))
            for i, reward in enumerate(steps.tolist()):
                returns[i] = ret = self._gamma * ret + reward
            self._add(returns)
            if not episode.is_done:
                unfinished[episode.id_] = ret
        self._returns = unfinished
        std = max(self._squares / max(self._count, 1.0), 1e-8) ** 0.5
        columns[Columns.REWARDS] = torch.where(real, (rewards / std).clamp(-CLIP, CLIP), 0.0).float()
        return batch

    def _add(self, values: Any) -> None:
        if not len(values):
            return
        delta, total = float(values.mean()) - self._mean, self._count + len(values)
        self._squares += float(((values - values.mean()) ** 2).sum()) + delta**2 * self._count * len(values) / total
        self._mean += delta * len(values) / total
        self._count = total
