"""The asynchronous ring, in this process: its stages in a thread, its actors plain objects."""

import asyncio
import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_ray.actors.asynchronous import AsynchronousRing, Meter
from rlhf_ray.actors.executor import LocalExecutor
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.nested import read_nested
from rlhf_ray.queries.pool import CutFragments
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.store import PreferenceStore
from tests.actors.rings import at, ring_in
from tests.made_up import Clock, Walk, labels_in, wait_for

PREFERENCES = PreferenceSettings(
    schedule="constant",
    mode="asynchronous",
    comparisons=20,
    initial_comparisons=6,
    rounds=4,
    selection="disagreement",
    held_out_share=0.2,
)


def _finish(ring: AsynchronousRing) -> None:
    """Be at the end of the training until all labels are there and fitted to."""

    def all_labels() -> bool:
        ring.advance(at(1.0, 1000))
        return ring.answered == 20 and not ring.metrics()["stages"]["fitting_queue"]

    wait_for(all_labels)


def test_labels_and_gradient_steps_fall_due_with_progress_and_add_up_exactly(tmp_path: Path) -> None:
    with ring_in(tmp_path, PREFERENCES) as ring:
        first = ring.begin(200)
        assert (first.round_number, first.answered, first.fit.gradient_steps) == (0, 6, 10)
        gradient_steps = 10
        for progress, labels in ((0.25, 10), (0.5, 13), (1.0, 20)):
            assert ring.advance(at(progress, 200 + int(1000 * progress))) is None
            wait_for(lambda labels=labels: ring.answered == labels)
            wait_for(lambda rounds=1 + int(4 * progress): ring.rounds_held == rounds)
            news = ring.take_report()
            gradient_steps += news.fit.gradient_steps
            assert (news.answered, news.comparisons) == (news.wanted, labels)
        assert gradient_steps == 10 + 4 * 5
        assert ring.take_report() is None
        stages = ring.metrics()["stages"]
        assert stages["labels_due"] == 20
        assert all(stages[f"{stage}_queue"] == 0 for stage in ("asking", "answering", "fitting"))
    stored = labels_in(tmp_path / "store")
    assert len(set(stored.pairs.ids)) == 20


@pytest.mark.slow
def test_the_agent_waits_for_no_teacher_however_slow_and_what_was_answered_is_stored(tmp_path: Path) -> None:
    slow = dataclasses.replace(PREFERENCES, answer_seconds=0.3, minimum_comparisons=2, max_open_questions=3)
    with ring_in(tmp_path, slow) as ring:
        ring.begin(200)
        assert ring.version == 1
        started = time.monotonic()
        for i in range(20):
            ring.advance(at(i / 19, 200 + 50 * i))
            assert ring.metrics()["stages"]["answering_queue"] <= 3
        assert time.monotonic() - started < 2.0
        wait_for(lambda: ring.answered >= 5)
        assert ring.metrics()["stages"]["asking_queue"] >= 5  # due, and not asked yet
    assert len(PreferenceStore(tmp_path / "store")) >= ring.answered >= 5


def test_with_a_limit_on_its_age_the_agent_waits_for_the_next_version_and_no_longer(tmp_path: Path) -> None:
    limited = dataclasses.replace(PREFERENCES, answer_seconds=0.1, max_reward_age=100)
    with ring_in(tmp_path, limited) as ring:
        ring.begin(200)
        ring.advance(at(0.5, 250))  # young enough
        version = ring.version
        ring.advance(at(0.5, 300))
        assert ring.version > version
        wait_for(lambda: ring.answered == 13)
        for _ in range(3):
            ring.advance(at(0.5, 1000))  # nothing is due: it would wait in vain


def test_exploration_is_gathered_while_the_agent_goes_on_and_counts_its_steps(tmp_path: Path) -> None:
    with ring_in(tmp_path, PREFERENCES) as ring:
        ring.begin(200)
        ring.advance(at(0.25, 300))
        ring.advance(at(0.5, 400))  # while the first may be under way: dropped, or gathered after it
        wait_for(lambda: ring.metrics()["stages"]["exploring_queue"] == 0)
        assert ring.env_steps == 200 + 60 * (2 - ring.metrics()["stages"]["explorations_dropped"])


def test_what_goes_wrong_in_the_ring_is_raised_to_the_agent(tmp_path: Path) -> None:
    executor = LocalExecutor()
    with ring_in(tmp_path, PREFERENCES, executor=executor) as ring:
        ring.begin(200)
        # As if its rollouts held episodes of another length, which the next look at the pool finds.
        executor.actors["pool"].add(CutFragments(0, 0, None, (9,)))

        def advance() -> bool:
            try:
                ring.advance(at(0.1, 300))
            except SettingError as error:
                return "preferences.allow_variable_horizon is False" in str(error)
            return False

        wait_for(advance)


