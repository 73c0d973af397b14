"""Health: alarms for training that goes wrong without an error.

Each alarm is one function of the metrics so far (the rows of ``metrics.jsonl``): what is wrong, in numbers, and what to do about
it, or None. `Health` asks them all after each iteration. Thresholds lie outside of what runs that learned well have shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.queries.schedule import TIES, held_back
from rlhf_ray.reward.trainer import RECENT_ANSWERS
from rlhf_ray.runs.callbacks import Callback, TrainingRun

Row = dict[str, Any]
Rows = Sequence[Row]

QUIET = 10
"""Iterations in which nothing is seen of an alarm before it goes away, so that a number that crosses its threshold back and forth
is told of once."""

WINDOW = 10
"""Iterations that returns are averaged over: the last so many are compared with as many at every earlier time."""
SURE = 3.0
"""Standard errors two such averages must differ by: very many are compared, and neighbours are not independent."""
SHARE_OF_SPAN = 0.2
"""And the share of all the ground a return has covered so far. A smaller move is the to and fro of a policy that has settled."""
SURE_OF_ACCURACY = 2.5
"""Standard errors the held-out accuracy must fall by: fewer, since the learned return has to rise besides, and the true one not."""

SCALE_JUMP = 3.0
"""Factor between the reward's scales of two versions in a row; up to 1.8 was seen between the first fits of runs that learned."""

COLLAPSED_DISAGREEMENT = 1e-3
"""Standard deviation, over members, of the predicted probability: below it they are one model. Runs that learned had 0.02 up."""

ENTROPY_LEFT = 0.005
"""Share of the largest entropy, log(actions): of two actions, one taken 1 time in 2,500. Solved tasks went down to 0.012."""
SPREAD_LEFT = 0.02
"""For continuous actions: the standard deviation (its geometric mean over action dimensions) as a share of that at the start.
Entropy itself can be negative there and depends on the actions' unit; its change tells this share. A solved task went to 0.2."""
SETTLED_FOR = 5
"""Iterations on end that an entropy must be this low."""

ONE_SIDED = 4.0
"""Standard errors of a fair coin that the answers may lie from one half: all of 16 answers for one side, or 40 of 50."""

DISTINCT_CLIPS = 0.5
"""Share of the clips in the pool that are not copies of others; below it most labels would go to copies."""
FEW_ANSWERS = 20
"""Answers below which a share of ties says nothing."""

STARVING = 0.1
"""Share of the labels due so far that are missing."""
STARVING_ROUNDS = 3
"""Labelling rounds on end with so many missing; a single one happens when the clips are too few for all the pairs."""
STARVING_ITERATIONS = 20
"""Iterations on end, where labels come in while PPO goes on: more, since people answer in their own time."""


@dataclass(frozen=True)
class Alarm:
    """Something that goes wrong.

    Attributes:
        name: which alarm, always the same.
        message: what was seen, with numbers.
        remedy: what to do.
    """

    name: str
    message: str
    remedy: str


Check = Callable[[Rows], Alarm | None]


class Alarms(Callback):
    """Adds to the metrics of each iteration ``alarms``, the names of those that are on, and ``raised``, those that it raises."""

    def on_start(self, run: TrainingRun) -> None:
        """Look at the iterations before, where a run is resumed."""
        self._health = Health(run.algorithm.config.checked.action_space)
        for row in run.folder.rows():
            self._health.watch(row)

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Watch one iteration."""
        raised = [asdict(alarm) for alarm in self._health.watch(dict(metrics))]
        metrics |= {"alarms": self._health.active, "raised": raised}


class Health:
    """Watches a run through its metrics.

    Args:
        action_space: the environment's, which tells what the policy's entropy means.
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
        """The names of the alarms that are on."""
        return sorted(self._last_seen)

    def watch(self, row: Row) -> list[Alarm]:
        """Take in the metrics of one iteration, and tell which alarms it raises.

        An alarm that is on is not raised again. It goes away when nothing is seen of it for `QUIET` iterations.
        """
        self._rows.append(row)
        now = len(self._rows)
        seen = [alarm for check in self._checks if (alarm := check(self._rows)) is not None]
        raised = [alarm for alarm in seen if alarm.name not in self._last_seen]
        self._last_seen |= {alarm.name: now for alarm in seen}
        self._last_seen = {name: last for name, last in self._last_seen.items() if now - last < QUIET}
        return raised


