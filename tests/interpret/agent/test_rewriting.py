"""Taking a concept away in a loop: a memory of now and of a step before, whose contents are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.envs.batch import BatchStep
from rlhf_ray.interpret.agent import rewriting
from rlhf_ray.interpret.agent.erasure import Classes, Erasure, Held, Whitened, erasures
from rlhf_ray.interpret.agent.rewriting import extended, taken_in_the_loop
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.measure.statistics import auc

STEPS, TURNS = 12, 0.2
SEEN, ACTED = gym.spaces.Box(-5.0, 5.0, (2,), np.float32), gym.spaces.Discrete(2)


class Winds:
    """A wind of -1 or 1 that turns now and then, beside noise; an action that is the wind of a step before is worth 1."""

    name, observation_space, action_space, action_names = "Winds", SEEN, ACTED, ("left", "right")

    def __init__(self, n: int):
        self.n, self.edits = n, dict[str, str]()

    def reset(self, levels: Sequence[int]) -> Array:
        self.winds, self.noise, self.at = np.zeros((self.n, STEPS + 1)), np.zeros((self.n, STEPS + 1)), 0
        for row, level in enumerate(levels):
            rng = np.random.default_rng(level)
            turned = np.where(rng.random(STEPS + 1) < TURNS, -1, 1)
            turned[0] = rng.choice([-1, 1])
            self.winds[row], self.noise[row] = np.cumprod(turned), rng.standard_normal(STEPS + 1)
        return self._seen()

    def step(self, actions: Array) -> BatchStep:
        wanted = self.winds[:, max(self.at - 1, 0)] > 0
        self.at += 1
        over = np.full(self.n, self.at >= STEPS)
        return BatchStep(self._seen(), (actions == wanted) * 1.0, np.zeros(self.n, bool), over, [""] * self.n)

    def describe(self) -> dict[str, Array]:
        return {"wind": self.winds[:, self.at]}

    def close(self) -> None:
        pass

    def _seen(self) -> Array:
        return np.stack([self.winds[:, self.at], self.noise[:, self.at]], 1).astype(np.float32)


def subject_of(remember: Callable[[Tensor, Tensor], Tensor]) -> AgentSubject:
    """An agent with three units of memory that goes right where unit 1 is above 0."""

    def decide(seen: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([-memory[:, 1], memory[:, 1]], 1), memory[:, 1]

    agent = FunctionAgent(decide, SEEN, ACTED, remember=remember, memory_size=3, name="lag")
    return AgentSubject(agent, "Winds", 0, 1.0, Winds)


def now_and_before(seen: Tensor, memory: Tensor) -> Tensor:
    return torch.cat([seen[:, :1], memory[:, :1], seen[:, 1:]], 1)


def fixed(values: FloatArray) -> Callable[[Tensor, Tensor], Tensor]:
    """Write units ``[3, 2]`` of what is seen."""
    return lambda seen, memory: seen @ torch.as_tensor(values.T, dtype=torch.float32)


def erasure_of(subject: AgentSubject) -> tuple[Erasure, dict[str, Classes], FloatArray]:
    sides = [subject.play(range(start, start + 120)) for start in (0, 200)]
    values, winds = (
        [read(side)[side.real].astype(np.float64) for side in sides]
        for read in (lambda side: side.memory[:, 1:], lambda side: side.states["wind"][:, :STEPS])
    )
    classes = {"wind": Classes.fit(winds[0])}
    held = [Held(each, {"wind": classes["wind"].every(wind)}) for each, wind in zip(values, winds, strict=True)]
    return erasures(*held, ["wind"], 0.8)["wind"], classes, values[0]


def without(subject: AgentSubject, basis: Directions) -> Episodes:
    hook = Intervention(basis, range(len(basis)), "ablate_midpoint")
    return subject.play(range(400, 600), hooks=[hook])


def logistic(played: Episodes) -> float:
    """Scikit-learn's reader of the wind, on the other half of the levels."""
    values, winds = played.memory[:, 1:].astype(np.float64), played.states["wind"][:, :STEPS] > 0
    (fitted, told), (tested, truth) = ((values[at::2].reshape(-1, 3), winds[at::2].ravel()) for at in (0, 1))
    return auc(LogisticRegression().fit(fitted, told).decision_function(tested), truth)


