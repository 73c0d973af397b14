"""Counterfactuals: go back to a snapshot of an episode, edit the level, and let the agent act from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import Moments
from rlhf_ray.agents.play import play
from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.study.step import Mapper

COPIES = 64
"""Episodes that one task plays at a time."""


@dataclass(frozen=True)
class Snapshots(Moments):
    """Moments with all that is needed to go on from there. Their rows seed draws as in `play`.

    Attributes:
        states: the environment's.
        memory: the agent's before the step, ``[n, memory_size]``.
        levels: ``[n]``.
    """

    states: Sequence[bytes]
    memory: FloatArray
    levels: IntArray


def snapshots_of(episodes: Episodes, rows: IntArray | Sequence[int], steps: IntArray | Sequence[int]) -> Snapshots:
    """Return the snapshots before steps ``steps`` of episodes ``rows``.

    Raises:
        SettingError: the episodes hold no environment states, or are shorter.
    """
    at, when = np.asarray(rows, np.int64), np.asarray(steps, np.int64)
    if not len(episodes.env_states):
        raise SettingError("The episodes hold no environment states; play or record them with keep_states.")
    if (when >= episodes.lengths[at]).any() or (when < 0).any():
        raise SettingError("steps are beyond the end of some episodes; give steps that were made.")
    states = [episodes.env_states[row][step] for row, step in zip(at, when, strict=True)]
    return Snapshots(at, when, states, episodes.memory[at, when], episodes.levels[at])


def go_on(
    agent: Agent,
    make_batch: Callable[[int], EnvBatch],
    snapshots: Snapshots,
    *,
    edit: str | None = None,
    interventions: Sequence[Intervention] = (),
    greedy: bool = True,
    epsilon: float = 0.0,
    seed: int = 0,
    steps: int | None = None,
    mapper: Mapper = map,
) -> tuple[Episodes, BoolArray]:
    """Let the agent act from snapshots on. Without changes, and with its settings, an episode repeats itself exactly.

    Args:
        agent: acts.
        make_batch: makes copies of its environment.
        snapshots: where to start.
        edit: an edit of the level, made first.
        interventions: changes of what the agent has in mind.
        greedy: see `play`.
        epsilon: see `play`.
        seed: see `play`.
        steps: most steps to make.
        mapper: runs parts of the snapshots, here or elsewhere.

    Returns:
        The episodes from there on, and which levels the edit changed, ``[n]``.

    Raises:
        SettingError: the environment has no such edit.
    """
    if not len(snapshots):
        raise SettingError("There are no snapshots to go on from; give at least one.")
    settings = {"greedy": greedy, "epsilon": epsilon, "seed": seed, "max_steps": steps}
    parts = [snapshots[at : at + COPIES] for at in range(0, len(snapshots), COPIES)]
    done = list(mapper(partial(_part, agent, make_batch, edit, tuple(interventions), settings), parts))
    return Episodes.concatenate([episodes for episodes, _ in done]), np.concatenate([changed for _, changed in done])


@dataclass(frozen=True)
class Counterfact:
    """What happened from snapshots on, with and without a change.

    Attributes:
        snapshots: the snapshots whose level the edit changed; all, without an edit.
        plain: without the change.
        changed: with it.
    """

    snapshots: Snapshots
    plain: Episodes
    changed: Episodes


def counterfact(
    agent: Agent,
    make_batch: Callable[[int], EnvBatch],
    snapshots: Snapshots,
    *,
    edit: str | None = None,
    interventions: Sequence[Intervention] = (),
    plain: Episodes | None = None,
    steps: int | None = None,
    mapper: Mapper = map,
) -> Counterfact | None:
    """Compare how greedy episodes go on after an edit, an intervention, or both, with how they go on without.

    Snapshots whose level the edit leaves as it is, for example without a saw to remove, are left out; None if that's all.
    ``plain`` is what `go_on` returned for these snapshots without changes, if it is known. See `go_on` for everything else.
    """
    if plain is None:
        plain, _ = go_on(agent, make_batch, snapshots, steps=steps, mapper=mapper)
    given = {"edit": edit, "interventions": interventions}
    changed, touched = go_on(agent, make_batch, snapshots, **given, steps=steps, mapper=mapper)  # type: ignore[arg-type]
    kept = np.arange(len(snapshots)) if edit is None else np.flatnonzero(touched)
    if not len(kept):
        return None
    return Counterfact(snapshots[kept], plain.select(kept), changed.select(kept))


def repeats(batch: EnvBatch, episodes: Episodes, snapshots: Snapshots) -> BoolArray:
    """Return which restored snapshots repeat the rest of their episode bit for bit, given the recorded actions, ``[n]``."""
    found = np.zeros(len(snapshots), bool)
    for first in range(0, len(snapshots), batch.n):
        part = snapshots[first : first + batch.n]
        found[first : first + len(part)] = _repeats(batch, episodes, part)
    return found


def _repeats(batch: EnvBatch, episodes: Episodes, snapshots: Snapshots) -> BoolArray:
    copies = np.minimum(np.arange(batch.n), len(snapshots) - 1)
    rows, steps = snapshots.rows[copies], snapshots.steps[copies]
    same = np.ones(batch.n, bool)
    seen = batch.restore([snapshots.states[copy] for copy in copies])
    axes = tuple(range(1, seen.ndim))
    with_frames = episodes.observations.shape[2:] == seen.shape[1:]
    for ahead in range(int((episodes.lengths[rows] - steps).max()) + 1):
        at = np.minimum(steps + ahead, episodes.lengths[rows])
        if with_frames:
            same &= (seen == episodes.observations[rows, at]).all(axis=axes)
        going = steps + ahead < episodes.lengths[rows]
        if not going.any():
            break
        last = np.minimum(at, episodes.actions.shape[1] - 1)
        result = batch.step(episodes.actions[rows, last])
        same &= ~going | np.isclose(result.rewards, episodes.rewards[rows, last], rtol=1e-6, atol=1e-6)
        seen = np.where(going.reshape(-1, *[1] * len(axes)), result.observations, seen)
    return same[: len(snapshots)]


def _part(
    agent: Agent,
    make_batch: Callable[[int], EnvBatch],
    edit: str | None,
    interventions: Sequence[Intervention],
    settings: dict[str, bool | float | int | None],
    snapshots: Snapshots,
) -> tuple[Episodes, BoolArray]:
    batch = make_batch(len(snapshots))
    try:
        if edit is not None and edit not in batch.edits:
            offered = ", ".join(batch.edits) or "none"
            raise SettingError(f"edit is {edit!r}; {batch.name} offers {offered}.")
        states, changed = snapshots.states, np.zeros(len(snapshots), bool)
        if edit is not None:
            batch.restore(states)
            batch.edit(edit)
            states = batch.states()
            changed = np.array([one != other for one, other in zip(states, snapshots.states, strict=True)])
        episodes = play(
            agent,
            batch,
            snapshots.levels,
            hooks=interventions,
            start=(states, snapshots.memory, snapshots.steps),
            indices=snapshots.rows,
            **settings,  # type: ignore[arg-type]
        )
        return episodes, changed
    finally:
        batch.close()
