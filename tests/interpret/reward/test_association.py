"""What a part tells of the true reward, beside closed forms; who is accused of telling nothing."""

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.association import association, fitted_truth
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.steps import shortcuts
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward

BOX, CHOICE = gym.spaces.Box(-9, 9, (5,)), gym.spaces.Discrete(3)
WEIGHTS = np.array([1.0, 0.6, 0.25, 0.0, 0.0])


def steps(truth, count=2000):
    rng = np.random.default_rng(0)
    seen, after = rng.normal(size=(2, count, 5)).astype(np.float32)
    number = np.arange(count)
    paid = np.asarray(truth(after, rng), np.float64)
    return Transitions(seen, rng.integers(0, 3, count), after, number % 20 == 19, paid, number // 20, number % 20)


def accused(function, data):
    subject = Subject(CallableReward(function, BOX, CHOICE), data, regions=regions_of(BOX), effort=0.3)
    found = shortcuts.statements(shortcuts.measure(subject))
    keys = {each.about: each.key.removeprefix("shortcuts.") for each in found}
    return {about: key for about, key in keys.items() if key in ("tells_nothing", "shortcut", "missed")}


def base(p):
    return p @ WEIGHTS


@pytest.mark.slow
def test_what_a_number_tells_is_its_share_of_the_variance():
    data = steps(lambda p, rng: base(p))
    shares = WEIGHTS**2 / (WEIGHTS @ WEIGHTS)  # of independent numbers, in closed form
    for at, share in enumerate(shares):
        told = association(data, regions_of(BOX), regions_of(BOX).masks[at])
        correlation = np.corrcoef(data.next_observations[:, at], data.rewards)[0, 1]  # a second computation
        assert told.part.low <= correlation**2 <= 1.1 * told.part.high + 0.01  # eight levels lose a little
        for figure in (told.part, told.beside):
            assert figure.value == pytest.approx(share, rel=0.25, abs=0.02)
        assert (told.most < 0.03) == (share == 0)
        assert told.rest == pytest.approx(1 - share, abs=0.08)


def test_what_two_numbers_only_tell_together_is_told_beside_the_rest():
    data = steps(lambda p, rng: np.sign(p[:, 0] * p[:, 1]))
    told = association(data, regions_of(BOX), regions_of(BOX).masks[0])
    assert told.part.high < 0.05 < 0.5 < told.beside.low


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.8])
def test_a_weak_cause_of_the_true_reward_is_not_accused(noise):
    """With the noise, no forest stands in for the true reward."""
    data = steps(lambda p, rng: base(p) + noise * rng.normal(size=len(p)))
    assert accused(lambda o, a, p, d: 0.003 * base(p) + 2e-4, data) == {}
    found = accused(lambda o, a, p, d: base(p) + p[:, 4], data)
    assert found == {"feature 4": "tells_nothing" if noise else "shortcut"}


def test_a_truth_is_fitted_alike_whatever_the_reward_is():
    """Beside least squares; with a noise that leaves too little to fit, there is none."""
    data = steps(lambda p, rng: base(p))
    rewards = [
        CallableReward(function, BOX, CHOICE) for function in (lambda o, a, p, d: p[:, 4], lambda o, a, p, d: -base(p))
    ]
    fitted = [fitted_truth(reward, data) for reward in rewards]
    np.testing.assert_array_equal(fitted[0].of(data), fitted[1].of(data))
    line = np.linalg.lstsq(data.next_observations, data.rewards, rcond=None)[0]
    assert np.corrcoef(fitted[0].of(data), data.next_observations @ line)[0, 1] > 0.98
    assert fitted_truth(rewards[0], steps(lambda p, rng: base(p) + 0.8 * rng.normal(size=len(p)))) is None
