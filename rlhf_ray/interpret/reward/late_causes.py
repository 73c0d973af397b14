"""Causes of a reward that change some steps after, or before, the true reward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.comparison import Comparison
from rlhf_ray.interpret.reward.exchange import NOTHING
from rlhf_ray.interpret.reward.findings import SPILLED, Cause, Findings
from rlhf_ray.interpret.reward.lags import Lag, lag_of

NO_PART = 0.5
"""Share of the regions from which a cause is no part but the whole."""
RIGHT = 0.9
"""Correlation with the true reward from which a reward is right, whatever its causes do."""
LATE_CAUSES = 3
"""Causes whose changes are dated: the largest."""
LATE = 0.5
"""Least correlation of a cause with the true reward at another step, at the near end of its interval, to call it early or late: any
two events of an episode correlate a little at some lag."""


@dataclass(frozen=True)
class LateCause:
    """A cause that changes some steps after (or, negative, before) the true reward."""

    cause: Cause
    lag: Lag


def late_causes(
    found: Findings, beside: Comparison | None, data: Transitions, rng: np.random.Generator
) -> Iterator[LateCause]:
    """Yield the causes among the largest that change at another step than the true reward, unless the reward is right.

    A cause whose exchange at the same step moves the true reward is not among them: how two motions of one body go together over
    time says nothing of when the reward comes.
    """
    if beside is None or beside.constant_truth or abs(beside.correlation) > RIGHT:
        return
    for cause in found.causes[:LATE_CAUSES]:
        if len(cause.regions) > NO_PART * len(found.regions) or _at_once(cause):
            continue
        before, after = (each[:, cause.mask].astype(float) for each in (data.observations, data.next_observations))
        changes = np.abs(after - before).mean(1)
        lag = lag_of(changes, data.rewards, data, rng)
        if lag.off and (lag.low if np.isfinite(lag.low) else lag.correlation) >= LATE:
            yield LateCause(cause, lag)


def _at_once(cause: Cause) -> bool:
    """Return whether the true reward looks at the cause at the same step."""
    return cause.true_moves is not None and cause.true_moves >= (SPILLED if cause.fitted else NOTHING)
