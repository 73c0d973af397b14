"""A short PPO on any reward function: plain torch, small, on the CPU. It tests what a reward teaches; it sets no records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.envs import make_vector_env
from rlhf_ray.reward.functions import RewardFunction

COPIES = 16
ROLLOUT = 128
"""Steps of each copy of the environment per iteration."""
EPOCHS, MINIBATCH = 6, 256
CLIP, GAE, LEARNING_RATE, ENTROPY = 0.2, 0.95, 1e-3, 0.01


class SmallPolicy(nn.Module):
    """Two MLPs, for the action and for the value, of the standardised observation."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]):
        super().__init__()
        self.states = int(observation_space.n) if isinstance(observation_space, gym.spaces.Discrete) else 0
        width = self.states or int(np.prod(observation_space.shape or ()))
        self.action_space = action_space
        self.choices = int(action_space.n) if isinstance(action_space, gym.spaces.Discrete) else 0
        outputs = self.choices or int(np.prod(action_space.shape or ()))
        self.actor, self.critic = (_mlp(width, size) for size in (outputs, 1))
        self.spread = nn.Parameter(torch.zeros(outputs))
        self.mean, self.variance, self.count = torch.zeros(width), torch.ones(width), 1e-4

    def inputs(self, observations: Array, learn: bool = False) -> Tensor:
        """Convert observations to the networks' inputs; with ``learn``, update their mean and variance first."""
        if self.states:
            return nn.functional.one_hot(torch.as_tensor(np.asarray(observations, np.int64)), self.states).float()
        flat = torch.as_tensor(np.array(observations, np.float32)).flatten(1)
        if learn:
            total = self.count + len(flat)
            difference = flat.mean(0) - self.mean
            spread = self.variance * self.count + flat.var(0, unbiased=False) * len(flat)
            self.variance = (spread + difference**2 * self.count * len(flat) / total) / total
            self.mean, self.count = self.mean + difference * len(flat) / total, total
        return ((flat - self.mean) / (self.variance.sqrt() + 1e-6)).clamp(-10, 10)

    def distribution(self, inputs: Tensor) -> Any:
        """Return the distribution of actions; numbers from 0 for Discrete, else scaled to about ±1."""
        if self.choices:
            return torch.distributions.Categorical(logits=self.actor(inputs))
        return torch.distributions.Independent(torch.distributions.Normal(self.actor(inputs), self.spread.exp()), 1)

    def to_env(self, actions: Tensor) -> Array:
        """Convert drawn actions to those of the environment: scaled to its bounds; as they are where it has none."""
        if isinstance(self.action_space, gym.spaces.Discrete):
            return actions.numpy() + int(self.action_space.start)
        space: Any = self.action_space
        given = actions.numpy().reshape(-1, *space.shape)
        bounded = np.isfinite(space.low) & np.isfinite(space.high)
        low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
        scaled = low + (np.clip(given, -1, 1) + 1) / 2 * (high - low)
        return np.asarray(np.where(bounded, scaled, np.clip(given, space.low, space.high)), space.dtype)


def _mlp(width: int, outputs: int) -> nn.Sequential:
    last = nn.Linear(64, outputs)
    nn.init.zeros_(last.bias)
    with torch.no_grad():
        last.weight *= 0.01
    return nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), last)


@dataclass
class _Rollout:
    inputs: list[Tensor] = field(default_factory=list)
    actions: list[Tensor] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    next_values: list[Tensor] = field(default_factory=list)
    rewards: list[FloatArray] = field(default_factory=list)
    ended: list[BoolArray] = field(default_factory=list)
    valid: list[BoolArray] = field(default_factory=list)