def test_a_removal_that_writes_the_opposite_in_a_loop_takes_another_direction() -> None:
    """Unit 1 is unit 0 a step ago, which is 0 then: LEACE, fitted to both, leaves unit 1 at minus what usually goes along."""
    subject = subject_of(now_and_before)
    erasure, classes, values = erasure_of(subject)
    assert (len(erasure.basis), erasure.gone) == (1, True)
    once = without(subject, erasure.basis)
    assert logistic(once) > 0.99
    assert once.returns.mean() < 0.3 * STEPS  # against the wind of now, so that it is wrong wherever it hasn't turned
    taken = taken_in_the_loop(subject, erasure, "wind", classes, values, np.arange(800, 900))
    assert (len(taken.basis), taken.gone) == (2, True)
    both = without(subject, taken.basis)
    assert logistic(both) == pytest.approx(0.5, abs=0.06)
    assert both.returns.mean() == pytest.approx(0.5 * STEPS, abs=0.5)  # one action at every step
    assert np.abs(both.memory[:, 1:, :2]).max() < 0.2  # both units are between the classes
    np.testing.assert_allclose(both.memory[:, 1:, 2], once.memory[:, 1:, 2], atol=0.2)  # the noise stays


def test_what_stays_away_keeps_its_directions() -> None:
    subject = subject_of(fixed(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.5]])))
    erasure, classes, values = erasure_of(subject)
    taken = taken_in_the_loop(subject, erasure, "wind", classes, values, np.arange(800, 900))
    assert taken.basis is erasure.basis
    assert taken.rewritten == 0.0


def test_what_the_most_directions_do_not_take_away_is_not_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one direction at most, unit 1 is written again: as large beside its own spread as it goes along with unit 0."""
    monkeypatch.setattr(rewriting, "MOST", 1)
    subject = subject_of(now_and_before)
    erasure, classes, values = erasure_of(subject)
    taken = taken_in_the_loop(subject, erasure, "wind", classes, values, np.arange(800, 900))
    assert (len(taken.basis), taken.taken, taken.gone) == (1, False, False)
    now, before = values[:, 0], values[:, 1]
    slope = float(np.polyfit(now, before, 1)[0])
    spread = float((before - slope * now).std())
    assert taken.rewritten == pytest.approx((2.0 * slope / spread) / (2.0 / now.std()), rel=0.1)


def test_one_direction_more_is_taken_away_from_what_the_first_leaves() -> None:
    rng = np.random.default_rng(0)
    pattern, way = rng.standard_normal((2, 4))
    basis = Directions(
        "concept", ["one"], rng.standard_normal(4), pattern[None], (pattern + 0.3)[None] / (pattern @ (pattern + 0.3)),
        np.zeros((0, 1)), np.array([0.4]),
    )  # fmt: skip
    values, classes = rng.standard_normal((300, 4)), rng.integers(2, size=300).astype(float)

    def away(of: Directions, of_these: FloatArray) -> FloatArray:
        hook = Intervention(of, range(len(of)), "ablate_midpoint")
        return hook.edit(0)(torch.as_tensor(of_these)).numpy()

    left = away(basis, values)
    metric = Whitened(left)
    way = metric(left).T @ (classes - classes.mean())
    way /= np.linalg.norm(way)
    both = extended(basis, metric, way, left, classes, values)
    np.testing.assert_allclose(both.filters @ both.patterns.T, np.eye(2), atol=1e-9)
    second = Directions(
        "concept", ["two"], basis.center, (way * metric.spread)[None] @ metric.axes, (way / metric.spread)[None] @ metric.axes,
        np.zeros((0, 1)), np.zeros(1),
    )  # fmt: skip
    scores = second.encode(left)[:, 0]
    middle = np.mean([scores[classes == each].mean() for each in (0, 1)])
    after = away(replace(second, midpoints=np.array([middle])), left)
    np.testing.assert_allclose(away(both, values), after, atol=1e-9)
