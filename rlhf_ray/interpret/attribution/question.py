"""A question, a function of some inputs that attribution explains, and a method, which explains it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.errors import SettingError

Maps = dict[str, FloatArray]
"""An attribution: for each input ``[n, *shape]`` float64. The sum over a part is in units of the function's output."""


class Question(ABC):
    """A number that a function computes for each moment, with what its inputs usually are.

    Row ``i`` of the output depends on row ``i`` of each input alone. Rewards: `rlhf_ray.interpret.reward.question.RewardQuestion`;
    what an agent computes: `rlhf_ray.interpret.agent.questions.AgentQuestion`.

    Attributes:
        seed: seeds every draw.
        words: what texts call each input.
        output: what texts call the output.
        noise, noise_seed: SmoothGrad's noise, in `scales`, and what seeds it.
        names: the inputs that the function may depend on, in order.
        background: the moments that give typical values, scales and donors.
        images: the inputs that are images, ``[height, width, channels]``.
        planes: names of the first channels of these that hold one number each.
        cells: ``(rows, columns)`` of inputs that are grids; None if they aren't.
        coded: whether inputs are codes, whose mean means nothing: cells of a grid, or states of a table.
        typical: typical values as arguments of `ask`, ``[1, …]`` each.
        scales: how much each element of these arguments typically differs, broadcast against them.
        unit: size of a typical change of the output; 0 if it is constant.
    """

    seed: int
    words: ClassVar[Mapping[str, str]]
    output: ClassVar[str]
    noise: ClassVar[float]

    @property
    @abstractmethod
    def names(self) -> list[str]: ...

    @property
    @abstractmethod
    def background(self) -> Any: ...

    @property
    @abstractmethod
    def images(self) -> tuple[str, ...]: ...

    @property
    def planes(self) -> tuple[str, ...]:
        return ()

    @property
    def cells(self) -> tuple[int, int] | None:
        return None

    @property
    def coded(self) -> bool:
        return self.cells is not None

    @property
    @abstractmethod
    def typical(self) -> dict[str, Tensor]: ...

    @property
    @abstractmethod
    def scales(self) -> dict[str, Tensor]: ...

    @property
    @abstractmethod
    def unit(self) -> float: ...

    @property
    def noise_seed(self) -> int:
        return self.seed

    @abstractmethod
    def inputs(self, moments: Any) -> dict[str, Tensor]:
        """Return the inputs as arguments of `ask`: new float32 tensors ``[n, …]``, without gradients yet."""

    @abstractmethod
    def ask(self, moments: Any, inputs: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the function's output ``[n]`` with gradients. ``inputs`` take the place of the moments' own."""

    @abstractmethod
    def parts(self, name: str) -> tuple[tuple[str, ...], BoolArray]:
        """Return the parts of an input: their names, and masks ``[parts, *shape]`` of the shape of its maps."""

    def arrays(self, moments: Any) -> dict[str, Array]:
        """Return the inputs as they are, in their own types, ``[n, …]``."""
        return {name: values.numpy() for name, values in self.inputs(moments).items()}

    def usual(self, name: str) -> FloatArray:
        """Return an input's typical value as an array."""
        return np.asarray(self.typical[name][0].numpy())

    def values(self, moments: Any) -> FloatArray:
        """Return the function's output ``[n]`` float64. Needs no gradients."""
        with torch.no_grad():
            return np.asarray(self.ask(moments).double().numpy())

    def changed(self, moments: Any, name: str, values: Array) -> FloatArray:
        """Return the output ``[draws, n]`` with other values ``[draws, n, …]`` of an input, rounded to its own type."""
        kind = torch.float32 if name in self.images else None
        with torch.no_grad():
            outputs = [self.ask(moments, {name: torch.as_tensor(draw, dtype=kind)}) for draw in values]
        return np.asarray(torch.stack(outputs).double().numpy())

    def maps(self, tensors: Mapping[str, Tensor]) -> Maps:
        """Convert attributions to the arguments of `ask` to maps."""
        return {name: tensors[name].detach().double().numpy() for name in self.names}

    def why_no_gradients(self) -> str | None:
        """Return why `ask` has no gradients, in one sentence; None if it does."""
        return None

    def layers(self) -> dict[str, nn.Module]:
        """Return the layers that `ask` runs, by name. Empty without layers."""
        return {}

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the generator for ``purpose``."""
        return np.random.default_rng([self.seed, *purpose.encode()])

    def function(self, moments: Any) -> Callable[..., Tensor]:
        """Return the output as a function of the inputs in order; a last argument says which rows of the moments."""

        def output(*arguments: Tensor) -> Tensor:
            *values, rows = arguments
            return self.ask(moments[rows.numpy()], dict(zip(self.names, values, strict=True)))

        return output

    def gap(self, moments: Any, maps: Mapping[str, FloatArray]) -> FloatArray:
        """Return how far each map's sum is from the output's difference to that of typical inputs, ``[n]``."""
        with torch.no_grad():
            output = self.ask(moments)
            usual = {name: values.expand(len(moments), *values.shape[1:]) for name, values in self.typical.items()}
            difference = (output - self.ask(moments, usual)).double().numpy()
        return np.asarray(np.abs(sum(values.reshape(len(values), -1).sum(1) for values in maps.values()) - difference))

    @cached_property
    def part_names(self) -> list[str]:
        """Names of all parts of all inputs, in the order of `part_sums`."""
        return [part for name in self.names for part in self.parts(name)[0]]

    def part_sums(self, maps: Maps) -> FloatArray:
        """Sum maps within each part of each input: ``[n, parts]``."""
        masks = {name: self.parts(name)[1] for name in self.names}
        flat = {name: mask.reshape(len(mask), -1).T.astype(np.float64) for name, mask in masks.items()}
        return np.concatenate([maps[name].reshape(len(maps[name]), -1) @ flat[name] for name in self.names], 1)

    @cached_property
    def varies(self) -> BoolArray:
        """Whether each part takes more than one value in the background, ``[parts]``."""
        varying = []
        for name, values in self.arrays(self.background).items():
            changing = np.asarray((values != values[:1]).any(0))
            varying += [bool((changing & mask).any()) for mask in self.parts(name)[1]]
        return np.array(varying)


class Method(ABC):
    """An attribution method: how much each element of each input contributes to what a function computes.

    Attributes:
        name: name in tables and file names; by default the class's.
        title: what texts call it; by default the name.
        signed: whether the maps tell what raises the output from what lowers it. The sign of a gradient does not, since it says
            nothing about the input's own value: reports about rewards show its size.
        complete: whether the maps should add up to the difference between the output and that of typical inputs.
    """

    name: str
    title: str
    signed: bool = True
    complete: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Name the method."""
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__
        if "title" not in vars(cls):
            cls.title = cls.name if isinstance(cls.name, str) else cls.__name__

    def why_not(self, question: Question) -> str | None:
        """Return why the method does not apply, in one sentence; None if it does."""
        return None

    @abstractmethod
    def attribute(self, question: Question, moments: Any) -> Maps:
        """Compute the map of each of ``question.names``, ``[n, *shape]`` in units of the output.

        ``moments`` are what the question can be asked about: `Transitions` for rewards, `WorldStepBatch` for agents.
        """


def attribute(method: Method, question: Question, moments: Any) -> Maps:
    """Compute a method's maps and check their names, shapes and values.

    Raises:
        SettingError: they are not those that `Method.attribute` promises.
    """
    maps = method.attribute(question, moments)
    wanted = {name: (len(moments), *question.parts(name)[1].shape[1:]) for name in question.names}
    shapes = {name: np.shape(values) for name, values in maps.items()}
    if shapes != wanted:
        raise SettingError(f"The attribution method {method.name!r} returned maps {shapes}; it must return {wanted}.")
    if not all(np.isfinite(values).all() for values in maps.values()):
        raise SettingError(f"The attribution method {method.name!r} returned maps that are not finite.")
    return {name: np.asarray(maps[name], np.float64) for name in question.names}


def contributions(method: Method, question: Question, moments: Any) -> Maps:
    """Compute a method's maps; their sizes alone if their signs tell nothing."""
    maps = attribute(method, question, moments)
    return maps if method.signed else {name: np.abs(values) for name, values in maps.items()}
