"""The asynchronous ring, with real Ray actors."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import ray

from actors.asynchronous import AsynchronousPipeline
from actors.fragmenter import Clips
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings, SettingError
from rlhf_ray.store import PreferenceStore
from tests.made_up import AlwaysUp, Walk, some_fragments

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

FRAGMENTS = FragmentSettings(length=5, pool=30, initial_env_steps=200, exploration_env_steps=60)
PREFERENCES = PreferenceSettings(
    mode="asynchronous", comparisons=20, initial_comparisons=6, rounds=4, selection="disagreement", held_out_share=0.2
)
REWARD_MODEL = RewardModelSettings(hidden=(8,), batch_size=4, initial_updates=10, updates=5)


@contextmanager
def _ring(
    folder: Path,
    *,
    preferences: PreferenceSettings = PREFERENCES,
    lengths: tuple[int, ...] = (20,),
) -> Iterator[AsynchronousPipeline]:
    ring = AsynchronousPipeline(
        name="ring",
        fragments=FRAGMENTS,
        preferences=preferences,
        reward_model=REWARD_MODEL,
        observation_space=Walk.observation_space,
        action_space=Walk().action_space,
        make_env=partial(Walk, lengths, numbered=False),
        store=folder / "store",
        seed=0,
        rollouts=4,
        spread=100,
    )
    try:
        yield ring
    finally:
        ring.close()


def _wait(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_labels_and_gradient_steps_fall_due_with_progress_and_add_up_exactly(tmp_path: Path) -> None:
    with _ring(tmp_path) as ring:
        first = ring.begin(200)
        assert first is not None
        assert first.fit is not None
        assert (first.round_number, first.answered, first.fit.gradient_steps) == (0, 6, 10)
        gradient_steps = 10
        for progress, labels in ((0.25, 10), (0.5, 13), (1.0, 20)):
            ring.advance(progress, 200 + int(1000 * progress))
            _wait(lambda labels=labels: ring.answered == labels)
            _wait(lambda rounds=1 + int(4 * progress): ring.rounds_held == rounds)
            news = ring.news()
            assert news is not None
            assert news.fit is not None
            gradient_steps += news.fit.gradient_steps
            assert (news.answered, news.comparisons) == (news.wanted, labels)
        assert gradient_steps == 10 + 4 * 5
        assert ring.news() is None
        report = ring.report()
        assert report["labels_due"] == 20
        assert all(report[f"{stage}_queue"] == 0 for stage in ("asking", "answering", "storing", "fitting"))
    stored = PreferenceStore(tmp_path / "store").load()
    assert stored is not None
    assert len(set(stored.pairs.ids)) == 20


def test_ppo_waits_for_no_teacher_however_slow_and_what_was_answered_is_stored(tmp_path: Path) -> None:
    slow = dataclasses.replace(PREFERENCES, answer_seconds=0.5, minimum_comparisons=2, max_open_questions=3)
    with _ring(tmp_path, preferences=slow) as ring:
        ring.begin(200)
        assert ring.version == 1
        started = time.monotonic()
        for i in range(20):
            ring.advance(i / 19, 200 + 50 * i)
            assert ring.report()["answering_queue"] <= 3
        assert time.monotonic() - started < 2.0
        _wait(lambda: ring.answered >= 5)
        assert ring.report()["asking_queue"] >= 5  # due, and not asked yet
    assert len(PreferenceStore(tmp_path / "store")) >= ring.answered >= 5


def test_with_a_limit_on_its_age_ppo_waits_for_the_next_version_and_no_longer(tmp_path: Path) -> None:
    limited = dataclasses.replace(PREFERENCES, answer_seconds=0.2, max_reward_age=100)
    with _ring(tmp_path, preferences=limited) as ring:
        ring.begin(200)
        ring.advance(0.5, 250)  # young enough
        version = ring.version
        ring.advance(0.5, 300)
        assert ring.version > version
        _wait(lambda: ring.answered == 13)
        for _ in range(3):
            ring.advance(0.5, 1000)  # nothing is due: it would wait in vain


def test_exploration_is_gathered_while_ppo_goes_on_and_counts_its_steps(tmp_path: Path) -> None:
    with _ring(tmp_path) as ring:
        ring.begin(200)
        ring.explore(1, 1, partial(AlwaysUp, 0.1))
        ring.explore(2, 2, partial(AlwaysUp, 0.1))  # while the first may be under way: dropped, or gathered after it
        _wait(lambda: ring.report()["exploring_queue"] == 0)
        assert ring.env_steps == 200 + 60 * (2 - ring.report()["explorations_dropped"])


def test_wrong_settings_are_an_error_to_ppo_though_another_thread_finds_them(tmp_path: Path) -> None:
    with _ring(tmp_path) as ring:
        ring.begin(200)
        ray.get(
            ring._collect(60, 1, 1, None)
        )  # as if PPO's rollouts held episodes of another length, which the next look finds
        ring.preferences = dataclasses.replace(ring.preferences, allow_variable_horizon=False)
        ray.get(
            ring.fragmenter.load_state.remote(ray.get(ring.fragmenter.state.remote()) | {"episode_lengths": [9, 20]})
        )

        def advance() -> bool:
            try:
                ring.advance(0.1, 300)
            except SettingError as error:
                return "preferences.allow_variable_horizon is False" in str(error)
            return False

        _wait(advance)


@pytest.mark.parametrize("role", ["fragmenter", "gatherer", "store", "trainer"])
def test_a_killed_actor_costs_neither_a_label_nor_the_run(tmp_path: Path, role: str) -> None:
    with _ring(tmp_path) as ring:
        ring.begin(200)
        ring.advance(0.25, 400)
        time.sleep(
            {"fragmenter": 0.0, "gatherer": 0.02, "store": 0.04, "trainer": 0.3}[role]
        )  # in the middle of its work
        os.kill(_process(getattr(ring, role)), signal.SIGKILL)
        ring.advance(0.5, 600)
        ray.get(ring._collect(100, 5, 5, partial(AlwaysUp, 0.2)))  # new clips, as PPO would make them
        for progress in np.linspace(0.6, 1.0, 5):
            ring.advance(progress, int(1000 * progress))
            time.sleep(0.2)

        def all_labels() -> bool:
            ring.advance(1.0, 1000)
            return ring.answered == 20 and not ring.report()["fitting_queue"]

        _wait(all_labels)
        news = ring.news()
        assert news is not None
        assert news.fit is not None
        assert news.fit.comparisons == 20
    stored = PreferenceStore(tmp_path / "store").load()
    assert stored is not None
    assert len(stored) == len(set(stored.pairs.ids)) == 20


def test_while_the_disk_takes_nothing_ppo_goes_on_and_the_answers_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.asynchronous.STORE_AGAIN_AFTER", 0.5)
    with _ring(tmp_path) as ring:
        ring.begin(200)
        labels, away = tmp_path / "store" / "labels", tmp_path / "away"
        labels.rename(away)
        labels.write_text("not a folder: nothing can be written here")
        ring.advance(0.5, 600)
        _wait(lambda: ring.failed_commits >= 2)
        started = time.monotonic()
        ring.advance(0.5, 700)
        assert time.monotonic() - started < 1.0
        assert ring.answered == 6
        labels.unlink()
        away.rename(labels)
        _wait(lambda: ring.answered == 13)
    assert len(PreferenceStore(tmp_path / "store")) == 13


def test_more_clips_than_the_object_store_holds_may_be_on_their_way(tmp_path: Path) -> None:
    wide = gym.spaces.Box(-1.0, 1.0, (20_000,), np.float32)
    with _ring(tmp_path) as ring:
        on_their_way = [
            ring.fragmenter.add.remote(Clips(0, version, some_fragments(90, observations=wide, seed=version), 0, ()))
            for version in range(8)  # 43 MB each, where 200 MB have room
        ]
        ray.get(on_their_way)
        assert ray.get(ring.fragmenter.report.remote())["pool"] == FRAGMENTS.pool


def test_a_restored_ring_has_every_stored_label_and_asks_the_open_questions_again(tmp_path: Path) -> None:
    slow = dataclasses.replace(PREFERENCES, answer_seconds=1.0, minimum_comparisons=2, selection="random")
    with _ring(tmp_path, preferences=slow) as ring:
        ring.begin(200)
        ring.advance(1.0, 400)
        _wait(lambda: ring.answered >= 8)
        state = ring.state()
        asked = {name for q in state["questions"] for name in q["pairs"]["ids"][q["stored"] :]}
        assert asked
        _wait(lambda: ring.answered >= 10)
    before = len(PreferenceStore(tmp_path / "store"))
    with _ring(tmp_path, preferences=dataclasses.replace(slow, answer_seconds=0.0)) as ring:
        ring.load_state(state)
        assert ring.answered == before  # also those stored after the state was made

        def all_labels() -> bool:
            ring.advance(1.0, 1000)
            return ring.answered == 20 and not ring.report()["fitting_queue"]

        _wait(all_labels)
        stored = PreferenceStore(tmp_path / "store").load()
        assert stored is not None
        assert asked <= set(stored.pairs.ids)
        assert len(set(stored.pairs.ids)) == 20


def _process(actor: Any) -> int:
    return int(ray.get(actor.__ray_call__.remote(lambda self: os.getpid())))
