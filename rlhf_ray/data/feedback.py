"""Other feedback as comparisons: ratings, ranked lists and demonstrations, learned from in the same likelihood.

Each function returns `Comparisons`. Commit them to a store under a name of their own (`PreferenceStore.commit`), and they are
fitted, weighed, withdrawn and exported like answers to questions. `rlhf-ray store add` does it from files.
"""

from __future__ import annotations

import itertools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray, IntArray, numbers_of
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.demonstrations import open_npz
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments, cut_fragments
from rlhf_ray.data.recordings import load_demonstrations
from rlhf_ray.data.returns import differences
from rlhf_ray.data.spaces import of_one_choice

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
    index = np.array(list(itertools.combinations(range(n), 2)) if n <= 64 else _some_pairs(n, rng), np.int64)
    index = rng.permutation(index)[: PAIRS_PER_RATING * n]
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
    demonstrations, others = demonstrations[_first(demonstrations.ids())], others[_first(others.ids())]
    shown_too = np.isin(others.ids(), demonstrations.ids())
    if shown_too.all():
        raise SettingError(
            "All fragments of the other behaviour are demonstrations, too: compare with behaviour that is worse, such as a random "
            "policy's."
        )
    others = others[~shown_too]
    places = rng.choice(
        len(demonstrations) * len(others), size=min(count, len(demonstrations) * len(others)), replace=False
    )
    shown, other = np.divmod(places, len(others))
    swapped = rng.random(len(places)) < 0.5
    other = other + len(demonstrations)
    index = np.stack([np.where(swapped, other, shown), np.where(swapped, shown, other)], 1)
    pairs = Pairs.of(Fragments.concatenate([demonstrations, others]), index)
    return Comparisons(pairs, (~swapped).astype(np.float32))


def read_feedback(file: Path | str, rng: np.random.Generator) -> tuple[str, list[Comparisons]]:
    """Read rated or ranked fragments from an ``.npz``.

    The arrays are ``observations`` ``[n, length + 1, …]`` and ``actions`` ``[n, length, …]``; optionally ``rewards``
    ``[n, length]`` and ``terminated`` ``[n]``; and ``ratings`` ``[n]``, or ``ranks`` ``[n]`` with ``lists`` ``[n]``, the number of
    the list that a fragment is in (one list, if it is missing).

    Args:
        file: the file. No code in it is run.
        rng: source of randomness.

    Returns:
        ``"ratings"`` or ``"rankings"``, and the comparisons, one item for each list.

    Raises:
        SettingError: the file can't be read, or lacks an array; the message says which.
    """
    try:
        with open_npz(file) as archive:
            arrays: dict[str, Array] = {name: archive[name] for name in archive}
        fragments = _fragments(arrays)
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise SettingError(
            f"{file} holds no rated or ranked fragments ({getattr(error, 'strerror', None) or error}): it must be an .npz with the "
            "arrays observations [n, length + 1, …], actions [n, length, …], and ratings [n] or ranks [n]. Recorded demonstrations "
            "need --against."
        ) from error
    if {"ratings", "ranks"} <= set(arrays):
        raise SettingError(f"{file} has both ratings and ranks: leave one of them out.")
    try:
        return _read_numbers(arrays, fragments, rng)
    except SettingError as error:
        raise SettingError(f"{file}: {error}") from error


def _read_numbers(
    arrays: dict[str, Array], fragments: Fragments, rng: np.random.Generator
) -> tuple[str, list[Comparisons]]:
    if "ratings" in arrays:
        return "ratings", [from_ratings(fragments, arrays["ratings"], rng)]
    if "ranks" not in arrays:
        raise SettingError(f"it has neither ratings nor ranks, only {', '.join(arrays)}: add one of them.")
    ranks = _scores(fragments, arrays["ranks"], "ranks")
    lists = arrays.get("lists", np.zeros(len(fragments), np.int64))
    if lists.shape != (len(fragments),):
        raise SettingError(f"it has lists of shape {lists.shape} for {len(fragments)} fragments: give one number each.")
    feedback = []
    for number in np.unique(lists):
        inside = lists == number
        if inside.sum() < 2:
            raise SettingError(f"its list {number} has one fragment only: leave it out, or rank others beside it.")
        feedback.append(from_ranking(fragments[inside], ranks[inside]))
    return "rankings", feedback


