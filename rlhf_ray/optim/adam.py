"""Adam and AdamW without the import of torch's compiler.

torch's own versions import the compiler only to mark their methods as not compiled. That import takes longer than importing torch
itself, in every process that takes a gradient step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method without torch's wrapper."""
    below: Callable[..., Any] = getattr(method, "__wrapped__", method)
    return below


class _NotCompiled(torch.optim.Optimizer):
    zero_grad = _plain(torch.optim.Optimizer.zero_grad)
    state_dict = _plain(torch.optim.Optimizer.state_dict)
    load_state_dict = _plain(torch.optim.Optimizer.load_state_dict)
    add_param_group = _plain(torch.optim.Optimizer.add_param_group)


class Adam(_NotCompiled, torch.optim.Adam):
    """`torch.optim.Adam`."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """See `torch.optim.Adam.step`."""
        return _plain(torch.optim.Adam.step)(self, closure)


class AdamW(_NotCompiled, torch.optim.AdamW):
    """`torch.optim.AdamW`."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """See `torch.optim.AdamW.step`."""
        return _plain(torch.optim.AdamW.step)(self, closure)
