"""Health: alarms for training that fails without an error.

Each alarm is a function of the metrics so far (the rows of ``metrics.jsonl``); it returns the problem's figures, or None. Its words
are in ``health.toml``. `Health` calls all registered ones (`rlhf_ray.runs.alarm.CHECKS`) after each iteration; those about wrong
answers are in `rlhf_ray.runs.answer_alarms`. Thresholds lie outside the range of runs that learned well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.true_return import LONGEST
from rlhf_ray.data.metrics import Metric, declare
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.labelling.waiting import NOBODY_AFTER, spoken
from rlhf_ray.measure import held_out
from rlhf_ray.queries.schedule import PROBE, TIES, held_back
from rlhf_ray.runs import answer_alarms as _answer_alarms  # noqa: F401 (registers them)
from rlhf_ray.runs.alarm import CHECKS, Alarm, Figures, Row, Rows, Task, check, presses_of, talk_to
from rlhf_ray.runs.callbacks import Callback, TrainingRun
from rlhf_ray.store.answers import FEW_ANSWERS
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

declare("alarms", Metric("alarms", "Active alarms.", kind=int))

QUIET = 10
"""Iterations without a finding after which an alarm is cleared, so that a value oscillating around its threshold alarms once."""

WINDOW = 10
"""Iterations per average of a return: compares the last window with every earlier window."""
SURE = 3.0
"""Standard errors by which two averages must differ; high, because many windows are compared and neighbours are dependent."""
SHARE_OF_SPAN = 0.2
"""Minimum change as a fraction of the return's range so far. Smaller changes are fluctuations of a converged policy."""
SURE_OF_ACCURACY = 2.5
"""Standard errors by which held-out accuracy must fall; lower, because the learned return must rise too and the true one not."""

SCALE_JUMP = 3.0
"""Factor between the reward scales of consecutive versions. Runs that learned had up to 1.8, between their first fits."""

COLLAPSED_DISAGREEMENT = 1e-3
"""Standard deviation of the predicted probability over members; below it, they are copies. Runs that learned had at least 0.02."""

ENTROPY_LEFT = 0.005
"""Fraction of the maximum entropy, log(actions); with two actions, one is taken 1 time in 2,500. Solved tasks reached 0.012."""
SPREAD_LEFT = 0.02
"""For continuous actions: standard deviation (geometric mean over action dimensions) relative to the start, computed from the
change in entropy; the entropy itself can be negative and depends on the action scale. A solved task reached 0.2."""
SETTLED_FOR = 5
"""Consecutive iterations for which the entropy must be this low."""

DISTINCT_FRAGMENTS = 0.5
"""Minimum fraction of distinct fragments in the pool; below it, most labels would compare duplicates."""

ENDLESS_AFTER = 2
"""Iterations without the end of an episode after which an environment without a time limit counts as endless."""

STARVING = 0.1
"""Fraction of the labels due that is missing."""
STARVING_ROUNDS = 3
"""Consecutive labelling rounds with missing labels; a single one is normal when there are too few fragments for all pairs."""
STARVING_ITERATIONS = 20
"""Consecutive iterations in asynchronous mode; more, because people take their time to answer."""


