"""Changes whose effects a report measures: edits of the world, hidden objects, other observations and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import MEMORY, Edit
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.hooks import Hook, Sight
from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.objects import AGENT, OBJECT, patch_beside, repaint


@dataclass(frozen=True)
class Change:
    """One thing that is edited, hidden, exchanged or removed.

    Attributes:
        name: of its row.
        sight: changes the world or what is seen of it; None: nothing.
        hook: changes what goes on inside the agent; None: nothing.
        once: the same at a single moment, if that is another one: memory that stands still.
        world: whether the sight changes the world, or asks it where things are.
        lasts: whether it stays, so that making it once, at the start, is making it throughout.
        controls: made-up changes of the same size.
    """

    name: str
    sight: Sight | None = None
    hook: Hook | None = None
    once: Hook | None = None
    world: bool = False
    lasts: bool = False
    controls: tuple[Change, ...] = ()

    def throughout(self, count: int) -> tuple[Sight | None, tuple[Hook, ...]]:
        """Return what to play ``count`` episodes with: the change at every step; at the first one if it lasts."""
        if self.lasts:
            return self.at(np.zeros(count, np.int64), np.arange(count))
        return self.sight, () if self.hook is None else (self.hook,)

    def at(self, moments: IntArray, rows: IntArray) -> tuple[Sight | None, tuple[Hook, ...]]:
        """Return what to play episodes with: the change at one step of each, ``[n]``; ``rows``: what the change calls each."""
        hook = self.once or self.hook
        return (
            None if self.sight is None else _SightAt(self.sight, moments, rows),
            () if hook is None else (_HookAt(hook, moments, rows),),
        )


@dataclass(frozen=True)
class _SightAt:
    """A sight at one step of each episode, ``[n]``."""

    sight: Sight
    moments: IntArray
    rows: IntArray

    def __call__(self, batch: Any, seen: Array, copies: IntArray, episodes: IntArray, steps: IntArray) -> Array:
        now = steps == self.moments[episodes]
        return self.sight(batch, seen, copies[now], self.rows[episodes[now]], steps[now]) if now.any() else seen


@dataclass(frozen=True)
class _HookAt:
    """A hook at one step of each episode, ``[n]``."""

    hook: Hook
    moments: IntArray
    rows: IntArray

    @property
    def site(self) -> str:
        return self.hook.site

    def edit(self, step: int | IntArray, rows: IntArray | None = None) -> Edit:
        def apply(values: Tensor) -> Tensor:
            episodes = np.arange(len(values)) if rows is None else rows
            now = torch.as_tensor(np.asarray(step) == self.moments[episodes]).view(-1, *[1] * (values.dim() - 1))
            return torch.where(now, self.hook.edit(step, self.rows[episodes])(values), values) if now.any() else values

        return apply


@dataclass(frozen=True)
class EditWorld:
    """An edit that the environment offers."""

    edit: str

    def __call__(self, batch: Any, seen: Array, copies: IntArray, episodes: IntArray, steps: IntArray) -> Array:
        """See `Sight`."""
        return np.asarray(batch.edit(self.edit, np.isin(np.arange(batch.n), copies)))


@dataclass(frozen=True)
class Hide:
    """Paints a kind of object over with the nearest pixels beside it; the world keeps it.

    Attributes:
        kind: of object.
        beside: paint as large a place without objects instead, drawn at random, in the frame's mean colour.
        seed: seeds the places.
    """

    kind: str
    beside: bool = False
    seed: int = 0

    def __call__(self, batch: Any, seen: Array, copies: IntArray, episodes: IntArray, steps: IntArray) -> Array:
        """See `Sight`."""
        masks = {name: mask[copies] for name, mask in batch.masks().items()}
        things = np.any([mask for name, mask in masks.items() if name == AGENT or 0 < mask.mean() <= OBJECT], axis=0)
        changed, frames = seen.copy(), seen[copies]
        if self.beside:
            draws = np.random.default_rng([self.seed, int(steps.sum()), len(copies)])
            patch = patch_beside(masks[self.kind], things, draws)[..., None]
            changed[copies] = np.where(patch, np.rint(frames.mean((1, 2), keepdims=True)).astype(seen.dtype), frames)
        else:
            changed[copies] = repaint(frames, masks[self.kind], things)
        return changed


@dataclass(frozen=True)
class OtherSight:
    """What another episode shows at the same step, or some of its numbers.

    Attributes:
        observations: of the other episodes, ``[n, T + 1, …]``.
        last: the last step of each, ``[n]``.
        numbers: which numbers of a vector; None: all that is seen.
    """

    observations: Array = field(repr=False)
    last: IntArray
    numbers: tuple[int, ...] | None = None

    def __call__(self, batch: Any, seen: Array, copies: IntArray, episodes: IntArray, steps: IntArray) -> Array:
        """See `Sight`."""
        others, changed = self.observations[episodes, np.minimum(steps, self.last[episodes])], seen.copy()
        if self.numbers is None:
            changed[copies] = others
        else:
            columns = list(self.numbers)
            changed[copies[:, None], columns] = others[:, columns]
        return changed


@dataclass(frozen=True)
class OtherMemory:
    """Memory that is put in place of the agent's after each step's update.

    Attributes:
        memory: ``[n, T, size]``.
        last: the last step that there is memory of, ``[n]``.
    """

    memory: FloatArray = field(repr=False)
    last: IntArray
    site: str = MEMORY

    def edit(self, step: int | IntArray, rows: IntArray | None = None) -> Edit:
        """See `Hook`."""

        def apply(values: Tensor) -> Tensor:
            episodes = np.arange(len(values)) if rows is None else rows
            return torch.as_tensor(self.memory[episodes, np.minimum(step, self.last[episodes])]).to(values.dtype)

        return apply


def edits(batch: EnvBatch, plain: Episodes) -> list[Change]:
    """Return the edits that the environment offers. ``plain`` keeps states, if the environment can save them."""
    return [
        Change(
            f"{name}: {does.rstrip('.')}" if does else name,
            EditWorld(name),
            world=True,
            lasts=_lasts(batch, plain, name),
        )
        for name, does in batch.edits.items()
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
        Change(f"{kind} hidden", Hide(kind), world=True, controls=(Change(kind, Hide(kind, True, seed), world=True),))
        for kind in kinds
    ]


def other_sights(plain: Episodes, partners: IntArray, names: Sequence[str]) -> list[Change]:
    """Return the exchange of what is seen with another level's at the same step; ``names``: of a vector's numbers, each alone."""
    seen, last = plain.observations[partners], plain.lengths[partners] - 1
    whole = "the frame" if seen.ndim > 3 else "the observation"
    alone = [Change(f"{name} of another level", OtherSight(seen, last, (at,))) for at, name in enumerate(names)]
    return [Change(f"{whole} of another level", OtherSight(seen, last)), *(alone if len(alone) > 1 else ())]


def other_memory(plain: Episodes, partners: IntArray) -> list[Change]:
    """Return memory that stands still, and that of another level at the same step."""
    last, start = plain.lengths - 1, np.repeat(plain.memory[:, :1], plain.actions.shape[1], 1)
    still = Change("memory stands still", hook=OtherMemory(start, last), once=OtherMemory(plain.memory[:, :-1], last))
    other = OtherMemory(plain.memory[partners, 1:], last[partners])
    return [still, Change("memory of another level", hook=other)]
