"""Is the reward a function of a step, and are its gradients those of the reward?

A report about anything else explains noise: dropout that was left on, batch normalisation in training mode, random numbers, a
memory of earlier calls; or gradients of a network whose outputs are scaled or clipped before they are the reward.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import explain
from rlhf_ray.data.images import is_image
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure.statistics import pearson
from rlhf_ray.reward.functions import INPUTS, NotDifferentiableError, RewardFunction
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
    """How much a reward's answers for the same steps differ, in standard deviations of the reward.

    Attributes:
        steps: how many steps it was asked about.
        again: largest difference between two calls.
        alone: largest difference of steps asked about one at a time; None if that raises an error.
        elsewhere: largest difference of steps within another batch.
        most: largest difference that is rounding.
        error: of a call with one step.
        remembers: largest difference of two calls in a row, if nothing keeps the reward's state from changing.
        changes: inputs that the reward changes in place.
        training: kinds of its layers that are in training mode and differ then.
        gap: largest difference of `RewardFunction.forward` from the reward; None without gradients, infinite if it fails.
        correlation: of both; None without, and if one is constant.
    """

    steps: int
    again: float
    alone: float | None
    elsewhere: float
    most: float
    error: str = ""
    remembers: float = 0.0
    changes: tuple[str, ...] = ()
    training: tuple[str, ...] = ()
    gap: float | None = None
    correlation: float | None = None

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
        how = (
            f"it stops ({self.error})"
            if size is None
            else (f"its answers differ by up to {size:.2g} standard deviations of the reward")
        )
        return f"{asked[self.fault]}, {how} ({remedy})"

    @property
    def own_gradients(self) -> bool:
        """Whether the gradients are those of the reward; True without gradients."""
        return self.gap is None or self.gap <= self.most

    @property
    def computed(self) -> bool:
        """Whether `RewardFunction.forward` works, where it should."""
        return self.gap is None or bool(np.isfinite(self.gap))


class OtherGradients(RewardFunction):
    """A reward without its gradients, since they are another function's.

    Args:
        reward: the reward.
        found: what is wrong with them.
    """

    def __init__(self, reward: RewardFunction, found: Consistency):
        self.reward, self.found = reward, found
        self.name, self.inputs = reward.name, reward.inputs
        self.observation_space, self.action_space = reward.observation_space, reward.action_space

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """See `RewardFunction.members`."""
        return self.reward.members(observations, actions, next_observations, terminated)

    def combine(self, members: Tensor) -> Tensor:
        """See `RewardFunction.combine`."""
        return self.reward.combine(members)

    def fresh(self, seed: int) -> RewardFunction | None:
        """See `RewardFunction.fresh`."""
        return self.reward.fresh(seed)


def with_own_gradients(reward: RewardFunction, data: Transitions) -> RewardFunction:
    """Return the reward, as `OtherGradients` if its gradients are not those of what `RewardFunction.of` returns."""
    if not reward.differentiable or len(data) < 2:
        return reward
    found = consistency(reward, data)
    return reward if found.own_gradients else OtherGradients(reward, found)


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
    """Ask a reward about the same steps in several ways.

    Args:
        reward: the reward.
        data: at least two steps.
    """
    if isinstance(reward, OtherGradients):
        return reward.found
    steps = data.sample(DRAWN // 4 if is_image(data.observations[0]) else DRAWN, np.random.default_rng(0))
    rewards = reward.of(steps)
    unit, rounding = _scale(rewards)
    gap, correlation = _gradients(reward, steps, rewards, unit)
    ranks = np.linspace(0, len(steps) - 1, min(ASKED, len(steps))).round().astype(int)
    asked = np.argsort(rewards, kind="stable")[ranks]
    steps = steps[asked]
    first, rewards = rewards[asked], reward.of(steps)

    def differs(answers: FloatArray, rows: Any = slice(None)) -> float:
        return float(np.abs(answers - rewards[rows]).max()) / unit

    rows = np.arange(len(steps))[
        :: -max(1, len(steps) // ALONE)
    ]  # from the end: a seeded draw for one step is the first's of many
    alone: float | None = None
    error = ""
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
        gap,
        correlation,
    )


def _scale(rewards: FloatArray) -> tuple[float, float]:
    """Return the unit of differences, the standard deviation (the size of a constant reward), and how large rounding may be."""
    size = float(np.abs(rewards).max())
    kind = np.float32 if np.array_equal(rewards.astype(np.float32), rewards) else np.float64
    rounding = ROUNDED * float(np.finfo(kind).eps) * size
    return float(rewards.std()) if rewards.std() > rounding else size or 1.0, rounding


def _gradients(
    reward: RewardFunction, steps: Transitions, rewards: FloatArray, unit: float
) -> tuple[float | None, float | None]:
    """Return the largest difference of what has gradients from the reward, and their correlation."""
    if not reward.differentiable:
        return None, None
    try:
        chunks = [steps[slice(start, start + ASKED)] for start in range(0, len(steps), ASKED)]
        with torch.no_grad():
            explained = torch.cat([reward.forward(*reward.tensors(chunk)) for chunk in chunks]).double().numpy()
        error = np.abs(explained - rewards)  # a shape of its own raises
    except NotDifferentiableError:
        return None, None
    except Exception:
        return float("inf"), None
    rounding = ROUNDED * float(np.finfo(np.float32).eps) * float(np.abs(rewards).max())
    both_vary = bool(np.ptp(explained) > 0 and np.ptp(rewards) > 0)
    correlation = pearson(explained, rewards, 0.0) if both_vary else None
    return float(np.maximum(error - rounding, 0.0).max()) / unit, correlation


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
        answers, changes = [], []
        for _ in range(2):
            arrays = [np.array(values) for values in _arrays(steps)]
            members = torch.as_tensor(np.array(ask(own, *arrays)))
            answers.append(own.combine(members).numpy())
            changes = [
                name
                for name, before, after in zip(INPUTS, _arrays(steps), arrays, strict=True)
                if _differ(before, after)
            ]
    return float(np.abs(answers[1] - answers[0]).max()) / unit, tuple(changes)


def _arrays(steps: Transitions) -> tuple[Array, Array, Array, Array]:
    return steps.observations, steps.actions, steps.next_observations, steps.terminated


def _differ(before: Array, after: Array) -> bool:
    return not np.array_equal(before, after, equal_nan=before.dtype.kind == "f")
