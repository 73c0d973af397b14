"""SACLearner: draws transitions from its replay buffer, gives them the newest learned reward, and takes SAC's gradient steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ray.rllib.core import ALL_MODULES, DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.utils.metrics import NUM_MODULE_STEPS_TRAINED_LIFETIME
from torch import Tensor

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import BrokenAgentError
from rlhf_ray.optim import FlatAdam
from rlhf_ray.policies.sac_update import ReplayedSteps, SACUpdate
from rlhf_ray.policies.soft_actor_critic import SoftActorCriticNetwork
from rlhf_ray.rllib.learned_reward import REPLAYED, take_off
from rlhf_ray.rllib.rllib_internals import count_update, learner_pipeline

ROWS = 16_384
"""ReplayedSteps drawn, and given their reward, at once: enough for a fast forward pass, and little memory."""


COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS, Columns.TERMINATEDS)


class TransitionBuffer:
    """The newest transitions of the environment, with the rewards that come with the episodes (`learned_reward.take_off`).

    A row never depends on its neighbours: its next observation is stored with it, so that the end of a rollout, of an episode or of
    the ring itself can't mix two episodes.

    Args:
        capacity: maximum number of transitions; new ones replace the oldest.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.added = 0
        """Number of transitions added so far."""
        self._columns: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, episodes: Sequence[Any]) -> dict[str, Tensor]:
        """Add the steps of RLlib episodes, or pieces of episodes. Return them as rows, in the layout of `sample`."""
        parts = [_rows(episode) for episode in episodes if len(episode)]
        if not parts:
            return {}
        rows = {name: torch.from_numpy(np.concatenate([part[name] for part in parts])) for name in COLUMNS}
        count = len(rows[Columns.REWARDS])
        self._grow(rows, min(self.added + count, self.capacity))
        newest = slice(max(0, count - self.capacity), None)
        at = torch.arange(self.added, self.added + count)[newest] % self.capacity
        for name, values in rows.items():
            self._columns[name][at] = values[newest]
        self.added += count
        return _masked(rows)

    def sample(self, count: int, newest: int = 0) -> dict[str, Tensor]:
        """Draw transitions uniformly, with replacement, from torch's global generator.

        Args:
            count: how many.
            newest: every second one is drawn from so many of the newest; 0 for from all, as the others are.

        Returns:
            Columns of ``count`` rows: ``obs``, ``new_obs``, ``actions`` (the policy's), ``rewards`` (float32, as added),
            ``terminateds`` (bool) and ``loss_mask`` (bool, all True).
        """
        rows = torch.randint(len(self), (count,))
        if newest:
            ago = torch.randint(min(newest, len(self)), (len(rows[::2]),))
            rows[::2] = (self.added - 1 - ago) % self.capacity
        return _masked({name: column[rows] for name, column in self._columns.items()})

    def reward_scale(self) -> tuple[float, float]:
        """Return the mean and standard deviation of the rewards in the buffer."""
        rewards = self._columns[Columns.REWARDS][: len(self)].double()
        return float(rewards.mean()), float(rewards.var(correction=0).clamp_min(1e-8).sqrt())

    def state(self) -> dict[str, Any]:
        """Return the content as numpy arrays, in the ring's order."""
        columns = {name: column[: len(self)].numpy() for name, column in self._columns.items()}
        return {"added": self.added, "capacity": self.capacity, "columns": columns}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned, with its capacity."""
        self.capacity, self.added = int(state["capacity"]), int(state["added"])
        self._columns = {name: torch.from_numpy(np.array(values)) for name, values in state["columns"].items()}

    def _grow(self, like: dict[str, Tensor], size: int) -> None:
        """Make room for ``size`` rows: double, so that adding stays cheap."""
        if self._columns and len(self._columns[Columns.REWARDS]) >= size:
            return
        room = min(self.capacity, max(size, 2 * len(self)))
        for name, values in like.items():
            column = torch.zeros((room, *values.shape[1:]), dtype=values.dtype)
            if name in self._columns:
                column[: len(self._columns[name])] = self._columns[name]
            self._columns[name] = column


def _rows(episode: Any) -> dict[str, Array]:
    observations, steps = np.asarray(episode.get_observations()), len(episode)
    terminated = np.zeros(steps, dtype=bool)
    terminated[-1] = episode.is_terminated
    return {
        Columns.OBS: observations[:-1],
        Columns.ACTIONS: np.asarray(episode.get_actions()),
        Columns.REWARDS: np.asarray(episode.get_rewards(), dtype=np.float32),
        Columns.NEXT_OBS: observations[1:],
        Columns.TERMINATEDS: terminated,
    }


def _masked(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    return rows | {Columns.LOSS_MASK: torch.ones(len(rows[Columns.REWARDS]), dtype=torch.bool)}


class SACLearner(TorchLearner):  # type: ignore[misc]
    """A learner with a replay buffer, so that past experience is moved neither through the driver nor back.

    RLlib's own SAC learner takes one gradient step per call, each on a list of one-step episodes, which costs several times the
    gradient step. This one adds a rollout, draws the transitions of all gradient steps that it is worth, passes them through the
    learner connectors (which replace the rewards) and takes the steps.
    """

    def build(self) -> None:
        super().build()
        self.replay = TransitionBuffer(self.config.replay_capacity)

    @property
    def network(self) -> SoftActorCriticNetwork:
        """The agent's networks."""
        network: SoftActorCriticNetwork = self.module[DEFAULT_MODULE_ID].unwrapped().network
        return network

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Register the optimisers of actor, critics and temperature (called by RLlib); none for other modules."""
        if module_id != DEFAULT_MODULE_ID:
            return
        target = config.target_entropy
        self.steps = SACUpdate(
            self.network,
            gamma=config.gamma,
            tau=config.tau,
            target_entropy=None if target in (None, "auto") else target,
            max_norm=config.grad_clip,
        )
        rates = _rates(config)
        for name, part in self.steps.parts.items():
            self.register_optimizer(
                module_id=module_id,
                optimizer_name=name,
                optimizer=FlatAdam(part),
                params=part.parameters,
                lr_or_lr_schedule=rates[name],
            )

    def compute_loss_for_module(self, **arguments: Any) -> Any:
        """Not used: `update` takes the gradient steps."""
        raise NotImplementedError

    def update(
        self, *, training_data: TrainingData, timesteps: dict[str, Any] | None = None, **arguments: Any
    ) -> dict[str, Any]:
        """Add rollouts to the buffer and take the gradient steps that they are worth (called by RLlib)."""
        training_data.solve_refs()
        take_off(training_data, self.config)
        before = self.replay.added
        new = self.replay.add(training_data.episodes or [])
        count_update(self)
        steps = self.due(before, self.replay.added)
        if new and self.network.counts:
            self.network.observe(new[Columns.OBS])
        if new:  # for the metrics, and for the novelty of the pretraining: what the newest policy's steps are worth
            self._rewarded(new, self.metrics)
        if steps:
            self._learn(steps)
        self.after_gradient_based_update(timesteps=timesteps or {})
        self.metrics.log_dict(
            {"agent_gradient_steps": steps, "replayed_steps": len(self.replay)}, key=DEFAULT_MODULE_ID, window=1
        )
        trained = steps * self.config.train_batch_size_per_learner
        for module in (DEFAULT_MODULE_ID, ALL_MODULES):
            self.metrics.log_value((module, NUM_MODULE_STEPS_TRAINED_LIFETIME), trained, reduce="lifetime_sum")
        results: dict[str, Any] = self.metrics.reduce()
        return results

    def due(self, before: int, after: int) -> int:
        """Return the gradient steps due when the number of transitions so far goes from ``before`` to ``after``."""
        first, rate = self.config.num_steps_sampled_before_learning_starts, self.config.updates_per_env_step
        return int(rate * max(0, after - first)) - int(rate * max(0, before - first))

    def _rewarded(self, rows: dict[str, Tensor], metrics: Any = None, *, replayed: bool = False) -> dict[str, Tensor]:
        """Pass transitions through the learner connectors, on the learner's device."""
        columns = {name: column.to(self._device) for name, column in rows.items()}
        with torch.no_grad():
            batch = learner_pipeline(self)(
                rl_module=self.module,
                batch={DEFAULT_MODULE_ID: columns},
                episodes=[],
                shared_data={REPLAYED: True} if replayed else {},
                metrics=metrics,
            )
        done: dict[str, Tensor] = batch[DEFAULT_MODULE_ID]
        return done

    def _learn(self, steps: int) -> None:
        size, network = self.config.train_batch_size_per_learner, self.network
        optimizers = {name: self.get_optimizer(DEFAULT_MODULE_ID, name) for name in self.steps.parts}
        sums = torch.zeros(4, device=self._device)
        left = steps
        while left:
            drawn = min(left, max(1, ROWS // size))
            rows = self._rewarded(self.replay.sample(drawn * size, self.config.newest_steps), replayed=True)
            with torch.no_grad():
                transitions = ReplayedSteps(
                    network.scaled(rows[Columns.OBS]),
                    rows[Columns.ACTIONS],
                    rows[Columns.REWARDS],
                    network.scaled(rows[Columns.NEXT_OBS]),
                    rows[Columns.TERMINATEDS],
                )
            noise = torch.randn(drawn, 2 * size, network.drawn, device=self._device)
            for batch, of_batch in zip(transitions.batches(size), noise, strict=True):
                sums += self.steps.step(batch, of_batch, optimizers)
            left -= drawn
        self._check_weights()
        critic, value, actor, entropy = (sums / steps).tolist()
        self.metrics.log_dict(
            {
                "critic_loss": critic,
                "value_mean": value,
                "actor_loss": actor,
                "entropy": entropy,
                "alpha": self.network.log_alpha.exp().item(),
            },
            key=DEFAULT_MODULE_ID,
            window=1,
        )

    def _check_weights(self) -> None:
        """Raise an error if a gradient step has left weights that are NaN or infinite."""
        broken = [name for name, part in self.steps.parts.items() if not part.values.isfinite().all()]
        if broken:
            told = ", ".join(f"sac.{name}_learning_rate ({rate})" for name, rate in _rates(self.config).items())
            raise BrokenAgentError(f"SAC has diverged: weights of {', '.join(broken)} are not finite. Lower {told}.")


def _rates(config: Any) -> dict[str, float]:
    """Return the learning rate of each of `SACUpdate.parts`."""
    return {"actor": config.actor_lr, "critic": config.critic_lr, "alpha": config.alpha_lr}


class ReferenceSACLearner(SACLearner):
    """A `SACLearner` on the environment's reward, normalised to mean 0 and standard deviation 1 over the buffer."""

    def _rewarded(self, rows: dict[str, Tensor], metrics: Any = None, *, replayed: bool = False) -> dict[str, Tensor]:
        columns = super()._rewarded(rows, metrics, replayed=replayed)
        mean, std = self.replay.reward_scale()
        return columns | {Columns.REWARDS: (columns[Columns.REWARDS] - mean) / std}
