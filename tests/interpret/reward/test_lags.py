"""One lag, exact: of planted delays on vectors and images, whichever input shows them, and the same in every section."""

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.rollout import rollout
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs import make_env
from rlhf_ray.interpret.reward.by_time import events
from rlhf_ray.interpret.reward.lags import lag_of
from rlhf_ray.interpret.reward.steps import by_time, shortcuts
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward
from tests.interpret.contexts import run_step

EPISODES, LENGTH = 15, 40
VECTORS, IMAGES = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)


def subject(lag, shown_in, image):
    """A reward that pays at ``t + lag`` what is truly worth 1 at ``t``, and reads it in one input."""
    rng = np.random.default_rng(0)
    truth = (rng.random((EPISODES, LENGTH)) < 0.1) * 1.0
    seen = np.concatenate([np.zeros((EPISODES, 10)), truth, np.zeros((EPISODES, 10))], 1)
    paid = seen[:, 10 - lag : 10 - lag + LENGTH].reshape(-1)
    n = len(paid)
    states = {name: rng.uniform(-1, 0.5, (n, 2)).astype(np.float32) for name in ("state", "next_state")}
    actions = rng.integers(0, 2, n)
    if shown_in == "action":
        actions = paid.astype(np.int64)
    else:
        states[shown_in][:, 1] = paid
    if image:
        for name, values in states.items():
            pixels = np.zeros((n, 8, 8, 1), np.uint8)
            pixels[:, 5:7, 5:7] = (100 + 100 * values[:, 1])[:, None, None, None]
            states[name] = pixels

    def reward(o, a, p, d):
        read = {"state": o, "next_state": p}.get(shown_in)
        if read is None:
            return a * 1.0
        return np.where(read[:, 5, 5, 0] == 200, 1.0, 0.0) if image else np.where(read[:, 1] == 1, 1.0, 0.0)

    number, at = np.divmod(np.arange(n), LENGTH)
    data = Transitions(states["state"], actions, states["next_state"], np.zeros(n, bool), truth.reshape(-1), number, at)
    space = IMAGES if image else VECTORS
    return Subject(CallableReward(reward, space, gym.spaces.Discrete(2)), data, effort=0.1)


@pytest.mark.parametrize("shown_in", ["state", "next_state", "action"])
@pytest.mark.parametrize("image", [False, True])
def test_a_planted_lag_is_told_exactly_by_all(shown_in, image):
    for lag in (-2, -1, 0, 1, 3):
        of = subject(lag, shown_in, image)
        assert of.lag.steps == lag
        assert of.lag.correlation == pytest.approx(1, abs=0.05)
        assert of.lag.low <= of.lag.correlation <= of.lag.high


def test_all_sections_tell_one_lag():
    of = subject(-2, "next_state", False)
    section = run_step(by_time, of)
    assert section.values["lags"]["true reward"]["steps"] == -2
    assert [(check.passed, check.value) for check in section.checks] == [(False, -2)]
    found = shortcuts.measure(of)
    assert found.beside.lag == of.lag
    assert not found.beside.strata


def test_a_touched_coin_jumps_one_step_after_its_reward():
    env = make_env("rlhf_ray/PlantedImage-v0")
    rng, world, rows = np.random.default_rng(0), env.unwrapped, []
    played = []
    for seed in range(4):
        rows_of_one = []

        def act(seen, rows_of_one=rows_of_one):
            rows_of_one.append(world.describe()["coin_row"])
            return np.int64(world.expert(rng))

        played.append(rollout(env, act, steps=50, seed=seed).trajectory)
        rows += rows_of_one[: len(played[-1])]
    data = Transitions.of_trajectories(played).with_(columns={"state.coin_row": np.array(rows)})
    jumps = events(data)["state.coin_row"]
    lag = lag_of(data.rewards, jumps, data, np.random.default_rng(0))
    assert lag.steps == -1, lag  # the reward comes a step before the next coin


def test_no_lag_is_found_in_noise_nor_across_episodes():
    rng = np.random.default_rng(1)
    data = subject(0, "state", False).data
    last = data.steps == LENGTH - 1
    assert not lag_of(rng.normal(size=len(data)), last, data, rng).significant
    first = data.steps == 0  # follows each end of an episode by one step, but in another episode
    assert lag_of(first.astype(float), last, data, rng).steps != 1


def test_neighbours_of_a_smooth_series_are_no_lags():
    rng = np.random.default_rng(2)
    data = subject(0, "state", False).data
    walk = np.cumsum(rng.normal(size=(EPISODES, LENGTH)), 1)
    noisy = walk + 0.5 * rng.normal(size=walk.shape)
    assert lag_of(noisy.reshape(-1), walk.reshape(-1), data, rng).steps == 0
    assert lag_of(np.roll(walk, 1, 1).reshape(-1), walk.reshape(-1), data, rng).steps == 1


def test_a_late_reward_is_late_although_shaping_explains_it():
    """What the next state shows, told a step later: gamma times the truth, and a potential of what the state shows."""
    rng = np.random.default_rng(0)
    shown = rng.uniform(-1, 1, (EPISODES * LENGTH + 1, 2)).astype(np.float32)
    number, at = np.divmod(np.arange(EPISODES * LENGTH), LENGTH)
    truth = shown[1:, 0].astype(np.float64)
    data = Transitions(shown[:-1], np.zeros(len(at), int), shown[1:], np.zeros(len(at), bool), truth, number, at)
    reward = CallableReward(lambda o, a, p, d: o[:, 0], VECTORS, gym.spaces.Discrete(2))
    of = Subject(reward, data)
    assert of.equivalence.by_shaping
    assert not of.shaped
    assert (of.lag.steps, of.lag.correlation) == (1, pytest.approx(1))


def test_a_derivative_is_not_late():
    phase = np.concatenate(
        [np.linspace(0, 6 * np.pi, 60) + offset for offset in np.random.default_rng(0).uniform(0, 6, 20)]
    )
    zeros, flags, episodes = np.zeros((1200, 1)), np.zeros(1200, bool), np.repeat(np.arange(20), 60)
    data = Transitions(zeros, zeros, zeros, flags, np.cos(phase), episodes, np.tile(np.arange(60), 20))
    assert lag_of(np.sin(phase), np.cos(phase), data, np.random.default_rng(0)).steps == 0


@pytest.mark.parametrize(("late", "lag"), [(1, 0), (6, 2)])
def test_a_lag_that_one_episode_alone_has_is_none(late, lag):
    """A third of the bootstrap's draws of six episodes leave it out, however large it is: the gain's interval reaches below 0."""
    for seed in range(3):
        cause = np.random.default_rng(seed).normal(size=(6, LENGTH))
        series = cause.copy()
        series[:late] = np.pad(cause, ((0, 0), (2, 0)))[:late, :LENGTH]
        scale = np.where(np.arange(6) < late, 5.0, 1.0)[:, None]  # so that over all steps lag 2 correlates better
        series, cause = (scale * series).reshape(-1), (scale * cause).reshape(-1)
        number, at = np.divmod(np.arange(6 * LENGTH), LENGTH)
        zeros = np.zeros((len(at), 1))
        data = Transitions(zeros, zeros, zeros, np.zeros(len(at), bool), cause, number, at)
        together = np.corrcoef(series, cause)[0, 1]
        apart = np.corrcoef(series.reshape(6, -1)[:, 2:].reshape(-1), cause.reshape(6, -1)[:, :-2].reshape(-1))[0, 1]
        assert apart > together + 0.1
        assert lag_of(series, cause, data, np.random.default_rng(0)).steps == lag
