"""The reference: the agent on the true reward, with an experiment's settings and number of environment steps."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rlhf_ray.actors.ray_internals import hush_ray
from rlhf_ray.rllib.array_env_runner import ArrayEnvRunner
from rlhf_ray.rllib.connectors import GivesEnvActions
from rlhf_ray.rllib.env_runner import EnvRunner, env_threads, raise_fault, register_environment
from rlhf_ray.rllib.learned_reward import RewardConnector
from rlhf_ray.rllib.learner import PPOLearner
from rlhf_ray.rllib.policy import CollectorPolicy, policy_spec
from rlhf_ray.rllib.ppo import apply_ppo
from rlhf_ray.rllib.rllib_internals import forget_env_runners, in_temporary_folder, local_learner
from rlhf_ray.rllib.sac import ReplaySACConfig
from rlhf_ray.rllib.sac_learner import ReferenceSACLearner
from rlhf_ray.settings import Experiment


class ReferencePPOConfig(GivesEnvActions, PPOConfig):  # type: ignore[misc]
    """RLlib's PPO on the true reward, otherwise set up like `PreferencePPOConfig`.

    The true reward is normalised to mean 0 and standard deviation 1, like the learned one: otherwise the same learning rates and
    gradient limits would not suit it.
    """

    @classmethod
    def from_experiment(cls, experiment: Experiment) -> ReferencePPOConfig:
        """Build the reference configuration of ``experiment``."""
        config = cls()
        _apply(config, experiment)
        apply_ppo(config, experiment.ppo, experiment.total_env_steps)
        if experiment.ppo.memory == "none" and experiment.ppo.num_learners <= 1:
            config.env_runner_cls = ArrayEnvRunner
        spec: RLModuleSpec = policy_spec(experiment.ppo)
        config.rl_module(rl_module_spec=spec)
        return config

    def get_default_learner_class(self) -> type:
        """See RLlib."""
        return PPOLearner

    def build_learner_connector(self, input_observation_space: Any, input_action_space: Any, device: Any = None) -> Any:
        """Build RLlib's pipeline, followed by the reward normaliser."""
        pipeline = super().build_learner_connector(input_observation_space, input_action_space, device)
        pipeline.append(NormalisedReward())
        return pipeline


class ReferenceSACConfig(GivesEnvActions, ReplaySACConfig):
    """SAC on the true reward, normalised for the same reason, otherwise set up like `PreferenceSACConfig`."""

    @classmethod
    def from_experiment(cls, experiment: Experiment) -> ReferenceSACConfig:
        """Build the reference configuration of ``experiment``."""
        config = cls()
        _apply(config, experiment)
        config.apply(experiment.sac)
        return config

    def get_default_learner_class(self) -> type:
        """See RLlib."""
        return ReferenceSACLearner


def _apply(config: Any, experiment: Experiment) -> None:
    """Apply the settings that don't depend on the agent."""
    config.env_runner_cls, config.faults = EnvRunner, f"reference-{uuid.uuid4().hex[:12]}"
    register_environment(config, experiment.environment)
    config.environment(experiment.environment, env_config=env_threads(experiment))
    config.debugging(seed=experiment.seed, log_level="ERROR")


class NormalisedReward(RewardConnector):
    """Normalises the true rewards to mean 0 and standard deviation 1 over all steps so far."""

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self._count, self._sum, self._squares = 0.0, 0.0, 0.0

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Replace the rewards of the policy's steps; masked rows get 0."""
        columns = batch[DEFAULT_MODULE_ID]
        rewards, real = columns[Columns.REWARDS], columns[Columns.LOSS_MASK]
        steps = rewards[real].double()
        self._count += len(steps)
        self._sum += float(steps.sum())
        self._squares += float((steps**2).sum())
        mean = self._sum / self._count
        std = max(self._squares / self._count - mean**2, 1e-8) ** 0.5
        columns[Columns.REWARDS] = torch.where(real, (rewards - mean) / std, 0.0).float()
        return batch


def train_reference(experiment: Experiment, make_config: Callable[[Experiment], Any]) -> CollectorPolicy:
    """Train the reference of ``experiment``, whose configuration ``make_config`` makes, and return its policy.

    It trains in this process, for whole iterations, and so may use up to one iteration less than the step budget.
    """
    alone = experiment.with_agent_settings(num_learners=0)
    with in_temporary_folder():
        algorithm = make_config(alone).build_algo()
    try:
        for _ in range(experiment.total_env_steps // experiment.agent_settings.iteration_env_steps):
            algorithm.train()
            raise_fault(algorithm.config.faults)
        module = local_learner(algorithm.learner_group).module[DEFAULT_MODULE_ID].unwrapped().cpu()
        return CollectorPolicy(module)
    except KeyboardInterrupt:
        hush_ray()
        forget_env_runners(algorithm.env_runner_group)  # otherwise `stop` waits for their rollouts
        raise
    finally:
        algorithm.stop()
        with contextlib.suppress(OSError):
            Path(algorithm.logdir).rmdir()