def reward_hacking(rows: Rows) -> Alarm | None:
    """Since some earlier time the learned return has risen while the true return has fallen.

    Or while the accuracy on held-out comparisons has fallen and the true return has not risen: it may not be known.
    """
    known = [i for i, row in enumerate(rows) if _has(row, "learned_return_mean", "true_return_mean")]
    if len(known) < 2 * WINDOW:
        return None
    learned = _Moves([rows[i]["learned_return_mean"] for i in known])
    true = _Moves([rows[i]["true_return_mean"] for i in known])
    for start in reversed(np.flatnonzero((learned.direction > 0) & (true.direction <= 0)).tolist()):
        first = known[start]
        if true.direction[start] < 0:
            fallen = f"the true return fell from {true.means[start]:.4g} to {true.means[-1]:.4g}"
        elif accuracies := _accuracy_fell(rows[: known[start + WINDOW - 1] + 1], rows):
            fallen = "the accuracy on held-out comparisons fell from {:.2f} to {:.2f}".format(*accuracies)
        else:
            continue
        return Alarm(
            "reward_hacking",
            f"Over the last {len(rows) - first} iterations the learned return rose from {learned.means[start]:.4g} to "
            f"{learned.means[-1]:.4g} while {fallen}.",
            "The policy may have found what the reward model overrates. Ask about newer clips: more preferences.comparisons or "
            "preferences.rounds, or a flatter preferences.schedule.",
        )
    return None


def reward_scale(rows: Rows) -> Alarm | None:
    """The scale of the raw reward jumps from one version to the next."""
    fits = _newest(rows, 2, "reward_std", "reward_version")
    if len(fits) < 2:
        return None
    before, now = fits
    if max(before["reward_std"], now["reward_std"]) <= SCALE_JUMP * min(before["reward_std"], now["reward_std"]):
        return None
    return Alarm(
        "reward_scale",
        f"From reward version {before['reward_version']} to {now['reward_version']} the standard deviation of the raw reward went "
        f"from {before['reward_std']:.3g} to {now['reward_std']:.3g}.",
        "One fit changed the reward more than a few answers should. Make it gentler: fewer reward_model.updates, a smaller "
        "reward_model.learning_rate or a larger reward_model.weight_decay.",
    )


def ensemble_collapse(rows: Rows) -> Alarm | None:
    """The members of the ensemble agree so well that they are one model."""
    fits = _newest(rows, 1, "disagreement")
    if not fits or fits[0]["disagreement"] >= COLLAPSED_DISAGREEMENT:
        return None
    return Alarm(
        "ensemble_collapse",
        f"The members of the reward ensemble differ by {fits[0]['disagreement']:.1e} in the probabilities they predict.",
        "They are one model: selection by disagreement is chance, and the ensemble is no better than one of them. Ask for more "
        "comparisons for each fit, take fewer reward_model.initial_updates or updates, or set reward_model.bootstrap to True.",
    )


def entropy_collapse(rows: Rows, action_space: gym.Space[Any]) -> Alarm | None:
    """The policy has all but stopped trying anything but one action."""
    seen = _newest(rows, SETTLED_FOR, "policy_entropy")
    if len(seen) < SETTLED_FOR:
        return None
    entropy = max(row["policy_entropy"] for row in seen)
    if isinstance(action_space, gym.spaces.Discrete):
        left, threshold = entropy / math.log(max(2, int(action_space.n))), ENTROPY_LEFT
        what = f"entropy is {100 * left:.2g} % of the largest there is"
    else:
        start = next(row["policy_entropy"] for row in rows if _has(row, "policy_entropy"))
        left, threshold = math.exp((entropy - start) / math.prod(action_space.shape or (1,))), SPREAD_LEFT
        what = f"actions spread {100 * left:.2g} % as wide as at the start"
    if left >= threshold:
        return None
    return Alarm(
        "entropy_collapse",
        f"For {SETTLED_FOR} iterations the policy's {what}.",
        "It explores no more, and what it does now is what it will do. If that is not yet good: a larger "
        "ppo.entropy_coefficient, a smaller ppo.learning_rate, or fewer ppo.epochs.",
    )


def one_sided_answers(rows: Rows) -> Alarm | None:
    """The newest answers nearly all prefer the clip on one side, although sides are drawn by lot."""
    fits = _newest(rows, 1, "left_share", "comparisons", "ties")
    if not fits:
        return None
    share, answers = fits[0]["left_share"], min(RECENT_ANSWERS, fits[0]["comparisons"] - fits[0]["ties"])
    if abs(2 * share - 1) * math.sqrt(answers) < ONE_SIDED:
        return None
    side, times = ("left", share) if share > 0.5 else ("right", 1 - share)
    return Alarm(
        "one_sided_answers",
        f"{round(times * answers)} of the last {answers:.0f} decided answers prefer the {side} clip.",
        "Sides are drawn by lot, so that about half should. Whoever answers may press one button whatever they see: talk to them, "
        "and check that both clips are shown.",
    )


