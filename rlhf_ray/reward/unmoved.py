"""Asking a user's module or function: without moving it, and of so few steps at once that memory does not grow with the data."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import gymnasium as gym
import torch
from torch import nn

_T = TypeVar("_T")

_INTERNAL = frozenset(vars(nn.Module()))
"""Attributes of every module: hooks, submodules, the training mode, …"""


@contextmanager
def unmoved(*modules: nn.Module) -> Iterator[None]:
    """Within this context, ``modules`` work on copies of their state: buffers, attributes, and parameters without gradients.

    Running statistics (of imitation's ``RunningNorm``, of batch normalisation, of a user's own modules) may change within a call;
    after it they are as before. What a module draws depends on no earlier call. So a reward is the same however often it is asked.
    Parameters that require gradients are not copied: they are being fitted.
    """
    inside = list(dict.fromkeys(inner for module in modules for inner in module.modules()))
    fixed = torch.jit.ScriptModule | nn.modules.lazy.LazyModuleMixin
    inside = [inner for inner in inside if not isinstance(inner, fixed)]
    if not inside:
        yield
        return
    shared: dict[int, Any] = {id(inner): inner for inner in inside}
    shared |= {
        id(parameter): parameter
        for inner in inside
        for parameter in inner.parameters(recurse=False)
        if parameter.requires_grad
    }
    shared |= {
        id(parameter): parameter
        for inner in inside
        for parameter in vars(inner).values()
        if isinstance(parameter, gym.Space)
    }
    kept = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            for inner in inside:
                own = vars(inner)
                parts = {name: dict(own[name]) for name in ("_parameters", "_buffers", "_modules")}
                kept.append((own, dict(own), parts))
                for name in ("_parameters", "_buffers"):
                    own[name].update({key: copied(value, shared) for key, value in own[name].items()})
                own.update({name: copied(value, shared) for name, value in own.items() if name not in _INTERNAL})
            yield
        finally:
            for own, attributes, parts in kept:
                own.clear()
                own.update(attributes)
                for name, values in parts.items():
                    own[name].clear()
                    own[name].update(values)


def modules_of(part: Any) -> list[nn.Module]:
    """Return the modules that a user's function works with: of its closure, its globals, its bound arguments, or its object."""
    if isinstance(part, nn.Module):
        return [part]
    if inspect.ismethod(part):
        return modules_of(part.__self__)
    if isinstance(part, functools.partial):
        bound = [part.args, part.keywords, modules_of(part.func)]
    elif inspect.isfunction(part):
        try:
            variables = inspect.getclosurevars(part)
        except ValueError:  # a variable has no value yet
            return []
        bound = [variables.nonlocals, variables.globals]
    else:
        bound = [getattr(part, "__dict__", {})]
    values = [
        value
        for value_or_dict in bound
        for value in (value_or_dict.values() if isinstance(value_or_dict, dict) else value_or_dict)
    ]
    values += [inner for value in values if isinstance(value, list | tuple) for inner in value]
    return [value for value in values if isinstance(value, nn.Module)]


def copied(value: _T, shared: dict[int, Any] | None = None) -> _T:
    """Copy deeply what can be copied, except for ``shared`` objects by id. A function is its own copy."""
    try:
        return copy.deepcopy(value, shared)
    except Exception:
        return value


NUMBERS = 2**20
"""Numbers in the observations of one pass. A layer of 32 channels on an RGB image makes eleven times as many."""


def steps_at_once(space: gym.Space[Any], most: int = NUMBERS) -> int:
    """Return how many steps with observations of ``space`` to pass at once: at most ``most``, at least one."""
    return max(1, min(most, NUMBERS // max(1, math.prod(space.shape or ()))))


def passes(n: int, space: gym.Space[Any], most: int = NUMBERS) -> list[slice]:
    """Return the steps of each pass over ``n`` steps, in order: one pass, of none, if there are none."""
    at_once = steps_at_once(space, most)
    return [slice(start, start + at_once) for start in range(0, max(1, n), at_once)]
