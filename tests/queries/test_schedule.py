import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.queries.parts import check_parts
from rlhf_ray.queries.schedule import (
    GATHERINGS,
    LABEL_RATES,
    PROBE,
    TRICKLE,
    LabelSchedule,
    gathered,
    held_back,
    make_rate,
)
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings


def hump(progress: float) -> float:
    """Most labels around a third of the training; none in the last fifth."""
    return 0.0 if progress > 0.8 else math.exp(-(((progress - 0.3) / 0.2) ** 2))


SCHEDULES = [*LABEL_RATES.parts, f"{__name__}:hump"]
RATES: dict[str, Callable[[FloatArray, float], FloatArray]] = {
    "constant": lambda t, s: np.ones_like(t),
    "hyperbolic": lambda t, s: 1 / (1 + s * t),
    "inverse_quadratic": lambda t, s: 1 / (1 + (s * t) ** 2),
    "increasing": lambda t, s: 1 / (1 + s * (1 - t)),
    f"{__name__}:hump": lambda t, s: np.array([hump(x) for x in t]),
}
STEEPNESSES = st.floats(0.01, 100)


def _schedule(
    total: int, initial: int, rounds: int, schedule: str = "constant", steepness: float = 1.0
) -> LabelSchedule:
    first = total if rounds == 0 else initial
    return LabelSchedule(
        PreferenceSettings(
            comparisons=total, initial_comparisons=first, rounds=rounds, schedule=schedule, steepness=steepness
        )
    )


def _labels(schedule: LabelSchedule) -> list[int]:
    due = [schedule.due_in_round(number) for number in range(schedule.rounds + 1)]
    return np.diff([0, *due]).tolist()


@st.composite
def budgets(draw: st.DrawFn) -> tuple[int, int]:
    total = draw(st.integers(1, 5000))
    return total, draw(st.integers(1, total))


