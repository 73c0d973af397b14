"""Comparisons: pairs of fragments with preferences over them, and returns compared but for their rounding.

Sums of the same rewards in another order differ in their last bits: -0.1 nine times and 1 once are about 0.1, wherever the 1 is.
Every part that compares true returns, or other numbers as teachers do, asks `differences`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.fragments import Fragments


@dataclass(frozen=True)
class Pairs:
    """``n`` pairs of fragments to ask about. A pair with an answer is a comparison.

    Attributes:
        left, right: ``n`` fragments each; pair ``i`` is ``left[i]`` against ``right[i]``.
        ids: ``n`` ids computed from the fragments' content: the same pair has the same id everywhere.
        reward_version: version of the reward model that selected the pairs; 0 if none did.
        recent_return: mean true return of the fragments that the pairs were drawn from; None if unknown. Only teachers see it.
        recent_spread: how far apart the true returns of those fragments are: the 95 % quantile of the differences of random pairs
            (`rlhf_ray.data.comparisons.spread_of`); None if unknown. Only teachers see it.
        answered: number of answers by annotator that were there when the pairs were drawn; None if unknown. Only teachers see it.
    """

    left: Fragments
    right: Fragments
    ids: tuple[str, ...]
    reward_version: int = 0
    recent_return: float | None = None
    recent_spread: float | None = None
    answered: Mapping[str, int] | None = None

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, index: IntArray | BoolArray | slice) -> Pairs:
        ids = tuple(self.ids[i] for i in np.arange(len(self))[index])
        return replace(self, left=self.left[index], right=self.right[index], ids=ids)

    @staticmethod
    def of(fragments: Fragments, index: IntArray, reward_version: int = 0) -> Pairs:
        """Build pairs from ``fragments``: ``index`` is ``[n, 2]`` int, the positions of left and right."""
        names = fragments.ids()
        return Pairs(
            fragments[index[:, 0]],
            fragments[index[:, 1]],
            tuple(pair_id(names[left], names[right]) for left, right in index),
            reward_version,
        )


def pair_id(left: str, right: str) -> str:
    """Return the id (32 hex digits) of the pair of fragments with these ids, in this order."""
    return hashlib.sha256(f"{left}|{right}".encode()).hexdigest()[:32]


Side = Literal["left", "right", "equal"]


def side_of(preference: float, swapped: bool | None = False) -> Side:
    """Return the side of an answer: as stored, or as shown with ``swapped`` (the left fragment was shown on the right)."""
    if preference == 0.5:
        return "equal"
    return "left" if (preference > 0.5) != bool(swapped) else "right"


@dataclass(frozen=True)
class Comparisons:
    """Pairs with answers.

    Attributes:
        pairs: the ``n`` pairs.
        preferences: ``[n]`` float32: the probability that the left fragment is better: 1 left, 0 right, 0.5 equally good.
        annotators: ``n`` names, or none for one anonymous annotator. Two annotators' answers to one pair are two comparisons.
        sides: the side that each annotator chose, as the fragments were shown to them, whoever changed the answer since; or none if
            all were shown as they are, and each preference is its annotator's own.

    Raises:
        ValueError: the lengths differ, or a preference is outside [0, 1].
    """

    pairs: Pairs
    preferences: FloatArray
    annotators: tuple[str, ...] = ()
    sides: tuple[Side, ...] = ()

    def __post_init__(self) -> None:
        n, shape = len(self.pairs), self.preferences.shape
        if shape != (n,):
            raise ValueError(f"{n} pairs need {n} preferences; got an array of shape {shape}.")
        if not ((self.preferences >= 0) & (self.preferences <= 1)).all():
            raise ValueError("Preferences must be probabilities that the left fragment is better, between 0 and 1.")
        for name, given in (("annotators", self.annotators), ("sides", self.sides)):
            if len(given) not in (0, n):
                raise ValueError(f"{n} pairs need {n} {name}, or none; got {len(given)}.")

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: IntArray | BoolArray | slice) -> Comparisons:
        rows = np.arange(len(self))[index]
        names, sides = (tuple(of[i] for i in rows) if of else () for of in (self.annotators, self.sides))
        return Comparisons(self.pairs[index], self.preferences[index], names, sides)

    @property
    def keys(self) -> list[tuple[str, str]]:
        """What identifies each comparison: the pair's id and the annotator (the empty string if anonymous)."""
        return list(zip(self.pairs.ids, self.annotators or ("",) * len(self), strict=True))

    @property
    def chosen(self) -> list[Side]:
        """The side that each annotator chose, as the fragments were shown to them."""
        return list(self.sides) or [side_of(preference) for preference in self.preferences]

    @property
    def ties(self) -> int:
        """Number of times that annotators chose "equally good"."""
        return self.chosen.count("equal")


