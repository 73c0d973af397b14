"""What is due in a ring, from plain numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from rlhf_ray.queries.due import MOST_IN_A_ROW, Due, FitSchedule, RingState, RoundQuestions, Skips, share_of_questions
from rlhf_ray.queries.schedule import GATHERINGS, PROBE, LabelSchedule
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings
from rlhf_ray.store import Tally

PREFERENCES = PreferenceSettings(
    mode="asynchronous", comparisons=10, initial_comparisons=6, rounds=4, schedule="constant"
)
REWARD_MODEL = RewardModelSettings(initial_updates=100, updates=20)
DUE = [6, 7, 8, 9, 10]
"""Labels due in each round."""


@dataclass
class Asked:
    """A gatherer's questions."""

    open: int = 0
    share: float = 1.0
    limit: int | None = None
    annotators: tuple[str, ...] = ()
    deserted: bool = False


def _schedule(**changes: Any) -> LabelSchedule:
    watches = changes.pop("watches", False)
    return LabelSchedule(replace(PREFERENCES, **changes), watches=watches)


def _due(**changes: Any) -> Due:
    return Due(_schedule(**changes), REWARD_MODEL)


def _now(gatherers: Sequence[Asked] = (), **changes: Any) -> RingState:
    state = RingState(
        progress=0.0,
        iteration=0,
        version=0,
        tally=Tally(),
        unfitted=False,
        fitting=False,
        collecting=True,
        gathering=False,
        made=1.0,
        fragments_to_come=False,
        room=True,
        gatherers=gatherers,
    )
    return replace(state, **changes)


# Gradient steps.


def test_each_round_brings_its_gradient_steps_and_the_first_fit_its_own() -> None:
    fits = FitSchedule(_schedule(), REWARD_MODEL)
    taken = [fits.gradient_steps(fits.rounds_due(0.0, 6, 0), 6, 0)]
    for number in range(1, 5):
        rounds = fits.rounds_due(number / 4, DUE[number], number)
        taken.append(fits.gradient_steps(rounds, DUE[number], number))
        fits.took(rounds)
    assert taken == [100, 20, 20, 20, 20]


def test_rounds_that_were_put_off_bring_their_gradient_steps_later() -> None:
    fits = FitSchedule(_schedule(), REWARD_MODEL)
    fits.took(fits.rounds_due(0.25, 7, 1))
    assert fits.gradient_steps(fits.rounds_due(1.0, 10, 2), 10, 2) == 3 * 20


def test_a_fit_after_the_last_round_takes_the_steps_of_one() -> None:
    fits = FitSchedule(_schedule(), REWARD_MODEL)
    fits.took(4)
    assert fits.rounds_due(1.0, 10, 5) == 0
    assert fits.gradient_steps(0, 10, 5) == 20


@pytest.mark.parametrize(("held", "skipped", "rounds"), [(6, 0, 0), (7, 0, 1), (9, 0, 3), (6, 3, 3), (20, 0, 4)])
def test_rounds_that_will_ask_nothing_bring_their_steps_at_once(held: int, skipped: int, rounds: int) -> None:
    """They ask nothing because what exists uses up their labels: answers, and skips if these count."""
    labels = _schedule(skips_count=True)
    fits = FitSchedule(labels, REWARD_MODEL)
    used = Skips(labels.preferences).used(Tally(comparisons=held, skipped=skipped))
    due = fits.rounds_due(0.0, used, 0)
    assert due == rounds
    assert fits.gradient_steps(due, held, 0) == 100 + rounds * 20
    fits.took(due)
    asks = [number for number in range(1, 5) if labels.due_in_round(number) > used]
    assert sum(max(0, fits.rounds_due(number / 4, used, 1)) for number in asks[:1]) == len(asks[:1])


# A synchronous round.


def test_a_round_asks_once_for_what_is_due() -> None:
    labels = _schedule(mode="synchronous")
    questions = RoundQuestions(labels, Skips(labels.preferences), 1)
    assert questions.missing(Tally(comparisons=6)) == 1
    assert questions.missing(Tally(comparisons=7)) is None
    assert RoundQuestions(labels, Skips(labels.preferences), 1).missing(Tally(comparisons=9)) == 0  # more than are due


def test_skips_are_counted_from_the_last_answer_and_anew_in_each_round() -> None:
    skips, hopeless = Skips(PREFERENCES), list[bool]()
    for held, skipped in ((0, 99), (0, 100), (1, 100), (1, 199), (1, 200)):
        skips.note(Tally(comparisons=held, skipped=skipped))
        hopeless.append(skips.hopeless)
    skips.forget()
    hopeless.append(skips.hopeless)
    assert hopeless == [False, True, False, False, True, False]
    assert MOST_IN_A_ROW == 100


def test_ties_make_the_first_round_look_for_other_fragments() -> None:
    labels = _schedule(mode="synchronous", comparisons=100, initial_comparisons=50, watches=True)
    labels.begin(0, 0)
    questions, answered = RoundQuestions(labels, Skips(labels.preferences), 0), 0
    for _ in range(GATHERINGS):
        assert questions.missing(Tally(comparisons=answered, ties=answered)) == PROBE
        answered += PROBE
        assert questions.missing(Tally(comparisons=answered, ties=answered)) == 0
        assert questions.wants_fragments()
        questions.gathered()
    assert questions.missing(Tally(comparisons=answered, ties=answered)) == PROBE
    assert not questions.wants_fragments()