@pytest.mark.parametrize("steepness", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_share_due_is_the_integral_of_the_rate(schedule: str, steepness: float) -> None:
    t = np.linspace(0, 1, 4001)
    rate, of = RATES[schedule](t, steepness), make_rate(schedule, steepness)
    integral = np.concatenate([[0], np.cumsum((rate[1:] + rate[:-1]) / 2)])
    assert [of.share(x) for x in t] == pytest.approx(integral / integral[-1], abs=5e-4 if ":" in schedule else 1e-5)
    assert (of.share(0.0), of.share(1.0)) == (0, 1)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(budget=budgets(), rounds=st.integers(0, 300), steepness=STEEPNESSES)
def test_the_labels_of_all_rounds_sum_to_the_budget_and_none_is_negative(schedule, budget, rounds, steepness):
    total, initial = budget
    labels = _labels(_schedule(total, initial, rounds, schedule, steepness))
    assert len(labels) == rounds + 1
    assert sum(labels) == total
    assert min(labels) >= 0
    assert labels[0] == (initial if rounds else total)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(budget=budgets(), progress=st.lists(st.floats(0, 1), min_size=2, max_size=20), steepness=STEEPNESSES)
def test_labels_due_never_fall_while_training_goes_on(schedule, budget, progress, steepness):
    of = _schedule(*budget, 24, schedule, steepness)
    due = [of.due(t) for t in sorted(progress)]
    assert due == sorted(due)
    assert (of.due(0.0), of.due(1.0)) == (budget[1], budget[0])


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(budget=budgets(), share=st.floats(0, 1), steepness=STEEPNESSES)
def test_a_label_falls_due_where_the_schedule_says(schedule, budget, share, steepness):
    of = _schedule(*budget, 24, schedule, steepness)
    label = 1 + round(share * (budget[0] - 1))
    at = of.progress_due(label)
    assert 0 <= at <= 1
    assert of.due(at + 1e-6) >= label
    if at > 0:
        assert of.due(at - 1e-6) < label


@pytest.mark.parametrize("rounds", [1, 3, 7, 24, 49, 300])
def test_each_round_is_reached_at_its_share_of_the_training(rounds: int) -> None:
    of = _schedule(1000, 10, rounds)
    assert [of.round_at(number / rounds) for number in range(rounds + 1)] == list(range(rounds + 1))
    assert (of.round_at(-0.5), of.round_at(1.5)) == (0, rounds)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(until=st.floats(0.05, 1), at=st.floats(0, 1), rounds=st.integers(1, 50))
def test_until_a_share_of_the_training_is_the_schedule_of_a_training_that_ends_there(schedule, until, at, rounds):
    whole = LabelSchedule(PreferenceSettings(comparisons=300, rounds=rounds, schedule=schedule))
    part = LabelSchedule(PreferenceSettings(comparisons=300, rounds=rounds, schedule=schedule, until=until))
    assert part.due(at * until) == pytest.approx(whole.due(at), abs=1)  # a rounding
    assert part.due(until) == part.due(1.0) == part.due_in_round(rounds) == 300
    assert part.round_at(until) == part.round_at(1.0) == rounds
    assert [part.round_at(part.progress_of(number)) for number in range(rounds + 1)] == list(range(rounds + 1))
    label = max(1, round(300 * at))
    assert part.progress_due(label) == pytest.approx(until * whole.progress_due(label))
    assert part.due(part.progress_due(label) + 1e-9) >= label


def test_the_constant_schedule_asks_for_the_same_in_every_round() -> None:
    assert _labels(_schedule(200, 50, 25)) == [50] + [6] * 25
    assert np.ptp(_labels(_schedule(203, 50, 24))[1:]) <= 1


@pytest.mark.parametrize("total", [5_000_000, 50_000_000])
def test_a_schedule_in_steps_is_that_of_drlhp(total: int) -> None:
    k = 2_000_000
    preferences = PreferenceSettings(comparisons=700_000, rounds=10, schedule="hyperbolic", halving_env_steps=k)
    of = LabelSchedule(preferences, env_steps=total)
    for progress in (0.1, 0.5, 0.9):  # the integral of k / (T + k), normalised
        share = math.log((progress * total + k) / k) / math.log((total + k) / k)
        assert of.due(progress) - 350_000 == pytest.approx(350_000 * share, abs=1)
    with pytest.raises(SettingError, match=r"halving_env_steps is 2000000; set total_env_steps"):
        LabelSchedule(preferences)


def test_a_rate_of_ones_own_may_be_an_object_and_only_ratios_matter() -> None:
    class Rate:
        def __call__(self, progress: float) -> float:
            return 1e-9 / (1 + 6 * progress)

    given: Any = Rate()
    own = LabelSchedule(PreferenceSettings(comparisons=2000, rounds=7, schedule=given))
    built_in = LabelSchedule(PreferenceSettings(comparisons=2000, rounds=7, schedule="hyperbolic", steepness=6.0))
    assert _labels(own) == _labels(built_in)


def negative(progress: float) -> float:
    return 0.5 - progress


def nothing(progress: float) -> float:
    return 0.0


def no_rate(progress: float, seed: int) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("hyperbolical", "one of constant, hyperbolic, inverse_quadratic, increasing, or module:Name"),
        (f"{__name__}:negative", "returns -0.0004.* at a progress of 0.5005; the relative rate"),
        (f"{__name__}:nothing", "returns 0 at every progress"),
        (f"{__name__}:no_rate", "calling it with a progress of 0 raised TypeError"),
        (f"{__name__}:SCHEDULES", "can't be called"),
        (f"{__name__}:missing", "has no missing: correct the name"),
    ],
)
def test_a_wrong_schedule_is_one_line(name: str, why: str) -> None:
    with pytest.raises(SettingError, match=why) as error:
        check_parts(PreferenceSettings(schedule=name), RewardModelSettings())
    assert str(error.value).startswith(f"preferences.schedule is {name!r}")
    assert "\n" not in str(error.value)


def test_a_training_with_room_for_fewer_rounds_asks_for_all_labels_in_those() -> None:
    of = PreferenceSettings(comparisons=10, initial_comparisons=6, rounds=6, schedule="constant")
    assert _labels(LabelSchedule(of, 2)) == [6, 2, 2]
    assert _labels(LabelSchedule(of, 0)) == [10]


def test_labels_that_are_there_already_cover_the_rounds_that_would_ask_for_them() -> None:
    of = _schedule(10, 6, 4)
    assert _labels(of) == [6, 1, 1, 1, 1]
    expected = {0: 0, 6: 0, 7: 1, 9: 3, 10: 4, 100: 4}
    assert {given: of.rounds_covered(given) for given in expected} == expected
    assert _schedule(10, 10, 0).rounds_covered(100) == 0
    assert _schedule(3, 1, 20).rounds_covered(2) == 1  # one round asks for a label


def _watching(total: int = 200, initial: int = 50, rounds: int = 24) -> LabelSchedule:
    return LabelSchedule(
        PreferenceSettings(comparisons=total, initial_comparisons=initial, rounds=rounds), watches=True
    )


def test_an_asynchronous_training_waits_for_more_labels_than_the_initial_ones_if_it_is_to() -> None:
    of = LabelSchedule(
        PreferenceSettings(
            mode="asynchronous", comparisons=20, initial_comparisons=10, minimum_comparisons=14, rounds=10,
            schedule="constant",
        )
    )  # fmt: skip
    assert [of.due_in_round(number) for number in range(11)] == [14, 14, 14, 14, 14, 15, 16, 17, 18, 19, 20]


