"""Actors in the run's own process, and those that share one: called as others are, none keeps the others waiting."""

import asyncio
import os
import random
import signal
import threading
import time
import uuid
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
import ray
import torch

from rlhf_ray.actors.executor import LocalExecutor, passed
from rlhf_ray.actors.ray_executor import RayExecutor, executor_of, look_up
from tests.actors.hosted import Quick, Slow


class Worker:
    """Notes what is called, and where."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.done: list[Any] = []
        self.ended = False

    def work(self, what: Any, seconds: float = 0.0) -> tuple[Any, Any]:
        self.threads.add(threading.get_ident())
        time.sleep(seconds)
        self.done.append(what)
        return what, -what

    async def answer(self, what: Any) -> Any:
        await asyncio.sleep(0)
        return what

    def fail(self) -> None:
        raise OSError("the disk is full")

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def executor() -> LocalExecutor:
    return LocalExecutor("ring-of-this-test")


def test_a_call_takes_references_and_parts_of_results(executor: LocalExecutor) -> None:
    one, other = executor.start(Worker, "one"), executor.start(Worker, "other")
    plus, minus = one.split(2, Worker.work, 3, 0.05)
    assert not executor.ready(minus)
    assert executor.get(other.call(Worker.work, minus)) == (-3, 3)
    assert executor.get(plus) == 3
    assert executor.get(one.call(Worker.work, executor.put(5), seconds=passed(executor.put(0.0)))) == (5, -5)

    async def both() -> list[Any]:
        return [await one.call(Worker.answer, plus), await other.call(Worker.work, 7), await one.ready()]

    assert asyncio.run(both()) == [3, (7, -7), True]
    with pytest.raises(OSError, match="full"):
        executor.get(one.call(Worker.fail))
    assert executor.actors["one"].threads.isdisjoint(executor.actors["other"].threads | {threading.get_ident()})


def test_whoever_stops_waiting_cuts_no_call_short(executor: LocalExecutor) -> None:
    worker = executor.start(Worker, "worker")

    async def interrupted() -> None:
        calls = [asyncio.ensure_future(worker.call(Worker.work, number, 0.05)) for number in range(3)]
        await asyncio.sleep(0.02)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert all(call.cancelled() for call in calls)

    asyncio.run(interrupted())
    executor.get(worker.call(Worker.work, 3))
    assert executor.actors["worker"].done == [0, 1, 2, 3]


def test_a_stopped_actor_ends_its_current_call_and_takes_no_other(executor: LocalExecutor) -> None:
    worker = executor.start(Worker, "worker")
    current, queued = worker.call(Worker.work, 1, 0.1), worker.call(Worker.work, 2)
    time.sleep(0.03)
    executor.stop(worker)
    assert executor.actors["worker"].done == [1]  # whoever stopped it may remove the files that it writes
    assert executor.get(current) == (1, -1)
    with pytest.raises(CancelledError):
        executor.get(queued, timeout=5)
    with pytest.raises(RuntimeError, match="worker has ended"):
        worker.call(Worker.work, 3)
    assert executor.actors["worker"].done == [1]
    assert executor.actors["worker"].ended


def test_a_ring_is_found_by_its_name_where_it_is(executor: LocalExecutor) -> None:
    worker = executor.start(Worker, "worker")
    assert executor_of("ring-of-this-test") is executor
    assert executor_of("ring-of-this-test").find(Worker, "worker")().role == worker.role
    assert isinstance(executor_of("ring-of-another-process"), RayExecutor)


def test_actors_draw_no_random_numbers_of_the_agents(executor: LocalExecutor) -> None:
    def draw() -> tuple[float, ...]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    def seed(number: int) -> None:
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)

    seed(1)
    undisturbed = [draw() for _ in range(3)]
    seed(1)
    found = [draw()]
    with executor.apart():
        seed(0)
        first = draw()
    found.append(draw())
    with executor.apart():
        assert draw() != first  # goes on where it was
    found.append(draw())
    assert found == undisturbed


@pytest.fixture
def ray_executor(ray_session: None) -> RayExecutor:
    return RayExecutor(f"ring-{uuid.uuid4().hex[:8]}")


def test_they_share_a_process_and_a_slow_one_keeps_nobody_waiting(ray_executor: RayExecutor) -> None:
    slow, quick = ray_executor.start(Slow, "collector", shares=True), ray_executor.start(Quick, "pool", 5, shares=True)
    ray_executor.started()
    try:
        process = ray.get(quick.run(lambda self: os.getpid()), timeout=60)
        pid, clips = slow.split(2, Slow.collect, 60.0)
        assert not ray.wait([pid], timeout=0.1)[0]
        found = look_up(ray_executor.name, "pool")
        assert ray.get([quick.call(Quick.add, 1), found.call(Quick.add, ray.put(2))], timeout=20) == [6, 8]
        assert ray.get(found.call(Quick.__len__), timeout=20) == 8
        assert not ray.wait([pid], timeout=0)[0]
        os.kill(process, signal.SIGKILL)
        assert ray.get(quick.call(Quick.add, 1), timeout=60) == 6  # made anew
        assert ray.get(quick.run(lambda self: os.getpid()), timeout=20) != process
        assert not ray.wait([pid, clips], timeout=0)[0]  # begun anew
    finally:
        ray_executor.stop(slow)
        assert ray.get(quick.call(Quick.add, 0), timeout=20) == 6  # it goes on until the last one is stopped
        ray_executor.stop(quick)


def test_what_one_raises_arrives_as_it_is_and_harms_none(ray_executor: RayExecutor) -> None:
    slow, quick = ray_executor.start(Slow, "collector", shares=True), ray_executor.start(Quick, "pool", shares=True)
    ray_executor.started()
    try:
        with pytest.raises(OSError, match="the disk is full"):
            ray.get(slow.call(Slow.fail), timeout=60)
        assert ray.get(quick.call(Quick.add, 1), timeout=20) == 1
    finally:
        ray_executor.stop(slow)
        ray_executor.stop(quick)
