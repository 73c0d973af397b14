"""The label schedule: how many labels are due when, and how many to hold back while answers are ties.

Label rates say how the labels after the first are distributed over the training. A function of your own takes the progress of the
training, 0 to 1, and returns the relative rate of labels there: a number of 0 or more. Only ratios matter: the rate is normalised
to the label budget. ``preferences.schedule`` is the function, or its name ``module:Name``.
"""

from __future__ import annotations

import bisect
import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.metrics import Metric, declare
from rlhf_ray.data.registry import Registry
from rlhf_ray.settings import PreferenceSettings

POINTS = 2_000
"""Intervals of the progress over which a rate of one's own is integrated (trapezoidal rule)."""


class LabelRate(NamedTuple):
    """The integral of a label rate and its inverse: both rise from 0 at 0 to 1 at 1."""

    share: Callable[[float], float]
    """Returns the share of the labels that is due at a progress."""
    progress: Callable[[float], float]
    """Returns the smallest progress at which a share of the labels is due."""


def constant() -> LabelRate:
    """The same rate throughout."""
    return LabelRate(lambda progress: progress, lambda share: share)


def hyperbolic(steepness: float) -> LabelRate:
    """A rate ∝ 1/(1 + st), with s the steepness and t the progress (Christiano et al. 2017)."""
    whole = math.log1p(steepness)
    return LabelRate(lambda t: math.log1p(steepness * t) / whole, lambda share: math.expm1(share * whole) / steepness)


def inverse_quadratic(steepness: float) -> LabelRate:
    """A rate ∝ 1/(1 + (st)²), with s the steepness and t the progress."""
    whole = math.atan(steepness)
    return LabelRate(lambda t: math.atan(steepness * t) / whole, lambda share: math.tan(share * whole) / steepness)


def increasing(steepness: float) -> LabelRate:
    """A rate ∝ 1/(1 + s(1 - t)), with s the steepness and t the progress: `hyperbolic` backwards, asking later.

    B-Pref's increasing schedule is T/(T - step + 1): the same shape, with s as large as the number of steps T.
    """
    back = hyperbolic(steepness)
    return LabelRate(lambda t: 1.0 - back.share(1.0 - t), lambda share: 1.0 - back.progress(1.0 - share))


def own_rate(rate: Callable[[float], float], name: str) -> LabelRate:
    """Integrate a rate of a user's own, a function of the progress that errors call ``name``.

    Raises:
        SettingError: the function raises, or returns something else than finite numbers of 0 or more that are not all 0.
    """
    rates: list[float] = []
    for i in range(POINTS + 1):
        at = i / POINTS
        try:
            value = float(rate(at))
        except Exception as error:
            raise SettingError(
                f"preferences.schedule is {name!r}, and calling it with a progress of {at:g} raised "
                f"{type(error).__name__}: {error}. It takes the progress, 0 to 1, and returns the relative rate of labels."
            ) from error
        if not (math.isfinite(value) and value >= 0):
            raise SettingError(
                f"preferences.schedule is {name!r}, which returns {value} at a progress of {at:g}; the relative rate of "
                "labels must be a finite number of 0 or more."
            )
        rates.append(value)
    total = list(itertools.accumulate(((a + b) / 2 for a, b in itertools.pairwise(rates)), initial=0.0))
    if not total[-1]:
        raise SettingError(
            f"preferences.schedule is {name!r}, which returns 0 at every progress; no label would be due."
        )
    shares = [share / total[-1] for share in total]

    def share_at(progress: float) -> float:
        i = min(math.floor(progress * POINTS), POINTS - 1)
        before, after = shares[i : i + 2]
        return before + (after - before) * (progress * POINTS - i)

    def progress_of(share: float) -> float:
        i = max(0, bisect.bisect_left(shares, share) - 1)
        before, after = shares[i : i + 2]
        return min(1.0, (i + (share - before) / (after - before)) / POINTS) if after > before else i / POINTS

    return LabelRate(share_at, progress_of)


LABEL_RATES: Registry[LabelRate] = Registry(
    "preferences.schedule",
    LabelRate,
    {
        "constant": constant,
        "hyperbolic": hyperbolic,
        "inverse_quadratic": inverse_quadratic,
        "increasing": increasing,
    },
)
"""The values of ``preferences.schedule``."""


