"""Selection: which pairs of fragments to ask about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.registry import Registry


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


@dataclass(frozen=True)
class Candidates:
    """Candidate pairs to select from.

    Attributes:
        index: ``[m, 2]`` int64: positions of each pair's left and right fragment in ``fragments``.
        fragments: the ``n`` fragments.
        returns: ``[members, n]`` float32: each ensemble member's predicted return of each fragment, on the likelihood's scale:
            the difference of two is the pair's logit. None before the first reward version.
    """

    index: IntArray
    fragments: Fragments
    returns: FloatArray | None

    @property
    def logits(self) -> FloatArray:
        """``[members, m]`` float32: each member's log odds that the left fragment of each pair is preferred.

        Raises:
            SettingError: there is no reward model yet.
        """
        if self.returns is None:
            raise SettingError(
                "preferences.selection reads candidates.logits before there is a reward model: set its needs_reward to True to ask "
                "about random pairs until then, or check candidates.returns for None."
            )
        logits: FloatArray = self.returns[:, self.index[:, 0]] - self.returns[:, self.index[:, 1]]
        return logits


class Selection(Protocol):
    """Scores candidate pairs. The pairs with the highest scores are asked about."""

    needs_reward: bool
    """Whether scores use the ensemble's predictions. If so, random pairs are asked about until there is a reward model."""

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """Score each candidate.

        Args:
            candidates: the ``m`` candidate pairs.
            rng: source of randomness.

        Returns:
            ``[m]`` float: higher is better. Earlier candidates win ties.
        """
        ...


class Disagreement:
    """Scores by the variance over members of the probability that left is preferred (Christiano et al. 2017, section 2.2.4)."""

    needs_reward = True

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        probabilities = 1.0 / (1.0 + np.exp(-np.clip(candidates.logits, -50.0, 50.0)))
        variance: FloatArray = probabilities.var(axis=0)
        return variance


def choose(selection: Selection, candidates: Candidates, count: int, rng: np.random.Generator) -> IntArray:
    """Return the ``count`` candidates with the highest scores, ``[min(count, m), 2]``; earlier candidates win ties."""
    scores = np.asarray(selection.score(candidates, rng))
    unknown = ", some of them NaN" if np.isnan(scores).any() else ""
    if scores.shape != (len(candidates.index),) or unknown:
        raise SettingError(
            f"preferences.selection is {type(selection).__name__}, and for {len(candidates.index)} candidate pairs it returned "
            f"scores of shape {scores.shape}{unknown}: it must return one number per candidate."
        )
    order = np.argsort(-scores, kind="stable")
    return candidates.index[order[:count]]


SELECTIONS: Registry[Selection | None] = Registry(
    "preferences.selection", Selection, {"random": lambda: None, "disagreement": Disagreement}
)
"""Built-in selections by name. "random" needs no scores."""
