"""A trial of a user's own `FitMethod`, so that a mistake in it is a line before the run starts."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward.methods.method import FitLabels, FitMethod

COMPARISONS, PAIRS, LENGTH = 6, 4, 5
"""Sizes of the trial's inputs."""


def try_out(name: str, method: FitMethod, members: int) -> None:
    """Call a copy of ``method`` as a fit does.

    Args:
        name: the setting's value.
        method: the method.
        members: ensemble size.

    Raises:
        SettingError: it raises, or returns something that a fit can't use.
    """
    try:
        method = copy.deepcopy(method)  # the trial must not change its state
    except Exception:
        return  # for example an open file; the fit will tell
    with torch.random.fork_rng(devices=[]):
        _try_out(_Trial(name, method, members))


class _Trial:
    def __init__(self, name: str, method: FitMethod, members: int):
        self.name, self.method, self.members = name, method, members

    def overrides(self, hook: str) -> bool:
        return getattr(type(self.method), hook, None) is not getattr(FitMethod, hook)

    def require(self, condition: bool, hook: str, returned: Any, wanted: str) -> None:
        if not condition:
            raise SettingError(
                f"reward_model.methods has {self.name!r}, whose {hook} {_said(returned)}; it must {wanted}."
            )

    @contextmanager
    def calling(self, hook: str) -> Iterator[None]:
        try:
            yield
        except SettingError:
            raise
        except Exception as error:
            message = str(error).splitlines()[0] if str(error) else repr(error)
            raise SettingError(
                f"reward_model.methods has {self.name!r}, and a trial call of its {hook} raised {type(error).__name__}: {message}"
            ) from error


def _try_out(of: _Trial) -> None:
    for check in (_revision, _steps, _unlabelled, _weight, _metrics, _state):
        check(of)


def _revision(of: _Trial) -> None:
    method = of.method
    revises = bool(method.revises)
    if revises != of.overrides("revise"):
        wanted = (
            "be True where there is a revise(labels) of its own, or it is never called, and False where there is none"
        )
        of.require(False, "revises", method.revises, wanted)
    if not revises:
        return
    differences = torch.linspace(-2.0, 2.0, of.members * COMPARISONS).reshape(of.members, COMPARISONS)
    preferences = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0, 1.0])
    with of.calling("revise(labels)"):
        revised = method.revise(FitLabels(differences, preferences, torch.ones(COMPARISONS)))
        of.require(isinstance(revised, FitLabels), "revise(labels)", revised, "return FitLabels")
        for part, least, most in (("preferences", 0.0, 1.0), ("weights", 0.0, math.inf)):
            values = getattr(revised, part)
            _tensor(of, "revise(labels)", values, (COMPARISONS,), part)
            within = bool(((values >= least) & (values <= most)).all())
            bounds = "from 0 to 1" if most == 1.0 else "of 0 or more"
            of.require(within, "revise(labels)", values.tolist(), f"return {part} {bounds}")


def _steps(of: _Trial) -> None:
    with of.calling("steps(pairs, length, generator)"):
        factors = of.method.steps(PAIRS, LENGTH, torch.Generator().manual_seed(0))
        if factors is not None:
            _tensor(of, "steps(pairs, length, generator)", factors, (PAIRS, 2, LENGTH), "factors")


def _unlabelled(of: _Trial) -> None:
    ratio = of.method.unlabelled_ratio
    whole = isinstance(ratio, int) and ratio >= 0
    of.require(whole, "unlabelled_ratio", ratio, "be a whole number of 0 or more")
    if bool(ratio) != of.overrides("unlabelled_loss"):
        wanted = (
            "be 1 or more where there is an unlabelled_loss(differences, whole) of its own, and 0 where there is none"
        )
        of.require(False, "unlabelled_ratio", ratio, wanted)
    if not ratio:
        return
    hook = "unlabelled_loss(differences, whole)"
    differences = torch.linspace(-6.0, 6.0, of.members * PAIRS).reshape(of.members, PAIRS)
    with of.calling(hook), torch.enable_grad():
        loss = of.method.unlabelled_loss(differences.clone().requires_grad_(), differences)
        if loss is not None:
            _tensor(of, hook, loss, (of.members,), "the loss of each member")
            of.require(loss.requires_grad, hook, "a constant", "return a loss that depends on differences")


def _weight(of: _Trial) -> None:
    with of.calling("deviation_weight(progress)"):
        weight: Any = of.method.deviation_weight(0.5)
        finite = weight is None or (isinstance(weight, Real) and math.isfinite(weight))
        of.require(finite, "deviation_weight(progress)", weight, "return a finite number, or None")


def _metrics(of: _Trial) -> None:
    with of.calling("metrics()"):
        metrics: Any = of.method.metrics()
        numbers = isinstance(metrics, Mapping) and all(
            isinstance(name, str) and isinstance(value, Real) for name, value in metrics.items()
        )
        of.require(numbers, "metrics()", metrics, "return numbers by name")


def _state(of: _Trial) -> None:
    with of.calling("state()"):
        state = of.method.state()
        of.require(isinstance(state, dict) and _is_json(state), "state()", state, "return a dict of JSON values")
    with of.calling("load_state(state)"):
        of.method.load_state(json.loads(json.dumps(state)))


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _tensor(of: _Trial, hook: str, found: Any, shape: tuple[int, ...], what: str) -> None:
    got = tuple(found.shape) if isinstance(found, Tensor) else found
    of.require(got == shape, hook, got, f"return {what} as a tensor of shape {shape} here")
    of.require(bool(torch.isfinite(found).all()), hook, "NaN or infinite values", f"return finite {what}")


def _said(returned: Any) -> str:
    text = " ".join(str(returned).split()) if isinstance(returned, str) else repr(returned)
    return f"gave {text if len(text) <= 80 else text[:77] + '…'}"
