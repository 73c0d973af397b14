"""Parameters as one vector: clipping, checking and stepping them takes one operation each instead of one per tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_ray.optim.adam import Adam, AdamW


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
    """What `FlatAdam` and `FlatAdamW` have in common: one operation for each step, and torch's state for each parameter."""

    fused_step: Any
    """torch's function that takes the step."""

    def __init__(self, flat: FlatParameters, **options: Any):
        super().__init__(flat.parameters, **options)
        self.flat = flat
        self._first, self._second = torch.zeros_like(flat.values), torch.zeros_like(flat.values)
        self._steps = torch.zeros((), device=flat.values.device)
        self._share_state()

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

    @torch.no_grad()
    def take_step(self, skip: Tensor | None = None) -> None:
        """Take a step along `FlatParameters.gradient`.

        Args:
            skip: scalar: 1 to leave everything as it is, 0 otherwise.
        """
        group = self.param_groups[0]
        type(self).fused_step(
            [self.flat.values],
            [self.flat.gradient],
            [self._first],
            [self._second],
            [],
            [self._steps.add_(1.0 if skip is None else 1.0 - skip)],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=skip,
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
