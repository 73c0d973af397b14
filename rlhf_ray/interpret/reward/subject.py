"""What the study of a reward examines."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.identity import identify
from rlhf_ray.data.strays import without_strays
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs.registry import identity_of
from rlhf_ray.interpret.attribution import known_methods
from rlhf_ray.interpret.effects.regions import Regions, object_names, regions_in, true_reward_of
from rlhf_ray.interpret.reward.counterfactuals import check_edits
from rlhf_ray.measure.statistics import constant
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.functions.shaped import ScaledReward

READABLE = 1e3
"""A spread within this factor of 1, and of the mean, is readable in the four digits that tables have."""
DIGITS = 6
"""Decimals of a reward's spread that count on a new scale: an offset of 1e8 leaves about that many in 64 bits."""
COARSE = 0.02
"""Share of a reward's spread from which the steps between its numbers are too coarse: they add as much noise as two thousandths of
its variance."""


@dataclass(frozen=True)
class Subject:
    """A reward, and steps to examine it on."""

    reward: RewardFunction  # the reward function
    data: Transitions  # steps to look at, whole episodes where possible, with true rewards where they are known
    gamma: float = 0.99  # discount of the agent that learns from the reward
    seed: int = 0  # seeds every draw; use `rng`
    environment: str | None = None  # name for `rlhf_ray.envs.make_env`; None if unknown
    # the observations' parts, from `rlhf_ray.interpret.effects.regions.regions_of`; by default grid cells and named features
    # where the environment tells them, 8 x 8 patches of an image, or else features. None for tables.
    regions: Regions | None = None
    effort: float = 1.0  # number of samples, steps and restarts relative to the normal report: 0.1 for a quick look
    # the user's own counterfactuals: a JSON file of edits, or a folder of edited images; None for automatic ones
    edits: Path | None = None
    # attribution methods, by name, ``module:Name`` of a user's own, or as objects; empty: the usual ones
    methods: tuple[str, ...] = ()
    # the true reward as a function, if the recorded true rewards are not the ones to judge by: they are replaced by it. By
    # default the environment's own, where it agrees with the recorded ones.
    truth: RewardFunction | None = None

    def __post_init__(self) -> None:
        if self.regions is None:
            object.__setattr__(self, "regions", regions_in(self.environment, self.reward))
        object.__setattr__(self, "methods", known_methods(self.methods))
        if self.edits is not None:
            check_edits(self.edits, self.reward, object_names(self.environment), self.grid)
        if self.truth is not None:
            object.__setattr__(self, "data", self.data.with_(rewards=self.truth.of(self.data)))

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of observations that are grids; None if they aren't."""
        return self.regions.layout if self.regions is not None and self.regions.kind == "cell" else None

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the generator for ``purpose``: the same draws whatever other steps drew."""
        return np.random.default_rng([self.seed, *purpose.encode()])

    @cached_property
    def scaled(self) -> RewardFunction:
        """The reward on a scale on which it can be read: its own, unless its spread is tiny or huge, also beside its mean.

        Then it is that of the true reward, or else its standard deviations from its mean. The sections compute on this.
        """
        given, true = self.reward.of(self.data), self.data.rewards
        if constant(given):
            return self.reward
        mean, spread = float(given.mean()), float(given.std())
        if 1 / READABLE < spread < READABLE and abs(mean) < READABLE * spread:
            return self.reward
        center, unit = (0.0, 1.0) if constant(true) else (float(true.mean()), float(true.std()))
        factor, digits = unit / spread, DIGITS - math.floor(math.log10(unit))
        return ScaledReward(self.reward, factor, mean - center / factor, digits)

    @cached_property
    def true_reward(self) -> RewardFunction | None:
        """The true reward as a function: the subject's own, or that of its environment; None if it is unknown."""
        if self.truth is not None or self.environment is None:
            return self.truth
        return true_reward_of(self.environment, self.data)

    @property
    def true_known(self) -> bool:
        """Whether the true reward of every step is known."""
        return bool(len(self.data)) and bool(np.isfinite(self.data.rewards).all())

    @cached_property
    def digest(self) -> str:
        """Hash what a step's result depends on: the rewards' and the environment's code and weights, data and settings."""
        data = self.data
        digest = hashlib.sha256()
        arrays = [data.observations, data.actions, data.next_observations, data.terminated, data.rewards, data.episodes]
        for array in [*arrays, *data.columns.values(), self.reward.of(data)]:
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(
                array.astype("U").tobytes() if array.dtype == object else np.ascontiguousarray(array).tobytes()
            )
        code = identify(self.reward, self.truth), identity_of(self.environment)
        digest.update(repr((self.reward.name, self.gamma, self.environment, *code)).encode())
        if self.regions is not None:
            digest.update(repr(self.regions.names).encode() + np.packbits(self.regions.masks).tobytes())
        if self.edits is not None:
            for file in without_strays(self.edits.rglob("*")) if self.edits.is_dir() else [self.edits]:
                digest.update(file.name.encode() + (file.read_bytes() if file.is_file() else b""))
        return digest.hexdigest()


def check_digits(reward: RewardFunction, data: Transitions) -> None:
    """Check that a reward's differences are larger than the steps between its numbers, of 32 bits if it has only such.

    Raises:
        SettingError: they are not; nothing can be told of such a reward.
    """
    given = reward.of(data)
    if not len(given) or not np.isfinite(given).all():
        return
    largest, coarse = float(np.abs(given).max()), bool((given.astype(np.float32) == given).all())
    step = float(np.spacing(np.float32(largest) if coarse else largest))
    if step > COARSE * float(given.std()) and (np.ptp(given) > 0 or step >= 1):
        bits = 32 if coarse else 64
        raise SettingError(
            f"The reward {reward.name!r} returns numbers of {bits} bits around {float(given.mean()):.6g}, where differences below "
            f"{step:.2g} are lost; those between steps are {float(given.std()):.2g}. Subtract a constant before it is rounded."
        )
