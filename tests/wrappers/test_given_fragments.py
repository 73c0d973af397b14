"""GivenFragments: whether the first fragments were too few is judged by what the pool said of the last ones that were sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlhf_ray.actors.ring_actors import RingActors
from rlhf_ray.data.errors import SettingError
from rlhf_ray.queries.pool import CutFragments, PoolReport
from rlhf_ray.wrappers.recorder import GivenFragments
from tests.wrappers.walking import FRAGMENTS

SEEN = FRAGMENTS.initial_env_steps
SENT = CutFragments(0, 0, None, 0, ())


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
