"""What `PreferencePPOConfig` inherits from `PPOConfig` and cannot honour: refused, each with a line, instead of ignored."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec

from rlhf_ray.data.errors import SettingError
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID
from rlhf_ray.rllib.rllib_internals import module_spec

_STACK = "the learned reward needs RLlib's new API stack: leave it out"
_FILTER = "it is of RLlib's old API stack: use env_runners(env_to_module_connector=…) with a MeanStdFilter"
_PIPELINE = "the learned reward, clips and actions need RLlib's default connectors: add yours to them instead"
_ACTIONS = "the reward model sees actions as RLlib scales and clips them by default: use env_runners(module_to_env_connector=…)"
_ONE_STEP = "an iteration is one training step, so that steps and labels add up to the budget: leave it out"

REFUSED = {
    "enable_rl_module_and_learner": ("api_stack(enable_rl_module_and_learner)", _STACK),
    "enable_env_runner_and_connector_v2": ("api_stack(enable_env_runner_and_connector_v2)", _STACK),
    "framework_str": ("framework", "the reward model is torch's: use 'torch'"),
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
    "clip_rewards": ("environment(clip_rewards)", "the learner sees no reward of the environment: leave it out"),
    "model": ("training(model)", "it is of RLlib's old API stack: use rl_module(model_config=DefaultModelConfig(…))"),
    "num_gpus": ("resources(num_gpus)", "it is of RLlib's old API stack: use learners(num_gpus_per_learner=…)"),
    "input_": ("offline_data(input_)", "training is on rollouts of the environment: leave it out"),
    "min_time_s_per_iteration": ("reporting(min_time_s_per_iteration)", _ONE_STEP),
    "min_train_timesteps_per_iteration": ("reporting(min_train_timesteps_per_iteration)", _ONE_STEP),
    "min_sample_timesteps_per_iteration": ("reporting(min_sample_timesteps_per_iteration)", _ONE_STEP),
}
"""Attributes of `PPOConfig` that have to be as RLlib has them: how they are set, and what to do instead."""


def check_inherited(config: PPOConfig) -> None:
    """Check what is set RLlib's way.

    Raises:
        SettingError: RLlib, or the learned reward, would ignore it, or contradict it; says what to set instead.
    """
    usual = PPOConfig()
    for attribute, (setting, remedy) in REFUSED.items():
        value = getattr(config, attribute)
        if value != getattr(usual, attribute):
            raise SettingError(f"{setting} is {_said(value)}, and {remedy}.")
    if config.is_multi_agent or config.policies_to_train not in (None, [DEFAULT_MODULE_ID]):
        raise SettingError(
            f"multi_agent() sets the policies {sorted(config.policies)} and policies_to_train={config.policies_to_train}, and one "
            "policy learns from preferences: leave it out."
        )
    _check_module(module_spec(config))
    steps = config.total_train_batch_size
    copies = config.num_envs_per_env_runner * max(1, config.num_env_runners)
    if config.rollout_fragment_length not in ("auto", steps // copies):
        raise SettingError(
            f"env_runners(rollout_fragment_length) is {config.rollout_fragment_length}, and an iteration of {steps} steps "
            f"(train_batch_size) has {steps // copies} for each of {copies} environment copies: use 'auto'."
        )


def _check_module(spec: Any) -> None:
    if spec is None:
        return
    several = isinstance(spec, MultiRLModuleSpec)
    names = set(spec.rl_module_specs) if several else {DEFAULT_MODULE_ID}
    if names - {REWARD_MODULE_ID} != {DEFAULT_MODULE_ID}:
        raise SettingError(
            f"rl_module(rl_module_spec) has the modules {sorted(names)}, and one policy learns from preferences: give an "
            f"RLModuleSpec, or call the only module {DEFAULT_MODULE_ID!r}."
        )
    for each in (spec, spec.rl_module_specs[DEFAULT_MODULE_ID]) if several else (spec,):
        if each.load_state_path is not None:
            raise SettingError(
                f"rl_module(rl_module_spec) has load_state_path={each.load_state_path!r}, which RLlib gives up: use "
                "start_from(policy=…) with a run's folder, a checkpoint or a .safetensors file."
            )


def _said(value: Any) -> str:
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) < 60 else "changed"
