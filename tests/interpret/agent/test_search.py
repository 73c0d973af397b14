"""Latent search: it moves a quantity further than random search, and not beyond what is realistic."""

import numpy as np
import pytest
import torch

from rlhf_ray.agents.moments import draw_moments
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.questions import quantities
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.agent.search import Realism, search
from tests.interpret.agent.linear_world import random_episodes
from tests.interpret.agent.toy_world import LinearWorld, agent_of


def asked(count=60, steps=3):
    agent, world = agent_of(), LinearWorld()
    moments = draw_moments(agent, random_episodes(agent, n=30, steps=6), count, np.random.default_rng(0), context=3)
    return AgentQuestion(agent, quantities.mean_over_steps(quantities.value()), steps, world), moments


@pytest.mark.parametrize("rise", [True, False])
def test_it_finds_realistic_starts_that_random_search_does_not(rise):
    question, moments = asked()
    found = search(question, moments[:4], moments[4:], np.random.default_rng(1), rise=rise, steps=25, rate=0.2)
    assert (found.realism <= 1.0 + 1e-5).all()
    assert set(found.distances) == {"states", "frames", "reconstruction"}
    assert found.raised.mean() > found.raised_at_random.mean() >= 0.0
    assert (found.raised >= 0.0).all()
    with torch.no_grad():
        states = torch.as_tensor(found.states)
        again = AgentQuestion(question.agent, question.quantity, 3, question.world, sources=("world",)).ask(
            moments[:4], {"world": states}
        )
    assert np.allclose(again, found.after, atol=1e-5)
    assert found.frames.shape == (4, 4, 3)
    same = search(question, moments[:4], moments[4:], np.random.default_rng(1), rise=rise, steps=25, rate=0.2)
    assert np.array_equal(same.states, found.states)
    assert np.array_equal(same.random, found.random)


def test_real_starts_are_realistic_and_far_ones_are_not():
    question, moments = asked()
    realism = Realism(question, moments)
    with torch.no_grad():
        real = realism.largest(question.rollout(moments[40:], {}))
        state = question.world.begin(moments.observations, moments.actions)
        far = realism.largest(question.rollout(moments, {"world": state * 10.0}))
    assert (real <= 1.0).float().mean() > 0.8
    assert (far > 1.0).float().mean() > 0.9


def test_what_can_not_be_searched_is_said_in_one_line():
    question, moments = asked()
    with pytest.raises(SettingError, match="5 moments don't tell"):
        search(question, moments[:2], moments[2:7], np.random.default_rng(0))
    with pytest.raises(SettingError, match="needs a world model"):
        search(AgentQuestion(question.agent, question.quantity), moments[:2], moments, np.random.default_rng(0))
