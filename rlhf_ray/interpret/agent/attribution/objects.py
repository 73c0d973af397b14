"""Object removal: how a quantity changes when an object is painted over, or taken out of the level itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt

from rlhf_ray.agents.moments import WorldMoments
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.attribution.question import Question

SIDEWAYS = 100.0
"""How much farther than a column a row is: what stands on the ground is replaced by what is beside it."""
TRIES = 64
"""Places tried for a patch of the background."""


@dataclass(frozen=True)
class Removal:
    """Changes of a quantity when objects are removed: after minus before.

    Attributes:
        changes: for each kind of object ``[n]``; NaN where none is in view.
        control: for each kind: the change when a patch of the background of the same shape and size is painted with the
            frame's mean colour instead, ``[n]``; NaN where there was no place for it.
        values: the quantity before, ``[n]``.
    """

    changes: Mapping[str, FloatArray]
    control: Mapping[str, FloatArray]
    values: FloatArray


def repaint(frames: Array, masks: BoolArray, others: BoolArray | None = None) -> Array:
    """Paint objects over with the nearest pixels beside them, in the same row where there are any.

    Args:
        frames: ``[n, height, width, channels]``.
        masks: where the objects are, ``[n, height, width]``.
        others: where objects of other kinds are: they give no colours, so that no second one appears in the first one's place.
    """
    painted = frames.copy()
    for row, (frame, mask) in enumerate(zip(painted, masks, strict=True)):
        if mask.any() and not mask.all():
            full = mask if others is None or (mask | others[row]).all() else mask | others[row]
            rows, columns = distance_transform_edt(
                full, sampling=(SIDEWAYS, 1.0), return_distances=False, return_indices=True
            )
            frame[mask] = frame[rows[mask], columns[mask]]
    return painted


def patch_beside(masks: BoolArray, taken: BoolArray, rng: np.random.Generator) -> BoolArray:
    """Move each mask to a random place where nothing of interest is; empty where there is none.

    Args:
        masks: one kind of object, ``[n, height, width]``.
        taken: where any object is, ``[n, height, width]``.
        rng: draws the places.
    """
    moved = np.zeros_like(masks)
    for row, (mask, full) in enumerate(zip(masks, taken, strict=True)):
        at = np.argwhere(mask)
        if not len(at):
            continue
        at = at - at.min(0)
        room = np.array(mask.shape) - at.max(0)
        for _ in range(TRIES):
            place = at + rng.integers(0, room)
            if not full[tuple(place.T)].any():
                moved[row][tuple(place.T)] = True
                break
    return moved


def by_painting(
    question: Question,
    moments: WorldMoments,
    masks: Mapping[str, BoolArray],
    rng: np.random.Generator,
    background: BoolArray | None = None,
) -> Removal:
    """Paint each kind of object over in the moments' frames, with the agent's real memory, and see what changes.

    Args:
        question: now, without a world model, or with the frame as a source.
        moments: with images.
        masks: where each kind of object is in the moments' frames, ``[n, height, width]`` by name.
        rng: draws the control's places.
        background: where the control may be, ``[n, height, width]``; None: everywhere but on objects.

    Raises:
        SettingError: the observations are not images.
    """
    frames = moments.frames
    if frames.ndim != 4:
        raise SettingError("Objects can be painted over in images only; use edits of the level for vectors.")
    with torch.no_grad():
        before = question.ask(moments).double().numpy()
    taken = things = np.any(list(masks.values()), axis=0)
    if background is not None:
        taken = taken | ~background
    mean = frames.mean((1, 2), keepdims=True)
    changes, control = {}, {}
    for name, mask in masks.items():
        there = mask.any((1, 2))
        changes[name] = np.where(there, _change(question, moments, repaint(frames, mask, things), before), np.nan)
        beside = patch_beside(mask, taken, rng)
        painted = np.where(beside[..., None], mean, frames)
        control[name] = np.where(beside.any((1, 2)), _change(question, moments, painted, before), np.nan)
    return Removal(changes, control, before)


def by_editing(
    question: Question, moments: WorldMoments, batch: EnvBatch, states: Sequence[bytes], edits: Sequence[str]
) -> Mapping[str, FloatArray]:
    """Restore the environment, edit the level, and let the agent, with its real memory, look at what it shows then.

    Args:
        question: now.
        moments: where.
        batch: copies of the environment.
        states: its states at the moments.
        edits: names of edits.

    Returns:
        For each edit, the quantity after minus before, ``[n]``; NaN where the edit changes nothing to be seen.
    """
    with torch.no_grad():
        before = question.ask(moments).double().numpy()
    found = {}
    for edit in edits:
        frames = moments.frames.copy()
        for start in range(0, len(moments), batch.n):
            part = list(states[start : start + batch.n])
            count = len(part)
            batch.restore(part + [part[0]] * (batch.n - count))
            frames[start : start + count] = np.asarray(batch.edit(edit))[:count]
        changed = (frames != moments.frames).reshape(len(frames), -1).any(1)
        found[edit] = np.where(changed, _change(question, moments, frames, before), np.nan)
    return found


def _change(question: Question, moments: WorldMoments, frames: Array, before: FloatArray) -> FloatArray:
    observations = moments.observations.clone()
    observations[:, -1] = torch.as_tensor(frames, dtype=torch.float32)
    frame = observations if question.world is not None else observations[:, -1]
    with torch.no_grad():
        changed: FloatArray = question.ask(moments, {"frame": frame}).double().numpy() - before
    return changed
