"""Pipeline: the ring's actors, and what both ways of driving them share. It moves references between them, never arrays."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import ray
from ray.actor import ActorHandle

from actors.first_clips import FIRST_FILMS, FirstClips, Part, free_cores, parts
from actors.fragmenter import Fragmenter
from actors.gatherer import SyntheticGatherer
from actors.labelling_page import LabellingPage, PageSettings
from actors.page_handle import PageHandle
from actors.placement import CPUS, of_ring
from actors.reward_trainer import RewardTrainerActor
from actors.rollout_collector import PolicyFactory, RolloutCollector
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import RANDOM_POLICY
from rlhf_ray.envs.spaces import is_image
from rlhf_ray.labelling.desk import Situation
from rlhf_ray.queries.schedules import labels_per_round
from rlhf_ray.queries.spending import Spending
from rlhf_ray.reward.fitting import check_clips
from rlhf_ray.reward.trainer import FitReport
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, ResolvedFragments, RewardModelSettings
from rlhf_ray.store import PreferenceStore

FIRST_FIT = "fitting the reward model to the first answers"

FILMS_KEPT = 36
"""Newest filmed clips that pairs are chosen from. Few, since few are made: more would be mostly of policies long gone."""

OPEN_PER_PERSON = 8
"""Questions open at a time for each person, of which the page holds some: later ones are about what the agent does by then."""

FEWEST_FILMS = 6
"""Clips filmed of each later policy, at least."""

FILMING_NICENESS = 10
"""Of the rollout collector while people are asked and nothing waits for them: where cores are few, PPO comes first."""

MORE_CLIPS = 1_000_000
"""Number of the first gathering of more first clips, where the collector draws by numbers: above those of all rounds."""

MOST_FIRST_STEPS = 0.3
"""Share of all environment steps that the first clips take at most, with all that is gathered since answers were ties."""

EPISODE_EVERY = 10.0
"""Seconds between two films of a whole episode, at least: drawing them takes time that the training would have."""


SAY_EVERY = 5.0
"""Seconds between two words on how many of the first clips are made, at least."""


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


def check_horizon(lengths: Sequence[int], preferences: PreferenceSettings) -> None:
    """Check that episodes of these lengths, from the shortest to the longest, may be trained on.

    Raises:
        SettingError: they differ, and `allow_variable_horizon` is off.
    """
    if len(lengths) > 1 and not preferences.allow_variable_horizon:
        raise SettingError(
            f"preferences.allow_variable_horizon is False, and episodes of {lengths[0]} to {lengths[-1]} steps were seen. When "
            "an episode ends tells about the reward, so that an agent can learn the task from episode lengths instead of "
            "comparisons. Use an environment whose episodes all have one length (fixed/ID makes one of the gymnasium environment "
            "ID), or set "
            "preferences.allow_variable_horizon to True to accept the leak."
        )


def check_labels(
    labels: Comparisons,
    fragments: ResolvedFragments,
    observation_space: gym.spaces.Box,
    action_space: gym.Space[Any],
    where: str,
) -> None:
    """Check that stored labels can be fitted together with those of a ring with these settings and spaces.

    Raises:
        SettingError: their clips are of another environment or length.
    """
    check_clips(labels, observation_space, action_space, where)
    length = labels.pairs.left.length
    if length != fragments.length:
        raise SettingError(
            f"fragments.length is {fragments.length}, and the clips in {where} have {length} steps: clips that a reward model is "
            f"fitted to together have one length, so set fragments.length to {length}."
        )


class Pipeline:
    """The ring's actors.

    Args:
        name: of this ring: its actors are named ``NAME/fragmenter`` and so on, in the caller's Ray namespace.
        fragments, preferences, reward_model: the settings.
        observation_space, action_space: the environment's.
        make_env: makes the environment, for the collector; None: there is no collector, and clips come from elsewhere.
        store: folder of the preference store, on this process's node; or its URL.
        seed: of everything random in the ring.
        rollouts: stretches the collector's steps are shared by.
        spread: how many rounds the training has room for.
        total_env_steps: of the training, which people are told.
        page: makes the labelling page; None where nobody is asked.
    """

    def __init__(
        self,
        name: str,
        fragments: FragmentSettings,
        preferences: PreferenceSettings,
        reward_model: RewardModelSettings,
        observation_space: gym.spaces.Box,
        action_space: gym.Space[Any],
        make_env: Callable[[], gym.Env[Any, Any]] | None,
        store: Path | str,
        seed: int,
        rollouts: int,
        spread: int,
        total_env_steps: int | None = None,
        page: PageSettings | None = None,
    ):
        fragments = fragments.resolved(horizon=None, total_env_steps=total_env_steps or 0)
        self.fragments, self.preferences, self.reward_model = fragments, preferences, reward_model
        self.rollouts, self.total_env_steps = rollouts, total_env_steps
        self.images = is_image(observation_space)
        self.rounds = min(preferences.rounds, spread)
        """Labelling rounds after the first."""
        self.spending = Spending(preferences.comparisons, fragments.varied)
        self.more_env_steps = fragments.initial_env_steps
        """Environment steps that each gathering of more first clips takes."""

        def start(kind: type, role: str, *arguments: Any, gpus: float = 0.0) -> ActorHandle[Any]:
            options: dict[str, Any] = {
                "name": f"{name}/{role}",
                "num_cpus": CPUS.get(role, 0.0),
                "num_gpus": gpus,
                "scheduling_strategy": of_ring(role, gpus),
                "max_restarts": -1,
                "max_task_retries": -1,
                "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}},
            }
            return ray.remote(**options)(kind).remote(*arguments)

        spaces = self.spaces = (observation_space, action_space)
        niceness = FILMING_NICENESS if page is not None and preferences.mode == "asynchronous" else 0
        self.collector: Any = make_env and start(RolloutCollector, "collector", make_env, fragments, seed, niceness)

        def make_helpers(most: int) -> list[ActorHandle[Any]]:
            """Other collectors for the cores that are idle now."""
            made = range(min(most, free_cores()))
            return [start(RolloutCollector, f"helper{i}", make_env, fragments, seed, FILMING_NICENESS) for i in made]

        self._make_helpers = make_helpers
        if page is not None:
            reward_model = reward_model.for_people()
        pool = fragments
        if page is not None and not self.images:
            pool = dataclasses.replace(fragments, pool=min(fragments.pool, FILMS_KEPT))
        self.fragmenter = start(Fragmenter, "fragmenter", pool, preferences, reward_model, *spaces, seed)
        self.gatherer: ActorHandle[Any] | None = None
        if preferences.teacher != "human":
            self.gatherer = start(SyntheticGatherer, "gatherer", preferences, seed)
        self.store = start(PreferenceStore, "store", store)
        self.trainer = start(
            RewardTrainerActor, "reward_trainer", reward_model, preferences, *spaces, seed, gpus=reward_model.gpus
        )
        self.page: ActorHandle[Any] | None = None
        self.page_handle: PageHandle | None = None
        """Holds the page."""
        if page is not None:
            self.page = start(LabellingPage, "page", page, f"{name}/store")
            self.page_handle = PageHandle(self.page, page.settings.port, page.port_file)

        self.env_steps = 0
        """Environment steps the collector has taken."""
        self._filmed_at = -math.inf
        """When an episode was filmed last, by `time.monotonic`."""
        self.answered = 0
        """Comparisons answered and stored so far."""
        self.version = 0
        """The version of the reward model; 0 before the first fit."""
        self._trainer_state: ray.ObjectRef[dict[str, Any]] | None = None
        self._first: FirstClips | None = None
        """The first clips for people, while they are made."""
        self._said_at = -math.inf
        self.say: Callable[[str], None] = lambda what: None
        """Is told what the run waits for before its first iteration."""

    @property
    def links(self) -> dict[str, str]:
        """Where each person labels."""
        return {} if self.page_handle is None else self.page_handle.links

    @property
    def films_per_round(self) -> int:
        """Clips filmed before each later round: so many that each is in one pair or two, since drawing them costs most."""
        of = self.preferences
        wanted = math.ceil(1.5 * of.people_share * (of.comparisons - of.first_comparisons) / max(1, self.rounds))
        return max(FEWEST_FILMS, min(wanted, self.fragments.filmed_env_steps // (self.fragments.length + 1)))

    def film(self, round_number: int, policy_version: int, make_policy: PolicyFactory) -> None:
        """Film a policy for people, as the settings say. Its steps count."""
        raise NotImplementedError("Nobody is asked in this ring.")

    @property
    def labels(self) -> list[int]:
        """The labels that fall due in the first round and in each later one."""
        of = self.preferences
        return labels_per_round(of.comparisons, of.first_comparisons, of.schedule, self.rounds, of.steepness)

    def adopt(self, store: Path | str) -> Comparisons:
        """Begin with the labels in the preference store ``store``: they count as answered, and the first fit is to them too.

        Returns:
            The labels.

        Raises:
            SettingError: they cannot be fitted together with those of this ring.
        """
        labels = PreferenceStore(store, create=False).load()
        if labels is None:
            raise SettingError(f"Training is to start from the labels in {store}, and it holds none.")
        check_labels(labels, self.fragments, *self.spaces, str(store))
        self.import_store(store)
        return labels

    def check_first_clips(self, report: dict[str, Any]) -> None:
        """Check that the first clips can be compared.

        Args:
            report: of the fragmenter (`Fragmenter.report`) that has them.

        Raises:
            SettingError: they show that the settings do not fit the environment.
        """
        self.check_report(report)
        if report["pool"] < 2:
            raise SettingError(
                f"fragments.length is {self.fragments.length}, and in {self.env_steps} steps of random actions "
                f"{report['too_short']} stretches of episodes were shorter than that (episodes had "
                f"{report['episode_lengths'] or 'no end'} steps): shorten fragments.length."
            )

    def publish(self) -> dict[str, Array]:
        """The newest version of the reward model, whole (`RewardEnsemble.state`).

        Raises:
            ValueError: there is none before the first fit.
        """
        if self._trainer_state is None:
            raise ValueError("There is no reward model yet: the first one comes with the first comparisons.")
        version: dict[str, Array] = ray.get(self._trainer_state)["ensemble"]
        return version

    def check_report(self, report: dict[str, Any]) -> dict[str, Any]:
        """Look whether what has arrived at the fragmenter (`Fragmenter.report`) may be trained on, and give it back.

        Raises:
            SettingError: episodes of different lengths were seen, and `allow_variable_horizon` is off.
        """
        check_horizon(report["episode_lengths"], self.preferences)
        return report

    def copy_store(self, path: Path) -> None:
        """Copy the preference store into the folder ``path``."""
        ray.get(self.store.copy_to.remote(path))

    def import_store(self, path: Path | str) -> None:
        """Add the comparisons of the preference store at ``path``, a folder or URL, to this ring's."""
        ray.get(self.store.import_from.remote(path))

    def replace_store(self, path: Path) -> None:
        """Have the comparisons of the preference store ``path``, and no others; those there were are put aside."""
        ray.get(self.store.replace_with.remote(path))

    def state(self) -> dict[str, Any]:
        """All that a checkpoint keeps besides the comparisons, which are copied by `copy_store`."""
        return {
            "env_steps": self.env_steps,
            "answered": self.answered,
            "version": self.version,
            "spending": self.spending.state(),
            "trainer": None if self._trainer_state is None else ray.get(self._trainer_state),
            "fragmenter": ray.get(self.fragmenter.state.remote()),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`. The store has to hold the comparisons that the state was made with."""
        self.env_steps, self.answered, self.version = state["env_steps"], state["answered"], state["version"]
        if "spending" in state:  # else the checkpoint is an older version's
            self.spending.load_state(state["spending"])
        ray.get(self.fragmenter.load_state.remote(state["fragmenter"]))
        if state["trainer"] is not None:
            self._trainer_state = ray.put(state["trainer"])
            ray.get(self._restore_trainer())

    def abandon(self) -> None:
        """Leave off beginning, which was interrupted: end what is under way, so that the store can be copied. Then `close`."""
        for actor in (self.collector, self.gatherer, self.trainer):
            if actor is not None:
                ray.kill(actor)

    def close(self) -> None:
        """End the actors."""
        if self._first is not None:
            self._first.end()
        for actor in (self.collector, self.fragmenter, self.gatherer, self.page, self.store, self.trainer):
            if actor is not None:
                ray.kill(actor)

    def _collect(
        self, env_steps: int, round_number: int, policy_version: int, make_policy: PolicyFactory | None
    ) -> Any:
        """Have the collector take ``env_steps`` steps and the fragmenter take its clips; the reference to wait for."""
        clips = self.collector.collect.remote(env_steps, self.rollouts, round_number, policy_version, make_policy)
        return self.fragmenter.add.remote(clips)

    def _film(
        self,
        env_steps: int,
        clips: int,
        number: int,
        policy_version: int,
        make_policy: PolicyFactory | None,
        taken: int,
    ) -> tuple[Any, Any]:
        """Have the collector film ``env_steps`` steps.

        Returns:
            The references of its clips and of the film of an episode (None where the last one is new enough).
        """
        now = time.monotonic()
        episode = now - self._filmed_at >= EPISODE_EVERY
        if episode:
            self._filmed_at = now
        film = self.collector.film.options(num_returns=2)
        filmed, shown = film.remote(env_steps, clips, number, taken, policy_version, make_policy, episode)
        return filmed, shown if episode else None

    def _situation(
        self, env_steps: int, waiting_for: str, *, finished: bool = False, next_question: float | None = None
    ) -> Situation:
        of = self.preferences
        first = of.first_fit_comparisons if of.mode == "asynchronous" else of.first_comparisons
        return Situation(
            of.comparisons,
            env_steps,
            self.total_env_steps,
            finished,
            waiting_for,
            first_labels=None if self.version else first,
            next_question=next_question,
        )

    def _first_parts(self, env_steps: int) -> FirstClips:
        """The first clips, in the parts that they are made in for people."""
        clips = min(FIRST_FILMS, 2 * self.preferences.first_comparisons)
        made = parts(env_steps, clips, self.rollouts, self.fragments, images=self.images)
        return FirstClips(made, self._make_helpers)

    def _start_part(self, first: FirstClips, collector: ActorHandle[Any]) -> tuple[Part, Any]:
        """Have ``collector`` make the next part of the first clips: the part, and the reference of its clips."""
        part = first.left.popleft()
        clips, shown = first.make(part, collector)
        if shown is not None and self.page_handle is not None:
            self._filmed_at = time.monotonic()
            self.page_handle.show(shown)
        return part, clips

    def _took_part(self, first: FirstClips, part: Part, clips: Any, report: dict[str, Any]) -> None:
        """The fragmenter, which reported so, has taken the clips of this part.

        Raises:
            SettingError: they show that the settings do not fit the environment.
        """
        if report["pool"] < first.made:  # it was restarted, and has no other clips
            for earlier in first.clips:
                self.fragmenter.add.remote(earlier)
            report = ray.get(self.fragmenter.report.remote())
        self.check_report(report)
        first.took(part, clips, report["pool"])
        if first.done:
            self.check_first_clips(report)
        elif time.monotonic() - self._said_at >= SAY_EVERY:
            self._said_at = time.monotonic()
            self.say(f"the first clips: {first.progress}")

    def _collect_first(self, env_steps: int) -> None:
        """Have the first clips made with ``env_steps`` random actions."""
        ray.get(self._collect(env_steps, 0, RANDOM_POLICY, None))
        self.env_steps += env_steps
        self.check_first_clips(ray.get(self.fragmenter.report.remote()))

    @property
    def _wants_clips(self) -> bool:
        """Whether more first clips should be gathered before more is asked, and the budget has room for them."""
        most = MOST_FIRST_STEPS * (self.total_env_steps or 0)
        return self.spending.wants_clips and self.env_steps + self.more_env_steps <= most

    def _more_first_clips(self) -> list[Any]:
        """Have more first clips gathered, which take the place of those there are; the references to wait for."""
        self.spending.gathered()
        steps, number = self.more_env_steps, MORE_CLIPS + self.spending.gatherings
        self.env_steps += steps
        if self.page_handle is None:
            return [self._collect(steps, number, RANDOM_POLICY, None)]
        # Images are shown as they are, and cut from all steps; of them an episode is filmed alone.
        filmed = min(steps // 2, self.fragments.film_env_steps) if self.images else steps
        clips = min(FIRST_FILMS, 2 * self.preferences.first_comparisons)
        films, shown = self._film(filmed, clips, number, RANDOM_POLICY, None, 0)
        if shown is not None:
            self.page_handle.show(shown)
        calls = [self.fragmenter.add.remote(films)]
        if filmed < steps:
            calls.append(self._collect(steps - filmed, number, RANDOM_POLICY, None))
        return calls

    def _take_fit(self, report: Any, state: Any) -> FitReport:
        """What the references that a fit returned stand for. The state is copied: it must outlive the trainer's node."""
        fit: FitReport = ray.get(report)
        self._trainer_state, self.version = ray.put(ray.get(state)), fit.version
        return fit

    def _restore_trainer(self) -> Any:
        """Give the reward trainer its last state and the comparisons; the reference to wait for."""
        return self.trainer.load_state.remote(self._trainer_state, self.store.since.remote(0))
