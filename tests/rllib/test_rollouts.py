"""Rollouts ahead: the age of the policy behind each is bounded, whatever the speed of its env runner."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_ray.rllib import rollouts
from rlhf_ray.rllib.rollouts import RolloutsAhead


class Runners:
    """Env runners that finish rollouts after a number of waits of their own; a rollout is the iteration that began it."""

    def __init__(self, waits: list[int]):
        self.waits, self.left, self.begun = waits, dict[int, int](), dict[int, int]()
        self.now: Callable[[], int] = lambda: 0

    def healthy_env_runner_ids(self) -> list[int]:
        return list(range(len(self.waits)))

    def foreach_env_runner_async(self, sample: Any, tag: str, remote_worker_ids: list[int]) -> None:
        for runner in remote_worker_ids:
            assert runner not in self.left
            self.left[runner], self.begun[runner] = self.waits[runner], self.now()

    def fetch_ready_async_reqs(self, tags: str) -> list[Any]:
        done = [runner for runner, left in self.left.items() if left <= 0]
        for runner in done:
            del self.left[runner]
        return [(runner, (self.begun[runner], None)) for runner in done]

    def wait(self, calls: list[int], **_: Any) -> None:
        while all(self.left[runner] > 0 for runner in calls):
            self.left = {runner: left - 1 for runner, left in self.left.items()}


@pytest.mark.parametrize("max_age", [None, 0, 1, 3])
def test_no_rollout_is_older_than_the_bound(monkeypatch: pytest.MonkeyPatch, max_age: int | None) -> None:
    runners = Runners([1, 1, 2, 17])  # the last is slow
    config = types.SimpleNamespace(num_env_runners=4, sample_timeout_s=1e9)
    ahead = RolloutsAhead(types.SimpleNamespace(env_runner_group=runners, config=config), max_age)  # type: ignore[arg-type]
    monkeypatch.setattr(rollouts, "env_runner_calls", lambda group, tag: {runner: runner for runner in group.left})
    monkeypatch.setattr(rollouts.ray, "wait", runners.wait)
    runners.now = lambda: ahead.takes
    ages = [ahead.takes - begun for _ in range(60) for begun, _ in ahead.take(1000)]
    assert len(ages) == 60 * 4  # an iteration takes as many as ever
    assert set(runners.begun) == {0, 1, 2, 3}
    if max_age is None:
        assert max(ages) > 3
    else:
        assert max(ages) == max_age
