"""Actors that share a process: called as others are, none keeps the others waiting, and all come back when it dies."""

import os
import signal
import uuid

import pytest
import ray

from rlhf_ray.actors.ray_executor import RayExecutor, look_up
from tests.actors.hosted import Quick, Slow

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