def read_demonstrations(
    file: Path | str, against: Path | str, length: int, count: int, rng: np.random.Generator
) -> Comparisons:
    """Compare fragments of recorded demonstrations with fragments of other recorded behaviour (`from_demonstrations`).

    Args:
        file: the demonstrations (`load_demonstrations`).
        against: the other behaviour, in the same format.
        length: steps per fragment.
        count: number of comparisons wanted.
        rng: source of randomness.

    Raises:
        SettingError: a file holds no episode of ``length`` steps.
    """
    if count < 1:
        raise SettingError(f"--count is {count}; it must be 1 or more.")
    cut = []
    for path in (file, against):
        fragments = cut_fragments(
            load_demonstrations(path).trajectories(),
            length=length,
            count=count,
            start_share=0.0,
            policy_version=RANDOM_POLICY,
            rng=rng,
        )
        if fragments is None:
            raise SettingError(f"{path} has no episode of {length} steps; choose shorter fragments (--length).")
        cut.append(fragments)
    return from_demonstrations(cut[0], cut[1], count, rng)


def _some_pairs(n: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    drawn = {tuple(sorted(rng.choice(n, size=2, replace=False).tolist())) for _ in range(PAIRS_PER_RATING * n)}
    return sorted(drawn)


def _first(ids: list[str]) -> IntArray:
    """Return where each different id occurs first, ascending."""
    return np.sort(np.unique(ids, return_index=True)[1])


def _once(fragments: Fragments, scores: FloatArray) -> tuple[Fragments, FloatArray]:
    """Return each different fragment once, with its mean score.

    Raises:
        SettingError: all are the same.
    """
    _, first, which = np.unique(fragments.ids(), return_index=True, return_inverse=True)
    if len(first) == len(fragments):
        return fragments, scores
    if len(first) < 2:
        raise SettingError(f"all {len(fragments)} fragments are the same: add others to compare with.")
    means = np.bincount(which, scores) / np.bincount(which)
    order = np.argsort(first)
    return fragments[first[order]], means[order]


def _scores(fragments: Fragments, given: object, what: str) -> FloatArray:
    """Return ratings or ranks as float64, ``[n]``.

    Raises:
        SettingError: there is not one number for each of at least two fragments, or some are NaN or infinite.
    """
    numbers = numbers_of(given)
    got = "something else" if numbers is None else f"an array of shape {numbers.shape}"
    if numbers is not None and numbers.shape == (len(fragments),) and not np.isfinite(numbers).all():
        got = f"NaN or infinity for {int((~np.isfinite(numbers)).sum())} of them"
    elif numbers is not None and numbers.shape == (len(fragments),) and len(fragments) >= 2:
        return numbers
    raise SettingError(
        f"{len(fragments)} fragments need one number each as {what}, at least 2 and all finite; got {got}."
    )


def _by_score(fragments: Fragments, index: IntArray, scores: FloatArray) -> Comparisons:
    left, right = scores[index[:, :1]], scores[index[:, 1:]]
    return Comparisons(Pairs.of(fragments, index), ((np.sign(differences(left, right)) + 1) / 2).astype(np.float32))


def _fragments(arrays: dict[str, Any]) -> Fragments:
    n, length = arrays["actions"].shape[:2]
    return Fragments(
        observations=arrays["observations"],
        actions=of_one_choice(arrays["actions"], axes=2),
        rewards=np.asarray(arrays.get("rewards", np.full((n, length), np.nan)), np.float64),
        terminated=np.asarray(arrays.get("terminated", np.zeros(n, bool)), bool),
        starts=np.zeros(n, np.int64),
        policy_versions=np.full(n, RANDOM_POLICY, np.int64),
    )
