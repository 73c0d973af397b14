"""A short PPO on any reward function: `PPOUpdate` on a small network, on the CPU. It tests what a reward teaches."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.spaces import seeded
from rlhf_ray.envs import make_vector_env
from rlhf_ray.optim.flat import FlatAdam
from rlhf_ray.policies.actions import best, log_probability, sample
from rlhf_ray.policies.env_actions import to_env_actions
from rlhf_ray.policies.network import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.ppo_update import PPOLoss, PPORows, PPOUpdate, advantages, shuffled
from rlhf_ray.reward.functions import RewardFunction

COPIES = 16
ROLLOUT = 128
"""Steps of each copy of the environment per iteration."""
EPOCHS, MINIBATCH = 6, 256
GAE, LEARNING_RATE, LARGEST_GRADIENT = 0.95, 1e-3, 0.5
LOSS = PPOLoss(clip=0.2, value_coefficient=0.5, entropy_coefficient=0.01)


class ShortPolicy:
    """A policy on vectors or numbers: two MLPs, for the action and for the value, of the standardised observation."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]):
        self.action_space = action_space
        self.states = int(observation_space.n) if isinstance(observation_space, gym.spaces.Discrete) else 0
        self.first = int(action_space.start) if isinstance(action_space, gym.spaces.Discrete) else 0
        width = self.states or int(np.prod(observation_space.shape or ()))
        vectors = gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.network = ActorCriticNetwork(vectors, action_space, PolicyShape(normalize_observations=not self.states))
        for head in (self.network.actor, self.network.critic):
            _start_small(head)

    @torch.no_grad()
    def inputs(self, observations: Array, count: bool = False) -> Tensor:
        """Convert observations ``[n, …]`` to the networks' inputs ``[n, size]``: one-hot for numbers, else standardised.

        Args:
            observations: the observations.
            count: whether to count them in the statistics first.
        """
        if self.states:
            return torch.nn.functional.one_hot(torch.as_tensor(np.asarray(observations, np.int64)), self.states).float()
        vectors = torch.as_tensor(np.array(observations, np.float32)).flatten(1)
        if count:
            self.network.observe(vectors)
        return self.network.encode(vectors)

    @torch.no_grad()
    def act(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw actions; without a generator, take the means of Box actions."""
        outputs = self.network.distribution(inputs)
        return best(outputs, self.action_space) if generator is None else sample(outputs, self.action_space, generator)

    def to_env(self, actions: Tensor) -> Array:
        """Convert drawn actions to those of the environment."""
        return to_env_actions(actions.numpy(), self.action_space) + self.first


@torch.no_grad()
def _start_small(head: Any) -> None:
    """Draw small weights: with orthogonal ones, 24,000 steps of CartPole end at 170 to 500 instead of 450 to 500."""
    *hidden, last = (layer for layer in head if isinstance(layer, nn.Linear))
    for layer in hidden:
        layer.reset_parameters()
    last.weight.mul_(0.01 / last.weight.norm(dim=1, keepdim=True))


def train(
    environment: str,
    reward: RewardFunction | None,
    *,
    steps: int,
    gamma: float,
    seed: int,
    shift: float = 0.0,
    options: dict[str, Any] | None = None,
) -> ShortPolicy:
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
        policy = ShortPolicy(envs.single_observation_space, envs.single_action_space)
        update = PPOUpdate(policy.network, envs.single_action_space)
        optimizer = FlatAdam(update.flat, lr=LEARNING_RATE, eps=1e-5)
        orders = torch.Generator()  # of its own: an environment may seed torch's
        orders.set_state(torch.get_rng_state())
        rollouts = _Rollouts(envs, policy, reward, gamma, seed, shift)
        iterations = max(1, steps // (COPIES * ROLLOUT))
        for iteration in range(iterations):
            rows = rollouts.collect(update)
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * max(1 - iteration / iterations, 0.1)
            index = shuffled(len(rows), EPOCHS, MINIBATCH, generator=orders)
            update.take_steps(optimizer, rows, LOSS, index, max_norm=LARGEST_GRADIENT)
    envs.close()
    return policy


class _Rollouts:
    """Steps of copies of an environment (next-step autoreset), with the rewards of a reward function."""

    def __init__(
        self, envs: Any, policy: ShortPolicy, reward: RewardFunction | None, gamma: float, seed: int, shift: float
    ):
        self.envs, self.policy, self.reward, self.gamma, self.shift = envs, policy, reward, gamma, shift
        self.generator = torch.Generator().manual_seed(seed)
        self.observations, _ = envs.reset(seed=seed)
        self.reset = np.zeros(COPIES, bool)
        self.discounted, self.square = np.zeros(COPIES), 1e-8

    def collect(self, update: PPOUpdate) -> PPORows:
        """Sample a rollout; return its steps without those that only reset.

        Inputs are standardised by all observations up to their step.
        """
        policy, network = self.policy, self.policy.network
        inputs, actions, rewards, real, terminated, truncated = [], [], [], [], [], []
        for _ in range(ROLLOUT):
            inputs.append(policy.inputs(self.observations, count=True))
            actions.append(policy.act(inputs[-1], self.generator))
            rewarded, ended, cut = self._step(policy.to_env(actions[-1]))
            rewards.append(rewarded)
            real.append(~self.reset)
            terminated.append(ended)
            truncated.append(cut)
            self.reset = ended | cut
        inputs.append(policy.inputs(self.observations))
        values = update.values_of(torch.cat(inputs)).view(ROLLOUT + 1, COPIES)
        estimates = advantages(
            np.stack(rewards) / self.square**0.5,
            values.numpy(),
            np.stack(terminated),
            np.stack(truncated) | ~np.stack(real),
            gamma=self.gamma,
            decay=GAE,
        )
        counted = torch.as_tensor(np.stack(real))
        read, drawn, gains, before = (
            column[counted]
            for column in (torch.stack(inputs[:-1]), torch.stack(actions), torch.as_tensor(estimates), values[:-1])
        )
        with torch.no_grad():
            chosen = log_probability(network.distribution(read), drawn, policy.action_space)
        standardised = (gains - gains.mean()) / (gains.std() + 1e-8)
        return PPORows(read, drawn, chosen, standardised, gains + before, before)

    def _step(self, actions: Array) -> tuple[FloatArray, BoolArray, BoolArray]:
        after, rewarded, terminated, truncated, _ = self.envs.step(actions)
        if self.reward is not None:
            rewarded = self.reward(self.observations, actions, after, np.asarray(terminated, bool))
        rewarded = np.asarray(rewarded, np.float64) - self.shift
        self.discounted = np.where(self.reset, 0, self.discounted * self.gamma + rewarded)
        self.square = max(self.square, 1e-8) * 0.999 + 0.001 * float(np.mean(self.discounted**2))
        self.observations = after
        return rewarded, terminated, truncated


def true_returns(
    environment: str,
    policy: ShortPolicy | None,
    *,
    episodes: int,
    seed: int,
    options: dict[str, Any] | None = None,
    truth: RewardFunction | None = None,
) -> FloatArray:
    """Measure the undiscounted true returns of the first episodes of each copy, by start; of random actions without a policy.

    ``truth``: the true reward, if that is not the environment's own.

    Returns:
        ``[episodes]``, rounded up to a multiple of the copies: the returns of all copies' first episodes, then of their second,
        and so on. With one seed, episodes in one place have the same start if the environment draws nothing but starts.
    """
    copies = min(COPIES, episodes)
    envs = make_vector_env(environment, copies, **(options or {}))
    drawn = seeded(envs.action_space, seed)
    drawing = torch.Generator().manual_seed(seed) if policy is not None and policy.network.discrete else None
    observations, _ = envs.reset(seed=seed + 10_000)
    returns, fresh, counted = np.zeros(copies), np.zeros(copies, bool), np.zeros(copies, int)
    per_copy = -(-episodes // copies)
    ended = np.zeros((per_copy, copies))
    while (counted < per_copy).any():
        chosen = None if policy is None else policy.to_env(policy.act(policy.inputs(observations), drawing))
        actions = np.asarray(drawn.sample()) if chosen is None else chosen
        before = observations
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        if truth is not None:
            rewards = truth(before, actions, observations, np.asarray(terminated, bool))
        returns = np.where(fresh, 0, returns + rewards)
        fresh = terminated | truncated
        for copy in np.flatnonzero(fresh & (counted < per_copy)):
            ended[counted[copy], copy] = returns[copy]
            counted[copy] += 1
    envs.close()
    return ended.flatten()
