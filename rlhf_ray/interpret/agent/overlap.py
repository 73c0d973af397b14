"""Overlap: are generated states like real ones? Beside real states against other real states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.neighbors import NearestNeighbors

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.interpret.agent.clusters import principal
from rlhf_ray.measure.intervals import mean_interval
from rlhf_ray.measure.statistics import auc

NEIGHBOURS = 5
FOLDS = 4
MOST = 1500
"""Rows of each side."""


@dataclass(frozen=True)
class Likeness:
    """How alike two sets of states are.

    Attributes:
        auc: of a classifier between both (extremely randomised trees), on other episodes than its own: 0.5 if they are alike.
        interval: its 95 % interval over folds; None for one fold.
        neighbours: share of the nearest neighbours of the second set's states that are of the first set: 0.5 if they are alike.
        coverage: share of the first set's states with a state of the second set among their nearest neighbours (Naeem et al. 2020).
    """

    auc: float
    interval: list[float] | None
    neighbours: float
    coverage: float


@dataclass(frozen=True)
class Overlap:
    """Real against generated states, and as many real states against other real ones.

    Attributes:
        generated: real against generated.
        control: real against real, of other episodes.
        rows: states of each side.
    """

    generated: Likeness
    control: Likeness
    rows: int


def overlap(
    real: FloatArray, generated: FloatArray, real_groups: Array, generated_groups: Array, seed: int = 0
) -> Overlap | None:
    """Compare ``real`` ``[n, size]`` with ``generated`` ``[m, size]`` states.

    Args:
        real: the states ``[n, size]``.
        generated: the states ``[m, size]``.
        real_groups: the episodes, ``[n]``. Half of them is the control.
        generated_groups: the episodes that they start from, ``[m]``, numbered as the real ones. Those of the half that they are
            compared with are left out: the control does not know that half either.
        seed: draws.

    Returns:
        The comparison, with as many states on all sides; None with fewer than two real episodes, or fewer than 10 states on a side.
    """
    rng = np.random.default_rng([seed, 0x0E])
    names = rng.permutation(np.unique(real_groups))
    first = np.isin(real_groups, names[: len(names) // 2])
    others = ~np.isin(generated_groups, names[: len(names) // 2])
    count = min(MOST, int(first.sum()), int((~first).sum()), int(others.sum()))
    if len(names) < 2 or count < 10:
        return None

    def drawn(values: FloatArray, groups: Array) -> tuple[FloatArray, IntArray]:
        rows = rng.choice(len(values), count, replace=False)
        return values[rows], np.unique(groups[rows], return_inverse=True)[1]

    one, other, made = (
        drawn(real[first], real_groups[first]),
        drawn(real[~first], real_groups[~first]),
        drawn(generated[others], generated_groups[others]),
    )
    return Overlap(_compare(one, made, seed), _compare(one, other, seed), count)


def _compare(first: tuple[FloatArray, IntArray], second: tuple[FloatArray, IntArray], seed: int) -> Likeness:
    count = len(first[0])
    points = principal(np.concatenate([first[0], second[0]]), 0.99)
    if not points.shape[1]:
        return Likeness(0.5, None, 0.5, 1.0)
    points = points / points.std(0)
    one, two = points[:count], points[count:]
    area, interval = _classified(points, np.repeat([0, 1], count), (first[1], second[1]), seed)
    near = NearestNeighbors(n_neighbors=NEIGHBOURS + 1).fit(points).kneighbors(two)[1]
    own = np.arange(count, 2 * count)[:, None]
    others = np.stack([row[row != at][:NEIGHBOURS] for row, at in zip(near, own, strict=True)])
    among = NearestNeighbors(n_neighbors=min(NEIGHBOURS + 1, count)).fit(one)
    radii = among.kneighbors(one)[0][:, -1]
    nearest = NearestNeighbors(n_neighbors=1).fit(two).kneighbors(one)[0][:, 0]
    return Likeness(area, interval, float((others < count).mean()), float((nearest <= radii).mean()))


def _classified(
    points: FloatArray, labels: IntArray, groups: tuple[IntArray, IntArray], seed: int
) -> tuple[float, list[float] | None]:
    """Return the classifier's mean AUC over folds of episodes, and its interval."""
    folds = np.concatenate([each % FOLDS for each in groups])
    areas = []
    for fold in range(FOLDS):
        test = folds == fold
        if len(np.unique(labels[test])) < 2 or len(np.unique(labels[~test])) < 2:
            continue
        model = ExtraTreesClassifier(40, min_samples_leaf=3, random_state=seed).fit(points[~test], labels[~test])
        areas.append(auc(model.predict_proba(points[test])[:, 1], labels[test] == 1))
    return (float(np.mean(areas)), mean_interval(areas)) if areas else (0.5, None)
