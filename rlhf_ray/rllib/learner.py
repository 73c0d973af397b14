"""PPOLearner: RLlib's PPO learner, with gradient steps of our own (`rlhf_ray.policies.ppo_update`) where they come to the same.

They do for the policies of `rlhf_ray.rllib.policy` without memory, with the losses and gradients of RLlib's PPO. RLlib's own
update takes the others: another RLModule, a learner that overrides the loss or the gradients, a penalty on the KL divergence,
several learners.
"""

from __future__ import annotations

import inspect
import logging
import math
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from torch import Tensor

from rlhf_ray.data.vector_rollout import VectorRollout
from rlhf_ray.optim import Adam, FlatAdam, in_bfloat16, shuffled
from rlhf_ray.policies.network import ActorCriticNetwork
from rlhf_ray.policies.ppo_update import PPOLoss, PPORows, PPOUpdate, advantages, value_weight
from rlhf_ray.rllib.advantages import SteadyAdvantages
from rlhf_ray.rllib.learned_reward import RewardConnector, take_off
from rlhf_ray.rllib.policy import ActorCritic
from rlhf_ray.rllib.rllib_internals import count_update, learner_pipeline, log_trained_steps, train_batch

logger = logging.getLogger(__name__)

STEADY = "steady_advantages"
"""Key of `SteadyAdvantages`'s state in a learner's."""

REPLACED = (
    "_update",
    "apply_gradients",
    "compute_gradients",
    "compute_loss_for_module",
    "compute_losses",
    "configure_optimizers",
    "configure_optimizers_for_module",
    "get_parameters",
    "postprocess_gradients",
    "postprocess_gradients_for_module",
)
"""RLlib's methods that our gradient steps don't call, or whose result they can't do with."""


def uses_fast_path(learner: Any, of: Any, module: Any) -> bool:
    """Return whether a learner class takes our gradient steps, with this RLlib configuration, for this module."""
    return (
        type(module) is ActorCritic
        and not module.network.memory_size
        and overridden(learner) is None
        and of.num_learners <= 1
        and of.use_critic
        and not of.use_kl_loss
        and of.grad_clip_by == "global_norm"
        and not of.torch_compile_learner
        and not of._torch_grad_scaler_class
        and not of._torch_lr_scheduler_classes
    )


def overridden(learner: Any) -> str | None:
    """Return what in a learner class keeps it from our gradient steps, in words; None if nothing does."""
    if not issubclass(learner, PPOLearner):
        return f"{learner.__name__} is no PPOLearner of rlhf_ray.rllib.learner"
    # Ray wraps the methods of actors.
    ours = {name: inspect.unwrap(getattr(PPOLearner, name)) for name in REPLACED}
    names = [name for name, method in ours.items() if inspect.unwrap(getattr(learner, name)) is not method]
    return f"{learner.__name__} overrides {', '.join(names)}" if names else None


