"""What the study of a reward examines."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.attribution import known_methods
from rlhf_ray.interpret.reward.consistency import with_own_gradients
from rlhf_ray.interpret.reward.lags import Lag, lag_of
from rlhf_ray.interpret.reward.regions import Regions, regions_in
from rlhf_ray.measure.statistics import constant
from rlhf_ray.reward.functions import RewardFunction


@dataclass(frozen=True)
class Subject:
    """A reward, and steps to examine it on.

    Attributes:
        reward: the reward function; without its gradients if they are another function's.
        data: steps to look at, whole episodes where possible, with true rewards where they are known.
        gamma: discount of the agent that learns from the reward.
        seed: seeds every draw; use `rng`.
        environment: name for `rlhf_ray.envs.make_env`; None if unknown.
        regions: the observations' parts, from `rlhf_ray.interpret.reward.regions.regions_of`; by default grid cells and named
            features where the environment tells them, 8 x 8 patches of an image, or else features. None for tables.
        effort: number of samples, steps and restarts relative to the normal report: 0.1 for a quick look.
        edits: the user's own counterfactuals: a JSON file of edits, or a folder of edited images; None for automatic ones.
        methods: attribution methods, by name, ``module:Name`` of a user's own, or as objects; empty: the usual ones.
    """

    reward: RewardFunction
    data: Transitions
    gamma: float = 0.99
    seed: int = 0
    environment: str | None = None
    regions: Regions | None = None
    effort: float = 1.0
    edits: Path | None = None
    methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.regions is None:
            object.__setattr__(self, "regions", regions_in(self.environment, self.reward))
        object.__setattr__(self, "methods", known_methods(self.methods))
        object.__setattr__(self, "reward", with_own_gradients(self.reward, self.data))

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the generator for ``purpose``: the same draws whatever other steps drew."""
        return np.random.default_rng([self.seed, *purpose.encode()])

    @cached_property
    def lag(self) -> Lag | None:
        """How the reward follows the true one; None if either is constant or the true one unknown. All steps tell this one."""
        given, true = self.reward.of(self.data), self.data.rewards
        if len(self.data) < 3 or constant(given) or constant(true):
            return None
        return lag_of(given, true, self.data, self.rng("lag"))

    @cached_property
    def digest(self) -> str:
        """Hash what a step's result depends on: data, predicted rewards and settings."""
        data = self.data
        digest = hashlib.sha256()
        arrays = [data.observations, data.actions, data.next_observations, data.terminated, data.rewards, data.episodes]
        for array in [*arrays, *data.columns.values(), self.reward.of(data)]:
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(
                array.astype("U").tobytes() if array.dtype == object else np.ascontiguousarray(array).tobytes()
            )
        digest.update(repr((self.reward.name, self.gamma, self.environment)).encode())
        if self.regions is not None:
            digest.update(repr(self.regions.names).encode() + np.packbits(self.regions.masks).tobytes())
        if self.edits is not None:
            for file in sorted(self.edits.rglob("*")) if self.edits.is_dir() else [self.edits]:
                digest.update(file.name.encode() + (file.read_bytes() if file.is_file() else b""))
        return digest.hexdigest()
