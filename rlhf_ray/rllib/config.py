"""PreferencePPOConfig: RLlib's PPO configuration with three more groups of settings."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import gymnasium as gym
from ray import tune
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.env_context import EnvContext
from ray.rllib.utils import force_list
from ray.tune.registry import ENV_CREATOR, _global_registry

from actors.labelling_page import PageSettings
from rlhf_ray import envs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.checked import try_out
from rlhf_ray.envs.spaces import check_spaces
from rlhf_ray.labelling.films import Camera, camera_options, without_a_screen
from rlhf_ray.labelling.serve import warn_of_readers
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib.clip_cutter import ClipCutter
from rlhf_ray.rllib.env_runner import EnvRunner
from rlhf_ray.rllib.inherited import check_inherited
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID, LearnedReward, reward_spec
from rlhf_ray.rllib.policy import checked_network, policy_spec
from rlhf_ray.rllib.starting import check_policy, check_reward, fitted_reward, policy_weights
from rlhf_ray.settings import (
    NO_QUESTIONS,
    Experiment,
    FragmentSettings,
    LabellingSettings,
    PPOSettings,
    PreferenceSettings,
    ResolvedFragments,
    RewardModelSettings,
    env_steps_needed,
    from_json,
    to_json,
)
from rlhf_ray.store.commands import store_of

_S = TypeVar("_S", FragmentSettings, LabellingSettings, PreferenceSettings, RewardModelSettings)


class PreferencePPOConfig(PPOConfig):  # type: ignore[misc]
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

    Everything else is `PPOConfig`; what of it a learned reward cannot honour is refused (`rlhf_ray.rllib.inherited`). The
    settings of the three groups are the fields of `FragmentSettings`, `PreferenceSettings` and `RewardModelSettings`, where each
    is explained; values may be Tune's samplers.
    """

    def __init__(self, algo_class: type | None = None):
        from rlhf_ray.rllib.algorithm import PreferencePPO

        super().__init__(algo_class=algo_class or PreferencePPO)
        self.fragments_config: dict[str, Any] = to_json(FragmentSettings())
        self.preferences_config: dict[str, Any] = to_json(PreferenceSettings())
        self.reward_model_config: dict[str, Any] = to_json(RewardModelSettings())
        self.labelling_config: dict[str, Any] = to_json(LabellingSettings())
        self.sessions: str | None = None
        self.total_env_steps: int = Experiment().total_env_steps
        self.checkpoint_every: int = Experiment().checkpoint_every
        self.store: str | None = None
        self.reward_from: str | None = None
        self.policy_from: str | None = None
        self.labels_from: str | None = None
        self.horizon: int | None = None
        """Steps of the environment's episodes, at most; set by each `PreferencePPO`."""
        self.ring_name: str | None = None
        """Set by each `PreferencePPO` for its own actors."""
        self.env_runner_cls = EnvRunner
        self.policy_config: dict[str, Any] = to_json(PPOSettings())
        apply_ppo(self, PPOSettings())

    @classmethod
    def from_experiment(cls, experiment: Experiment) -> Self:
        """The configuration of ``experiment``."""
        config = cls()
        config.policy_config = to_json(experiment.ppo)
        apply_ppo(config, experiment.ppo, experiment.total_env_steps)
        config.environment(experiment.environment)
        config.fragments(**to_json(experiment.fragments))
        config.preferences(
            total_env_steps=experiment.total_env_steps,
            checkpoint_every=experiment.checkpoint_every,
            **to_json(experiment.preferences),
        )
        config.reward_model(**to_json(experiment.reward_model))
        config.labelling(**to_json(experiment.labelling))
        config.debugging(seed=experiment.seed, log_level="ERROR")
        return config

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
        self.fragments_config = _merged(FragmentSettings, self.fragments_config, settings)
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
            self.total_env_steps = total_env_steps
        if checkpoint_every is not None:
            self.checkpoint_every = checkpoint_every
        if store is not None:
            self.store = _absolute(store)
        self.preferences_config = _merged(PreferenceSettings, self.preferences_config, settings)
        return self

    def reward_model(self, **settings: Any) -> Self:
        """Set fields of `RewardModelSettings`: the reward networks and how they are fitted."""
        self.reward_model_config = _merged(RewardModelSettings, self.reward_model_config, settings)
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
        self.labelling_config = _merged(LabellingSettings, self.labelling_config, settings)
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
            self.reward_model_config = to_json(fitted_reward(reward_model).settings)
            self.preferences_config = {**self.preferences_config, **NO_QUESTIONS}
        if policy is not None:
            self.policy_from = _absolute(policy)
        if labels is not None:
            self.labels_from = store_of(_absolute(labels))
        return self

    @property
    def fragment_settings(self) -> ResolvedFragments:
        """The fragment settings, checked, with numbers in place of auto: the first guess before `check_environment`."""
        return from_json(FragmentSettings, self.fragments_config).resolved(
            horizon=self.horizon, total_env_steps=self.total_env_steps, rollout=self.get_rollout_fragment_length()
        )

    @property
    def preference_settings(self) -> PreferenceSettings:
        """The preference settings, checked."""
        return from_json(PreferenceSettings, self.preferences_config).resolved()

    @property
    def reward_model_settings(self) -> RewardModelSettings:
        """The reward model settings, checked."""
        return from_json(RewardModelSettings, self.reward_model_config)

    @property
    def labelling_settings(self) -> LabellingSettings:
        """The labelling page's settings, checked."""
        return from_json(LabellingSettings, self.labelling_config)

    @property
    def faults(self) -> str:
        """Under which env runners report what is wrong with their environment."""
        return str(self.ring_name)

    @property
    def iteration_env_steps(self) -> int:
        """Environment steps of one iteration."""
        return int(self.total_train_batch_size)

    @property
    def most_iteration_env_steps(self) -> int:
        """The most environment steps that an iteration takes.

        RLlib steps all copies of the environment together, and steps in which a copy begins a new episode do not count. Where
        episodes end at different times a rollout may so have some steps more than asked for, fewer than there are copies.
        """
        copies = self.num_envs_per_env_runner * max(1, self.num_env_runners)
        return self.iteration_env_steps + (copies if self.preference_settings.allow_variable_horizon else 0)

    def make_env(self, *, film: bool = False) -> Callable[[], gym.Env[Any, Any]]:
        """A function that makes one copy of the environment, for the rollout collector; with ``film``, one that can be filmed."""
        env = self.env
        creator = _global_registry.get(ENV_CREATOR, env) if isinstance(env, str) else env
        env_config = dict(self.env_config)
        if not isinstance(creator, envs.EnvCreator):  # somebody's own, which may ask for what RLlib tells besides
            env_config = EnvContext(env_config, worker_index=0, num_workers=self.num_env_runners)
        if not film:
            return functools.partial(creator, env_config)
        plain = creator(env_config)
        env_config.update(camera_options(plain))
        plain.close()
        return functools.partial(without_a_screen, creator, env_config)

    def validate(self) -> None:
        """Check every setting.

        Raises:
            SettingError: with the setting, its value and the remedy.
        """
        if self.in_evaluation:
            super().validate()
            return
        check_inherited(self)
        super().validate()
        fragments, preferences = self.fragment_settings, self.preference_settings
        _ = self.reward_model_settings
        if self.reward_from is not None and preferences.comparisons:
            raise SettingError(
                f"preferences.comparisons is {preferences.comparisons}, and training is on the reward model in {self.reward_from}, "
                "which is fitted already: leave one of them out."
            )
        if self.labels_from is not None and not preferences.comparisons:
            raise SettingError(
                f"Training is to start from the labels in {self.labels_from}, and to ask for and fit to none "
                "(preferences.comparisons is 0): leave the labels out, or fit a reward model to them first (`rlhf-ray fit`)."
            )
        rollout = self.get_rollout_fragment_length()
        if rollout < fragments.length:
            raise SettingError(
                f"fragments.length is {fragments.length}, and fragments are cut from rollouts of {rollout} steps of each "
                f"environment copy (train_batch_size_per_learner={self.train_batch_size_per_learner} shared by "
                f"{self.num_envs_per_env_runner} copies in {max(1, self.num_env_runners)} runners): shorten the fragments or "
                "lengthen the rollouts."
            )
        if self.batch_mode != "truncate_episodes":
            raise SettingError(
                f"batch_mode is {self.batch_mode!r}; only 'truncate_episodes' takes a known number of steps."
            )
        _ = self.labelling_settings
        needed, what = env_steps_needed(fragments, preferences, self.most_iteration_env_steps)
        if self.total_env_steps < needed:
            raise SettingError(f"total_env_steps is {self.total_env_steps}; {what}.")

    def check_environment(self) -> tuple[gym.spaces.Box, gym.Space[Any]]:
        """Make the environment once and check that everything fits it.

        Returns:
            Its observation and action space.

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
        object.__setattr__(self, "horizon", limit)  # of a frozen configuration too
        if limit is not None and limit < self.fragment_settings.length:
            raise SettingError(
                f"fragments.length is {self.fragment_settings.length}, and episodes of {self.env} have at most {limit} steps: "
                "fragments never cross an episode, so make them shorter."
            )
        RewardEnsemble(observation_space, action_space, self.reward_model_settings)
        if self.reward_from is not None:
            check_reward(
                fitted_reward(self.reward_from),
                observation_space,
                action_space,
                self.reward_model_settings,
                self.reward_from,
            )
        module = checked_network(self.policy_module_spec(), observation_space, action_space)
        if self.policy_from is not None:
            check_policy(policy_weights(self.policy_from), module.get_state(), self.policy_from)
        return observation_space, action_space

    def make_page(self, run_id: str, folder: Path | str) -> PageSettings | None:
        """What the labelling page is made from; None where no people are asked.

        Args:
            run_id: for the events.
            folder: where people's links are kept, unless `labelling` has said where.

        Raises:
            SettingError: the environment cannot be shown.
        """
        if not self.preference_settings.asks_people:
            return None
        labelling = self.labelling_settings
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
        return PageSettings(labelling, sessions, str(self.env), fps, run_id, self.seed or 0, port_file)

    def build_learner_connector(self, input_observation_space: Any, input_action_space: Any, device: Any = None) -> Any:
        """RLlib's pipeline, and the learned reward after it (PPO's learner then appends advantages)."""
        pipeline = super().build_learner_connector(input_observation_space, input_action_space, device)
        pipeline.append(LearnedReward())
        return pipeline

    def with_reward_module(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[Any], ring_name: str
    ) -> Self:
        """A frozen copy for one algorithm: the reward module beside the policy, and the name of its ring."""
        config: Self = self.copy(copy_frozen=False)
        config.ring_name = ring_name
        # Beside whatever else is to be called, by its class, its classes or single functions; once.
        others = [kind for kind in force_list(config.callbacks_class) if kind not in (ClipCutter, RLlibCallback)]
        config.callbacks_class = [ClipCutter, *others]
        policy = config.policy_module_spec()
        reward = reward_spec(self.reward_model_settings, observation_space, action_space)
        config.rl_module(
            rl_module_spec=MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: policy, REWARD_MODULE_ID: reward})
        )
        config.multi_agent(policies_to_train=[DEFAULT_MODULE_ID])
        # RLlib's own connectors have no state. Asking every env runner for it each iteration would be two calls more for each,
        # of which one waits until it has done sampling.
        config.env_runners(merge_env_runner_states=False, broadcast_env_runner_states=False)
        config.freeze()
        return config

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """The policy of `rlhf_ray.rllib.policy`; RLlib's own where that is what `rl_module` configures, or the class it names."""
        given = self._rl_module_spec
        if isinstance(given, MultiRLModuleSpec):
            given = given.rl_module_specs.get(DEFAULT_MODULE_ID)
        if given is not None and given.module_class is not None:
            return RLModuleSpec(module_class=given.module_class)
        if self._model_config or (given is not None and (given.model_config or given.catalog_class)):
            return super().get_default_rl_module_spec()
        return policy_spec(from_json(PPOSettings, self.policy_config))

    def policy_module_spec(self) -> RLModuleSpec:
        """How the policy is built, with all of its ``model_config``; without spaces, unless some are set."""
        spec = self.rl_module_spec
        spec = copy.copy(spec.rl_module_specs[DEFAULT_MODULE_ID] if isinstance(spec, MultiRLModuleSpec) else spec)
        spec.model_config = self.model_config | spec._get_model_config()
        return spec


