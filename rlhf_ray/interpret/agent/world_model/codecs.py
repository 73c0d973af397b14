"""Encoders and decoders of observations. Images are cut into patches, so that all is plain matrix products, fast on a CPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

PATCH = 4
"""Side of the patches of the first stage."""
COARSE = 4
"""Each further stage halves the grid of patches, while its shorter side is longer than this."""


class ImageEncoder(nn.Module):
    """Normalised images ``[n, height, width, channels]`` to ``[n, cells, outputs]``: all cells are encoded alike."""

    def __init__(self, shape: tuple[int, ...], channels: int, outputs: int):
        super().__init__()
        grids, self.pad = _grids(shape[0], shape[1])
        widths = [shape[2], *(channels * min(2**stage, 2) for stage in range(len(grids)))]
        self.sides = [PATCH, *([2] * (len(grids) - 1))]
        self.stages = nn.ModuleList(
            layer(side * side * before, after)
            for side, before, after in zip(self.sides, widths, widths[1:], strict=False)
        )
        self.out = nn.Sequential(layer(widths[-1], widths[-1]), nn.Linear(widths[-1], outputs))

    def forward(self, images: Tensor) -> Tensor:
        """See the class."""
        grid = nn.functional.pad(images, self.pad) if any(self.pad) else images
        for side, stage in zip(self.sides, self.stages, strict=True):
            n, height, width, _ = grid.shape
            patches = grid.reshape(n, height // side, side, width // side, side, -1).transpose(2, 3)
            grid = stage(patches.flatten(3))
        encoded: Tensor = self.out(grid).flatten(1, 2)
        return encoded


class ImageDecoder(nn.Module):
    """Cells ``[n, cells, inputs]`` to normalised images ``[n, height, width, channels]``."""

    def __init__(self, shape: tuple[int, ...], channels: int, inputs: int):
        super().__init__()
        self.shape = shape
        grids, _ = _grids(shape[0], shape[1])
        widths = [*(channels * min(2**stage, 2) for stage in reversed(range(len(grids)))), shape[2]]
        self.sides = [*([2] * (len(grids) - 1)), PATCH]
        self.grid = grids[-1]
        self.start = nn.Linear(inputs, widths[0], bias=False)
        self.place = nn.Parameter(torch.zeros(math.prod(self.grid), widths[0]))
        self.middle = nn.Sequential(nn.LayerNorm(widths[0]), nn.SiLU(), layer(widths[0], widths[0]))
        self.stages = nn.ModuleList(
            nn.Linear(before, side * side * after)
            for side, before, after in zip(self.sides, widths, widths[1:], strict=False)
        )

    def forward(self, cells: Tensor) -> Tensor:
        """See the class."""
        flat: Tensor = self.middle(self.start(cells) + self.place)
        grid = flat.view(-1, *self.grid, flat.shape[-1])
        for number, (side, stage) in enumerate(zip(self.sides, self.stages, strict=True)):
            patches = stage(nn.functional.silu(grid) if number else grid)
            patches = patches.unflatten(3, (side, side, -1))  # [n, rows, columns, side, side, channels]
            grid = patches.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return grid[:, : self.shape[0], : self.shape[1]]


class VectorEncoder(nn.Module):
    """Normalised vectors ``[n, …]`` to one cell, ``[n, 1, outputs]``."""

    def __init__(self, shape: tuple[int, ...], hidden: int, outputs: int):
        super().__init__()
        self.layers = nn.Sequential(layer(math.prod(shape), hidden), layer(hidden, hidden), nn.Linear(hidden, outputs))

    def forward(self, vectors: Tensor) -> Tensor:
        """See the class."""
        encoded: Tensor = self.layers(vectors.flatten(1))[:, None]
        return encoded


class VectorDecoder(nn.Module):
    """One cell ``[n, 1, inputs]`` to normalised vectors ``[n, …]``."""

    def __init__(self, shape: tuple[int, ...], hidden: int, inputs: int):
        super().__init__()
        self.layers = nn.Sequential(layer(inputs, hidden), layer(hidden, hidden), nn.Linear(hidden, math.prod(shape)))
        self.shape = shape

    def forward(self, cells: Tensor) -> Tensor:
        """See the class."""
        decoded: Tensor = self.layers(cells[:, 0]).unflatten(1, self.shape)
        return decoded


def coarse_grid(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns of the cells of an image."""
    return _grids(shape[0], shape[1])[0][-1]


def layer(inputs: int, outputs: int) -> nn.Sequential:
    """Build a hidden layer: linear, normalised, SiLU."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.SiLU())


def _grids(height: int, width: int) -> tuple[list[tuple[int, int]], tuple[int, int, int, int, int, int]]:
    """Return rows and columns of patches after each stage, and how to pad ``[…, height, width, channels]`` for that."""
    halvings = max(0, math.ceil(math.log2(min(height, width) / (PATCH * COARSE))))
    side = PATCH * 2**halvings
    rows, columns = math.ceil(height / side), math.ceil(width / side)
    grids = [(rows * 2**left, columns * 2**left) for left in reversed(range(halvings + 1))]
    return grids, (0, 0, 0, columns * side - width, 0, rows * side - height)
