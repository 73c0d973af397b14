"""The shape of a curve, and its values, beside means of the function itself."""

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.curves import curve_of
from rlhf_ray.interpret.reward.exchange import StepPart
from rlhf_ray.reward.functions import CallableReward

BOX, CHOICE = gym.spaces.Box(-9, 9, (3,)), gym.spaces.Discrete(2)
FIRST = StepPart("feature 0", next_state=np.array([True, False, False]))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    seen, after = rng.normal(size=(2, 3000, 3)).astype(np.float32)
    after[:, 2] = rng.random(3000) < 0.3
    number = np.arange(3000)
    return Transitions(
        seen, rng.integers(0, 2, 3000), after, number % 30 == 29, np.zeros(3000), number // 30, number % 30
    )


def curve(function, data, part=FIRST, column=0):
    reward = CallableReward(lambda o, a, p, d: function(p[:, 0], p[:, 1], p[:, 2]), BOX, CHOICE)
    return curve_of(reward, data, part, [data.next_observations[:, column]])


@pytest.mark.parametrize(
    ("function", "direction"),
    [
        (lambda x, y, z: -((x - 0.8) ** 2), None),  # falls by a hundredth of what it rises
        (lambda x, y, z: np.tanh(3 * x) + 0.2 * y, "up"),
        (lambda x, y, z: -x - 3 * y, "down"),
        (lambda x, y, z: np.minimum(x, 0) + y, "up"),
        (lambda x, y, z: 3 * y, None),
        (lambda x, y, z: np.sin(3 * x), None),
    ],
)
def test_the_shape_is_told_by_the_curve_itself(data, function, direction):
    assert curve(function, data).direction == direction


def test_the_values_are_the_means_of_the_function(data):
    """Of -(x - 0.8)² + x y with y of mean 0: by the content's own values, and the mean of y over the steps."""
    found = curve(lambda x, y, z: -((x - 0.8) ** 2) + 0.5 * x * y, data)
    x, y = data.next_observations[:, 0].astype(float), float(data.next_observations[:, 1].mean())
    edges = np.quantile(x, np.linspace(0, 1, 9))
    for low, high, value, within in zip(edges[:-1], edges[1:], found.rewards, found.within, strict=True):
        at = (x >= low) & (x <= high)
        assert value == pytest.approx((-((x[at] - 0.8) ** 2) + 0.5 * x[at] * y).mean(), abs=2 * within)
    low, high = map(float, found.content[found.top].split(" to "))
    assert low < 0.8 < high


def test_a_content_that_decides_has_its_exact_value(data):
    door = StepPart("feature 2", next_state=np.array([False, False, True]))
    found = curve(lambda x, y, z: (x - 3) * (z == 0), data, door, 2)
    assert (found.content, found.rewards[1], found.within[1]) == (("0", "1"), 0.0, 0.0)
