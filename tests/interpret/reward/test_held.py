"""What is left of a reward with its shortcuts held, where it turns, and where it is blind."""

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.comparison import compare
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.steps import shortcuts
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward

BOX, CHOICE = gym.spaces.Box(-9, 9, (4,)), gym.spaces.Discrete(3)
REGIONS = regions_of(BOX)


@pytest.fixture(scope="module")
def data():
    """Episodes of 40 steps whose features drift; the true reward is feature 0 after the step."""
    rng = np.random.default_rng(0)
    states = np.zeros((50, 41, 4))
    states[:, 0] = rng.normal(size=(50, 4))
    for at in range(40):
        states[:, at + 1] = 0.7 * states[:, at] + 0.7 * rng.normal(size=(50, 4))
    seen, after = (part.reshape(-1, 4).astype(np.float32) for part in (states[:, :-1], states[:, 1:]))
    number = np.arange(2000)
    true = after[:, 0].astype(float)
    return Transitions(seen, rng.integers(0, 3, 2000), after, np.zeros(2000, bool), true, number // 40, number % 40)


def of(function):
    return CallableReward(function, BOX, CHOICE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "lag", "opposite"),
    [
        (lambda o, a, p, d: o[:, 0] + p[:, 3], 1, False),
        (lambda o, a, p, d: 2 * p[:, 3] - p[:, 0], 0, True),
        (lambda o, a, p, d: p[:, 0] + p[:, 3], 0, False),
    ],
)
def test_a_fault_beside_a_shortcut_is_found_with_that_held(data, function, lag, opposite):
    figures = shortcuts.measure(Subject(of(function), data, regions=REGIONS, effort=0.1))
    held = figures.held
    assert held.names == ("feature 3",)
    assert (held.lag.steps, held.late, held.opposite) == (lag, lag > 0, opposite)
    without = np.array([1, 1, 1, 0])
    rest = function(data.observations * without, None, data.next_observations * without, None)
    ranks = [np.argsort(np.argsort(each)) for each in (rest, data.rewards)]
    assert held.agreement.value == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-6)  # by hand
    [check] = [each for each in shortcuts._checks(figures) if each.key.endswith("lag")]
    assert check.passed is (lag == 0)


@pytest.mark.parametrize(("sign", "condition"), [(1, "at least"), (-1, "below")])
def test_a_reward_that_turns_at_a_true_reward_is_reversed_there(data, sign, condition):
    """It rises up to 0.4 and falls beyond, or the other way round: the larger part is right."""
    turn = 0.4 * sign
    function = lambda o, a, p, d: np.where(sign * p[:, 0] > 0.4, 2 * turn - p[:, 0], p[:, 0])  # noqa: E731
    found = compare(of(function), data, REGIONS).reversal
    assert condition in found.condition
    assert float(found.condition.split()[-1]) == pytest.approx(turn, abs=0.05)
    assert found.share == pytest.approx((sign * data.rewards > 0.4).mean(), abs=0.02)
    assert (found.agreement.value, found.elsewhere.value) == (pytest.approx(-1, abs=0.02), pytest.approx(1, abs=0.02))


@pytest.mark.parametrize("function", [np.tanh, lambda x: np.floor(2 * x), lambda x: x + np.sin(2 * x)])
def test_a_reward_that_only_rises_turns_nowhere(data, function):
    assert compare(of(lambda o, a, p, d: function(p[:, 0])), data, REGIONS).reversal is None


@pytest.mark.slow
def test_steps_that_all_get_the_same_are_one_kind(data):
    found = compare(of(lambda o, a, p, d: np.where(p[:, 2] > 0.5, 0.0, p[:, 0])), data, REGIONS)
    at = data.next_observations[:, 2] > 0.5
    assert found.blind.condition.startswith("feature 2 in the next state is at least 0.")
    assert float(found.blind.condition.split()[-1]) == pytest.approx(0.5, abs=0.02)
    assert found.blind.value == 0.0
    assert found.blind.share == pytest.approx(at.mean(), abs=0.02)
    assert [found.blind.low, found.blind.high] == pytest.approx(np.quantile(data.rewards[at], [0.05, 0.95]), abs=0.1)
    assert compare(of(lambda o, a, p, d: p[:, 0]), data, REGIONS).blind is None
    assert compare(of(lambda o, a, p, d: np.maximum(p[:, 0], 0)), data, REGIONS).blind is None  # that is cut off
    assert (
        compare(of(lambda o, a, p, d: np.where(np.arange(len(o)) % 40 == 39, p[:, 0], 0.0)), data, REGIONS).blind
        is None
    )
