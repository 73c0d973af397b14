"""Health: alarms for training that fails without an error.

Each alarm is a function of the metrics so far (the rows of ``metrics.jsonl``); it returns the problem, with numbers, and a remedy,
or None. `Health` calls all of them after each iteration. Thresholds lie outside the range of runs that learned well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.spaces import choices_of
from rlhf_ray.queries.schedule import TIES, held_back
from rlhf_ray.reward.fit_report import RECENT_ANSWERS
from rlhf_ray.runs.callbacks import Callback, TrainingRun

Row = dict[str, Any]
Rows = Sequence[Row]

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

ONE_SIDED = 4.0
"""Standard errors from one half, for a fair coin: reached by 16 of 16 answers for one side, or 40 of 50."""

DISTINCT_CLIPS = 0.5
"""Minimum fraction of distinct fragments in the pool; below it, most labels would compare duplicates."""
FEW_ANSWERS = 20
"""Minimum number of answers for a meaningful fraction of ties."""

STARVING = 0.1
"""Fraction of the labels due that is missing."""
STARVING_ROUNDS = 3
"""Consecutive labelling rounds with missing labels; a single one is normal when there are too few fragments for all pairs."""
STARVING_ITERATIONS = 20
"""Consecutive iterations in asynchronous mode; more, because people take their time to answer."""


@dataclass(frozen=True)
class Alarm:
    """A problem in training.

    Attributes:
        name: fixed name of the alarm.
        message: the finding, with numbers.
        remedy: how to fix it.
    """

    name: str
    message: str
    remedy: str


Check = Callable[[Rows], Alarm | None]


class Alarms(Callback):
    """Adds to each iteration's metrics ``alarms``, the names of active alarms, and ``raised``, the new ones."""

    def on_start(self, run: TrainingRun) -> None:
        """Process the earlier iterations of a resumed run."""
        self._health = Health(run.algorithm.config.checked.action_space)
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
    """

    def __init__(self, action_space: gym.Space[Any]):
        self._checks: tuple[Check, ...] = (
            reward_hacking,
            reward_scale,
            ensemble_collapse,
            partial(entropy_collapse, action_space=action_space),
            one_sided_answers,
            clips_alike,
            labels_held_back,
            labels_starving,
        )
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
        seen = [alarm for check in self._checks if (alarm := check(self._rows)) is not None]
        raised = [alarm for alarm in seen if alarm.name not in self._last_seen]
        self._last_seen |= {alarm.name: now for alarm in seen}
        self._last_seen = {name: last for name, last in self._last_seen.items() if now - last < QUIET}
        return raised


def reward_hacking(rows: Rows) -> Alarm | None:
    """The learned return has risen while the true return has fallen.

    Or the held-out accuracy has fallen and the true return has not risen. Each fit changes the learned reward's scale and origin,
    so its rise is measured against the run's probe set, if there is one (`rlhf_ray.measure.probe`): a rise that comes from the fits
    alone is none, and one that they hide is.
    """
    name, what = "learned_gain", "learned reward above the probe set's"
    known = [i for i, row in enumerate(rows) if _has(row, name, "true_return_mean")]
    if len(known) < 2 * WINDOW:
        name, what = "learned_return_mean", "learned return"
        known = [i for i, row in enumerate(rows) if _has(row, name, "true_return_mean")]
    if len(known) < 2 * WINDOW:
        return None
    learned = _Moves([rows[i][name] for i in known])
    true = _Moves([rows[i]["true_return_mean"] for i in known])
    for start in reversed(np.flatnonzero((learned.direction > 0) & (true.direction <= 0)).tolist()):
        first = known[start]
        if true.direction[start] < 0:
            fallen = f"the true return fell from {true.means[start]:.4g} to {true.means[-1]:.4g}"
        elif accuracies := _accuracy_fell(rows[: known[start + WINDOW - 1] + 1], rows):
            fallen = "held-out accuracy fell from {:.2f} to {:.2f}".format(*accuracies)
        else:
            continue
        return Alarm(
            "reward_hacking",
            f"Over the last {len(rows) - first} iterations the {what} rose from {learned.means[start]:.4g} to "
            f"{learned.means[-1]:.4g} while {fallen}.",
            "The policy may exploit errors of the reward model. Label newer behaviour: raise preferences.comparisons or "
            "preferences.rounds, or choose a flatter preferences.schedule.",
        )
    return None


def reward_scale(rows: Rows) -> Alarm | None:
    """The scale of the raw reward jumps between consecutive versions."""
    fits = _newest(rows, 2, "reward_std", "reward_version")
    if len(fits) < 2:
        return None
    before, now = fits
    if max(before["reward_std"], now["reward_std"]) <= SCALE_JUMP * min(before["reward_std"], now["reward_std"]):
        return None
    return Alarm(
        "reward_scale",
        f"From reward version {before['reward_version']} to {now['reward_version']}, the standard deviation of the raw reward "
        f"changed from {before['reward_std']:.3g} to {now['reward_std']:.3g}.",
        "One fit should not change the reward this much. Lower reward_model.updates or reward_model.learning_rate, or raise "
        "reward_model.weight_decay.",
    )


def ensemble_collapse(rows: Rows) -> Alarm | None:
    """The ensemble members are practically identical."""
    fits = _newest(rows, 1, "disagreement")
    if not fits or fits[0]["disagreement"] >= COLLAPSED_DISAGREEMENT:
        return None
    return Alarm(
        "ensemble_collapse",
        f"The predicted probabilities of the ensemble members differ by only {fits[0]['disagreement']:.1e}.",
        "The members act as one model, so selection by disagreement is random. Collect more comparisons per fit, lower "
        "reward_model.initial_updates or reward_model.updates, or set reward_model.bootstrap to True.",
    )


def entropy_collapse(rows: Rows, action_space: gym.Space[Any]) -> Alarm | None:
    """The policy has practically stopped exploring."""
    seen = _newest(rows, SETTLED_FOR, "policy_entropy")
    if len(seen) < SETTLED_FOR:
        return None
    entropy = max(row["policy_entropy"] for row in seen)
    if choices := choices_of(action_space):
        left, threshold = entropy / max(math.log(2), sum(map(math.log, choices))), ENTROPY_LEFT
        what = f"entropy is {100 * left:.2g} % of the maximum"
    else:
        start = next(row["policy_entropy"] for row in rows if _has(row, "policy_entropy"))
        left, threshold = math.exp((entropy - start) / math.prod(action_space.shape or (1,))), SPREAD_LEFT
        what = f"action standard deviation is {100 * left:.2g} % of its initial value"
    if left >= threshold:
        return None
    return Alarm(
        "entropy_collapse",
        f"For {SETTLED_FOR} iterations, the policy's {what}.",
        "The policy no longer explores and will hardly change. If it is not good yet, raise ppo.entropy_coefficient, or lower "
        "ppo.learning_rate or ppo.epochs (with agent=sac, raise sac.target_entropy).",
    )


def one_sided_answers(rows: Rows) -> Alarm | None:
    """Nearly all recent answers prefer the same side, although sides are random."""
    fits = _newest(rows, 1, "left_share", "comparisons", "ties")
    if not fits:
        return None
    share, answers = fits[0]["left_share"], min(RECENT_ANSWERS, fits[0]["comparisons"] - fits[0]["ties"])
    if abs(2 * share - 1) * math.sqrt(answers) < ONE_SIDED:
        return None
    side, times = ("left", share) if share > 0.5 else ("right", 1 - share)
    return Alarm(
        "one_sided_answers",
        f"{round(times * answers)} of the last {answers:.0f} answers (ties excluded) prefer the {side} fragment.",
        "Sides are random, so about half should. An annotator may press the same button every time: talk to them, and check that "
        "the page shows both clips.",
    )


def clips_alike(rows: Rows) -> Alarm | None:
    """The fragments are duplicates, or the teacher sees no difference between them."""
    pools, fits = _newest(rows, 1, "distinct_clips"), _newest(rows, 1, "ties", "comparisons")
    if pools and pools[0]["distinct_clips"] < DISTINCT_CLIPS:
        what = f"Only {100 * pools[0]['distinct_clips']:.0f} % of the fragments in the pool are distinct."
    elif held_back(rows[-1]) is not None:
        return None  # `labels_held_back` reports it
    elif fits and fits[0]["comparisons"] >= FEW_ANSWERS and fits[0]["ties"] > TIES * fits[0]["comparisons"]:
        what = f"{fits[0]['ties']:.0f} of {fits[0]['comparisons']} answers are ties."
    else:
        return None
    return Alarm(
        "clips_alike",
        what,
        "Comparing similar fragments teaches nothing. Raise fragments.length, fragments.exploration_env_steps or "
        "ppo.entropy_coefficient.",
    )


def labels_held_back(rows: Rows) -> Alarm | None:
    """Due labels are held back, because the answers would be ties."""
    said = held_back(rows[-1])
    if said is None:
        return None
    return Alarm(
        "labels_held_back",
        said,
        "The fragments hardly show the behaviour to learn. Start from --demonstrations or --policy-from, or raise "
        "fragments.length or fragments.exploration_env_steps.",
    )


def labels_starving(rows: Rows) -> Alarm | None:
    """Labels fall behind the schedule."""
    waiting = _newest(rows, STARVING_ITERATIONS, "labels_due", "comparisons")
    rounds = _newest(rows, STARVING_ROUNDS, "wanted", "answered", "comparisons")
    enough, unit = (STARVING_ITERATIONS, "iterations") if waiting else (STARVING_ROUNDS, "labelling rounds")
    due = [(row["labels_due"], row["comparisons"]) for row in waiting]
    # The number wanted in a round includes those missed in earlier rounds.
    due = due or [(row["comparisons"] + row["wanted"] - row["answered"], row["comparisons"]) for row in rounds]
    if len(due) < enough or any(answered >= (1 - STARVING) * wanted for wanted, answered in due):
        return None
    wanted, answered = due[-1]
    return Alarm(
        "labels_starving",
        f"Only {answered:.0f} of {wanted:.0f} due labels are answered, and too few for {len(due)} {unit}.",
        "The reward model has fewer labels than planned. Add annotators, lower preferences.comparisons, or, if there are too few "
        "fragments to pair, raise fragments.pool or fragments.initial_env_steps.",
    )


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
    before, now = (found[0] for found in fits)
    right = sum(row["held_out_accuracy"] * row["held_out"] + 1 for row in (before, now))
    share = right / sum(row["held_out"] + 2 for row in (before, now))  # Laplace's rule: avoids certainty from a few
    error = math.sqrt(share * (1 - share) * sum(1 / max(1, row["held_out"]) for row in (before, now)))
    if before["held_out_accuracy"] - now["held_out_accuracy"] <= SURE_OF_ACCURACY * error:
        return None
    return before["held_out_accuracy"], now["held_out_accuracy"]
