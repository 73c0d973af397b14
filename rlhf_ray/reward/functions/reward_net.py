"""A reward ensemble as a ``RewardNet`` of imitation, for code of imitation or Stable-Baselines3. Needs the extra ``imitation``.

Code that takes a plain function of states, actions, next states and dones, such as imitation's ``RewardVecEnvWrapper``, also takes
`rlhf_ray.reward.RewardEnsemble.predict`. ``done`` must mean terminated, not truncated, if the reward model has ``use_done``. SB3's
vectorised environments, and so ``RewardVecEnvWrapper``, pass True for both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from imitation.rewards.reward_nets import RewardNetWithVariance
from torch import Tensor

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.functions.function import EnsembleReward


class LearnedRewardNet(RewardNetWithVariance):
    """A `RewardEnsemble` as imitation's ``RewardNet``.

    For example::

        net = LearnedRewardNet(RewardEnsemble.load("runs/pendulum/reward_model"))
        venv = RewardVecEnvWrapper(venv, net.predict_processed)

    ``predict``, ``predict_th`` and ``predict_processed`` are exactly `RewardEnsemble.predict`, so the normalisation of the ensemble
    is included. ``AddSTDRewardWrapper`` takes it.

    Args:
        ensemble: the reward model; a copy is kept.
    """

    def __init__(self, ensemble: RewardEnsemble):
        super().__init__(ensemble.observation_space, ensemble.action_space, normalize_images=False)
        self._function = EnsembleReward(ensemble)
        self.ensemble = self._function.module.requires_grad_()  # so that imitation's trainers can fit it further

    def preprocess(
        self, state: Array, action: Array, next_state: Array, done: Array
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Convert a batch to the tensors that `forward` takes: float32, images 0 to 255, discrete actions one-hot."""
        states = [torch.as_tensor(np.array(array, np.float32)).to(self.device) for array in (state, next_state)]
        actions = self._function.action_inputs(np.asarray(action)).to(self.device)
        return states[0], actions, states[1], torch.as_tensor(np.array(done, np.float32)).to(self.device)

    def forward(self, state: Tensor, action: Tensor, next_state: Tensor, done: Tensor) -> Tensor:
        """Compute rewards ``[n]`` with gradients, from what `preprocess` returned."""
        # Not the function's `forward`, which keeps statistics as they are: imitation's trainers may fit them.
        return self._function.combine(self._function.member_tensor(state, action, next_state, done))

    def predict_th(self, state: Array, action: Array, next_state: Array, done: Array) -> Tensor:
        """Compute rewards ``[n]`` without gradients."""
        return torch.as_tensor(self.ensemble.predict(state, action, next_state, np.asarray(done, bool)))

    def predict_reward_moments(
        self, state: Array, action: Array, next_state: Array, done: Array, **_: Any
    ) -> tuple[FloatArray, FloatArray]:
        """Compute mean and variance over the members, ``[n]`` each; the variance of one member is 0."""
        members = self._function.members(state, action, next_state, np.asarray(done, bool))
        return members.mean(0), members.var(0, ddof=1) if len(members) > 1 else np.zeros(members.shape[1])
