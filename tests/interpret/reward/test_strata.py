"""Where a reward is wrong: planted regions are found at their size, also beside shaping; without a relation, none is."""

import gymnasium as gym
import numpy as np
import pytest
from scipy import stats

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward import comparison, strata
from rlhf_ray.interpret.reward.steps import distances, overview, shortcuts
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward

SPACE, FORCE = gym.spaces.Box(-9, 9, (3,), np.float32), gym.spaces.Box(-2, 2, (1,))
GAMMA = 0.99


def truth(o, a, p, d):
    return -(np.arctan2(o[:, 1], o[:, 0]) ** 2) - 0.1 * o[:, 2] ** 2


def shaping(o, p):
    return GAMMA * (9 * p[:, 0] + 4 * p[:, 1]) - (9 * o[:, 0] + 4 * o[:, 1])


@pytest.fixture(scope="module")
def swings():
    """Forty episodes of a pendulum that swings freely: its states follow each other smoothly."""
    rng = np.random.default_rng(0)
    states = np.zeros((40, 61, 2))
    states[:, 0] = rng.uniform((-np.pi, -4), (np.pi, 4), (40, 2))
    for at in range(60):
        speed = states[:, at, 1] + 0.6 * np.sin(states[:, at, 0])
        states[:, at + 1] = np.stack([states[:, at, 0] + 0.05 * speed, speed], 1)
    seen = np.stack([np.cos(states[..., 0]), np.sin(states[..., 0]), states[..., 1]], 2).astype(np.float32)
    before, after = (part.reshape(-1, 3) for part in (seen[:, :-1], seen[:, 1:]))
    force = rng.uniform(-2, 2, (2400, 1)).astype(np.float32)
    number, step = np.divmod(np.arange(2400), 60)
    paid = truth(before, None, None, None).astype(np.float64)
    return Transitions(before, force, after, np.zeros(2400, bool), paid, number, step)


def subject(function, data):
    return Subject(CallableReward(function, SPACE, FORCE), data, gamma=GAMMA, effort=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize(
    ("wrong", "size"),
    [(lambda o, a: a[:, 0] > 1, 4.0), (lambda o, a: o[:, 2] < -2, -5.0)],
)
def test_a_planted_region_is_found_at_its_size(swings, shaped, wrong, size):
    of = subject(lambda o, a, p, d: truth(o, a, p, d) + shaped * shaping(o, p) + size * wrong(o, a), swings)
    figures = shortcuts.measure(of)
    planted = wrong(swings.observations, swings.actions)
    found = figures.beside.strata[0].chosen
    assert (found & planted).sum() / (found | planted).sum() > 0.95
    gap = figures.beside.strata[0].given - figures.beside.strata[0].usual
    assert gap == pytest.approx(size, rel=0.1)
    assert "shortcuts.no_shortcut" not in [check.key for check in shortcuts._checks(figures) if check.passed]


@pytest.mark.slow
def test_what_is_unrelated_to_the_truth_has_no_exceptions(swings):
    assert not shortcuts.measure(subject(lambda o, a, p, d: o[:, 1] * o[:, 2], swings)).beside.strata
    assert not shortcuts.measure(subject(truth, swings)).beside.strata


def test_a_function_of_the_state_is_not_late_and_the_truth_of_another_step_is(swings):
    products = (lambda o, a, p, d: np.maximum(0, o[:, 1] * o[:, 2]), lambda o, a, p, d: (p[:, 2] - o[:, 2]) * o[:, 2])
    for product in products:
        assert subject(product, swings).lag.steps == 0
    late = np.where(swings.steps < 3, 0.0, np.roll(swings.rewards, 3))
    told = np.concatenate([swings.observations, late[:, None]], 1).astype(np.float32)
    data = swings.with_(observations=told, next_observations=told)
    space = gym.spaces.Box(-99, 99, (4,), np.float32)
    assert Subject(CallableReward(lambda o, a, p, d: o[:, 3], space, FORCE), data).lag.steps == 3


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.0, 0.1, 0.3, 1.0])
def test_the_share_of_noise_is_the_planted_one(swings, part):
    def noisy(o, a, p, d):
        noise = np.sqrt(2) * np.sin(1e7 * (o.astype(np.float64) @ np.arange(1.0, 4.0)))
        return np.sqrt(1 - part) * truth(o, a, p, d) / swings.rewards.std() + np.sqrt(part) * noise

    figures = shortcuts.measure(subject(noisy, swings))
    assert figures.found.noise.value == pytest.approx(part, abs=0.06)
    assert figures.found.noisy == (part > 0)
    assert figures.found.noise.beyond(0.7) == (part == 1)
    if 0 < part < 1:  # each feature draws the noise anew, and none but the truth's moves it more
        assert not figures.shortcuts


