"""A linear world with vector observations: fast, exact, and made without training."""

import gymnasium as gym
import torch
from torch import Tensor

from rlhf_ray.agents.agent import NetworkAgent
from tests.agents.made import network_agent

OBSERVED = 3


class LinearWorld:
    """A `World`: ``state' = A state + B action``, everything else is a linear function of the state."""

    def __init__(self, actions: int = 4, size: int = 5, context: int = 3, seed: int = 0, agent: str = "any"):
        self.size, self.context, self.digest, self.agent = size, context, f"linear{seed}", agent
        draw = torch.Generator().manual_seed(seed)
        self.step = torch.linalg.qr(torch.randn(size, size, generator=draw)).Q * 0.95
        self.push = 0.5 * torch.randn(actions, size, generator=draw)
        self.seen = 0.5 * torch.randn(size, OBSERVED, generator=draw)
        self.from_context = 0.5 * torch.randn(context * OBSERVED, size, generator=draw)
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


def agent_of(memory: str = "gru", box: bool = False, seed: int = 0) -> NetworkAgent:
    """An untrained agent: 4 actions, or 2 continuous ones (for ``LinearWorld(actions=2)``)."""
    acted: gym.Space = gym.spaces.Box(-1.0, 1.0, (2,)) if box else gym.spaces.Discrete(4)
    return network_agent(gym.spaces.Box(-10.0, 10.0, (OBSERVED,)), acted, memory, seed)


def context_of(world: LinearWorld, agent: NetworkAgent, n: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Observations, actions and memory to start ``n`` simulations from."""
    draw = torch.Generator().manual_seed(seed)
    observations = torch.randn(n, world.context, OBSERVED, generator=draw)
    if isinstance(agent.action_space, gym.spaces.Discrete):
        drawn = torch.randint(agent.action_space.n, (n, world.context - 1), generator=draw)
        actions = torch.nn.functional.one_hot(drawn, agent.action_space.n).float()
    else:
        actions = torch.rand(n, world.context - 1, 2, generator=draw) * 2.0 - 1.0
    return observations, actions, torch.tanh(torch.randn(n, agent.memory_size, generator=draw))
