"""Health: alarms for training that fails without an error.

Each alarm is a function of the metrics so far that returns what is wrong with its figure, or None. `Health` calls all of them after
each iteration; those about answers are in `rlhf_ray.runs.answer_alarms`. Thresholds lie outside the range of runs that learned.
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
from rlhf_ray.runs.answer_alarms import CHECKS, Alarm, Found, Row, Rows, has, newest, nothing_decided, raises
from rlhf_ray.runs.callbacks import Callback, TrainingRun

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
    """Watches the metrics of a run; ``limited``: whether its environment has a time limit."""

    def __init__(self, action_space: gym.Space[Any], *, limited: bool = True):
        self._action_space, self._limited = action_space, limited
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
        found = [check(self._rows) for check in CHECKS]
        found += [endless_episodes(self._rows, self._limited), entropy_collapse(self._rows, self._action_space)]
        seen = [alarm for alarm in found if alarm is not None]
        raised = [alarm for alarm in seen if alarm.name not in self._last_seen]
        self._last_seen |= {alarm.name: now for alarm in seen}
        self._last_seen = {name: last for name, last in self._last_seen.items() if now - last < QUIET}
        return raised


@raises(
    "The policy may exploit errors of the reward model. Label newer behaviour: raise preferences.comparisons or "
    "preferences.rounds, or choose a flatter preferences.schedule."
)
def reward_hacking(rows: Rows) -> Found:
    """The learned return has risen while the true return has fallen.

    Or the held-out accuracy has fallen and the true return has not risen. Each fit changes the learned reward's scale and origin,
    so its rise is measured against the run's probe set, if there is one (`rlhf_ray.reward.probe`): a rise that comes from the fits
    alone is none, and one that they hide is.
    """
    name = "learned_gain"
    known = [i for i, row in enumerate(rows) if has(row, name, "true_return_mean")]
    if len(known) < 2 * WINDOW:
        name = "learned_return_mean"
        known = [i for i, row in enumerate(rows) if has(row, name, "true_return_mean")]
    if len(known) < 2 * WINDOW or nothing_decided(rows):
        return None
    learned = _Moves([rows[i][name] for i in known])
    true = _Moves([rows[i]["true_return_mean"] for i in known])
    for start in reversed(np.flatnonzero((learned.direction > 0) & (true.direction <= 0)).tolist()):
        accuracies = _accuracy_fell(rows[: known[start + WINDOW - 1] + 1], rows)
        if true.direction[start] < 0:
            what, before, now = "true return", *(f"{mean:.4g}" for mean in true.means[[start, -1]])
        elif accuracies is not None:
            what, before, now = "held-out accuracy", *(f"{accuracy:.2f}" for accuracy in accuracies)
        else:
            continue
        rising = "learned reward above the probe set's" if name == "learned_gain" else "learned return"
        rose = " to ".join(f"{mean:.4g}" for mean in learned.means[[start, -1]])
        when = f"Over the last {len(rows) - known[start]} iterations"
        message = f"{when} the {rising} rose from {rose} while the {what} fell from {before} to {now}."
        return message, float(now), f"about {before} or more"
    return None


@raises(
    "One fit should not change the reward this much. Lower reward_model.updates or reward_model.learning_rate, or raise "
    "reward_model.weight_decay."
)
def reward_scale(rows: Rows) -> Found:
    """The scale of the raw reward jumps between consecutive versions."""
    fits = newest(rows, 2, "reward_std", "reward_version")
    if len(fits) < 2 or nothing_decided(rows):
        return None
    before, now = (fit["reward_std"] for fit in fits)
    if max(before, now) <= SCALE_JUMP * min(before, now):
        return None
    message = (
        f"From reward version {fits[0]['reward_version']} to {fits[1]['reward_version']}, the standard deviation of the raw reward "
        f"changed from {before:.3g} to {now:.3g}."
    )
    return message, now, f"{before / SCALE_JUMP:.3g} to {before * SCALE_JUMP:.3g}"


@raises(
    "The members act as one model, so selection by disagreement is random. Collect more comparisons per fit, lower "
    "reward_model.initial_updates or reward_model.updates, or set reward_model.bootstrap to True."
)
def ensemble_collapse(rows: Rows) -> Found:
    """The ensemble members are practically identical."""
    apart = [row["disagreement"] for row in newest(rows, 1, "disagreement")]
    if not apart or apart[0] >= COLLAPSED_DISAGREEMENT or nothing_decided(rows):
        return None
    message = f"The predicted probabilities of the ensemble members differ by only {apart[0]:.1e}."
    return message, apart[0], f"≥ {COLLAPSED_DISAGREEMENT}"


@raises(
    "The answers contradict each other: annotators may answer at random, for one side, or against the instructions. Look at the "
    "statistics page and at `rlhf-ray store show RUN answers.html`, and leave out whose answers are wrong: `rlhf-ray store weigh "
    "RUN NAME 0`."
)
def below_chance(rows: Rows) -> Found:
    """The reward model predicts answers that it was not fitted to worse than guessing."""
    fits = newest(rows, 1, "held_out_accuracy", "held_out_decided")
    if not fits:
        return None
    accuracy, answers = fits[0]["held_out_accuracy"], int(fits[0]["held_out_decided"])
    if not held_out.below_chance(accuracy, answers):
        return None
    message = f"Held-out accuracy is {accuracy:.2f} on {answers} answers; guessing gives 0.5."
    return message, accuracy, "> 0.5"


@raises(
    "The reward model has fewer labels than planned. Add annotators, lower preferences.comparisons, or, if there are too few "
    "fragments to pair, raise fragments.pool or fragments.initial_env_steps."
)
def labels_starving(rows: Rows) -> Found:
    """Labels fall behind the schedule."""
    waiting = newest(rows, STARVING_ITERATIONS, "labels_due", "comparisons")
    rounds = newest(rows, STARVING_ROUNDS, "wanted", "answered", "comparisons")
    due = [(row["labels_due"], row["comparisons"]) for row in waiting]
    # The number wanted in a round includes those missed in earlier rounds.
    due = due or [(row["comparisons"] + row["wanted"] - row["answered"], row["comparisons"]) for row in rounds]
    enough = STARVING_ITERATIONS if waiting else STARVING_ROUNDS
    if len(due) < enough or any(answered >= (1 - STARVING) * wanted for wanted, answered in due):
        return None
    wanted, answered = due[-1]
    since = f"{len(due)} {'iterations' if waiting else 'labelling rounds'}"
    message = f"Only {answered:.0f} of {wanted:.0f} due labels are answered, and too few for {since}."
    return message, answered, f"≥ {(1 - STARVING) * wanted:.0f}"


@raises("Send the annotators their links (`rlhf-ray links RUN`) and check that they can reach the page.")
def nobody_answers(rows: Rows) -> Found:
    """Questions are open for people, and none is answered."""
    silence = rows[-1].get("unanswered_seconds")
    if silence is None or silence < NOBODY_AFTER:
        return None
    message = f"Nobody answered for {spoken(silence)} while questions were open."
    return message, silence, f"< {NOBODY_AFTER:.0f} s"


@raises("Register the environment with max_episode_steps.")
def endless_episodes(rows: Rows, limited: bool) -> Found:
    """No episode has ended in an environment without a time limit."""
    if limited or len(rows) < ENDLESS_AFTER or newest(rows, 1, "true_return_mean"):
        return None
    steps = rows[-1].get("env_steps", 0)
    message = (
        f"No episode has ended in {steps:,} environment steps, and the environment has no time limit: the true return in training "
        f"is unknown, and an evaluation cuts episodes after {LONGEST:,} steps."
    )
    return message, steps, "an episode ends"


@raises(
    "The policy no longer explores and will hardly change. If it is not good yet, raise ppo.entropy_coefficient, or lower "
    "ppo.learning_rate or ppo.epochs (with agent=sac, raise sac.target_entropy)."
)
def entropy_collapse(rows: Rows, action_space: gym.Space[Any]) -> Found:
    """The policy has practically stopped exploring."""
    seen = newest(rows, SETTLED_FOR, "policy_entropy")
    if len(seen) < SETTLED_FOR:
        return None
    entropy = max(row["policy_entropy"] for row in seen)
    if choices := choices_of(action_space):
        left, least = entropy / max(math.log(2), sum(map(math.log, choices))), ENTROPY_LEFT
        what = f"entropy is {100 * left:.2g} % of the maximum"
    else:
        start = next(row["policy_entropy"] for row in rows if has(row, "policy_entropy"))
        left, least = math.exp((entropy - start) / math.prod(action_space.shape or (1,))), SPREAD_LEFT
        what = f"action standard deviation is {100 * left:.2g} % of its initial value"
    return None if left >= least else (f"For {SETTLED_FOR} iterations, the policy's {what}.", left, f"≥ {least}")


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
    fits = [newest(part, 1, "held_out_accuracy", "held_out_decided") for part in (earlier, rows)]
    if not all(fits):
        return None
    (before, of_before), (now, of_now) = ((row["held_out_accuracy"], int(row["held_out_decided"])) for (row,) in fits)
    right = before * of_before + 1 + now * of_now + 1
    share = right / (of_before + of_now + 4)  # Laplace's rule: avoids certainty from a few
    error = math.sqrt(share * (1 - share) * (1 / max(1, of_before) + 1 / max(1, of_now)))
    return (before, now) if before - now > SURE_OF_ACCURACY * error else None
