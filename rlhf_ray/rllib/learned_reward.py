"""The learned reward in RLlib's learner: a module that holds the ensemble, and a connector that applies it.

Episodes keep the environment's reward, so RLlib's ``episode_return_mean`` is the true return. The learner's train batch gets the
learned reward instead, in one batched forward pass with the newest version; and rollouts come to it without the environment's
(`take_off`), so that neither its replay nor its batches nor its losses ever hold one.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from torch import Tensor

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.failures import blaming
from rlhf_ray.data.vector_rollout import VectorRollout
from rlhf_ray.policies.actions import to_env_actions, to_env_actions_tensor
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.novelty import Novelty
from rlhf_ray.settings import RewardModelSettings, from_json, to_json

REWARD_MODULE_ID = "reward_model"

REPLAYED = "replayed"
"""Key in the connectors' shared data: the batch comes from a replay buffer."""


class RewardModule(TorchRLModule):  # type: ignore[misc]
    """The reward ensemble as a learner-only RLModule, which RLlib places, broadcasts and checkpoints.

    Its parameters keep ``requires_grad``: with several learners, torch refuses to distribute a module without trainable ones.
    Learners don't train them; new versions come from the reward trainer.
    """

    def setup(self) -> None:
        settings = from_json(RewardModelSettings, self.model_config["settings"])
        self.ensemble = RewardEnsemble(self.observation_space, self.action_space, settings)
        pretrains = self.model_config.get("pretrains", False)
        self.novelty = Novelty(self.observation_space.shape[0]) if pretrains else None
        self.mix = float(self.model_config.get("mix", 0.0))

    def mixed(self, learned: Any, own: Any) -> Any:
        """Mix the learned rewards with the environment's own, which have the same shape (`Experiment.reward_mix`).

        The novelty of the pretraining, before the first version, stays as it is.
        """
        if not self.mix or (self.novelty is not None and not self.ensemble.version):
            return learned
        return (1.0 - self.mix) * learned + self.mix * own

    def log(self, metrics: Any, mean: float, std: float, mixed: Any) -> None:
        """Log the mean and deviation of learned rewards, and the mean of their mixtures, if there are any."""
        values = {"learned_reward_mean": mean, "learned_reward_std": std, "reward_version": int(self.ensemble.version)}
        values |= {"mixed_reward_mean": float(mixed)} if self.mix else {}
        metrics.log_dict(values, key=DEFAULT_MODULE_ID, window=1)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {}

    def get_state(self, *args: Any, inference_only: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Return the weights; nothing for env runners (``inference_only``), which don't use the reward."""
        return {} if inference_only else super().get_state(*args, inference_only=inference_only, **kwargs)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore weights. Those of a reward version alone leave the memory of the pretraining as it is."""
        if self.novelty is not None:
            own = {f"novelty.{name}": value for name, value in self.novelty.state_dict().items()}
            state = own | state
        super().set_state(state)

    def reward(self, batch: dict[str, Tensor], replayed: bool = False) -> Tensor:
        """Compute the reward of each step of RLlib's train batch, in the shape of its rewards.

        It is the learned one; before its first version, with unsupervised pretraining, the novelty of the state that follows.

        Args:
            batch: RLlib's columns.
            replayed: whether the steps come from a replay buffer, and were in an earlier batch when they were new.
        """
        shape = batch[Columns.REWARDS].shape

        def steps(column: str) -> Tensor:
            return batch[column].reshape(shape.numel(), *batch[column].shape[len(shape) :])

        if self.novelty is not None and not self.ensemble.version:
            real = steps(Columns.LOSS_MASK).bool()
            rewards = torch.zeros_like(steps(Columns.REWARDS), dtype=torch.float32)
            rewards[real] = self.novelty(steps(Columns.NEXT_OBS)[real], remember=not replayed)
            return rewards.reshape(shape)
        actions = to_env_actions_tensor(steps(Columns.ACTIONS), self.action_space)
        with blaming({"reward_model.network": self.ensemble.settings.network}):
            members = self.ensemble.member_rewards(
                steps(Columns.OBS), actions, steps(Columns.NEXT_OBS), steps(Columns.TERMINATEDS)
            )
        return self.ensemble.combine(members).reshape(shape)


def reward_spec(
    settings: RewardModelSettings, observation_space: Any, action_space: Any, pretrains: bool = False, mix: float = 0.0
) -> RLModuleSpec:
    """Return the RLlib spec of the `RewardModule`.

    With ``pretrains``, it rewards novelty before the first version; ``mix`` is `Experiment.reward_mix`.
    """
    return RLModuleSpec(
        module_class=RewardModule,
        observation_space=observation_space,
        action_space=action_space,
        # The names again: a part given as an object travels with its name.
        model_config={
            "settings": to_json(settings) | {"network": settings.network, "loss": settings.loss},
            "pretrains": pretrains,
            "mix": mix,
        },
        learner_only=True,
    )


def module_state(version: dict[str, Array]) -> dict[str, Array]:
    """Convert a published version (`RewardEnsemble.state`) to the state of a `RewardModule`."""
    return {f"ensemble.{name}": value for name, value in version.items()}


def take_off(data: TrainingData, config: Any) -> None:
    """Replace the rewards that a learner is given by NaN, unless its configuration mixes them in or learns from them alone."""
    checked = getattr(config, "checked", None)
    if checked is not None and not checked.experiment.reward_mix and data.episodes:
        data.episodes = [_without_rewards(sample) for sample in data.episodes]


def _without_rewards(sample: Any) -> Any:
    if isinstance(sample, VectorRollout):
        return dataclasses.replace(sample, rewards=np.full_like(sample.rewards, np.nan))
    copied, rewards = copy.copy(sample), sample.rewards
    copied.rewards = InfiniteLookbackBuffer(np.full(len(rewards.data), np.nan), rewards.lookback)
    return copied


class RewardConnector(ConnectorV2):  # type: ignore[misc]
    """A learner connector that replaces the rewards of a train batch, of episodes or of `VectorRollout`s."""

    reads_next_observations = False


class LearnedReward(RewardConnector):
    """Puts the learned reward, or its mixture with the environment's, into the train batch.

    Must come after the conversion to tensors and before advantages.

    Args:
        keep_next_observations: whether the agent's losses need next observations.
    """

    reads_next_observations = True

    def __init__(self, *arguments: Any, keep_next_observations: bool = False, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.keep_next_observations = keep_next_observations

    def __call__(
        self,
        *,
        rl_module: Any,
        batch: dict[str, Any],
        episodes: Any,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Replace the rewards of the policy's steps; masked rows get 0."""
        columns = batch[DEFAULT_MODULE_ID]
        module = rl_module[REWARD_MODULE_ID].unwrapped()
        real = columns[Columns.LOSS_MASK]
        learned = module.reward(columns, replayed=REPLAYED in (shared_data or {})) * real
        rewards = module.mixed(learned, columns[Columns.REWARDS] * real)
        if metrics is not None:
            count = real.sum().clamp_min(1)
            mean = learned.sum() / count
            std = ((((learned - mean) ** 2) * real).sum() / count).sqrt()
            module.log(metrics, mean.item(), std.item(), rewards.sum() / count)
        columns[Columns.REWARDS] = rewards
        if not self.keep_next_observations:
            del columns[Columns.NEXT_OBS]  # no longer needed; minibatches would carry them along
            columns.pop(Columns.NEXT_STATE_IN, None)
        return batch


class HistoryReward(ConnectorV2):  # type: ignore[misc]
    """Puts a learned reward that reads history into copies of the learner's episodes, which keep the true return.

    It sees the steps before an episode's piece, too: its lookback, which `PreferenceConfig` makes as long as a fragment. Other
    rewards come from `LearnedReward`, for a whole batch at the end of the pipeline, which is faster.
    """

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, metrics: Any = None, **kwargs: Any) -> Any:
        """Replace the rewards; the step that RLlib appends to each episode gets 0."""
        module = rl_module[REWARD_MODULE_ID].unwrapped()
        ensemble = module.ensemble
        appended = int(Columns.LOSS_MASK in batch)
        copies, rewards, mixtures = [], [], []
        for episode in episodes:
            steps = len(episode) - appended
            before = int(episode.observations.lookback)
            whole: dict[str, Any] = {"indices": slice(-before, None), "neg_index_as_lookback": True}
            observations = episode.get_observations(**whole)[: before + steps + 1]
            actions = to_env_actions(episode.get_actions(**whole), module.action_space)[: before + steps]
            device = ensemble.version.device
            members = ensemble.episode_rewards(
                torch.as_tensor(observations, device=device),
                torch.as_tensor(actions, device=device),
                bool(episode.is_terminated),
            )
            learned = ensemble.combine(members)[before:].cpu().numpy()
            own = np.asarray(episode.get_rewards(slice(0, steps)), learned.dtype)
            mixed = module.mixed(learned, own)
            copied = copy.copy(episode)
            copied.rewards = copy.deepcopy(episode.rewards)
            copied.set_rewards(new_data=np.append(mixed, np.zeros(appended, mixed.dtype)))
            copies.append(copied)
            rewards.append(learned)
            mixtures.append(mixed)
        episodes[:] = copies
        if metrics is not None:
            every = np.concatenate(rewards)
            module.log(metrics, float(every.mean()), float(every.std()), np.concatenate(mixtures).mean())
        return batch
