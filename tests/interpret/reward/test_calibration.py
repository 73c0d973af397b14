"""Agreement with the true reward: scale does not count, a constant earns nothing, and nothing is NaN in the report."""

import json
import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.steps import calibration
from rlhf_ray.interpret.reward.steps.calibration import agreement
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward
from tests.interpret.contexts import run_step, why_not

SPACES = gym.spaces.Box(-4, 4, (2,), np.float32), gym.spaces.Discrete(2)


def steps_of(sparse=False, n=600):
    rng = np.random.default_rng(0)
    states = rng.normal(size=(2, n, 2)).astype(np.float32)
    true = states[1, :, 0].astype(float)
    true = (true > 1.0) * 1.0 if sparse else true
    return Transitions(
        states[0], np.zeros(n, int), states[1], np.zeros(n, bool), true, np.arange(n) // 20, np.arange(n) % 20
    )


def section(function, steps):
    return run_step(calibration, Subject(CallableReward(function, *SPACES), steps))


def test_a_reward_of_another_scale_agrees_and_one_of_something_else_does_not():
    good = section(lambda o, a, n, d: 3 - 7 * n[:, 0] * -1, steps_of())
    assert all(check.passed for check in good.checks)
    assert not good.statements
    assert good.values["explained"]["value"] == pytest.approx(1)
    assert good.values["scale"] == pytest.approx(1 / 7, rel=1e-3)
    assert good.values["test_error"] > 10
    bad = section(lambda o, a, n, d: n[:, 1], steps_of())
    assert [check.passed for check in bad.checks] == [False]
    assert bad.statements[0].kind == "warning"
    assert "explains 0.00 (" in bad.statements[0].text


def test_rare_rewards_are_judged_by_the_auc_too():
    found = section(lambda o, a, n, d: 0.01 * n[:, 1], steps_of(sparse=True))
    assert [check.passed for check in found.checks] == [False, False]
    assert [row[0] for row in found.tables[1].rows] == ["0", "1"]


@pytest.mark.parametrize("true", [None, 0.0, 2.0])
def test_constants_leave_no_nan(true):
    steps = steps_of() if true is None else replace(steps_of(), rewards=np.full(600, true))
    found = section(lambda o, a, n, d: np.full(len(d), 0.1), steps)
    json.dumps(found.values, allow_nan=False)
    assert all(check.value is None or math.isfinite(check.value) for check in found.checks)
    assert "nan" not in str(found.tables)


def test_unknown_rewards_are_left_out():
    steps = steps_of()
    rewards = np.where(np.arange(600) < 100, np.nan, steps.rewards)
    subject = Subject(CallableReward(lambda o, a, n, d: n[:, 0], *SPACES), replace(steps, rewards=rewards))
    assert why_not(calibration, subject) is None
    assert run_step(calibration, subject).values["steps"] == 500
    nothing = replace(subject, data=replace(steps, rewards=np.full(600, np.nan)))
    assert "no true rewards" in why_not(calibration, nothing)
    with pytest.raises(ValueError, match="no steps"):
        agreement(subject.reward, steps[:0])


def test_half_of_the_variance_is_told_as_a_number():
    """A reward that is the true one and as much noise explains half: correlation squared, in closed form."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=600)
    steps = steps_of()
    noise *= steps.rewards.std() / noise.std()
    found = section(lambda o, a, n, d: noisy(n, steps, noise), steps)
    explained = found.values["explained"]
    assert explained["value"] == pytest.approx(np.corrcoef(steps.rewards, steps.rewards + noise)[0, 1] ** 2)
    assert explained["low"] < 0.5 < explained["high"]
    check = next(check for check in found.checks if check.name == "explains the true reward")
    assert check.passed is None
    assert f"{explained['value']:.2f} (" in check.says


def noisy(nexts, steps, noise):
    """The true reward and noise, looked up by the next observation."""
    where = {row.tobytes(): at for at, row in enumerate(steps.next_observations)}
    return np.array([steps.rewards[where[row.tobytes()]] + noise[where[row.tobytes()]] for row in nexts])
