"""Near-on-policy selection: mostly recent behaviour (QPA)."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.queries.selection.candidates import Candidates


class NearOnPolicy:
    """Draws pairs at random, weighted by how recent the policies of their fragments are (QPA, Hu et al. 2024).

    A fragment has weight ``1 / (1 + age)``, where the newest policy version among the fragments has age 0, the next newest age 1,
    and so on; random actions are the oldest version. A pair's weight is the product. Scores are log weights plus Gumbel noise, so
    the pairs with the highest scores are a weighted sample without replacement.
    """

    needs_reward = False

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        versions = candidates.fragments.policy_versions
        known = np.unique(versions)
        age = len(known) - 1 - np.searchsorted(known, versions)
        weights = -np.log1p(age)[candidates.index].sum(axis=1)
        scores: FloatArray = weights + rng.gumbel(size=len(candidates.index))
        return scores
