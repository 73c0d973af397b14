"""Schedules: how many labels, when."""

import itertools
import math
from collections.abc import Sequence
from typing import Literal

ScheduleName = Literal["constant", "hyperbolic", "inverse_quadratic"]


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
    if schedule == "inverse_quadratic":
        return math.atan(steepness * t) / math.atan(steepness)
    raise ValueError(
        f"preferences.schedule is {schedule!r}; known schedules are 'constant', 'hyperbolic' and 'inverse_quadratic'."
    )


def labels_due(total: int, initial: int, schedule: ScheduleName, progress: float, steepness: float = 1.0) -> int:
    """How many labels should have been asked for, in all, at ``progress``: ``initial`` at 0 and exactly ``total`` at 1."""
    return initial + round((total - initial) * share_due(schedule, progress, steepness))


def progress_due(total: int, initial: int, schedule: ScheduleName, label: int, steepness: float = 1.0) -> float:
    """The progress (0 to 1) at which the ``label``-th of ``total`` labels falls due: where `labels_due` reaches it."""
    if label <= initial:
        return 0.0
    share = min(1.0, (label - initial - 0.5) / (total - initial))  # labels_due rounds to the nearest
    if schedule == "hyperbolic":
        return math.expm1(share * math.log1p(steepness)) / steepness
    if schedule == "inverse_quadratic":
        return math.tan(share * math.atan(steepness)) / steepness
    return share


def labels_per_round(
    total: int, initial: int, schedule: ScheduleName, rounds: int, steepness: float = 1.0
) -> list[int]:
    """The labels of the initial round and of each of ``rounds`` later ones: ``rounds + 1`` numbers that sum to ``total``.

    Round ``i`` of ``rounds`` is held at the progress ``i / rounds``, before the training that follows it, and asks for what
    falls due until the next round. A round may have nothing to ask for.
    """
    if rounds == 0:
        return [total]
    due = [labels_due(total, initial, schedule, i / rounds, steepness) for i in range(rounds + 1)]
    return [initial] + [after - before for before, after in itertools.pairwise(due)]


def rounds_covered(labels: Sequence[int], given: int) -> int:
    """Of the rounds after the first, how many ask for nothing any more where ``given`` labels are there already.

    Args:
        labels: of each round, from `labels_per_round`. Rounds that ask for nothing anyway do not count.
        given: labels that are there before the first round.
    """
    due = itertools.accumulate(labels)
    next(due)
    return sum(asked > 0 and total <= given for asked, total in zip(labels[1:], due, strict=True))
