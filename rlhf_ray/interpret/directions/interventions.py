"""Interventions: change an agent's memory or a layer along the components of a basis, in the real environment or a world model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import MEMORY, Edit
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.directions.directions import NOT_LINEAR, Directions

Op = Literal["ablate_mean", "ablate_midpoint", "swap", "reflect", "scale", "steer"]


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
        amount: see ``op``: a number, or one per component, or in a layer of images ``[*positions, components]``.
        when: the steps of the episode at which to change them; None: all.
        site: `MEMORY`, changed after the step's update and before actor and critic read it; or a layer's name.
    """

    basis: Directions
    components: Sequence[int]
    op: Op
    _: KW_ONLY
    amount: float | FloatArray | None = None
    when: Collection[int] | None = None
    site: str = MEMORY

    def __post_init__(self) -> None:
        if self.op not in get_args(Op):
            raise SettingError(f"op is {self.op!r}; it must be one of {', '.join(get_args(Op))}.")
        count, components = len(self.basis), list(self.components)
        if not components or len(set(components)) < len(components) or not set(components) <= set(range(count)):
            raise SettingError(f"components are {components}; give different numbers from 0 to {count - 1}.")
        if self.op == "swap" and len(components) != 2:
            raise SettingError(f"components are {components}; swap exchanges the scores of two components: give two.")
        if self.op == "swap" and self.amount is not None:
            raise SettingError(f"amount is {self.amount}; swap takes none.")
        if self.op in ("scale", "steer") and self.amount is None:
            raise SettingError(f"amount is None; {self.op} needs one.")
        if (shape := np.shape(0 if self.amount is None else self.amount)) and shape[-1] != len(components):
            raise SettingError(
                f"amount has shape {shape}; {self.op} of {len(components)} components needs a number or one per component."
            )

    @property
    def name(self) -> str:
        """The intervention in words, for tables."""
        return f"{self.op} {', '.join(self.basis.names[each] for each in self.components)}"

    def edit(self, step: int | IntArray, rows: IntArray | None = None) -> Edit:
        """Return the change of the site's values at one step: see `Hook.edit`."""
        chosen = list(self.components)

        def apply(values: Tensor) -> Tensor:
            n = len(values)
            steps = np.broadcast_to(np.asarray(step, np.int64), n)
            on = np.array([self.when is None or int(each) in self.when for each in steps], bool)
            if not on.any():
                return values
            arranged = self._arrange(values)
            vectors = self.basis.filters[chosen], self.basis.patterns[chosen], self.basis.center
            filters, moves, center = (
                torch.as_tensor(np.asarray(of, np.float64), device=values.device) for of in vectors
            )
            scores = (arranged - center) @ filters.T
            if self.basis.kind in NOT_LINEAR:
                flat = arranged.detach().cpu().numpy().reshape(-1, arranged.shape[-1])
                exact = self.basis.encode(flat)[:, chosen].reshape(scores.shape)
                scores = scores + (torch.as_tensor(exact, device=values.device) - scores.detach())
            change = self._target(scores) - scores
            if not on.all():
                change = change * torch.as_tensor(on, device=values.device).view(n, *[1] * (change.dim() - 1))
            moved = (arranged + change @ moves).to(values.dtype)
            return moved.reshape(values.shape) if moved.dim() == 2 else moved.movedim(-1, 1)

        return apply

    def _target(self, scores: Tensor) -> Tensor:
        if self.op == "swap":
            return scores.flip(-1)
        default = self.basis.means if self.op == "ablate_mean" else self.basis.midpoints
        given = np.asarray(default)[list(self.components)] if self.amount is None else self.amount
        amount = torch.as_tensor(given, dtype=scores.dtype, device=scores.device)
        if self.op == "reflect":
            return 2.0 * amount - scores
        if self.op == "scale":
            return amount * scores
        if self.op == "steer":
            return scores + amount
        return amount.expand_as(scores)

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
