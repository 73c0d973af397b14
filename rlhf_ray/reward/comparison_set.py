"""The comparisons that a reward model is fitted to: added, withdrawn, weighed by annotator, kept as stacked tensors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor

from rlhf_ray.data.comparisons import Changes, Comparisons, Side
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.fit_report import ANONYMOUS, RECENT_ANSWERS
from rlhf_ray.reward.stacked import StackedComparisons
from rlhf_ray.store.answers import Presses, count_presses

logger = logging.getLogger(__name__)


class NothingToFitError(ValueError):
    """No comparison to fit to: none was added, all were withdrawn, or all have weight 0."""


class ComparisonSet:
    """Comparisons by pair id and annotator. Two annotators' answers to one pair are two comparisons.

    Args:
        ensemble: encodes the fragments.
        held_out_share: share of the comparisons, in [0, 1), that is never trained on.

    Attributes:
        held_out_share: the share.
        keys: pair id and annotator of each comparison, in the order they were added.
        weights: factor of each annotator's losses, see `weigh`.
        stacked: the comparisons as tensors; None if there are none.
    """

    def __init__(self, ensemble: RewardEnsemble, held_out_share: float):
        self._ensemble, self.held_out_share = ensemble, held_out_share
        self.keys: list[tuple[str, str]] = []
        self.weights: dict[str, float] = {}
        self.stacked: StackedComparisons | None = None
        self._chosen: list[Side] = []
        """The side that each annotator chose, as shown."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def annotators(self) -> list[str]:
        """The annotator of each comparison."""
        return [annotator for _, annotator in self.keys]

    def add(self, comparisons: Comparisons) -> None:
        """Add comparisons.

        A comparison that is already present (same pair and annotator) keeps its position and takes the new answer. If
        ``comparisons`` contains one twice, the later answer counts.
        """
        rows = {key: row for row, key in enumerate(self.keys)}
        latest = {key: i for i, key in enumerate(comparisons.keys)}  # ordered by first occurrence
        chosen = comparisons.chosen
        for key in latest.keys() & rows.keys():
            assert self.stacked is not None
            self.stacked.preferences[rows[key]] = float(comparisons.preferences[latest[key]])
            self._chosen[rows[key]] = chosen[latest[key]]
        new = {key: i for key, i in latest.items() if key not in rows}
        if not new:
            return
        added = StackedComparisons.of(self._ensemble, comparisons[np.array(list(new.values()))], self.held_out_share)
        self.stacked = added if self.stacked is None else self.stacked.join(added)
        self.keys += new
        self._chosen += [chosen[i] for i in new.values()]

    def withdraw(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove the comparisons with these `keys`. Ignores unknown keys."""
        gone = set(keys)
        kept = [row for row, key in enumerate(self.keys) if key not in gone]
        if self.stacked is None or len(kept) == len(self.keys):
            return
        self.stacked = self.stacked.keep(kept) if kept else None
        self.keys, self._chosen = [self.keys[row] for row in kept], [self._chosen[row] for row in kept]

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Multiply the loss of each comparison by its annotator's weight: 1 by default, 0 excludes the annotator.

        Comparisons of weight 0 still count for the normalisers (their fragments are as good as any), but not for losses,
        accuracies or the window.
        """
        self.weights = dict(weights)

    def apply(self, changes: Changes) -> None:
        """Apply changes from the store: remove withdrawn comparisons, add new answers, replace the weights."""
        self.withdraw(changes.withdrawn)
        if changes.held is not None:
            self.add(changes.held)
        self.weigh(changes.weights)

    def restore(self, keys: Sequence[Sequence[str]], changes: Changes) -> None:
        """Restore the comparisons ``keys`` of a checkpoint.

        Args:
            keys: pair id and annotator of each comparison that was held.
            changes: everything in the store (`PreferenceStore.since` from 0).

        Raises:
            ValueError: none of them remains, and not all of them were withdrawn.
        """
        self.keys, self._chosen, self.stacked = [], [], None
        self.weigh(changes.weights)
        withdrawn, held = set(changes.withdrawn), changes.held
        wanted = [key for pair, annotator in keys if (key := (pair, annotator)) not in withdrawn]
        if not wanted:
            return
        position = {} if held is None else {key: i for i, key in enumerate(held.keys)}
        left = [position[key] for key in wanted if key in position]
        lost = len(wanted) - len(left)
        missing = f"{lost} of the {len(wanted)} comparisons the reward model was fitted to are missing"
        if held is None or not left:
            raise ValueError(f"{missing}.")
        if lost:  # their fragments are damaged, or their files are gone
            logger.warning("%s; continuing with the rest.", missing)
        self.add(held[np.array(left)])

    def presses(self, counted: Tensor) -> dict[str, Presses]:
        """Count what each annotator chose in their newest answers among the rows ``counted``."""
        names = [annotator or ANONYMOUS for _, annotator in self.keys]
        counts = count_presses(((names[row], self._chosen[row]) for row in counted.tolist()), RECENT_ANSWERS)
        return dict.fromkeys(names, Presses()) | counts
