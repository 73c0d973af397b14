"""Pipeline: starts the ring's actors and turns the ring, round by round. It moves references between them, never arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import ray
from ray.actor import ActorHandle

from actors.fragmenter import Fragmenter
from actors.gatherer import SyntheticGatherer
from actors.reward_trainer import RewardTrainerActor, StateLostError
from actors.rollout_collector import PolicyFactory, RolloutCollector
from rlhf_ray.arrays import Array
from rlhf_ray.fragments import RANDOM_POLICY
from rlhf_ray.reward.trainer import FitReport
from rlhf_ray.schedules import labels_per_round
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings, SettingError
from rlhf_ray.store import PreferenceStore

CPUS = {"fragmenter": 0.1, "gatherer": 0.1, "store": 0.1, "collector": 0.2, "reward_trainer": 0.5}
"""CPUs each actor claims. In the synchronous ring one of them works at a time, so that together they claim one."""


@dataclasses.dataclass(frozen=True)
class RoundReport:
    """What one labelling round came to.

    Attributes:
        round_number: 0 for the round before training.
        wanted: comparisons that were due.
        answered: comparisons that were answered and stored; fewer when there were too few fragments to make pairs of.
        comparisons: all stored so far.
        fit: what the fit came to; None when nothing was new to fit.
    """

    round_number: int
    wanted: int
    answered: int
    comparisons: int
    fit: FitReport | None


class Pipeline:
    """The synchronous ring: collect, ask, answer, store, fit, publish, one after the other.

    Args:
        name: of this ring: its actors are named ``NAME/fragmenter`` and so on, in the caller's Ray namespace.
        fragments, preferences, reward_model: the settings.
        observation_space, action_space: the environment's.
        make_env: makes the environment, for the collector.
        store: folder of the preference store.
        seed: of everything random in the ring.
        rollouts: stretches the collector's steps are shared by.
        spread: how many rounds the training has room for.
    """

    def __init__(
        self,
        name: str,
        fragments: FragmentSettings,
        preferences: PreferenceSettings,
        reward_model: RewardModelSettings,
        observation_space: gym.spaces.Box,
        action_space: gym.Space[Any],
        make_env: Callable[[], gym.Env[Any, Any]],
        store: Path,
        seed: int,
        rollouts: int,
        spread: int,
    ):
        self.fragments, self.preferences, self.reward_model = fragments, preferences, reward_model
        self.rollouts = rollouts
        self.labels = labels_per_round(
            preferences.comparisons,
            preferences.initial_comparisons,
            preferences.schedule,
            min(preferences.rounds, spread),
            preferences.steepness,
        )

        def start(kind: type, role: str, *arguments: Any) -> ActorHandle[Any]:
            options = {
                "name": f"{name}/{role}",
                "num_cpus": CPUS[role],
                "max_restarts": -1,
                "max_task_retries": -1,
                "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}},
            }
            return ray.remote(**options)(kind).remote(*arguments)

        spaces = (observation_space, action_space)
        self.collector = start(RolloutCollector, "collector", make_env, fragments, seed)
        self.fragmenter = start(Fragmenter, "fragmenter", fragments, preferences, reward_model, *spaces, seed)
        self.gatherer = start(SyntheticGatherer, "gatherer", preferences, seed)
        self.store = start(PreferenceStore, "store", store)
        self.trainer = start(RewardTrainerActor, "reward_trainer", reward_model, preferences, *spaces, seed)

        self.round_number = -1
        """The last round that was held; -1 before the first."""
        self.env_steps = 0
        """Environment steps the collector has taken."""
        self.answered = 0
        """Comparisons answered so far."""
        self.version = 0
        """The version of the reward model; 0 before the first fit."""
        self._trainer_state: ray.ObjectRef[dict[str, Any]] | None = None

    def begin(self, env_steps: int) -> RoundReport:
        """Gather the first clips with ``env_steps`` random actions and hold the first round.

        Raises:
            SettingError: the clips show that the settings do not fit the environment.
        """
        self._collect(env_steps, 0, RANDOM_POLICY, None)
        report = self.check()
        if report["pool"] < 2:
            raise SettingError(
                f"fragments.length is {self.fragments.length}, and in {env_steps} steps of random actions "
                f"{report['too_short']} stretches of episodes were shorter than that (episodes had "
                f"{report['episode_lengths'] or 'no end'} steps): shorten fragments.length."
            )
        return self.hold_round(0)

    def explore(self, round_number: int, policy_version: int, make_policy: PolicyFactory) -> None:
        """Gather clips of a policy with a share of random actions, as the settings say."""
        self._collect(self.fragments.exploration_env_steps, round_number, policy_version, make_policy)

    def hold_round(self, round_number: int) -> RoundReport:
        """Ask for what is due by round ``round_number``, store the answers and fit the reward model to all."""
        wanted = sum(self.labels[: round_number + 1]) - self.answered
        comparisons, answered, fit = None, 0, None
        if wanted > 0:
            reward = None if self.version == 0 else ray.put(self.publish())
            count, pairs = self.fragmenter.propose.options(num_returns=2).remote(wanted, round_number, reward)
            if ray.get(count):
                comparisons = self.gatherer.gather.remote(pairs, round_number)
                ray.get(self.store.commit.remote(comparisons, annotator=self.preferences.teacher))
                updates = self.reward_model.initial_updates if self.version == 0 else self.reward_model.updates
                fit = self._fit(comparisons, updates)
                # Counted by the trainer, whose state goes back with this one's: the store may hold some of them already, from
                # a commit that was repeated or a run that is resumed at an earlier round.
                answered = fit.comparisons - self.answered
        self.round_number = round_number
        self.answered += answered
        return RoundReport(round_number, wanted, answered, self.answered, fit)

    def publish(self) -> dict[str, Array]:
        """The newest version of the reward model, whole (`RewardEnsemble.state`)."""
        state: dict[str, Array] = ray.get(self._trainer_call("publish", self.version))
        return state

    def check(self) -> dict[str, Any]:
        """What has arrived at the fragmenter (`Fragmenter.report`).

        Raises:
            SettingError: episodes of different lengths were seen, and `allow_variable_horizon` is off.
        """
        report: dict[str, Any] = ray.get(self.fragmenter.report.remote())
        lengths = report["episode_lengths"]
        if len(lengths) > 1 and not self.preferences.allow_variable_horizon:
            raise SettingError(
                f"preferences.allow_variable_horizon is False, and episodes of {lengths[0]} to {lengths[-1]} steps were seen. When "
                "an episode ends tells about the reward, so that an agent can learn the task from episode lengths instead of "
                "comparisons. Use an environment whose episodes all have one length, or set "
                "preferences.allow_variable_horizon to True to accept the leak."
            )
        return report

    def state(self) -> dict[str, Any]:
        """All that a checkpoint keeps besides the comparisons, which are copied by `copy_store`."""
        return {
            "round_number": self.round_number,
            "env_steps": self.env_steps,
            "answered": self.answered,
            "version": self.version,
            "trainer": None if self._trainer_state is None else ray.get(self._trainer_state),
            "fragmenter": ray.get(self.fragmenter.state.remote()),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`. The store has to hold the comparisons that the state was made with."""
        self.round_number, self.env_steps = state["round_number"], state["env_steps"]
        self.answered, self.version = state["answered"], state["version"]
        ray.get(self.fragmenter.load_state.remote(state["fragmenter"]))
        if state["trainer"] is not None:
            self._trainer_state = ray.put(state["trainer"])
            self._restore_trainer()

    def copy_store(self, path: Path) -> None:
        """Copy the preference store into the folder ``path``."""
        ray.get(self.store.copy_to.remote(path))

    def import_store(self, path: Path) -> None:
        """Add the comparisons of the preference store in the folder ``path`` to this ring's."""
        ray.get(self.store.import_from.remote(path))

    def close(self) -> None:
        """End the actors."""
        for actor in (self.collector, self.fragmenter, self.gatherer, self.store, self.trainer):
            ray.kill(actor)

    def _collect(
        self, env_steps: int, round_number: int, policy_version: int, make_policy: PolicyFactory | None
    ) -> None:
        clips = self.collector.collect.remote(env_steps, self.rollouts, round_number, policy_version, make_policy)
        ray.get(self.fragmenter.add.remote(clips))
        self.env_steps += env_steps

    def _fit(self, comparisons: Any, updates: int) -> FitReport:
        report, state = self._trainer_call("fit", comparisons, updates, self.version + 1, num_returns=2)
        fit: FitReport = ray.get(report)
        self._trainer_state, self.version = state, fit.version
        return fit

    def _trainer_call(self, method: str, *arguments: Any, num_returns: int = 1) -> Any:
        """Call the reward trainer; one that was restarted is given its state back first."""
        call = getattr(self.trainer, method).options(num_returns=num_returns)
        refs = call.remote(*arguments)
        try:
            ray.wait(refs if num_returns > 1 else [refs], num_returns=num_returns)
            ray.get(refs[0] if num_returns > 1 else refs)
        except StateLostError:
            self._restore_trainer()
            refs = call.remote(*arguments)
        return refs

    def _restore_trainer(self) -> None:
        ray.get(self.trainer.load_state.remote(self._trainer_state, self.store.load.remote()))
