"""What shaping explains is no fault: planted equivalents of the true reward are found as such, and nothing else is."""

import importlib
import re

import gymnasium as gym
import numpy as np
import pytest

from benchmarks.calibrations import flaws
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs import make_env
from rlhf_ray.envs.gridworld import AGENT, enters_goal
from rlhf_ray.envs.ground_truth import pendulum
from rlhf_ray.interpret.reward.steps import NAMES
from rlhf_ray.interpret.reward.subject import Subject, check_digits
from rlhf_ray.reward.functions import CallableReward
from tests.interpret.contexts import run_step, why_not

SLOW = {"incentive", "visualisation", "inside", "consistency"}
"""Steps that train, look for inputs, or ask whether it is a function: they have tests of their own."""
GAMMA = 0.99


@pytest.fixture(scope="module")
def played():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flaws, "STEPS", 13 * 200)  # of Pendulum, as many episodes as an interval takes
        return {name: flaws.wander(name, 0) for name in ("Pendulum-v1", "CartPole-v1", "rlhf_ray/RandomGoal-v0")}


def shaped(truth, potential, factor=1.0, constant=0.0):
    def reward(o, a, p, d):
        return constant + factor * truth(o, a, p, d) + GAMMA * ~d * potential(p) - potential(o)

    return reward


def swing(o, a, p, d):
    return pendulum(o, a, p)


def one(o, a, p, d):
    return np.ones(len(o))


def goal(o, a, p, d):
    return enters_goal(o, a, p)


def row(o):
    return (o == AGENT).argmax(1) // 11 * 0.3


def subject(played, name, function, steps=None, **options):
    env = make_env(name)
    reward = CallableReward(function, env.observation_space, env.action_space, "planted")
    return Subject(reward, played[name][:steps], GAMMA, environment=name, effort=0.1, **options)


EQUIVALENTS = {
    "linear": ("Pendulum-v1", shaped(swing, lambda o: 3 * o[:, 0] - o[:, 2], 2.0, 5.0)),
    "angle": ("Pendulum-v1", shaped(swing, lambda o: 4 * abs(np.arctan2(o[:, 1], o[:, 0])))),
    "product": ("Pendulum-v1", shaped(swing, lambda o: o[:, 2] * o[:, 1])),
    "constant truth": ("CartPole-v1", shaped(one, lambda o: o[:, 2] ** 2 + o[:, 0])),
    "grid": ("rlhf_ray/RandomGoal-v0", shaped(goal, row)),
}


@pytest.mark.parametrize("case", EQUIVALENTS)
def test_a_shaped_truth_is_equivalent_and_its_shaping_is_taken_out(played, case):
    of = subject(played, *EQUIVALENTS[case])
    found = of.equivalence
    assert found.by_shaping
    assert found.rest.low > 0.98
    assert found.both.low > found.truth.high
    true, judged = of.data.rewards, of.judged.of(of.data)
    if np.ptp(true):
        assert np.corrcoef(true, judged)[0, 1] > 0.999
        assert of.lag.steps == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda o, a, p, d: -swing(o, a, p, d),
        lambda o, a, p, d: swing(o, a, p, d) + 4 * np.sign(o[:, 2]),
        lambda o, a, p, d: swing(o, a, p, d) + 3 * (a[:, 0] > 0),
        lambda o, a, p, d: np.minimum(swing(o, a, p, d), -3),
        lambda o, a, p, d: -(np.arctan2(o[:, 1], o[:, 0]) ** 2),
        lambda o, a, p, d: GAMMA * p[:, 2] - o[:, 2],
    ],
)
def test_no_flaw_passes_for_shaping(played, function):
    assert not subject(played, "Pendulum-v1", function).equivalence.holds


def test_a_bonus_for_the_end_is_told_not_explained_away(played):
    assert not subject(played, "CartPole-v1", lambda o, a, p, d: 1 + 5.0 * d).equivalence.holds


def sections(of):
    steps = [importlib.import_module(f"rlhf_ray.interpret.reward.steps.{name}") for name in NAMES if name not in SLOW]
    return [run_step(step, of) for step in steps if why_not(step, of) is None]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["constant", "linear", pytest.param("grid", marks=pytest.mark.soak)])
def test_equivalents_of_the_truth_are_not_accused(played, case):
    known = {"constant": ("CartPole-v1", one)} | EQUIVALENTS
    found = sections(subject(played, *known[case], 1000 if case == "grid" else 400))
    assert [each.text for section in found for each in section.statements if each.kind == "warning"] == []
    about_reward = [section for section in found if section.name != "attribution"]  # whose checks are of its methods
    assert [check.name for section in about_reward for check in section.checks if check.passed is False] == []


def told(of):
    """What the sections say, without their numbers: those are in the reward's own units."""
    found = sections(of)
    said = [
        re.sub(r"[-+−]?[0-9][0-9.,]*(e[-+]?[0-9]+)?", "#", each.text)
        for section in found
        for each in section.statements
    ]
    return said, [(check.name, check.passed) for section in found for check in section.checks]


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "offset"), [(1e-8, 0.0), pytest.param(1.0, 1e8, marks=pytest.mark.soak)])
def test_scale_and_offset_change_no_sentence_and_no_check(played, scale, offset):
    def flawed(o, a, p, d):
        return swing(o, a, p, d) + 4 * np.sign(o[:, 2])

    of = subject(played, "Pendulum-v1", lambda *step: scale * flawed(*step) + offset, 300)
    assert told(of) == told(subject(played, "Pendulum-v1", flawed, 300))


def test_numbers_too_coarse_for_the_reward_are_refused(played):
    coarse = subject(played, "Pendulum-v1", lambda *step: (1e8 + swing(*step)).astype(np.float32))
    with pytest.raises(SettingError, match=r"32 bits around 1e.08, where differences below 8 are lost"):
        check_digits(coarse.reward, coarse.data)
    fine = subject(played, "Pendulum-v1", lambda *step: 1e8 + swing(*step))
    check_digits(fine.reward, fine.data)


@pytest.mark.slow
def test_a_truth_that_is_given_is_the_one_for_all(played):
    other = CallableReward(lambda o, a, p, d: o[:, 2] * 1.0, *space_of("Pendulum-v1"))
    of = subject(played, "Pendulum-v1", lambda o, a, p, d: 2.0 * o[:, 2], 500, truth=other)
    np.testing.assert_array_equal(of.data.rewards, of.data.observations[:, 2])
    assert of.equivalence.truth.low == pytest.approx(1)
    found = {section.name: section for section in sections(of)}
    assert found["distances"].values["distances"]["epic"]["value"] == pytest.approx(0, abs=1e-6)
    assert not [each for section in found.values() for each in section.statements if each.kind == "warning"]


def space_of(name):
    env = make_env(name)
    return env.observation_space, env.action_space


def test_images_have_blocks_as_features():
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (901, 8, 8, 1)).astype(np.uint8)
    touched = (frames[1:, 0, 0, 0] > 200) * 1.0
    data = Transitions(
        frames[:-1],
        rng.integers(0, 2, 900),
        frames[1:],
        np.zeros(900, bool),
        touched,
        np.arange(900) // 30,
        np.arange(900) % 30,
    )

    def bright(images):
        return images[:, 4:].mean((1, 2, 3)) / 10

    def reward(o, a, p, d):
        return (p[:, 0, 0, 0] > 200) + GAMMA * bright(p) - bright(o)

    space = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)
    of = Subject(CallableReward(reward, space, gym.spaces.Discrete(2)), data, GAMMA)
    assert of.equivalence.by_shaping
