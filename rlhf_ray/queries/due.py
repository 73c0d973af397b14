"""What is due in a ring: the questions of a round, gradient steps, and in the asynchronous ring everything else at any moment.

Plain data in, decisions out: nothing here waits or calls an actor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlhf_ray.data.errors import SettingError
from rlhf_ray.queries.schedule import PROBE, LabelSchedule
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings
from rlhf_ray.store import Tally

MOST_IN_A_ROW = 100
"""Number of skips without an answer in between after which no more pairs are asked in this round (or iteration)."""


class Skips:
    """Counts the skips since the last answer."""

    def __init__(self, preferences: PreferenceSettings):
        self.preferences = preferences
        self._comparisons = self._skipped = self._before = 0

    def used(self, tally: Tally) -> int:
        """Return how much of the label budget is used up."""
        return tally.comparisons + (tally.skipped if self.preferences.skips_count else 0)

    def note(self, tally: Tally) -> None:
        """Take note of the store's counts."""
        if tally.comparisons != self._comparisons:
            self._comparisons, self._before = tally.comparisons, tally.skipped
        self._skipped = tally.skipped

    def forget(self) -> None:
        """Start counting again."""
        self._before = self._skipped

    @property
    def hopeless(self) -> bool:
        """Whether to ask no more for now."""
        return self._skipped - self._before >= MOST_IN_A_ROW

    def check_first(self, tally: Tally) -> None:
        """Check that there is an answer for the first fit.

        Raises:
            SettingError: the teacher skipped all pairs.
        """
        if tally.skipped and not tally.comparisons:
            raise SettingError(
                f"preferences.teacher is {self.preferences.teacher!r}, which skipped all of the first {tally.skipped} pairs, so "
                "there is no answer to fit a reward model to. Use a teacher that skips less (teacher=skip: lower preferences.skip; "
                "a machine can't tell, or contradicts itself: labelling.instructions, machine.frames, machine.model)."
            )

    def check_decided(self, tally: Tally) -> None:
        """Check that a scripted teacher's answers say something to a fit.

        Raises:
            SettingError: all of at least `PROBE` answers are ties.
        """
        if tally.ties == tally.comparisons >= PROBE:
            raise SettingError(
                f"preferences.teacher is {self.preferences.teacher!r}, and all of its {tally.ties} answers are ties, so there is "
                "nothing to learn from: the true reward is the same in all fragments so far. Let people compare (--teacher human), "
                "or give fragments that differ: longer ones (fragments.length) or more initial ones (fragments.initial_env_steps)."
            )


class FitSchedule:
    """Decides how many gradient steps the reward model takes: a fixed number per labelling round, in every mode."""

    def __init__(self, labels: LabelSchedule, settings: RewardModelSettings):
        self.labels, self.settings = labels, settings
        self.rounds = 0
        """Rounds after the first whose gradient steps were taken, or dropped for want of labels."""

    def rounds_due(self, progress: float, used: int, version: int) -> int:
        """Return the number of rounds after the first whose gradient steps are due but not taken.

        ``used`` is how much of the label budget is used up. Before the first fit (``version`` 0), rounds that will ask nothing are
        due at once, because existing labels use up their share of the budget.
        """
        if version == 0:
            return self.labels.rounds_covered(used)
        return self.labels.round_at(progress) - self.rounds

    def gradient_steps(self, rounds: int, comparisons: int, version: int) -> int:
        """Return the gradient steps of a fit that makes up for ``rounds`` rounds; of the first fit, for version 0 of the model."""
        if version == 0:
            return self.settings.first_updates(comparisons) + rounds * self.settings.updates
        return max(rounds, 1) * self.settings.updates

    def took(self, rounds: int) -> None:
        """Note that the gradient steps of so many rounds were taken or dropped."""
        self.rounds += max(0, rounds)


