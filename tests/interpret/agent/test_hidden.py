"""Objects hidden from the agent's eyes: a lane whose deaths are known, and agents that look at one object, at both, or at none."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.agents.agent import AgentStep
from rlhf_ray.agents.play import play
from rlhf_ray.agents.recorded import split_of
from rlhf_ray.agents.recording import record_inside
from rlhf_ray.envs.batch import BatchStep
from rlhf_ray.interpret.agent.hiding import HidingBatch, selective
from rlhf_ray.interpret.agent.steps import hidden
from tests.interpret.contexts import context_of

STEPS, SIDE = 4, 16
RED, GREEN = (220, 30, 30), (30, 200, 30)
SPACE, ACTIONS = gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8), gym.spaces.Discrete(3)
GO, DUCK, HOP = range(3)


class Lane:
    """At each of 4 steps there is nothing, a red or a green block. Red kills who does not duck, green who does not hop; then 10."""

    name, edits, action_names = "Lane", {}, ("go", "duck", "hop")
    observation_space, action_space = SPACE, ACTIONS

    def __init__(self, n):
        self.n = n

    def reset(self, levels):
        self.blocks = np.stack([np.random.default_rng([9, level]).integers(3, size=STEPS) for level in levels])
        self.at, self.causes = np.zeros(self.n, int), [""] * self.n
        return self._seen()

    def step(self, actions):
        rewards = np.zeros(self.n)
        for row in range(self.n):
            if self.causes[row]:
                continue
            block = self.blocks[row, self.at[row]]
            self.at[row] += 1
            if block and actions[row] != block:
                self.causes[row] = ("", "red", "green")[block]
            elif self.at[row] == STEPS:
                self.causes[row], rewards[row] = "goal", 10.0
        ended = np.array([bool(cause) for cause in self.causes])
        return BatchStep(self._seen(), rewards, ended, np.zeros(self.n, bool), list(self.causes))

    def masks(self):
        block = self.blocks[np.arange(self.n), np.minimum(self.at, STEPS - 1)]
        masks = {name: np.zeros((self.n, SIDE, SIDE), bool) for name in ("agent", "red", "green")}
        masks["agent"][:, 12:14, 2:4] = True
        for number, name in ((1, "red"), (2, "green")):
            masks[name][block == number, 10:14, 9:12] = True
        return masks | {"sky": ~np.any(list(masks.values()), axis=0)}

    def states(self):
        return [json.dumps([self.blocks[i].tolist(), int(self.at[i]), self.causes[i]]).encode() for i in range(self.n)]

    def restore(self, states):
        blocks, at, self.causes = map(list, zip(*map(json.loads, states), strict=True))
        self.blocks, self.at = np.array(blocks), np.array(at)
        return self._seen()

    def describe(self):
        return {"at": self.at.astype(np.float32)}

    def close(self):
        pass

    def _seen(self):
        frames = np.full((self.n, SIDE, SIDE, 3), 90, np.uint8)
        for name, colour in (("agent", (250, 250, 250)), ("red", RED), ("green", GREEN)):
            frames[self.masks()[name]] = colour
        return frames


class Looking:
    """Ducks if it sees red and hops if it sees green, of the colours that it looks at; else it always does the same."""

    memory_size, layers, digest = 0, (), "looking"
    observation_space, action_space = SPACE, ACTIONS

    def __init__(self, *colours, otherwise=GO):
        self.colours, self.otherwise, self.name = colours, otherwise, f"looks at {colours}"

    def initial_memory(self, n):
        return torch.zeros(n, 0)

    def step(self, observations, memory, *, edits={}, keep=()):  # noqa: B006
        seen = observations.float()
        logits = torch.zeros(len(seen), 3)
        logits[:, self.otherwise] = 1.0
        for colour, action in ((RED, DUCK), (GREEN, HOP)):
            if colour in self.colours:
                there = ((seen - torch.tensor(colour)).abs().sum(-1) == 0).flatten(1).any(1)
                logits[there, action] = 5.0
        return AgentStep(logits, torch.zeros(len(seen)), memory)

    def fresh(self, seed):
        return None


def section_of(agent, folder):
    record_inside(agent, Lane(20), list(range(150)), folder / "recording")
    work = context_of(agent, Lane, folder, effort=0.2, environment="Lane")
    assert hidden.STEP.why_not(work) is None
    return hidden.run(work)


def test_an_agent_that_looks_dies_of_what_is_hidden_and_of_nothing_else(tmp_path):
    section = section_of(Looking(RED, GREEN), tmp_path)
    levels = [level for level in range(150) if split_of(level) == "test"][: section.values["levels"]]
    blocks = np.stack([np.random.default_rng([9, level]).integers(3, size=STEPS) for level in levels])
    distinct, chosen = np.unique(blocks, axis=0, return_index=True)
    assert section.values["distinct"] == len(distinct) < len(levels), "levels that show the same count once"
    for number, name in ((1, "red"), (2, "green")):
        found = section.values["objects"][name]
        dies = float((blocks[chosen] == number).any(1).mean())  # by construction: at the first block of the colour
        assert found["own"]["share"]["before"] == 0.0
        assert found["own"]["share"]["after"] == pytest.approx(dies)
        assert found["own"]["selectivity"]["mean"] == 1.0
        assert found["hidden"]["returns"]["after"] == pytest.approx(10.0 * (1.0 - dies))
        assert found["control"]["returns"]["difference"]["mean"] == 0.0
        assert found["beyond"]["difference"]["mean"] == pytest.approx(-10.0 * dies)
    assert [(each.key, each.about, each.strength) for each in section.statements] == [
        ("hidden.needs", name, "strong") for name in section.values["objects"]
    ]
    assert "and no other is clear of chance" in section.statements[0].text
    assert len(section.tables[0].rows) == 2 * 3  # return, goal and its own end


def test_what_the_agent_does_not_look_at_is_ignored(tmp_path):
    section = section_of(Looking(RED), tmp_path)
    assert [(each.key, each.about) for each in section.statements] == [
        ("hidden." + ("needs" if name == "red" else "ignores"), name) for name in section.values["objects"]
    ]
    blind = section.values["objects"]["green"]
    assert blind["hidden"]["acts"]["mean"] == 0.0
    assert blind["own"]["selectivity"] is None


def test_hiding_paints_the_frame_and_leaves_the_world():
    lane = HidingBatch(Lane(32), "red")
    seen = lane.reset(range(32))
    assert not (seen == RED).all(-1).any()
    assert (seen == GREEN).all(-1).any()
    assert lane.masks()["red"].any()
    control = HidingBatch(Lane(32), "red", control=True)
    patched, plain = control.reset(range(32)), Lane(32).reset(range(32))
    changed = (patched != plain).any(-1)
    red = control.masks()["red"]
    assert np.array_equal(changed.sum((1, 2)), red.sum((1, 2))), "as large"
    assert not (changed & (red | control.masks()["agent"] | control.masks()["green"])).any(), "elsewhere"
    episodes = play(Looking(RED, GREEN), HidingBatch(Lane(8), "red"), range(8))
    assert set(episodes.causes) <= {"red", "goal"}


def test_selectivity_is_the_share_of_all_ends_that_become_more_frequent():
    before = np.array(["goal"] * 8)
    after = np.array(["red", "red", "red", "green", "goal", "goal", "goal", "goal"])
    found = selective("red", before, after, np.arange(8))
    assert found.mean == pytest.approx(0.75)  # of the 4 ends that are new, 3
    assert found.low < 0.75 < found.high
    assert selective("goal", before, after, np.arange(8)).mean == 1.0  # of those that become rarer


def test_environments_without_masks_or_images_are_told_what_they_must_offer(tmp_path):
    agent = Looking(RED)
    record_inside(agent, Lane(4), list(range(8)), tmp_path / "recording")

    class Unknown(Lane):
        def masks(self):
            return {}

        def _seen(self):
            return np.zeros((self.n, *self.observation_space.shape), self.observation_space.dtype)

    class Numbers(Unknown):
        observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)

    assert "must offer masks()" in hidden.STEP.why_not(context_of(agent, Unknown, tmp_path))
    assert "shows numbers" in hidden.STEP.why_not(context_of(agent, Numbers, tmp_path))
