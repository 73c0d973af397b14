"""Selection: which pairs of fragments to ask about."""

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray


def random_pairs(
    fragments: int, count: int, rng: np.random.Generator, favoured: BoolArray | None = None, share: float = 0.0
) -> IntArray:
    """``count`` different pairs drawn at random from ``fragments`` fragments, no fragment paired with itself.

    A fragment is used again only after all others have been, so that labels are spread over as many clips as there are.

    Args:
        fragments: how many there are.
        count: pairs wanted.
        rng: source of the draws.
        favoured: ``[fragments]`` bool: fragments of which each draw takes one with probability ``share``, however few they
            are; None: no such.
        share: between 0 and 1.

    Returns:
        ``[m, 2]`` int64 positions; ``m < count`` only when fewer than ``count`` different pairs exist.
    """
    if favoured is None or not favoured.any() or favoured.all() or (share == 1.0 and favoured.sum() < 2):
        favoured, share = np.zeros(fragments, dtype=bool), 0.0
    first, rest = _Deck(np.flatnonzero(favoured), rng), _Deck(np.flatnonzero(~favoured), rng)
    if share == 0.0:
        rest = _Deck(np.arange(fragments), rng)
    drawable = len(first.positions) if share == 1.0 else fragments
    count = min(count, drawable * (drawable - 1) // 2)
    pairs: dict[tuple[int, int], tuple[int, int]] = {}
    while len(pairs) < count:
        left = (first if share and rng.random() < share else rest).deal()
        right = (first if share and rng.random() < share else rest).deal(other_than=left)
        if left != right:
            pairs.setdefault((min(left, right), max(left, right)), (left, right))
    return np.array(list(pairs.values()), dtype=np.int64).reshape(-1, 2)


class _Deck:
    """Deals positions in random order, and again in a new order when all have been dealt."""

    def __init__(self, positions: IntArray, rng: np.random.Generator):
        self.positions, self._rng = positions, rng
        self._left: list[int] = []

    def deal(self, other_than: int | None = None) -> int:
        """The next position; where that is ``other_than``, the one after it, if there is another one at all."""
        if not self._left:
            self._left = self._rng.permutation(self.positions).tolist()
            if self._left[0] == other_than:
                self._left.append(self._left.pop(0))
        return self._left.pop(0)


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
