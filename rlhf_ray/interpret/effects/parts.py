"""Parts of a step that can be exchanged among steps: features and groups of them, regions, frames, the action, its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, IntArray
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.regions import Regions


@dataclass(frozen=True)
class StepPart:
    """A part of a step: masks of what belongs to it, None for nothing."""

    name: str
    state: BoolArray | None = None  # [*observation_shape]
    next_state: BoolArray | None = None
    action: BoolArray | None = None  # [*action_shape]
    done: bool = False  # whether the termination flag belongs to it
    parts: tuple[StepPart, ...] = ()  # what it consists of

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
    """The background of images: the pixels of each image's most frequent colour. The first ``planes``, numbers, stay."""

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


def parts_of(data: Transitions, regions: Regions | None, actions: gym.Space[Any]) -> list[StepPart]:
    """Return the parts of a step, without the cells of grids: a grid's parts are its objects (`edits.world_edits`).

    Features that go together are one part, with each of them as its part; regions of images are parts, and so are their
    background's colour and their channels. Then come the action, and whether the step ends the episode.
    """
    rest = [action_part(actions), StepPart("whether the step ends the episode", done=True)]
    if regions is None:  # a table's state
        everything = np.ones(data.observations.shape[1:], bool)
        return [StepPart("the state", everything, everything), *rest]
    each = [StepPart(name, mask, mask) for name, mask in zip(regions.names, regions.masks, strict=True)]
    found = each if regions.kind == "patch" else []
    if regions.kind == "feature":
        for group in dependent(data):
            mask, parts = np.asarray(regions.masks[group].any(0)), tuple(each[at] for at in group)
            name = ", ".join(part.name for part in parts)
            found.append(StepPart(name, mask, mask, parts=parts if len(parts) > 1 else ()))
    if regions.kind == "patch":
        shape, planes = data.observations.shape[1:], regions.planes
        inside = np.broadcast_to(np.arange(shape[-1]) >= planes, shape)
        found.append(BackgroundColour("the most frequent colour (the background)", inside, inside, planes=planes))
        if shape[-1] - planes == 3:
            for at, name in enumerate(("red", "green", "blue"), planes):
                channel = np.broadcast_to(np.arange(shape[-1]) == at, shape)
                found.append(StepPart(f"the {name} channel", channel, channel))
    return [*found, *rest]


def action_part(space: gym.Space[Any]) -> StepPart:
    """Return the action as a part, and its components as that one's parts if there are several."""
    shape = space.shape or ()
    size = int(np.prod(shape))
    each: tuple[StepPart, ...] = ()
    if size > 1 and (choices_of(space) or isinstance(space, gym.spaces.Box)):
        masks = np.eye(size, dtype=bool).reshape(size, *shape)
        each = tuple(StepPart(f"action {at}", action=mask) for at, mask in enumerate(masks))
    return StepPart("the action", action=np.ones(shape, bool), parts=each)


def frames(data: Transitions) -> list[StepPart]:
    """Return the points in time that a step shows, the latest first: next state, state, and the older frames of a stack."""
    places = stack(data)
    if places is None:
        everything = np.ones(data.observations.shape[1:], bool)
        return [StepPart("the next state", None, everything), StepPart("the state", everything)]
    found, last = [], len(places) - 1
    for ago in range(-1, last + 1):  # steps before the state
        steps = f"{ago} step{'s' if ago > 1 else ''}"
        name = {-1: "the next state", 0: "the state"}.get(ago, f"the frame {steps} before the state")
        at = last - ago, last - ago - 1  # the frame in state and next state
        state, after = (places[i] if 0 <= i <= last else None for i in at)
        found.append(StepPart(name, state, after))
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


def dependent(data: Transitions) -> list[list[int]]:
    """Group the features of vectors that depend on each other, such as cosine and sine of an angle, which make no sense apart.

    Two features depend on each other if one tells more than 0.4 of which of 8 levels the other has (mutual information
    over the smaller entropy).

    Returns:
        Groups that together hold each feature once, in order.
    """
    levels = [levels_of(column, 8, 8) for column in data.observations.reshape(len(data), -1).T]
    group = list(range(len(levels)))
    for i, one in enumerate(levels):
        for j in range(i):
            if _shared(one, levels[j]) > 0.4:
                group = [group[j] if of == group[i] else of for of in group]
    return [[i for i, of in enumerate(group) if of == name] for name in sorted(set(group), key=group.index)]


def levels_of(values: Array, count: int, most: int) -> IntArray:
    """Number the levels of ``values`` ``[n]``: its values if there are at most ``most``, else ``count`` of equal size."""
    different, which = np.unique(values, return_inverse=True)
    if len(different) <= most:
        return np.asarray(which)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1)[1:-1]))
    return np.searchsorted(edges, values, "right")


def _shared(one: IntArray, other: IntArray) -> float:
    """Return the mutual information of two arrays of levels over the smaller of their entropies."""
    from sklearn.metrics import mutual_info_score  # a slow import

    least = min(mutual_info_score(each, each) for each in (one, other))
    return float(mutual_info_score(one, other)) / least if least > 0.1 else 0.0
