"""The ring: the interface that a training uses, in every mode, and what goes through it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import gymnasium as gym

from rlhf_ray.actors.rollout_collector import PolicyFactory
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.metrics import Metric, declare
from rlhf_ray.queries.fitting import check_fragments
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.settings import Experiment, MachineSettings, PreferenceSettings, ResolvedFragments, RewardModelSettings

if TYPE_CHECKING:
    from rlhf_ray.actors.people import People


STATE, LABELS = "ring", "preferences"
"""Subfolders of a checkpoint: the ring's state, and the labels."""

Stop = Callable[[], bool]
"""Polled while waiting; True ends the wait."""


def never() -> bool:
    """A `Stop` that never ends a wait."""
    return False


@dataclasses.dataclass(frozen=True)
class RoundReport:
    """Report of a labelling round, or of everything since the last report.

    Attributes:
        round_number: 0 for the round before training.
        wanted: comparisons that were due.
        answered: comparisons that were answered and stored; fewer if there were too few fragments to pair.
        comparisons: total stored so far.
        fit: report of the fit; None if there was nothing new to fit to.
        new_reward: whether there is a reward version that the learner doesn't have yet.
    """

    round_number: int
    wanted: int
    answered: int
    comparisons: int
    fit: FitReport | None
    new_reward: bool

    def metrics(self) -> dict[str, float]:
        """Return `OF_ROUND` and the fit's metrics, by name."""
        values: dict[str, float] = {"round": self.round_number, "wanted": self.wanted, "answered": self.answered}
        return values | {"gradient_steps": 0} | (self.fit.metrics() if self.fit is not None else {})


OF_ROUND = (
    Metric("round", "The labelling round before this iteration.", kind=int),
    Metric("wanted", "Comparisons requested in the round.", "comparisons", int),
    Metric("answered", "Comparisons answered in the round.", "comparisons", int),
)
"""Metrics of a round, with or without a fit."""

declare(
    "run",
    Metric("env_steps", "Environment steps so far, including those for the initial fragments.", "steps", int),
    Metric("comparisons", "Comparisons answered and stored so far.", "comparisons", int),
)
declare(
    "fragments",
    Metric("fragments_policy_version", "Newest policy version in the pool; -1 is random actions.", kind=int),
    Metric("distinct_fragments", "Share of distinct fragments in the pool.", "share"),
    Metric("too_short", "Episodes so far that were too short for a fragment.", kind=int),
    Metric("fragments_length", "Length of a fragment.", "steps", int),
    Metric("first_fragments_env_steps", "Environment steps spent on the initial fragments.", "steps", int),
)
declare(
    "labels",
    Metric("rounds", "Labelling rounds so far.", kind=int),
    Metric("skipped", "Pairs that an annotator skipped, because they couldn't decide.", kind=int),
    Metric("labels_due", "Comparisons due so far (asynchronous).", "comparisons"),
    Metric("label_seconds", "Time from request to stored answer, for the newest labels (asynchronous).", "s"),
    Metric(
        "unanswered_seconds",
        "Longest time since the iteration before in which no open question was answered by people.",
        "s",
    ),
    Metric("questions_lost", "Questions lost with a node and replaced by others (asynchronous)."),
    Metric("commits_failed", "Commits of labels that failed and were retried (asynchronous)."),
    Metric("explorations_dropped", "Exploratory rollouts skipped because the collector was busy (asynchronous)."),
    *OF_ROUND,
)
declare(
    "reward model",
    Metric("reward_version", "Newest version of the reward model.", kind=int),
    Metric("reward_age", "Environment steps since the newest reward version (asynchronous).", "steps"),
)
declare(
    "stages",
    Metric("stage_rate", "Items that a stage of the asynchronous ring processed per second.", "1/s", tag="stage"),
    Metric("stage_idle", "Share of the time that the stage was idle.", "share", tag="stage"),
    Metric("stage_queue", "Items waiting for the stage.", tag="stage"),
)


class Pretrained(NamedTuple):
    """The policy after unsupervised pretraining, with its version: higher than those of its rollouts."""

    version: int
    policy: PolicyFactory


Fitting = Callable[[], RoundReport | None]
"""A fit, which may be under way: a call waits for it, and returns the report, if there is any. Later calls return the same one."""


def no_fit() -> RoundReport | None:
    """A `Fitting` where none is due."""
    return None


