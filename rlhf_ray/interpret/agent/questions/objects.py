"""Objects in frames, and their removal: how a quantity changes when one is painted over, or taken out of the level itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.ndimage import distance_transform_edt

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import WorldMoments
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.questions.quantities import Quantity
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.attribution.faithfulness import agreement, trained_against_untrained, where_it_matters
from rlhf_ray.interpret.attribution.gradients import SmoothGrad
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean
from rlhf_ray.study.figures import DRAWN

SIDEWAYS = 100.0
"""How much farther than a column a row is: what stands on the ground is replaced by what is beside it."""
TRIES = 64
"""Places tried for a patch of the background."""
OBJECT = 0.12
"""Kinds of objects cover at most this share of the frames, on average. The rest is scenery; what moves is the agent."""
TRAINED, TIMES = 1.2, 4.0
"""Least ratio of concentrations, trained over untrained; an object matters if it changes a quantity this many times as much as
background does."""
ROUNDING = 1e-5
"""Change of a quantity that float32 networks' rounding may make by itself."""


@dataclass(frozen=True)
class ObjectFigures:
    """What the removal of a kind of object changes, and how much of the gradients lies on it.

    Attributes:
        quantity: of which quantity.
        name: the object.
        moments: in how many it is in view.
        painted: mean absolute change of the quantity when it is painted over.
        signed: mean change.
        control: mean absolute change when as much background is painted.
        edited: mean absolute change when it is taken out of the level; None if it can't be.
        sign, interval, rank: how well paint agrees with the edit: see `Agrees`.
        concentration: share of SmoothGrad on it over its area, for the agent and for untrained ones.
        excess: how much larger the change is than `TIMES` that of background, at moments that have both; intervals are by episode.
    """

    quantity: Quantity = field(metadata=DRAWN)
    name: str = field(metadata=DRAWN)
    moments: int
    painted: float
    signed: float
    control: float
    edited: float | None
    sign: float | None
    interval: list[float] | None
    rank: float | None
    concentration: tuple[float, float] | None
    excess: MeanEstimate

    @property
    def matters(self) -> bool:
        """Whether it matters `TIMES` as much as background, with the whole interval; or at all, where background doesn't."""
        return self.painted >= ROUNDING and self.excess.low is not None and self.excess.low >= 0.0

    @property
    def distrusted(self) -> bool:
        """Whether untrained agents' maps lie on it nearly as much."""
        shares = self.concentration
        return shares is not None and 1.0 < shares[0] < TRAINED * shares[1]


@dataclass(frozen=True)
class Removal:
    """Changes of a quantity when objects are removed: after minus before.

    Attributes:
        changes: for each kind of object ``[n]``; NaN where none is in view.
        control: for each kind: the change when a patch of the background of the same shape and size is painted with the
            frame's mean colour instead, ``[n]``; NaN where there was no place for it.
    """

    changes: Mapping[str, FloatArray]
    control: Mapping[str, FloatArray]


def states_of(episodes: Episodes, moments: WorldMoments) -> list[bytes]:
    """Return the environment's states at moments; empty if the recording has none."""
    if not len(episodes.env_states):
        return []
    return [bytes(episodes.env_states[int(i)][int(t)]) for i, t in zip(moments.rows, moments.steps, strict=True)]


def masks_at(batch: EnvBatch, states: Sequence[bytes]) -> dict[str, BoolArray]:
    """Return the masks of all kinds of things at some states, ``[n, height, width]`` by name; empty if unknown."""
    parts_by_name: dict[str, list[BoolArray]] = {}
    for chunk in _restored(batch, states):
        for name, mask in batch.masks().items():
            parts_by_name.setdefault(name, []).append(mask[: chunk.stop - chunk.start])
    return {name: np.concatenate(parts) for name, parts in parts_by_name.items()}


def _restored(batch: EnvBatch, states: Sequence[bytes]) -> Iterator[slice]:
    """Restore a batch to some states, as many at a time as it has copies; return which these are."""
    for start in range(0, len(states), batch.n):
        some = list(states[start : start + batch.n])
        batch.restore(some + some[:1] * (batch.n - len(some)))
        yield slice(start, start + len(some))