def clips_alike(rows: Rows) -> Alarm | None:
    """The clips are copies of each other, or the teacher sees no difference between them."""
    pools, fits = _newest(rows, 1, "distinct_clips"), _newest(rows, 1, "ties", "comparisons")
    if pools and pools[0]["distinct_clips"] < DISTINCT_CLIPS:
        what = f"Only {100 * pools[0]['distinct_clips']:.0f} % of the clips to choose pairs from are different."
    elif held_back(rows[-1]) is not None:
        return None  # which `labels_held_back` tells of
    elif fits and fits[0]["comparisons"] >= FEW_ANSWERS and fits[0]["ties"] > TIES * fits[0]["comparisons"]:
        what = f"{fits[0]['ties']:.0f} of {fits[0]['comparisons']} answers are ties."
    else:
        return None
    return Alarm(
        "clips_alike",
        what,
        "Comparisons of clips that are alike teach nothing. Take longer clips (fragments.length), more of what the policy does not "
        "do by itself (fragments.exploration_env_steps), or a larger ppo.entropy_coefficient.",
    )


def labels_held_back(rows: Rows) -> Alarm | None:
    """Labels that are due are not asked for, since they would go to ties."""
    said = held_back(rows[-1])
    if said is None:
        return None
    return Alarm(
        "labels_held_back",
        said,
        "What is to be learned hardly happens in the clips. Show it (--demonstrations or --policy-from), take longer clips "
        "(fragments.length) or more of what the policy does not do by itself (fragments.exploration_env_steps).",
    )


def labels_starving(rows: Rows) -> Alarm | None:
    """Answers stay behind what the schedule asks for."""
    waiting = _newest(rows, STARVING_ITERATIONS, "labels_due", "comparisons")
    rounds = _newest(rows, STARVING_ROUNDS, "wanted", "answered", "comparisons")
    enough, unit = (STARVING_ITERATIONS, "iterations") if waiting else (STARVING_ROUNDS, "labelling rounds")
    due = [(row["labels_due"], row["comparisons"]) for row in waiting]
    # What a round wants includes what the rounds before it missed.
    due = due or [(row["comparisons"] + row["wanted"] - row["answered"], row["comparisons"]) for row in rounds]
    if len(due) < enough or any(answered >= (1 - STARVING) * wanted for wanted, answered in due):
        return None
    wanted, answered = due[-1]
    return Alarm(
        "labels_starving",
        f"{answered:.0f} of the {wanted:.0f} labels due are answered, and it has been too few for {len(due)} {unit}.",
        "The reward model learns from less than was planned. Let more people answer, plan for fewer preferences.comparisons, or, "
        "where clips are too few to make pairs of, gather more (fragments.pool, fragments.initial_env_steps).",
    )


def _has(row: Row, *names: str) -> bool:
    """Whether the row has all these metrics, as finite numbers."""
    return all(isinstance(row.get(name), int | float) and math.isfinite(row[name]) for name in names)


def _newest(rows: Rows, count: int, *names: str) -> list[Row]:
    """The newest ``count`` rows that have all these metrics, oldest first; fewer where there are fewer."""
    found: list[Row] = []
    for row in reversed(rows):
        if _has(row, *names):
            found.append(row)
            if len(found) == count:
                break
    return found[::-1]


class _Moves:
    """How a return's average over the last window differs from those over each window before it that it does not overlap.

    ``means`` are the averages, by the window's first value; ``direction`` is, for each of the earlier windows, 1 if the return
    has risen since, -1 if it has fallen, and 0 if that is not certain or not by much.
    """

    def __init__(self, values: Sequence[float]):
        windows = np.lib.stride_tricks.sliding_window_view(np.array(values, dtype=np.float64), WINDOW)
        self.means, variances = windows.mean(1), windows.var(1, ddof=1)
        moved = (self.means[-1] - self.means)[:-WINDOW]
        noise = np.sqrt((variances[-1] + variances) / WINDOW)[:-WINDOW]
        enough = np.maximum(SURE * noise, SHARE_OF_SPAN * np.ptp(self.means))
        self.direction = np.where(np.abs(moved) > enough, np.sign(moved), 0.0)


def _accuracy_fell(earlier: Rows, rows: Rows) -> tuple[float, float] | None:
    """The held-out accuracies before and now, if it fell by more than the few comparisons it is measured on explain."""
    fits = [_newest(part, 1, "held_out_accuracy", "held_out") for part in (earlier, rows)]
    if not all(fits):
        return None
    before, now = (found[0] for found in fits)
    right = sum(row["held_out_accuracy"] * row["held_out"] + 1 for row in (before, now))
    share = right / sum(row["held_out"] + 2 for row in (before, now))  # Laplace's rule: no certainty from a few
    error = math.sqrt(share * (1 - share) * sum(1 / max(1, row["held_out"]) for row in (before, now)))
    if before["held_out_accuracy"] - now["held_out_accuracy"] <= SURE_OF_ACCURACY * error:
        return None
    return before["held_out_accuracy"], now["held_out_accuracy"]
