"""How many labels, when: the one place that says what is due, and how much of it is asked while answers are ties."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from rlhf_ray.settings import PreferenceSettings, ScheduleName

TIES = 0.8
"""Share of the answers above which nearly all are ties. Runs that learned had up to 0.67."""

PROBE = 10
"""Answers to look at before more are asked for."""

GATHERINGS = 2
"""Times that more first clips are gathered, at most, because nearly all answers were ties."""

TRICKLE = 2
"""Labels asked for in each later round while nearly all answers are ties, to see whether they still are."""


def share_due(schedule: ScheduleName, progress: float, steepness: float = 1.0) -> float:
    """The share of the labels that is due once ``progress`` (0 to 1) of the training is done.

    The integral from 0 to ``progress`` of the label rate, which is constant, ∝ 1/(1 + st) or ∝ 1/(1 + (st)²) with t the progress
    and s the steepness, scaled so that the whole is 1. With s = 1 these are the three of `imitation`; Christiano et al. (2017)
    let the rate fall as 1/(1 + st) with s = 10 on Atari (5e6 of 50e6 steps).
    """
    t = min(max(progress, 0.0), 1.0)
    if schedule == "constant":
        return t
    if schedule == "hyperbolic":
        return math.log1p(steepness * t) / math.log1p(steepness)
    return math.atan(steepness * t) / math.atan(steepness)


class LabelSchedule:
    """What is due, and what may be asked.

    Labels fall due with the training's progress, from 0 to 1, in ``rounds`` rounds after the first. With ``watches``, labels
    are not spent on ties: while nearly all of the newest answers are ties, the rest of the budget is held back.

    Args:
        preferences: the budget, and how it is spread over the training.
        rounds: labelling rounds after the first, at most as many as ``preferences.rounds``.
        watches: whether to hold labels back while answers are ties.
    """

    def __init__(self, preferences: PreferenceSettings, rounds: int | None = None, *, watches: bool = False):
        self.preferences = preferences
        self.rounds = preferences.rounds if rounds is None else min(preferences.rounds, rounds)
        self.watches = watches
        first = preferences.first_comparisons
        self.first_fit = preferences.first_fit_comparisons if preferences.mode == "asynchronous" else first
        """Labels that the first fit, and with it the training, waits for."""
        self.gatherings = 0
        """Times that more first clips were gathered."""
        self.held_back = 0
        """Labels that were due and not asked for when this was decided last."""
        self._looks: list[tuple[int, int]] = []
        """Answers, and ties among them, of each look."""
        self._seen = 0, 0
        """Answers, and ties among them, at the last look."""
        self._granted: int | None = 0 if watches else None
        """Labels that may have been asked for, in all; None: all that are due."""
        self._granted_in: int | None = None
        """The round of the last grant; -1 before training."""

    # What is due.

    def round_at(self, progress: float) -> int:
        """The last round that is due at ``progress``."""
        return math.floor(min(max(progress, 0.0), 1.0) * self.rounds + 1e-9)

    def due(self, progress: float) -> int:
        """Labels due at ``progress``, in all: the initial ones at 0 and exactly the budget at 1."""
        of, initial = self.preferences, self.preferences.first_comparisons
        if self.rounds == 0:
            return of.comparisons
        later = round((of.comparisons - initial) * share_due(of.schedule, progress, of.steepness))
        return max(initial + later, self.first_fit)

    def due_in_round(self, number: int) -> int:
        """Labels due by round ``number`` of the synchronous mode, in all."""
        return self.due(number / self.rounds) if self.rounds else self.preferences.comparisons

    def progress_due(self, label: int) -> float:
        """The progress at which the ``label``-th label falls due: the least at which `due` reaches it."""
        of, initial = self.preferences, self.preferences.first_comparisons
        if label <= initial:
            return 0.0
        share = min(1.0, (label - initial - 0.5) / (of.comparisons - initial))  # `due` rounds to the nearest
        if of.schedule == "hyperbolic":
            return math.expm1(share * math.log1p(of.steepness)) / of.steepness
        if of.schedule == "inverse_quadratic":
            return math.tan(share * math.atan(of.steepness)) / of.steepness
        return share

    def rounds_covered(self, labels: int) -> int:
        """How many later rounds need not be held because ``labels`` labels were there before the first.

        Rounds that ask for nothing anyway do not count.
        """
        due = [self.due_in_round(number) for number in range(self.rounds + 1)]
        return sum(before < after <= labels for before, after in itertools.pairwise(due))

    # What may be asked.

    def begin(self, answered: int, ties: int) -> None:
        """Labelling begins with ``answered`` labels, of which ``ties`` are ties: they say nothing about the clips to come."""
        self._seen = answered, ties
        if self._granted is not None:
            self._granted = answered

    def allowed(self, progress: float, answered: int, ties: int, *, open: int = 0, training: bool = True) -> int:
        """Labels that may have been asked for by now, in all: those due, or fewer while nearly all answers are ties.

        Args:
            progress: of the training, 0 to 1.
            answered: labels so far.
            ties: how many of them say "equally good".
            open: questions asked and not answered yet.
            training: whether training has begun.
        """
        due = self.due(progress)
        if not self.watches:
            return due
        now = self.round_at(progress) if training else -1
        if self._granted is None:
            if answered < self._seen[0] + PROBE:
                return due
        else:
            answers_to_come = open > 0 or answered < self._granted
            decided = training and now == self._granted_in
            settled = not training and bool(self._looks) and answered == self._seen[0]
            if answers_to_come or decided or settled or answered >= due:
                return min(due, self._granted)
        self._look(answered, ties)
        missing = max(0, due - answered)
        granted = self._grant(missing, self.preferences.comparisons - answered, now)
        self.held_back = missing - granted
        if not self.tied and not self.held_back:
            self._granted = None
            return due
        self._granted, self._granted_in = answered + granted, now
        return self._granted

    def _grant(self, missing: int, unspent: int, now: int) -> int:
        """How many of the ``missing`` labels to ask for in round ``now``."""
        if now < 0:
            return 0 if self.tied else missing if self._looks else min(missing, PROBE)
        if self.tied:
            return min(missing, TRICKLE)
        if self.held_back:  # what was held back is spread over the rounds to come
            return min(missing, math.ceil(unspent / max(1, self.rounds - now + 1)))
        return missing

    def _look(self, answered: int, ties: int) -> None:
        new, tied = answered - self._seen[0], ties - self._seen[1]
        if new > 0:
            self._looks.append((new, max(0, tied)))
        self._seen = answered, ties

    @property
    def newest(self) -> tuple[int, int]:
        """The newest answers, `PROBE` of them or somewhat more, and the ties among them."""
        answers = ties = 0
        for new, tied in reversed(self._looks):
            if answers >= PROBE:
                break
            answers, ties = answers + new, ties + tied
        return answers, ties

    @property
    def tied(self) -> bool:
        """Whether nearly all of the newest answers are ties."""
        answers, ties = self.newest
        return answers >= PROBE and ties > TIES * answers

    @property
    def wants_clips(self) -> bool:
        """Whether to gather more first clips before asking more."""
        return self.tied and self.gatherings < GATHERINGS

    def gathered(self) -> None:
        """More first clips were gathered: answers about the earlier ones say nothing about these."""
        self.gatherings += 1
        self._looks = []

    def report(self) -> dict[str, int]:
        """For the metrics, where it watches: labels held back, gatherings of first clips, ties among the newest answers."""
        if not self.watches:
            return {}
        answers, ties = self.newest
        told = {"labels_held_back": self.held_back, "first_clips_gathered": 1 + self.gatherings}
        return told | {"newest_answers": answers, "newest_ties": ties}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON takes it."""
        return {
            "gatherings": self.gatherings,
            "held_back": self.held_back,
            "looks": [list(look) for look in self._looks],
            "seen": list(self._seen),
            "granted": self._granted,
            "granted_in": self._granted_in,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.gatherings, self.held_back = state["gatherings"], state["held_back"]
        self._looks = [(answers, ties) for answers, ties in state["looks"]]
        self._seen = state["seen"][0], state["seen"][1]
        self._granted, self._granted_in = state["granted"], state["granted_in"]


def gathered(row: Mapping[str, Any]) -> str | None:
    """What was done about ties before training, told from the metrics of an iteration; None where nothing was."""
    times = row.get("first_clips_gathered") or 1
    if times == 1:
        return None
    return (
        f"Nearly all of the first answers were ties, so more first clips were gathered ({times} times, "
        f"{row['first_clips_env_steps']} environment steps in all) before more was asked."
    )


def held_back(row: Mapping[str, Any]) -> str | None:
    """What is being done about ties, told from the metrics of an iteration; None where nothing has to be."""
    held, answers, ties = (row.get(name) or 0 for name in ("labels_held_back", "newest_answers", "newest_ties"))
    if not held or ties <= TIES * answers:
        return None
    return f"{ties} of the newest {answers} answers are ties: {held} labels are held back, {TRICKLE} are asked in each round."