def test_one_episode_has_no_exceptions(swings):
    one = swings.with_(episodes=np.zeros(2400, int), steps=np.arange(2400))
    assert not shortcuts.measure(subject(lambda o, a, p, d: truth(o, a, p, d) + 4.0 * (a[:, 0] > 1), one)).beside.strata


def test_a_bonus_for_the_end_is_not_early(swings):
    data = swings.with_(terminated=swings.steps == 59)
    figures = shortcuts.measure(subject(lambda o, a, p, d: truth(o, a, p, d) + 40 * d, data))
    assert figures.beside.lag.steps == 0
    (stratum,) = figures.beside.strata
    np.testing.assert_array_equal(stratum.chosen, data.terminated)


@pytest.mark.parametrize(
    ("function", "key"),
    [
        (lambda t: np.tanh(t / 4), "other_shape"),
        (lambda t: 1 - np.log(0.1 - t), None),
        (lambda t: 37 + 2 * t, "agrees"),
        (lambda t: np.maximum(t, -3), None),
    ],
)
def test_the_same_order_in_another_shape_is_told_apart_from_the_same_reward(swings, function, key):
    of = subject(lambda o, a, p, d: function(truth(o, a, p, d)), swings)
    figures = overview.measure(of)
    monotone = len(np.unique(function(np.linspace(-9, 0, 50)))) == 50
    assert figures.correlation.rank.value == pytest.approx(
        stats.spearmanr(swings.rewards, function(swings.rewards))[0], abs=1e-6
    )
    assert figures.correlation.of_another_shape == (monotone and key != "agrees")
    said = [each.key for each in overview._statements(figures)]
    assert key is None or said == [f"overview.{key}"]
    same = [
        each.key
        for each in distances._statements(
            distances.measure(subject(lambda o, a, p, d: function(truth(o, a, p, d)), swings))
        )
    ]
    assert ("distances.same" in same) == (key == "agrees")


@pytest.mark.slow
def test_a_cause_is_the_sole_one_only_if_nothing_else_moves_the_reward(swings):
    for rest, sole in ((0.0, True), (0.3, False)):
        figures = shortcuts.measure(subject(lambda o, a, p, d, rest=rest: p[:, 2] + rest * a[:, 0], swings))
        assert [cause.effect.sole for cause in figures.found.causes] == [sole]


@pytest.mark.slow
def test_a_reward_of_one_of_two_features_that_go_together_is_its_alone(swings):
    twin = np.stack([swings.observations[:, 2], swings.observations[:, 2] ** 3, swings.observations[:, 0]], 1).astype(
        np.float32
    )
    data = swings.with_(observations=twin, next_observations=twin)
    reward = CallableReward(lambda o, a, p, d: o[:, 0], gym.spaces.Box(-999, 999, (3,), np.float32), FORCE)
    causes = shortcuts.measure(Subject(reward, data, effort=0.1)).found.causes
    assert [cause.name for cause in causes] == ["feature 0"]


