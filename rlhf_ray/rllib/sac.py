"""PreferenceSAC: soft actor-critic on a reward that is learned from comparisons during training (PEBBLE, Lee et al. 2021)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.sac import SAC, SACConfig
from ray.rllib.connectors.learner import LearnerConnectorPipeline
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.nested import read_nested, write_nested
from rlhf_ray.rllib.algorithm import LearnsFromPreferences
from rlhf_ray.rllib.checking import Checked, check_inherited
from rlhf_ray.rllib.checkpoint_parts import OwnCheckpoints
from rlhf_ray.rllib.config import PreferenceConfig
from rlhf_ray.rllib.learned_reward import LearnedReward
from rlhf_ray.rllib.policy import built
from rlhf_ray.rllib.rllib_internals import model_config, module_spec
from rlhf_ray.rllib.rollouts import learn_after_sampling
from rlhf_ray.rllib.sac_learner import SACLearner
from rlhf_ray.rllib.sac_module import SoftActorCritic, sac_spec
from rlhf_ray.settings import Experiment, SACSettings

REPLAY = "replay"
"""Folder of the replay buffer in a checkpoint."""

_NETWORKS = "the networks of SAC are set by sac.hidden: remove it"
_ONE_STEP = "this SAC's targets are one-step, from two critics, and move at each gradient step: remove it"

REFUSED = {
    "training(replay_buffer_config)": "SAC has a replay buffer of its own: use training(buffer_size=…)",
    "training(store_buffer_in_checkpoints)": "checkpoints always have the replay buffer: remove it",
    "training(n_step)": _ONE_STEP,
    "training(twin_q)": _ONE_STEP,
    "training(target_network_update_freq)": _ONE_STEP,
    "training(q_model_config)": _NETWORKS,
    "training(policy_model_config)": _NETWORKS,
    "training(training_intensity)": "use training(updates_per_env_step=…)",
}
"""Settings of `SACConfig` that must keep their default; see `rlhf_ray.rllib.checking.REFUSED`."""


class ReplaySACConfig(SACConfig):  # type: ignore[misc]
    """RLlib's SAC with the learner, networks and replay buffer of this package, on the environment's reward."""

    def __init__(self, algo_class: type | None = None):
        super().__init__(algo_class=algo_class or ReplaySAC)
        usual = SACSettings()
        self.hidden: tuple[int, ...] = usual.hidden
        self.normalize_observations = usual.normalize_observations
        self.replay_capacity, self.newest_steps = usual.buffer_size, usual.newest_steps
        self.updates_per_env_step = usual.updates_per_env_step
        # An iteration is one training step.
        self.min_time_s_per_iteration = None
        self.min_sample_timesteps_per_iteration = 0

    def training(
        self,
        *,
        buffer_size: int | None = None,
        newest_steps: int | None = None,
        updates_per_env_step: float | None = None,
        hidden: tuple[int, ...] | None = None,
        normalize_observations: bool | None = None,
        **arguments: Any,
    ) -> Self:
        """Set RLlib's training settings, and those that RLlib's SAC lacks: the fields of `SACSettings` with these names."""
        super().training(**arguments)
        own = {
            "replay_capacity": buffer_size,
            "newest_steps": newest_steps,
            "updates_per_env_step": updates_per_env_step,
            "hidden": hidden,
            "normalize_observations": normalize_observations,
        }
        for name, value in own.items():
            if value is not None:
                setattr(self, name, value)
        return self

    def apply(self, settings: SACSettings) -> None:
        self.env_runners(
            num_env_runners=settings.num_env_runners,
            num_envs_per_env_runner=settings.num_envs,
            rollout_fragment_length=settings.rollout_length,
        )
        self.learners(num_learners=settings.num_learners, num_gpus_per_learner=settings.gpus_per_learner)
        self.training(
            hidden=settings.hidden,
            normalize_observations=settings.normalize_observations,
            buffer_size=settings.buffer_size,
            newest_steps=settings.newest_steps,
            updates_per_env_step=settings.updates_per_env_step,
            num_steps_sampled_before_learning_starts=settings.learning_starts,
            train_batch_size_per_learner=settings.batch_size,
            actor_lr=settings.actor_learning_rate,
            critic_lr=settings.critic_learning_rate,
            alpha_lr=settings.alpha_learning_rate,
            initial_alpha=settings.initial_alpha,
            target_entropy=settings.target_entropy,
            tau=settings.tau,
            gamma=settings.gamma,
        )

    @property
    def iteration_env_steps(self) -> int:
        return int(self.get_rollout_fragment_length() * self.num_envs_per_env_runner * max(1, self.num_env_runners))

    def get_default_learner_class(self) -> type:
        return SACLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return sac_spec(self.hidden, self.initial_alpha, self.normalize_observations)

    def build_learner_connector(self, input_observation_space: Any, input_action_space: Any, device: Any = None) -> Any:
        """Return an empty pipeline. `SACLearner` passes transitions through it, not episodes."""
        return LearnerConnectorPipeline(
            input_observation_space=input_observation_space, input_action_space=input_action_space, connectors=[]
        )


class ReplaySAC(SAC):  # type: ignore[misc]
    """SAC whose learner has the replay buffer (`SACLearner`). Checkpoints have the buffer too."""

    def _create_local_replay_buffer_if_necessary(self, config: Any) -> None:
        """Create no buffer in this process (called by RLlib)."""

    def training_step(self) -> None:
        """Collect a rollout from each env runner, then take the gradient steps that they are worth."""
        learn_after_sampling(self)

    def save_to_path(self, path: Any = None, **arguments: Any) -> str:
        """Save RLlib's checkpoint, with the replay buffer in ``replay`` (as .npz: nothing large is pickled)."""
        saved: str = super().save_to_path(path, **arguments)
        (state,) = self.learner_group.foreach_learner(lambda learner: learner.replay.state()).ignore_errors() or (None,)
        if state is None:
            raise RuntimeError("The learner has died: resume the run from its last checkpoint.")
        folder = Path(saved).absolute() / REPLAY
        folder.mkdir(exist_ok=True)
        write_nested(state.get(), folder)
        return saved

    def restore_from_path(self, path: Any, *arguments: Any, **keywords: Any) -> None:
        super().restore_from_path(path, *arguments, **keywords)
        state: Any = read_nested(Path(path).absolute() / REPLAY)
        if self.learner_group.is_remote:
            state = ray.put(state)

        def restore(learner: Any) -> None:
            learner.replay.load(ray.get(state) if isinstance(state, ray.ObjectRef) else state)

        self.learner_group.foreach_learner(restore)


