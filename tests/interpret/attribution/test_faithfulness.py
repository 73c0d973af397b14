"""Deletion and insertion beside random orders."""

import numpy as np
import pytest

from rlhf_ray.agents.episodes import draw_moments
from rlhf_ray.interpret.agent import questions
from rlhf_ray.interpret.agent.questions import AgentQuestion
from rlhf_ray.interpret.attribution.faithfulness import curves, rank_correlation
from rlhf_ray.interpret.attribution.gradients import Slope
from rlhf_ray.interpret.attribution.interventions import Occlusion
from tests.interpret.agent.linear_world import LinearAgent, random_episodes


def test_the_order_of_a_linear_agents_map_is_better_than_random_ones():
    agent = LinearAgent()
    moments = draw_moments(agent, random_episodes(agent), 20, np.random.default_rng(0), ahead=3)
    question = AgentQuestion(agent, questions.value()).against(moments)
    maps = Occlusion().attribute(question, moments)["memory"]
    found = curves(question, moments, {"right": maps, "wrong": 1.0 / maps}, np.random.default_rng(0), "memory")
    assert found["right"].faithful
    assert found["right"].areas["deletion"] > found["right"].areas["random_deletion"]
    assert not found["wrong"].faithful
    of_frame = Slope().attribute(question, moments)["frame"]
    frame = curves(question, moments, {"frame": of_frame}, np.random.default_rng(0), "frame")["frame"]
    assert frame.deletion[0] == 0
    assert frame.insertion[-1] == 0
    assert frame.random_deletion.shape == (10, 4)


def test_rank_correlation_of_a_constant_is_zero():
    assert rank_correlation(np.zeros(5), np.arange(5.0)) == 0.0
    assert rank_correlation(np.arange(5.0), np.arange(5.0) ** 3) == pytest.approx(1.0)