class RoundQuestions:
    """The questions of one synchronous round: those due, other pairs in place of skipped ones, fewer while answers are ties."""

    def __init__(self, labels: LabelSchedule, skips: Skips, number: int):
        self.labels, self.skips, self.number = labels, skips, number
        self.allowed = 0
        """Total number of labels to request by now."""
        self._before: Tally | None = None

    def missing(self, tally: Tally) -> int | None:
        """Return the number of labels that are due but missing; None once the round has nothing more to ask."""
        used = self.skips.used(tally)
        self.skips.note(tally)
        if self._before is None:
            self.skips.forget()
        elif self.skips.hopeless or not self._asks_again(tally, used, self._before):
            return None
        self._before = tally
        self.allowed = self.labels.allowed(
            self.labels.progress_of(self.number), used, tally.ties, training=self.number > 0
        )
        return max(0, self.allowed - used)

    def _asks_again(self, tally: Tally, used: int, before: Tally) -> bool:
        """Return whether to ask more after the last questions, before which the store's counts were ``before``."""
        if tally.skipped > before.skipped and used < self.allowed:
            return True
        answered = (tally.comparisons, tally.skipped) != (
            before.comparisons,
            before.skipped,
        )  # else nobody is left to ask
        return self.labels.watches and self.number == 0 and answered

    def wants_fragments(self) -> bool:
        """Return whether the first round collects other initial fragments, because nearly all answers so far are ties."""
        return self.number == 0 and self.labels.wants_fragments

    def gathered(self) -> int:
        """Note that other initial fragments will be asked about. Return the number of such collections."""
        self._before = None
        self.labels.gathered()
        return self.labels.gatherings


class GathererState(Protocol):
    """What a decision about a gatherer depends on (`rlhf_ray.actors.gatherer.OpenQuestions`)."""

    @property
    def open(self) -> int:
        """Number of unanswered questions."""
        ...

    @property
    def share(self) -> float:
        """Its share of all questions, 0 to 1."""
        ...

    @property
    def limit(self) -> int | None:
        """Maximum number of open questions; None for no limit."""
        ...

    @property
    def annotators(self) -> tuple[str, ...]:
        """The people at the page; empty for other gatherers."""
        ...

    @property
    def deserted(self) -> bool:
        """Whether all annotators have left."""
        ...


@dataclass(frozen=True)
class RingState:
    """The asynchronous ring at one moment, as far as its decisions depend on it.

    Attributes:
        progress: the training's progress, 0 to 1.
        iteration: number of iterations that the agent has started.
        version: version of the reward model; 0 before the first fit.
        tally: the store's counts.
        unfitted: whether the store has changes that no fit has seen.
        fitting: whether a fit is under way.
        collecting: whether questions are asked, or paused.
        gathering: whether initial fragments are being collected.
        made: share of the initial fragments that are made, 0 to 1.
        fragments_to_come: whether more initial fragments will arrive from outside.
        room: whether the step budget allows other initial fragments.
        gatherers: each gatherer's questions.
    """

    progress: float
    iteration: int
    version: int
    tally: Tally
    unfitted: bool
    fitting: bool
    collecting: bool
    gathering: bool
    made: float
    fragments_to_come: bool
    room: bool
    gatherers: Sequence[GathererState]

    @property
    def open(self) -> int:
        """Number of unanswered questions."""
        return sum(gatherer.open for gatherer in self.gatherers)


