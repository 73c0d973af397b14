"""How gradient steps are taken: optimisers, parameters as one vector, products, parts side by side on the cores, and precision.

torch's own Adam and AdamW import its compiler only to mark their methods as not compiled. That import takes longer than importing
torch itself, in every process that takes a gradient step; ours do without.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.system import torch_threads, usable_cores


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method without torch's wrapper."""
    return getattr(method, "__wrapped__", method)


class _NotCompiled(torch.optim.Optimizer):
    zero_grad = _plain(torch.optim.Optimizer.zero_grad)
    state_dict = _plain(torch.optim.Optimizer.state_dict)
    load_state_dict = _plain(torch.optim.Optimizer.load_state_dict)
    add_param_group = _plain(torch.optim.Optimizer.add_param_group)


class Adam(_NotCompiled, torch.optim.Adam):
    """`torch.optim.Adam`."""

    step = torch.no_grad()(_plain(torch.optim.Adam.step))


class AdamW(_NotCompiled, torch.optim.AdamW):
    """`torch.optim.AdamW`."""

    step = torch.no_grad()(_plain(torch.optim.AdamW.step))


class FlatParameters:
    """The values and gradients of parameters in one vector each.

    The parameters keep their names, shapes and places in their modules; their data and gradients become views. Loading a state into
    the modules changes the vectors.

    Args:
        parameters: float32, on one device. Later they must stay there.

    Attributes:
        values, gradient: ``[size]`` float32, the parameters one after the other.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]):
        self.parameters = list(parameters)
        self.values = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        self.gradient = torch.zeros_like(self.values)
        self._values, self._gradients = self.views(self.values), self.views(self.gradient)
        for parameter, value in zip(self.parameters, self._values, strict=True):
            parameter.data = value
        self.attach_gradients()

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return the parts of a vector ``[size]`` that belong to the parameters, in their shapes."""
        parts = torch.split(vector, [parameter.numel() for parameter in self.parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]

    def attach_gradients(self) -> None:
        """Let `backward` add to `gradient`. Call it after anyone else has set the gradients of the parameters."""
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient

    def collect_gradients(self) -> None:
        """Copy gradients that `backward` has put elsewhere into `gradient`; 0 where there is none."""
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            if parameter.grad is None:
                gradient.zero_()
            elif parameter.grad is not gradient:
                gradient.copy_(parameter.grad)

    def view_of(self, first: nn.Parameter, second: nn.Parameter, vector: Tensor) -> Tensor:
        """Return the part of ``vector`` of two parameters of one shape, one right after the other, as ``[2, *shape]``."""
        starts = [self._start(parameter) for parameter in (first, second)]
        assert starts[1] == starts[0] + first.numel()
        assert first.shape == second.shape
        return vector[starts[0] : starts[0] + 2 * first.numel()].view(2, *first.shape)

    def part_of(self, parameter: nn.Parameter, vector: Tensor) -> Tensor:
        """Return the part of ``vector`` of a parameter, in its shape."""
        start = self._start(parameter)
        return vector[start : start + parameter.numel()].view(parameter.shape)

    def _start(self, wanted: nn.Parameter) -> int:
        start = 0
        for parameter in self.parameters:
            if parameter is wanted:
                return start
            start += parameter.numel()
        raise KeyError("not one of these parameters")


class _Flat(torch.optim.Optimizer):
    """What `FlatAdam` and `FlatAdamW` have in common: one operation for each step, and torch's state for each parameter.

    Beside torch's, there is a ``pace``: steps are of this share of the learning rate.
    """

    fused_step: Any
    """torch's function that takes the step."""

    def __init__(self, flat: FlatParameters, **options: Any):
        super().__init__(flat.parameters, **options)
        self.flat = flat
        self._first, self._second = torch.zeros_like(flat.values), torch.zeros_like(flat.values)
        self._steps = torch.zeros((), device=flat.values.device)
        self.pace = 1.0
        self._share_state()

    @property
    def pace(self) -> float:
        """The share of the learning rate; it is saved with the state."""
        return float(self.param_groups[0].get("pace", 1.0))  # torch's own state has none

    @pace.setter
    def pace(self, pace: float) -> None:
        self.param_groups[0]["pace"] = pace

    def restart(self) -> None:
        """Forget all steps, as if the parameters were new."""
        for vector in (self._first, self._second, self._steps):
            vector.zero_()
        self.pace = 1.0

    def _share_state(self) -> None:
        """Make the vectors the state of the parameters."""
        moments = zip(self.flat.views(self._first), self.flat.views(self._second), strict=True)
        for parameter, (first, second) in zip(self.flat.parameters, moments, strict=True):
            self.state[parameter] = {"step": self._steps, "exp_avg": first, "exp_avg_sq": second}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See torch."""
        super().load_state_dict(state_dict)
        loaded = [self.state[parameter] for parameter in self.flat.parameters]
        if all(loaded):
            self._first.copy_(torch.cat([state["exp_avg"].flatten() for state in loaded]))
            self._second.copy_(torch.cat([state["exp_avg_sq"].flatten() for state in loaded]))
            self._steps.fill_(float(loaded[0]["step"]))
        self._share_state()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step along the parameters' gradients."""
        self.flat.collect_gradients()
        self.take_step()

    def take_step(self) -> None:
        """Take a step along `FlatParameters.gradient`."""
        group = self.param_groups[0]
        type(self).fused_step(
            [self.flat.values],
            [self.flat.gradient],
            [self._first],
            [self._second],
            [],
            [self._steps.add_(1.0)],
            lr=group["lr"] * self.pace,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=None,
        )


class FlatAdam(_Flat, Adam):
    """Adam on `FlatParameters`.

    Args:
        flat: the parameters.
        options: arguments of `torch.optim.Adam`.
    """

    fused_step = staticmethod(torch._fused_adam_)


class FlatAdamW(_Flat, AdamW):
    """AdamW on `FlatParameters`.

    Args:
        flat: the parameters.
        options: arguments of `torch.optim.AdamW`.
    """

    fused_step = staticmethod(torch._fused_adamw_)


QUICKER = 1.5
"""Factor of a change of pace."""


def next_pace(pace: float, divergence: float, target: float) -> float:
    """Return the share of the learning rate, at most 1, for the next update: smaller after one that has moved the policy too far.

    Changes are by a factor, where the divergence is over twice or under half of the target (Rudin et al. 2021, "Learning to walk
    in minutes", whose rate has no bound). One that is no number changes nothing.

    Args:
        pace: the share in the last update.
        divergence: the mean Kullback-Leibler divergence, in nats, of the policy, after the update, from the one that acted.
        target: the divergence that updates should have.
    """
    if divergence > 2.0 * target:
        return pace / QUICKER
    return min(1.0, pace * QUICKER) if divergence < target / 2.0 else pace


def shuffled(
    count: int,
    epochs: int,
    minibatch_size: int,
    *,
    shuffle: bool = True,
    minibatches: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the rows of each minibatch of ``epochs`` passes over ``count`` rows: ``[minibatches, size]`` int64.

    All minibatches have the same size; one may span two passes. With ``minibatches``, there are so many, whatever ``epochs`` says.
    Each pass has an order of its own if ``shuffle``, drawn by ``generator`` or torch's own.
    """
    number = minibatches or -(-epochs * count // minibatch_size)
    passes = -(-number * minibatch_size // count)
    orders = [torch.randperm(count, generator=generator) if shuffle else torch.arange(count) for _ in range(passes)]
    return torch.cat(orders)[: number * minibatch_size].view(number, minibatch_size)


_P = TypeVar("_P")
_R = TypeVar("_R")

Run = Callable[[Callable[[_P], _R], Sequence[_P]], Iterable[_R]]
"""Calls a function with each part, in their order: `in_parallel`, or `map` for one after the other."""


def leave_cores_to_parts() -> None:
    """Let torch and numpy use one thread in this process, unless the environment variable ``OMP_NUM_THREADS`` says otherwise.

    By default it has as many as there are cores, which wait for each other, and change the last bits of sums.

    Raises:
        SettingError: ``OMP_NUM_THREADS`` is no number.
    """
    if torch_threads() is None:
        from threadpoolctl import threadpool_limits  # sets an environment variable when it is imported

        torch.set_num_threads(1)
        threadpool_limits(1, "blas")


def multiply(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Write the product of two matrices, or of a stack of each, to ``out``, without gradients. Return ``out``.

    On a CPU it is numpy's: OpenBLAS has kernels for each kind of CPU. MKL, which torch has, is slower on AMD CPUs,
    most of all where a stack of matrices is multiplied by columns.

    Args:
        left: ``[…, n, k]`` float32.
        right: ``[…, k, m]``.
        out: ``[…, n, m]``.
    """
    if out.device.type != "cpu":
        return torch.matmul(left, right, out=out)
    if left.shape[-1] == 1:
        return torch.mul(left, right, out=out)
    np.matmul(left.numpy(), right.numpy(), out=out.numpy())
    return out


def in_parallel(work: Callable[[_P], _R], parts: Sequence[_P]) -> Iterator[_R]:
    """Yield ``work`` of each part, in their order; computed in threads if there are several cores and parts.

    Where torch has threads of its own (`torch.get_num_threads`), there are so many fewer.

    Args:
        work: takes milliseconds outside of Python, draws no random numbers and changes nothing that is shared.
        parts: what to call it with.
    """
    threads = usable_cores() // torch.get_num_threads()
    if min(threads, len(parts)) <= 1:
        yield from map(work, parts)
        return
    gradients = torch.is_grad_enabled()  # threads have modes of their own

    def call(part: _P) -> _R:
        with torch.set_grad_enabled(gradients):
            return work(part)

    yield from _pool(threads, os.getpid()).map(call, parts)


@functools.lru_cache(maxsize=1)
def _pool(threads: int, _process: int) -> ThreadPoolExecutor:
    """Return a process's threads. A forked process has none of its parent's."""
    return ThreadPoolExecutor(threads, thread_name_prefix="part")


def add_gradients(
    parameters: Iterable[nn.Parameter],
    losses: Callable[[_P], tuple[Tensor, Tensor]],
    parts: Sequence[_P],
    run: Run[_P, tuple[Tensor | None, ...]] = in_parallel,
) -> None:
    """Add the gradient of a weighted sum of losses to the parameters' gradients.

    Args:
        parameters: of the networks.
        losses: returns the losses of a part, and their weights.
        parts: of a minibatch.
        run: calls a function with each part.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]

    def of_part(part: _P) -> tuple[Tensor | None, ...]:
        loss, weights = losses(part)
        return torch.autograd.grad(loss, trained, weights, allow_unused=True)

    for gradients in run(of_part, parts):
        for parameter, gradient in zip(trained, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = gradient.clone()  # two parameters may have one gradient
            else:
                parameter.grad.add_(gradient)


@functools.cache
def computes_in_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 numbers. Not measured: a run must repeat bit for bit."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def in_bfloat16(precision: str, device: torch.device) -> bool:
    """Return whether convolutions on ``device`` compute in bfloat16 in gradient steps.

    Args:
        precision: float32; bfloat16; or auto: bfloat16 on CPUs that compute with it, otherwise float32.
        device: of the gradient steps.
    """
    if precision == "auto":
        return device.type == "cpu" and computes_in_bfloat16()
    return precision == "bfloat16"
