"""The first clips come in parts, and people are asked about those there are."""

import dataclasses
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.actors.build import for_films
from rlhf_ray.actors.fragment_source import first_films, parts
from rlhf_ray.actors.ring import RingSettings
from rlhf_ray.settings import PreferenceSettings, ResolvedFragments, RewardModelSettings
from tests.actors.people_ring import PREFERENCES, links, people_ring
from tests.actors.rings import Heard
from tests.labelling.person import Person
from tests.made_up import Drawn, wait_for


class SlowlyDrawn(Drawn):
    """Takes as long to draw as MuJoCo does without a GPU."""

    def render(self) -> Any:
        time.sleep(0.02)
        return super().render()


@given(st.integers(1, 40), st.integers(0, 5000), st.integers(2, 400), st.integers(1, 64), st.booleans())
def test_the_parts_take_all_steps_and_the_episode_comes_last(
    length: int, more: int, clips: int, rollouts: int, images: bool
) -> None:
    fragments = ResolvedFragments(length=length, initial_env_steps=2 * length + more)
    made = parts(2 * length + more, clips, rollouts, fragments, images=images)
    assert sum(part.env_steps for part in made) == 2 * length + more
    assert all(part.env_steps >= length for part in made)
    assert [part.episode for part in made] == [False] * (len(made) - 1) + [True]
    assert [part.number for part in made] == list(range(1, len(made) + 1))
    if not images:
        assert sum(part.fragments for part in made) <= max(clips, 4)


@pytest.mark.parametrize(
    ("steps", "images", "before", "in_part", "last"),
    [
        (900, False, 17, 2, 200),  # 36 clips are 18 parts
        (300, False, 6, 2, 150),  # of 22 steps at least, of half of all
        (40, False, 1, 2, 20),
        (900, True, 8, 12, 200),  # a part for each rollout; the pool's 100 in eight
        (300, True, 7, 14, 150),
    ],
)
def test_a_part_makes_a_pair_or_its_share_of_the_pool(
    steps: int, images: bool, before: int, in_part: int, last: int
) -> None:
    fragments = ResolvedFragments(length=10, initial_env_steps=steps, film_env_steps=200, pool=100)
    *others, episode = parts(steps, 36, 8, fragments, images=images)
    assert [part.fragments for part in others] == [in_part] * before
    assert (episode.env_steps, episode.fragments, episode.film) == (last, 0 if images else 2, True)
    sizes = [part.env_steps for part in others]
    assert max(sizes) - min(sizes) <= 1
    assert [part.film for part in others] == [not images] * before
    few = ResolvedFragments(length=10, initial_env_steps=900, film_env_steps=200, pool=9)
    assert {part.fragments for part in parts(900, 36, 8, few, images=True)[:-1]} == {2}  # a pair at least


@pytest.mark.parametrize(
    ("first", "pool", "films"), [(125, 36, 36), (150, 360, 150), (40, 360, 40), (4, 360, 8), (20, 30, 36)]
)
def test_a_preset_that_keeps_many_clips_has_one_filmed_for_each_first_question(
    first: int, pool: int, films: int
) -> None:
    assert first_films(first, pool) == films


@pytest.mark.parametrize(("pool", "kept"), [(400, 36), (30, 30), (4_000, 360)])
def test_the_pool_keeps_a_share_of_films(pool: int, kept: int) -> None:
    space = gym.spaces.Box(-1.0, 1.0, (3,))
    fragments = ResolvedFragments(length=10, initial_env_steps=100, pool=pool)
    of = RingSettings(fragments, PreferenceSettings(), RewardModelSettings(), space, space, "", 0, 1000)
    assert for_films(of).fragments.pool == kept


@pytest.mark.usefixtures("ray_session")
@pytest.mark.soak
@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_the_first_pair_is_asked_before_the_last_clip_is_filmed(tmp_path: Path, mode: Any) -> None:
    over, heard = threading.Event(), Heard()
    preferences, slow = dataclasses.replace(PREFERENCES, mode=mode), partial(SlowlyDrawn, (20,), numbered=False)
    with people_ring(tmp_path, preferences, make_env=slow, callbacks=heard) as ring:
        thread = threading.Thread(target=ring.begin, args=(200, over.is_set), daemon=True)
        thread.start()
        person = Person(links(ring)["ada"], tmp_path / "store")
        reasons = set()
        while (question := person.question()) is None:
            reasons.add(person.client.get("/api/progress").json()["reason"])
            time.sleep(0.05)
        progress = person.client.get("/api/progress").json()
        assert 0 < progress["env_steps"] < 200
        assert progress["wanted"] == PREFERENCES.comparisons
        assert all("first clips" in reason for reason in reasons - {None})
        person.answer(question, "left")
        wait_for(lambda: ring.source.share == 1.0)
        assert ring.env_steps == 200
        assert heard.stages[0].startswith("the initial fragments: fragment ")
        over.set()
        thread.join(30)