def make_rate(name: str, steepness: float) -> LabelRate:
    """Make the label rate that ``name`` stands for.

    Args:
        name: a built-in rate, or ``module:Name`` of a function progress → relative rate, of an object that can be called so, or of
            its class.
        steepness: of the built-in rates; 0.05 to 100 are useful.

    Raises:
        SettingError: there is no such rate, or the function is invalid.
    """
    if name in LABEL_RATES.parts:
        return LABEL_RATES.make(name, steepness=steepness)
    rate = LABEL_RATES.find(name)
    if inspect.isclass(rate):
        rate = rate()
    if not callable(rate):
        raise SettingError(
            f"preferences.schedule is {name!r}, which can't be called: it must be a function of the progress, 0 to 1, that "
            "returns the relative rate of labels."
        )
    return own_rate(rate, name)


declare(
    "fragments",
    Metric(
        "first_fragments_gathered", "Times initial fragments were collected; above 1 after nearly all ties.", kind=int
    ),
)
declare(
    "labels",
    Metric("labels_held_back", "Comparisons due but not requested, because answers are ties.", kind=int),
    Metric("newest_answers", "Newest answers, checked for ties.", "comparisons", int),
    Metric("newest_ties", "Ties among the newest answers.", "comparisons", int),
)

TIES = 0.8
"""Share of ties above which nearly all answers count as ties. Runs that learned had up to 0.67."""

PROBE = 10
"""Number of answers to check for ties before more are requested."""

GATHERINGS = 2
"""Maximum number of extra collections of initial fragments after nearly all answers were ties."""

TRICKLE = 2
"""Labels requested per round while nearly all answers are ties, to detect when that changes."""


