"""Changes whose effects a report measures: edits of the world, hidden objects, other observations and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from rlhf_ray.agents.agent import MEMORY, Edit, Hook, Sight
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.envs.batch import EnvBatch


@dataclass(frozen=True)
class Change:
    """One thing that is edited, hidden, exchanged or removed."""

    name: str  # of its row
    sight: Sight | None = None  # changes the world or what is seen of it; None: nothing
    hook: Hook | None = None  # changes what goes on inside the agent; None: nothing
    once: Hook | None = None  # the same at a single moment, if that is another one: memory that stands still
    world: bool = False  # whether the sight changes the world, or asks it where things are
    lasts: bool = False  # whether it stays, so that making it once, at the start, is making it throughout
    controls: tuple[Change, ...] = ()  # made-up changes of the same size

    def throughout(self, count: int) -> tuple[Sight | None, tuple[Hook, ...]]:
        """Return what to play ``count`` episodes with: the change at every step; at the first one if it lasts."""
        if self.lasts:
            return self.at(np.zeros(count, np.int64), np.arange(count))
        return self.sight, () if self.hook is None else (self.hook,)

    def at(self, moments: IntArray, rows: IntArray) -> tuple[Sight | None, tuple[Hook, ...]]:
        """Return what to play episodes with: the change at one step of each, ``[n]``; ``rows``: what the change calls each."""
        sight, hook = self.sight, self.once or self.hook

        def seen_then(batch: Any, seen: Array, copies: IntArray, episodes: IntArray, steps: IntArray) -> Array:
            now = steps == moments[episodes]
            if sight is None or not now.any():
                return seen
            return sight(batch, seen, copies[now], rows[episodes[now]], steps[now])

        return None if sight is None else seen_then, () if hook is None else (_only_at(hook, moments, rows),)


@dataclass(frozen=True)
class _Changes:
    """A `Hook` that is a function of a site's values, the steps, and the episodes that the rows are."""

    change: Callable[[Tensor, int | IntArray, IntArray], Tensor]
    site: str = MEMORY

    def edit(self, step: int | IntArray, rows: IntArray | None = None) -> Edit:
        return lambda values: self.change(values, step, np.arange(len(values)) if rows is None else rows)


def _only_at(hook: Hook, moments: IntArray, rows: IntArray) -> Hook:
    """Return a hook at one step of each episode, ``[n]``."""

    def change(values: Tensor, step: int | IntArray, episodes: IntArray) -> Tensor:
        now = torch.as_tensor(np.asarray(step) == moments[episodes]).view(-1, *[1] * (values.dim() - 1))
        return torch.where(now, hook.edit(step, rows[episodes])(values), values) if now.any() else values

    return _Changes(change, hook.site)


def edit_world(edit: str) -> Sight:
    """Return an edit that the environment offers."""

    def sight(batch: Any, seen: Array, copies: IntArray, episodes: IntArray, steps: IntArray) -> Array:
        return np.asarray(batch.edit(edit, np.isin(np.arange(batch.n), copies)))

    return sight


def hide(kind: str, beside: bool = False, seed: int = 0) -> Sight:
    """Return what paints a kind of object over with the nearest pixels beside it; the world keeps it.

    With ``beside``, it paints as large a place without objects instead, drawn at random by the seed, in the frame's mean colour.
    """

    def sight(batch: Any, seen: Array, copies: IntArray, episodes: IntArray, steps: IntArray) -> Array:
        masks = {name: mask[copies] for name, mask in batch.masks().items()}
        things = np.any([mask for name, mask in masks.items() if name == AGENT or 0 < mask.mean() <= OBJECT], axis=0)
        changed, frames = seen.copy(), seen[copies]
        if beside:
            draws = np.random.default_rng([seed, int(steps.sum()), len(copies)])
            patch = patch_beside(masks[kind], things, draws)[..., None]
            changed[copies] = np.where(patch, np.rint(frames.mean((1, 2), keepdims=True)).astype(seen.dtype), frames)
        else:
            changed[copies] = repaint(frames, masks[kind], things)
        return changed

    return sight


def other_sight(observations: Array, last: IntArray, number: int | None = None) -> Sight:
    """Return what shows what other episodes do at the same step, or one number of it.

    ``observations`` are those of the other episodes, ``[n, T + 1, …]``, and ``last`` is the last step of each, ``[n]``.
    """

    def sight(batch: Any, seen: Array, copies: IntArray, episodes: IntArray, steps: IntArray) -> Array:
        others, changed = observations[episodes, np.minimum(steps, last[episodes])], seen.copy()
        if number is None:
            changed[copies] = others
        else:
            changed[copies, number] = others[:, number]
        return changed

    return sight


def replaced_memory(memory: FloatArray, last: IntArray) -> Hook:
    """Return what puts memory ``[n, T, size]`` in place of the agent's after each step; ``last``: its last step, ``[n]``."""
    return _Changes(
        lambda values, step, rows: torch.as_tensor(memory[rows, np.minimum(step, last[rows])]).to(values.dtype)
    )


