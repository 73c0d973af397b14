"""The recorder: which steps belong together, and whether first fragments are too few, by what the pool said of the last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rlhf_ray.actors.ring_actors import RingActors
from rlhf_ray.data.errors import SettingError
from rlhf_ray.queries.pool import CutFragments, PoolReport
from rlhf_ray.wrappers.recorder import GivenFragments, Recorder
from tests.wrappers.walking import FRAGMENTS


def _step(recorder: Recorder, number: int, *, terminated: bool = False, truncated: bool = False) -> Any:
    """A step of a single environment whose observation, action and reward are its number."""
    return recorder.add(
        np.array([[number]]),
        np.array([[number]]),
        np.array([float(number)]),
        np.array([terminated]),
        np.array([truncated]),
        np.array([[number + 1]]),
    )


def test_a_trajectory_is_the_steps_between_two_resets() -> None:
    recorder = Recorder(1)
    recorder.begin()
    _step(recorder, 0)
    assert _step(recorder, 1, terminated=True)[1] == (True, 1.0, 2)
    recorder.begin()
    _step(recorder, 10)
    recorder.begin()  # in the middle of an episode
    _step(recorder, 20)
    trajectories, lengths = recorder.take()
    assert [t.observations[:, 0].tolist() for t in trajectories] == [[0, 1, 2], [10, 11], [20, 21]]
    assert [t.actions[:, 0].tolist() for t in trajectories] == [[0, 1], [10], [20]]
    assert [t.terminated for t in trajectories] == [True, False, False]
    assert lengths == (2,)
    _step(recorder, 21)
    (rest,), lengths = recorder.take()
    assert (rest.start, rest.rewards.tolist(), lengths) == (1, [21.0], ())


def test_steps_after_the_end_without_a_reset_are_none() -> None:
    recorder = Recorder(1)
    recorder.begin()
    _step(recorder, 0, truncated=True)
    real, episodes = _step(recorder, 1, truncated=True)
    assert (real.tolist(), episodes) == ([False], None)
    assert [len(t) for t in recorder.take()[0]] == [1]


SEEN = FRAGMENTS.initial_env_steps
SENT = CutFragments(0, 0, None, ())


class Executor:
    """One whose calls end when a test says so."""

    def __init__(self) -> None:
        self.done = False

    def ready(self, reference: PoolReport) -> bool:
        return self.done

    def get(self, reference: PoolReport) -> PoolReport:
        assert self.done
        return reference


def source(said: PoolReport) -> tuple[GivenFragments, Executor]:
    executor = Executor()
    pool = SimpleNamespace(call=lambda method, fragments: said)
    actors: Any = SimpleNamespace(settings=SimpleNamespace(fragments=FRAGMENTS), executor=executor, pool=pool)
    return GivenFragments(cast(RingActors, actors), asks=True), executor


def test_a_report_that_overtook_the_fragments_is_no_failure() -> None:
    given, executor = source(PoolReport(fragments=200))
    assert given.take(SENT, (), wait=False)
    empty = PoolReport()
    assert given.check(empty, SEEN) is empty  # on their way
    executor.done = True
    assert given.check(empty, SEEN) is empty  # arrived after the report, or lost with the pool since


def test_too_few_fragments_are_one_once_they_have_arrived() -> None:
    given, executor = source(PoolReport(fragments=1, too_short=25, episode_lengths=(4,)))
    given.take(SENT, (), wait=False)
    executor.done = True
    assert given.check(PoolReport(fragments=1), SEEN - 1).fragments == 1
    with pytest.raises(
        SettingError, match=r"fragments.length is 5, but 400 .* fewer than two .* \(episode lengths: \[4\]\)"
    ):
        given.check(PoolReport(), SEEN)


def test_nothing_sent_is_too_few() -> None:
    given, _ = source(PoolReport())
    with pytest.raises(SettingError, match="none ended"):
        given.check(PoolReport(), SEEN)
