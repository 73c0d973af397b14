"""Paths of a gradient: their parts are those that a linear agent in a linear world has by multiplication."""

import numpy as np
import pytest
import torch

from rlhf_ray.agents.moments import draw_moments
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.questions import quantities
from rlhf_ray.interpret.agent.questions.estimators import compare
from rlhf_ray.interpret.agent.questions.paths import ways
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from tests.interpret.agent.linear_world import LinearAgent, LinearWorld, random_episodes
from tests.interpret.agent.toy_world import LinearWorld as ToyWorld
from tests.interpret.agent.toy_world import agent_of


def asked(agent, world, quantity, steps, **more):
    episodes = random_episodes(agent, n=4, steps=5)
    moments = draw_moments(agent, episodes, 6, np.random.default_rng(0), context=world.context)
    return AgentQuestion(agent, quantity, steps, world, sources=("world", "memory"), **more), moments


def linear():
    agent, world = LinearAgent(), LinearWorld()
    return agent, world, [agent.m[n].numpy() for n in "MEPv"], [world.m[n].numpy() for n in "ABCr"]


def test_two_steps_on_the_parts_are_the_products_of_the_matrices():
    agent, world, (m, e, p, v), (a, b, c, _r) = linear()
    question, moments = asked(agent, world, quantities.value(), 2)
    found = ways(question, moments)
    # h_t = M h_(t-1) + E C s_t; s_(t+1) = A s_t + B P h_t; the value is v h_2.
    frame = v @ e @ c @ a @ a
    memory = v @ (m @ e @ c @ a + m @ m @ e @ c)
    k = b @ p  # from the agent's memory to the world
    action = v @ (
        e @ c @ (a @ k @ e @ c + k @ e @ c @ a + k @ m @ e @ c + k @ e @ c @ k @ e @ c) + m @ e @ c @ k @ e @ c
    )
    for name, expected in (("frame", frame), ("memory", memory), ("action", action), ("world", 0.0 * frame)):
        assert np.allclose(found.parts[name], expected, atol=1e-7), name
    assert np.allclose(sum(found.parts.values()), found.total, atol=1e-12)
    assert found.gap < 1e-10
    assert np.allclose(sum(found.shares.values()), 1.0)
    # The first frame that shows it: at step 2 only the world has carried it on.
    assert np.allclose(found.by_step[:, 2], frame, atol=1e-7)


@pytest.mark.parametrize("estimator", ["straight_through", "softmax"])
@pytest.mark.parametrize("memory", ["gru", "none"])
def test_with_a_network_the_steps_add_up_to_the_total(estimator, memory):
    agent, world = agent_of(memory), ToyWorld()
    question, moments = asked(agent, world, quantities.advantage(), 3, estimator=estimator)
    found = ways(question, moments)
    assert found.total.any()
    assert found.gap <= 1e-4
    assert np.allclose(sum(found.parts.values()), found.total, atol=1e-6)
    assert found.parts["memory"].any() == (memory != "none")


def test_now_a_cut_changes_nothing_but_what_it_cuts():
    """AT15: the action reaches nothing yet, so that cutting it leaves the gradient as it is; later it does not."""
    for steps in (0, 3):
        question, moments = asked(agent_of(), ToyWorld(), quantities.value(), steps)
        found = ways(question, moments)
        changed = np.abs(found.parts["action"]).max() / np.abs(found.total).max()
        assert changed <= 1e-6 if steps == 0 else changed > 1e-3
    with pytest.raises(SettingError, match="need a world model"):
        ways(AgentQuestion(agent_of(), quantities.value()), moments)


def test_estimators_are_held_against_finite_changes():
    question, moments = asked(agent_of(), ToyWorld(), quantities.value(), 2)
    found = compare(question, moments, "world", np.random.default_rng(0))
    assert set(found.rank) == {"straight_through", "softmax", "gumbel"}
    assert found.best in found.rank
    assert found.effect > 0
    assert all(-1.0 <= value <= 1.0 for value in found.rank.values())
    assert found.size["straight_through"] > 0
    assert found.cosine["straight_through, softmax"] < 1 - 1e-6  # they differ by more than rounding does
    # Without an action in between all are the same gradient, and it says what happens.
    now, moments = asked(agent_of(), ToyWorld(), quantities.value(), 0)
    same = compare(now, moments, "memory", np.random.default_rng(0))
    assert np.allclose(list(same.cosine.values()), 1.0)
    assert not any(same.flipped.values())
    assert min(same.rank.values()) > 0.8
    assert min(same.sign.values()) > 0.8
    assert torch.is_grad_enabled()