@dataclass(frozen=True)
class Changes:
    """Changes in a store since an earlier event: new answers, changed answers and withdrawals.

    Attributes:
        last: sequence number of the last event included: where the next changes start.
        comparisons: the changed comparisons that are active; None if there are none.
        withdrawn: pair id and annotator of the changed comparisons that are no longer active, or never were.
        weights: current weights by annotator: 1 is the default, 0 excludes the annotator.
    """

    last: int
    comparisons: Comparisons | None
    withdrawn: tuple[tuple[str, str], ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)


def stable_uniform(ids: Sequence[str], salt: str) -> FloatArray:
    """Hash each id to a number in [0, 1) that depends only on the id and ``salt``.

    Decisions based on it (held out or not, bootstrap weights) survive restarts, reordering and growth of the data.

    Returns:
        ``[n]`` float64.
    """
    digests = (hashlib.sha256(f"{salt}|{name}".encode()).digest()[:8] for name in ids)
    return np.array([int.from_bytes(digest, "big") for digest in digests], dtype=np.float64) / 2.0**64


def numbers_of(given: object) -> FloatArray | None:
    """Return ``given``, which a user's part returned, as an array; None if it isn't one of numbers."""
    try:
        array = np.asarray(given)
    except ValueError:  # rows of different lengths
        return None
    return array.astype(np.float64) if array.dtype.kind in "biuf" else None


_SPREAD = 256
"""Number of returns of which all pairs are looked at."""

_EXTRA = 8
"""Roundings besides those of a sum's own terms: of weights, means and thresholds."""


def differences(left: FloatArray, right: FloatArray, weights: FloatArray | None = None) -> FloatArray:
    """Return how much larger each return on the left is, exactly 0 where the two are equal but for rounding.

    Args:
        left: rewards ``[n, length]`` of any float dtype.
        right: the same.
        weights: of each step, ``[length]``; None for 1.

    Returns:
        ``[n]`` float64; NaN where a reward is.
    """
    result = _weighed(left, weights).sum(1) - _weighed(right, weights).sum(1)
    error = rounding(left, weights) + rounding(right, weights)
    return np.asarray(np.where(np.abs(result) <= error, 0.0, result))


def rounding(rewards: FloatArray, weights: FloatArray | None = None) -> FloatArray:
    """Return a bound of the error of each return, ``[n]`` float64.

    Each reward may be rounded, and so may each partial sum of float64 numbers: an error of ``n * eps * sum(abs(r))`` (Higham,
    Accuracy and Stability of Numerical Algorithms, section 4.2). Rewards which all are float32 numbers are rounded to
    these, except for whole numbers. Rewards and weights are as for `differences`.
    """
    sizes = np.abs(_weighed(rewards, weights))
    values = np.asarray(rewards, np.float64)
    with np.errstate(over="ignore"):
        single = (values == values.astype(np.float32)).all(1)
    of_single = np.where(values == np.round(values), 0.0, sizes).sum(1) * np.finfo(np.float32).eps
    terms = values.shape[1] + _EXTRA
    return np.asarray(terms * np.finfo(np.float64).eps * sizes.sum(1) + np.where(single, of_single, 0.0))


def settled(rewards: FloatArray) -> FloatArray:
    """Return the returns ``[n]`` of rewards ``[n, length]`` without digits that are rounding only: equal ones are the same."""
    returns = np.asarray(np.asarray(rewards, np.float64).sum(1))
    error = float(np.nanmax(rounding(rewards), initial=0.0))
    if not 0 < error < np.inf:
        return returns
    grain = 10.0 ** np.ceil(np.log10(error) + 1)
    return np.asarray(np.round(returns / grain) * grain)


def spread_of(returns: FloatArray) -> float:
    """Return how far apart returns are: of 100 random pairs of them, 95 are closer.

    Exact for up to `_SPREAD` returns; of more, that many at even distances in ascending order stand for all. So it draws nothing,
    and the order of the returns ``[n]`` has no effect. It is 0 for fewer than two, and NaN if a return is.
    """
    ordered = np.sort(np.asarray(returns, np.float64))
    if len(ordered) < 2:
        return 0.0
    if len(ordered) > _SPREAD:
        ordered = ordered[((np.arange(_SPREAD) + 0.5) * len(ordered) / _SPREAD).astype(np.int64)]
    left, right = np.triu_indices(len(ordered), 1)
    return float(np.quantile(ordered[right] - ordered[left], 0.95))


def _weighed(rewards: FloatArray, weights: FloatArray | None) -> FloatArray:
    values: FloatArray = np.asarray(rewards, np.float64)
    return values if weights is None else np.asarray(values * weights)
