"""What is shown of a wait for people, by a clock of the test's."""

from rlhf_ray.labelling.waiting import NOBODY_AFTER, PeopleWait, Waiting, spoken


def test_a_wait_is_reported_once_a_second_with_its_silence() -> None:
    now, seen = 0.0, list[PeopleWait]()
    waiting = Waiting(seen.append, clock=lambda: now)
    for moment, answered in ((0.0, 3), (0.4, 3), (1.0, 3), (2.0, 4), (400.0, 4)):
        now = moment
        waiting.look(answered, 50, pages=0)
    assert [(wait.answered, wait.seconds, wait.quiet) for wait in seen] == [
        (3, 0.0, 0.0), (3, 1.0, 1.0), (4, 2.0, 0.0), (4, 400.0, 398.0)
    ]  # fmt: skip
    assert [wait.alarm is not None for wait in seen] == [False, False, False, True]
    assert seen[-1].alarm == "Nobody has answered for 7 min (4 of 50 answered), and no labelling page is open."
    assert str(seen[-1]) == "waiting for people: 4 of 50 answered, 7 min, the last answer 7 min ago"
    waiting.end()
    now = 1000.0
    waiting.look(4, 60)  # another wait
    assert (seen[-1].seconds, seen[-1].quiet, seen[-1].alarm) == (0.0, 0.0, None)


def test_words() -> None:
    assert [spoken(seconds) for seconds in (0, 59, 60, 780, 5400)] == ["0 s", "59 s", "1 min", "13 min", "1.5 h"]
    assert str(PeopleWait(29, 50, 780.0, 10.0)) == "waiting for people: 29 of 50 answered, 13 min"
    assert PeopleWait(0, 5, NOBODY_AFTER, NOBODY_AFTER - 1).alarm is None
    assert str(PeopleWait(0, 5, 400.0, 400.0, 2).alarm).endswith("(0 of 5 answered); open labelling pages: 2.")
