"""PreferenceConfig: what an RLlib configuration carries besides, so that its algorithm learns from preferences: one experiment."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import gymnasium as gym
from ray import tune
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.common import AddObservationsFromEpisodesToBatch
from ray.rllib.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_context import EnvContext
from ray.rllib.utils import force_list

from rlhf_ray import envs
from rlhf_ray.actors.labelling_page import PageSettings
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import name_of
from rlhf_ray.envs.checked import try_out
from rlhf_ray.envs.spaces import check_spaces
from rlhf_ray.labelling.films import Camera, camera_options, without_a_screen
from rlhf_ray.labelling.serve import warn_of_readers
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.queries.parts import check_parts
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib.clip_cutter import ClipCutter
from rlhf_ray.rllib.connectors import KeepObservations, RewardFirst
from rlhf_ray.rllib.env_runner import EnvRunner
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID, LearnedReward, reward_spec
from rlhf_ray.rllib.policy import checked_network
from rlhf_ray.rllib.rllib_internals import env_creator, model_config_of
from rlhf_ray.rllib.starting import check_policy, check_reward, fitted_reward, policy_weights
from rlhf_ray.settings import NO_QUESTIONS, PARTS, Experiment, ResolvedFragments, from_json, to_json
from rlhf_ray.store.files import store_of


@dataclass(frozen=True)
class Checked:
    """An experiment that was tried on its environment.

    Attributes:
        experiment: the settings.
        observation_space, action_space: the environment's.
        horizon: steps of its episodes, at most; None where there is no limit.
        fragments: the settings with numbers in place of auto.
    """

    experiment: Experiment
    observation_space: gym.spaces.Box
    action_space: gym.Space[Any]
    horizon: int | None
    fragments: ResolvedFragments


class PreferenceConfig(AlgorithmConfig):  # type: ignore[misc]
    """A mixin before an RLlib `AlgorithmConfig`.

    The settings are one `Experiment`, kept as plain values in ``experiment`` until they are used, because each may be one of Tune's
    samplers. Everything else is RLlib's; what of it a learned reward can't honour is refused (`rlhf_ray.rllib.inherited`).
    """

    agent: str
    """The group of settings of the agent: "ppo"."""

    def __init__(self, algo_class: type | None = None):
        super().__init__(algo_class=algo_class)
        self.experiment: dict[str, Any] = to_json(Experiment())
        self.sessions: str | None = None
        self.store: str | None = None
        self.reward_from: str | None = None
        self.policy_from: str | None = None
        self.labels_from: str | None = None
        self.checked: Checked | None = None
        """Set by each algorithm."""
        self.ring_name: str | None = None
        """Set by each algorithm for its own actors."""
        self.env_runner_cls = EnvRunner
        self.apply_agent(Experiment())

    def apply_agent(self, experiment: Experiment, total_env_steps: int | None = None) -> None:
        """Set RLlib's own settings as those of the agent say. What changes with the steps does so given ``total_env_steps``."""
        raise NotImplementedError

    def agent_settings(self) -> dict[str, Any]:
        """The agent's settings as RLlib's own now are, which may have been changed: as the experiment has them."""
        raise NotImplementedError

    @property
    def most_iteration_env_steps(self) -> int:
        """The most environment steps that an iteration takes."""
        raise NotImplementedError

    @classmethod
    def from_experiment(cls, experiment: Experiment) -> Self:
        """The configuration of ``experiment``."""
        config: Any = cls()
        config.experiment = to_json(experiment)
        config.apply_agent(experiment, experiment.total_env_steps)
        config.environment(experiment.environment)
        config.debugging(seed=experiment.seed, log_level="ERROR")
        return cast(Self, config)

    def settings(self) -> Experiment:
        """The experiment, checked: parsed once for each state of the configuration.

        Raises:
            SettingError: with the setting, its value and the remedy.
        """
        agent = {**self.experiment[self.agent], **self.agent_settings()}
        seed = getattr(self, "seed", None) or 0
        values = {**self.experiment, self.agent: agent, "seed": seed, "environment": str(getattr(self, "env", None))}
        for group, names in PARTS.items():
            values[group] = {**values[group], **{name: name_of(values[group][name]) for name in names}}
        return _parsed(json.dumps(values))

    def environment(self, env: Any = None, **arguments: Any) -> Self:
        """RLlib's, which besides takes the names that `rlhf_ray.envs.make_env` takes (``procgen/coinrun-easy``, …)."""
        if isinstance(env, str):
            register_environment(self, env)
        if env is not None:
            arguments["env"] = env
        super().environment(**arguments)
        return self

    def fragments(self, **settings: Any) -> Self:
        """Set fields of `FragmentSettings`: how clips are cut."""
        self._set("fragments", settings)
        return self

    def preferences(
        self,
        *,
        total_env_steps: int | None = None,
        checkpoint_every: int | None = None,
        store: Path | str | None = None,
        **settings: Any,
    ) -> Self:
        """Set fields of `PreferenceSettings`: how many comparisons, when, which, and who answers.

        Args:
            total_env_steps: environment steps of the whole training, over which the comparisons are spread.
            checkpoint_every: iterations between those after which a checkpoint can be continued from bit for bit (see
                `Experiment.checkpoint_every`). Take checkpoints at multiples of it.
            store: folder or URL of the preference store; ``preferences`` in the algorithm's ``logdir`` or a Tune trial's folder,
                unless given. Two algorithms must not share one.
            settings: fields of `PreferenceSettings`.
        """
        if total_env_steps is not None:
            self._set(None, {"total_env_steps": total_env_steps})
        if checkpoint_every is not None:
            self._set(None, {"checkpoint_every": checkpoint_every})
        if store is not None:
            self.store = _absolute(store)
        self._set("preferences", settings)
        return self

    def reward_model(self, **settings: Any) -> Self:
        """Set fields of `RewardModelSettings`: the reward networks and how they are fitted."""
        self._set("reward_model", settings)
        return self

    def labelling(self, *, sessions: Path | str | None = None, **settings: Any) -> Self:
        """Set fields of `LabellingSettings`: the page where people compare clips, where ``preferences.teacher`` is human.

        Args:
            sessions: file with the people's links, so that they stay the same when training is continued; made where it is not
                there. Unless given, ``labelling.json`` in the algorithm's ``logdir``.
            settings: fields of `LabellingSettings`.
        """
        if sessions is not None:
            self.sessions = str(Path(sessions).absolute())
        self._set("labelling", settings)
        return self

    def start_from(
        self,
        *,
        reward_model: Path | str | None = None,
        policy: Path | str | None = None,
        labels: Path | str | None = None,
    ) -> Self:
        """Set where training starts, other than from nothing.

        Args:
            reward_model: folder of a reward model that is fitted already, or a run's. Training is on that alone: nothing is
                asked, labelled or fitted, no clips are gathered, and `PreferenceSettings.without_questions` is set.
            policy: weights that the policy begins with: a run's folder, an RLlib checkpoint of `PreferencePPO` or a
                ``.safetensors`` file of them. Optimiser and counters begin anew.
            labels: folder or URL of a preference store, or a run's folder. Its labels are copied, count as answered, and the
                first fit is to them too.
        """
        if reward_model is not None:
            self.reward_from = _absolute(reward_model)
            self._set("reward_model", to_json(fitted_reward(reward_model).settings))
            self._set("preferences", dict(NO_QUESTIONS))
        if policy is not None:
            self.policy_from = _absolute(policy)
        if labels is not None:
            self.labels_from = store_of(_absolute(labels))
        return self

    def _set(self, group: str | None, changes: dict[str, Any]) -> None:
        """Set settings of a group, or of the experiment itself."""
        if group is None:
            self.experiment = {**self.experiment, **changes}
            return
        known = self.experiment[group]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise SettingError(f"{group} has no setting {', '.join(unknown)}; it has {', '.join(known)}.")
        self.experiment = {**self.experiment, group: {**known, **changes}}

    @property
    def faults(self) -> str:
        """Under which env runners report what is wrong with their environment."""
        return str(self.ring_name)

    def make_env(self, *, film: bool = False) -> Callable[[], gym.Env[Any, Any]]:
        """A function that makes one copy of the environment, for the rollout collector; with ``film``, one that can be filmed."""
        env = self.env
        creator = env_creator(env) if isinstance(env, str) else env
        env_config = dict(self.env_config)
        if not isinstance(creator, envs.EnvCreator):  # somebody's own, which may ask for what RLlib tells besides
            env_config = EnvContext(env_config, worker_index=0, num_workers=self.num_env_runners)
        if not film:
            return functools.partial(creator, env_config)
        plain = creator(env_config)
        env_config.update(camera_options(plain))
        plain.close()
        return functools.partial(without_a_screen, creator, env_config)

    def check_settings(self) -> None:
        """Check what the settings say together with where training starts; to be called by ``validate``.

        Raises:
            SettingError: with the setting, its value and the remedy.
        """
        of = self.settings()
        if self.reward_from is not None and of.preferences.comparisons:
            raise SettingError(
                f"preferences.comparisons is {of.preferences.comparisons}, and training is on the reward model in "
                f"{self.reward_from}, which is fitted already: leave one of them out."
            )
        if self.labels_from is not None and not of.preferences.comparisons:
            raise SettingError(
                f"Training is to start from the labels in {self.labels_from}, and to ask for and fit to none "
                "(preferences.comparisons is 0): leave the labels out, or fit a reward model to them first (`rlhf-ray fit`)."
            )

    def check_environment(self) -> Checked:
        """Make the environment once and check that everything fits it.

        Raises:
            SettingError: the environment is unknown or has unsupported spaces or episodes shorter than a fragment, or a network
            does not fit its observations, or what training starts from does not fit all that.
            FaultyEnvironmentError: the environment raises, or gives what cannot be trained on.
        """
        if self.env is None:
            raise SettingError("No environment is set; name one with environment('Pendulum-v1').")
        try:
            env = self.make_env()()
            check_spaces(env.observation_space, env.action_space, str(self.env))
            try_out(env)
        except (ValueError, ImportError, gym.error.Error) as error:
            raise SettingError(str(error)) from error
        observation_space, action_space = cast(gym.spaces.Box, env.observation_space), env.action_space
        limit = None if env.spec is None else env.spec.max_episode_steps
        env.close()  # type: ignore[no-untyped-call]
        of = self.settings()
        check_parts(of.preferences, of.reward_model)
        fragments = of.resolved_fragments(limit)
        if limit is not None and limit < fragments.length:
            raise SettingError(
                f"fragments.length is {fragments.length}, and episodes of {self.env} have at most {limit} steps: "
                "fragments never cross an episode, so make them shorter."
            )
        RewardEnsemble(observation_space, action_space, of.reward_model)
        if self.reward_from is not None:
            check_reward(
                fitted_reward(self.reward_from),
                observation_space,
                action_space,
                of.reward_model,
                self.reward_from,
            )
        self._check_connectors(of)
        seen = self._seen_by_policy(observation_space, action_space)
        module = checked_network(self.policy_module_spec(), seen, action_space)
        if self.policy_from is not None:
            check_policy(policy_weights(self.policy_from), module.get_state(), self.policy_from)
        return Checked(of, observation_space, action_space, limit, fragments)

    def _check_connectors(self, of: Experiment) -> None:
        """Check that nobody acts without the connectors that change what the policy sees or does."""
        if self._env_to_module_connector is None and self._module_to_env_connector is None:
            return
        exploration = of.fragments.exploration_env_steps
        if exploration or of.preferences.asks_people:
            what = (
                f"fragments.exploration_env_steps is {exploration}" if exploration else "preferences.teacher is human"
            )
            raise SettingError(
                f"{what}, and the rollout collector acts without connectors: wrap the environment (gymnasium.wrappers) instead of "
                "env_runners(env_to_module_connector, module_to_env_connector)."
            )

    def _seen_by_policy(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> gym.Space[Any]:
        """The space of the observations that the user's connectors make of the environment's."""
        if self._env_to_module_connector is None:
            return observation_space
        spaces = (observation_space, action_space)
        try:
            pipeline = self.build_env_to_module_connector(
                spaces={INPUT_ENV_SPACES: spaces, INPUT_ENV_SINGLE_SPACES: spaces}
            )
        except Exception as error:
            raise SettingError(
                f"env_runners(env_to_module_connector) does not take the observations {observation_space} and actions "
                f"{action_space}: {type(error).__name__}: {error}"
            ) from error
        return cast("gym.Space[Any]", pipeline.observation_space)

    def make_page(self, run_id: str, folder: Path | str) -> PageSettings | None:
        """What the labelling page is made from; None where no people are asked.

        Args:
            run_id: for the events.
            folder: where people's links are kept, unless `labelling` has said where.

        Raises:
            SettingError: the environment cannot be shown.
        """
        of = self.settings()
        if not of.preferences.asks_people:
            return None
        labelling = of.labelling
        sessions = Path(self.sessions or Path(folder).absolute() / "labelling.json")
        Sessions.keep(sessions, labelling.annotators)
        warn_of_readers(labelling)
        env = self.make_env(film=True)()
        try:
            fps = Camera(env).fps
        except ValueError as error:
            raise SettingError(f"preferences.teacher is human, and {error}") from error
        finally:
            env.close()  # type: ignore[no-untyped-call]
        port_file = None if self.sessions is None else Path(self.sessions).with_suffix(".port")
        return PageSettings(labelling, sessions, str(self.env), fps, run_id, of.seed, port_file)

    def build_env_to_module_connector(self, env: Any = None, spaces: Any = None, device: Any = None) -> Any:
        """RLlib's pipeline with the user's connectors, before which the environment's own observations are kept."""
        pipeline = super().build_env_to_module_connector(env, spaces, device)
        if self._env_to_module_connector is not None:
            pipeline.prepend(KeepObservations())
        return pipeline

    def build_learner_connector(self, input_observation_space: Any, input_action_space: Any, device: Any = None) -> Any:
        """RLlib's pipeline, and the learned reward: after it, or before the user's connectors (PPO's learner adds advantages)."""
        pipeline = super().build_learner_connector(input_observation_space, input_action_space, device)
        if self._env_to_module_connector is not None or self._learner_connector is not None:
            pipeline.prepend(RewardFirst())
            return pipeline
        pipeline.insert_after(AddObservationsFromEpisodesToBatch, AddNextObservationsFromEpisodesToTrainBatch())
        pipeline.append(LearnedReward())
        return pipeline

    def for_one_algorithm(self, checked: Checked, ring_name: str) -> Self:
        """A frozen copy for one algorithm: the reward module beside the policy, and the name of its ring."""
        config: Any = self.copy(copy_frozen=False)
        config.ring_name, config.checked = ring_name, checked
        # Beside whatever else is to be called, by its class, its classes or single functions; once.
        others = [kind for kind in force_list(config.callbacks_class) if kind not in (ClipCutter, RLlibCallback)]
        config.callbacks_class = [ClipCutter, *others]
        policy = config.policy_module_spec()
        reward = reward_spec(checked.experiment.reward_model, checked.observation_space, checked.action_space)
        config.rl_module(
            rl_module_spec=MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: policy, REWARD_MODULE_ID: reward})
        )
        config.multi_agent(policies_to_train=[DEFAULT_MODULE_ID])
        if config._env_to_module_connector is None and config._module_to_env_connector is None:
            # RLlib's own connectors have no state. Asking every env runner for it each iteration would be two calls more for
            # each, of which one waits until it has done sampling.
            config.env_runners(merge_env_runner_states=False, broadcast_env_runner_states=False)
        config.freeze()
        return cast(Self, config)

    def policy_module_spec(self) -> RLModuleSpec:
        """How the policy is built, with all of its ``model_config``; without spaces, unless some are set."""
        spec = self.rl_module_spec
        spec = copy.copy(spec.rl_module_specs[DEFAULT_MODULE_ID] if isinstance(spec, MultiRLModuleSpec) else spec)
        spec.model_config = self.model_config | model_config_of(spec)
        return spec


def register_environment(config: Any, name: str) -> None:
    """Make a name that `rlhf_ray.envs.make_env` takes known to RLlib, unless it knows one of that name."""
    if env_creator(name) is None:
        tune.register_env(name, envs.EnvCreator(name))
    if envs.is_natively_vectorised(name):
        config.env_runners(gym_env_vectorize_mode="vector_entry_point")


def _absolute(path: Path | str) -> str:
    """The folder by its whole name; a URL as it is."""
    return str(path) if "://" in str(path) else str(Path(path).absolute())


@functools.lru_cache(maxsize=64)
def _parsed(values: str) -> Experiment:
    return from_json(Experiment, json.loads(values))