@pytest.mark.slow
@pytest.mark.parametrize("where", [lambda o: o[:, 2] > 4, lambda o: o[:, 1] > 0.5])
def test_a_reversed_order_is_found_where_it_is_planted(swings, where):
    middle = 2 * swings.rewards[where(swings.observations)].mean()

    def backwards(o, a, p, d):
        return np.where(where(o), middle - truth(o, a, p, d), truth(o, a, p, d))

    back = shortcuts.measure(subject(backwards, swings)).beside.reversal
    planted = where(swings.observations)
    assert planted[back.chosen].mean() > 0.95
    assert back.chosen[planted].mean() > 0.7  # where the true reward is near its middle, backwards is no different
    given = backwards(swings.observations, None, None, None)[back.chosen]
    assert back.agreement.value == pytest.approx(stats.spearmanr(given, swings.rewards[back.chosen])[0])
    assert back.agreement.high < -0.9
    assert shortcuts.measure(subject(truth, swings)).beside.reversal is None


@pytest.mark.slow
def test_another_shape_and_noise_are_no_exceptions(swings):
    def noise(o):
        return np.sin(1e7 * (o.astype(np.float64) @ np.arange(1.0, 4.0)))

    for function in (lambda t, o: np.exp(t), lambda t, o: (t + 8) ** 3, lambda t, o: t + 2 * noise(o)):
        figures = shortcuts.measure(subject(lambda o, a, p, d, f=function: f(truth(o, a, p, d), o), swings))
        assert not figures.beside.strata
        assert not figures.beside.clipped


def test_what_others_get_is_of_other_steps_with_the_same_true_reward() -> None:
    rng = np.random.default_rng(0)
    truth, given, at = rng.integers(0, 5, 200).astype(float), rng.normal(size=200), rng.random(200) < 0.3
    at[truth == 4] = True  # no others have this one
    found = strata._elsewhere(given, truth, at)
    others = {value: given[~at & (truth == value)] for value in range(5)}
    wanted = [others[int(value)].mean() if len(others[int(value)]) else np.nan for value in truth[at]]
    np.testing.assert_allclose(found, wanted)


def test_a_reward_of_two_values_is_flat_where_it_no_longer_rises() -> None:
    rng = np.random.default_rng(0)
    truth = rng.uniform(-0.68, 0.32, 2000)  # the sign changes at 68 % of the range
    assert comparison._flat(np.sign(truth), truth, np.arange(2000) // 50) == 0.7


def test_where_the_true_reward_does_not_vary_no_kind_of_step_is_wrong(swings):
    steady = swings.with_(rewards=np.full(len(swings), -1.0))
    figures = shortcuts.measure(subject(lambda o, a, p, d: 3.0 * (o[:, 2] < -2), steady))
    told = {each.key: each for each in shortcuts.statements(figures)}
    assert "shortcuts.stratum" not in told
    assert told["shortcuts.uneven"].kind == "rewards"
    assert figures.beside.strata[0].share == pytest.approx((swings.observations[:, 2] < -2).mean(), abs=0.01)


def test_a_cause_that_the_true_reward_looks_at_too_is_not_called_early_or_late():
    """Two bodies swing at one frequency, some steps apart; the true reward follows both, the reward one of them more."""
    rng = np.random.default_rng(0)
    number, time = np.divmod(np.arange(1600), 80)
    phase, size = rng.uniform(0, 6, 20)[number], rng.uniform(1, 2, 20)[number]
    places = [
        np.stack([size * np.cos(0.3 * (t - 3) + phase), np.sin(0.3 * t + phase), rng.normal(size=1600)], 1)
        for t in (time, time + 1)
    ]
    seen, after = (place.astype(np.float32) for place in places)

    def paid(o, a, p, d):
        return np.abs(p[:, 0]) + 0.4 * p[:, 1]

    true, force = paid(None, None, after, None).astype(np.float64), np.zeros((1600, 1), np.float32)
    data = Transitions(seen, force, after, np.zeros(1600, bool), true, number, time)
    reward = CallableReward(lambda o, a, p, d: 0.2 * np.abs(p[:, 0]) + 2.0 * p[:, 1], SPACE, FORCE)
    of = Subject(reward, data, gamma=GAMMA, effort=0.1, truth=CallableReward(paid, SPACE, FORCE))
    figures = shortcuts.measure(of)
    (cause,) = (cause for cause in figures.found.causes if cause.name == "feature 1")
    assert cause.true_moves > 0.1
    assert not figures.late
