"""Fragments: batches of equal-length segments of episodes as arrays, and how to cut them from trajectories."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError

RANDOM_POLICY = -1
"""Policy version of fragments from uniformly random actions."""


@dataclass(frozen=True)
class Fragments:
    """``n`` fragments of ``length`` steps each. No fragment crosses an episode boundary.

    Attributes:
        observations: ``[n, length + 1, *observation_shape]``, with the dtype of the environment's space (images stay uint8).
            The last one follows the last action, so next states need no second copy.
        actions: ``[n, length, *action_shape]``: int64 for Discrete, float32 for Box; as given to the environment.
        rewards: ``[n, length]`` float64: the true reward of each step, NaN if unknown. Only teachers and metrics see it.
        terminated: ``[n]`` bool: whether the last step terminated the episode.
        starts: ``[n]`` int64: number of steps of the episode before the fragment.
        policy_versions: ``[n]`` int64: version of the policy that acted; `RANDOM_POLICY` for random actions.

    Raises:
        ValueError: the shapes don't match.
    """

    observations: Array
    actions: Array
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
        """Return the fragments at ``index`` (an integer or boolean array, or a slice): copies for arrays, views for slices."""
        return Fragments(**{name: array[index] for name, array in vars(self).items()})

    def read_only(self) -> Fragments:
        """Return views that can't be written to, for a user's part."""
        views = {name: array.view() for name, array in vars(self).items()}
        for view in views.values():
            view.flags.writeable = False
        return Fragments(**views)

    @property
    def length(self) -> int:
        """Steps per fragment."""
        return int(self.rewards.shape[1])

    @property
    def nbytes(self) -> int:
        """Total size of all arrays in bytes."""
        return sum(int(array.nbytes) for array in vars(self).values())

    def check_finite(self, where: str) -> None:
        """Check that observations and actions are finite.

        Raises:
            SettingError: some, of the source ``where``, are NaN or infinite.
        """
        for name in ("observations", "actions"):
            values = getattr(self, name)
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise SettingError(f"{where} has {name} that are NaN or infinite; remove their fragments.")

    def returns(self) -> FloatArray:
        """Compute the true, undiscounted return of each fragment, ``[n]`` float64."""
        returns: FloatArray = self.rewards.sum(axis=1)
        return returns

    def ids(self) -> list[str]:
        """Compute a content hash of each fragment (SHA-256, 64 hex digits): equal fragments have equal ids everywhere.

        The hash covers observations, actions and termination. It excludes true rewards, which not every source provides.
        """
        columns = [np.ascontiguousarray(array) for array in (self.observations, self.actions, self.terminated)]
        rows = zip(*columns, strict=True)
        return [hashlib.sha256(b"".join(part.tobytes() for part in row)).hexdigest() for row in rows]

    @staticmethod
    def concatenate(batches: Sequence[Fragments]) -> Fragments:
        """Join ``batches`` (at least one, all of one length) in order. A single one is not copied."""
        if len(batches) == 1:
            return batches[0]
        lengths = {batch.length for batch in batches}
        if len(lengths) != 1:
            raise ValueError(f"Can't join fragments of different lengths: {sorted(lengths)}.")
        return Fragments(**{name: np.concatenate([vars(of)[name] for of in batches]) for name in vars(batches[0])})


@dataclass(frozen=True)
class Trajectory:
    """Consecutive steps of one episode, possibly from its middle.

    Attributes:
        observations: ``[steps + 1, *observation_shape]``.
        actions: ``[steps, *action_shape]``, as given to the environment.
        rewards: ``[steps]``: the true rewards.
        terminated: whether the last step terminated the episode.
        start: number of steps of the episode before this trajectory.
        frames: ``steps + 1`` rendered images for people, None where one is missing; empty if nothing was rendered.

    Raises:
        ValueError: the lengths don't fit.
    """

    observations: Array
    actions: Array
    rewards: FloatArray
    terminated: bool
    start: int = 0
    frames: Sequence[Array | None] = ()

    def __post_init__(self) -> None:
        if len(self.observations) != len(self.actions) + 1 or len(self.rewards) != len(self.actions):
            raise ValueError(
                f"A trajectory of {len(self.actions)} actions needs one observation more and as many rewards; got "
                f"{len(self.observations)} and {len(self.rewards)}."
            )

    def __len__(self) -> int:
        return len(self.rewards)

    def window(self, start: int, length: int, policy_version: int) -> Fragments:
        """Return the ``length`` steps from ``start`` on, as a batch of one fragment."""
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
    apart: bool = False,
) -> Fragments | None:
    """Copy ``count`` different windows of ``length`` steps out of ``trajectories``: fewer if fewer exist, None if none does.

    With ``apart``, no more than fit side by side.

    All windows that fit are equally likely, so longer trajectories yield more fragments (as in `imitation`). ``start_share`` of the
    fragments, a number in [0, 1], comes from episode starts instead, if there are enough.
    """
    windows = np.array([max(0, len(trajectory) - length + 1) for trajectory in trajectories], dtype=np.int64)
    if apart:
        count = min(count, -(-sum(map(len, trajectories)) // length))
    first_window = np.concatenate([[0], np.cumsum(windows)])
    at_start = first_window[:-1][[t.start == 0 and w > 0 for t, w in zip(trajectories, windows, strict=True)]]
    total = int(first_window[-1])
    if total == 0:
        return None
    wanted_starts = min(round(count * start_share), len(at_start))
    chosen_starts = rng.choice(at_start, size=wanted_starts, replace=False)
    left = total - wanted_starts
    chosen = rng.choice(left, size=min(count - wanted_starts, left), replace=False)
    if wanted_starts:
        chosen = np.concatenate([chosen_starts, np.delete(np.arange(total), chosen_starts)[chosen]])
    which = np.searchsorted(first_window, chosen, side="right") - 1
    offsets = chosen - first_window[which]
    places = list(zip(which.tolist(), offsets.tolist(), strict=True))

    def windows_of(name: str, rows: int) -> Array:
        arrays = [getattr(trajectory, name) for trajectory in trajectories]
        taken = np.concatenate([arrays[number][first : first + rows] for number, first in places])
        return taken.reshape(len(places), rows, *taken.shape[1:])

    return Fragments(
        observations=windows_of("observations", length + 1),
        actions=windows_of("actions", length),
        rewards=windows_of("rewards", length).astype(np.float64),
        terminated=np.array([t.terminated for t in trajectories])[which] & (offsets == windows[which] - 1),
        starts=np.array([t.start for t in trajectories], dtype=np.int64)[which] + offsets,
        policy_versions=np.full(len(which), policy_version, dtype=np.int64),
    )
