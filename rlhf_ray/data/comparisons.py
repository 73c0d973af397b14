"""Comparisons: pairs of fragments, and what a teacher answered about them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.fragments import Fragments


@dataclass(frozen=True)
class Pairs:
    """``n`` pairs of fragments to ask about.

    Attributes:
        left, right: ``n`` fragments each; pair ``i`` is ``left[i]`` against ``right[i]``.
        ids: ``n`` ids made of the fragments' content, so that the same question has the same id wherever it is asked.
        reward_version: the version of the reward model that chose the pairs (0: none did).
    """

    left: Fragments
    right: Fragments
    ids: tuple[str, ...]
    reward_version: int = 0

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, index: IntArray | BoolArray | slice) -> Pairs:
        ids = tuple(self.ids[i] for i in np.arange(len(self))[index])
        return replace(self, left=self.left[index], right=self.right[index], ids=ids)

    @staticmethod
    def of(fragments: Fragments, index: IntArray, reward_version: int = 0) -> Pairs:
        """The pairs that ``index`` (``[n, 2]``: positions of left and right) picks from ``fragments``."""
        names = fragments.ids()
        return Pairs(
            fragments[index[:, 0]],
            fragments[index[:, 1]],
            tuple(pair_id(names[left], names[right]) for left, right in index),
            reward_version,
        )


def pair_id(left: str, right: str) -> str:
    """The id (32 hex digits) of the pair of fragments with these ids, in this order."""
    return hashlib.sha256(f"{left}|{right}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Comparisons:
    """Pairs with answers.

    Attributes:
        pairs: the ``n`` pairs.
        preferences: ``[n]`` float32: the probability that the left one is better: 1 left, 0 right, 0.5 equally good.
        annotators: who answered each; none where all are of one who has no name. Two people's answers to one pair are two
            comparisons.
    """

    pairs: Pairs
    preferences: FloatArray
    annotators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.preferences.shape != (len(self.pairs),):
            raise ValueError(
                f"{len(self.pairs)} pairs need as many preferences; got an array of shape {self.preferences.shape}."
            )
        if not ((self.preferences >= 0) & (self.preferences <= 1)).all():
            raise ValueError("Preferences are probabilities that the left fragment is better: between 0 and 1.")
        if len(self.annotators) not in (0, len(self.pairs)):
            raise ValueError(f"{len(self.pairs)} pairs need as many annotators, or none; got {len(self.annotators)}.")

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: IntArray | BoolArray | slice) -> Comparisons:
        annotators = tuple(self.annotators[i] for i in np.arange(len(self))[index]) if self.annotators else ()
        return Comparisons(self.pairs[index], self.preferences[index], annotators)

    @property
    def keys(self) -> list[tuple[str, str]]:
        """What tells comparisons apart: the pair's id and the annotator (the empty string for one who has no name)."""
        return list(zip(self.pairs.ids, self.annotators or ("",) * len(self), strict=True))

    @property
    def ties(self) -> int:
        """How many of the answers are "equally good"."""
        return int(np.sum(self.preferences == 0.5))


@dataclass(frozen=True)
class Changes:
    """What has become of comparisons since some moment: people change their minds and take answers back.

    Attributes:
        last: the sequence number of the last event taken into account: where the next changes begin.
        held: the comparisons, of those there was an event about, that hold now; None when there are none.
        withdrawn: pair id and annotator of those that hold no longer, or never did.
        weights: of each annotator who was given one, what a comparison of theirs counts now: 1 is the rule, 0 leaves it out.
    """

    last: int
    held: Comparisons | None
    withdrawn: tuple[tuple[str, str], ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)


def stable_uniform(ids: Sequence[str], salt: str) -> FloatArray:
    """A number in [0, 1) for each id that depends on nothing but the id and ``salt``, ``[n]`` float64.

    Membership decided this way (held out or not, bootstrap weights) survives restarts, reordering and growth of the data.
    """
    digests = (hashlib.sha256(f"{salt}|{name}".encode()).digest()[:8] for name in ids)
    return np.array([int.from_bytes(digest, "big") for digest in digests], dtype=np.float64) / 2.0**64
