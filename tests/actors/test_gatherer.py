import numpy as np

from actors.gatherer import SyntheticGatherer
from rlhf_ray.settings import PreferenceSettings
from tests.made_up import some_comparisons

PAIRS = some_comparisons(200).pairs


def test_the_oracle_answers_by_true_return() -> None:
    comparisons = SyntheticGatherer(PreferenceSettings(teacher="oracle"), seed=0).gather(PAIRS, 0)
    assert comparisons.pairs is PAIRS
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