Learn = Callable[[Fitting], None]
"""The agent's part of an iteration: sample, then wait for the fit, use its new reward version, if any, and update the policy."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """The training's progress, as passed to `Ring.advance`.

    Attributes:
        share: from 0 before the first iteration to 1 before the last.
        env_steps: total environment steps so far.
        room: environment steps that the ring may take before the next iteration.
        iteration: index of the next iteration, from 0.
        policy: returns a factory of the newest policy, for rollouts other than the training's own.
        pretrained: before the first iteration: the policy that half of the initial rollouts follow; None for random actions only.
    """

    share: float
    env_steps: int
    room: int
    iteration: int
    policy: Callable[[], PolicyFactory]
    pretrained: Pretrained | None = None


def no_policy() -> PolicyFactory:
    """A `Progress.policy` where there is none."""
    raise RuntimeError("There is no policy: not before the first iteration, and never in a wrapper.")


class Ring(Protocol):
    """The interface between a training and the ring, in every mode. What a ring doesn't do by itself, does nothing."""

    collecting: bool
    """Whether to ask questions and make clips for them; False pauses that alone. The labels due meanwhile are asked for later."""

    @property
    def people(self) -> People | None:
        """The human annotators; None without."""

    @property
    def env_steps(self) -> int:
        """Environment steps that the ring has taken."""

    @property
    def answered(self) -> int:
        """Comparisons answered and stored so far."""

    @property
    def skipped(self) -> int:
        """Pairs that were skipped so far."""

    @property
    def version(self) -> int:
        """Version of the newest reward; 0 before the first."""

    @property
    def rounds_held(self) -> int:
        """Labelling rounds so far, including the first; in the asynchronous mode, rounds of gradient steps."""

    def begin(self, env_steps: int, stop: Stop = never, pretrained: Pretrained | None = None) -> RoundReport | None:
        """Take ``env_steps`` steps for the initial fragments, ask, and fit the first version; None if stopped before.

        The steps are random; with a ``pretrained`` policy, half of the rollouts follow it.
        """

    def advance(self, progress: Progress, stop: Stop = never, learn: Learn = lambda fit: None) -> RoundReport | None:
        """Run one iteration: do what is due, then ``learn``, beside which a fit may go on. Return the fit's report, if any."""

    def newest_reward(self) -> dict[str, Array]:
        """Return the newest version of the reward model (`RewardEnsemble.state`)."""

    def metrics(self) -> dict[str, Any]:
        """Return the ring's current metrics."""

    def check(self) -> None:
        """Raise the error of a stage that failed outside of a call, if any."""
        return

    def adopt(self, store: Path | str) -> None:
        """Import the labels of the preference store ``store``; see `RingActors.adopt`."""
        return

    def save(self, folder: Path) -> None:
        """Write the ring's checkpoint to the folders ``ring`` and ``preferences`` in ``folder``."""

    def load(self, folder: Path, *, replace: bool = False) -> None:
        """Restore what `save` wrote. Adds its labels to the ring's own, or replaces those with ``replace``."""

    def farewell(self, env_steps: int, stop: Stop = never, policy: Callable[[], PolicyFactory] | None = None) -> None:
        """Tell people, once, that the training is over after ``env_steps`` steps, and show them an episode of its ``policy``."""
        return

    def abandon(self) -> None:
        """Abort `begin` after an interruption. `save` and `close` may follow."""
        return

    def close(self) -> None:
        """Stop everything the ring started."""
        return


