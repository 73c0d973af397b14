"""What changes an agent while it acts: hooks change its memory or a layer, in `play` or in a world model; sights what it sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlhf_ray.agents.agent import MEMORY, Agent, Edit
from rlhf_ray.data.arrays import Array, IntArray
from rlhf_ray.data.errors import SettingError


class Hook(Protocol):
    """A change of one site of an agent. `rlhf_ray.interpret.directions.interventions.Intervention` is one."""

    @property
    def site(self) -> str:
        """`MEMORY`, changed after the step's update and before actor and critic read it; or a layer's name."""
        ...

    def edit(self, step: int | IntArray, rows: IntArray | None = None) -> Edit:
        """Return the change of the site's values at one step.

        Args:
            step: steps since the start of the episode, of all rows or of each.
            rows: the episodes that the rows are; None: 0 to n-1.
        """
        ...


class Sight(Protocol):
    """A change of the world, or of what an agent sees of it."""

    def __call__(self, batch: Any, seen: Array, copies: IntArray, episodes: IntArray, steps: IntArray) -> Array:
        """Return what is seen instead, ``[n, …]``.

        Args:
            batch: ``n`` copies of the environment (`EnvBatch`), which it may edit.
            seen: their observations, ``[n, …]``.
            copies: the copies that go on, ``[k]``; the observations of others don't count.
            episodes: the numbers of their episodes, ``[k]``.
            steps: steps since the start of the episode, ``[k]``.
        """
        ...


def check(hooks: Sequence[Hook], agent: Agent) -> None:
    """Raise a `SettingError` if ``agent`` does not have the sites of ``hooks``."""
    for hook in hooks:
        if hook.site == MEMORY and not agent.memory_size:
            raise SettingError(
                f"site is 'memory', but the agent has no memory; give a layer: {', '.join(agent.layers)}."
            )
        if hook.site != MEMORY and hook.site not in agent.layers:
            raise SettingError(
                f"site is {hook.site!r}; the agent has {', '.join([*[MEMORY] * bool(agent.memory_size), *agent.layers])}."
            )


def edits_at(hooks: Sequence[Hook], step: int | IntArray, rows: IntArray | None = None) -> dict[str, Edit]:
    """Return the edits of one step by site; several hooks at one site act one after another."""
    edits: dict[str, Edit] = {}
    for hook in hooks:
        edit = hook.edit(step, rows)
        edits[hook.site] = _after(edits[hook.site], edit) if hook.site in edits else edit
    return edits


def edits_for(
    hooks: Sequence[Hook], start: int | IntArray = 0, rows: IntArray | None = None
) -> Callable[[int], Mapping[str, Edit]] | None:
    """Return the hooks as a function of a simulation's step, as world models take them; None without hooks.

    Args:
        hooks: what `play` takes.
        start: steps since the start of the episode at the simulation's first step, of all rows or of each.
        rows: the episodes that the rows are; None: 0 to n-1.
    """
    if not hooks:
        return None
    return lambda step: edits_at(hooks, np.asarray(start, np.int64) + step, rows)


def _after(first: Edit, second: Edit) -> Edit:
    return lambda values: second(first(values))
