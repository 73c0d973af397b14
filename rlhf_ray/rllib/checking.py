"""Checks that an experiment fits its environment, before anything is started."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import gymnasium as gym
import numpy as np
from ray.rllib.core.columns import Columns
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rlhf_ray import envs
from rlhf_ray.data.bounds import in_words
from rlhf_ray.data.errors import PartError, SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.recordings import load_demonstrations, recorded_in
from rlhf_ray.envs.checked import try_out
from rlhf_ray.envs.spaces import check_spaces
from rlhf_ray.labelling.camera import tried_fps
from rlhf_ray.queries.gatherers import wants_films, who_sees_films
from rlhf_ray.queries.parts import check_parts
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib.starting import StartingPoint, check_policy, check_reward, fitted_reward, policy_weights
from rlhf_ray.settings import Experiment, ResolvedFragments, env_steps_needed
from rlhf_ray.settings.checks import require

logger = logging.getLogger(__name__)


class Configuration(StartingPoint, Protocol):
    """What is checked of `rlhf_ray.rllib.config.PreferenceConfig`, and of RLlib's configuration that it extends."""

    env: Any
    agent: str
    reward_from: str | None
    iteration_env_steps: int
    build_env_to_module_connector: Callable[..., Any]
    build_module_to_env_connector: Callable[..., Any]
    _env_to_module_connector: Any
    _module_to_env_connector: Any
    _learner_connector: Any

    def make_env(self, *, film: bool = False) -> Callable[[], gym.Env[Any, Any]]:
        """Return a function that makes one environment."""
        ...

    def check_network(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], of: Experiment) -> Any:
        """Make the policy's network once, and return it."""
        ...


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


def check_environment(config: Configuration) -> Checked:
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
    _check_connectors(config, experiment, films)
    _check_pretraining(config, experiment, observation_space)
    seen = _seen_by_policy(config, observation_space, action_space)
    module = config.check_network(seen, action_space, experiment)
    _check_rewards_unread(config, observation_space, action_space, module)
    if getattr(getattr(module, "network", None), "formal", None) is not None and (seen_words := in_words(seen)):
        notes.append(seen_words)
    if config.policy_from is not None:
        weights = policy_weights(config.policy_from, seen, action_space)
        check_policy(weights, module.get_state(), config.policy_from, config.agent)
    if config.demonstrations_from is not None:
        _check_demonstrations(config, observation_space, action_space, config.demonstrations_from)
    return Checked(
        experiment, observation_space, action_space, limit, fragments, films, ensemble.reads_history, tuple(notes)
    )


def _check_pretraining(config: Configuration, of: Experiment, observation_space: gym.Space[Any]) -> None:
    """Refuse unsupervised pretraining where it can't work."""
    steps = of.preferences.pretraining_env_steps
    if not steps:
        return
    if len(observation_space.shape or ()) != 1:
        raise SettingError(
            f"preferences.pretraining_env_steps is {steps}, but distances between the observations {observation_space} mean "
            "nothing; it needs vectors: set it to 0."
        )
    own = (config._env_to_module_connector, config._module_to_env_connector, config._learner_connector)
    if any(connector is not None for connector in own):
        raise SettingError(
            f"preferences.pretraining_env_steps is {steps}, but pretraining does not work with custom connectors: set it to 0, "
            "or wrap the environment (gymnasium.wrappers) instead."
        )


def _check_demonstrations(
    config: Configuration, observation_space: gym.spaces.Box, action_space: gym.Space[Any], path: str
) -> None:
    """Refuse demonstrations that the policy can't be cloned from."""
    config.cloning()
    if config._env_to_module_connector is not None:
        raise SettingError(
            f"Training starts from the demonstrations in {path}, but cloning works without connectors: wrap the environment "
            "(gymnasium.wrappers) instead of using env_runners(env_to_module_connector)."
        )
    own = recorded_in(path, observation_space)
    load_demonstrations(path).checked(observation_space, action_space, path, own)


def _check_connectors(config: Configuration, of: Experiment, films: bool) -> None:
    """Refuse the rollout collector with custom connectors, because it acts without them."""
    if config._env_to_module_connector is None and config._module_to_env_connector is None:
        return
    exploration = of.fragments.exploration_env_steps
    if exploration or films:
        what = f"fragments.exploration_env_steps is {exploration}" if exploration else who_sees_films(of.preferences)
        raise SettingError(
            f"{what}, but the rollout collector acts without connectors: wrap the environment (gymnasium.wrappers) instead of "
            "using env_runners(env_to_module_connector, module_to_env_connector)."
        )


def _check_rewards_unread(
    config: Configuration, observation_space: gym.Space[Any], action_space: gym.Space[Any], module: Any
) -> None:
    """Refuse connectors that read the environment's rewards in the first steps of an episode (`rlhf_ray.rllib.true_rewards`)."""
    if config._env_to_module_connector is None and config._module_to_env_connector is None:
        return
    spaces = dict.fromkeys((INPUT_ENV_SPACES, INPUT_ENV_SINGLE_SPACES), (observation_space, action_space))
    observation = np.zeros(observation_space.shape or (), observation_space.dtype)
    episode = SingleAgentEpisode(observation_space=observation_space, action_space=action_space)
    episode.add_env_reset(observation, {})
    given: dict[str, Any] = {"rl_module": module, "episodes": [episode], "explore": True, "shared_data": {}}
    try:
        to_module = config.build_env_to_module_connector(spaces=spaces)
        to_env = config.build_module_to_env_connector(spaces=spaces)
        for _ in range(2):
            batch = to_module(batch={}, **given, **{Columns.REWARDS: np.zeros(1)})
            to_env(batch=module.forward_exploration(batch), **given)
            episode.add_env_step(observation, action_space.sample(), 0.0, {})
    except PartError as error:
        raise SettingError(str(error)) from None
    except Exception:  # what a connector needs of the environment is not here: the first rollout shows it
        logger.debug("The connectors can't be tried out.", exc_info=True)


def _seen_by_policy(
    config: Configuration, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> gym.Space[Any]:
    """Return the observation space after the user's env-to-module connectors."""
    if config._env_to_module_connector is None:
        return observation_space
    spaces = (observation_space, action_space)
    try:
        pipeline = config.build_env_to_module_connector(
            spaces={INPUT_ENV_SPACES: spaces, INPUT_ENV_SINGLE_SPACES: spaces}
        )
    except Exception as error:
        raise SettingError(
            f"env_runners(env_to_module_connector) doesn't accept the observations {observation_space} and actions "
            f"{action_space}: {type(error).__name__}: {error}"
        ) from error
    return cast("gym.Space[Any]", pipeline.observation_space)
