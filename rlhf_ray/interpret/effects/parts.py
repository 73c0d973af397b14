"""Parts of a step that can be exchanged among steps: features and groups of them, regions, frames, the action, its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.regions import Regions


@dataclass(frozen=True)
class StepPart:
    """A part of a step.

    Attributes:
        name: in words.
        state: the observation's part, ``[*observation_shape]`` bool; None for none of it.
        next_state: the next observation's part.
        action: the components of the action that belong to it, ``[*action_shape]`` bool; None for none of them.
        done: whether the termination flag belongs to it.
        parts: what it consists of.
    """

    name: str
    state: BoolArray | None = None
    next_state: BoolArray | None = None
    action: BoolArray | None = None
    done: bool = False
    parts: tuple[StepPart, ...] = ()

    def exchange(self, own: Transitions, donor: Transitions) -> Transitions:
        """Return ``own`` with this part of ``donor``."""
        return own.with_(
            observations=_exchanged(own.observations, donor.observations, self.state),
            next_observations=_exchanged(own.next_observations, donor.next_observations, self.next_state),
            actions=_exchanged(own.actions, donor.actions, self.action),
            terminated=donor.terminated if self.done else own.terminated,
        )


@dataclass(frozen=True)
class BackgroundColour(StepPart):
    """The background of images: the pixels of each image's most frequent colour.

    Attributes:
        planes: first channels that hold numbers and stay as they are.
    """

    planes: int = 0

    def exchange(self, own: Transitions, donor: Transitions) -> Transitions:
        """Return ``own``, its background painted in the background colour of ``donor``."""
        changes: dict[str, Array] = {}
        for mask, name in ((self.state, "observations"), (self.next_state, "next_observations")):
            if mask is not None:
                images = getattr(own, name)[..., self.planes :]
                where = _background(images)[1]
                painted = _background(getattr(donor, name)[..., self.planes :])[0]
                colours = np.where(where[..., None], painted[:, None, None], images)
                changes[name] = np.concatenate([getattr(own, name)[..., : self.planes], colours], -1)
        return own.with_(**changes)


def _background(images: Array) -> tuple[Array, BoolArray]:
    flat = images.reshape(len(images), -1, images.shape[-1])
    colours = np.zeros((len(images), images.shape[-1]), images.dtype)
    for at, image in enumerate(flat):
        found, count = np.unique(image, axis=0, return_counts=True)
        colours[at] = found[count.argmax()]
    return colours, (images == colours[:, None, None]).all(-1)


def _exchanged(own: Array, donor: Array, mask: BoolArray | None) -> Array:
    return own if mask is None else np.where(mask, donor, own)


def parts_of(data: Transitions, regions: Regions, actions: gym.Space[Any]) -> list[StepPart]:
    """Return the parts of a step, without the cells of grids: a grid's parts are its objects (`rlhf_ray.interpret.effects.worlds`).

    Features that go together are one part, with each of them as its part; regions of images are parts, and so are their
    background's colour and their channels. Then come the action, and whether the step ends the episode.
    """
    found = (
        [] if regions.kind == "cell" else _features(data, regions) if regions.kind == "feature" else _regions(regions)
    )
    if regions.kind == "patch":
        shape, planes = data.observations.shape[1:], regions.planes
        inside = np.broadcast_to(np.arange(shape[-1]) >= planes, shape)
        found.append(BackgroundColour("the most frequent colour (the background)", inside, inside, planes=planes))
        if shape[-1] - planes == 3:
            for at, name in enumerate(("red", "green", "blue"), planes):
                channel = np.broadcast_to(np.arange(shape[-1]) == at, shape)
                found.append(StepPart(f"the {name} channel", channel, channel))
    return [*found, action_part(actions), StepPart("whether the step ends the episode", done=True)]


def action_part(space: gym.Space[Any]) -> StepPart:
    """Return the action as a part, and its components as that one's parts if there are several."""
    shape = space.shape or ()
    size = int(np.prod(shape))
    each: tuple[StepPart, ...] = ()
    if size > 1 and (choices_of(space) or isinstance(space, gym.spaces.Box)):
        masks = np.eye(size, dtype=bool).reshape(size, *shape)
        each = tuple(StepPart(f"action {at}", action=mask) for at, mask in enumerate(masks))
    return StepPart("the action", action=np.ones(shape, bool), parts=each)


def _regions(regions: Regions) -> list[StepPart]:
    return [StepPart(name, mask, mask) for name, mask in zip(regions.names, regions.masks, strict=True)]


