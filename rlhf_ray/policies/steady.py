"""What keeps updates of a policy from being too large: where little is at stake, and where steps take it too far."""

from __future__ import annotations

import math

from torch import Tensor

KEEPS = 0.9
"""Weight of the batches before in the recent variance of advantages: some ten batches count."""

QUICKER = 1.5
"""Factor of a change of pace."""


class RecentDeviation:
    """The deviation of recent batches' advantages, by which PPO divides a batch's at least.

    Copies of an environment with episodes of one length are in step: a batch may show nothing but the ends of episodes, where all
    actions are equally good (a fallen pole), and the noise of its advantages, divided by their own deviation, would move the policy
    as far as a batch that tells. It is the root of an exponential moving average of variances.
    """

    variance: float | None = None
    """Of recent batches; None before the first."""

    def share(self, advantages: Tensor) -> float:
        """Count a batch's advantages ``[n]``, and return its deviation over the recent ones', at most 1."""
        variance = float(advantages.double().var(correction=0))
        before = variance if self.variance is None else self.variance
        self.variance = KEEPS * before + (1 - KEEPS) * variance
        return 1.0 if variance >= self.variance else math.sqrt(variance / self.variance)


def next_pace(pace: float, divergence: float, target: float) -> float:
    """Return the share of the learning rate, at most 1, for the next update: smaller after one that has moved the policy too far.

    Changes are by a factor, where the divergence is over twice or under half of the target (Rudin et al. 2021, "Learning to walk
    in minutes", whose rate has no bound). One that is no number changes nothing.

    Args:
        pace: the share in the last update.
        divergence: the mean Kullback-Leibler divergence, in nats, of the policy from the one before the update.
        target: the divergence that updates should have.
    """
    if divergence > 2.0 * target:
        return pace / QUICKER
    return min(1.0, pace * QUICKER) if divergence < target / 2.0 else pace
