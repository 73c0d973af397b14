"""The comparisons that a reward model is fitted to: added, withdrawn, weighed by annotator, kept as stacked tensors."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.comparisons import Changes, Comparisons, Side, stable_uniform
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.methods import FitLabels
from rlhf_ray.store.answers import Presses, count_presses

RECENT_ANSWERS = 50
"""Number of each annotator's newest answers behind `FitReport.chosen`: few enough to reveal an annotator who starts to always give
the same answer, and enough that chance alone does not look like one."""

ANONYMOUS = "anonymous"
"""The name in metrics of an annotator without a name."""

SHARE = 0.8
"""Share of the comparisons in a member's bootstrap sample, drawn without replacement. The variance of a batch's gradient is
1 / SHARE of that without a bootstrap; Poisson weights, which stand for drawing with replacement, would double it."""


def bootstrap_weights(ids: Sequence[str], members: int) -> FloatArray:
    """Draw each member's bootstrap sample: a share of `SHARE` of the comparisons, without replacement (Bühlmann and Yu 2002).

    A hash of the pair id decides, so the weights stay the same when comparisons are added or reordered.

    Returns:
        ``[members, n]`` float32 weights: 0 or ``1 / SHARE``, so that their mean is 1.
    """
    draws = [stable_uniform(ids, f"bootstrap {member}") for member in range(members)]
    return ((np.stack(draws) < SHARE) / SHARE).astype(np.float32)


class UniqueFrames:
    """Images, of which equal ones share their memory. It has what `StackedComparisons` needs of a tensor ``[n, …]`` of them.

    Fragments of one rollout overlap, a fragment is in several comparisons, and in many games most frames look alike.

    Args:
        frames: ``[n, 2, length + 1, height, width, channels]``.
    """

    def __init__(self, frames: Tensor):
        self._rows: dict[bytes, int] = {}
        """The row of each different image, by its hash."""
        self._frames = frames.new_empty(0, *frames.shape[3:])
        self._index = torch.empty(0, *frames.shape[1:3], dtype=torch.int32)
        self.extend(frames)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Bytes of the images and of their places."""
        return self._frames.nbytes + self._index.nbytes

    def extend(self, frames: Tensor) -> None:
        """Add images ``[m, 2, length + 1, height, width, channels]``."""
        flat = frames.flatten(0, 2)
        index = np.empty(len(flat), np.int32)
        new: list[int] = []
        for position, frame in enumerate(flat.numpy()):
            row = self._rows.setdefault(hashlib.sha256(np.ascontiguousarray(frame).data).digest(), len(self._rows))
            if row == len(self._frames) + len(new):
                new.append(position)
            index[position] = row
        self._frames = torch.cat([self._frames, flat[new]])
        self._index = torch.cat([self._index, torch.as_tensor(index).view(frames.shape[:3])])

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Return the images of these comparisons, ``[m, 2, length + 1, height, width, channels]``."""
        index = self._index.index_select(dim, rows)
        return self._frames.index_select(0, index.flatten()).view(*index.shape, *self._frames.shape[1:])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these comparisons. Images move up in place: they are large."""
        self._index = self._index[list(rows)]
        used, index = torch.unique(self._index, return_inverse=True)
        for to, row in enumerate(used.tolist()):
            if to != row:
                self._frames[to] = self._frames[row]
        place = {row: to for to, row in enumerate(used.tolist())}
        self._rows = {name: place[row] for name, row in self._rows.items() if row in place}
        self._frames, self._index = self._frames[: len(used)], index.to(torch.int32)


