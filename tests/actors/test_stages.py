import pytest

from actors.stages import Stage


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_stage_counts_what_it_did_and_how_long_it_was_idle(clock: Clock) -> None:
    stage = Stage(clock)
    clock.now += 1.0
    stage.start("call", lambda: 3)
    assert stage.call == "call"
    clock.now += 3.0
    stage.done()
    assert stage.call is None
    assert stage.report(waiting=7) == {"rate": 0.75, "idle": 0.25, "queue": 7.0}


def test_a_call_under_way_is_busy_time_and_is_counted_once_over_reports(clock: Clock) -> None:
    stage = Stage(clock)
    stage.start("call", lambda: 4)
    clock.now += 2.0
    assert stage.report(0) == {"rate": 0.0, "idle": 0.0, "queue": 0.0}
    clock.now += 1.0
    stage.done()
    clock.now += 1.0
    assert stage.report(0) == {"rate": 2.0, "idle": 0.5, "queue": 0.0}
    clock.now += 5.0
    assert stage.report(0) == {"rate": 0.0, "idle": 1.0, "queue": 0.0}


def test_taking_what_a_call_gave_may_start_the_next(clock: Clock) -> None:
    stage = Stage(clock)

    def again() -> int:
        stage.start("second", lambda: 1)
        return 1

    stage.start("first", again)
    stage.done()
    assert stage.call == "second"
