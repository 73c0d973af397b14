"""World models and agents that are linear, so that their paths can be multiplied out; and episodes of any agent at random."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import MEMORY, AgentStep, NetworkAgent
from rlhf_ray.agents.play import replay
from tests.agents import made

FEATURES, ACTIONS, UNITS = 3, 2, 4
VECTOR = gym.spaces.Box(-np.inf, np.inf, (FEATURES,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
BOX = gym.spaces.Box(-np.inf, np.inf, (ACTIONS,), np.float32)
DISCRETE = gym.spaces.Discrete(3)


class LinearWorld:
    """A `World`: ``state' = A state + B action``, everything else is a linear function of the state."""

    def __init__(self, actions: int = 4, size: int = 5, context: int = 3, agent: str = "any"):
        self.size, self.context, self.digest, self.agent = size, context, "linear", agent
        draw = torch.Generator().manual_seed(0)
        self.step = torch.linalg.qr(torch.randn(size, size, generator=draw)).Q * 0.95
        self.push = 0.5 * torch.randn(actions, size, generator=draw)
        self.seen = 0.5 * torch.randn(size, FEATURES, generator=draw)
        self.from_context = 0.5 * torch.randn(context * FEATURES, size, generator=draw)
        self.rewarded = torch.randn(size, generator=draw)

    def begin(self, observations: Tensor, actions: Tensor) -> Tensor:
        return observations.float().flatten(1) @ self.from_context + (actions @ self.push).sum(1)

    def next(self, state: Tensor, actions: Tensor) -> Tensor:
        return state @ self.step + actions @ self.push

    def observe(self, state: Tensor) -> Tensor:
        return state @ self.seen

    def reward(self, state: Tensor) -> Tensor:
        return state @ self.rewarded

    def end(self, state: Tensor) -> Tensor:
        return -state @ self.rewarded - 3.0


class ImageWorld(LinearWorld):
    """Images of 16 x 16 pixels from a small linear state; the agent's actions push it."""

    def __init__(self, agent: NetworkAgent, actions: int):
        super().__init__(actions, 6, agent=agent.digest)
        draw = torch.Generator().manual_seed(3)
        self.drawn, self.read = (0.5 * torch.randn(6, 768, generator=draw) for _ in range(2))

    def begin(self, observations: Tensor, actions: Tensor) -> Tensor:
        return observations[:, -1].float().flatten(1) / 255.0 @ self.read.T + 0.1 * actions[:, -1] @ self.push

    def next(self, state: Tensor, actions: Tensor) -> Tensor:
        return torch.tanh(super().next(state, actions))

    def observe(self, state: Tensor) -> Tensor:
        return 255.0 * torch.sigmoid(state @ self.drawn).view(-1, 16, 16, 3)


class LinearAgent:
    """h' = M h + E o; the action's mean is P h', the value v h'."""

    name, digest, observation_space, action_space, memory_size, layers = "linear", "agent", VECTOR, BOX, UNITS, ()

    def __init__(self):
        rng = np.random.default_rng(2)
        shapes = {"M": (UNITS, UNITS), "E": (UNITS, FEATURES), "P": (ACTIONS, UNITS), "v": (UNITS,)}
        self.m = {n: torch.as_tensor(0.5 * rng.normal(size=of), dtype=torch.float32) for n, of in shapes.items()}

    def initial_memory(self, n):
        return torch.zeros(n, UNITS)

    def step(self, observations, memory, *, edits={}, keep=()):  # noqa: B006
        after = memory @ self.m["M"].T + observations @ self.m["E"].T
        after = edits[MEMORY](after) if MEMORY in edits else after
        mean = after @ self.m["P"].T
        return AgentStep(torch.cat([mean, torch.zeros_like(mean)], 1), after @ self.m["v"], after)


def agent_of(memory: str = "gru", box: bool = False) -> NetworkAgent:
    """An untrained agent: 4 actions, or 2 continuous ones (for ``LinearWorld(actions=2)``)."""
    acted: gym.Space = gym.spaces.Box(-1.0, 1.0, (2,)) if box else gym.spaces.Discrete(4)
    return made.network_agent(gym.spaces.Box(-10.0, 10.0, (FEATURES,)), acted, memory)


def network_agent(observations=IMAGE, actions=DISCRETE, memory="gru"):
    features = 16 if observations == IMAGE else None
    return made.network_agent(observations, actions, memory, features=features)


def context_of(world: LinearWorld, agent: NetworkAgent, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Observations, actions and memory to start ``n`` simulations from."""
    draw = torch.Generator().manual_seed(1)
    observations = torch.randn(n, world.context, FEATURES, generator=draw)
    if isinstance(agent.action_space, gym.spaces.Discrete):
        drawn = torch.randint(agent.action_space.n, (n, world.context - 1), generator=draw)
        actions = torch.nn.functional.one_hot(drawn, agent.action_space.n).float()
    else:
        actions = torch.rand(n, world.context - 1, 2, generator=draw) * 2.0 - 1.0
    return observations, actions, torch.tanh(torch.randn(n, agent.memory_size, generator=draw))


def random_episodes(agent, n=6, steps=7):
    """Episodes whose observations and actions are random; memory, logits and values are the agent's. The first is shorter."""
    rng, lengths = np.random.default_rng(0), np.full(n, steps)
    shape, discrete = (
        (n, steps + 1, *agent.observation_space.shape),
        isinstance(agent.action_space, gym.spaces.Discrete),
    )
    bytes_ = agent.observation_space.dtype == np.uint8
    seen = rng.integers(0, 256, shape).astype(np.uint8) if bytes_ else rng.normal(size=shape).astype(np.float32)
    drawn = rng.normal(size=(n, steps, ACTIONS)).astype(np.float32)
    lengths[0], ended = max(1, steps // 2), np.arange(n) % 2 == 0
    actions = rng.integers(0, agent.action_space.n, (n, steps)) if discrete else drawn
    rewards = rng.normal(size=(n, steps)).astype(np.float32)
    whole = made.episodes(
        n, steps, observations=seen, actions=actions, terminated=ended, truncated=~ended, rewards=rewards
    )
    return dataclasses.replace(replay(agent, whole), lengths=lengths)
