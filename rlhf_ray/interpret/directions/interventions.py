"""Interventions: change an agent's memory or a layer along the components of a basis, in the real environment or a world model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import MEMORY, Edit
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.directions.directions import NOT_LINEAR, Directions, halfway
from rlhf_ray.interpret.directions.labelled import midpoints_of
from rlhf_ray.interpret.directions.labels import usable

Op = Literal["ablate_mean", "ablate_midpoint", "swap", "reflect", "scale", "steer", "patch"]
Vector = Literal["pattern", "filter"]
When = Collection[int] | Callable[[IntArray, FloatArray], BoolArray] | None
"""None: always; some steps of the episode; or a predicate on steps ``[n]`` and the components' scores ``[n, k]``."""


@dataclass(frozen=True)
class Intervention:
    """A change of some components of a basis. A `Hook` of `play` and, by `edits_for`, of `simulate`.

    A component's score is read by its filter, and changed by a move along its pattern, which leaves the scores of all other
    components of a linear kind as they are. NMF and sparse features are read by `Directions.encode`, with the filter's gradient.
    In a layer of images, directions of channels are applied at each position on its own.

    Attributes:
        basis: the basis; its components have the size of the memory or the layer (channels, or all values).
        components: the numbers of the components to change.
        op: * ablate_mean: set the scores to ``amount``, by default their mean, `Directions.means`.
            * ablate_midpoint: set them to ``amount``, by default halfway between two classes, `Directions.midpoints`.
            * swap: exchange the scores of two components.
            * reflect: mirror them about ``amount``, by default `Directions.midpoints`.
            * scale: multiply them by ``amount``.
            * steer: add ``amount``.
            * patch: set them to those of another episode at the same step, ``amount`` ``[episodes, steps, components]``
              (`patch_from`); NaN leaves the score as it is, and so does a step beyond the last.
        amount: see ``op``: a number, or one per component, or in a layer of images ``[*positions, components]``.
        when: when to change them.
        site: `MEMORY`, changed after the step's update and before actor and critic read it; or a layer's name.
        vector: "filter" moves along the filters instead, by the smallest change that gives the same scores. It disturbs other
            components; it is there to be compared with (Haufe et al. 2014).
    """

    basis: Directions
    components: Sequence[int]
    op: Op
    _: KW_ONLY
    amount: float | FloatArray | None = None
    when: When = None
    site: str = MEMORY
    vector: Vector = "pattern"

    def __post_init__(self) -> None:
        if self.op not in get_args(Op):
            raise SettingError(f"op is {self.op!r}; it must be one of {', '.join(get_args(Op))}.")
        if self.vector not in get_args(Vector):
            raise SettingError(f"vector is {self.vector!r}; it must be 'pattern' or 'filter'.")
        count, components = len(self.basis), list(self.components)
        if (
            not components
            or len(set(components)) < len(components)
            or not all(0 <= component < count for component in components)
        ):
            raise SettingError(f"components are {components}; give different numbers from 0 to {count - 1}.")
        if self.op == "swap" and len(components) != 2:
            raise SettingError(f"components are {components}; swap exchanges the scores of two components: give two.")
        if self.op == "swap" and self.amount is not None:
            raise SettingError(f"amount is {self.amount}; swap takes none.")
        if self.op in ("scale", "steer", "patch") and self.amount is None:
            raise SettingError(f"amount is None; {self.op} needs one.")
        if self.amount is not None:
            shape, needed = np.shape(self.amount), "a number or one per component"
            if self.op == "patch":
                needed = "[episodes, steps, components], and `patch_from` makes those of episodes"
            if (self.op == "patch" and len(shape) != 3) or (shape and shape[-1] != len(components)):
                raise SettingError(
                    f"amount has shape {shape}; {self.op} of {len(components)} components needs {needed}."
                )

    @property
    def name(self) -> str:
        """The intervention in words, for tables."""
        return f"{self.op} {', '.join(self.basis.names[each] for each in self.components)}"

    def edit(self, step: int | IntArray, rows: IntArray | None = None) -> Edit:
        """Return the change of the site's values at one step.

        Args:
            step: steps since the start of the episode, of all rows or of each.
            rows: the episodes that the rows are, which choose a patch's source; None: 0 to n-1.
        """

        def apply(values: Tensor) -> Tensor:
            n = len(values)
            steps = np.broadcast_to(np.asarray(step, np.int64), n)
            if isinstance(self.when, Collection) and not any(number in self.when for number in set(steps.tolist())):
                return values
            arranged = self._arrange(values)
            filters, moves, center = (torch.as_tensor(vector, device=values.device) for vector in self._vectors)
            scores = (arranged - center) @ filters.T
            if self.basis.kind in NOT_LINEAR:
                flat = arranged.detach().cpu().numpy().reshape(-1, arranged.shape[-1])
                exact = self.basis.encode(flat)[:, list(self.components)].reshape(scores.shape)
                scores = scores + (torch.as_tensor(exact, device=values.device) - scores.detach())
            change = self._target(scores, steps, np.arange(n) if rows is None else rows) - scores
            on = self._on(steps, scores)
            if not on.all():
                change = change * torch.as_tensor(on, device=values.device).view(n, *[1] * (change.dim() - 1))
            return self._restore((arranged + change @ moves).to(values.dtype), values)

        return apply

    @cached_property
    def _vectors(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Filters and moves ``[k, size]`` of the components, and the center ``[size]``, float64."""
        chosen = list(self.components)
        filters = np.asarray(self.basis.filters, np.float64)[chosen]
        moves: FloatArray = np.asarray(self.basis.patterns, np.float64)[chosen]
        if self.vector == "filter":
            moves = np.linalg.pinv(filters).T
        return filters, moves, np.asarray(self.basis.center, np.float64)

    def _target(self, scores: Tensor, steps: IntArray, rows: IntArray) -> Tensor:
        if self.op == "swap":
            return scores.flip(-1)
        if self.op == "patch":
            return self._patched(scores, steps, rows)
        default = self.basis.means if self.op == "ablate_mean" else self.basis.midpoints
        amount = torch.as_tensor(
            np.asarray(default)[list(self.components)] if self.amount is None else self.amount,
            dtype=scores.dtype,
            device=scores.device,
        )
        if self.op == "reflect":
            return 2.0 * amount - scores
        if self.op == "scale":
            return amount * scores
        if self.op == "steer":
            return scores + amount
        return amount.expand_as(scores)

    def _patched(self, scores: Tensor, steps: IntArray, rows: IntArray) -> Tensor:
        source = np.asarray(self.amount, np.float64)
        there = steps < source.shape[1]
        source_scores = np.where(there[:, None], source[rows, np.minimum(steps, source.shape[1] - 1)], np.nan)
        target = torch.as_tensor(source_scores, device=scores.device).view(len(rows), *[1] * (scores.dim() - 2), -1)
        return torch.where(target.isnan(), scores, target)

    def _on(self, steps: IntArray, scores: Tensor) -> BoolArray:
        if self.when is None:
            return np.ones(len(steps), bool)
        if isinstance(self.when, Collection):
            return np.array([int(step) in self.when for step in steps], bool)
        seen = scores.detach()
        pooled = seen.flatten(1, -2).mean(1) if seen.dim() > 2 else seen
        return np.asarray(self.when(steps, pooled.cpu().numpy()), bool)

    def _arrange(self, values: Tensor) -> Tensor:
        """Put channels last: ``[n, *positions, size]`` float64."""
        size = len(self.basis.center)
        if values[0].numel() == size:
            return values.flatten(1).double()
        if values.dim() > 2 and values.shape[1] == size:
            return values.movedim(1, -1).double()
        raise SettingError(
            f"The basis has vectors of length {size}, but site {self.site!r} has shape {list(values.shape[1:])}: "
            "fit the basis to that site."
        )

    def _restore(self, arranged: Tensor, like: Tensor) -> Tensor:
        return arranged.reshape(like.shape) if arranged.dim() == 2 else arranged.movedim(-1, 1)


def midpoints(basis: Directions, values: FloatArray, labels: Array | None = None) -> FloatArray:
    """Return the score ``[k]`` of each component that is between its two ends, like `Directions.midpoints`.

    With ``labels`` ``[n]`` (two classes, or numbers above and below their median; NaN where unknown), it is halfway between the
    classes' mean scores. Without, halfway between the scores' 5 % and 95 % quantiles, however often each end occurs.
    """
    scores = basis.encode(np.asarray(values, np.float64))
    if labels is None:
        return halfway(scores)
    if not usable(labels):
        raise SettingError("labels are of one class; midpoints are between two: give labels that vary, or None.")
    return midpoints_of(scores, [labels] * len(basis))


def patch_from(
    episodes: Episodes,
    basis: Directions,
    components: Sequence[int],
    sources: IntArray | None = None,
    site: str = MEMORY,
) -> FloatArray:
    """Return the ``amount`` of a patch ``[episodes, steps, components]``: the scores at each step, NaN after an episode's end.

    Args:
        episodes: the sources, whole; layers' values come from their activations.
        basis: the basis.
        components: the components to patch.
        sources: which source each episode is patched from; None: each from itself.
        site: `MEMORY` or a layer without positions.
    """
    values = episodes.memory[:, 1:] if site == MEMORY else episodes.activations[site]
    flat = values.reshape(-1, int(np.prod(values.shape[2:], dtype=np.int64)))
    scores = basis.encode(flat.astype(np.float64))[:, list(components)].reshape(*values.shape[:2], -1)
    scores[~episodes.real] = np.nan
    return scores if sources is None else scores[np.asarray(sources, np.int64)]