class Alarms(Callback):
    """Adds to each iteration's metrics ``alarms``, the names of active alarms, and ``raised``, the new ones."""

    def on_start(self, run: TrainingRun) -> None:
        """Process the earlier iterations of a resumed run."""
        checked = run.algorithm.config.checked
        self._health = Health(checked.action_space, limited=checked.horizon is not None)
        for row in run.folder.rows():
            self._health.watch(row)

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Check one iteration."""
        raised = [asdict(alarm) for alarm in self._health.watch(dict(metrics))]
        metrics |= {"alarms": self._health.active, "raised": raised}


class Health:
    """Watches a run's metrics.

    Args:
        action_space: the environment's action space, to interpret the policy's entropy.
        limited: whether the environment has a time limit. Without one, episodes may never end.
    """

    def __init__(self, action_space: gym.Space[Any], *, limited: bool = True):
        self._task = Task(action_space, limited)
        self._rows: list[Row] = []
        self._last_seen: dict[str, int] = {}

    @property
    def active(self) -> list[str]:
        """The names of the active alarms."""
        return sorted(self._last_seen)

    def watch(self, row: Row) -> list[Alarm]:
        """Process the metrics of one iteration; returns the alarms it raises.

        Active alarms are not raised again. An alarm is cleared after `QUIET` iterations without a finding.
        """
        self._rows.append(row)
        now = len(self._rows)
        seen = [alarm for check in CHECKS.values() if (alarm := check(self._rows, self._task)) is not None]
        raised = [alarm for alarm in seen if alarm.name not in self._last_seen]
        self._last_seen |= {alarm.name: now for alarm in seen}
        self._last_seen = {name: last for name, last in self._last_seen.items() if now - last < QUIET}
        return raised


@check(WORDS)
def reward_hacking(rows: Rows) -> Figures:
    """The learned return has risen while the true return has fallen.

    Or the held-out accuracy has fallen and the true return has not risen. Each fit changes the learned reward's scale and origin,
    so its rise is measured against the run's probe set, if there is one (`rlhf_ray.reward.probe`): a rise that comes from the fits
    alone is none, and one that they hide is.
    """
    name = "learned_gain"
    known = [i for i, row in enumerate(rows) if _has(row, name, "true_return_mean")]
    if len(known) < 2 * WINDOW:
        name = "learned_return_mean"
        known = [i for i, row in enumerate(rows) if _has(row, name, "true_return_mean")]
    if len(known) < 2 * WINDOW or _nothing_decided(rows):
        return None
    learned = _Moves([rows[i][name] for i in known])
    true = _Moves([rows[i]["true_return_mean"] for i in known])
    for start in reversed(np.flatnonzero((learned.direction > 0) & (true.direction <= 0)).tolist()):
        accuracies = _accuracy_fell(rows[: known[start + WINDOW - 1] + 1], rows)
        if true.direction[start] < 0 or accuracies:
            return {
                "iterations": len(rows) - known[start],
                "probed": name == "learned_gain",
                "learned": learned.means[[start, -1]].tolist(),
                "fallen": true.means[[start, -1]].tolist() if true.direction[start] < 0 else None,
                "accuracies": accuracies,
            }
    return None


@check(WORDS)
def endless_episodes(rows: Rows, task: Task) -> Figures:
    """No episode has ended in an environment without a time limit."""
    if task.limited or len(rows) < ENDLESS_AFTER or _newest(rows, 1, "true_return_mean"):
        return None
    return {"env_steps": rows[-1].get("env_steps", 0), "longest": LONGEST}


@check(WORDS)
def reward_scale(rows: Rows) -> Figures:
    """The scale of the raw reward jumps between consecutive versions."""
    fits = _newest(rows, 2, "reward_std", "reward_version")
    if len(fits) < 2 or _nothing_decided(rows):
        return None
    before, now = fits
    if max(before["reward_std"], now["reward_std"]) <= SCALE_JUMP * min(before["reward_std"], now["reward_std"]):
        return None
    return {"before": before, "now": now}


@check(WORDS)
def ensemble_collapse(rows: Rows) -> Figures:
    """The ensemble members are practically identical."""
    fits = _newest(rows, 1, "disagreement")
    if not fits or fits[0]["disagreement"] >= COLLAPSED_DISAGREEMENT or _nothing_decided(rows):
        return None
    return {"disagreement": fits[0]["disagreement"]}


@check(WORDS)
def entropy_collapse(rows: Rows, task: Task) -> Figures:
    """The policy has practically stopped exploring."""
    seen = _newest(rows, SETTLED_FOR, "policy_entropy")
    if len(seen) < SETTLED_FOR:
        return None
    entropy = max(row["policy_entropy"] for row in seen)
    if choices := choices_of(task.action_space):
        left, threshold = entropy / max(math.log(2), sum(map(math.log, choices))), ENTROPY_LEFT
    else:
        start = next(row["policy_entropy"] for row in rows if _has(row, "policy_entropy"))
        left, threshold = math.exp((entropy - start) / math.prod(task.action_space.shape or (1,))), SPREAD_LEFT
    return {"iterations": SETTLED_FOR, "choices": choices, "left": left} if left < threshold else None


@check(WORDS)
def one_sided_answers(rows: Rows) -> Figures:
    """Nearly all recent answers of an annotator are for the fragment shown on one side, although sides are random."""
    presses = {name: each for name, each in presses_of(rows).items() if each.one_sided}
    return {"presses": presses, "talk": talk_to(presses)} if presses else None


@check(WORDS)
def equal_answers(rows: Rows) -> Figures:
    """An annotator answers "equally good" nearly always, and others don't, so that it isn't the fragments."""
    presses = presses_of(rows)
    equal = {name: each for name, each in presses.items() if each.mostly_equal}
    others = [each for each in presses.values() if each.answers >= FEW_ANSWERS and not each.mostly_equal]
    if not equal or not others or fragments_alike(rows) or labels_held_back(rows):
        return None  # the last two name the annotators
    usual = sum(each.equal for each in others) / sum(each.answers for each in others)
    return {"presses": equal, "usual": usual, "talk": talk_to(equal)}


@check(WORDS)
def below_chance(rows: Rows) -> Figures:
    """The reward model predicts answers that it was not fitted to worse than guessing."""
    fits = _newest(rows, 1, "held_out_accuracy", "held_out")
    if not fits:
        return None
    accuracy, answers = fits[0]["held_out_accuracy"], held_out_answers(fits[0])
    return {"accuracy": accuracy, "answers": answers} if held_out.below_chance(accuracy, answers) else None


@check(WORDS)
def fragments_alike(rows: Rows) -> Figures:
    """The fragments are duplicates, or the teacher sees no difference between them."""
    pools, fits = _newest(rows, 1, "distinct_fragments"), _newest(rows, 1, "ties", "comparisons")
    distinct = pools[0]["distinct_fragments"] if pools else 1.0
    ties, answers = (fits[0]["ties"], fits[0]["comparisons"]) if fits else (0, 0)
    if distinct >= DISTINCT_FRAGMENTS:
        distinct = None
        if held_back(rows[-1]) is not None:
            return None  # `labels_held_back` reports it
        if not _nothing_decided(rows) and (answers < FEW_ANSWERS or ties <= TIES * answers):
            return None
    return {"distinct": distinct, "ties": ties, "answers": answers, **_equal_sayers(rows)}


def _nothing_decided(rows: Rows) -> bool:
    """Whether all answers are ties: `fragments_alike` says so, and the fitted reward, which is noise, has nothing to add."""
    fits = _newest(rows, 1, "ties", "comparisons")
    return bool(fits) and 0 < fits[0]["comparisons"] <= fits[0]["ties"]


@check(WORDS)
def labels_held_back(rows: Rows) -> Figures:
    """Due labels are held back, because the answers would be ties."""
    held = held_back(rows[-1])
    return None if held is None else {"held": held, **_equal_sayers(rows)}


@check(WORDS)
def labels_starving(rows: Rows) -> Figures:
    """Labels fall behind the schedule."""
    waiting = _newest(rows, STARVING_ITERATIONS, "labels_due", "comparisons")
    rounds = _newest(rows, STARVING_ROUNDS, "wanted", "answered", "comparisons")
    due = [(row["labels_due"], row["comparisons"]) for row in waiting]
    # The number wanted in a round includes those missed in earlier rounds.
    due = due or [(row["comparisons"] + row["wanted"] - row["answered"], row["comparisons"]) for row in rounds]
    enough = STARVING_ITERATIONS if waiting else STARVING_ROUNDS
    if len(due) < enough or any(answered >= (1 - STARVING) * wanted for wanted, answered in due):
        return None
    wanted, answered = due[-1]
    return {"wanted": wanted, "answered": answered, "looks": len(due), "waiting": bool(waiting)}


@check(WORDS)
def nobody_answers(rows: Rows) -> Figures:
    """Questions are open for people, and none is answered."""
    silence = rows[-1].get("unanswered_seconds")
    return None if silence is None or silence < NOBODY_AFTER else {"silence": spoken(silence)}


def _has(row: Row, *names: str) -> bool:
    """Whether the row has finite values for all these metrics."""
    return all(isinstance(row.get(name), int | float) and math.isfinite(row[name]) for name in names)


def _newest(rows: Rows, count: int, *names: str) -> list[Row]:
    """The newest ``count`` rows (or fewer) that have all these metrics, oldest first."""
    found: list[Row] = []
    for row in reversed(rows):
        if _has(row, *names):
            found.append(row)
            if len(found) == count:
                break
    return found[::-1]


def held_out_answers(row: Row) -> int:
    """The number of answers behind a row's held-out accuracy; in rows of earlier versions, ties count as well."""
    value = row.get("held_out_decided")
    return int(row.get("held_out") or 0) if value is None else int(value)