def test_wrong_clips_end_the_wait_for_the_first_version(tmp_path: Path) -> None:
    different = partial(Walk, (20, 12), numbered=False)
    with (
        ring_in(tmp_path, PREFERENCES, make_env=different) as ring,
        pytest.raises(SettingError, match="12 to 20 steps"),
    ):
        ring.begin(200)


@pytest.mark.parametrize(
    "roles", ["pool", "gatherer", "store", "reward_trainer", "collector", "store pool gatherer collector"]
)
def test_a_restarted_actor_costs_neither_a_label_nor_the_run(tmp_path: Path, roles: str) -> None:
    """Those that share a process are restarted together."""
    executor = LocalExecutor()
    slow = dataclasses.replace(PREFERENCES, answer_seconds=0.02)
    with ring_in(tmp_path, slow, executor=executor) as ring:
        ring.begin(200)
        ring.advance(at(0.25, 400))
        time.sleep(0.05)  # in the middle of its work
        for role in roles.split():
            executor.restart(role)
        for progress in np.linspace(0.5, 1.0, 6):
            ring.advance(at(progress, int(1000 * progress)))
            time.sleep(0.05)
        _finish(ring)
        news = ring.take_report()
        assert ring.version > 1
        assert news is None or news.fit.comparisons == 20
    stored = labels_in(tmp_path / "store")
    assert len(stored) == len(set(stored.pairs.ids)) == 20


def test_no_more_is_asked_than_is_due_while_a_slow_store_counts_the_answers(tmp_path: Path) -> None:
    executor = LocalExecutor()
    with ring_in(tmp_path, dataclasses.replace(PREFERENCES, answer_seconds=0.01), executor=executor) as ring:
        ring.begin(200)
        tally = executor.actors["store"].tally

        async def slow(until: int | None) -> Any:
            await asyncio.sleep(0.2)  # as long as a store takes that is restarted, say
            return tally(until)

        executor.actors["store"].tally = slow
        for _ in range(20):
            ring.advance(at(1.0, 1000))
            time.sleep(0.02)
        _finish(ring)
    assert len(PreferenceStore(tmp_path / "store")) == 20


def test_while_the_disk_takes_nothing_the_agent_goes_on_and_the_answers_wait(tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf_ray.actors.gatherer.COMMIT_AGAIN_AFTER", 0.1)
    with ring_in(tmp_path, PREFERENCES) as ring:
        ring.begin(200)
        labels, away = tmp_path / "store" / "labels", tmp_path / "away"
        labels.rename(away)
        labels.write_text("not a folder: nothing can be written here")
        ring.advance(at(0.5, 600))
        wait_for(lambda: ring.metrics()["stages"]["commits_failed"] >= 2)
        started = time.monotonic()
        ring.advance(at(0.5, 700))
        assert time.monotonic() - started < 1.0
        assert ring.answered == 6
        labels.unlink()
        away.rename(labels)
        wait_for(lambda: ring.answered == 13)
    assert len(PreferenceStore(tmp_path / "store")) == 13


@pytest.mark.slow
def test_a_restored_ring_has_every_stored_label_and_asks_the_open_questions_again(tmp_path: Path) -> None:
    slow = dataclasses.replace(PREFERENCES, answer_seconds=0.2, minimum_comparisons=2, selection="random")
    with ring_in(tmp_path, slow) as ring:
        ring.begin(200)
        ring.advance(at(1.0, 400))
        wait_for(lambda: ring.answered >= 8)
        (checkpoint := tmp_path / "checkpoint").mkdir()
        ring.save(checkpoint)
        asked = {name for asking in read_nested(checkpoint / "ring")["open"][0] for name in asking["pairs"]["ids"]}
        assert len(asked) > 1
        wait_for(lambda: ring.answered >= 10)
    before = len(PreferenceStore(tmp_path / "store"))
    with ring_in(tmp_path, dataclasses.replace(slow, answer_seconds=0.0)) as ring:
        ring.load(checkpoint)
        assert before <= ring.answered <= 20  # also those stored after the checkpoint was made
        _finish(ring)
        stored = labels_in(tmp_path / "store")
        assert asked <= set(stored.pairs.ids)
        assert len(set(stored.pairs.ids)) == 20


def test_a_meter_counts_what_was_done_and_how_long_it_was_idle() -> None:
    clock = Clock()
    meter = Meter(clock)
    clock.now += 1.0
    with meter.busy() as done:
        clock.now += 2.0
        assert meter.report(0) == pytest.approx({"rate": 0.0, "idle": 1 / 3, "queue": 0.0})
        clock.now += 1.0
        done(1)
        done(3)
    clock.now += 1.0
    assert meter.report(7) == {"rate": 2.0, "idle": 0.5, "queue": 7.0}
    clock.now += 5.0
    assert meter.report(0) == {"rate": 0.0, "idle": 1.0, "queue": 0.0}
