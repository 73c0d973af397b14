"""Several selections one after the other: each keeps the better half for the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.queries.selection.candidates import Candidates, Selection, best


class Staged:
    """Scores with the last selection those candidates that the earlier ones keep; all others score lowest.

    Each selection but the last keeps the half with the highest scores, but no fewer than the pairs wanted (as B-Pref's hybrids
    k-center + disagreement and k-center + entropy do).

    Args:
        stages: the selections, at least one.
    """

    def __init__(self, stages: Sequence[Selection]):
        self.stages = tuple(stages)
        self.needs_reward = any(stage.needs_reward for stage in stages)

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        kept = np.arange(len(candidates.index))
        for stage in self.stages[:-1]:
            half = max(candidates.count, (len(kept) + 1) // 2)
            remaining = replace(candidates, index=candidates.index[kept], count=half)
            kept = np.sort(kept[best(stage, remaining, half, rng)])
        scores = np.full(len(candidates.index), -np.inf)
        remaining = replace(candidates, index=candidates.index[kept])
        order = best(self.stages[-1], remaining, len(kept), rng)
        scores[kept[order]] = -np.arange(len(order), dtype=np.float64)
        return scores