def _features(data: Transitions, regions: Regions) -> list[StepPart]:
    each, found = _regions(regions), []
    for group in dependent(data):
        parts = tuple(each[at] for at in group)
        mask = regions.join(group)
        found.append(
            StepPart(", ".join(part.name for part in parts), mask, mask, parts=parts if len(parts) > 1 else ())
        )
    return found


@dataclass(frozen=True)
class FrameOffset:
    """One point in time that a step shows.

    Attributes:
        offset: steps relative to the state: 1 is the next state, 0 the state, -1 the frame before in a stack.
        state: where the observation shows it, ``[*observation_shape]`` bool; None if it doesn't.
        next_state: where the next observation shows it.
    """

    offset: int
    state: BoolArray | None
    next_state: BoolArray | None

    @property
    def part(self) -> StepPart:
        """The point in time as a part of the step."""
        steps = f"{-self.offset} step{'s' if self.offset < -1 else ''}"
        names = {1: "the next state", 0: "the state"}
        return StepPart(names.get(self.offset, f"the frame {steps} before the state"), self.state, self.next_state)


def frames(data: Transitions) -> list[FrameOffset]:
    """Return the points in time that a step shows, the latest first: next state, state, and the older frames of a stack."""
    places = stack(data)
    if places is None:
        everything = np.ones(data.observations.shape[1:], bool)
        return [FrameOffset(1, None, everything), FrameOffset(0, everything, None)]
    found = []
    for offset in range(1, -len(places), -1):
        at = [len(places) - 1 + offset, len(places) - 2 + offset]  # of the frame in state and next state
        found.append(FrameOffset(offset, *(places[i] if 0 <= i < len(places) else None for i in at)))
    return found


def stack(data: Transitions, most: int = 300) -> list[BoolArray] | None:
    """Return the places of each frame in a stack of frames, the oldest first; None if observations are no stacks."""
    shape = data.observations.shape[1:]
    moving = [i for i in range(len(data)) if not np.array_equal(data.observations[i], data.next_observations[i])][:most]
    if not shape or not moving:
        return None
    before, after = data.observations[moving], data.next_observations[moving]
    for axis in {len(shape), 1} if len(shape) < 3 else {len(shape)}:
        size = shape[axis - 1]
        for width in [w for w in range(1, size // 2 + 1) if size % w == 0]:
            late, early = np.arange(width, size), np.arange(size - width)
            for newest_last, (now, then) in ((True, (late, early)), (False, (early, late))):
                kept = before.take(now, axis)
                if not np.array_equal(kept, after.take(then, axis)) or np.array_equal(kept, before.take(then, axis)):
                    continue
                places = []
                for start in range(0, size, width):
                    mask = np.zeros(shape, bool)
                    np.moveaxis(mask, axis - 1, 0)[start : start + width] = True
                    places.append(mask)
                return places if newest_last else places[::-1]
    return None


def dependent(data: Transitions, bins: int = 8, least: float = 0.4) -> list[list[int]]:
    """Group the features of vectors that depend on each other, such as cosine and sine of an angle, which make no sense apart.

    Two features depend on each other if one tells more than ``least`` of which of ``bins`` levels the other has (mutual information
    over the smaller entropy).

    Returns:
        Groups that together hold each feature once, in order.
    """
    flat = data.observations.reshape(len(data), -1)
    levels = []
    for column in flat.T:
        values, which = np.unique(column, return_inverse=True)
        if len(values) > bins:
            edges = np.unique(np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1]))
            which = np.searchsorted(edges, column, "right")
        levels.append(which)
    group = list(range(len(levels)))
    for i, one in enumerate(levels):
        for j in range(i):
            if _shared(one, levels[j]) > least:
                group = [group[j] if of == group[i] else of for of in group]
    return [[i for i, of in enumerate(group) if of == name] for name in sorted(set(group), key=group.index)]


def _shared(one: Array, other: Array) -> float:
    """Return the mutual information of two arrays of levels over the smaller of their entropies."""
    joint = np.zeros((int(one.max()) + 1, int(other.max()) + 1))
    np.add.at(joint, (one, other), 1 / len(one))

    def entropy(of: FloatArray) -> float:
        used = of[of > 0]
        return float(-(used * np.log(used)).sum())

    apart = entropy(joint.sum(1)), entropy(joint.sum(0))
    together = entropy(joint.ravel())
    return (sum(apart) - together) / min(apart) if min(apart) > 0.1 else 0.0
