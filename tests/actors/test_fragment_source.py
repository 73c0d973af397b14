"""Where fragments come from besides rollouts: which steps are taken, of which policy, in which parts."""

import asyncio
import dataclasses
import threading
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.actors import fragment_source
from rlhf_ray.actors.build import for_films
from rlhf_ray.actors.executor import Actor
from rlhf_ray.actors.fragment_source import EPISODE_EVERY, MORE_FRAGMENTS, Collecting, Filming, first_films, parts
from rlhf_ray.actors.ring import Progress, RingSettings
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import RANDOM_POLICY
from rlhf_ray.queries.pool import PoolReport
from rlhf_ray.settings import PreferenceSettings, ResolvedFragments, RewardModelSettings
from tests.actors.rings import PEOPLE_S, Heard, links, people_ring
from tests.labelling.person import Person
from tests.made_up import Drawn, wait_for

VECTORS, IMAGES = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
COLLECT = ("env_steps", "rollouts", "number", "version", "policy", "part", "most", "mixed")
FILM = ("env_steps", "clips", "number", "taken", "version", "policy", "episode", "part")


class Done:
    """A reference whose value is there."""

    def __init__(self, value: Any):
        self.value = value

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()
        return self.value


class Collector(Actor[Any]):
    """Notes what it is asked to make."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        names = COLLECT if method == "collect" else FILM
        asked = {**dict(zip(names, arguments, strict=False)), **keywords, "how": method}
        self.made.append(asked)
        return (Done(asked["env_steps"]), *[(part, len(self.made)) for part in range(1, returns)])


class Pool(Actor[Any]):
    """Takes whatever it is given, and has so many fragments."""

    def __init__(self, fragments: int = 10):
        self.given: list[Any] = []
        self.fragments = fragments

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        self.given += arguments
        return Done(PoolReport(fragments=self.fragments, too_short=7, episode_lengths=(3, 4)))


class RingActors:
    """The others of a ring, as far as a source needs them."""

    def __init__(self, space: gym.spaces.Box = VECTORS, people: bool = True, **preferences: Any):
        self.settings = SimpleNamespace(
            fragments=ResolvedFragments(
                length=10, initial_env_steps=900, exploration_env_steps=60, film_env_steps=200, pool=100
            ),
            preferences=PreferenceSettings(**{"comparisons": 100, "initial_comparisons": 20, **preferences}),
            observation_space=space,
            total_env_steps=10_000,
        )
        self.pool = Pool()
        self.people = SimpleNamespace(film=None) if people else None
        self.viewed = [SimpleNamespace(share=0.5, asked=0)]
        self.shown: list[Any] = []
        self.executor = SimpleNamespace(stop=lambda actor: None)
        self.show_episode = self.shown.append

    async def show(self, films: Any) -> None:
        self.shown.append(films)

    def check(self, report: PoolReport) -> PoolReport:
        return report


def at(room: int = 1_000, iteration: int = 4) -> Progress:
    return Progress(0.5, 5_000, room, iteration, lambda: f"policy {iteration}")  # type: ignore[arg-type, return-value]


def collecting(actors: Any, more: int = 1_000) -> tuple[Collecting, Collector]:
    collector = Collector()
    return Collecting(actors, collector, 8, more), collector


def filmed(actors: Any, rounds: int = 10) -> tuple[Filming, Collector]:
    collector = Collector()
    return Filming(actors, collector, 8, 1_000, rounds, Heard()), collector


def test_initial_fragments_take_their_steps_once_and_others_replace_them_with_other_random_numbers() -> None:
    source, collector = collecting(RingActors())
    made: list[int] = []
    asyncio.run(source.first(900, lambda: made.append(1), None))
    assert (source.env_steps, source.share, len(made)) == (900, 1.0, 1)
    asyncio.run(source.more(2))
    assert source.env_steps == 1_900
    asyncio.run(source.first(900, lambda: None, None))  # again, after an interruption
    assert source.env_steps == 2_800
    assert [(one["env_steps"], one["number"], one["version"], one["mixed"]) for one in collector.made[:2]] == [
        (900, 0, RANDOM_POLICY, True), (1_000, MORE_FRAGMENTS + 2, RANDOM_POLICY, True)
    ]  # fmt: skip


@pytest.mark.parametrize(("more", "fits"), [(2_100, True), (2_101, False)])
def test_initial_fragments_take_at_most_three_tenths_of_the_budget(more: int, fits: bool) -> None:
    source, _ = collecting(RingActors(), more)
    source.env_steps = 900
    assert source.room_for_more() == fits


@pytest.mark.parametrize(("fragments", "enough"), [(1, False), (2, True)])
def test_one_initial_fragment_can_t_be_compared(fragments: int, enough: bool) -> None:
    actors = RingActors()
    actors.pool.fragments = fragments
    source, _ = collecting(actors)
    if enough:
        asyncio.run(source.first(900, lambda: None, None))
        return
    with pytest.raises(SettingError, match=r"fragments.length is 10, but in 900 steps .* 7 episodes .*\[3, 4\]"):
        asyncio.run(source.first(900, lambda: None, None))


def test_the_newest_policy_is_explored_once_at_a_time_and_only_where_there_is_room() -> None:
    source, collector = collecting(RingActors())
    source.offer(at(room=59), 1, wait=False)
    assert not source.waiting()
    source.offer(at(room=60), 2, wait=False)
    assert (source.waiting(), source.env_steps) == (True, 60)  # before they are taken
    source.offer(at(iteration=5), 3, wait=False)
    assert source.metrics() == {"explorations_dropped": 1.0}
    assert asyncio.run(source.make()) == 60
    assert (source.waiting(), source.env_steps) == (False, 60)
    (made,) = collector.made
    assert (made["env_steps"], made["number"], made["version"], made["policy"]) == (60, 2, 4, "policy 4")


def test_a_round_has_as_many_films_as_use_each_in_one_or_two_pairs() -> None:
    actors: Any = RingActors(comparisons=180)
    # A half of 160 questions in 10 rounds are 8 pairs: 12 films are each in four thirds of a pair.
    assert filmed(actors, 10)[0].films_per_round == 12
    assert filmed(actors, 40)[0].films_per_round == 6  # at least
    assert filmed(actors, 2)[0].films_per_round == 200 // 11  # what the steps hold
    assert filmed(actors, 0)[0].films_per_round == 200 // 11


@pytest.mark.parametrize("fragments", [1, 40])
def test_the_first_films_take_all_steps_once_half_of_them_of_a_pretrained_policy(fragments: int) -> None:
    actors = RingActors()
    actors.pool.fragments = fragments
    source, collector = filmed(actors)
    made: list[float] = []
    work = source.first(900, lambda: made.append(source.share), (3, "pretrained"))  # type: ignore[arg-type]
    if fragments == 1:
        with pytest.raises(SettingError, match="in 900 steps"):
            asyncio.run(work)
        return
    asyncio.run(work)
    assert source.env_steps == sum(one["env_steps"] for one in collector.made) == 900
    assert [one["part"] for one in collector.made] == list(range(1, len(collector.made) + 1))
    for one in collector.made:
        even = one["part"] % 2 == 0
        assert (one["version"], one["policy"]) == ((3, "pretrained") if even else (RANDOM_POLICY, None))
        assert one["taken"] == sum(other["env_steps"] for other in collector.made[: one["part"] - 1])
        assert one["episode"] == (one is collector.made[-1])
        assert one["number"] == 0
    assert made[-1] == 1.0 == source.share
    assert max(made[:-1]) < 1.0
    asyncio.run(source.first(900, lambda: None, None))  # again, after an interruption
    assert source.env_steps == 1_800


def test_of_images_only_the_episode_is_filmed_and_fragments_are_cut_from_the_other_steps() -> None:
    actors = RingActors(IMAGES, initial_comparisons=4)
    source, collector = filmed(actors)
    asyncio.run(source.more(1))
    assert [(made["how"], made["env_steps"]) for made in collector.made] == [("film", 200), ("collect", 800)]
    assert collector.made[0]["clips"] == 2 * 4
    assert actors.pool.given == [(1, 1), (1, 2)]
    source.more_env_steps = 300  # half of them at most
    asyncio.run(source.more(2))
    assert [(made["how"], made["env_steps"]) for made in collector.made[2:]] == [("film", 150), ("collect", 150)]


def test_the_newest_policy_is_filmed_when_questions_need_it_or_people_have_seen_no_episode_for_long(monkeypatch):
    now = 100.0
    monkeypatch.setattr(fragment_source.time, "monotonic", lambda: now)
    actors: Any = RingActors()
    actors.settings.fragments = ResolvedFragments(length=10, initial_env_steps=900, film_env_steps=200)
    source, collector = filmed(actors)

    def films(asked: int, **of: Any) -> int:
        """The environment steps of films that are made after so many questions."""
        actors.viewed[0].asked = asked
        source.offer(at(**{"room": 200, **of}), 3, wait=False)
        return asyncio.run(source.make()) if source.waiting() else 0

    assert films(0, room=199) == 0
    assert films(0) == 200  # an episode
    assert collector.made[-1]["episode"]
    assert (source.env_steps, collector.made[-1]["taken"], collector.made[-1]["version"]) == (200, 5_000, 4)
    assert films(2) == 0
    assert films(3) == 200
    assert not collector.made[-1]["episode"]
    assert collector.made[-1]["clips"] == source.films_per_round
    assert films(5) == 0
    now += EPISODE_EVERY
    assert films(5) == 200
    assert collector.made[-1]["episode"]
    source.offer(at(), 4, wait=True)
    source.offer(at(), 5, wait=True)  # while the other is waited for
    assert source.env_steps == 800
    assert asyncio.run(source.make()) == 200
    assert collector.made[-1]["number"] == 4


def test_a_pool_that_lost_the_first_fragments_gets_them_again_and_the_share_never_falls(monkeypatch):
    now, shares, has = 0.0, list[float](), list[Any]()

    class Restarted(Pool):
        def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
            if arguments and len(self.given) == 3:
                has.clear()
            has.extend(arguments)
            self.fragments = 2 * len(set(has))
            return super().send(method, arguments, keywords, returns)

    def made() -> None:
        nonlocal now
        now += 2
        shares.append(source.share)

    monkeypatch.setattr(fragment_source.time, "monotonic", lambda: now)
    actors: Any = RingActors()
    actors.pool = Restarted()
    source, collector = filmed(actors)
    asyncio.run(source.first(900, made, None))
    count = len(collector.made)
    assert set(has) == {(1, part) for part in range(1, count + 1)}
    assert shares == pytest.approx([part / count for part in range(1, count)] + [0.999, 1.0])
    assert len(source._callbacks.stages) == (count - 1) // 3  # every five seconds, of which each part takes two


class SlowlyDrawn(Drawn):
    """Takes as long to draw as MuJoCo does without a GPU."""

    def render(self) -> Any:
        time.sleep(0.02)
        return super().render()


@given(st.integers(1, 40), st.integers(0, 5000), st.integers(2, 400), st.integers(1, 64), st.booleans())
def test_the_parts_take_all_steps_and_the_episode_comes_last(length, more, clips, rollouts, images):
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
def test_a_part_makes_a_pair_or_its_share_of_the_pool(steps, images, before, in_part, last):
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
def test_a_preset_that_keeps_many_clips_has_one_filmed_for_each_first_question(first, pool, films):
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
    preferences, slow = dataclasses.replace(PEOPLE_S, mode=mode), partial(SlowlyDrawn, (20,), numbered=False)
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
        assert progress["wanted"] == PEOPLE_S.comparisons
        assert all("first clips" in reason for reason in reasons - {None})
        person.answer(question, "left")
        wait_for(lambda: ring.source.share == 1.0)
        assert ring.env_steps == 200
        assert heard.stages[0].startswith("the initial fragments: fragment ")
        over.set()
        thread.join(30)