class Due:
    """Says what the asynchronous ring has to do now.

    Args:
        asks: whether to ask questions; otherwise it fits to the labels in the store.
        fits: whether to fit the reward model; otherwise it only collects preferences.
    """

    def __init__(
        self, labels: LabelSchedule, reward_model: RewardModelSettings, *, asks: bool = True, fits: bool = True
    ):
        self.labels, self.skips = labels, Skips(labels.preferences)
        self.fits = FitSchedule(labels, reward_model)
        self.asking, self.fitting = asks, fits
        self.total = 0
        """Total number of labels to request by now, as last computed."""
        self._before = 0
        """How much of the budget was used up before the initial fragments."""
        self._starved_in = self._deserted_in = -1
        """Iteration in which no pair was possible, or all scripted annotators had left; the next one tries again."""

    def begin(self, tally: Tally, version: int) -> None:
        """Start, with the labels that the store holds and this version of the reward model."""
        used = self.used(tally)
        self._before = used if version == 0 else 0
        if version == 0:
            self.labels.begin(used, tally.ties)

    def used(self, tally: Tally) -> int:
        """Return how much of the label budget is used up."""
        return self.skips.used(tally)

    def starved(self, iteration: int) -> None:
        """Note that no pair is possible in this iteration."""
        self._starved_in = iteration

    def fed(self) -> None:
        """Note that there are new fragments."""
        self._starved_in = -1

    def deserted(self, iteration: int) -> None:
        """Note that all annotators of a gatherer have left in this iteration."""
        self._deserted_in = iteration

    # Questions.

    def requested(self, now: RingState) -> int:
        """Return the total number of labels to request by now."""
        self.total = self.labels.allowed(
            now.progress, self.used(now.tally), now.tally.ties, open=now.open, training=now.version > 0
        )
        return self.total

    def questions(self, now: RingState, gatherer: GathererState) -> int:
        """Return the number of pairs to ask a gatherer about now; 0 or less for none."""
        if not self.asking or not now.collecting or self._starved_in == now.iteration or self.skips.hopeless:
            return 0
        if gatherer.deserted and self._deserted_in == now.iteration:
            return 0
        due = self._before + share_of_questions(self.requested(now) - self._before, now.made, now.made > 0)
        if gatherer.share == 1.0:
            missing = due - self.used(now.tally) - (now.open - gatherer.open)  # some may be referred to people
        else:
            for_people = round(self.labels.preferences.people_share * due)
            its_due = for_people if gatherer.annotators else due - for_people
            missing = its_due - self._answered_by(now, gatherer)
        limit = missing if gatherer.limit is None else min(missing, gatherer.limit)
        return limit - gatherer.open

    def _answered_by(self, now: RingState, gatherer: GathererState) -> int:
        """Return the number of labels from people, or from the others."""
        people = sum(now.tally.by_annotator.get(name, 0) for one in now.gatherers for name in one.annotators)
        return people if gatherer.annotators else self.used(now.tally) - people

    def asks(self, now: RingState) -> bool:
        """Return whether any gatherer is to be asked now."""
        return any(self.questions(now, gatherer) > 0 for gatherer in now.gatherers)

    def wants_fragments(self, now: RingState) -> bool:
        """Return whether to collect other initial fragments, because nearly all answers so far are ties."""
        waiting = now.gathering or now.open or now.version
        return not waiting and self.labels.wants_fragments and now.room

    def answers_to_come(self, now: RingState) -> bool:
        """Before the first fit: return whether more answers will arrive while the agent's training waits."""
        if now.gathering or now.open or self.wants_fragments(now) or now.fragments_to_come:
            return True
        return self.asks(now)

    # Fits.

    def rounds_to_fit(self, now: RingState) -> int:
        """See `FitSchedule.rounds_due`."""
        return self.fits.rounds_due(now.progress, self.used(now.tally), now.version)

    def fit(self, now: RingState) -> bool:
        """Return whether a fit is due: gradient steps are, and there are new labels."""
        if not self.fitting or not now.unfitted:
            return False
        if now.version == 0:
            enough = self.used(now.tally) >= self.labels.first_fit
            return now.tally.comparisons > 0 and (enough or not self.answers_to_come(now))
        # The last labels may arrive after the last round's fit.
        late = now.progress == 1.0 and self.used(now.tally) >= self.requested(now)
        return self.rounds_to_fit(now) > 0 or late

    def rounds_without_labels(self, now: RingState) -> int:
        """Return the number of rounds whose gradient steps are dropped: they ask nothing. The newest waits for the next label."""
        if now.version and not now.unfitted and self.requested(now) <= self.used(now.tally):
            return max(0, self.rounds_to_fit(now) - 1)
        return 0

    def version_to_come(self, now: RingState) -> bool:
        """Return whether a newer version of the reward model will be made while the agent's training waits."""
        labels = now.unfitted or now.open > 0 or self.asks(now)
        return now.fitting or (self.rounds_to_fit(now) > 0 and labels)

    def unsettled(self, now: RingState) -> bool:
        """Return whether labels or fits are due that need neither people nor new fragments."""
        scripted = [gatherer for gatherer in now.gatherers if not gatherer.annotators]
        if any(gatherer.open or self.questions(now, gatherer) > 0 for gatherer in scripted):
            return True
        return self.fitting and (now.fitting or self.fit(now))


def share_of_questions(wanted: int, share: float, made: bool) -> int:
    """Return how many of ``wanted`` questions to ask now that a share of the initial fragments is made."""
    return min(wanted, max(1, math.floor(wanted * share))) if made else 0
