"""A linear agent in a linear world, whose paths can be multiplied out, and episodes of any agent at random. Not a test itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
import torch

from rlhf_ray.agents.agent import MEMORY, AgentStep
from tests.agents import made

FEATURES, ACTIONS, UNITS, SIZE = 3, 2, 4, 5
VECTOR = gym.spaces.Box(-np.inf, np.inf, (FEATURES,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
BOX = gym.spaces.Box(-np.inf, np.inf, (ACTIONS,), np.float32)
DISCRETE = gym.spaces.Discrete(3)


def matrices(seed, **shapes):
    rng = np.random.default_rng(seed)
    return {name: torch.as_tensor(rng.normal(size=shape) * 0.5, dtype=torch.float64) for name, shape in shapes.items()}


@dataclass
class LinearWorld:
    """s' = A s + B a; o = C s; the reward is r s', the logit of the end 0."""

    m: dict = field(
        default_factory=lambda: matrices(
            1, A=(SIZE, SIZE), B=(SIZE, ACTIONS), C=(FEATURES, SIZE), r=(SIZE,), D=(SIZE, FEATURES)
        )
    )
    size, context, digest, agent = SIZE, 2, "world", "agent"

    def begin(self, observations, actions):
        return observations[:, -1].double() @ self.m["D"].T + 0.1 * actions[:, -1].double() @ self.m["B"].T

    def next(self, state, actions):
        return state @ self.m["A"].T + actions @ self.m["B"].T

    def observe(self, state):
        return state @ self.m["C"].T

    def reward(self, state):
        return state @ self.m["r"]

    def end(self, state):
        return state[:, 0] * 0.0


@dataclass
class LinearAgent:
    """h' = M h + E o; the action's mean is P h', the value v h'."""

    m: dict = field(
        default_factory=lambda: matrices(2, M=(UNITS, UNITS), E=(UNITS, FEATURES), P=(ACTIONS, UNITS), v=(UNITS,))
    )
    name, digest, observation_space, action_space, memory_size, layers = "linear", "agent", VECTOR, BOX, UNITS, ()

    def initial_memory(self, n):
        return torch.zeros(n, UNITS, dtype=torch.float64)

    def step(self, observations, memory, *, edits={}, keep=()):  # noqa: B006
        after = memory.double() @ self.m["M"].T + observations.double() @ self.m["E"].T
        after = edits[MEMORY](after) if MEMORY in edits else after
        mean = after @ self.m["P"].T
        return AgentStep(torch.cat([mean, torch.zeros_like(mean)], 1), after @ self.m["v"], after)

    def fresh(self, seed):
        return None


def network_agent(observations=IMAGE, actions=DISCRETE, memory="gru", seed=0):
    features = 16 if observations == IMAGE else None
    return made.network_agent(observations, actions, memory, seed, features=features)


def random_episodes(agent, n=6, steps=7, seed=0):
    """Episodes whose observations and actions are random; memory, logits and values are the agent's."""
    rng = np.random.default_rng(seed)
    space = agent.observation_space
    shape = (n, steps + 1, *space.shape)
    observations = (
        rng.integers(0, 256, shape).astype(np.uint8)
        if space.dtype == np.uint8
        else rng.normal(size=shape).astype(np.float32)
    )
    discrete = isinstance(agent.action_space, gym.spaces.Discrete)
    actions = (
        rng.integers(0, agent.action_space.n, (n, steps))
        if discrete
        else rng.normal(size=(n, steps, ACTIONS)).astype(np.float32)
    )
    memory, logits, values = [agent.initial_memory(n)], [], []
    with torch.no_grad():
        for t in range(steps):
            step = agent.step(torch.as_tensor(observations[:, t]), memory[-1])
            memory.append(step.memory)
            logits.append(step.logits)
            values.append(step.value)
    stack = lambda of: torch.stack(of, 1).float().numpy()  # noqa: E731
    lengths = np.full(n, steps)
    lengths[0] = max(1, steps // 2)
    ended = np.arange(n) % 2 == 0
    computed = {"logits": stack(logits), "values": stack(values), "memory": stack(memory)}
    told = {"rewards": rng.normal(size=(n, steps)).astype(np.float32), "lengths": lengths}
    return made.episodes(
        n, steps, observations=observations, actions=actions, terminated=ended, truncated=~ended, **computed, **told
    )


class ImageWorld:
    """Images of 16 x 16 pixels from a small linear state; the agent's actions push it."""

    size, context, digest = 6, 3, "images"

    def __init__(self, agent, actions):
        self.agent = agent.digest
        self.m = {
            n: of.float() for n, of in matrices(3, A=(6, 6), B=(6, actions), C=(768, 6), D=(6, 768), r=(6,)).items()
        }

    def begin(self, observations, actions):
        return observations[:, -1].float().flatten(1) / 255.0 @ self.m["D"].T + 0.1 * actions[:, -1] @ self.m["B"].T

    def next(self, state, actions):
        return torch.tanh(state @ self.m["A"].T + actions @ self.m["B"].T)

    def observe(self, state):
        return 255.0 * torch.sigmoid(state @ self.m["C"].T).view(-1, 16, 16, 3)

    def reward(self, state):
        return state @ self.m["r"]

    def end(self, state):
        return state @ self.m["r"] - 3.0
