"""Concepts: what an environment says about its state, and what can be read of it off an agent's memory, beside controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from sklearn.decomposition import PCA

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.erasure import Whitened, products
from rlhf_ray.interpret.agent.story import READ
from rlhf_ray.interpret.directions import labels as labelled
from rlhf_ray.interpret.directions.labelled import direction
from rlhf_ray.interpret.directions.probes import held_out, scores
from rlhf_ray.measure.intervals import mean_interval
from rlhf_ray.measure.statistics import auc

FOLDS = 4
WIDEST = 192
"""Features that a probe reads: principal components of wider inputs."""
FEWEST = 20
"""Steps of each class that a concept needs, over all folds."""
READABLE: Mapping[str, float] = {"auc": 0.75, "r2": 0.3}
"""Scores from which a concept counts as readable: it is told, and has a direction of its own."""
ELEMENTS = 8
"""Elements of an array that become concepts of their own."""
ELAPSED = "steps so far"
"""A concept of every environment: much of what is read off a memory only follows the time."""
SMALL_BASES = ("pca", "ica")
COMPONENTS = 16


def library(episodes: Episodes, action_names: Sequence[str] = (), within: int = 5) -> dict[str, FloatArray]:
    """Return concepts ``[n, T + 1]`` by name: numbers, or 0 and 1; NaN where one is not defined, and after an episode's end.

    They are what the environment says about its state, and events: whether there is a reward, or the episode terminates, within
    ``within`` steps, what the agent does next, and how many steps it has made.
    """
    n, steps = episodes.actions.shape[:2]
    elapsed = {ELAPSED: np.broadcast_to(np.arange(steps + 1.0), (n, steps + 1))}
    concepts = {**_numbers(episodes, ELEMENTS), **_events(episodes, action_names, within), **elapsed}
    known = np.arange(steps + 1)[None] <= episodes.lengths[:, None]
    return {name: np.where(known, values.astype(np.float64), np.nan) for name, values in concepts.items()}


def concepts_at(episodes: Episodes, elements: int = 1) -> dict[str, FloatArray]:
    """Return the numbers that the environment says about its state, and the steps so far, ``[n, T]`` by name.

    Of arrays, the first ``elements``.
    """
    n, steps = episodes.actions.shape[:2]
    numbers = {name: values[:, :steps] for name, values in _numbers(episodes, elements).items()}
    return {**numbers, ELAPSED: np.tile(np.arange(float(steps)), (n, 1))}


def _numbers(episodes: Episodes, elements: int) -> dict[str, FloatArray]:
    """Return the numbers that the environment says about its state, ``[n, T + 1]`` by name; the first ``elements`` of arrays."""
    numbers: dict[str, FloatArray] = {}
    for name, values in episodes.states.items():
        if values.dtype.kind in "biuf" and values.ndim >= 2:
            flat = values.reshape(*values.shape[:2], -1).astype(np.float64)
            for element in range(min(elements, flat.shape[2])):
                numbers[name if flat.shape[2] == 1 else f"{name}[{element}]"] = flat[:, :, element]
    return numbers


def _events(episodes: Episodes, action_names: Sequence[str], within: int) -> dict[str, Array]:
    n, steps = episodes.actions.shape[:2]
    acting = np.arange(steps + 1)[None] < episodes.lengths[:, None]
    padded = np.concatenate([np.where(episodes.real, episodes.rewards, 0.0) > 0, np.zeros((n, within + 1), bool)], 1)
    soon = np.any([padded[:, at : at + steps + 1] for at in range(within)], 0)
    left = episodes.lengths[:, None] - np.arange(steps + 1)[None]
    ends = episodes.terminated[:, None] & (left <= within)
    found: dict[str, Array] = {
        f"reward within {within} steps": np.where(acting, soon, np.nan),
        f"end within {within} steps": np.where(acting, ends, np.nan),
    }
    flat = episodes.actions.reshape(n, steps, -1)
    if flat.dtype.kind in "iu" and flat.shape[2] == 1:
        taken = np.concatenate([flat[:, :, 0], np.full((n, 1), -1)], 1)
        for action in np.unique(taken[acting]):
            name = action_names[action] if 0 <= action < len(action_names) else str(action)
            found[f"action is {name}"] = np.where(acting, taken == action, np.nan)
    else:
        for at in range(min(ELEMENTS, flat.shape[2])):
            name = action_names[at] if at < len(action_names) else f"action[{at}]"
            found[name] = np.concatenate([flat[:, :, at].astype(np.float64), np.full((n, 1), np.nan)], 1)
    return found


@dataclass(frozen=True)
class DecodedConcept:
    """How well a concept can be read off, on levels that nothing was fitted to: AUC of yes or no, R² of numbers.

    Attributes:
        concept: the concept.
        measure: auc (0.5 is chance) or r2 (0 is the mean).
        rows: steps where it is defined.
        score: of a linear probe of what the agent has in mind.
        interval: 95 % interval of ``score`` over folds; None for a single fold.
        shuffled: the same with shuffled labels.
        controls: the same probe of other inputs, such as one frame or the untrained agent.
        single: the best single component of each kind, chosen on the levels of the fit: unit, pca, ica.
        products: of yes or no that the linear probe does not read, AUC of a reader of products; None: not asked.
        products_interval: its 95 % interval over folds.
        products_controls: the same reader of the other inputs.
    """

    concept: str
    measure: Literal["auc", "r2"]
    rows: int
    score: float
    interval: list[float] | None
    shuffled: float
    controls: dict[str, float] = field(default_factory=dict)
    single: dict[str, float] = field(default_factory=dict)
    products: float | None = None
    products_interval: list[float] | None = None
    products_controls: dict[str, float] = field(default_factory=dict)

    @property
    def in_products(self) -> bool:
        """Whether products of what the agent has in mind tell it, with the whole interval, and no linear probe does."""
        return self.products_interval is not None and self.score < READ <= self.products_interval[0]

    @property
    def above(self) -> float | None:
        """How far ``score`` is above the best control; None without one."""
        return self.score - max(self.controls.values()) if self.controls else None

    @property
    def readable(self) -> bool:
        """Whether ``score`` reaches `READABLE`."""
        return self.score >= READABLE[self.measure]


def decode(
    values: FloatArray,
    concepts: Mapping[str, Array],
    groups: IntArray,
    controls: Mapping[str, FloatArray] = {},
    seed: int = 0,
    folds: int = FOLDS,
) -> list[DecodedConcept]:
    """Read concepts off ``values`` by cross-validation over groups. Concepts that don't vary in enough of them are left out.

    Args:
        values: what the agent has in mind, ``[n, size]``.
        concepts: ``[n]`` each; NaN where one is not defined.
        groups: ``[n]``, levels or episodes: those of a test were not fitted to.
        controls: other inputs ``[n, features]`` by name.
        seed: draws folds and shuffles.
        folds: number of folds.
    """
    rng = np.random.default_rng([seed, 0xC0])
    inputs = {name: _narrow(each, seed) for name, each in {"": values, **controls}.items()}
    parts = held_out(groups, folds, rng)
    # These see no labels, so they may see all rows.
    small = {kind: directions.fit(kind, values, COMPONENTS, seed).encode(values) for kind in SMALL_BASES}
    components = {"unit": values, **small}
    found = []
    for name, concept in concepts.items():
        labels = np.asarray(concept, np.float64)
        known = np.isfinite(labels)
        if not labelled.usable(labels) or _rarest(labels) < min(FEWEST, known.sum() / 4):
            continue
        shuffled = labels.copy()
        shuffled[known] = rng.permutation(labels[known])
        read: dict[str, list[float]] = {key: [] for key in (*inputs, "shuffled")}
        single: dict[str, list[float]] = {kind: [] for kind in components}
        for fitted, test in parts:
            fit_rows, test_rows = fitted[known[fitted]], test[known[test]]
            if not (labelled.usable(labels[fit_rows]) and labelled.usable(labels[test_rows])):
                continue
            for key, each in inputs.items():
                read[key].append(_probe(each, labels, groups, fit_rows, test_rows, seed))
            if labelled.usable(shuffled[fit_rows]) and labelled.usable(shuffled[test_rows]):
                read["shuffled"].append(_probe(inputs[""], shuffled, groups, fit_rows, test_rows, seed))
            for kind, each in components.items():
                single[kind].append(_best_single(each, labels, fit_rows, test_rows))
        if not read[""]:
            continue
        means = {key: float(np.mean(each)) if each else float("nan") for key, each in read.items()}
        by_products: dict[str, list[float]] = {}
        if labelled.yes_no(labels) and means[""] < READ:
            by_products = {key: _read_by_products(inputs[key], labels, parts) for key in inputs}
        found.append(
            DecodedConcept(
                name,
                "auc" if labelled.yes_no(labels) else "r2",
                int(known.sum()),
                means[""],
                mean_interval(read[""]),
                means["shuffled"],
                {key: means[key] for key in controls},
                {kind: float(np.mean(each)) for kind, each in single.items()},
                float(np.mean(by_products[""])) if by_products else None,
                mean_interval(by_products[""]) if by_products else None,
                {key: float(np.mean(by_products[key])) for key in controls} if by_products else {},
            )
        )
    return found


def _rarest(labels: FloatArray) -> int:
    """Return the steps of the rarer class."""
    upper = labelled.classes(labels)[labelled.rows(labels)]
    return int(min(upper.sum(), (~upper).sum()))


def _probe(
    inputs: FloatArray, labels: FloatArray, groups: IntArray, fitted: IntArray, test: IntArray, seed: int
) -> float:
    if labelled.yes_no(labels):
        return auc(inputs[test] @ direction(inputs[fitted], labels[fitted]), labels[test] == 1, 0.5)
    rng = np.random.default_rng([seed, 0x72])
    return float(scores(inputs, labels[:, None], groups, fitted, test, "linear", rng)[0])


def _read_by_products(
    values: FloatArray, labels: FloatArray, parts: Sequence[tuple[IntArray, IntArray]]
) -> list[float]:
    """Return the AUC of a reader of products on each fold that has both classes on both sides."""
    features, known = products(Whitened(values)(values)), np.isfinite(labels)
    areas = []
    for fitted, test in ((fitted[known[fitted]], test[known[test]]) for fitted, test in parts):
        if labelled.usable(labels[fitted]) and labelled.usable(labels[test]):
            weights = direction(features[fitted], labels[fitted], penalty=float(len(fitted)) ** 0.5)
            areas.append(auc(features[test] @ weights, labels[test] == 1, 0.5))
    return areas


def _best_single(scores: FloatArray, labels: FloatArray, fitted: IntArray, test: IntArray) -> float:
    """Return the score, on ``test``, of the component that is best on ``fitted``."""
    if not scores.shape[1]:
        return 0.5 if labelled.yes_no(labels) else 0.0
    if labelled.yes_no(labels):
        areas = np.array([auc(column, labels[fitted] == 1, 0.5) for column in scores[fitted].T])
        best = int(np.abs(areas - 0.5).argmax())
        area = auc(scores[test][:, best], labels[test] == 1, 0.5)
        return area if areas[best] >= 0.5 else 1.0 - area
    correlations = _correlations(scores[fitted], labels[fitted])
    best = int(np.abs(correlations).argmax())
    return float(_correlations(scores[test][:, [best]], labels[test])[0] ** 2)


def _correlations(scores: FloatArray, labels: FloatArray) -> FloatArray:
    centred, wanted = scores - scores.mean(0), labels - labels.mean()
    found: FloatArray = centred.T @ wanted / np.maximum(np.linalg.norm(centred, axis=0) * np.linalg.norm(wanted), 1e-12)
    return found


def _narrow(inputs: FloatArray, seed: int) -> FloatArray:
    """Return inputs, or their `WIDEST` largest principal components: nothing is lost of images that repeat few patterns."""
    if inputs.shape[1] <= WIDEST:
        return inputs
    count = min(WIDEST, *inputs.shape)
    narrow: FloatArray = PCA(count, svd_solver="randomized", random_state=seed).fit_transform(inputs)
    # Directions that carry nothing would be blown up by scaling.
    return narrow[:, narrow.std(0) > 1e-6 * max(float(narrow.std(0).max()), 1e-12)]