class LabelSchedule:
    """Decides how many labels are due, and how many may be requested.

    Labels fall due with the training's progress, in ``rounds`` rounds after the first. With ``watches``, the schedule saves labels:
    while nearly all of the newest answers are ties, it holds back the rest of the budget.

    Args:
        watches: whether to hold back labels while answers are ties.
        env_steps: environment steps of the training, for a schedule in steps (``preferences.halving_env_steps``).

    Raises:
        SettingError: the schedule is invalid; see `make_rate`.
    """

    def __init__(
        self,
        preferences: PreferenceSettings,
        rounds: int | None = None,
        *,
        watches: bool = False,
        env_steps: int | None = None,
    ):
        self.preferences = preferences
        self._rate = make_rate(preferences.schedule, preferences.steepness_over(env_steps))
        self.rounds = preferences.rounds if rounds is None else min(preferences.rounds, rounds)
        self.watches = watches
        first = preferences.first_comparisons
        self.first_fit = preferences.first_fit_comparisons if preferences.mode == "asynchronous" else first
        """Number of labels that the first fit, and thus the training, waits for."""
        self.gatherings = 0
        """Number of extra collections of initial fragments."""
        self.held_back = 0
        """Number of labels that were due but not requested at the last decision."""
        self._looks: list[tuple[int, int]] = []
        """Answers and ties of each check."""
        self._seen = 0, 0
        """Total answers and ties at the last check."""
        self._granted: int | None = 0 if watches else None
        """Total number of labels that may be requested; None: all that are due."""
        self._granted_in: int | None = None
        """The round of the last grant; -1 before training."""

    # What is due.

    def round_at(self, progress: float) -> int:
        """Return the last round that is due at ``progress``."""
        return math.floor(self._asked(progress) * self.rounds + 1e-9)

    def progress_of(self, number: int) -> float:
        """Return the progress at which round ``number`` is due."""
        return self.preferences.until * number / max(1, self.rounds)

    def _asked(self, progress: float) -> float:
        """Return ``progress`` on the way to `PreferenceSettings.until`, 0 to 1."""
        return min(max(progress / self.preferences.until, 0.0), 1.0)

    def due(self, progress: float) -> int:
        """Return the total number of labels due at ``progress``: the initial ones at 0, the whole budget at 1."""
        settings, initial = self.preferences, self.preferences.first_comparisons
        if self.rounds == 0:
            return settings.comparisons
        share = self._rate.share(self._asked(progress))
        later = round((settings.comparisons - initial) * share)
        return max(initial + later, self.first_fit)

    def due_in_round(self, number: int) -> int:
        """Return the total number of labels due by round ``number`` of the synchronous mode."""
        return self.due(self.progress_of(number))

    def progress_due(self, label: int) -> float:
        """Return the progress at which the ``label``-th label falls due: the smallest at which `due` reaches it."""
        settings, initial = self.preferences, self.preferences.first_comparisons
        if label <= initial:
            return 0.0
        share = min(1.0, (label - initial - 0.5) / (settings.comparisons - initial))  # `due` rounds to the nearest
        return self.preferences.until * self._rate.progress(share)

    def rounds_covered(self, labels: int) -> int:
        """Return the number of later rounds that can be skipped because ``labels`` labels exist before the first round.

        Rounds that would request no labels don't count.
        """
        due = [self.due_in_round(number) for number in range(self.rounds + 1)]
        return sum(before < after <= labels for before, after in itertools.pairwise(due))

    # What may be asked.

    def begin(self, answered: int, ties: int) -> None:
        """Start labelling with ``answered`` existing labels, of which ``ties`` are ties. These don't predict ties in new ones."""
        self._seen = answered, ties
        if self._granted is not None:
            self._granted = answered

    def allowed(self, progress: float, answered: int, ties: int, *, open: int = 0, training: bool = True) -> int:
        """Return the total number of labels that may be requested by now: those due, or fewer while nearly all answers are ties.

        ``answered`` labels are there, of which ``ties`` are ties; ``open`` questions have no answer yet.
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
        """Return how many of the ``missing`` labels to request in round ``now``."""
        if now < 0:
            return 0 if self.tied else missing if self._looks else min(missing, PROBE)
        if self.tied:
            return min(missing, TRICKLE)
        if self.held_back:  # spread the labels held back over the remaining rounds
            return min(missing, math.ceil(unspent / max(1, self.rounds - now + 1)))
        return missing

    def _look(self, answered: int, ties: int) -> None:
        new, tied = answered - self._seen[0], ties - self._seen[1]
        if new > 0:
            self._looks.append((new, max(0, tied)))
        self._seen = answered, ties

    @property
    def newest(self) -> tuple[int, int]:
        """The number of newest answers (at least `PROBE`, if there are) and of ties among them."""
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
    def wants_fragments(self) -> bool:
        """Whether to collect more initial fragments before requesting more labels."""
        return self.tied and self.gatherings < GATHERINGS

    def gathered(self) -> None:
        """Note that more initial fragments were collected. Earlier answers don't predict ties among these."""
        self.gatherings += 1
        self._looks = []

    def report(self) -> dict[str, int]:
        """Return metrics about ties: labels held back, collections of initial fragments, newest answers and ties."""
        if not self.watches:
            return {}
        answers, ties = self.newest
        told = {"labels_held_back": self.held_back, "first_fragments_gathered": 1 + self.gatherings}
        return told | {"newest_answers": answers, "newest_ties": ties}

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        return {
            "gatherings": self.gatherings,
            "held_back": self.held_back,
            "looks": [list(look) for look in self._looks],
            "seen": list(self._seen),
            "granted": self._granted,
            "granted_in": self._granted_in,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.gatherings, self.held_back = state["gatherings"], state["held_back"]
        self._looks = [(answers, ties) for answers, ties in state["looks"]]
        self._seen = state["seen"][0], state["seen"][1]
        self._granted, self._granted_in = state["granted"], state["granted_in"]


def gathered(row: Mapping[str, Any]) -> str | None:
    """Describe what was done about ties before training, from an iteration's metrics; None if nothing was."""
    times = row.get("first_fragments_gathered") or 1
    if times == 1:
        return None
    return (
        f"Nearly all of the first answers were ties, so initial fragments were collected {times} times "
        f"({row['first_fragments_env_steps']} env steps in total) before more labels were requested."
    )


def held_back(row: Mapping[str, Any]) -> str | None:
    """Describe what is being done about ties now, from an iteration's metrics; None if nothing is."""
    held, answers, ties = (row.get(name) or 0 for name in ("labels_held_back", "newest_answers", "newest_ties"))
    if not held or ties <= TIES * answers:
        return None
    return (
        f"{ties} of the newest {answers} answers are ties: holding back {held} labels, requesting {TRICKLE} per round."
    )
