"""PreferenceConfig: adds an experiment to an RLlib configuration, so that its algorithm learns from preferences."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, cast

import gymnasium as gym
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.common import AddObservationsFromEpisodesToBatch
from ray.rllib.connectors.learner import AddNextObservationsFromEpisodesToTrainBatch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.env_context import EnvContext
from ray.rllib.utils import force_list

from rlhf_ray import envs
from rlhf_ray.actors.executor import OwnStreams
from rlhf_ray.data.defaults import own_defaults
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import run_path
from rlhf_ray.data.registry import names_of
from rlhf_ray.labelling.camera import camera_options, without_a_screen
from rlhf_ray.rllib.checking import Checked, check_environment
from rlhf_ray.rllib.env_runner import EnvRunner, GivesEnvActions, env_threads, register_environment
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID, HistoryReward, LearnedReward, reward_spec
from rlhf_ray.rllib.rllib_internals import env_creator, model_config_of, skip_notes
from rlhf_ray.rllib.rollouts import FragmentCutter
from rlhf_ray.rllib.starting import fitted_reward
from rlhf_ray.settings import NO_QUESTIONS, PARTS, AgentName, Experiment, from_json, to_json
from rlhf_ray.settings.checks import require, require_known
from rlhf_ray.store import PreferenceStore
from rlhf_ray.store.files import store_of


class PreferenceConfig(GivesEnvActions, AlgorithmConfig):  # type: ignore[misc]
    """A mixin to put before an RLlib `AlgorithmConfig`.

    The settings form one `Experiment`. ``experiment`` holds them as plain values until they are used, because each may be one of
    Tune's samplers. All other settings are RLlib's; those that don't work with a learned reward are refused
    (`rlhf_ray.rllib.checking`).
    """

    agent: AgentName
    """The agent's group of settings: "ppo" or "sac"."""

    def __init__(self, algo_class: type | None = None):
        super().__init__(algo_class=algo_class)
        self.log_sys_usage = False  # its thread keeps each `stop` waiting
        usual = Experiment(agent=self.agent)
        self.experiment: dict[str, Any] = to_json(usual)
        self.sessions: str | None = None
        self.run_dir: str | None = None
        self.store: str | None = None
        self.reward_from: str | None = None
        self.policy_from: str | None = None
        self.labels_from: str | None = None
        self.labels_before = 0
        """Number of labels in ``labels_from``."""
        self.begun_after: int | None = None
        self.demonstrations_from: str | None = None
        self.cloning_epochs: int | None = None
        self.checked: Checked | None = None
        """Set in the copy for one algorithm."""
        self.ring_name: str | None = None
        """Set in the copy for one algorithm: the name of its actors."""
        self.env_runner_cls = EnvRunner
        self.apply_agent(usual)

    def apply_agent(self, experiment: Experiment, total_env_steps: int | None = None) -> None:
        """Apply the agent's settings to RLlib's. Settings that change over the training need ``total_env_steps``."""
        raise NotImplementedError

    def agent_settings(self) -> dict[str, Any]:
        """Return the agent's settings from RLlib's current ones, which the user may have changed."""
        return {
            "num_envs": self.num_envs_per_env_runner,
            "num_env_runners": self.num_env_runners,
            "num_learners": self.num_learners,
            "rollout_length": self.get_rollout_fragment_length(),
        }

    @property
    def iteration_env_steps(self) -> int:
        """Environment steps of one iteration."""
        raise NotImplementedError

    def check_inherited(self) -> None:
        """Check settings that come from RLlib (`rlhf_ray.rllib.checking.check_inherited`).

        Raises:
            SettingError: RLlib or the learned reward would ignore or contradict a setting.
        """
        raise NotImplementedError

    def check_network(self, observation_space: Any, action_space: Any, experiment: Experiment) -> Any:
        """Build the policy's module for observations and actions of these spaces, to check it.

        Raises:
            SettingError: building fails, or the module doesn't fit them.
        """
        raise NotImplementedError

    def env_runner_for(self, checked: Checked) -> type:
        """Return the class of the env runners."""
        return EnvRunner

    def cloning(self) -> dict[str, Any]:
        """Return the agent's own arguments of `rlhf_ray.rllib.starting.clone`.

        Raises:
            SettingError: the agent can't start from demonstrations.
        """
        raise NotImplementedError

    @property
    def most_iteration_env_steps(self) -> int:
        """Maximum number of environment steps per iteration.

        RLlib steps all copies of the environment together and doesn't count the steps in which a copy resets. If episodes end at
        different times, a rollout can exceed the requested steps by less than the number of copies.
        """
        copies = self.num_envs_per_env_runner * max(1, self.num_env_runners)
        return self.iteration_env_steps + (copies if self.settings().preferences.allow_variable_horizon else 0)

    @property
    def ring_here(self) -> bool:
        """Whether the ring's actors run in the algorithm's process: it waits while they work, and nobody else calls them."""
        experiment = self.settings()
        waits = experiment.preferences.mode == "synchronous" and not experiment.preferences.asks_people
        return waits and not self.num_env_runners and not experiment.reward_model.gpus

    @property
    def needs_ray(self) -> bool:
        """Whether the algorithm has actors in processes of their own."""
        here = self.ring_here or not self.settings().preferences.comparisons
        return not here or bool(self.num_env_runners or self.num_learners or self.evaluation_num_env_runners)

    def validate(self) -> None:
        """Check all settings.

        Raises:
            SettingError: a setting is invalid. The message names the setting, the value and the remedy.
        """
        skip_notes(self.algo_class.__name__)
        if self.in_evaluation:
            super().validate()
            return
        self.check_inherited()
        if isinstance(self.env, str):  # a checkpoint's, in a process that has not set it
            register_environment(self, self.env)
        super().validate()
        self.check_settings()

    @classmethod
    def from_experiment(cls, experiment: Experiment) -> Self:
        """Build the configuration for ``experiment``."""
        config: Any = cls()
        config.experiment = to_json(experiment)
        config.apply_agent(experiment, experiment.total_env_steps)
        config.environment(experiment.environment)
        config.debugging(seed=experiment.seed, log_level="ERROR")
        return cast(Self, config)

    def settings(self) -> Experiment:
        """Return the validated experiment. Parses it once per state of the configuration.

        Raises:
            SettingError: a setting is invalid. The message names the setting, the value and the remedy.
        """
        agent = {**self.experiment[self.agent], **self.agent_settings()}
        seed = getattr(self, "seed", None) or 0
        values = {
            **self.experiment,
            "agent": self.agent,
            self.agent: agent,
            "seed": seed,
            "environment": str(getattr(self, "env", None)),
        }
        for group, names in PARTS.items():
            values[group] = {**values[group], **{name: names_of(values[group][name]) for name in names}}
        return _parsed(json.dumps(values))

    def environment(self, env: Any = None, **arguments: Any) -> Self:
        """Set the environment. Takes RLlib's arguments; ``env`` may also be a name that `rlhf_ray.envs.make_env` accepts."""
        if isinstance(env, str):
            register_environment(self, env)
        if env is not None:
            arguments["env"] = env
        super().environment(**arguments)
        return self

    def fragments(self, **settings: Any) -> Self:
        """Set fields of `FragmentSettings`: how fragments are cut from rollouts."""
        self._set("fragments", settings)
        return self

    def preferences(
        self,
        *,
        total_env_steps: int | None = None,
        checkpoint_every: int | None = None,
        reward_mix: float | None = None,
        run_dir: Path | str | None = None,
        store: Path | str | None = None,
        begun_after: int | None = None,
        **settings: Any,
    ) -> Self:
        """Set fields of `PreferenceSettings`: the number of comparisons, the schedule, pair selection and the annotator.

        Args:
            total_env_steps: environment steps of the whole training, over which the comparisons are spread.
            checkpoint_every: interval in iterations of checkpoints that resume bit for bit (see `Experiment.checkpoint_every`).
                Save checkpoints at multiples of it.
            reward_mix: share of the environment's own reward in what the agent learns from (see `Experiment.reward_mix`).
            run_dir: folder of what the algorithm writes: its ``logdir``. Defaults to a new folder under ``runs/``, which a line
                names. A Tune trial has its own.
            store: folder or URL of the preference store. Defaults to ``preferences`` in ``run_dir``. Two algorithms must not share
                one.
            begun_after: for a run that starts again because it was killed before its first checkpoint: the number of the last
                event in the store when it first started (see `rlhf_ray.actors.ring.RingSettings`).
            settings: fields of `PreferenceSettings`.

        Raises:
            SettingError: there is no such setting.
        """
        whole = {"total_env_steps": total_env_steps, "checkpoint_every": checkpoint_every, "reward_mix": reward_mix}
        self.experiment = self.experiment | {name: value for name, value in whole.items() if value is not None}
        if run_dir is not None:
            self.run_dir = str(run_path(run_dir).absolute())
        if store is not None:
            self.store = _absolute(store)
        if begun_after is not None:
            self.begun_after = begun_after
        self._set("preferences", settings)
        return self

    def reward_model(self, **settings: Any) -> Self:
        """Set fields of `RewardModelSettings`: the reward networks and their fitting."""
        self._set("reward_model", settings)
        return self

    def labelling(self, *, sessions: Path | str | None = None, **settings: Any) -> Self:
        """Set fields of `LabellingSettings`: the page for human annotators, used if ``preferences.teacher`` is human.

        Args:
            sessions: file with the annotators' links, so that they survive a restart; created if missing. Defaults to
                ``labelling.json`` in ``run_dir``.
            settings: fields of `LabellingSettings`.

        Raises:
            SettingError: there is no such setting.
        """
        if sessions is not None:
            self.sessions = str(Path(sessions).absolute())
        self._set("labelling", settings)
        return self

    def machine(self, **settings: Any) -> Self:
        """Set fields of `MachineSettings`: the model that compares clips if ``preferences.teacher`` is machine."""
        self._set("machine", settings)
        return self

    def start_from(
        self,
        *,
        reward_model: Path | str | None = None,
        policy: Path | str | None = None,
        labels: Path | str | None = None,
        demonstrations: Path | str | None = None,
        cloning_epochs: int | None = None,
    ) -> Self:
        """Start training from existing parts.

        Args:
            reward_model: folder of a fitted reward model, or of a run. Training uses it unchanged: no fragments are collected, no
                questions asked, no model fitted. Sets `PreferenceSettings.without_questions`.
            policy: initial policy weights: a run's folder, an RLlib checkpoint of the same agent, a ``.safetensors`` file, or a
                ``model.zip`` of SB3's PPO. The optimiser and counters start from scratch.
            labels: folder or URL of a preference store, or a run's folder. Its labels are copied, count as answered, and
                contribute to the first fit.
            demonstrations: recorded steps to pretrain the policy on by behavioural cloning, on top of ``policy`` if both are given:
                what `load_demonstrations` reads. Only PPO starts from them.
            cloning_epochs: passes over the demonstrations. None: 50, or as many as give 1,500 gradient steps.

        Raises:
            SettingError: ``cloning_epochs`` is below 1, or there is no reward model in the folder.
        """
        require(cloning_epochs is None or cloning_epochs >= 1, "cloning_epochs", cloning_epochs, "it must be 1 or more")
        if reward_model is not None:
            self.reward_from = _absolute(reward_model)
            self._set("reward_model", to_json(fitted_reward(reward_model).settings))
            self._set("preferences", dict(NO_QUESTIONS))
        if policy is not None:
            self.policy_from = _absolute(policy)
        if labels is not None:
            self.labels_from = store_of(_absolute(labels))
            with contextlib.suppress(ValueError):  # there is none: the ring says so
                self.labels_before = len(PreferenceStore(self.labels_from, create=False))
        if demonstrations is not None:
            self.demonstrations_from = _absolute(demonstrations)
        if cloning_epochs is not None:
            self.cloning_epochs = cloning_epochs
        return self

    def _set(self, group: str, changes: dict[str, Any]) -> None:
        known = self.experiment[group]
        require_known(changes, known, group)
        self.experiment = {**self.experiment, group: {**known, **changes}}

    @property
    def faults(self) -> str:
        """Key under which env runners report faults of their environment."""
        return str(self.ring_name)

    def make_env(self, *, film: bool = False) -> Callable[[], gym.Env[Any, Any]]:
        """Return a function that makes one environment for the rollout collector; with ``film``, one that renders images."""
        env = self.env
        creator = env_creator(env) if isinstance(env, str) else env
        env_config = dict(self.env_config)
        if not isinstance(creator, envs.EnvCreator):  # a user's own creator may need RLlib's EnvContext
            env_config = EnvContext(env_config, worker_index=0, num_workers=self.num_env_runners)
        if not film:
            return functools.partial(creator, env_config)
        plain = creator(env_config)
        env_config.update(camera_options(plain))
        plain.close()
        channels = self.settings().labelling.channels
        return functools.partial(without_a_screen, creator, env_config, channels=channels)

    def check_settings(self) -> None:
        """Check the settings against the starting point of the training. `validate` calls this.

        Raises:
            SettingError: with the setting, its value and the remedy.
        """
        experiment = self.settings()
        experiment.check_questions(self.labels_before)
        if self.reward_from is not None and experiment.preferences.comparisons:
            raise SettingError(
                f"preferences.comparisons is {experiment.preferences.comparisons}, but training uses the fitted reward model in "
                f"{self.reward_from}: remove one of the two."
            )
        if self.labels_from is not None and not experiment.preferences.comparisons:
            raise SettingError(
                f"Training starts from the labels in {self.labels_from}, but preferences.comparisons is 0, so nothing would be "
                "fitted to them: remove the labels, or fit a reward model to them first (`rlhf-ray fit`)."
            )

    @own_defaults()
    def check_environment(self) -> Checked:
        """Make the environment once and check that all settings fit it; see `rlhf_ray.rllib.checking.check_environment`."""
        with OwnStreams():  # an environment may seed the process's generators
            return check_environment(self)

    def build_learner_connector(self, input_observation_space: Any, input_action_space: Any, device: Any = None) -> Any:
        """Build RLlib's pipeline with the learned reward at the end, before PPO's advantages.

        A reward that reads history comes first: it needs whole pieces of episodes, not a batch of steps.
        """
        pipeline = super().build_learner_connector(input_observation_space, input_action_space, device)
        if self.checked is not None and self.checked.reads_history:
            pipeline.prepend(HistoryReward())
            return pipeline
        pipeline.insert_after(AddObservationsFromEpisodesToBatch, AddNextObservationsFromEpisodesToTrainBatch())
        pipeline.append(LearnedReward())
        return pipeline

    def for_one_algorithm(self, checked: Checked, ring_name: str) -> Self:
        """Return a frozen copy for one algorithm, with its ring's name and the reward module next to the policy."""
        config: Any = self.copy(copy_frozen=False)
        config.ring_name, config.checked = ring_name, checked
        # Keep the user's callbacks (a class, classes or functions); add ours once.
        others = [kind for kind in force_list(config.callbacks_class) if kind not in (FragmentCutter, RLlibCallback)]
        config.callbacks_class = [FragmentCutter, *others]
        policy = config.policy_module_spec()
        experiment = checked.experiment
        spaces = checked.observation_space, checked.action_space
        pretrains = experiment.preferences.pretraining_env_steps > 0
        reward = reward_spec(experiment.reward_model, *spaces, pretrains, experiment.reward_mix)
        config.rl_module(
            rl_module_spec=MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: policy, REWARD_MODULE_ID: reward})
        )
        config.multi_agent(policies_to_train=[DEFAULT_MODULE_ID])
        config.env_config = env_threads(experiment) | config.env_config
        if config.env_runner_cls is EnvRunner:
            config.env_runner_cls = config.env_runner_for(checked)
        if checked.reads_history:
            config.episode_lookback_horizon = max(config.episode_lookback_horizon, checked.fragments.length)
        # RLlib's own connectors have no state. Merging env runner states each iteration would cost two more calls per env runner,
        # one of which waits until sampling is done.
        config.env_runners(merge_env_runner_states=False, broadcast_env_runner_states=False)
        config.freeze()
        return cast(Self, config)

    def policy_module_spec(self) -> RLModuleSpec:
        """Return the policy's spec with its complete ``model_config``; without spaces, unless some are set."""
        spec = self.rl_module_spec
        spec = copy.copy(spec.rl_module_specs[DEFAULT_MODULE_ID] if isinstance(spec, MultiRLModuleSpec) else spec)
        spec.model_config = self.model_config | model_config_of(spec)
        return spec


def _absolute(path: Path | str) -> str:
    """Return the absolute path of a folder; a URL unchanged."""
    return str(path) if "://" in str(path) else str(Path(path).absolute())


@functools.lru_cache(maxsize=64)
def _parsed(values: str) -> Experiment:
    return from_json(Experiment, json.loads(values))
