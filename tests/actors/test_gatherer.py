import time

import numpy as np

from actors.gatherer import SyntheticGatherer
from rlhf_ray.settings import PreferenceSettings
from tests.made_up import same_fragments, some_comparisons

PAIRS = some_comparisons(200).pairs


def test_the_oracle_answers_by_true_return() -> None:
    comparisons = SyntheticGatherer(PreferenceSettings(teacher="oracle"), seed=0).gather(PAIRS, 0)
    assert same_fragments(comparisons.pairs.left, PAIRS.left)
    assert comparisons.pairs.ids == PAIRS.ids
    assert set(comparisons.annotators) == {"oracle"}
    better = PAIRS.left.returns() > PAIRS.right.returns()
    assert np.array_equal(comparisons.preferences, better.astype(np.float32))


def test_asking_again_in_the_same_round_gives_the_same_answers_even_after_a_restart() -> None:
    settings = PreferenceSettings(teacher="stochastic", rationality=0.1)
    gatherer = SyntheticGatherer(settings, seed=0)
    answers = [gatherer.gather(PAIRS, round_number).preferences for round_number in (1, 2, 1)]
    restarted = SyntheticGatherer(settings, seed=0).gather(PAIRS, 1).preferences
    assert np.array_equal(answers[0], answers[2])
    assert np.array_equal(answers[0], restarted)
    assert not np.array_equal(answers[0], answers[1])
    assert not np.array_equal(answers[0], SyntheticGatherer(settings, seed=1).gather(PAIRS, 1).preferences)


def test_the_teacher_is_as_rational_as_the_settings_say() -> None:
    certain, guessing = (
        SyntheticGatherer(PreferenceSettings(teacher="stochastic", rationality=rationality), seed=0)
        .gather(PAIRS, 0)
        .preferences
        for rationality in (1e9, 0.0)
    )
    truth = PAIRS.left.returns() > PAIRS.right.returns()
    assert np.array_equal(certain, truth.astype(np.float32))
    assert 0.35 < (guessing == truth).mean() < 0.65


def test_answers_are_the_same_in_however_many_parts_they_are_asked_for() -> None:
    settings = PreferenceSettings(teacher="stochastic", rationality=0.1)
    whole = SyntheticGatherer(settings, seed=0).gather(PAIRS, 3)
    parts = [SyntheticGatherer(settings, seed=0).gather(PAIRS, 3, slice(i, i + 50)) for i in range(0, 200, 50)]
    assert np.array_equal(whole.preferences, np.concatenate([part.preferences for part in parts]))
    assert whole.pairs.ids == tuple(name for part in parts for name in part.pairs.ids)


def test_a_slow_teacher_takes_its_time_for_each_answer() -> None:
    started = time.monotonic()
    SyntheticGatherer(PreferenceSettings(answer_seconds=0.05), seed=0).gather(PAIRS, 0, slice(0, 4))
    assert time.monotonic() - started >= 0.2