@dataclass(frozen=True)
class StackedComparisons:
    """``n`` comparisons as tensors, left and right stacked on the second axis.

    Attributes:
        inputs: the networks' inputs (`RewardNetwork.encode`), each ``[n, 2, …]``; images as `UniqueFrames`.
        length: steps per fragment.
        preferences: ``[n]`` float32.
        weights: ``[members, n]`` float32.
        held_out: ``[n]`` bool.
        noise: label noise (see `Loss`), one number or ``[n]`` float32, set by `counting`.
        rationality: factor of each comparison's log odds: one number or ``[n]`` float32, set by `counting`.
    """

    inputs: dict[str, Any]
    length: int
    preferences: Tensor
    weights: Tensor
    held_out: Tensor
    noise: float | Tensor = 0.0
    rationality: float | Tensor = 1.0

    def __len__(self) -> int:
        return len(self.preferences)

    def flat_inputs(self, *, images: bool) -> dict[str, Tensor]:
        """Return the inputs ``[2 n, …]`` of all fragments, for statistics; with or without ``images``."""
        everything = torch.arange(len(self))
        return {
            name: (value if isinstance(value, Tensor) else value.index_select(0, everything)).flatten(0, 1)
            for name, value in self.inputs.items()
            if images or isinstance(value, Tensor)
        }

    @staticmethod
    def of(ensemble: RewardEnsemble, comparisons: Comparisons, held_out_share: float) -> StackedComparisons:
        """Stack ``comparisons``. Hashes of their ids decide which are held out, and the bootstrap weights."""
        settings, ids = ensemble.settings, comparisons.pairs.ids
        left, right = (ensemble.encode(side) for side in (comparisons.pairs.left, comparisons.pairs.right))
        weights: Array = np.ones((settings.ensemble_size, len(ids)), dtype=np.float32)
        if settings.bootstrap and settings.ensemble_size > 1:
            weights = bootstrap_weights(ids, settings.ensemble_size)
        return StackedComparisons(
            inputs={name: _kept(torch.stack([left[name], right[name]], 1)) for name in left},
            length=comparisons.pairs.left.length,
            preferences=torch.as_tensor(np.array(comparisons.preferences, dtype=np.float32)),
            weights=torch.as_tensor(weights),
            held_out=torch.as_tensor(stable_uniform(ids, "held out") < held_out_share),
        )

    def join(self, other: StackedComparisons) -> StackedComparisons:
        """Return these comparisons followed by the other ones. Invalidates this object."""
        return StackedComparisons(
            {name: _joined(value, other.inputs[name]) for name, value in self.inputs.items()},
            self.length,
            torch.cat([self.preferences, other.preferences]),
            torch.cat([self.weights, other.weights], 1),
            torch.cat([self.held_out, other.held_out]),
        )

    def counting(self, weights: Tensor, noise: float | Tensor, rationality: float | Tensor) -> StackedComparisons:
        """Return a copy with weights multiplied by ``weights`` ``[n]``, this label noise and this rationality.

        It shares all other tensors.
        """
        return replace(self, weights=self.weights * weights, noise=noise, rationality=rationality)

    def revised(self, rows: Tensor, labels: FitLabels) -> StackedComparisons:
        """Return a copy with the preferences and weights of these rows as methods made them."""
        preferences, factors = self.preferences.clone(), torch.ones_like(self.preferences)
        preferences[rows], factors[rows] = labels.preferences, labels.weights
        return replace(self, preferences=preferences, weights=self.weights * factors)

    def log_odds(self, differences: Tensor, rows: Tensor, limit: float | None) -> Tensor:
        """Return the log odds that the likelihood sees: scaled by the annotators' rationality, then clipped.

        ``differences [members, n]`` are left minus right returns of the comparisons ``rows [n]``.
        """
        if isinstance(self.rationality, Tensor):
            differences = differences * self.rationality.index_select(0, rows).to(differences.device)
        return differences if limit is None else differences.clamp(-limit, limit)

    def keep(self, rows: Sequence[int]) -> StackedComparisons:
        """Keep only these rows, in ascending order. Invalidates this object.

        Rows move up in place: inputs are large, and most withdrawn comparisons are among the newest.
        """
        inputs, index = {}, torch.tensor(rows)
        first = int((index == torch.arange(len(rows))).sum())  # those before stay
        for name, value in self.inputs.items():
            if isinstance(value, UniqueFrames):
                value.keep(rows)
                inputs[name] = value
                continue
            value[first : len(rows)] = value[index[first:]]
            inputs[name] = value[: len(rows)]
        kept = self.preferences[index], self.weights[:, index], self.held_out[index]
        return StackedComparisons(inputs, self.length, *kept)


def _kept(inputs: Tensor) -> Any:
    """Return inputs as they are kept: images each once."""
    return UniqueFrames(inputs) if inputs.dtype == torch.uint8 and inputs.dim() == 6 else inputs


def _joined(one: Any, other: Any) -> Any:
    if isinstance(one, UniqueFrames):
        one.extend(other.index_select(0, torch.arange(len(other))))
        return one
    return torch.cat([one, other])


