"""Other feedback as comparisons: ratings, ranked lists and demonstrations, learned from in the same likelihood.

Each function returns `Comparisons`. Commit them to a store under a name of their own (`PreferenceStore.commit`), and they are
fitted, weighed, withdrawn and exported like answers to questions.
"""

import itertools
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.comparisons import Comparisons, Pairs, differences, numbers_of
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments

PAIRS_PER_RATING = 2
"""Comparisons per rating: each rated fragment is compared with about four others."""


def from_ratings(fragments: Fragments, ratings: FloatArray, rng: np.random.Generator) -> Comparisons:
    """Turn ratings by one annotator into comparisons: the higher rated fragment is better, equal ratings are ties.

    Only the order of ratings counts, so any scale will do. Random pairs are compared, not all: otherwise ``n`` ratings would weigh
    as much as ``n²`` answers. A fragment that occurs several times counts once, with its mean rating.

    Args:
        fragments: ``n`` rated fragments, at least 2.
        ratings: ``[n]`` float.
        rng: source of randomness.

    Returns:
        At most ``2 n`` different comparisons.

    Raises:
        SettingError: there are fewer than two ratings of different fragments, or some are NaN or infinite.
    """
    fragments, ratings = _once(fragments, _scores(fragments, ratings, "ratings"))
    n = len(fragments)
    places: set[Any] = set(itertools.combinations(range(n), 2)) if n <= 64 else set()
    for _ in range(0 if n <= 64 else PAIRS_PER_RATING * n):
        places.add(tuple(sorted(rng.choice(n, size=2, replace=False).tolist())))
    index = rng.permutation(np.array(sorted(places), np.int64))[: PAIRS_PER_RATING * n]
    return _by_score(fragments, index, ratings)


def from_ranking(fragments: Fragments, ranks: IntArray | FloatArray) -> Comparisons:
    """Turn one ranked list into comparisons: of each two fragments, the one of the smaller rank is better.

    A fragment that occurs several times counts once, with its mean rank.

    Args:
        fragments: the ``n`` fragments of the list, at least 2.
        ranks: ``[n]`` numbers: 0 or 1 for the best. Equal ranks are ties.

    Returns:
        All ``n (n - 1) / 2`` comparisons.

    Raises:
        SettingError: there are fewer than two different fragments, or not one rank for each, or some are NaN or infinite.
    """
    fragments, scores = _once(fragments, -_scores(fragments, ranks, "ranks"))
    index = np.array(list(itertools.combinations(range(len(fragments)), 2)), np.int64)
    return _by_score(fragments, index, scores)


def from_demonstrations(
    demonstrations: Fragments, others: Fragments, count: int, rng: np.random.Generator
) -> Comparisons:
    """Compare demonstrated fragments with other behaviour: the demonstration is always better (Ibarz et al. 2018).

    Other behaviour that is a demonstration, too, is left out; a fragment that occurs several times counts once.

    Args:
        demonstrations: fragments of demonstrations.
        others: fragments of behaviour that is worse, such as a random policy's.
        count: number of comparisons wanted.
        rng: source of randomness, which also decides the sides.

    Returns:
        ``min(count, len(demonstrations) * len(others))`` different comparisons.

    Raises:
        SettingError: all of the other behaviour are demonstrations.
    """
    demonstrations, others = (of[np.sort(np.unique(of.ids(), return_index=True)[1])] for of in (demonstrations, others))
    others = others[~np.isin(others.ids(), demonstrations.ids())]
    if not len(others):
        raise SettingError(
            "All fragments of the other behaviour are demonstrations, too: compare with behaviour that is worse, such as a random "
            "policy's."
        )
    possible = len(demonstrations) * len(others)
    places = rng.choice(possible, size=min(count, possible), replace=False)
    shown, other = np.divmod(places, len(others))
    swapped = rng.random(len(places)) < 0.5
    other = other + len(demonstrations)
    index = np.stack([np.where(swapped, other, shown), np.where(swapped, shown, other)], 1)
    pairs = Pairs.of(Fragments.concatenate([demonstrations, others]), index)
    return Comparisons(pairs, (~swapped).astype(np.float32))


def _once(fragments: Fragments, scores: FloatArray) -> tuple[Fragments, FloatArray]:
    """Return each different fragment once, with its mean score; refuse those that are all the same."""
    _, first, which = np.unique(fragments.ids(), return_index=True, return_inverse=True)
    if len(first) == len(fragments):
        return fragments, scores
    if len(first) < 2:
        raise SettingError(f"all {len(fragments)} fragments are the same: add others to compare with.")
    means = np.bincount(which, scores) / np.bincount(which)
    order = np.argsort(first)
    return fragments[first[order]], means[order]


def _scores(fragments: Fragments, given: object, what: str) -> FloatArray:
    """Return ratings or ranks as float64, ``[n]``: a finite number for each of at least two fragments."""
    numbers, n = numbers_of(given), len(fragments)
    got = "something else" if numbers is None else f"an array of shape {numbers.shape}"
    if numbers is not None and numbers.shape == (n,):
        odd = int((~np.isfinite(numbers)).sum())
        if not odd and n >= 2:
            return numbers
        got = f"NaN or infinity for {odd} of them" if odd else got
    raise SettingError(f"{n} fragments need one number each as {what}, at least 2 and all finite; got {got}.")


def _by_score(fragments: Fragments, index: IntArray, scores: FloatArray) -> Comparisons:
    left, right = scores[index[:, :1]], scores[index[:, 1:]]
    return Comparisons(Pairs.of(fragments, index), ((np.sign(differences(left, right)) + 1) / 2).astype(np.float32))
