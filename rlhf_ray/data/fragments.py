"""Fragments: a batch of equal-length clips of behaviour as arrays, and how they are cut from episodes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray

RANDOM_POLICY = -1
"""The policy version of fragments made by uniformly random actions."""


@dataclass(frozen=True)
class Fragments:
    """``n`` clips of ``length`` steps each, none of which crosses an episode boundary.

    Attributes:
        observations: ``[n, length + 1, *observation_shape]``, the dtype of the environment's space (images stay uint8).
            The last one is the observation after the last action, so that next states need no second copy.
        actions: ``[n, length, *action_shape]``: int64 for Discrete, float32 for Box; as given to the environment.
        rewards: ``[n, length]`` float64: the true reward of each step, NaN where there is none. Only teachers and metrics see it.
        terminated: ``[n]`` bool: whether the last step ended the episode (an earlier one cannot).
        starts: ``[n]`` int64: the number of steps the episode had taken before the fragment begins.
        policy_versions: ``[n]`` int64: the version of the policy that acted, `RANDOM_POLICY` for random actions.
    """

    observations: npt.NDArray[np.generic]
    actions: npt.NDArray[np.generic]
    rewards: FloatArray
    terminated: BoolArray
    starts: IntArray
    policy_versions: IntArray

    def __post_init__(self) -> None:
        n, length = self.rewards.shape
        if self.observations.shape[:2] != (n, length + 1) or self.actions.shape[:2] != (n, length):
            raise ValueError(
                f"Fragments of length {length} need observations [{n}, {length + 1}, …] and actions [{n}, {length}, …]; "
                f"got {self.observations.shape} and {self.actions.shape}."
            )
        for name in ("terminated", "starts", "policy_versions"):
            if getattr(self, name).shape != (n,):
                raise ValueError(f"Fragments.{name} must have shape ({n},); got {getattr(self, name).shape}.")

    def __len__(self) -> int:
        return int(self.rewards.shape[0])

    def __getitem__(self, index: IntArray | BoolArray | slice) -> Fragments:
        """The fragments at ``index`` (an integer or boolean array, or a slice): copies for arrays, views for slices."""
        return Fragments(**{name: array[index] for name, array in vars(self).items()})

    @property
    def length(self) -> int:
        """Steps per fragment."""
        return int(self.rewards.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(int(getattr(self, f.name).nbytes) for f in fields(self))

    def returns(self) -> FloatArray:
        """The true, undiscounted return of each fragment, ``[n]`` float64."""
        returns: FloatArray = self.rewards.sum(axis=1)
        return returns

    def ids(self) -> list[str]:
        """A content hash of each fragment (SHA-256, 64 hex digits): the same clip has the same id wherever it is made.

        Of what was done and seen: true rewards, which not everybody has, change no id.
        """
        return [
            hashlib.sha256(
                b"".join(
                    np.ascontiguousarray(array[i]).tobytes()
                    for array in (self.observations, self.actions, self.terminated)
                )
            ).hexdigest()
            for i in range(len(self))
        ]

    @staticmethod
    def concatenate(batches: Sequence[Fragments]) -> Fragments:
        """One batch of all fragments of ``batches`` (at least one, all of one length), in order."""
        lengths = {batch.length for batch in batches}
        if len(lengths) != 1:
            raise ValueError(f"Only fragments of one length can be joined; got lengths {sorted(lengths)}.")
        return Fragments(
            **{f.name: np.concatenate([getattr(batch, f.name) for batch in batches]) for f in fields(Fragments)}
        )


@dataclass(frozen=True)
class Trajectory:
    """A stretch of one episode: ``steps`` consecutive steps, perhaps from its middle.

    Attributes:
        observations: ``[steps + 1, *observation_shape]``.
        actions: ``[steps, *action_shape]``, as given to the environment.
        rewards: ``[steps]``, the true rewards.
        terminated: whether the last step ended the episode.
        start: the number of steps the episode had taken before this stretch.
        frames: ``steps + 1`` pictures for people, None where none was drawn; empty where none is.
    """

    observations: npt.NDArray[np.generic]
    actions: npt.NDArray[np.generic]
    rewards: FloatArray
    terminated: bool
    start: int = 0
    frames: Sequence[npt.NDArray[np.generic] | None] = ()

    def __len__(self) -> int:
        return len(self.rewards)

    def window(self, start: int, length: int, policy_version: int) -> Fragments:
        """The ``length`` steps from ``start`` on, as a batch of one."""
        return Fragments(
            observations=self.observations[None, start : start + length + 1],
            actions=self.actions[None, start : start + length],
            rewards=self.rewards[None, start : start + length].astype(np.float64),
            terminated=np.array([self.terminated and start + length == len(self)]),
            starts=np.array([self.start + start], dtype=np.int64),
            policy_versions=np.array([policy_version], dtype=np.int64),
        )


def cut_fragments(
    trajectories: Sequence[Trajectory],
    *,
    length: int,
    count: int,
    start_share: float,
    policy_version: int,
    rng: np.random.Generator,
) -> Fragments | None:
    """Copy ``count`` different windows of ``length`` steps out of ``trajectories``.

    Every window that fits is equally likely, so that long trajectories give more fragments (as in `imitation`); of the
    fragments, ``start_share`` are taken from episode beginnings instead, as far as there are such.

    Returns:
        At most ``count`` fragments (fewer when fewer windows exist); None when no trajectory is long enough.
    """
    windows = np.array([max(0, len(trajectory) - length + 1) for trajectory in trajectories], dtype=np.int64)
    first_window = np.concatenate([[0], np.cumsum(windows)])
    at_start = first_window[:-1][[t.start == 0 and w > 0 for t, w in zip(trajectories, windows, strict=True)]]
    total = int(first_window[-1])
    if total == 0:
        return None
    wanted_starts = min(round(count * start_share), len(at_start))
    chosen_starts = rng.choice(at_start, size=wanted_starts, replace=False)
    others = np.setdiff1d(np.arange(total), chosen_starts)
    chosen = np.concatenate(
        [chosen_starts, rng.choice(others, size=min(count - wanted_starts, len(others)), replace=False)]
    )
    which = np.searchsorted(first_window, chosen, side="right") - 1
    cuts = [(trajectories[i], int(window - first_window[i])) for i, window in zip(which, chosen, strict=True)]
    return Fragments(
        observations=np.stack([t.observations[o : o + length + 1] for t, o in cuts]),
        actions=np.stack([t.actions[o : o + length] for t, o in cuts]),
        rewards=np.stack([t.rewards[o : o + length] for t, o in cuts]).astype(np.float64),
        terminated=np.array([t.terminated and o + length == len(t) for t, o in cuts]),
        starts=np.array([t.start + o for t, o in cuts], dtype=np.int64),
        policy_versions=np.full(len(cuts), policy_version, dtype=np.int64),
    )
