"""Flaws that no tool was written for: the report must name each, and must not invent any in a reward that is right."""

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.exchange import dependent
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.steps import shortcuts
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward

PENDULUM, FORCE = gym.spaces.Box(-8, 8, (3,)), gym.spaces.Box(-2, 2, (1,))
NAMES = ("cos(angle)", "sin(angle)", "angular velocity")


def swing(o, a, p, d):
    return -(np.arctan2(o[:, 1], o[:, 0]) ** 2) - 0.1 * o[:, 2] ** 2


@pytest.fixture(scope="module")
def pendulum():
    rng = np.random.default_rng(0)
    angle, speed = rng.uniform(-np.pi, np.pi, 500), rng.uniform(-8, 8, 500)
    seen, after = (
        np.stack([np.cos(of), np.sin(of), speed], 1).astype(np.float32) for of in (angle, angle + 0.05 * speed)
    )
    force = rng.uniform(-2, 2, (500, 1)).astype(np.float32)
    number = np.arange(500) % 40
    true = swing(seen, force, after, None).astype(np.float64)
    return Transitions(seen, force, after, np.zeros(500, bool), true, np.arange(500) // 40, number)


def said(function, data, space=PENDULUM, actions=FORCE, names=NAMES, grid=None, **options):
    regions = regions_of(space, grid, names)
    subject = Subject(CallableReward(function, space, actions), data, regions=regions, effort=0.15, **options)
    return [each.text for each in shortcuts.statements(shortcuts.measure(subject)) if each.kind == "warning"]


def test_cosine_and_sine_of_an_angle_belong_together(pendulum):
    assert dependent(pendulum) == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda o, a, p, d: -(np.arctan2(o[:, 1], o[:, 0]) ** 2), "It ignores angular velocity, on which the true reward depends"),
        (lambda o, a, p, d: swing(o, a, p, d) + 3 * (a[:, 0] > 0), "It depends on actions as such: the action"),
        (lambda o, a, p, d: np.maximum(swing(o, a, p, d), -3), "steps get exactly its lowest value, -3, although"),
    ],
)  # fmt: skip
def test_a_flaw_is_named(pendulum, function, words):
    text = " ".join(said(function, pendulum))
    assert words in text, text


def test_a_shaped_and_scaled_true_reward_has_no_flaw(pendulum):
    assert said(lambda o, a, p, d: 5 + 2 * swing(o, a, p, d) + 0.99 * 3 * p[:, 0] - 3 * o[:, 0], pendulum) == []


def test_a_reward_for_being_beside_a_wall_is_named():
    rng = np.random.default_rng(0)
    seen, after = np.zeros((2, 600, 7, 7), np.float32)
    for grids in (seen, after):
        grids[:, [0, -1]] = grids[:, :, [0, -1]] = 1
        row, column = rng.integers(1, 6, (2, 600))
        grids[np.arange(600), row, column] = 2
    space = gym.spaces.Box(0, 4, (49,), np.float32)
    data = Transitions(
        seen.reshape(600, 49), rng.integers(0, 4, 600), after.reshape(600, 49), np.zeros(600, bool),
        (after[:, 3, 3] == 2) * 1.0, np.arange(600) // 20, np.arange(600) % 20,
    )  # fmt: skip

    def beside(o, a, p, d):
        return 1.0 - (p.reshape(-1, 7, 7)[:, 2:5, 2:5] == 2).any((1, 2))

    text = " ".join(said(beside, data, space, gym.spaces.Discrete(4), None, (7, 7)))
    assert "The reward follows whether code 2 is beside code 1 in the next state" in text