def edits(batch: EnvBatch, plain: Episodes) -> list[Change]:
    """Return the edits that the environment offers. ``plain`` keeps states, if the environment can save them."""
    named = {name: f"{name}: {does.rstrip('.')}" if does else name for name, does in batch.edits.items()}
    return [
        Change(title, edit_world(name), world=True, lasts=_lasts(batch, plain, name)) for name, title in named.items()
    ]


def _lasts(batch: EnvBatch, plain: Episodes, edit: str) -> bool:
    """Return whether an edit stays: a step after the edit leads where the edit after the step leads, at steps of all episodes."""
    if not len(plain.env_states):
        return False
    rows = np.arange(batch.n) % len(plain)
    changed = False
    for share in (0.0, 0.25, 0.5, 0.75):
        steps = (plain.lengths[rows] * share).astype(np.int64)
        states = [plain.env_states[int(row)][int(step)] for row, step in zip(rows, steps, strict=True)]
        after = []
        for first in (True, False):
            batch.restore(states)
            if first:
                batch.edit(edit)
                changed |= batch.states() != states
            result = batch.step(plain.actions[rows, steps])
            if not first:
                batch.edit(edit)
            going = ~(result.terminated | result.truncated)
            after.append(batch.states())
        if any(one != other for one, other, on in zip(*after, going, strict=True) if on):
            return False
    return changed


def hidden_objects(kinds: Sequence[str], seed: int) -> list[Change]:
    """Return the hiding of each kind of object, beside that of as much of the background."""
    return [
        Change(f"{kind} hidden", hide(kind), world=True, controls=(Change(kind, hide(kind, True, seed), world=True),))
        for kind in kinds
    ]


def other_sights(plain: Episodes, partners: IntArray, names: Sequence[str]) -> list[Change]:
    """Return the exchange of what is seen with another level's at the same step; ``names``: of a vector's numbers, each alone."""
    seen, last = plain.observations[partners], plain.lengths[partners] - 1
    whole = "the frame" if seen.ndim > 3 else "the observation"
    alone = [Change(f"{name} of another level", other_sight(seen, last, at)) for at, name in enumerate(names)]
    return [Change(f"{whole} of another level", other_sight(seen, last)), *(alone if len(alone) > 1 else ())]


def other_memory(plain: Episodes, partners: IntArray) -> list[Change]:
    """Return memory that stands still, and that of another level at the same step."""
    last, start = plain.lengths - 1, np.repeat(plain.memory[:, :1], plain.actions.shape[1], 1)
    stays, once = replaced_memory(start, last), replaced_memory(plain.memory[:, :-1], last)
    other = replaced_memory(plain.memory[partners, 1:], last[partners])
    return [Change("memory stands still", hook=stays, once=once), Change("memory of another level", hook=other)]


AGENT = "agent"
"""The kind that is not hidden: it is the agent itself."""
SIDEWAYS = 100.0
"""How much farther than a column a row is: what stands on the ground is replaced by what is beside it."""
TRIES = 64
"""Places tried for a patch of the background."""
OBJECT = 0.12
"""Kinds of objects cover at most this share of the frames, on average. The rest is scenery; what moves is the agent."""


def masks_at(batch: EnvBatch, states: Sequence[bytes]) -> dict[str, BoolArray]:
    """Return the masks of all kinds of things at some states, ``[n, height, width]`` by name; empty if unknown."""
    parts: dict[str, list[BoolArray]] = {}
    for start in range(0, len(states), batch.n):
        some = list(states[start : start + batch.n])
        batch.restore(some + some[:1] * (batch.n - len(some)))
        for name, mask in batch.masks().items():
            parts.setdefault(name, []).append(mask[: len(some)])
    return {name: np.concatenate(masks) for name, masks in parts.items()}


def objects_in(masks: Mapping[str, BoolArray]) -> list[str]:
    """Return the kinds that can be hidden: neither the agent nor scenery; the largest first."""
    areas = {name: float(mask.mean()) for name, mask in masks.items() if name != AGENT}
    return sorted((name for name, area in areas.items() if 0 < area <= OBJECT), key=lambda name: -areas[name])


def repaint(frames: Array, masks: BoolArray, others: BoolArray | None = None) -> Array:
    """Paint objects over in frames ``[n, height, width, channels]`` with the nearest pixels, in the same row where there are any.

    Other objects (both masks are ``[n, height, width]``) give no colours, so that no second one appears in the first one's place.
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
    """Move each mask ``[n, height, width]`` to a random place that isn't ``taken`` by any object; empty where there is none."""
    moved = np.zeros_like(masks)
    for row, (mask, full) in enumerate(zip(masks, taken, strict=True)):
        cells = np.argwhere(mask)
        if not len(cells):
            continue
        cells = cells - cells.min(0)
        room = np.array(mask.shape) - cells.max(0)
        for _ in range(TRIES):
            place = cells + rng.integers(0, room)
            if not full[tuple(place.T)].any():
                moved[row][tuple(place.T)] = True
                break
    return moved
