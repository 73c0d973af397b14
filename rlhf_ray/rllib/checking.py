"""Checks that an experiment fits its environment, before anything is started."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym

from rlhf_ray import envs
from rlhf_ray.data.bounds import in_words
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.recordings import load_demonstrations, recorded_in
from rlhf_ray.envs.checked import try_out
from rlhf_ray.envs.spaces import check_spaces
from rlhf_ray.labelling.camera import tried_fps
from rlhf_ray.queries.gatherers import wants_films, who_sees_films
from rlhf_ray.queries.parts import check_parts
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib.starting import check_policy, check_reward, fitted_reward, policy_weights
from rlhf_ray.settings import Experiment, ResolvedFragments, env_steps_needed
from rlhf_ray.settings.checks import require

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


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
    observation_space, action_space = cast(gym.spaces.Box, env.observation_space), env.action_space
    limit = None if env.spec is None else env.spec.max_episode_steps
    if (carried := envs.carried_state(config.make_env())) is not None:
        notes.append(carried)
    experiment = config.settings()
    check_parts(experiment.preferences, experiment.reward_model)
    fragments = experiment.resolved_fragments(limit)
    if limit is not None and limit < fragments.length:
        raise SettingError(
            f"fragments.length is {fragments.length}, but episodes of {config.env} have at most {limit} steps, and fragments "
            "never cross episodes: reduce it."
        )
    ensemble = RewardEnsemble(observation_space, action_space, experiment.reward_model)
    if config.reward_from is not None:
        check_reward(
            fitted_reward(config.reward_from),
            observation_space,
            action_space,
            experiment.reward_model,
            config.reward_from,
        )
    films = experiment.preferences.asks_people or (
        wants_films(experiment.preferences) and not is_image(observation_space)
    )
    if films and not is_image(observation_space):
        tried_fps(f"{who_sees_films(experiment.preferences)}, but ", config.make_env(film=True))
    needed, what = env_steps_needed(fragments, experiment.preferences, config.iteration_env_steps, films=films)
    require(experiment.total_env_steps >= needed, "total_env_steps", experiment.total_env_steps, what)
    _check_pretraining(experiment, observation_space)
    module = config.check_network(observation_space, action_space, experiment)
    if getattr(getattr(module, "network", None), "formal", None) is not None and (
        formal := in_words(observation_space)
    ):
        notes.append(formal)
    if config.policy_from is not None:
        weights = policy_weights(config.policy_from, observation_space, action_space)
        check_policy(weights, module.get_state(), config.policy_from, config.agent)
    if (path := config.demonstrations_from) is not None:
        config.cloning()
        own = recorded_in(path, observation_space)
        load_demonstrations(path).checked(observation_space, action_space, path, own)
    return Checked(
        experiment, observation_space, action_space, limit, fragments, films, ensemble.reads_history, tuple(notes)
    )


def _check_pretraining(of: Experiment, observation_space: gym.Space[Any]) -> None:
    """Refuse unsupervised pretraining where it can't work."""
    steps = of.preferences.pretraining_env_steps
    if not steps:
        return
    if len(observation_space.shape or ()) != 1:
        raise SettingError(
            f"preferences.pretraining_env_steps is {steps}, but distances between the observations {observation_space} mean "
            "nothing; it needs vectors: set it to 0."
        )