class PPOLearner(PPOTorchLearner):  # type: ignore[misc]
    """RLlib's PPO learner with gradient steps of our own.

    Attributes:
        adam_epsilon: Adam's.
        clips_values: see `PPOLoss.clips_values`.
        own_steps: takes the gradient steps; None if RLlib does.
        steady: see `SteadyAdvantages`.
    """

    adam_epsilon = 1e-8
    clips_values = False
    own_steps: PPOUpdate | None = None
    steady: SteadyAdvantages

    def build(self) -> None:
        super().build()
        self.steady = SteadyAdvantages()
        learner_pipeline(self).append(self.steady)

    def get_state(self, components: Any = None, **keywords: Any) -> dict[str, Any]:
        """Return RLlib's state and that of `SteadyAdvantages`; without it if only ``components`` are asked for."""
        state: dict[str, Any] = super().get_state(components, **keywords)
        return state if components is not None else state | {STEADY: self.steady.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if STEADY in state:
            self.steady.set_state(state[STEADY])

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        module = self._module[module_id]
        policy = module.unwrapped() if module_id == DEFAULT_MODULE_ID else None
        if policy is not None and self.own_steps is None and uses_fast_path(type(self), self.config, policy):
            self.own_steps = PPOUpdate(policy.network, policy.action_space)
        flat = None if policy is None or self.own_steps is None else self.own_steps.flat
        params = self.get_parameters(module) if flat is None else flat.parameters
        optimizer = Adam(params, eps=self.adam_epsilon) if flat is None else FlatAdam(flat, eps=self.adam_epsilon)
        self.register_optimizer(module_id=module_id, optimizer=optimizer, params=params, lr_or_lr_schedule=config.lr)

    def update(
        self,
        *arguments: Any,
        training_data: TrainingData | None = None,
        timesteps: dict[str, Any] | None = None,
        num_total_minibatches: int = 0,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
        **keywords: Any,
    ) -> Any:
        if training_data is not None:
            training_data.solve_refs()
            take_off(training_data, self.config)
        observations = self._observations(training_data)
        if self.own_steps is None or training_data is None or not training_data.episodes:
            results = super().update(
                *arguments,
                training_data=training_data,
                timesteps=timesteps,
                num_total_minibatches=num_total_minibatches,
                num_epochs=num_epochs,
                minibatch_size=self._with_added_steps(minibatch_size, training_data),
                shuffle_batch_per_epoch=shuffle_batch_per_epoch,
                **keywords,
            )
        else:
            self.before_gradient_based_update(timesteps=timesteps or {})
            count_update(self)
            episodes = training_data.episodes
            if isinstance(episodes[0], VectorRollout):
                columns, rows = self._rows_of_arrays(episodes)
            else:
                columns = train_batch(self, episodes)[DEFAULT_MODULE_ID]
                rows = self._rows(columns)
            size = minibatch_size or len(rows)
            shuffle = shuffle_batch_per_epoch and num_epochs > 1
            index = shuffled(len(rows), num_epochs, size, shuffle=shuffle, minibatches=num_total_minibatches)
            self._take_steps(rows, index.to(self._device))
            log_trained_steps(self, DEFAULT_MODULE_ID, columns, minibatches=len(index), size=size)
            self.after_gradient_based_update(timesteps=timesteps or {})
            results = self.metrics.reduce()
        if observations is not None:
            # After the update: until here, the policy must be the one that acted.
            self.module[DEFAULT_MODULE_ID].unwrapped().network.observe(_of_all_learners(observations))
        return results

    def _rows(self, columns: dict[str, Tensor]) -> PPORows:
        """Return the steps of a train batch, without those that RLlib has added for their values."""
        assert self.own_steps is not None
        real = columns[Columns.LOSS_MASK].nonzero().squeeze(1)
        inputs, *others = (
            columns[name].index_select(0, real)
            for name in (
                Columns.OBS,
                Columns.ACTIONS,
                Columns.ACTION_LOGP,
                Postprocessing.ADVANTAGES,
                Postprocessing.VALUE_TARGETS,
                Columns.VF_PREDS,
            )
        )
        return PPORows(self.own_steps.inputs_of(inputs), *others)

    def _rows_of_arrays(self, rollouts: list[VectorRollout]) -> tuple[dict[str, Tensor], PPORows]:
        """Return the train batch and steps of rollouts that are arrays: what connectors and RLlib's advantages make of episodes."""
        assert self.own_steps is not None
        config = self.config
        connectors = [each for each in learner_pipeline(self).connectors if isinstance(each, RewardConnector)]
        batch: dict[str, list[Tensor]] = {}
        values = []
        for rollout in rollouts:
            real = torch.as_tensor(rollout.real)
            observations = torch.as_tensor(rollout.observations).to(self._device)
            made = self.own_steps.inputs_of(observations.flatten(0, 1))
            values.append(self.own_steps.values_of(made).reshape(observations.shape[:2]).cpu().numpy())
            parts = {
                Columns.OBS: observations[:-1],
                Columns.ACTIONS: torch.as_tensor(rollout.actions),
                Columns.ACTION_LOGP: torch.as_tensor(rollout.log_probabilities),
                Columns.REWARDS: torch.as_tensor(rollout.rewards).float(),
                Columns.TERMINATEDS: torch.as_tensor(rollout.terminated),
                WEIGHTS_SEQ_NO: torch.full(real.shape, rollout.version),
            }
            if any(connector.reads_next_observations for connector in connectors):
                parts[Columns.NEXT_OBS] = observations[1:]
            for name, part in parts.items():
                batch.setdefault(name, []).append(part.to(self._device)[real])
        columns = {name: found[0] if len(found) == 1 else torch.cat(found) for name, found in batch.items()}
        columns[Columns.LOSS_MASK] = torch.ones(len(columns[Columns.OBS]), dtype=torch.bool, device=self._device)
        for connector in connectors:
            connector(
                rl_module=self.module, batch={DEFAULT_MODULE_ID: columns}, episodes=rollouts, metrics=self.metrics
            )
        rewards = columns[Columns.REWARDS].cpu().numpy()
        estimated, end = [], 0
        for rollout, value in zip(rollouts, values, strict=True):
            begin, end = end, end + len(rollout)
            each = np.zeros(rollout.real.shape, np.float32)
            each[rollout.real] = rewards[begin:end]
            estimates = advantages(
                each, value, rollout.terminated, rollout.truncated, gamma=config.gamma, decay=config.lambda_
            )
            estimated.append((estimates[rollout.real], value[:-1][rollout.real]))
        advantage, before = (torch.as_tensor(np.concatenate(each)) for each in zip(*estimated, strict=True))
        targets = advantage + before
        share = self.steady.share(advantage)
        advantage = share * (advantage - advantage.mean()) / max(1e-4, float(advantage.std(correction=0)))
        return columns, PPORows(
            self.own_steps.inputs_of(columns[Columns.OBS]),
            columns[Columns.ACTIONS],
            columns[Columns.ACTION_LOGP],
            advantage.to(self._device),
            targets.to(self._device),
            before.to(self._device),
        )

    def _take_steps(self, rows: PPORows, index: Tensor) -> None:
        assert self.own_steps is not None
        config = self.config
        loss = PPOLoss(
            clip=config.clip_param,
            value_coefficient=config.vf_loss_coeff,
            entropy_coefficient=float(self.entropy_coeff_schedulers_per_module[DEFAULT_MODULE_ID].get_current_value()),
            largest_value_loss=config.vf_clip_param,
            clips_values=self.clips_values,
            bfloat16=in_bfloat16(self.module[DEFAULT_MODULE_ID].unwrapped().precision, self._device),
        )
        optimizer = self.get_optimizer(DEFAULT_MODULE_ID)
        parts = self.own_steps.take_steps(
            optimizer, rows, loss, index, max_norm=config.grad_clip, kl_target=config.kl_target
        )
        left_out = int(parts.pop("steps_left_out"))
        if left_out:
            logger.warning(
                "%d of %d gradient steps were left out: their gradients were not finite.", left_out, len(index)
            )
        parts["gradients_default_optimizer_global_norm"] = parts.pop("gradient_norm")
        parts["mean_kl_loss"] = torch.zeros(())
        self.metrics.log_dict(parts, key=DEFAULT_MODULE_ID, window=1)

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        """Compute the loss (called by RLlib where it takes the gradient steps)."""
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        module, mask, targets = (
            self.module[module_id].unwrapped(),
            batch[Columns.LOSS_MASK],
            batch[Postprocessing.VALUE_TARGETS],
        )
        network = getattr(module, "network", None)
        weight = value_weight(network, targets[mask]) if isinstance(network, ActorCriticNetwork) else 1.0
        if weight == 1.0 and not self.clips_values:
            return loss
        values, before = module.compute_values(batch, embeddings=fwd_out[Columns.EMBEDDINGS]), batch[Columns.VF_PREDS]
        limited = (
            before + (values - before).clamp(-config.clip_param, config.clip_param) if self.clips_values else values
        )
        errors = (values - targets) ** 2
        counted = weight * torch.max(errors, (limited - targets) ** 2)
        return loss + config.vf_loss_coeff * (counted - errors)[mask].mean()

    def _with_added_steps(self, minibatch_size: int | None, training_data: TrainingData | None) -> int | None:
        """Return the size of RLlib's minibatches.

        With memory, a minibatch consists of sequences: pieces of episodes. RLlib takes as many as have ``minibatch_size`` steps on
        average, but counts a step more for each, the one with the last observation: instead of 8 rollouts, it would take 7.
        """
        stateful = self.module[DEFAULT_MODULE_ID].is_stateful()
        if not minibatch_size or training_data is None or not training_data.episodes or not stateful:
            return minibatch_size
        steps = sum(map(len, training_data.episodes))
        return math.ceil(minibatch_size * (steps + len(training_data.episodes)) / steps)

    def _observations(self, training_data: TrainingData | None) -> Tensor | None:
        """Return the observations ``[n, size]`` of rollouts, if the policy counts them in its statistics."""
        module = self.module[DEFAULT_MODULE_ID].unwrapped()
        if training_data is None or not isinstance(module, ActorCritic) or not module.network.counts:
            return None
        # Before the update, which adds a step to each episode.
        seen = [_seen(episode) for episode in training_data.episodes or () if len(episode)]
        return torch.as_tensor(np.concatenate(seen)).flatten(1) if seen else None


def _of_all_learners(observations: Tensor) -> Tensor:
    """Return the observations of all learners, in the order of their ranks, so that all have the same statistics."""
    if not torch.distributed.is_initialized():
        return observations
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, observations.cpu())
    return torch.cat(parts)


def _seen(episode: Any) -> Any:
    """Return the observations ``[n, …]`` of an episode or a rollout."""
    if not isinstance(episode, VectorRollout):
        return episode.get_observations()
    # As in RLlib's episodes: also the one after the last step of each.
    return np.concatenate([episode.observations[rows.start : rows.stop + 1, copy] for copy, rows in episode.pieces()])
