"""A ring with people in it, of real Ray actors. Not a test itself."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from actors.labelling_page import PageSettings
from actors.people import PeoplesPipeline
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.settings import FragmentSettings, LabellingSettings, PreferenceSettings, RewardModelSettings
from tests.made_up import Drawn, Walk

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
    kind: type[Any] = PeoplesPipeline,
    preferences: PreferenceSettings = PREFERENCES,
    sessions: Sessions | None = None,
    make_env: Callable[[], Any] = DRAWN,
    **labelling: Any,
) -> Iterator[Any]:
    file = folder / "labelling.json"
    (sessions or Sessions.create(LABELLING.annotators)).save(file)
    ring = kind(
        name="ring",
        fragments=FRAGMENTS,
        preferences=preferences,
        reward_model=REWARD_MODEL,
        observation_space=Walk.observation_space,
        action_space=Walk().action_space,
        make_env=make_env,
        store=folder / "store",
        seed=0,
        rollouts=4,
        spread=100,
        total_env_steps=1000,
        page=PageSettings(
            dataclasses.replace(LABELLING, **labelling),
            file,
            "Walk",
            15.0,
            "run",
            0,
            folder / "labelling.port",
        ),
    )
    try:
        yield ring
    finally:
        ring.close()
