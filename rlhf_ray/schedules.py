"""Schedules: how many labels, when."""

import itertools
import math
from typing import Literal

ScheduleName = Literal["constant", "hyperbolic", "inverse_quadratic"]


def share_due(schedule: ScheduleName, progress: float) -> float:
    """The share of the labels that is due once ``progress`` (0 to 1) of the training is done.

    The integral from 0 to ``progress`` of the label rate, which is constant, ∝ 1/(1+t) or ∝ 1/(1+t²) with t the progress
    (the three of `imitation`), scaled so that the whole is 1.
    """
    t = min(max(progress, 0.0), 1.0)
    if schedule == "constant":
        return t
    if schedule == "hyperbolic":
        return math.log1p(t) / math.log(2.0)
    if schedule == "inverse_quadratic":
        return math.atan(t) / math.atan(1.0)
    raise ValueError(
        f"preferences.schedule is {schedule!r}; known schedules are 'constant', 'hyperbolic' and 'inverse_quadratic'."
    )


def labels_due(total: int, initial: int, schedule: ScheduleName, progress: float) -> int:
    """How many labels should have been asked for, in all, at ``progress``: ``initial`` at 0 and exactly ``total`` at 1."""
    return initial + round((total - initial) * share_due(schedule, progress))


def labels_per_round(total: int, initial: int, schedule: ScheduleName, rounds: int) -> list[int]:
    """The labels of the initial round and of each of ``rounds`` later ones: ``rounds + 1`` numbers that sum to ``total``.

    Round ``i`` of ``rounds`` is held at the progress ``i / rounds``, before the training that follows it, and asks for what
    falls due until the next round. A round may have nothing to ask for.
    """
    if rounds == 0:
        return [total]
    due = [labels_due(total, initial, schedule, i / rounds) for i in range(rounds + 1)]
    return [initial] + [after - before for before, after in itertools.pairwise(due)]