def apply_ppo(config: PPOConfig, settings: PPOSettings, total_env_steps: int | None = None) -> None:
    """Set RLlib's PPO up as ``settings`` say. The learning rate falls only where ``total_env_steps`` is given."""
    rate: Any = settings.learning_rate
    if settings.final_learning_rate is not None and total_env_steps is not None:
        rate = [[0, rate], [total_env_steps, settings.final_learning_rate]]
    config.env_runners(
        num_env_runners=settings.num_env_runners,
        num_envs_per_env_runner=settings.num_envs,
        rollout_fragment_length="auto",
    )
    config.learners(num_learners=settings.num_learners, num_gpus_per_learner=settings.gpus_per_learner)
    learners = max(1, settings.num_learners)
    config.training(
        lr=rate,
        gamma=settings.gamma,
        lambda_=settings.gae_lambda,
        train_batch_size=settings.iteration_env_steps,  # RLlib lets train_batch_size_per_learner win over it
        minibatch_size=settings.minibatch_size // learners,  # of each learner
        num_epochs=settings.epochs,
        clip_param=settings.clip,
        entropy_coeff=settings.entropy_coefficient,
        vf_loss_coeff=settings.value_coefficient,
        vf_clip_param=float("inf"),
        use_kl_loss=False,
        grad_clip=settings.max_grad_norm,
        grad_clip_by="global_norm",
    )


def register_environment(config: PPOConfig, name: str) -> None:
    """Make a name that `rlhf_ray.envs.make_env` takes known to RLlib, unless it knows one of that name."""
    if not _global_registry.contains(ENV_CREATOR, name):
        tune.register_env(name, envs.EnvCreator(name))
    if envs.is_natively_vectorised(name):
        config.env_runners(gym_env_vectorize_mode="vector_entry_point")


def _absolute(path: Path | str) -> str:
    """The folder by its whole name; a URL as it is."""
    return str(path) if "://" in str(path) else str(Path(path).absolute())


def _merged(kind: type[_S], current: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``current`` with ``changes``; a name that ``kind`` does not have is an error that lists those it has."""
    known = kind.__dataclass_fields__
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise SettingError(f"{kind.__name__} has no setting {', '.join(unknown)}; it has {', '.join(known)}.")
    return {**current, **changes}
