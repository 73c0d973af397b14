"""Checks before anything is started: that an experiment fits its environment, and that RLlib's settings fit a learned reward."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import gymnasium as gym
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec

from rlhf_ray import envs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.recordings import load_demonstrations, recorded_in
from rlhf_ray.data.spaces import in_words
from rlhf_ray.envs.checked import try_out
from rlhf_ray.envs.spaces import check_spaces
from rlhf_ray.labelling.camera import tried_fps
from rlhf_ray.queries.gatherers import wants_films, who_sees_films
from rlhf_ray.queries.parts import check_parts
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID
from rlhf_ray.rllib.rllib_internals import module_spec
from rlhf_ray.rllib.starting import check_policy, check_reward, fitted_reward, policy_weights
from rlhf_ray.settings import Experiment, ResolvedFragments, env_steps_needed
from rlhf_ray.settings.checks import require


@dataclass(frozen=True)
class Checked:
    """An experiment that was validated against its environment.

    Attributes:
        experiment: the settings.
        observation_space, action_space: the environment's spaces.
        horizon: maximum number of steps per episode; None if there is no limit.
        fragments: fragment settings with numbers in place of auto.
        films: whether the rollout collector films, because people answer, or a gatherer that wants films of what is no image.
        reads_history: whether the reward of a step depends on the steps before it.
        notes: what is done about bounds of the spaces that are only formal (`rlhf_ray.envs.notes`), and what the environment
            carries from one episode to the next (`rlhf_ray.envs.carried_state`).
    """

    experiment: Experiment
    observation_space: gym.spaces.Box
    action_space: gym.Space[Any]
    horizon: int | None
    fragments: ResolvedFragments
    films: bool = False
    reads_history: bool = False
    notes: tuple[str, ...] = ()


def check_environment(config: AlgorithmConfig) -> Checked:
    """Make the environment once and check that all settings fit it.

    Raises:
        SettingError: the environment is unknown, has unsupported spaces, or has episodes shorter than a fragment; or a network,
            reward model or policy doesn't fit it.
        FaultyEnvironmentError: the environment raises, or returns invalid data.
    """
    if config.env is None:
        raise SettingError("No environment is set; name one with environment('Pendulum-v1').")
    try:
        with contextlib.closing(config.make_env()()) as env:
            check_spaces(env.observation_space, env.action_space, str(config.env))
            try_out(env)
            notes = envs.notes(env)
    except (ValueError, ImportError, gym.error.Error) as error:
        raise SettingError(str(error)) from error
    observation_space = cast(gym.spaces.Box, env.observation_space)
    spaces = observation_space, env.action_space
    limit = None if env.spec is None else env.spec.max_episode_steps
    if (carried := envs.carried_state(config.make_env())) is not None:
        notes.append(carried)
    experiment = config.settings()
    check_parts(experiment.preferences, experiment.reward_model, experiment.machine)
    fragments = experiment.resolved_fragments(limit, images=is_image(observation_space))
    if limit is not None and limit < fragments.length:
        raise SettingError(
            f"fragments.length is {fragments.length}, but episodes of {config.env} have at most {limit} steps, and fragments "
            "never cross episodes: reduce it."
        )
    ensemble = RewardEnsemble(*spaces, experiment.reward_model)
    if config.reward_from is not None:
        check_reward(fitted_reward(config.reward_from), *spaces, experiment.reward_model, config.reward_from)
    films = experiment.preferences.asks_people or (
        wants_films(experiment.preferences) and not is_image(observation_space)
    )
    if films and not is_image(observation_space):
        tried_fps(f"{who_sees_films(experiment.preferences)}, but ", config.make_env(film=True))
    needed, what = env_steps_needed(fragments, experiment.preferences, config.iteration_env_steps, films=films)
    require(experiment.total_env_steps >= needed, "total_env_steps", experiment.total_env_steps, what)
    if (steps := experiment.preferences.pretraining_env_steps) and len(observation_space.shape) != 1:
        raise SettingError(
            f"preferences.pretraining_env_steps is {steps}, but distances between the observations {observation_space} mean "
            "nothing; it needs vectors: set it to 0."
        )
    module = config.check_network(*spaces, experiment)
    if getattr(getattr(module, "network", None), "formal", None) is not None and (
        formal := in_words(observation_space)
    ):
        notes.append(formal)
    if config.policy_from is not None:
        weights = policy_weights(config.policy_from, *spaces)
        check_policy(weights, module.get_state(), config.policy_from, config.agent)
    if (path := config.demonstrations_from) is not None:
        config.cloning()
        load_demonstrations(path).checked(*spaces, path, recorded_in(path, observation_space))
    return Checked(experiment, *spaces, limit, fragments, films, ensemble.reads_history, tuple(notes))


_STACK = "the learned reward needs RLlib's new API stack: remove it"
_FILTER = "it belongs to RLlib's old API stack: use normalize_observations of the agent's settings"
_PIPELINE = "the learned reward, fragments and actions need RLlib's default connectors: remove it"
_ACTIONS = "the reward model sees actions as RLlib scales and clips them by default: remove it"
_OWN = "the reward model sees the environment's own observations, actions and rewards: wrap the environment (gymnasium.wrappers)"
_ONE_STEP = "an iteration is one training step, so that steps and labels add up to the budget: remove it"

REFUSED = {
    "api_stack(enable_rl_module_and_learner)": _STACK,
    "api_stack(enable_env_runner_and_connector_v2)": _STACK,
    "framework": "the reward model uses torch: use 'torch'",
    "env_runners(add_default_connectors_to_env_to_module_pipeline)": _PIPELINE,
    "env_runners(observation_filter)": _FILTER,
    "env_runners(add_default_connectors_to_module_to_env_pipeline)": _PIPELINE,
    "environment(normalize_actions)": _ACTIONS,
    "learners(add_default_connectors_to_learner_pipeline)": _PIPELINE,
    "env_runners(env_to_module_connector)": _OWN,
    "env_runners(module_to_env_connector)": _OWN,
    "learners(learner_connector)": _OWN,
    "environment(clip_rewards)": "the learner doesn't see the environment's reward: remove it",
    "training(model)": "it belongs to RLlib's old API stack: use rl_module(model_config=DefaultModelConfig(…))",
    "resources(num_gpus)": "it belongs to RLlib's old API stack: use learners(num_gpus_per_learner=…)",
    "offline_data(input_)": "training uses rollouts of the environment: remove it",
    "reporting(min_time_s_per_iteration)": _ONE_STEP,
    "reporting(min_train_timesteps_per_iteration)": _ONE_STEP,
    "reporting(min_sample_timesteps_per_iteration)": _ONE_STEP,
}
"""Settings of any `AlgorithmConfig` that must keep RLlib's default, and the remedy."""


def _value(config: Any, setting: str) -> Any:
    """Return a setting's value: RLlib's attribute has the name in parentheses, sometimes with an underscore or a suffix."""
    name = setting.rpartition("(")[2].rstrip(")")
    return getattr(config, next(each for each in (f"{name}_str", f"_{name}", name) if hasattr(config, each)))


def check_inherited(config: Any, usual: AlgorithmConfig, refused: Mapping[str, str], iteration_env_steps: int) -> None:
    """Check settings that come from RLlib.

    Raises:
        SettingError: RLlib or the learned reward would ignore or contradict a setting. The message names the remedy.
    """
    for setting, remedy in {**REFUSED, **refused}.items():
        if (value := _value(config, setting)) != _value(usual, setting):
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