@pytest.mark.parametrize(
    ("looks", "newest", "tied"),
    [
        ([(PROBE, 9), (PROBE, 2)], (PROBE, 2), False),  # enough: the others say nothing of now
        ([(PROBE, 9), (PROBE - 1, 2)], (2 * PROBE - 1, 11), False),
        ([(5, 4), (5, 4)], (10, 8), False),  # four fifths are not above four fifths
        ([(5, 4), (5, 5)], (10, 9), True),
        ([(5, 5), (4, 4)], (9, 9), False),  # too few
    ],
)
def test_the_newest_answers_are_at_least_ten(looks: list[tuple[int, int]], newest: tuple[int, int], tied: bool) -> None:
    of = _watching()
    of._looks = looks
    assert (of.newest, of.tied) == (newest, tied)


def test_without_watching_all_that_is_due_is_allowed() -> None:
    of = _schedule(200, 50, 24)
    assert of.allowed(0.0, 50, 50) == 50
    assert (of.tied, of.wants_fragments, of.report()) == (False, False, {})


def test_first_a_few_then_the_rest_where_answers_differ() -> None:
    of = _watching()
    assert of.allowed(0.0, 0, 0, training=False) == PROBE
    assert of.allowed(0.0, PROBE, 8, open=3, training=False) == PROBE  # not before all of them have an answer
    assert of.allowed(0.0, PROBE, 8, training=False) == 50
    assert (of.tied, of.held_back) == (False, 0)


def test_a_few_ties_in_a_row_hold_nothing_back() -> None:
    of = _watching()
    of.allowed(0.0, 0, 0, training=False)
    of.allowed(0.0, PROBE, 0, training=False)
    due = of.due(0.5)
    assert of.allowed(0.5, 2 * PROBE - 1, PROBE - 1) == due  # not looked at before there are ten
    assert of.newest == (PROBE, 0)
    assert of.allowed(0.5, 2 * PROBE, PROBE) == 2 * PROBE + TRICKLE
    assert of.newest == (PROBE, PROBE)
    ahead = _watching()
    ahead.allowed(0.0, 0, 0, training=False)
    ahead.allowed(0.0, PROBE, 0, training=False)
    more = ahead.due(0.5) + PROBE  # than are due, all ties
    assert (ahead.allowed(0.5, more, more - PROBE), ahead.held_back) == (more, 0)


def test_ties_ask_for_other_clips_and_then_hold_the_budget_back() -> None:
    of = _watching()
    answered = ties = 0
    for _ in range(GATHERINGS):
        assert of.allowed(0.0, answered, ties, training=False) == answered + PROBE
        answered, ties = answered + PROBE, ties + 9
        assert of.allowed(0.0, answered, ties, training=False) == answered
        assert of.wants_fragments
        of.gathered()
    assert of.allowed(0.0, answered, ties, training=False) == answered + PROBE
    answered, ties = answered + PROBE, ties + PROBE
    assert of.allowed(0.0, answered, ties, training=False) == answered
    assert (of.tied, of.wants_fragments) == (True, False)
    assert of.report() == {
        "labels_held_back": 20,
        "first_fragments_gathered": 1 + GATHERINGS,
        "newest_answers": PROBE,
        "newest_ties": PROBE,
    }
    assert "holding back 20 labels" in str(held_back(of.report()))
    assert "collected 3 times (9000 env steps" in str(gathered(of.report() | {"first_fragments_env_steps": 9000}))
    for number in (1, 2):  # a few in each round, and no more within it
        assert of.allowed(number / 24, answered, ties) == answered + TRICKLE
        assert of.allowed(number / 24, answered, ties, open=TRICKLE) == answered + TRICKLE
        answered, ties = answered + TRICKLE, ties + TRICKLE
        assert of.allowed(number / 24, answered, ties) == answered
    # Once answers differ, what was held back is spread over the rounds that are left.
    for number in range(3, 8):
        answered = of.allowed(number / 24, answered, ties)
    assert not of.tied
    assert held_back(of.report()) is None
    assert of.allowed(8 / 24, answered, ties) - answered == -(-(200 - answered) // 17)
    copy = _watching()
    copy.load_state(of.state())
    assert (copy.state(), copy.report()) == (of.state(), of.report())


@given(st.lists(st.floats(0, 1), min_size=24, max_size=24), st.booleans())
def test_the_budget_is_never_exceeded_and_spent_when_answers_differ_at_the_end(shares, differ):
    of = _watching()
    answered = ties = 0
    for number, share in enumerate([*shares, *[0.0] * differ]):
        progress = min(1.0, number / 24)
        allowed = of.allowed(progress, answered, ties, training=number > 0)
        assert answered <= allowed <= of.due(progress)
        ties += round(share * (allowed - answered))
        answered = allowed
    assert answered + of.held_back <= 200
    assert of.tied or of.held_back or answered == 200 or not differ
