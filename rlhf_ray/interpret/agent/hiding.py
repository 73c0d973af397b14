"""Objects that are hidden from the agent's eyes and stay in the world: what it dies of then, and whether of that alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.envs.batch import BatchStep, EnvBatch
from rlhf_ray.interpret.agent.effects import CausalEffect, Change, causes_of, effect
from rlhf_ray.interpret.agent.questions.objects import OBJECT, patch_beside, repaint
from rlhf_ray.measure.intervals import SHARE, MeanEstimate, jackknife

AGENT = "agent"
"""The kind that is not hidden: it is the agent itself."""


class HidingBatch:
    """Copies of an environment whose frames lack a kind of object; the world keeps it. Everything else is as the batch has it.

    Args:
        batch: copies of an environment with images and masks.
        kind: the kind to hide: painted over with the nearest pixels beside it. Empty: nothing, and `areas` counts.
        control: hide as much at a random place without objects instead, drawn anew for each frame, in the frame's mean colour.
        seed: seeds the places.
    """

    def __init__(self, batch: EnvBatch, kind: str = "", control: bool = False, seed: int = 0):
        self.batch, self.kind, self.control = batch, kind, control
        self._rng = np.random.default_rng([seed, 36])
        self._areas: dict[str, list[float]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batch, name)

    @property
    def areas(self) -> dict[str, float]:
        """Mean share of the frames that each kind covers, of those seen without hiding."""
        return {name: float(np.mean(shares)) for name, shares in self._areas.items()}

    def reset(self, levels: Sequence[int]) -> Array:
        """See `EnvBatch.reset`."""
        return self._hidden(self.batch.reset(levels))

    def step(self, actions: Array) -> BatchStep:
        """See `EnvBatch.step`."""
        result = self.batch.step(actions)
        seen = self._hidden(result.observations)
        return BatchStep(seen, result.rewards, result.terminated, result.truncated, result.causes)

    def restore(self, states: Sequence[bytes]) -> Array:
        """See `EnvBatch.restore`."""
        return self._hidden(self.batch.restore(states))

    def _hidden(self, frames: Array) -> Array:
        masks = self.batch.masks()
        if not self.kind:
            for name, mask in masks.items():
                self._areas.setdefault(name, []).append(float(mask.mean()))
            return frames
        things = np.any([mask for name, mask in masks.items() if name == AGENT or 0 < mask.mean() <= OBJECT], axis=0)
        if not self.control:
            return repaint(frames, masks[self.kind], things)
        beside = patch_beside(masks[self.kind], things, self._rng)
        mean = np.rint(frames.mean((1, 2), keepdims=True)).astype(frames.dtype)
        return np.where(beside[..., None], mean, frames)


@dataclass(frozen=True)
class OwnEnd:
    """The end of episodes that is named as an object: what hiding the object does to its share.

    Attributes:
        share: of episodes, before and after hiding.
        control: before and after hiding a patch elsewhere.
        beyond: from that to hiding the object.
        selectivity: of all shares that change in the same direction, how much is this end's, 0 to 1; None if its own change is
            not clear of chance.
    """

    share: Change
    control: Change
    beyond: Change
    selectivity: MeanEstimate | None


@dataclass(frozen=True)
class HiddenObject:
    """What hiding a kind of object from the agent changes.

    Attributes:
        hidden: against the same levels with the object in view.
        control: the same when as large a patch is hidden at a random place.
        beyond: the true return, from the control to hiding.
        own: the end that is named as the object; None if no episode ends so.
    """

    hidden: CausalEffect
    control: CausalEffect
    beyond: Change
    own: OwnEnd | None

    @property
    def costs(self) -> bool:
        """Whether hiding changes the return, or how often episodes end by the object, by more than chance and than the control."""
        pairs = [(self.hidden.returns, self.beyond)]
        pairs += [] if self.own is None else [(self.own.share, self.own.beyond)]
        return any(not (change.difference.holds_zero or beyond.difference.holds_zero) for change, beyond in pairs)

    @property
    def others(self) -> dict[str, Change]:
        """Ends besides the object's own whose share changes in its direction, clear of chance; the largest first."""
        if self.own is None:
            return {}
        sign = np.sign(self.own.share.difference.mean)
        clear = {
            cause: change
            for cause, change in self.hidden.outcomes.items()
            if not change.difference.holds_zero and np.sign(change.difference.mean) == sign and change != self.own.share
        }
        return dict(sorted(clear.items(), key=lambda item: -abs(item[1].difference.mean)))


def objects_in(areas: Mapping[str, float]) -> list[str]:
    """Return the kinds that can be hidden: neither the agent nor scenery; the largest first."""
    return sorted(
        (name for name, area in areas.items() if 0 < area <= OBJECT and name != AGENT), key=lambda name: -areas[name]
    )


def compare(
    kind: str,
    plain: Episodes,
    hidden: Episodes,
    control: Episodes,
    space: gym.Space[Any],
    groups: IntArray,
) -> HiddenObject:
    """Compare the same levels with an object in view, hidden, and with as large a patch hidden elsewhere."""
    effects = [effect(plain, after, space, (), groups) for after in (hidden, control)]
    beyond = Change.of(control.returns, hidden.returns, groups)
    ends = [np.array(causes_of(episodes)) for episodes in (plain, hidden, control)]
    own = None
    if any(kind in each for each in ends):
        before, after, patched = ((each == kind).astype(float) for each in ends)
        share = Change.of(before, after, groups)
        selectivity = None if share.difference.holds_zero else selective(kind, ends[0], ends[1], groups)
        of_control, on_top = (Change.of(*pair, groups) for pair in ((before, patched), (patched, after)))
        own = OwnEnd(share, of_control, on_top, selectivity)
    return HiddenObject(effects[0], effects[1], beyond, own)


def selective(kind: str, before: Array, after: Array, groups: IntArray) -> MeanEstimate:
    """Return how much of all change of ends in the direction of ``kind``'s is ``kind``'s own, over levels.

    Args:
        kind: a cause of ends.
        before: causes ``[n]`` without a change.
        after: with it.
        groups: which levels are the same, ``[n]``.
    """
    causes = sorted({kind, *before, *after})
    changes = np.stack([(after == cause).astype(float) - (before == cause) for cause in causes], 1)
    group = np.unique(groups, return_inverse=True)[1].ravel()
    by_level = np.stack([np.bincount(group, change) for change in changes.T], 1) / np.bincount(group)[:, None]
    at = causes.index(kind)
    sign = np.sign(by_level.mean(0)[at])

    def share(sums: FloatArray) -> FloatArray:
        moved = np.maximum(sign * sums, 0.0)
        total = moved.sum(-1)
        return np.asarray(np.divide(moved[..., at], total, out=np.full(total.shape, np.nan), where=total > 0))

    return jackknife(share, by_level, SHARE)
