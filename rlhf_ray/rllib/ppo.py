"""PreferencePPO: PPO on a reward that is learned from comparisons during training."""

from __future__ import annotations

import logging
import math
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils import force_list

from rlhf_ray.data.errors import SettingError
from rlhf_ray.rllib.algorithm import LearnsFromPreferences
from rlhf_ray.rllib.checking import Checked, check_inherited
from rlhf_ray.rllib.checkpoint_parts import OwnCheckpoints
from rlhf_ray.rllib.config import PreferenceConfig
from rlhf_ray.rllib.env_runner import ArrayEnvRunner, EnvRunner
from rlhf_ray.rllib.learner import PPOLearner, overridden, uses_fast_path
from rlhf_ray.rllib.policy import checked_network, policy_spec
from rlhf_ray.rllib.rllib_internals import model_config, module_spec
from rlhf_ray.rllib.rollouts import FragmentCutter
from rlhf_ray.settings import Experiment, PPOSettings, from_json

logger = logging.getLogger(__name__)


class PreferencePPOConfig(PreferenceConfig, PPOConfig):  # type: ignore[misc]
    """Configures `PreferencePPO`.

    ::

        config = (
            PreferencePPOConfig()
            .environment("Pendulum-v1")
            .fragments(length=25)
            .preferences(comparisons=200, total_env_steps=100_000)
            .reward_model(ensemble_size=3)
        )
        algorithm = config.build_algo()

    Everything else is `PPOConfig`; settings that don't work with a learned reward are refused (`rlhf_ray.rllib.checking`). The
    groups' settings are the fields of `FragmentSettings`, `PreferenceSettings`, `RewardModelSettings` and `LabellingSettings`,
    which document them. Values may be Tune's samplers.
    """

    agent = "ppo"

    def __init__(self, algo_class: type | None = None):
        super().__init__(algo_class=algo_class or PreferencePPO)

    def apply_agent(self, experiment: Experiment, total_env_steps: int | None = None) -> None:
        apply_ppo(self, experiment.ppo, total_env_steps)

    def agent_settings(self) -> dict[str, Any]:
        if not isinstance(self.total_train_batch_size, int):  # a Tune sampler
            return {}
        minibatch = (self.minibatch_size or 1) * max(1, self.num_learners)
        return super().agent_settings() | {"minibatch_size": min(self.total_train_batch_size, minibatch)}

    @property
    def iteration_env_steps(self) -> int:
        return int(self.total_train_batch_size)

    def check_inherited(self) -> None:
        check_inherited(self, PPOConfig(), {}, self.iteration_env_steps)

    def check_network(self, observation_space: Any, action_space: Any, experiment: Experiment) -> Any:
        size = self.minibatch_size or experiment.ppo.minibatch_size
        return checked_network(self.policy_module_spec(), observation_space, action_space, size)

    def env_runner_for(self, checked: Checked) -> type:
        """See `PreferenceConfig.env_runner_for`: one that samples arrays, if nothing needs RLlib's episodes."""
        module = self.check_network(checked.observation_space, checked.action_space, checked.experiment)
        if checked.reads_history or not uses_fast_path(self.learner_class, self, module):
            if (what := overridden(self.learner_class)) is not None:
                logger.warning("Gradient steps and rollouts are RLlib's own, which is slower: %s.", what)
            return EnvRunner
        if (what := needs_episodes(self)) is not None:
            logger.warning("Rollouts come from RLlib's own env runner, which is slower: %s.", what)
            return EnvRunner
        return ArrayEnvRunner

    def cloning(self) -> dict[str, Any]:
        ppo = self.settings().ppo
        if ppo.memory != "none":
            raise SettingError(
                f"--demonstrations needs a policy without memory, but ppo.memory is {ppo.memory!r}: set it to none."
            )
        return {"minibatch_size": ppo.minibatch_size, "learning_rate": ppo.learning_rate}

    def get_default_learner_class(self) -> type:
        return PPOLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Return `rlhf_ray.rllib.policy`'s network, or the one that `rl_module` configures."""
        spec = module_spec(self)
        if isinstance(spec, MultiRLModuleSpec):
            spec = spec.rl_module_specs.get(DEFAULT_MODULE_ID)
        if spec is not None and spec.module_class is not None:
            return RLModuleSpec(module_class=spec.module_class)
        if model_config(self) or (spec is not None and (spec.model_config or spec.catalog_class)):
            return super().get_default_rl_module_spec()
        return policy_spec(from_json(PPOSettings, {**self.experiment[self.agent], **self.agent_settings()}))


class PreferencePPO(OwnCheckpoints, LearnsFromPreferences, PPO):  # type: ignore[misc]
    """PPO whose learner sees a learned reward. An RLlib `Algorithm`: build it from a `PreferencePPOConfig`."""

    config: PreferencePPOConfig

    def update_arguments(self) -> dict[str, Any]:
        return {
            "num_epochs": self.config.num_epochs,
            "minibatch_size": self.config.minibatch_size,
            "shuffle_batch_per_epoch": self.config.shuffle_batch_per_epoch,
        }

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        return PreferencePPOConfig()


def apply_ppo(config: PPOConfig, settings: PPOSettings, total_env_steps: int | None = None) -> None:
    """Apply ``settings`` to RLlib's PPO. The learning rate decays only if ``total_env_steps`` is given."""
    rate: Any = settings.learning_rate
    if settings.final_learning_rate is not None and total_env_steps is not None:
        rate = [[0, rate], [total_env_steps, settings.final_learning_rate]]
    config.env_runners(
        num_env_runners=settings.num_env_runners,
        num_envs_per_env_runner=settings.num_envs,
        rollout_fragment_length="auto",
    )
    config.learners(num_learners=settings.num_learners, num_gpus_per_learner=settings.gpus_per_learner)
    config.training(
        lr=rate,
        gamma=settings.gamma,
        lambda_=settings.gae_lambda,
        train_batch_size=settings.iteration_env_steps,  # in RLlib, train_batch_size_per_learner would override it
        minibatch_size=settings.minibatch_size // max(1, settings.num_learners),  # per learner
        num_epochs=settings.epochs,
        clip_param=settings.clip,
        entropy_coeff=settings.entropy_coefficient,
        vf_loss_coeff=settings.value_coefficient,
        vf_clip_param=float("inf"),
        use_kl_loss=False,
        kl_target=math.inf if settings.kl_target is None else settings.kl_target,
        grad_clip=settings.max_grad_norm,
        grad_clip_by="global_norm",
    )


EPISODE_HOOKS = (
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
)
"""Callbacks that see episodes."""


def needs_episodes(config: Any) -> str | None:
    """Return what in an RLlib configuration works with RLlib's episodes only, in words; None if there is nothing."""
    for hook in EPISODE_HOOKS:
        if getattr(config, f"callbacks_{hook}"):
            return f"callbacks({hook})"
        for kind in force_list(config.callbacks_class):
            if kind is not FragmentCutter and getattr(kind, hook, None) is not getattr(RLlibCallback, hook):
                return f"callbacks: {getattr(kind, '__name__', 'a function')} may use {hook}"
    if config.output:
        return "offline_data(output)"
    return "several learners (num_learners)" if config.num_learners > 1 else None
