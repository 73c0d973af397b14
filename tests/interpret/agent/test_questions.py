"""Questions about an agent: moments, quantities, gradients through time; objects that are painted over."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.agents.episodes import draw_moments, moments_of
from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent import questions
from rlhf_ray.interpret.agent.changes import objects_in, patch_beside, repaint
from rlhf_ray.interpret.agent.questions import AgentQuestion
from rlhf_ray.interpret.agent.steps.attribution import through_time
from rlhf_ray.interpret.attribution.gradients import Slope
from tests.interpret.agent.worlds import (
    BOX,
    DISCRETE,
    VECTOR,
    LinearAgent,
    LinearWorld,
    network_agent,
    random_episodes,
)


def asked(agent, quantity=None, count=5, context=1, ahead=3, **more):
    episodes = random_episodes(agent)
    moments = draw_moments(agent, episodes, count, np.random.default_rng(0), context=context, ahead=ahead)
    return AgentQuestion(agent, quantity or questions.value(), **more), moments, episodes


def test_moments_repeat_the_first_observation_before_the_start_and_the_last_after_the_end():
    agent = network_agent()
    episodes = random_episodes(agent)
    moments = moments_of(agent, episodes, np.array([0, 1]), np.array([0, 6]), context=3, ahead=2)
    assert np.array_equal(moments.observations[0].numpy(), np.repeat(episodes.observations[0, :1], 3, 0))
    assert not moments.actions[0].any()
    assert moments.actions[1].sum() == 2
    assert np.array_equal(moments.observations[1].numpy(), episodes.observations[1, 4:7])
    assert np.array_equal(moments.memory.numpy(), episodes.memory[[0, 1], [0, 6]])
    # Row 1 has 7 steps: one follows, then nothing but its last observation.
    assert np.array_equal(moments.following[1].numpy(), episodes.observations[1, [7, 7]])
    assert moments.given[1].sum(1).tolist() == [1, 0]
    assert moments.rewards[1, 1] == 0
    later = moments_of(agent, episodes, np.array([0]), np.array([2]), ahead=2)
    assert later.ended.tolist() == [[1, 0]], "episode 0 terminates with its third step"


def test_the_chosen_action_is_asked_about_by_its_log_odds():
    question, moments, _ = asked(network_agent(VECTOR, DISCRETE, "none"), questions.chosen_action(DISCRETE))
    best = question.rollout(moments, {}).logits[:, 0].softmax(1).max(1).values
    assert torch.allclose(question.ask(moments), torch.log(best / (1 - best)), atol=1e-4)
    with pytest.raises(SettingError, match="mean of a dimension"):
        questions.chosen_action(BOX)
    with pytest.raises(SettingError, match="no dimension 2"):
        questions.action_mean(BOX, 2)


def test_the_most_likely_action_stays_that_of_the_unchanged_moment():
    """An agent is as sure of left as of right, by the sign of number 0; number 1 changes how sure it is, by a twentieth."""

    def decide(seen, memory):
        up = 2.0 * seen[:, 0].sign() * (1.0 + 0.05 * seen[:, 1])
        return torch.stack([-up, up], 1), up

    two = gym.spaces.Discrete(2)
    agent = FunctionAgent(decide, VECTOR, two)
    question, moments, _ = asked(agent, questions.chosen_action(two), count=40)
    seen = moments.observations[:, -1]
    assert torch.equal(question.ask(moments), question.ask(moments, question.inputs(moments)))
    mirrored, other = seen.clone(), seen.clone()
    mirrored[:, 0] *= -1.0
    other[:, 1] = 0.0
    plain, turned, calmed = (question.ask(moments, {"frame": frame}) for frame in (seen, mirrored, other))
    assert torch.allclose(turned, -plain)  # read off the action it takes then, nothing would have changed
    assert torch.allclose(plain, 4.0 * (1.0 + 0.05 * seen[:, 1]))
    assert torch.allclose(calmed, torch.full_like(plain, 4.0))


def test_the_advantage_of_the_recording_is_the_td_error():
    agent = network_agent()
    episodes = random_episodes(agent)
    moments = moments_of(agent, episodes, np.array([0, 1]), np.array([2, 2]), ahead=1)
    found = AgentQuestion(agent, questions.advantage(0.9)).ask(moments).detach().numpy()
    rewards, values = episodes.rewards[:2, 2], episodes.values[:2]
    assert np.allclose(found, [rewards[0] - values[0, 2], rewards[1] + 0.9 * values[1, 3] - values[1, 2]], atol=1e-5)


def test_the_past_of_the_recording_matters_through_the_agents_memory_alone():
    question, moments, _ = asked(network_agent(), steps=2)
    found = through_time(question, moments, question.against(moments).scales, samples=2)
    assert found["observations"].shape == (5, 3, 16, 16, 3)
    assert found["memory"].shape == (5, 3, 8)
    assert (np.abs(found["observations"]).reshape(5, 3, -1).max(2) > 0).all()
    forgetful = AgentQuestion(network_agent(memory="none"), question.quantity, steps=2).against(moments)
    without = through_time(forgetful, moments, forgetful.scales)
    assert not without["observations"][:, :2].any()
    assert without["observations"][:, 2].any()
    with pytest.raises(SettingError, match="3 steps ahead, but 4"):
        AgentQuestion(question.agent, question.quantity, steps=4).ask(moments)


def test_the_worlds_memory_takes_the_frames_place():
    with pytest.raises(SettingError, match="takes the frame's place"):
        AgentQuestion(LinearAgent(), questions.value(), world=LinearWorld(2, context=2), sources=("frame", "world"))
    question, moments, _ = asked(
        LinearAgent(), context=2, steps=2, world=LinearWorld(2, context=2), sources=("world", "memory")
    )
    assert Slope().attribute(question.against(moments), moments)["world"].shape == (5, 5)
    with pytest.raises(SettingError, match="no typical values"):
        _ = question.typical


def test_objects_are_painted_over_with_what_is_beside_them():
    frame = np.zeros((1, 8, 8, 3), np.uint8)
    frame[:, 5:] = 200
    frame[:, 5:, 3:5] = 0  # a pit in the ground
    frame[:, 3:5, 6] = 90  # a saw above it
    pit, saw = np.zeros((1, 8, 8), bool), np.zeros((1, 8, 8), bool)
    pit[:, 5:, 3:5], saw[:, 3:5, 6] = True, True
    assert (repaint(frame, pit)[0, 5:] == 200).all()
    assert (repaint(frame, saw)[0, :5] == 0).all()
    moved = patch_beside(saw, saw | pit, np.random.default_rng(0))
    assert moved.sum() == 2
    assert not (moved & (saw | pit)).any()


def test_objects_are_told_from_scenery():
    masks = {name: np.zeros((2, 10, 10), bool) for name in ("sky", "ground", "agent", "saw", "nothing")}
    masks["sky"][:, :6], masks["ground"][:, 6:] = True, True
    masks["saw"][:, 5, 5] = masks["agent"][:, 5, 1] = True
    assert objects_in(masks) == ["saw"]
