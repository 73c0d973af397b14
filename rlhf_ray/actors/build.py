"""Builds a ring from settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym

from rlhf_ray.actors.asynchronous import AsynchronousRing
from rlhf_ray.actors.executor import Executor
from rlhf_ray.actors.fragment_source import FIRST_FILMS, Collecting, Filming
from rlhf_ray.actors.people import LabellingPage, PageHandle, PageSettings, People
from rlhf_ray.actors.ring import RingSettings
from rlhf_ray.actors.ring_actors import RingActors
from rlhf_ray.actors.ring_callbacks import Logs, RingCallbacks
from rlhf_ray.actors.rollout_collector import RolloutCollector
from rlhf_ray.actors.synchronous import SynchronousRing
from rlhf_ray.data.images import is_image
from rlhf_ray.queries.gatherers import wants_films
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.store import PreferenceStore

FILMED = 0.09
"""Filmed fragments to select pairs from, as a share of ``fragments.pool``: the newest 36 by default. Few are made, so these reach
as far back as a pool of fragments without films."""

FILMING_NICENESS = 10
"""Niceness of the rollout collector while it films and nothing waits for it: with few cores, the agent comes first."""

MakeEnv = Callable[[], gym.Env[Any, Any]]


def build_ring(
    settings: RingSettings,
    executor: Executor,
    make_env: MakeEnv,
    *,
    rollouts: int,
    iterations: int,
    iteration_env_steps: int,
    page: PageSettings | None = None,
    callbacks: RingCallbacks | None = None,
) -> SynchronousRing | AsynchronousRing:
    """Start the actors of the ring for ``preferences.mode``, and connect them.

    Its collector splits its steps into ``rollouts`` rollouts of the environment that ``make_env`` makes. The agent's training has
    ``iterations`` of ``iteration_env_steps`` steps. Without ``page`` there are no people; without ``callbacks``, what they
    would be told is logged.
    """
    callbacks = callbacks or Logs(None if page is None or page.port_file is None else page.port_file.parent)
    preferences, fragments = settings.preferences, settings.fragments
    synchronous = preferences.mode == "synchronous"
    rounds = max(0, int(iterations * preferences.until) - 1) if synchronous else None
    schedule = LabelSchedule(preferences, rounds, watches=fragments.varied, env_steps=settings.total_env_steps)
    films = page is not None or wants_films(preferences)
    settings = for_films(settings) if films else settings
    actors = RingActors(settings, executor, fits_apart=not synchronous or page is not None)
    actors.start_scripted()
    if page is not None:
        start_people(actors, schedule, page, callbacks)
    niceness = FILMING_NICENESS if films and not synchronous else 0
    collector = executor.start(RolloutCollector, "collector", make_env, fragments, settings.seed, niceness, shares=True)
    executor.started()
    # Round up to whole iterations, so that all steps add up to the budget.
    more = -(-fragments.initial_env_steps // iteration_env_steps) * iteration_env_steps
    source = Collecting(actors, collector, rollouts, more)
    if page is not None or (films and not is_image(settings.observation_space)):
        source = Filming(actors, collector, rollouts, more, schedule.rounds, callbacks)
    kind = SynchronousRing if synchronous else AsynchronousRing
    return kind(actors, schedule, source, callbacks)


def for_films(settings: RingSettings) -> RingSettings:
    """Adapt the settings to films: keep only the newest filmed fragments in the pool."""
    fragments = settings.fragments
    if not is_image(settings.observation_space):
        kept = max(FIRST_FILMS, round(FILMED * fragments.pool))
        fragments = replace(fragments, pool=min(fragments.pool, kept))
    return replace(settings, fragments=fragments)


def start_people(actors: RingActors, schedule: LabelSchedule, page: PageSettings, callbacks: RingCallbacks) -> People:
    """Start the labelling page and register its annotators as a gatherer."""
    preferences, executor = actors.settings.preferences, actors.executor
    # The page needs the store first. A process of its own: rendering videos must not delay the storing of answers.
    executor.started()
    actor = executor.start(LabellingPage, "page", page, executor.find(PreferenceStore, "store"))
    handle = PageHandle(actor, callbacks, executor.get, page.settings.port, page.port_file)
    limit = preferences.max_open_questions if preferences.mode == "asynchronous" else None
    people = People(
        handle,
        schedule,
        actors.settings.total_env_steps,
        callbacks,
        share=preferences.people_share,
        limit=limit,
        annotators=page.settings.annotators,
    )
    actors.join(people)
    return people
