"""Random pairs of fragments: the candidates of every selection."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import BoolArray, IntArray


def random_pairs(
    fragments: int, count: int, rng: np.random.Generator, favoured: BoolArray | None = None, share: float = 0.0
) -> IntArray:
    """Draw ``count`` different pairs of ``fragments`` fragments at random. No fragment is paired with itself.

    A fragment is reused only after all others were used, which spreads labels over as many fragments as possible.

    Args:
        fragments: number of fragments.
        count: number of pairs wanted.
        rng: source of randomness.
        favoured: ``[fragments]`` bool: each draw takes one of these with probability ``share``, however few there are; None for
            no preference.
        share: in [0, 1].

    Returns:
        ``[m, 2]`` int64 positions; ``m < count`` only if fewer than ``count`` different pairs exist.
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
    """Deals positions in random order; reshuffles after dealing all of them."""

    def __init__(self, positions: IntArray, rng: np.random.Generator):
        self.positions, self._rng = positions, rng
        self._left: list[int] = []

    def deal(self, other_than: int | None = None) -> int:
        """Return the next position. After a reshuffle, put ``other_than`` last if it would come first."""
        if not self._left:
            self._left = self._rng.permutation(self.positions).tolist()
            if self._left[0] == other_than:
                self._left.append(self._left.pop(0))
        return self._left.pop(0)
