"""Parts of a pass through networks, side by side on the usable cores.

Each part is one thread's. torch's own threads wait for each other after every operation, which takes longer than one thread where
other programs need the cores. Parts don't depend on the number of cores, and their sum is taken in their order: so no result does.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor, nn

from rlhf_ray.data.system import torch_threads, usable_cores

_P = TypeVar("_P")
_R = TypeVar("_R")

Run = Callable[[Callable[[_P], _R], Sequence[_P]], Iterable[_R]]
"""Calls a function with each part, in their order: `in_parallel`, or `map` for one after the other."""


def leave_cores_to_parts() -> None:
    """Let torch use one thread in this process, unless the environment variable ``OMP_NUM_THREADS`` says otherwise.

    By default it has as many as there are cores, which wait for each other, and change the last bits of sums.

    Raises:
        SettingError: ``OMP_NUM_THREADS`` is no number.
    """
    if torch_threads() is None:
        torch.set_num_threads(1)


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
