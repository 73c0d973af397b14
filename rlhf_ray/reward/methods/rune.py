"""RUNE: the ensemble's spread as an exploration bonus that fades (Liang et al. 2022)."""

from __future__ import annotations

from rlhf_ray.reward.methods.method import FitMethod

FIRST, LAST = 0.05, 0.0
"""Weight of the spread at the start and at the end of the training (the paper's β starts at 0.05)."""


class Rune(FitMethod):
    """Adds the standard deviation over members to the reward, with a weight that decays to 0 over the training.

    Each version of the reward carries its weight. The paper lets it decay with each step.
    """

    def deviation_weight(self, progress: float) -> float | None:
        """See `FitMethod.deviation_weight`."""
        return FIRST + (LAST - FIRST) * min(max(progress, 0.0), 1.0)