def _equal_sayers(rows: Rows) -> dict[str, Any]:
    """Return the annotators whose newest answers are nearly all ties, and what to do about them."""
    equal = {
        name: each
        for name, each in presses_of(rows).items()
        if each.answers >= PROBE and each.equal > TIES * each.answers
    }
    return {"equal": equal, "talk": talk_to(equal)}


class _Moves:
    """Compares a return's average over the last window with each earlier, non-overlapping window.

    ``means`` are the averages, indexed by the window's first value. ``direction`` is, per earlier window, 1 if the return has
    risen since, -1 if it has fallen, and 0 if the change is small or not significant.
    """

    def __init__(self, values: Sequence[float]):
        windows = np.lib.stride_tricks.sliding_window_view(np.array(values, dtype=np.float64), WINDOW)
        self.means, variances = windows.mean(1), windows.var(1, ddof=1)
        moved = (self.means[-1] - self.means)[:-WINDOW]
        noise = np.sqrt((variances[-1] + variances) / WINDOW)[:-WINDOW]
        enough = np.maximum(SURE * noise, SHARE_OF_SPAN * np.ptp(self.means))
        self.direction = np.where(np.abs(moved) > enough, np.sign(moved), 0.0)


def _accuracy_fell(earlier: Rows, rows: Rows) -> tuple[float, float] | None:
    """The earlier and the current held-out accuracy if it fell significantly, given the number of held-out comparisons."""
    fits = [_newest(part, 1, "held_out_accuracy", "held_out") for part in (earlier, rows)]
    if not all(fits):
        return None
    (before, of_before), (now, of_now) = ((row["held_out_accuracy"], held_out_answers(row)) for (row,) in fits)
    right = before * of_before + 1 + now * of_now + 1
    share = right / (of_before + of_now + 4)  # Laplace's rule: avoids certainty from a few
    error = math.sqrt(share * (1 - share) * (1 / max(1, of_before) + 1 / max(1, of_now)))
    return (before, now) if before - now > SURE_OF_ACCURACY * error else None