def train(
    environment: str,
    reward: RewardFunction | None,
    *,
    steps: int,
    gamma: float,
    seed: int,
    shift: float = 0.0,
    options: dict[str, Any] | None = None,
) -> SmallPolicy:
    """Train a policy.

    Args:
        environment: name for ``make_env``; observations are vectors or numbers.
        reward: the reward; None: the environment's own.
        steps: environment steps.
        gamma: discount.
        seed: seeds weights, actions and environments.
        shift: constant to subtract from each reward.
        options: the environment's options.
    """
    envs = make_vector_env(environment, COPIES, **(options or {}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = SmallPolicy(envs.single_observation_space, envs.single_action_space)
        optimiser = torch.optim.Adam(policy.parameters(), LEARNING_RATE, eps=1e-5)
        observations, _ = envs.reset(seed=seed)
        fresh = np.zeros(COPIES, bool)  # copies whose next step only resets them
        running, square = np.zeros(COPIES), 1e-8
        iterations = max(1, steps // (COPIES * ROLLOUT))
        for iteration in range(iterations):
            rollout = _Rollout()
            for _ in range(ROLLOUT):
                inputs = policy.inputs(observations, learn=True)
                with torch.no_grad():
                    distribution = policy.distribution(inputs)
                    drawn = distribution.sample()
                    log_prob, value = distribution.log_prob(drawn), policy.critic(inputs).squeeze(1)
                actions = policy.to_env(drawn)
                after, given, terminated, truncated, _ = envs.step(actions)
                if reward is not None:
                    given = reward(observations, actions, after, np.asarray(terminated, bool))
                given = np.asarray(given, np.float64) - shift
                with torch.no_grad():
                    next_value = policy.critic(policy.inputs(after)).squeeze(1) * ~torch.as_tensor(terminated)
                running = np.where(fresh, 0, running * gamma + given)
                square = max(square, 1e-8) * 0.999 + 0.001 * float(np.mean(running**2))
                for name, of in zip(
                    vars(rollout),
                    (inputs, drawn, log_prob, value, next_value, given, terminated | truncated | fresh, ~fresh),
                    strict=True,
                ):
                    getattr(rollout, name).append(of)
                fresh = terminated | truncated
                observations = after
            _update(policy, optimiser, rollout, gamma, square**0.5, 1 - iteration / iterations)
    envs.close()
    return policy


def _update(
    policy: SmallPolicy, optimiser: torch.optim.Optimizer, rollout: _Rollout, gamma: float, scale: float, left: float
) -> None:
    values, next_values = torch.stack(rollout.values), torch.stack(rollout.next_values)
    rewards = torch.as_tensor(np.stack(rollout.rewards) / scale, dtype=torch.float32)
    ongoing = 1 - torch.as_tensor(np.stack(rollout.ended)).float()
    deltas = rewards + gamma * next_values - values
    advantages = torch.zeros_like(deltas)
    later = torch.zeros(COPIES)
    for step in range(len(deltas) - 1, -1, -1):
        later = deltas[step] + gamma * GAE * ongoing[step] * later
        advantages[step] = later
    valid = torch.as_tensor(np.stack(rollout.valid)).flatten()
    inputs, actions = torch.cat(rollout.inputs)[valid], torch.cat(rollout.actions)[valid]
    log_probs, targets = torch.cat(rollout.log_probs)[valid], (advantages + values).flatten()[valid]
    wanted = advantages.flatten()[valid]
    wanted = (wanted - wanted.mean()) / (wanted.std() + 1e-8)
    for group in optimiser.param_groups:
        group["lr"] = LEARNING_RATE * max(left, 0.1)
    for _ in range(EPOCHS):
        for at in torch.split(torch.randperm(len(inputs)), MINIBATCH):
            distribution = policy.distribution(inputs[at])
            ratio = (distribution.log_prob(actions[at]) - log_probs[at]).exp()
            gain = torch.min(ratio * wanted[at], ratio.clamp(1 - CLIP, 1 + CLIP) * wanted[at]).mean()
            errors = nn.functional.mse_loss(policy.critic(inputs[at]).squeeze(1), targets[at])
            loss = errors / 2 - gain - ENTROPY * distribution.entropy().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimiser.step()


def true_returns(
    environment: str,
    policy: SmallPolicy | None,
    *,
    episodes: int,
    seed: int,
    options: dict[str, Any] | None = None,
) -> FloatArray:
    """Measure the undiscounted true returns of the first episodes of each copy; of random actions without a policy."""
    copies = min(COPIES, episodes)
    envs = make_vector_env(environment, copies, **(options or {}))
    envs.action_space.seed(seed)
    generator = torch.Generator().manual_seed(seed)
    observations, _ = envs.reset(seed=seed + 10_000)
    returns, done, fresh = np.zeros(copies), list[float](), np.zeros(copies, bool)
    counted = np.zeros(copies, int)
    each = -(-episodes // copies)
    while (counted < each).any():
        if policy is None:
            actions = np.asarray(envs.action_space.sample())
        else:
            with torch.no_grad():
                distribution = policy.distribution(policy.inputs(observations))
                if policy.choices:
                    drawn = torch.multinomial(distribution.probs, 1, generator=generator).squeeze(1)
                else:
                    drawn = distribution.mean
            actions = policy.to_env(drawn)
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        returns = np.where(fresh, 0, returns + rewards)
        fresh = terminated | truncated
        for at in np.flatnonzero(fresh & (counted < each)):
            done.append(float(returns[at]))
            counted[at] += 1
    envs.close()
    return np.array(done)
