"""Selection: which pairs of fragments to ask about."""

import numpy as np

from rlhf_ray.arrays import FloatArray, IntArray


def random_pairs(fragments: int, count: int, rng: np.random.Generator) -> IntArray:
    """``count`` different pairs drawn uniformly from ``fragments`` fragments, no fragment paired with itself.

    A fragment is used again only after all others have been, so that labels are spread over as many clips as there are.

    Returns:
        ``[m, 2]`` int64 positions; ``m < count`` only when fewer than ``count`` different pairs exist.
    """
    count = min(count, fragments * (fragments - 1) // 2)
    pairs: list[tuple[int, int]] = []
    seen: set[tuple[int, int]] = set()
    left_over = np.empty(0, dtype=np.int64)  # of an odd number of fragments, one: it comes first in the next pass
    while len(pairs) < count:
        order = rng.permutation(fragments)
        if len(left_over) and left_over[0] == order[0]:
            order = np.roll(order, 1)
        order = np.concatenate([left_over, order])
        left_over = order[len(order) // 2 * 2 :]
        for left, right in zip(order[0::2], order[1::2], strict=False):
            key = (min(left, right), max(left, right))
            if key not in seen and len(pairs) < count:
                seen.add(key)
                pairs.append((int(left), int(right)))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def most_disagreed(candidates: IntArray, returns: FloatArray, count: int) -> IntArray:
    """The ``count`` candidate pairs about which the ensemble disagrees most (Christiano et al. 2017, section 2.2.4).

    Args:
        candidates: ``[m, 2]`` positions of fragments.
        returns: ``[members, fragments]``: the return each member predicts for each fragment.
        count: how many pairs to keep.

    Returns:
        ``[min(count, m), 2]``: the candidates with the largest variance, over members, of the predicted probability that the
        left fragment is preferred; the most disagreed first, earlier candidates first among equals.
    """
    differences = returns[:, candidates[:, 0]] - returns[:, candidates[:, 1]]
    probabilities = 1.0 / (1.0 + np.exp(-np.clip(differences, -50.0, 50.0)))
    order = np.argsort(-probabilities.var(axis=0), kind="stable")
    return candidates[order[:count]]
