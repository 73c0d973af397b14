"""Rollouts ahead, with env runners that are made up: who is waited for, and how many are begun."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from rlhf_ray.rllib.rollouts import TAG, RolloutsAhead


@ray.remote(num_cpus=0)
class Runner:
    """Takes so many seconds for each rollout."""

    def __init__(self, number: int, seconds: float):
        self.number, self.seconds, self.made = number, seconds, 0

    def sample(self) -> tuple[str, dict[str, int]]:
        self.made += 1
        time.sleep(self.seconds)
        return f"rollout {self.made} of {self.number}", {"runner": self.number}

    def count(self) -> int:
        return self.made


class Group:
    """As much of RLlib's EnvRunnerGroup as rollouts ahead use."""

    def __init__(self, seconds: list[float]):
        self.actors = {i: Runner.remote(i, each) for i, each in enumerate(seconds, 1)}
        self.healthy = set(self.actors)
        self.calls: dict[Any, tuple[str, int]] = {}
        self._worker_manager = SimpleNamespace(_in_flight_req_to_actor_id=self.calls)
        self.made()  # returns when they are there

    def healthy_env_runner_ids(self) -> list[int]:
        return sorted(self.healthy)

    def foreach_env_runner_async(self, func: Any, tag: str, remote_worker_ids: list[int]) -> None:
        assert remote_worker_ids
        for i in remote_worker_ids:
            self.calls[self.actors[i].sample.remote()] = (tag, i)  # type: ignore[attr-defined]

    def fetch_ready_async_reqs(self, tags: str) -> list[tuple[int, Any]]:
        assert tags == TAG
        ready = ray.wait(list(self.calls), num_returns=len(self.calls), timeout=0)[0] if self.calls else []
        found = []
        for call in ready:
            _, runner = self.calls.pop(call)
            try:
                found.append((runner, ray.get(call)))
            except ray.exceptions.RayActorError:
                self.healthy.discard(runner)
        return found

    def made(self) -> list[int]:
        return ray.get([actor.count.remote() for actor in self.actors.values()])  # type: ignore[attr-defined, no-any-return]


def ahead(group: Group, timeout: float = 30.0) -> RolloutsAhead:
    config = SimpleNamespace(num_env_runners=len(group.actors), sample_timeout_s=timeout)
    return RolloutsAhead(SimpleNamespace(env_runner_group=group, config=config))


def sources(rollouts: list[Any]) -> list[int]:
    return [metrics["runner"] for _, metrics in rollouts]


pytestmark = pytest.mark.usefixtures("ray_session")


def test_nobody_waits_for_a_slow_env_runner() -> None:
    group = Group([0.05, 3.0, 0.05])
    rollouts = ahead(group)
    started = time.monotonic()
    taken = [sources(rollouts.take(most=99)) for _ in range(3)]
    assert time.monotonic() - started < 2.5
    assert all(len(each) == 3 for each in taken)
    assert {1, 3} <= {runner for each in taken for runner in each}


def test_no_more_rollouts_are_begun_than_will_be_taken() -> None:
    group = Group([0.01, 0.01])
    rollouts = ahead(group)
    for most in (6, 4, 2):
        assert len(rollouts.take(most)) == 2
    assert sum(group.made()) == 6
    assert not group.calls
    assert not rollouts.ready


def test_the_others_make_up_for_an_env_runner_that_is_lost() -> None:
    group = Group([0.05, 60.0])
    rollouts = ahead(group)
    group.foreach_env_runner_async(None, TAG, [1, 2])
    ray.kill(group.actors[2])
    assert sources(rollouts.take(most=99)) == [1, 1]
    assert group.healthy == {1}


def test_where_all_are_lost_there_are_no_rollouts() -> None:
    group = Group([60.0, 60.0])
    rollouts = ahead(group)
    group.foreach_env_runner_async(None, TAG, [1, 2])
    for actor in group.actors.values():
        ray.kill(actor)
    assert rollouts.take(most=99) == []


def test_what_is_there_in_time_is_taken() -> None:
    group = Group([0.05, 60.0])
    rollouts = ahead(group)
    rollouts.runners.foreach_env_runner_async(None, TAG, [1])
    ray.get(list(group.calls))
    group.calls[group.actors[2].sample.remote()] = (TAG, 2)  # type: ignore[attr-defined]
    group.healthy = {2}  # so that no other is begun
    rollouts.config.sample_timeout_s = 0.5
    assert sources(rollouts.take(most=99)) == [1]
