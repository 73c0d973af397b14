"""Rollouts ahead: the age of the policy behind each is bounded, whatever the speed of its env runner."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_ray.rllib import algorithm, rollouts
from rlhf_ray.rllib.rollouts import RolloutsAhead


class Runners:
    """Env runners that finish rollouts after a number of waits of their own; a rollout is the iteration that began it."""

    def __init__(self, waits: list[int]):
        self.waits, self.left, self.begun = waits, dict[int, int](), dict[int, int]()
        self.now: Callable[[], int] = lambda: 0
        self.waited = 0

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
            self.waited += 1


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
        assert runners.waited < 60 * 3  # not for the slow one
    else:
        assert max(ages) == max_age


@pytest.mark.parametrize(
    ("learners", "taken", "minibatches"),
    # Of 4 env runners with 100 steps each: 3 passes over the steps of each learner, in minibatches of 50.
    [(2, 4, 3 * 200 // 50), (2, 3, 3 * 150 // 50), (3, 3, 3 * 100 // 50)],
)
def test_each_of_several_learners_takes_as_many_minibatches(learners: int, taken: int, minibatches: int) -> None:
    config = types.SimpleNamespace(
        num_learners=learners, num_env_runners=4, total_train_batch_size=400, num_epochs=3, minibatch_size=50
    )
    of: Any = types.SimpleNamespace(config=config)
    references = [object()] * taken
    assert rollouts._data(of, references) == {
        "episodes_refs": references,
        "num_total_minibatches": minibatches,
    }
    config.num_learners = 1
    assert rollouts._data(of, references) == {"episodes_refs": references}
    config.minibatch_size, config.num_learners = 10_000, learners
    assert rollouts._data(of, references) == {"episodes_refs": references, "num_total_minibatches": 1}


def test_fewer_rollouts_than_learners_and_lost_ones_are_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(reference: Any) -> list[Any]:
        if reference == "lost":
            raise rollouts.ray.exceptions.ObjectLostError("", "", "")
        return [reference, reference]

    monkeypatch.setattr(rollouts.ray, "get", get)
    for learners, references, episodes in ((0, ["a", "lost", "b"], ["a", "a", "b", "b"]), (2, ["a"], ["a", "a"])):
        of: Any = types.SimpleNamespace(config=types.SimpleNamespace(num_learners=learners))
        assert rollouts._data(of, references) == {"episodes": episodes}
    assert rollouts._data(of, ["lost"]) is None


@pytest.mark.parametrize(("steps", "most"), [(0, 14), (10_000, 4), (10_001, 2), (12_000, 2), (14_000, 2)])
def test_no_more_rollouts_are_begun_than_the_budget_has_room_for(
    monkeypatch: pytest.MonkeyPatch, steps: int, most: int
) -> None:
    """Of two env runners; of 14,000 steps, an iteration takes up to 2,000. One iteration is run in any case."""
    asked: list[int] = []
    monkeypatch.setattr(algorithm, "learn_while_sampling", lambda run, ahead, most, **of: asked.append(most))
    experiment = types.SimpleNamespace(preferences=types.SimpleNamespace(mode="asynchronous"), total_env_steps=14_000)
    run: Any = types.SimpleNamespace(
        _checked=types.SimpleNamespace(experiment=experiment),
        training_iteration=3,
        config=types.SimpleNamespace(num_env_runners=2, most_iteration_env_steps=2_000),
        env_steps=steps,
        _ahead=None,
        update_arguments=dict,
    )
    algorithm.LearnsFromPreferences._iterate_once(run)
    assert asked == [most]
