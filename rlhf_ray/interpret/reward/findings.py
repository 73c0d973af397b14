"""What the search for shortcuts finds: causes, parts of the observation that move the reward, and effects of whole inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.interpret.reward.association import Association
from rlhf_ray.interpret.reward.curves import Curve
from rlhf_ray.interpret.reward.exchange import NEARLY_ALL, NOTHING, Effect
from rlhf_ray.interpret.reward.nudges import NOISY, ONLY
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes
from rlhf_ray.interpret.reward.summaries import Summary
from rlhf_ray.study.figures import DRAWN, fields_of

CLEAR = 0.2
"""Parts whose exchange moves a reward more than this, relative to exchanging everything, clearly matter to it."""
SPILLED = 0.1
"""As `NOTHING`, for a fitted stand-in of the true reward, whose forests use what goes with a cause, too."""
CURVED = 0.5
"""Range of a curve, in standard deviations of the reward, from which the curve says how the reward depends on the part."""


@dataclass(frozen=True)
class Cause:
    """A part of the observation that moves the reward.

    Attributes:
        name: region, and channels if only some of them matter.
        regions: numbers of the regions it lies in.
        mask: ``[*observation_shape]`` bool.
        effect: of exchanging it at all moments.
        moments: effect of exchanging it at each moment alone, the latest moment first.
        when: the moments that suffice, in words.
        curve: reward against content; None if it has too many values to tell apart.
        association: with the true reward; None if that is unknown or constant, or ``true_moves`` says enough.
        true_moves: as ``effect.moves``, of the true reward function; None without one.
        fitted: whether that function is fitted to recorded true rewards.
    """

    name: str
    regions: tuple[int, ...] = field(metadata=DRAWN)
    mask: BoolArray = field(metadata=DRAWN)
    effect: Effect
    moments: tuple[Effect, ...]
    when: str
    curve: Curve | None = field(default=None, metadata=DRAWN)
    association: Association | None = None
    true_moves: float | None = None
    fitted: bool = False

    @property
    def is_shortcut(self) -> bool:
        """Whether its exchange moves the reward but not the true one, nor may tell of it what the rest doesn't."""
        if self.true_moves is None or (
            self.fitted and self.association is not None and self.may_tell(self.association.beside)
        ):
            return False
        spilled = self.fitted and self.effect.interval[0] > NEARLY_ALL and self.true_moves < SPILLED
        return spilled or self.true_moves < NOTHING < self.effect.interval[0]

    def may_tell(self, told: OverEpisodes) -> bool:
        """Return whether the part may tell half as much of the true reward as it would of one that looks at it as this one does."""
        return max(told.value, told.high) >= self.effect.interval[0] ** 2 / 2

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return fields_of(self) | {"sole": self.effect.sole}


@dataclass(frozen=True)
class Together:
    """Two causes that act together, and the share of the reward's variance that is in neither alone."""

    first: str
    second: str
    share: OverEpisodes


@dataclass(frozen=True)
class Findings:
    """What the shortcut finder found.

    Attributes:
        scale: standard deviation of the reward over the data.
        steps: steps in the data.
        pairs: pairs of steps used.
        inputs: effect of exchanging the whole state, next state, action and termination flag. Empty for a constant reward.
        done_change: mean reward with the termination flag minus without it, in standard deviations of the reward; None if it isn't
            an input.
        regions: effect ``[regions]`` of exchanging each region at all moments.
        intervals: ``[regions, 2]``: their 95 % intervals.
        causes: the largest causes, the largest first.
        others: effect of exchanging all of the observation but the causes; None for vectors, or without causes.
        background: effect of exchanging the background colour; None without a background.
        together: pairs of causes that act together: neither adds to the other.
        moments: names of the moments that steps show.
        frames: frames of a stack; 1 without.
        ignored: names of the inputs and regions that the reward ignores.
        missed: features that it ignores although they move the true reward, each with how much (as `Effect.moves`).
        true_inputs: how much the exchange of each of ``inputs`` moves the true reward; empty without one.
        summaries: simple summaries of steps that tell the reward.
        action_curve: reward against action; None for actions of several numbers, and where the reward doesn't see them.
        noise: share of the reward's variance that differs between steps that are nearly the same; None if that can't be asked.
        floor: effect of an exchange that only draws that noise anew; `NOTHING` without noise.
        stand_in: whether the true reward of the causes is fitted to recorded ones.
    """

    scale: float
    steps: int = field(metadata=DRAWN)
    pairs: int = 0
    inputs: tuple[Effect, ...] = ()
    done_change: OverEpisodes | None = None
    regions: FloatArray = field(default_factory=lambda: np.zeros(0))
    intervals: FloatArray = field(default_factory=lambda: np.zeros((0, 2)), metadata=DRAWN)
    causes: tuple[Cause, ...] = ()
    others: Effect | None = None
    background: Effect | None = None
    together: tuple[Together, ...] = ()
    moments: tuple[str, ...] = field(default=(), metadata=DRAWN)
    frames: int = 1
    ignored: tuple[str, ...] = ()
    missed: tuple[tuple[str, float], ...] = field(default=(), metadata=DRAWN)
    true_inputs: tuple[float, ...] = field(default=(), metadata=DRAWN)
    summaries: tuple[Summary, ...] = field(default=(), metadata=DRAWN)
    action_curve: Curve | None = field(default=None, metadata=DRAWN)
    noise: OverEpisodes | None = None
    floor: float = NOTHING
    stand_in: bool = False

    @property
    def constant(self) -> bool:
        """Whether the reward is the same on all steps."""
        return not self.inputs

    @property
    def pays_for_the_end(self) -> bool:
        """Whether switching the termination flag changes the mean reward, with its whole interval."""
        change = self.done_change
        return change is not None and (change.beyond(NOTHING) or change.below(-NOTHING)) is True

    @property
    def noisy(self) -> bool:
        """Whether a part of the reward is noise."""
        return self.noise is not None and self.noise.beyond(NOISY) is True

    @property
    def erratic(self) -> bool:
        """Whether all of it is."""
        return self.noise is not None and self.noise.beyond(ONLY) is True

    def telling(self, curve: Curve | None) -> Curve | None:
        """Return the curve if it says how the reward depends on what a part shows; None if its mean does not."""
        return curve if curve is not None and np.ptp(curve.rewards) > CURVED * self.scale else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {"constant": True} if self.constant else {"constant": False} | fields_of(self)
