"""Adam and AdamW without torch's compiler, which torch's own import to say that they are not compiled.

That import takes longer than importing torch itself does, in every process that takes a gradient step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method below what torch has wrapped it in."""
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