class PreferenceSACConfig(PreferenceConfig, ReplaySACConfig):
    """Configures `PreferenceSAC`.

    ::

        config = (
            PreferenceSACConfig()
            .environment("Pendulum-v1")
            .fragments(length=10)
            .preferences(comparisons=100, total_env_steps=20_000)
            .training(hidden=(64, 64), updates_per_env_step=1.0)
        )
        algorithm = config.build_algo()

    Everything else is `SACConfig`; settings that don't work with a learned reward, or with this replay buffer, are refused
    (`REFUSED`, `rlhf_ray.rllib.checking`).
    """

    agent = "sac"
    iteration_env_steps = ReplaySACConfig.iteration_env_steps

    def __init__(self, algo_class: type | None = None):
        super().__init__(algo_class=algo_class or PreferenceSAC)

    def apply_agent(self, experiment: Experiment, total_env_steps: int | None = None) -> None:
        self.apply(experiment.sac)

    def agent_settings(self) -> dict[str, Any]:
        of_tune = not isinstance(self.num_envs_per_env_runner, int)  # a sampler
        return {} if of_tune else super().agent_settings()

    def check_inherited(self) -> None:
        check_inherited(self, ReplaySACConfig(), REFUSED, self.iteration_env_steps)
        spec = module_spec(self)
        spec = getattr(spec, "rl_module_specs", {DEFAULT_MODULE_ID: spec}).get(DEFAULT_MODULE_ID)
        if model_config(self) or (spec is not None and spec.module_class is not SoftActorCritic):
            raise SettingError(f"rl_module() is given, but {_NETWORKS}.")

    def check_network(self, observation_space: Any, action_space: Any, experiment: Experiment) -> Any:
        return built(self.policy_module_spec(), observation_space, action_space)

    def check_environment(self) -> Checked:
        checked = super().check_environment()
        if checked.reads_history:
            raise SettingError(
                f"reward_model.network is {checked.experiment.reward_model.network!r}, which reads the steps before, but SAC "
                "replays single steps: set agent to ppo, or use a network that judges each step by itself, such as 'auto'."
            )
        return checked

    def cloning(self) -> dict[str, Any]:
        raise SettingError(
            "--demonstrations needs agent=ppo, but agent is 'sac': its untrained critics would undo what the actor was shown."
        )

    def build_learner_connector(self, input_observation_space: Any, input_action_space: Any, device: Any = None) -> Any:
        """Build a pipeline that replaces the rewards of replayed transitions by the newest learned ones."""
        pipeline = ReplaySACConfig.build_learner_connector(self, input_observation_space, input_action_space, device)
        pipeline.append(LearnedReward(keep_next_observations=True))
        return pipeline


class PreferenceSAC(OwnCheckpoints, LearnsFromPreferences, ReplaySAC):
    """SAC whose learner sees a learned reward. An RLlib `Algorithm`: build it from a `PreferenceSACConfig`."""

    config: PreferenceSACConfig

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        return PreferenceSACConfig()