def rows_of(values: float | Tensor, rows: Tensor, device: torch.device) -> float | Tensor:
    """Return ``values`` at these rows, on the device; one number unchanged."""
    return values.index_select(0, rows).to(device) if isinstance(values, Tensor) else values


logger = logging.getLogger(__name__)


class NothingToFitError(ValueError):
    """No comparison to fit to: none was added, all were withdrawn, or all have weight 0."""


class ComparisonSet:
    """Comparisons by pair id and annotator. Two annotators' answers to one pair are two comparisons.

    Attributes:
        held_out_share: the share.
        keys: pair id and annotator of each comparison, in the order they were added.
        annotators: their names.
        whose: ``[n]`` int64: who gave each comparison's answer, by the place among ``annotators``.
        weights: factor of each annotator's losses, see `weigh`.
        stacked: the comparisons as tensors; None if there are none.
    """

    def __init__(self, ensemble: RewardEnsemble, held_out_share: float):
        self._ensemble, self.held_out_share = ensemble, held_out_share
        self.weights: dict[str, float] = {}
        self._clear()

    def _clear(self) -> None:
        self.keys: list[tuple[str, str]] = []
        self.annotators: list[str] = []
        self.whose: IntArray = np.arange(0)
        self.stacked: StackedComparisons | None = None
        self._rows: dict[tuple[str, str], int] = {}
        """The place of each key."""
        self._chosen: list[Side] = []
        """The side that each annotator chose, as shown."""

    def __len__(self) -> int:
        return len(self.keys)

    def by_annotator(self, values: Mapping[str, float], default: float) -> FloatArray:
        """Return the value of each comparison's annotator, ``[n]`` float32."""
        return np.array([values.get(name, default) for name in self.annotators], np.float32)[self.whose]

    def add(self, comparisons: Comparisons) -> None:
        """Add comparisons.

        A comparison that is already present (same pair and annotator) keeps its position and takes the new answer. If
        ``comparisons`` contains one twice, the later answer counts.
        """
        rows = self._rows
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
        self._note(new)
        self._chosen += [chosen[i] for i in new.values()]

    def _note(self, keys: Collection[tuple[str, str]]) -> None:
        """Add these keys to those held."""
        self._rows |= {key: row for row, key in enumerate(keys, len(self.keys))}
        self.keys += keys
        places = {name: place for place, name in enumerate(self.annotators)}
        whose = [places.setdefault(name, len(places)) for _, name in keys]
        self.annotators, self.whose = list(places), np.concatenate([self.whose, np.array(whose, np.int64)])

    def withdraw(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove the comparisons with these `keys`. Ignores unknown keys."""
        gone = self._rows.keys() & set(keys)
        if self.stacked is None or not gone:
            return
        kept = [row for row, key in enumerate(self.keys) if key not in gone]
        stacked, names = self.stacked.keep(kept) if kept else None, [self.keys[row] for row in kept]
        chosen = [self._chosen[row] for row in kept]
        self._clear()
        self._note(names)
        self.stacked, self._chosen = stacked, chosen

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Multiply the loss of each comparison by its annotator's weight: 1 by default, 0 excludes the annotator.

        Comparisons of weight 0 still count for the normalisers (their fragments are as good as any), but not for losses,
        accuracies or the window.
        """
        self.weights = dict(weights)

    def apply(self, changes: Changes) -> None:
        """Apply changes from the store: remove withdrawn comparisons, add new answers, replace the weights."""
        self.withdraw(changes.withdrawn)
        if changes.comparisons is not None:
            self.add(changes.comparisons)
        self.weigh(changes.weights)

    def restore(self, keys: Sequence[Sequence[str]], changes: Changes) -> None:
        """Restore the comparisons ``keys`` of a checkpoint from everything in the store (`PreferenceStore.since` from 0).

        Raises:
            ValueError: none of them remains, and not all of them were withdrawn.
        """
        self._clear()
        self.weigh(changes.weights)
        withdrawn, held = set(changes.withdrawn), changes.comparisons
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
        names = [annotator or ANONYMOUS for annotator in self.annotators]
        whose = self.whose[counted.numpy()]
        newest = [(name, np.flatnonzero(whose == place)[-RECENT_ANSWERS:]) for place, name in enumerate(names)]
        counts = count_presses((name, self._chosen[row]) for name, at in newest for row in counted[at].tolist())
        return dict.fromkeys(names, Presses()) | counts
