from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.queries.schedules import (
    ScheduleName,
    labels_due,
    labels_per_round,
    progress_due,
    rounds_covered,
    share_due,
)

SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
RATES: dict[ScheduleName, Callable[[FloatArray], FloatArray]] = {
    "constant": lambda t: np.ones_like(t),
    "hyperbolic": lambda t: 1 / (1 + t),
    "inverse_quadratic": lambda t: 1 / (1 + t**2),
}
STEEPNESSES = st.floats(0.01, 100)


@st.composite
def budgets(draw: st.DrawFn) -> tuple[int, int]:
    total = draw(st.integers(1, 5000))
    return total, draw(st.integers(1, total))


@pytest.mark.parametrize("steepness", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_share_due_is_the_integral_of_the_rate(schedule: ScheduleName, steepness: float) -> None:
    t = np.linspace(0, 1, 4001)
    rate = RATES[schedule](steepness * t)
    integral = np.concatenate([[0], np.cumsum((rate[1:] + rate[:-1]) / 2)])
    assert [share_due(schedule, x, steepness) for x in t] == pytest.approx(integral / integral[-1], abs=1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=150, deadline=None)
@given(budget=budgets(), rounds=st.integers(0, 300), steepness=STEEPNESSES)
def test_the_labels_of_all_rounds_sum_to_the_budget_and_none_is_negative(
    schedule: ScheduleName, budget: tuple[int, int], rounds: int, steepness: float
) -> None:
    total, initial = budget
    labels = labels_per_round(total, initial, schedule, rounds, steepness)
    assert len(labels) == rounds + 1
    assert sum(labels) == total
    assert min(labels) >= 0
    assert labels[0] == (initial if rounds else total)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=150, deadline=None)
@given(budget=budgets(), progress=st.lists(st.floats(0, 1), min_size=2, max_size=20), steepness=STEEPNESSES)
def test_labels_due_never_fall_while_training_goes_on(
    schedule: ScheduleName, budget: tuple[int, int], progress: list[float], steepness: float
) -> None:
    due = [labels_due(*budget, schedule, t, steepness) for t in sorted(progress)]
    assert due == sorted(due)
    assert labels_due(*budget, schedule, 0.0, steepness) == budget[1]
    assert labels_due(*budget, schedule, 1.0, steepness) == budget[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=150, deadline=None)
@given(budget=budgets(), share=st.floats(0, 1), steepness=STEEPNESSES)
def test_a_label_falls_due_where_the_schedule_says(
    schedule: ScheduleName, budget: tuple[int, int], share: float, steepness: float
) -> None:
    total, initial = budget
    label = 1 + round(share * (total - 1))
    at = progress_due(total, initial, schedule, label, steepness)
    assert 0 <= at <= 1
    assert labels_due(total, initial, schedule, at + 1e-6, steepness) >= label
    if at > 0:
        assert labels_due(total, initial, schedule, at - 1e-6, steepness) < label


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_progress_outside_of_the_training_counts_as_its_beginning_or_end(schedule: ScheduleName) -> None:
    assert share_due(schedule, -0.5) == 0.0
    assert share_due(schedule, 1.5) == pytest.approx(1.0)


def test_the_constant_schedule_asks_for_the_same_in_every_round() -> None:
    assert labels_per_round(200, 50, "constant", 25) == [50] + [6] * 25
    assert max(labels_per_round(203, 50, "constant", 24)[1:]) - min(labels_per_round(203, 50, "constant", 24)[1:]) <= 1


def test_the_falling_schedules_ask_for_more_early_and_inverse_quadratic_falls_furthest_at_the_end() -> None:
    last = {name: labels_per_round(100_000, 1, name, 10)[-1] for name in SCHEDULES}
    assert last["constant"] > last["hyperbolic"] > last["inverse_quadratic"]
    for schedule in ("hyperbolic", "inverse_quadratic"):
        later = labels_per_round(100_000, 1, schedule, 10)[1:]
        assert later == sorted(later, reverse=True)


def test_more_rounds_than_labels_leave_rounds_with_nothing_to_ask() -> None:
    labels = labels_per_round(13, 10, "constant", 24)
    assert labels.count(0) == 21
    assert sum(labels[1:]) == 3


def test_an_unknown_schedule_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"preferences\.schedule is 'never'.*constant.*hyperbolic.*inverse_quadratic"):
        share_due("never", 0.5)  # type: ignore[arg-type]


def test_labels_that_are_there_already_cover_the_rounds_that_would_ask_for_them() -> None:
    labels = [6, 1, 0, 1, 2]
    covered = {given: rounds_covered(labels, given) for given in (0, 6, 7, 8, 9, 10, 100)}
    assert covered == {0: 0, 6: 0, 7: 1, 8: 2, 9: 2, 10: 3, 100: 3}
    assert rounds_covered([10], 100) == 0