# The asynchronous ring.


def test_one_gatherer_is_asked_up_to_its_limit_for_all_that_is_due() -> None:
    due, asked = _due(), Asked(open=1, limit=4)
    assert due.questions(_now([asked]), asked) == 3
    assert due.questions(_now([asked], tally=Tally(comparisons=5)), asked) == 0
    assert due.questions(_now([asked], tally=Tally(comparisons=4), progress=1.0, version=1), asked) == 3
    assert due.total == 10


def test_nobody_is_asked_while_paused_or_without_pairs_or_once_all_have_left() -> None:
    due, asked = _due(), Asked()
    assert due.questions(_now([asked]), asked) == 6
    assert due.questions(_now([asked], collecting=False), asked) == 0
    due.starved(3)
    assert due.questions(_now([asked], iteration=3), asked) == 0
    assert due.questions(_now([asked], iteration=4), asked) == 6
    due.starved(4)
    due.fed()
    assert due.questions(_now([asked], iteration=4), asked) == 6
    asked.deserted = True
    due.deserted(4)
    assert due.questions(_now([asked], iteration=4), asked) == 0
    assert due.questions(_now([asked], iteration=5), asked) == 6
    asked.deserted = False  # somebody was there after all
    assert due.questions(_now([asked], iteration=4), asked) == 6


def test_questions_come_with_the_initial_fragments() -> None:
    due, asked = _due(), Asked()
    assert [due.questions(_now([asked], made=made, gathering=True), asked) for made in (0.0, 0.1, 0.5, 1.0)] == [
        0,
        1,
        3,
        6,
    ]
    due.begin(held := Tally(comparisons=2), 0)  # which were there before: the other four come with the fragments
    assert [due.questions(_now([asked], made=made, tally=held), asked) for made in (0.0, 0.1, 0.5, 1.0)] == [0, 1, 2, 4]
    assert [share_of_questions(10, share, share > 0) for share in (0.0, 0.05, 0.55, 1.0)] == [0, 1, 5, 10]


def test_people_and_a_script_get_their_shares() -> None:
    due = _due(human_share=0.3)
    people, script = Asked(share=0.3, annotators=("ada", "bob")), Asked(share=0.7)
    tally = Tally(comparisons=3, by_annotator={"ada": 2, "oracle": 1})
    now = _now([people, script], tally=tally)
    assert (due.questions(now, people), due.questions(now, script)) == (0, 3)  # 2 and 4 of the 6 that are due


def test_the_first_fit_waits_for_its_labels_unless_no_more_will_come() -> None:
    due, asked = _due(minimum_comparisons=4), Asked(open=2)
    few, enough = Tally(comparisons=3), Tally(comparisons=4)
    assert not due.fit(_now([asked], tally=few, unfitted=True))
    assert due.fit(_now([asked], tally=enough, unfitted=True))
    assert not due.fit(_now([asked], tally=enough, unfitted=False))
    asked.open = 0
    due.starved(0)
    assert due.fit(_now([asked], tally=few, unfitted=True))
    assert not due.fit(_now([asked], tally=few, unfitted=True, fragments_to_come=True))
    assert not due.fit(_now([asked], tally=few, unfitted=True, gathering=True))


def test_later_fits_wait_for_a_round_and_for_labels() -> None:
    due = _due()
    now = _now(version=1, tally=Tally(comparisons=7), unfitted=True, progress=0.2)
    assert not due.fit(now)
    assert due.fit(replace(now, progress=0.25))
    assert not due.fit(replace(now, progress=0.25, unfitted=False))
    due.fits.took(4)
    assert not due.fit(replace(now, progress=1.0)), "labels are missing still"
    assert due.fit(replace(now, progress=1.0, tally=Tally(comparisons=10))), (
        "the last labels, after the last round's fit"
    )


def test_rounds_without_labels_are_dropped_but_the_newest() -> None:
    due = _due()
    now = _now(version=1, tally=Tally(comparisons=10), progress=0.75)
    assert due.rounds_without_labels(now) == 2
    assert due.rounds_without_labels(replace(now, unfitted=True)) == 0
    assert due.rounds_without_labels(replace(now, tally=Tally(comparisons=7))) == 0


def test_the_agent_waits_for_a_version_that_will_come() -> None:
    due, asked = _due(), Asked()
    now = _now([asked], version=1, tally=Tally(comparisons=10), progress=0.5)
    assert not due.version_to_come(now)
    assert due.version_to_come(replace(now, unfitted=True))
    assert due.version_to_come(replace(now, fitting=True))
    assert due.version_to_come(replace(now, tally=Tally(comparisons=7)))


def test_what_needs_people_is_settled() -> None:
    due, people, script = _due(human_share=0.5), Asked(2, 0.5, annotators=("ada",)), Asked(share=0.5)
    assert due.unsettled(_now([people, script]))
    answered = Tally(comparisons=3, by_annotator={"oracle": 3})
    assert not due.unsettled(_now([people, script], tally=answered))
    assert due.unsettled(_now([people, script], tally=answered, fitting=True))
    script.open = 1
    assert due.unsettled(_now([people, script], tally=answered, collecting=False))
