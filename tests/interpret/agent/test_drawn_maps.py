"""Maps that are drawn: gradients that say nothing by construction are replaced by occlusion, or crossed out."""

from dataclasses import dataclass, replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.agents.agent import AgentStep
from rlhf_ray.agents.moments import Stretches, draw_moments
from rlhf_ray.interpret.agent.drawn_maps import INSTEAD, NOW, STRIP, DrawnMaps, judge_drawn, occluded, strips
from rlhf_ray.interpret.agent.questions import quantities
from rlhf_ray.interpret.agent.questions.samples import sample_gradients
from rlhf_ray.interpret.agent.steps.attribution import WORDS
from tests.interpret.agent.linear_world import random_episodes

NUMBERS = 8
WEIGHTS = torch.arange(1.0, NUMBERS + 1.0)


@dataclass
class Valuing:
    """The value is a weighted sum of what ``shape`` makes of each number; later numbers weigh more."""

    kind: str
    name, digest, memory_size, layers = "valuing", "valuing", 0, ()
    observation_space = gym.spaces.Box(-np.inf, np.inf, (NUMBERS,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def initial_memory(self, n):
        return torch.zeros(n, 0)

    def step(self, observations, memory, *, edits={}, keep=()):  # noqa: B006
        seen = observations.float()
        shaped = {"linear": seen, "steep": torch.tanh(1e4 * seen), "blind": 0.0 * seen}[self.kind]
        return AgentStep(torch.zeros(len(seen), 2) + 0.0 * seen[:, :1], shaped @ WEIGHTS, memory)

    def fresh(self, seed):
        return None


def judged_of(kind):
    agent = Valuing(kind)
    episodes = random_episodes(agent, 6, 10)
    moments = draw_moments(agent, episodes, 40, np.random.default_rng(0), ahead=1)
    return (
        agent,
        episodes,
        moments,
        judge_drawn(agent, moments, [quantities.value()], 0, lambda name: np.random.default_rng(1), 1e-6),
    )


def test_the_check_tells_maps_that_say_what_matters_from_those_that_do_not():
    *_, linear = judged_of("linear")
    assert linear.faithful["value/difference_x_gradient"]  # for a sum it is exact
    assert linear.faithful["value/occlusion"]
    assert linear.choose("value", NOW) == NOW
    *_, steep = judged_of(
        "steep"
    )  # gradients are 0 but where nobody looks, so their order is that of the numbers: the worst
    assert steep.faithful == {"value/gradient": False, "value/difference_x_gradient": False, "value/occlusion": True}
    assert steep.choose("value", NOW) == steep.choose("value", STRIP) == INSTEAD
    *_, blind = judged_of("blind")
    assert blind.empty == ("value",)
    assert blind.choose("value", STRIP) == STRIP
    assert DrawnMaps({"value/gradient": False, "value/occlusion": False}).choose("value", STRIP) == ""
    assert steep.knows("value")
    assert not steep.knows("action")


def test_occlusion_over_time_is_what_each_number_adds():
    agent, episodes, judged, _ = judged_of("linear")
    pieces = Stretches(np.array([0, 1]), np.array([2, 0]), np.array([3, 4]), 4)
    frames, maps, over = occluded(agent, episodes, pieces, quantities.value(), judged, 0)
    assert over.tolist() == [[False, False, False, True], [False] * 4]
    assert np.array_equal(frames[1], episodes.observations[1, :4])
    expected = (frames - judged.frames.mean(0)) * WEIGHTS.numpy()  # a sum's parts, in closed form
    assert np.allclose(maps, expected, atol=1e-3)


@pytest.mark.parametrize(("kind", "told"), [("linear", None), ("steep", None), ("neither", "random order")])
def test_strips_are_crossed_out_where_nothing_is_faithful(kind, told):
    agent, episodes, judged, drawn = judged_of("steep" if kind == "neither" else kind)
    value = quantities.value()
    still = {"frame": torch.zeros(1)}
    samples = sample_gradients(judged[:6], agent=agent, world=None, quantities=[value], scales=still, steps=1)
    drawn = {
        "linear": replace(drawn, faithful={"value/gradient": True}),
        "steep": drawn,
        "neither": replace(drawn, faithful=dict.fromkeys(drawn.faithful, False)),
    }[kind]
    [picture] = strips(agent, episodes, samples, [value], drawn, judged, np.random.default_rng(0), WORDS)
    assert (picture.crossed_out is None) == (told is None)
    assert told is None or told in picture.crossed_out
    assert ("adds to the value" in picture.caption) == (kind == "steep")
