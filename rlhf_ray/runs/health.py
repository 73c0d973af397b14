"""Health: alarms for training that fails without an error.

Each alarm is a function of the metrics so far (the rows of ``metrics.jsonl``); it returns the problem, with numbers, and a remedy,
or None. `Health` calls all registered ones (`rlhf_ray.runs.alarm.CHECKS`) after each iteration; those about wrong answers are in
`rlhf_ray.runs.answer_alarms`. Thresholds
lie outside the range of runs that learned well.
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
from rlhf_ray.runs.alarm import CHECKS, Row, Rows, Task, check, check_of_task, presses_of, talk_to
from rlhf_ray.runs.alarm import Alarm as Alarm  # re-exported for callers
from rlhf_ray.runs.callbacks import Callback, TrainingRun
from rlhf_ray.store.answers import FEW_ANSWERS

declare(
    "alarms",
    Metric("alarms", "Active alarms.", kind=int),
)

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


@check
def reward_hacking(rows: Rows) -> Alarm | None:
    """The learned return has risen while the true return has fallen.

    Or the held-out accuracy has fallen and the true return has not risen. Each fit changes the learned reward's scale and origin,
    so its rise is measured against the run's probe set, if there is one (`rlhf_ray.reward.probe`): a rise that comes from the fits
    alone is none, and one that they hide is.
    """
    name, what = "learned_gain", "learned reward above the probe set's"
    known = [i for i, row in enumerate(rows) if _has(row, name, "true_return_mean")]
    if len(known) < 2 * WINDOW:
        name, what = "learned_return_mean", "learned return"
        known = [i for i, row in enumerate(rows) if _has(row, name, "true_return_mean")]
    if len(known) < 2 * WINDOW or _nothing_decided(rows):
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


@check_of_task
def endless_episodes(rows: Rows, task: Task) -> Alarm | None:
    """No episode has ended in an environment without a time limit."""
    if task.limited or len(rows) < ENDLESS_AFTER or _newest(rows, 1, "true_return_mean"):
        return None
    return Alarm(
        "endless_episodes",
        f"No episode has ended in {rows[-1].get('env_steps', 0):,} environment steps, and the environment has no time limit: the "
        f"true return in training is unknown, and an evaluation cuts episodes after {LONGEST:,} steps.",
        "Register the environment with max_episode_steps.",
    )


@check
def reward_scale(rows: Rows) -> Alarm | None:
    """The scale of the raw reward jumps between consecutive versions."""
    fits = _newest(rows, 2, "reward_std", "reward_version")
    if len(fits) < 2 or _nothing_decided(rows):
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


@check
def ensemble_collapse(rows: Rows) -> Alarm | None:
    """The ensemble members are practically identical."""
    fits = _newest(rows, 1, "disagreement")
    if not fits or fits[0]["disagreement"] >= COLLAPSED_DISAGREEMENT or _nothing_decided(rows):
        return None
    return Alarm(
        "ensemble_collapse",
        f"The predicted probabilities of the ensemble members differ by only {fits[0]['disagreement']:.1e}.",
        "The members act as one model, so selection by disagreement is random. Collect more comparisons per fit, lower "
        "reward_model.initial_updates or reward_model.updates, or set reward_model.bootstrap to True.",
    )


@check_of_task
def entropy_collapse(rows: Rows, task: Task) -> Alarm | None:
    """The policy has practically stopped exploring."""
    seen = _newest(rows, SETTLED_FOR, "policy_entropy")
    if len(seen) < SETTLED_FOR:
        return None
    entropy = max(row["policy_entropy"] for row in seen)
    if choices := choices_of(task.action_space):
        left, threshold = entropy / max(math.log(2), sum(map(math.log, choices))), ENTROPY_LEFT
        what = f"entropy is {100 * left:.2g} % of the maximum"
    else:
        start = next(row["policy_entropy"] for row in rows if _has(row, "policy_entropy"))
        left, threshold = math.exp((entropy - start) / math.prod(task.action_space.shape or (1,))), SPREAD_LEFT
        what = f"action standard deviation is {100 * left:.2g} % of its initial value"
    if left >= threshold:
        return None
    return Alarm(
        "entropy_collapse",
        f"For {SETTLED_FOR} iterations, the policy's {what}.",
        "The policy no longer explores and will hardly change. If it is not good yet, raise ppo.entropy_coefficient, or lower "
        "ppo.learning_rate or ppo.epochs (with agent=sac, raise sac.target_entropy).",
    )


@check
def one_sided_answers(rows: Rows) -> Alarm | None:
    """Nearly all recent answers of an annotator are for the fragment shown on one side, although sides are random."""
    odd = {name: of for name, of in presses_of(rows).items() if of.one_sided}
    if not odd:
        return None
    told = [
        f"{max(of.left, of.right)} of the last {of.decided} answers of {name} (ties excluded) are for the fragment shown on the "
        f"{of.one_sided}"
        for name, of in odd.items()
    ]
    return Alarm(
        "one_sided_answers",
        f"{'; '.join(told)}.",
        f"Sides are random, so about half should be. They may press the same button every time: {talk_to(odd)}. Check "
        "that the page shows both clips.",
    )


@check
def equal_answers(rows: Rows) -> Alarm | None:
    """An annotator answers "equally good" nearly always, and others don't, so that it isn't the fragments."""
    presses = presses_of(rows)
    equal = {name: of for name, of in presses.items() if of.mostly_equal}
    others = [of for of in presses.values() if of.answers >= FEW_ANSWERS and not of.mostly_equal]
    if not equal or not others or fragments_alike(rows) or labels_held_back(rows):
        return None  # the last two name the annotators
    usual = sum(of.equal for of in others) / sum(of.answers for of in others)
    told = [f"{of.equal} of the last {of.answers} answers of {name}" for name, of in equal.items()]
    return Alarm(
        "equal_answers",
        f"{'; '.join(told)} are “equally good”; of the others' answers, {100 * usual:.0f} %.",
        f"Ties teach little. They may press the same button every time: {talk_to(equal)}.",
    )


@check
def below_chance(rows: Rows) -> Alarm | None:
    """The reward model predicts answers that it was not fitted to worse than guessing."""
    fits = _newest(rows, 1, "held_out_accuracy", "held_out")
    if not fits:
        return None
    accuracy, answers = fits[0]["held_out_accuracy"], held_out_answers(fits[0])
    if not held_out.below_chance(accuracy, answers):
        return None
    return Alarm(
        "below_chance",
        f"Held-out accuracy is {accuracy:.2f} on {answers} answers; guessing gives 0.5.",
        "The answers contradict each other: annotators may answer at random, for one side, or against the instructions. Look at "
        "the statistics page and at `rlhf-ray store show RUN answers.html`, and leave out whose answers are wrong: "
        "`rlhf-ray store weigh RUN NAME 0`.",
    )


@check
def fragments_alike(rows: Rows) -> Alarm | None:
    """The fragments are duplicates, or the teacher sees no difference between them."""
    pools, fits = _newest(rows, 1, "distinct_fragments"), _newest(rows, 1, "ties", "comparisons")
    if pools and pools[0]["distinct_fragments"] < DISTINCT_FRAGMENTS:
        what = f"Only {100 * pools[0]['distinct_fragments']:.0f} % of the fragments in the pool are distinct."
    elif held_back(rows[-1]) is not None:
        return None  # `labels_held_back` reports it
    elif _nothing_decided(rows):
        what = f"All {fits[0]['comparisons']} answers are ties, held-out ones too: the reward model has learned nothing from them."
    elif fits and fits[0]["comparisons"] >= FEW_ANSWERS and fits[0]["ties"] > TIES * fits[0]["comparisons"]:
        what = f"{fits[0]['ties']:.0f} of {fits[0]['comparisons']} answers are ties."
    else:
        return None
    return Alarm(
        "fragments_alike",
        what,
        "Comparing similar fragments teaches nothing. Raise fragments.length, fragments.exploration_env_steps or "
        f"ppo.entropy_coefficient.{_who_says_equal(rows)}",
    )


def _nothing_decided(rows: Rows) -> bool:
    """Whether all answers are ties: `fragments_alike` says so, and the fitted reward, which is noise, has nothing to add."""
    fits = _newest(rows, 1, "ties", "comparisons")
    return bool(fits) and 0 < fits[0]["comparisons"] <= fits[0]["ties"]


@check
def labels_held_back(rows: Rows) -> Alarm | None:
    """Due labels are held back, because the answers would be ties."""
    said = held_back(rows[-1])
    if said is None:
        return None
    return Alarm(
        "labels_held_back",
        said,
        "The fragments hardly show the behaviour to learn. Start from --demonstrations or --policy-from, or raise "
        f"fragments.length or fragments.exploration_env_steps.{_who_says_equal(rows)}",
    )


@check
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


@check
def nobody_answers(rows: Rows) -> Alarm | None:
    """Questions are open for people, and none is answered."""
    silence = rows[-1].get("unanswered_seconds")
    if silence is None or silence < NOBODY_AFTER:
        return None
    return Alarm(
        "nobody_answers",
        f"Nobody answered for {spoken(silence)} while questions were open.",
        "Send the annotators their links (`rlhf-ray links RUN`) and check that they can reach the page.",
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


def held_out_answers(row: Row) -> int:
    """The number of answers behind a row's held-out accuracy; in rows of earlier versions, ties count as well."""
    value = row.get("held_out_decided")
    return int(row.get("held_out") or 0) if value is None else int(value)


def _who_says_equal(rows: Rows) -> str:
    """Name the annotators whose newest answers are nearly all ties; empty if there are none."""
    equal = {name: of for name, of in presses_of(rows).items() if of.answers >= PROBE and of.equal > TIES * of.answers}
    if not equal:
        return ""
    names = ", ".join(f"{name} ({of.equal} of the last {of.answers})" for name, of in equal.items())
    return f" If fragments do differ: “equally good” is nearly the only answer of {names}; {talk_to(equal)}."


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
