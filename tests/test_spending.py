"""Labels are held back while nearly all answers are ties, and none is lost or asked for twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.queries.spending import GATHERINGS, PROBE, TRICKLE, Spending, gathered, held_back


def test_without_watching_all_that_is_due_is_granted() -> None:
    spending = Spending(200, watches=False)
    spending.look(50, 50)
    assert spending.grant(60, 50, 3) == 10
    assert (spending.tied, spending.wants_clips, spending.report()) == (False, False, {})


def test_first_a_few_then_the_rest_where_answers_differ() -> None:
    spending = Spending(200, watches=True)
    assert spending.grant(50, 0, None) == PROBE
    spending.look(PROBE, 8)
    assert not spending.tied
    assert spending.grant(50, PROBE, None) == 40
    assert spending.held_back == 0


def test_ties_ask_for_other_clips_and_then_hold_the_budget_back() -> None:
    spending = Spending(200, watches=True)
    for asked in range(GATHERINGS):
        assert spending.grant(50, PROBE * asked, None) == PROBE
        spending.look(PROBE, 9)
        assert spending.wants_clips
        spending.gathered()
    spending.look(PROBE, PROBE)
    assert (spending.tied, spending.wants_clips) == (True, False)
    assert spending.grant(50, 30, None) == 0
    assert spending.report() == {
        "labels_held_back": 20,
        "first_clips_gathered": 1 + GATHERINGS,
        "newest_answers": PROBE,
        "newest_ties": PROBE,
    }
    assert "20 labels are held back" in str(held_back(spending.report()))
    assert "gathered (3 times, 9000 environment" in str(gathered(spending.report() | {"first_clips_env_steps": 9000}))
    assert spending.grant(80, 30, 24) == TRICKLE
    # Once answers differ, what was held back is spread over the rounds that are left.
    spending.look(TRICKLE, 0)
    spending.look(PROBE, 0)
    assert not spending.tied
    assert held_back(spending.report()) is None
    assert spending.grant(86, 32, 20) == 9
    assert spending.grant(200, 150, 1) == 50
    copy = Spending(200, watches=True)
    copy.load_state(spending.state())
    assert vars(copy) == vars(spending)


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 1)), min_size=1, max_size=30))
def test_the_budget_is_never_exceeded_and_spent_when_answers_differ_at_the_end(
    rounds: list[tuple[int, float]],
) -> None:
    total = sum(labels for labels, _ in rounds) + 1
    spending, due, answered = Spending(total, watches=True), 1, 0
    for i, (labels, share) in enumerate(rounds):
        due += labels
        granted = spending.grant(due, answered, len(rounds) - i)
        assert 0 <= granted <= due - answered
        answered += granted
        assert due - answered == spending.held_back
        tied = spending.tied
        spending.look(granted, round(share * granted))
    assert tied or answered == total
