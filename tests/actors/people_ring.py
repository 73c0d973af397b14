"""A ring with people in it, of real Ray actors. Not a test itself."""

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_ray.actors.people import PageSettings
from rlhf_ray.actors.ray_executor import RayExecutor
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.settings import FragmentSettings, LabellingSettings, PreferenceSettings, RewardModelSettings
from tests.actors.rings import Heard, ring_in
from tests.made_up import Drawn

FRAGMENTS = FragmentSettings(length=5, pool=60, initial_env_steps=200, film_env_steps=40)
PREFERENCES = PreferenceSettings(
    mode="asynchronous", teacher="human", comparisons=20, initial_comparisons=6, rounds=4, held_out_share=0.2
)
REWARD_MODEL = RewardModelSettings(hidden=(8,), batch_size=4, initial_updates=10, updates=5)
DRAWN = partial(Drawn, (20,), numbered=False)
LABELLING = LabellingSettings(annotators=("ada", "bob"), port=0, catch_share=0.0, overlap_share=0.0)


@contextmanager
def people_ring(
    folder: Path,
    preferences: PreferenceSettings = PREFERENCES,
    sessions: Sessions | None = None,
    make_env: Callable[[], Any] = DRAWN,
    callbacks: Heard | None = None,
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
        fragments=FRAGMENTS,
        reward_model=REWARD_MODEL,
        make_env=make_env,
        page=page,
        callbacks=callbacks,
    ) as ring:
        yield ring


def links(ring: Any) -> dict[str, str]:
    """Where each person labels."""
    found: dict[str, str] = ring.people.page.links
    return found
