"""k-center: pairs that cover the space of pairs, unlike each other and unlike those asked before."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.queries.selection.candidates import Candidates

MOST_NUMBERS = 50_000
"""Maximum number of observed numbers per fragment that distances use: of larger fragments, evenly spaced steps."""


class KCenter:
    """Scores by a greedy, farthest-first choice (B-Pref's k-center sampling; Sener and Savarese 2018).

    Each next pair is the one farthest from the nearest pair that was asked earlier or is already chosen. The distance of two pairs
    is Euclidean, over the observations and actions of both fragments, each number in units of its standard deviation; mirroring a
    pair does not change it. The first ``count`` choices score ``count``, ``count - 1``, …; all other pairs score 0.
    """

    needs_reward = False

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        index, asked = candidates.index, candidates.asked
        apart = squared_distances(candidates.fragments)
        nearest = np.full(len(index), np.inf)
        for center in asked:
            np.minimum(nearest, _from_pair(apart, index, center), out=nearest)
        scores = np.zeros(len(index))
        for rank in range(min(candidates.count, len(index))):
            chosen = int(np.argmax(nearest))
            scores[chosen] = candidates.count - rank
            np.minimum(nearest, _from_pair(apart, index, index[chosen]), out=nearest)
            nearest[chosen] = -1.0  # never again, even where all distances are 0
        return scores


def _from_pair(apart: FloatArray, index: IntArray, center: IntArray) -> FloatArray:
    """Squared distance of each pair of ``index`` from ``center``, in the nearer of the two orders."""
    left, right = index.T
    same = apart[left, center[0]] + apart[right, center[1]]
    mirrored = apart[left, center[1]] + apart[right, center[0]]
    nearer: FloatArray = np.minimum(same, mirrored)
    return nearer


def squared_distances(fragments: Fragments) -> FloatArray:
    """Compute the squared distance of every two fragments, ``[n, n]`` float64, to about six digits.

    Each number of an observation or action counts in units of its standard deviation over all fragments and steps; integer actions
    are 0 or 1 for each value.
    """
    n, length = fragments.rewards.shape
    observations = fragments.observations.reshape(n, length + 1, -1)
    actions = fragments.actions.reshape(n, length, -1)
    if actions.dtype.kind in "iu":
        actions = (actions[..., None] == np.unique(actions)).reshape(n, length, -1)
    steps = max(1, min(length + 1, MOST_NUMBERS // max(1, observations.shape[2])))
    total = np.zeros((n, n))
    for values, most in ((observations, steps), (actions, length)):
        steps_used = np.unique(np.linspace(0, values.shape[1] - 1, most).round().astype(np.int64))
        mean = np.mean([values[:, step].mean(axis=0, dtype=np.float64) for step in steps_used], axis=0)
        rows = values[:, steps_used].astype(np.float32) - mean.astype(np.float32)
        unit = np.sqrt(np.einsum("nsd,nsd->d", rows, rows) / (n * len(steps_used)))
        rows = (rows / np.where(unit == 0, 1.0, unit).astype(np.float32)).reshape(n, -1)
        squares = np.einsum("nd,nd->n", rows, rows)
        total += squares[:, None] + squares[None, :] - 2 * rows @ rows.T
    np.fill_diagonal(total, 0.0)
    return np.maximum(total, 0.0)
