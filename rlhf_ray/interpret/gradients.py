"""Gradients of any function of tensors, with captum: plain, times the input, SmoothGrad, integrated. Both wings use them.

A function takes one tensor ``[n, …]`` per input and returns ``[n]``; row ``i`` depends on row ``i`` of each input alone.
captum is imported late: it takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Function = Callable[..., Tensor]
Tensors = tuple[Tensor, ...]

BATCH = 256
"""Rows per backward pass. Bounds memory for images."""


def all_taking_part(function: Function) -> Function:
    """Return ``function`` with every argument taking part, so that those it does not use have gradient 0."""

    def forward(*arguments: Tensor) -> Tensor:
        unused = sum((of.flatten(1).sum(1) if of.dim() > 1 else of) * 0.0 for of in arguments)
        return function(*arguments) + unused

    return forward


def gradient(function: Function, inputs: Tensors) -> Tensors:
    """Return ``d function / d input`` for each input."""
    from captum.attr import Saliency

    found: Tensors = Saliency(all_taking_part(function)).attribute(_leaves(inputs), abs=False)
    return found


def input_times_gradient(function: Function, inputs: Tensors) -> Tensors:
    """Return each input times its gradient."""
    from captum.attr import InputXGradient

    found: Tensors = InputXGradient(all_taking_part(function)).attribute(_leaves(inputs))
    return found


def smooth_gradient(
    function: Function, inputs: Tensors, scales: Sequence[Tensor | float], *, noise: float, samples: int, seed: int
) -> Tensors:
    """Return the mean gradient over noisy copies of the inputs, times the scales (SmoothGrad, Smilkov et al. 2017).

    Args:
        function: the function.
        inputs: its arguments.
        scales: what counts as one unit of each input, broadcast against it.
        noise: standard deviation of the noise in these units.
        samples: noisy copies.
        seed: of the noise.
    """
    from captum.attr import NoiseTunnel, Saliency

    forward = all_taking_part(function)

    # Noise has one size per argument: attribute to deviations from the inputs, in units of their scales.
    def moved(*by: Tensor) -> Tensor:
        return forward(*(of + z * scale for of, z, scale in zip(inputs, by, scales, strict=True)))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found: Tensors = NoiseTunnel(Saliency(moved)).attribute(
            tuple(torch.zeros_like(of).requires_grad_() for of in inputs), nt_type="smoothgrad", nt_samples=samples,
            nt_samples_batch_size=1, stdevs=noise, abs=False,
        )  # fmt: skip
    return found


def integrated_gradients(
    function: Function, inputs: Tensors, baselines: Tensors, points: int, rows: Tensor | None = None
) -> Tensors:
    """Return the gradients' means on the way from the baselines, times the way (Sundararajan et al. 2017).

    Args:
        function: the function.
        inputs: its arguments.
        baselines: where the way starts, ``[1, …]`` or ``[n, …]`` each.
        points: points on the way.
        rows: if given, ``[n]``: the function gets the rows that it computes as one more argument, since their order changes.
    """
    from captum.attr import IntegratedGradients

    forward = all_taking_part(function) if rows is None else _with_rows(function)
    found: Tensors = IntegratedGradients(forward).attribute(
        _leaves(inputs), baselines=baselines, n_steps=points, method="riemann_middle",
        internal_batch_size=max(BATCH, len(inputs[0])), additional_forward_args=rows,
    )  # fmt: skip
    return found


def _with_rows(function: Function) -> Function:
    def forward(*arguments: Tensor) -> Tensor:
        *inputs, rows = arguments
        return all_taking_part(lambda *of: function(*of, rows))(*inputs)

    return forward


def _leaves(inputs: Tensors) -> Tensors:
    return tuple(of.detach().requires_grad_() for of in inputs)
