"""Rings: in this process with actors that are plain objects, and of real Ray actors with people. Not a test itself."""

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_ray.actors.build import build_ring
from rlhf_ray.actors.executor import Executor, LocalExecutor
from rlhf_ray.actors.people import PageSettings
from rlhf_ray.actors.ray_executor import RayExecutor
from rlhf_ray.actors.ring import Progress, RingSettings
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.settings import (
    FragmentSettings,
    LabellingSettings,
    MachineSettings,
    PreferenceSettings,
    RewardModelSettings,
)
from rlhf_ray.store import PreferenceStore
from tests.made_up import AlwaysUp, Drawn, Walk

FRAGMENTS = FragmentSettings(length=5, pool=30, initial_env_steps=200, exploration_env_steps=60)
REWARD_MODEL = RewardModelSettings(hidden=(8,), batch_size=4, initial_updates=10, updates=5)
WALK = partial(Walk, (20,), numbered=False)


@contextmanager
def ring_in(
    folder: Path,
    preferences: PreferenceSettings,
    *,
    executor: Executor | None = None,
    fragments: FragmentSettings = FRAGMENTS,
    reward_model: RewardModelSettings = REWARD_MODEL,
    make_env: Callable[[], Any] = WALK,
    iterations: int = 100,
    iteration_env_steps: int = 10,
    total_env_steps: int = 1000,
    seed: int = 0,
    begun_after: int | None = None,
    machine: MachineSettings | None = None,
    **arguments: Any,
) -> Iterator[Any]:
    """A ring whose store is in ``folder``."""
    env = make_env()
    settings = RingSettings(
        fragments.resolved(horizon=None, total_env_steps=total_env_steps),
        preferences,
        reward_model,
        env.observation_space,
        env.action_space,
        folder / "store",
        seed,
        total_env_steps,
        begun_after,
        machine or MachineSettings(),
        "Further right is better.",
    )
    ring = build_ring(
        settings,
        executor or LocalExecutor(),
        make_env,
        rollouts=4,
        iterations=iterations,
        iteration_env_steps=iteration_env_steps,
        **arguments,
    )
    try:
        yield ring
    finally:
        ring.close()


def at(progress: float, env_steps: int = 0, *, push: float = 0.1, room: int = 100, iteration: int = 1) -> Progress:
    """How far a training is whose policy always pushes so."""
    return Progress(progress, env_steps, room, iteration, lambda: partial(AlwaysUp, push))


def replaced(preferences: PreferenceSettings, **changes: Any) -> PreferenceSettings:
    """The same with other values."""
    return dataclasses.replace(preferences, **changes)


class Heard:
    """A `RingCallbacks` that remembers what it was told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.links: list[dict[str, str]] = []
        self.waits: list[Any] = []

    def on_stage(self, stage: str) -> None:
        self.stages.append(stage)

    def on_links(self, links: dict[str, str]) -> None:
        self.links.append(links)

    def on_wait(self, wait: Any) -> None:
        self.waits.append(wait)


def events_in(folder: Path) -> list[dict[str, Any]]:
    """What the store of the ring in ``folder`` has noted."""
    rows: list[dict[str, Any]] = PreferenceStore(folder / "store").events().to_pylist()
    return rows


def restored(
    folder: Path, preferences: PreferenceSettings, advance: Callable[[Any], None], before: Callable[[Any], None]
) -> list[list[dict[str, Any]]]:
    """Events of a ring; of one restored after ``before``, where the store is ahead as after a kill; and of one elsewhere."""
    with ring_in(folder / "whole", preferences) as ring:
        ring.begin(200)
        before(ring)
        (folder / "checkpoint").mkdir()
        ring.save(folder / "checkpoint")
        advance(ring)
    PreferenceStore(folder / "whole" / "store").copy_to(folder / "again" / "store")
    for name in ("again", "elsewhere"):
        with ring_in(folder / name, preferences) as ring:
            ring.load(folder / "checkpoint")
            advance(ring)
    return [events_in(folder / name) for name in ("whole", "again", "elsewhere")]


FILMED = FragmentSettings(length=5, pool=60, initial_env_steps=200, film_env_steps=40)
PEOPLE_S = PreferenceSettings(
    mode="asynchronous", teacher="human", comparisons=20, initial_comparisons=6, rounds=4, held_out_share=0.2
)
PEOPLE_S_MODEL = RewardModelSettings(hidden=(8,), batch_size=4, initial_updates=10, updates=5)
DRAWN = partial(Drawn, (20,), numbered=False)
LABELLING = LabellingSettings(annotators=("ada", "bob"), port=0, catch_share=0.0, overlap_share=0.0)


@contextmanager
def people_ring(
    folder: Path,
    preferences: PreferenceSettings = PEOPLE_S,
    sessions: Sessions | None = None,
    make_env: Callable[[], Any] = DRAWN,
    callbacks: Heard | None = None,
    machine: MachineSettings | None = None,
    **labelling: Any,
) -> Iterator[Any]:
    """A ring whose page's port is any, and whose people are ada and bob."""
    file = folder / "labelling.json"
    (sessions or Sessions.create(LABELLING.annotators)).save(file)
    page = PageSettings(
        dataclasses.replace(LABELLING, **labelling), file, "Walk", 15.0, "run", 0, folder / "labelling.port"
    )
    with ring_in(
        folder,
        preferences,
        executor=RayExecutor(f"ring-{uuid.uuid4().hex[:8]}"),
        fragments=FILMED,
        reward_model=PEOPLE_S_MODEL,
        make_env=make_env,
        page=page,
        callbacks=callbacks,
        machine=machine,
    ) as ring:
        yield ring


def links(ring: Any) -> dict[str, str]:
    """Where each person labels."""
    found: dict[str, str] = ring.people.page.links
    return found