def objects_of(masks: Mapping[str, BoolArray]) -> tuple[dict[str, BoolArray], BoolArray | None]:
    """Tell objects from scenery: return the objects' masks, and where the largest kind of scenery is."""
    objects = {name: mask for name, mask in masks.items() if 0 < mask.mean() <= OBJECT and name != "agent"}
    scenery = {name: mask for name, mask in masks.items() if name not in objects and name != "agent"}
    return objects, max(scenery.values(), key=lambda mask: float(mask.mean()), default=None)


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


def by_painting(
    question: AgentQuestion,
    moments: WorldMoments,
    masks: Mapping[str, BoolArray],
    rng: np.random.Generator,
    background: BoolArray | None = None,
) -> Removal:
    """Paint each kind of object over in the moments' frames, with the agent's real memory, and see what changes.

    Args:
        question: now, without a world model.
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
    before = question.values(moments)
    taken = things = np.any(list(masks.values()), axis=0)
    if background is not None:
        taken = taken | ~background
    mean = frames.mean((1, 2), keepdims=True)
    changes, control = {}, {}
    for name, mask in masks.items():
        there = mask.any((1, 2))
        changes[name] = np.where(
            there, question.changed(moments, "frame", repaint(frames, mask, things)[None])[0] - before, np.nan
        )
        beside = patch_beside(mask, taken, rng)
        painted = np.where(beside[..., None], mean, frames)
        control[name] = np.where(
            beside.any((1, 2)), question.changed(moments, "frame", painted[None])[0] - before, np.nan
        )
    return Removal(changes, control)


def by_editing(
    question: AgentQuestion, moments: WorldMoments, batch: EnvBatch, states: Sequence[bytes], edits: Sequence[str]
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
    before = question.values(moments)
    changes_by_edit = {}
    for edit in edits:
        frames = moments.frames.copy()
        for chunk in _restored(batch, states):
            frames[chunk] = np.asarray(batch.edit(edit))[: chunk.stop - chunk.start]
        changed = (frames != moments.frames).reshape(len(frames), -1).any(1)
        changes_by_edit[edit] = np.where(changed, question.changed(moments, "frame", frames[None])[0] - before, np.nan)
    return changes_by_edit


def object_figures(
    question: AgentQuestion,
    others: Sequence[AgentQuestion],
    moments: WorldMoments,
    batch: EnvBatch,
    states: Sequence[bytes],
    objects: Mapping[str, BoolArray],
    rng: np.random.Generator,
    background: BoolArray | None = None,
) -> list[ObjectFigures]:
    """Remove each kind of object that is in view by paint and in the level, and see how much of SmoothGrad lies on it.

    Args:
        question: now, with typical values.
        others: the same about untrained agents.
        moments: with images.
        batch: copies of the environment.
        states: its states at the moments.
        objects: where they are, ``[n, height, width]`` by name.
        rng: draws the control's places.
        background: where the control may be.
    """
    edits = {name: f"remove_{name}" for name in objects if f"remove_{name}" in batch.edits}
    painted = by_painting(question, moments, objects, rng, background)
    edited = by_editing(question, moments, batch, states, list(edits.values()))
    mattering = {name: where_it_matters(mask, painted.changes[name]) for name, mask in objects.items()}
    shares: Mapping[str, tuple[float, float]] = {}
    if others:
        shares = trained_against_untrained(question, others, moments, mattering, SmoothGrad(), "frame")
    all_figures = []
    for name, changes in painted.changes.items():
        if not np.isfinite(changes).any():
            continue
        real = edited.get(edits.get(name, ""))
        agreed = None if real is None else agreement(changes, real)
        figures = ObjectFigures(
            question.quantity,
            name,
            int(np.isfinite(changes).sum()),
            _mean(np.abs(changes)),
            _mean(changes),
            _mean(np.abs(painted.control[name])),
            None if real is None else _mean(np.abs(real)),
            None if agreed is None else agreed.sign,
            None if agreed is None else agreed.interval,
            None if agreed is None else agreed.rank,
            shares.get(name),
            _excess(changes, painted.control[name], moments.rows),
        )
        all_figures.append(figures)
    return all_figures


def _excess(changes: FloatArray, control: FloatArray, rows: IntArray) -> MeanEstimate:
    more = np.abs(changes) - TIMES * np.abs(control)
    known = np.isfinite(more)
    return estimate_mean(more[known], rows[known])


def _mean(values: FloatArray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
