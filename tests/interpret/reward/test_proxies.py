"""Which of two features that go together the true reward looks at: known by construction."""

import gymnasium as gym
import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.association import added
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.steps import shortcuts
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward

BOX, CHOICE = gym.spaces.Box(-9, 9, (4,)), gym.spaces.Discrete(3)
HEIGHT, SALT, DYE, RUST = range(4)


def steps(truth, noise=0.2, count=3000):
    """Steps in which the dye is the height with noise."""
    rng = np.random.default_rng(0)
    seen, after = rng.normal(size=(2, count, 4)).astype(np.float32)
    for each in (seen, after):
        each[:, DYE] = each[:, HEIGHT] + noise * rng.normal(size=count)
    number = np.arange(count)
    paid = np.asarray(truth(after), np.float64)
    return Transitions(seen, rng.integers(0, 3, count), after, number % 20 == 19, paid, number // 20, number % 20)


def wave(after, at):
    return np.sin(1.5 * after[:, at]) + 0.7 * after[:, SALT]


def found(data, function):
    subject = Subject(
        CallableReward(lambda o, a, p, d: function(p), BOX, CHOICE), data, regions=regions_of(BOX), effort=0.3
    )
    figures = shortcuts.measure(subject)
    keys = [each.key for each in shortcuts.statements(figures)]
    checks = {check.key: check.passed for check in shortcuts._checks(figures)}
    return figures.proxies, keys, checks


@pytest.mark.slow
def test_a_feature_in_place_of_the_one_that_counts_is_a_shortcut():
    data = steps(lambda p: wave(p, HEIGHT))
    (proxy,), keys, checks = found(data, lambda p: wave(p, DYE))
    assert (proxy.cause.name, proxy.of) == ("feature 2", "feature 0")
    assert proxy.correlation == pytest.approx(np.corrcoef(data.next_observations[:, [HEIGHT, DYE]].T)[0, 1], abs=0.02)
    assert proxy.adds.high < 0.01 < proxy.needed.low
    assert "shortcuts.proxy" in keys
    assert checks["shortcuts.no_shortcut"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    "truth",
    [
        lambda p: wave(p, DYE),  # what it looks at is what counts
        lambda p: wave(p, HEIGHT) / 2 + wave(p, DYE) / 2,  # both count
        lambda p: 0.7 * p[:, SALT],  # neither counts
    ],
)
def test_nothing_is_in_place_of_another_where_it_counts_itself_or_neither_does(truth):
    proxies, keys, _ = found(steps(truth), lambda p: wave(p, DYE))
    assert not proxies
    assert "shortcuts.proxy" not in keys


@pytest.mark.slow
def test_nothing_is_said_of_a_reward_that_looks_at_both():
    proxies, _, _ = found(steps(lambda p: wave(p, HEIGHT)), lambda p: wave(p, DYE) + wave(p, HEIGHT))
    assert not proxies


def test_what_a_feature_adds_is_its_own_part_of_the_variance():
    """Of a linear true reward: that of the height's residual on the dye, times its weight squared."""
    data = steps(lambda p: p[:, HEIGHT] + p[:, SALT], noise=1.0)
    after, regions = data.next_observations.astype(np.float64), regions_of(BOX)
    height, dye = added(data, regions, (regions.masks[HEIGHT], regions.masks[DYE]))
    line = LinearRegression().fit(after[:, [DYE]], after[:, HEIGHT])
    own = np.var(after[:, HEIGHT] - line.predict(after[:, [DYE]])) / np.var(data.rewards)
    assert own == pytest.approx(0.25, abs=0.03)  # in closed form: half of the height's variance is its own
    assert height.value == pytest.approx(own, rel=0.25)
    assert abs(dye.value) < 0.02


@pytest.mark.slow
def test_what_is_known_to_count_and_is_ignored_is_told_beside_what_goes_with_it():
    data = steps(lambda p: wave(p, HEIGHT))
    truth = CallableReward(lambda o, a, p, d: wave(p, HEIGHT), BOX, CHOICE)
    reward = CallableReward(lambda o, a, p, d: wave(p, DYE), BOX, CHOICE)
    figures = shortcuts.measure(Subject(reward, data, regions=regions_of(BOX), effort=0.3, truth=truth))
    assert [cause.name for cause in figures.shortcuts] == ["feature 2"]
    assert [name for name, _ in figures.found.missed] == ["feature 0"]


@pytest.mark.slow
def test_what_a_stand_in_uses_beside_what_counts_is_not_missed():
    """The first feature of the next state is the second of the state, so forests use both."""
    rng = np.random.default_rng(0)
    belt = rng.normal(size=(3001, 4)).astype(np.float32)
    belt[:-1, 1] = belt[1:, 0]
    number = np.arange(3000)
    paid = np.sin(1.5 * belt[1:, 0]).astype(np.float64)
    data = Transitions(
        belt[:-1], rng.integers(0, 3, 3000), belt[1:], number % 20 == 19, paid, number // 20, number % 20
    )
    reward = CallableReward(lambda o, a, p, d: np.sin(1.5 * p[:, 0]) + p[:, 3], BOX, CHOICE)
    figures = shortcuts.measure(Subject(reward, data, regions=regions_of(BOX), effort=0.3))
    assert figures.found.missed == ()
    assert [cause.name for cause in figures.shortcuts] == ["feature 3"]


@pytest.mark.slow
def test_no_share_is_told_of_causes_that_depend_on_each_other():
    """Of independent ones, the product's share is all of it, in closed form; of two that go together, none can be told."""

    def of(noise):
        data = steps(lambda p: p[:, HEIGHT] * p[:, DYE], noise=noise)
        reward = CallableReward(lambda o, a, p, d: p[:, HEIGHT] * p[:, DYE if noise < 1 else RUST], BOX, CHOICE)
        return shortcuts.measure(Subject(reward, data, regions=regions_of(BOX), effort=0.3)).found.together

    (pair,) = of(noise=9.0)
    assert pair.share.low <= 1.0 <= pair.share.high + 0.05
    assert of(noise=0.9) == ()
