"""Reads other projects' preference files, which are pickles, without running code from them.

Two formats are supported: imitation's `PreferenceDataset`, and the `PrefDB` of Matthew Rahtz's
learning-from-human-preferences and its descendants (``train.pkl.gz``, ``val.pkl.gz``).
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data import pickles
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.pickles import Stored, array_of, check_size, frames_of, stack
from rlhf_ray.data.spaces import of_one_choice


def read(file: Path) -> tuple[str, Comparisons]:
    """Read a preference file.

    A `PrefDB` has neither actions nor true rewards: actions become 0 and rewards NaN. A segment of n frames becomes a fragment of
    n - 1 steps, with the last frame as the final observation.

    Returns:
        The origin (``imitation`` or ``drlhp``) and the comparisons.

    Raises:
        ValueError: the format is unknown, the file refers to an unexpected class, or it exceeds `rlhf_ray.data.pickles.LARGEST`.
    """
    content = file.read_bytes()
    room = _Room()
    try:
        content_read = pickles.load(room.unpack(content, GZIP) if content[:2] == b"\x1f\x8b" else content)
        if isinstance(content_read, Stored) and content_read.kind == "PreferenceDataset":
            return "imitation", _imitation(vars(content_read))
        if isinstance(content_read, Stored) and content_read.kind == "PrefDB":
            return "drlhp", _drlhp(vars(content_read), room)
    except (*pickles.ERRORS, OSError, zlib.error) as error:
        raise ValueError(f"Can't import {file}: {pickles.reason(error)}") from error
    raise ValueError(f"Can't import {file}: it holds neither imitation's PreferenceDataset nor a PrefDB.")


GZIP = 16 + zlib.MAX_WBITS
"""zlib's code for the gzip format."""


class _Room:
    """Tracks how much may still be unpacked: `pickles.LARGEST` bytes in total."""

    def __init__(self) -> None:
        self._left = pickles.LARGEST

    def unpack(self, content: bytes, kind: int = zlib.MAX_WBITS) -> bytes:
        """Decompress ``content``.

        Raises:
            ValueError: the result exceeds the remaining room.
            EOFError: the content is truncated.
        """
        unpacked = bytearray()
        while content:  # a gzip file may have several members
            unpacker = zlib.decompressobj(kind)
            unpacked += unpacker.decompress(content, self._left + 1)
            check_size(pickles.LARGEST - self._left + len(unpacked))
            if not unpacker.eof:
                raise EOFError("its compressed data is truncated")
            content = unpacker.unused_data.lstrip(b"\0") if kind == GZIP else b""
        self._left -= len(unpacked)
        return bytes(unpacked)


def _imitation(found: dict[str, Any]) -> Comparisons:
    if not len(found["fragments1"]):
        raise ValueError("it has no comparisons")

    def stacked(fragments: list[Any]) -> Fragments:
        n = len(fragments)
        actions = of_one_choice(stack([one.acts for one in fragments]), axes=2)
        return Fragments(
            observations=stack([one.obs for one in fragments]),
            actions=actions.astype(np.int64 if actions.dtype.kind in "iu" else np.float32),
            rewards=stack([one.rews for one in fragments]).astype(np.float64),
            terminated=np.array([bool(one.terminal) for one in fragments]),
            starts=np.zeros(n, np.int64),
            policy_versions=np.zeros(n, np.int64),
        )

    return _compared(stacked(found["fragments1"]), stacked(found["fragments2"]), stack(found["preferences"]))


def _drlhp(found: dict[str, Any], room: _Room) -> Comparisons:
    segments = found["segments"]
    if isinstance(segments, Stored):  # each one pickled and compressed separately
        segments = {name: pickles.load(room.unpack(content)) for name, content in vars(segments)["store"].items()}

    def named(names: list[Any]) -> Fragments:
        # Check before building any: a file may name the same fragment any number of times.
        sizes = {name: sum(array_of(frame).nbytes for frame in frames_of(segments[name])) for name in set(names)}
        check_size(sum(sizes[name] for name in names))
        observations = stack([stack(segments[name]) for name in names])
        n, length = len(names), observations.shape[1] - 1
        return Fragments(
            observations=observations,
            actions=np.zeros((n, length), np.int64),
            rewards=np.full((n, length), np.nan),
            terminated=np.zeros(n, bool),
            starts=np.zeros(n, np.int64),
            policy_versions=np.zeros(n, np.int64),
        )

    left, right, preferences = zip(*found["prefs"], strict=True)
    return _compared(named(list(left)), named(list(right)), np.stack([stack(mu) for mu in preferences])[:, 0])


def _compared(left: Fragments, right: Fragments, preferences: Array) -> Comparisons:
    n = len(left)
    pairs = Pairs.of(Fragments.concatenate([left, right]), np.stack([np.arange(n), np.arange(n) + n], axis=1))
    return Comparisons(pairs, preferences.astype(np.float32))
