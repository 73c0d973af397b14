"""Is the reward a function of a step?

A report about anything else explains noise: dropout that was left on, batch normalisation in training mode, random numbers, a
memory of earlier calls.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import explain
from rlhf_ray.data.images import is_image
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward.functions import INPUTS, RewardFunction
from rlhf_ray.reward.unmoved import copied, unmoved

DRAWN, ASKED, ALONE = 1000, 64, 16
"""Steps to draw, a quarter of images; how many of them, from the lowest to the highest reward, it is asked about again, and how
many one at a time. A reward that depends on the batch differs on nearly all."""
SAME = 1e-3
"""Largest difference of two answers for the same step, in standard deviations of the reward: the report prints two digits, and
networks in float32 differ by 1e-6 to 1e-5 from batch to batch."""
ROUNDED = 8.0
"""Answers may differ by as many spacings of the largest reward's float type (float32 if that holds all rewards): a reward whose
level is a million times its spread is told no finer."""


@dataclass(frozen=True)
class Consistency:
    """How much a reward's answers for the same steps differ, in standard deviations of the reward: largest differences."""

    steps: int  # how many it was asked about
    again: float  # between two calls
    alone: float | None  # of steps asked about one at a time; None if that raises an error
    elsewhere: float  # of steps within another batch
    most: float  # that is rounding
    error: str = ""  # of a call with one step
    remembers: float = 0.0  # of two calls in a row, if nothing keeps the reward's state from changing
    changes: tuple[str, ...] = ()  # inputs that the reward changes in place
    training: tuple[str, ...] = ()  # kinds of its layers that are in training mode

    @property
    def fault(self) -> str:
        """How the reward is not a function of a step: "again", "alone" or "elsewhere"; empty if it is one."""
        differences = {"again": self.again, "alone": self.alone, "elsewhere": self.elsewhere}
        return next((how for how, size in differences.items() if size is None or not size <= self.most), "")

    @property
    def reason(self) -> str:
        """What the fault is and what to do, in words; empty without one."""
        asked = {
            "again": f"asked twice about the same {self.steps} steps",
            "alone": f"asked about one step at a time instead of {self.steps} at once",
            "elsewhere": "asked about the same steps in another batch",
        }
        if not self.fault:
            return ""
        if self.training:
            remedy = f"in training mode: {', '.join(self.training)}; call .eval() on the network"
        elif self.fault == "again":
            remedy = "it must draw no random numbers and remember no calls"
        else:
            remedy = "it must compute each step's reward from that step alone"
        size = getattr(self, self.fault)
        differ = f"its answers differ by up to {size or 0.0:.2g} standard deviations of the reward"
        how = f"it stops ({self.error})" if size is None else differ
        return f"{asked[self.fault]}, {how} ({remedy})"


def check_function(reward: RewardFunction, data: Transitions) -> None:
    """Check that the reward is a function of a step.

    Raises:
        SettingError: it gives a step no finite reward, or the same step another one in another call or batch.
    """
    bad = np.flatnonzero(~np.isfinite(reward.of(data)))
    if len(bad):
        raise SettingError(
            f"The reward {reward.name!r} is NaN or infinite on {len(bad)} of {len(data)} steps, the first of them number "
            f"{int(bad[0])} (from 0); it must be finite."
        )
    if len(data) > 1 and (found := consistency(reward, data)).fault:
        raise SettingError(f"The reward {reward.name!r} is not a function of a step: {found.reason}.")


def consistency(reward: RewardFunction, data: Transitions) -> Consistency:
    """Ask a reward about the same steps, at least two, in several ways."""
    steps = data.sample(DRAWN // 4 if is_image(data.observations[0]) else DRAWN, np.random.default_rng(0))
    rewards = reward.of(steps)
    unit, rounding = _scale(rewards)
    ranks = np.linspace(0, len(steps) - 1, min(ASKED, len(steps))).round().astype(int)
    asked = np.argsort(rewards, kind="stable")[ranks]
    steps = steps[asked]
    first, rewards = rewards[asked], reward.of(steps)

    def differs(answers: FloatArray, rows: Any = slice(None)) -> float:
        return float(np.abs(answers - rewards[rows]).max()) / unit

    # From the end: a seeded draw for one step is the first's of many.
    rows = np.arange(len(steps))[:: -max(1, len(steps) // ALONE)]
    alone, error = None, ""
    try:
        alone = max(differs(reward.of(steps[row : row + 1]), slice(row, row + 1)) for row in rows)
    except Exception as raised:
        error = explain(raised)
    others = np.arange(len(steps))[::-2]
    remembers, changes = _unprotected(reward, steps, unit)
    return Consistency(
        len(steps),
        differs(reward.of(steps)),
        alone,
        max(differs(reward.of(steps[others]), others), differs(first)),
        SAME + rounding / unit,
        error,
        remembers,
        changes,
        reward.training_layers(),
    )


def _scale(rewards: FloatArray) -> tuple[float, float]:
    """Return the unit of differences, the standard deviation (the size of a constant reward), and how large rounding may be."""
    size = float(np.abs(rewards).max())
    kind = np.float32 if np.array_equal(rewards.astype(np.float32), rewards) else np.float64
    rounding = ROUNDED * float(np.finfo(kind).eps) * size
    return float(rewards.std()) if rewards.std() > rounding else size or 1.0, rounding


def _unprotected(reward: RewardFunction, steps: Transitions, unit: float) -> tuple[float, tuple[str, ...]]:
    """Call a copy of the reward twice in a row, with nothing between it and its state and arguments.

    Returns:
        The largest difference of the two answers, and the inputs that changed.
    """
    with unmoved(*reward.stateful()):
        own = copied(reward)
        if own is reward:  # it can't be copied
            return 0.0, ()
        own = own.asked()
        ask = inspect.unwrap(type(own).members)
        before = (steps.observations, steps.actions, steps.next_observations, steps.terminated)
        answers, changes = [], tuple[str, ...]()
        for _ in range(2):
            arrays = [np.array(values) for values in before]
            members = torch.as_tensor(np.array(ask(own, *arrays)))
            answers.append(own.combine(members).numpy())
            both = zip(INPUTS, before, arrays, strict=True)
            changes = tuple(
                name for name, old, new in both if not np.array_equal(old, new, equal_nan=old.dtype.kind == "f")
            )
    return float(np.abs(answers[1] - answers[0]).max()) / unit, changes


def gradients_are_own(reward: RewardFunction, data: Transitions) -> bool:
    """Whether what has gradients is the reward: not a network whose outputs are scaled or clipped before they are the reward."""
    steps = data[np.unique(np.linspace(0, len(data) - 1, ASKED).round().astype(int))]
    rewards = reward.of(steps)
    rounding = ROUNDED * float(np.finfo(np.float32).eps) * float(np.abs(rewards).max())
    try:
        with torch.no_grad():
            explained = reward.forward(*reward.tensors(steps)).double().numpy()
    except Exception:
        return False
    same = explained.shape == rewards.shape
    return same and bool(np.abs(explained - rewards).max() <= SAME * _scale(rewards)[0] + rounding)