def check_horizon(lengths: Sequence[int], preferences: PreferenceSettings) -> None:
    """Check that training on episodes of these lengths (ascending) is allowed.

    Raises:
        SettingError: the lengths differ, and `allow_variable_horizon` is off.
    """
    if len(lengths) > 1 and not preferences.allow_variable_horizon:
        raise SettingError(
            f"preferences.allow_variable_horizon is False, but episodes of {lengths[0]} to {lengths[-1]} steps were seen. The end "
            "of an episode leaks information about the reward, so the agent can learn the task from episode lengths instead of "
            "comparisons. Use an environment with a fixed episode length (fixed/ID wraps gymnasium's or EnvPool's ID), or set "
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
        SettingError: their fragments come from another environment or have another length.
    """
    check_fragments(labels, observation_space, action_space, where)
    length = labels.pairs.left.length
    if length != fragments.length:
        raise SettingError(
            f"fragments.length is {fragments.length}, but the fragments in {where} have {length} steps, and a reward model needs "
            f"fragments of one length: set fragments.length to {length}."
        )


@dataclasses.dataclass(frozen=True)
class RingSettings:
    """Settings of a ring.

    Attributes:
        observation_space, action_space: the environment's spaces, as the reward model sees them.
        store: folder of the preference store on this process's node, or its URL.
        seed: seeds all of the ring's random draws.
        total_env_steps: step budget of the training.
        begun_after: for a run that restarts because it was killed before its first checkpoint: the store's last event number when
            it first started; else None. In the synchronous mode with scripted teachers, later labels are ignored and asked for
            again, so that the run repeats bit for bit; otherwise they count at once.
        machine: what a machine that answers is.
        instructions: the task in words, for it.
    """

    fragments: ResolvedFragments
    preferences: PreferenceSettings
    reward_model: RewardModelSettings
    observation_space: gym.spaces.Box
    action_space: gym.Space[Any]
    store: Path | str
    seed: int
    total_env_steps: int
    begun_after: int | None = None
    machine: MachineSettings = dataclasses.field(default_factory=MachineSettings)
    instructions: str = ""


class StepBudget:
    """The environment steps of a training. Its methods take the steps so far: ``sampled`` by the agent, ``taken`` by the ring.

    Args:
        iteration_env_steps: maximum number of environment steps per iteration of the agent.
        films: whether the ring films fragments before each round.
    """

    def __init__(
        self, experiment: Experiment, fragments: ResolvedFragments, iteration_env_steps: int, *, films: bool = False
    ):
        self.total, self.preferences, self.fragments = experiment.total_env_steps, experiment.preferences, fragments
        self.iteration_env_steps = iteration_env_steps
        preferences = self.preferences
        self._between = preferences.rounds * fragments.between_rounds_env_steps(films)
        """Maximum number of environment steps that the ring takes between rounds, in total."""
        self._pretraining = preferences.pretraining_iterations(iteration_env_steps) * iteration_env_steps
        """Environment steps of the agent before the first labels."""
        self.initial_env_steps = self.iterations = 0
        """Environment steps for the initial fragments; number of iterations, with those of the pretraining."""
        self.share_out(0 if preferences.comparisons == 0 else fragments.initial_env_steps)

    def share_out(self, initial: int) -> None:
        """Divide the budget again, with ``initial`` steps for the initial fragments, or slightly more."""
        left = self.total - self._between - initial
        # Steps that don't fill an iteration go to the initial fragments, so that all steps add up to the budget.
        self.initial_env_steps = initial + left % self.iteration_env_steps
        self.iterations = left // self.iteration_env_steps

    @property
    def learning_iterations(self) -> int:
        """Number of iterations on the learned reward."""
        return self.iterations - self._pretraining // self.iteration_env_steps

    def finished(self, sampled: int, taken: int) -> bool:
        """Return whether another iteration could exceed the budget."""
        return sampled + taken + self.iteration_env_steps > self.total

    def pretrains(self, sampled: int) -> bool:
        """Return whether the next iteration comes before the first labels (`PreferenceSettings.pretraining_env_steps`)."""
        return sampled < self._pretraining

    def share(self, sampled: int, taken: int) -> float:
        """Return how far the training is, from 0 before the first iteration on the learned reward to 1 before the last."""
        left = self.total - self.iteration_env_steps - sampled - taken
        if left < self.iteration_env_steps:
            return 1.0
        # The steps that the ring will take between rounds are not the agent's.
        left -= max(0, self._between - (taken - self.initial_env_steps))
        done = max(0, sampled - self._pretraining)
        return done / (done + max(left, self.iteration_env_steps))

    def progress(self, sampled: int, taken: int, iteration: int, policy: Callable[[], PolicyFactory]) -> Progress:
        """Return the training's progress for the ring, before iteration number ``iteration``, from 0."""
        now = sampled + taken
        room = self.total - now - self.iteration_env_steps
        return Progress(self.share(sampled, taken), now, room, iteration, policy)

    def metrics(self, sampled: int, taken: int) -> dict[str, Any]:
        """Return the metrics of an iteration."""
        first: dict[str, Any] = {}
        if self.preferences.comparisons:
            first = {
                "fragments_length": self.fragments.length,
                "first_fragments_env_steps": self.initial_env_steps,
            }
        return first | {"env_steps": sampled + taken, "finished": float(self.finished(sampled, taken))}
