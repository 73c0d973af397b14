"""Refuses settings that our configurations inherit from RLlib's and a learned reward doesn't support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec

from rlhf_ray.data.errors import SettingError
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID
from rlhf_ray.rllib.rllib_internals import module_spec

_STACK = "the learned reward needs RLlib's new API stack: remove it"
_FILTER = "it belongs to RLlib's old API stack: use normalize_observations of the agent's settings"
_PIPELINE = "the learned reward, fragments and actions need RLlib's default connectors: remove it"
_ACTIONS = "the reward model sees actions as RLlib scales and clips them by default: remove it"
_OWN = "the reward model sees the environment's own observations, actions and rewards: wrap the environment (gymnasium.wrappers)"
_ONE_STEP = "an iteration is one training step, so that steps and labels add up to the budget: remove it"

REFUSED = {
    "enable_rl_module_and_learner": ("api_stack(enable_rl_module_and_learner)", _STACK),
    "enable_env_runner_and_connector_v2": ("api_stack(enable_env_runner_and_connector_v2)", _STACK),
    "framework_str": ("framework", "the reward model uses torch: use 'torch'"),
    "add_default_connectors_to_env_to_module_pipeline": (
        "env_runners(add_default_connectors_to_env_to_module_pipeline)",
        _PIPELINE,
    ),
    "observation_filter": ("env_runners(observation_filter)", _FILTER),
    "add_default_connectors_to_module_to_env_pipeline": (
        "env_runners(add_default_connectors_to_module_to_env_pipeline)",
        _PIPELINE,
    ),
    "normalize_actions": ("environment(normalize_actions)", _ACTIONS),
    "add_default_connectors_to_learner_pipeline": ("learners(add_default_connectors_to_learner_pipeline)", _PIPELINE),
    "_env_to_module_connector": ("env_runners(env_to_module_connector)", _OWN),
    "_module_to_env_connector": ("env_runners(module_to_env_connector)", _OWN),
    "_learner_connector": ("learners(learner_connector)", _OWN),
    "clip_rewards": ("environment(clip_rewards)", "the learner doesn't see the environment's reward: remove it"),
    "model": (
        "training(model)",
        "it belongs to RLlib's old API stack: use rl_module(model_config=DefaultModelConfig(…))",
    ),
    "num_gpus": ("resources(num_gpus)", "it belongs to RLlib's old API stack: use learners(num_gpus_per_learner=…)"),
    "input_": ("offline_data(input_)", "training uses rollouts of the environment: remove it"),
    "min_time_s_per_iteration": ("reporting(min_time_s_per_iteration)", _ONE_STEP),
    "min_train_timesteps_per_iteration": ("reporting(min_train_timesteps_per_iteration)", _ONE_STEP),
    "min_sample_timesteps_per_iteration": ("reporting(min_sample_timesteps_per_iteration)", _ONE_STEP),
}
"""Attributes of any `AlgorithmConfig` that must keep RLlib's default: the setting's name and the remedy."""


def check_inherited(
    config: Any, usual: AlgorithmConfig, refused: Mapping[str, tuple[str, str]], iteration_env_steps: int
) -> None:
    """Check settings that come from RLlib.

    Args:
        config: the configuration.
        usual: the agent's configuration with RLlib's defaults.
        refused: like `REFUSED`, for this agent.
        iteration_env_steps: environment steps of one iteration.

    Raises:
        SettingError: RLlib or the learned reward would ignore or contradict a setting. The message names the remedy.
    """
    for attribute, (setting, remedy) in {**REFUSED, **refused}.items():
        value = getattr(config, attribute)
        if value != getattr(usual, attribute):
            raise SettingError(f"{setting} is {_said(value)}, but {remedy}.")
    if config.is_multi_agent or config.policies_to_train not in (None, [DEFAULT_MODULE_ID]):
        raise SettingError(
            f"multi_agent() sets the policies {sorted(config.policies)} and policies_to_train={config.policies_to_train}, but only "
            "one policy can learn from preferences: remove it."
        )
    _check_module(module_spec(config))
    copies = config.num_envs_per_env_runner * max(1, config.num_env_runners)
    steps = iteration_env_steps // copies
    if config.rollout_fragment_length not in ("auto", steps):
        raise SettingError(
            f"env_runners(rollout_fragment_length) is {config.rollout_fragment_length}, but an iteration of {iteration_env_steps} "
            f"steps (train_batch_size) has {steps} for each of {copies} environment copies: use 'auto'."
        )
    if config.batch_mode != "truncate_episodes":
        raise SettingError(
            f"batch_mode is {config.batch_mode!r}; use 'truncate_episodes', the only one with a known number of steps."
        )


def _check_module(spec: Any) -> None:
    if spec is None:
        return
    several = isinstance(spec, MultiRLModuleSpec)
    names = set(spec.rl_module_specs) if several else {DEFAULT_MODULE_ID}
    if names - {REWARD_MODULE_ID} != {DEFAULT_MODULE_ID}:
        raise SettingError(
            f"rl_module(rl_module_spec) has the modules {sorted(names)}, but only one policy can learn from preferences: pass an "
            f"RLModuleSpec, or name the only module {DEFAULT_MODULE_ID!r}."
        )
    for part in (spec, spec.rl_module_specs[DEFAULT_MODULE_ID]) if several else (spec,):
        if part.load_state_path is not None:
            raise SettingError(
                f"rl_module(rl_module_spec) has load_state_path={part.load_state_path!r}, which RLlib deprecates: use "
                "start_from(policy=…) with a run's folder, a checkpoint or a .safetensors file."
            )


def _said(value: Any) -> str:
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) < 60 else "changed"
