"""Actors that share a process: called as others are, none keeps the others waiting, and all come back when it dies."""

import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import ray

from rlhf_ray.actors.ray_executor import RayExecutor, look_up
from rlhf_ray.settings import PreferenceSettings
from tests.actors.hosted import Quick, Slow
from tests.actors.rings import at, ring_in
from tests.made_up import labels_in

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture
def executor() -> RayExecutor:
    return RayExecutor(f"ring-{uuid.uuid4().hex[:8]}")


def test_they_share_a_process_and_a_slow_one_keeps_nobody_waiting(executor: RayExecutor) -> None:
    slow, quick = executor.start(Slow, "collector", shares=True), executor.start(Quick, "pool", 5, shares=True)
    executor.started()
    try:
        process = ray.get(quick.run(lambda self: os.getpid()), timeout=60)
        pid, clips = slow.split(2, Slow.collect, 60.0)
        assert not ray.wait([pid], timeout=0.1)[0]
        found = look_up(executor.name, "pool")
        assert ray.get([quick.call(Quick.add, 1), found.call(Quick.add, ray.put(2))], timeout=20) == [6, 8]
        assert ray.get(found.call(Quick.__len__), timeout=20) == 8
        assert not ray.wait([pid], timeout=0)[0]
        os.kill(process, signal.SIGKILL)
        assert ray.get(quick.call(Quick.add, 1), timeout=60) == 6  # made anew
        assert ray.get(quick.run(lambda self: os.getpid()), timeout=20) != process
        assert not ray.wait([pid, clips], timeout=0)[0]  # begun anew
    finally:
        executor.stop(slow)
        assert ray.get(quick.call(Quick.add, 0), timeout=20) == 6  # it goes on until the last one is stopped
        executor.stop(quick)


def test_what_one_raises_arrives_as_it_is_and_harms_none(executor: RayExecutor) -> None:
    slow, quick = executor.start(Slow, "collector", shares=True), executor.start(Quick, "pool", shares=True)
    executor.started()
    try:
        with pytest.raises(OSError, match="the disk is full"):
            ray.get(slow.call(Slow.fail), timeout=60)
        assert ray.get(quick.call(Quick.add, 1), timeout=20) == 1
    finally:
        executor.stop(slow)
        executor.stop(quick)


@pytest.mark.soak
def test_a_ring_whose_shared_process_is_killed_loses_no_label(tmp_path: Path, executor: RayExecutor) -> None:
    preferences = PreferenceSettings(
        mode="asynchronous", comparisons=20, initial_comparisons=6, rounds=4, answer_seconds=0.02
    )
    with ring_in(tmp_path, preferences, executor=executor) as ring:
        actors: Any = ring.actors
        ring.begin(200)
        pids = {
            ray.get(actor.run(lambda self: os.getpid()), timeout=20)
            for actor in (actors.store, actors.pool, actors.gatherers[0].actor, ring.source.collector)
        }
        assert len(pids) == 1
        ring.advance(at(0.5, 600))
        os.kill(pids.pop(), signal.SIGKILL)
        deadline = time.monotonic() + 60
        while ring.answered < 20:
            assert time.monotonic() < deadline
            ring.source.offer(at(1.0, 1000), 4, wait=True)  # as the agent's rollouts do: the pool has lost its clips
            ring.advance(at(1.0, 1000))
            time.sleep(0.1)
    stored = labels_in(tmp_path / "store")
    assert len(stored) == len(set(stored.pairs.ids)) == 20
