"""What is inside a reward: feature visualisation (V1), planted factors (N1), probes (L1)."""

from __future__ import annotations


import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward.functions import RewardFunction, TorchReward
from rlhf_ray.reward.functions.function import reinitialise

SIDE = 16


class ThreeConvolutions(TorchReward):
    """Three convolutions over the next state, the reward's planted cause."""

    def __init__(self, name: str = "planted"):
        layers = []
        for inputs, outputs, stride in ((3, 16, 1), (16, 32, 2), (32, 32, 2)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.ReLU()]
        super().__init__(nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 16, 1)))
        self.name = name
        self.observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(4)
        self.inputs = frozenset(("next_state",))

    def member_tensor(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """Compute the reward, ``[1, n]``."""
        return self.module(next_observations.permute(0, 3, 1, 2) / 255.0).T

    def fresh(self, seed: int) -> RewardFunction:
        """Return new weights."""
        untrained = ThreeConvolutions(f"{self.name}, untrained")
        reinitialise(untrained.module, seed)
        return untrained


def planted(count: int, seed: int) -> Transitions:
    """Random walks of an agent (blue) and a coin (yellow), 3 x 3 pixels each; reward 1 where they touch."""
    rng = np.random.default_rng(seed)
    length = 20
    frames, agents, coins, truth = [], [], [], []
    for _ in range(count // length):
        agent, coin = rng.integers(0, SIDE - 2, 2), rng.integers(0, SIDE - 2, 2)
        for _ in range(length + 1):
            image = np.full((SIDE, SIDE, 3), 30, np.uint8) + rng.integers(0, 20, (SIDE, SIDE, 1), np.uint8)
            image[coin[0] : coin[0] + 3, coin[1] : coin[1] + 3] = (220, 200, 40)
            image[agent[0] : agent[0] + 3, agent[1] : agent[1] + 3] = (40, 80, 230)
            frames.append(image)
            agents.append(agent.copy())
            coins.append(coin.copy())
            truth.append(float(np.abs(agent - coin).max() <= 3))
            target = coin if rng.random() < 0.5 else rng.integers(0, SIDE - 2, 2)
            agent = np.clip(agent + np.sign(target - agent) * rng.integers(1, 3), 0, SIDE - 3)
            if rng.random() < 0.2:
                coin = rng.integers(0, SIDE - 2, 2)
    images = np.stack(frames).reshape(-1, length + 1, SIDE, SIDE, 3)
    n = len(images) * length
    after = {
        name: np.stack(of).reshape(len(images), length + 1, -1)[:, 1:].reshape(n, -1)
        for name, of in (("agent", agents), ("coin", coins))
    }
    return Transitions(
        images[:, :-1].reshape(n, SIDE, SIDE, 3),
        rng.integers(0, 4, n),
        images[:, 1:].reshape(n, SIDE, SIDE, 3),
        np.zeros(n, bool),
        np.array(truth).reshape(len(images), length + 1)[:, 1:].reshape(n),
        np.repeat(np.arange(len(images)), length),
        np.tile(np.arange(length), len(images)),
        {
            "state.distance": np.linalg.norm(after["agent"] - after["coin"], axis=1),
            **{f"state.{k}": v for k, v in after.items()},
        },
    )


def fit(steps: Transitions, seed: int, updates: int = 500) -> ThreeConvolutions:
    """Regress the true reward."""
    reward = ThreeConvolutions()
    reinitialise(reward.module, seed)
    reward.module.requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(reward.module.parameters(), 2e-3)
    images, truth = torch.as_tensor(steps.next_observations), torch.as_tensor(steps.rewards).float()
    for _ in range(updates):
        at = torch.randint(len(truth), (64,), generator=generator)
        given = reward.module(images[at].permute(0, 3, 1, 2) / 255.0)[:, 0]
        loss = ((given - truth[at]) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    reward.module.requires_grad_(False)
    return reward
