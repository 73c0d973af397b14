"""What an agent gets that is trained on a reward: its share of the true return that the true reward teaches.

Exact, by value iteration, where the environment is a table; else by PPO on both rewards, with the same settings and starts. It is 1
for a reward that teaches the task, 0 for one that teaches no more than random actions get, and less for one that teaches harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.images import is_image
from rlhf_ray.data.spaces import seeded
from rlhf_ray.envs import make_env, make_vector_env
from rlhf_ray.interpret.reward.preprocess.certificate import Tables, table_of, tables_of
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.optim import FlatAdam, shuffled
from rlhf_ray.policies.actions import best, log_probability, sample, to_env_actions
from rlhf_ray.policies.network import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.ppo_update import PPOLoss, PPORows, PPOUpdate, RecentDeviation, advantages
from rlhf_ray.reward.functions import RewardFunction

STEPS, EPISODES = 96_000, 64
"""Environment steps of each training, and episodes of each judgement, at effort 1: what Pendulum, CartPole and Reacher need."""
SURE = 2.0
"""Standard errors within which a mean may be wrong."""
COPIES = 16
ROLLOUT = 128
"""Steps of each copy of the environment per iteration."""
EPOCHS, MINIBATCH = 10, 256
GAE, LEARNING_RATE, LARGEST_GRADIENT = 0.95, 1e-3, 0.5
LOSS = PPOLoss(clip=0.2, value_coefficient=0.5, entropy_coefficient=0.0)
"""As PPO's defaults are (`rlhf_ray.settings`), but without the entropy bonus."""


@dataclass(frozen=True)
class Taught:
    """True returns of agents: discounted, by value iteration, if ``exact``; else means over episodes of agents trained by PPO.

    The share is ``(learned - random) / (best - random)`` with its interval; None if there is no sure gain over random actions.
    """

    exact: bool
    best: float  # trained on the true reward
    learned: float  # trained on the reward
    random: float  # random actions
    share: MeanEstimate | None


def taught(
    reward: RewardFunction,
    environment: str,
    *,
    gamma: float,
    seed: int = 0,
    effort: float = 1.0,
    truth: RewardFunction | None = None,
) -> Taught | None:
    """Train on a reward and on the true one (``truth``, if that is not the environment's own), and compare the true returns.

    ``effort`` is the amount of training and judging, and ``seed`` seeds everything that is drawn. None for images and other
    observations that are no vectors or numbers.
    """
    env = make_env(environment)
    tables, spaces = tables_of(env, gamma), (env.observation_space, env.action_space)
    env.close()  # type: ignore[no-untyped-call]
    if tables is not None and spaces[0].shape == reward.observation_space.shape:
        return in_tables(reward, truth, tables)
    vectors = isinstance(spaces[0], gym.spaces.Box | gym.spaces.Discrete) and not is_image(spaces[0])
    if not vectors or not isinstance(spaces[1], gym.spaces.Box | gym.spaces.Discrete):
        return None
    steps, episodes = max(4096, int(STEPS * effort)), max(16, int(EPISODES * effort))
    trained = (train(environment, each, steps=steps, gamma=gamma, seed=seed) for each in (truth, reward))
    chance, best, learned = (
        true_returns(environment, policy, episodes=episodes, seed=seed, truth=truth) for policy in (None, *trained)
    )
    share = share_of_gain(chance, best, learned)
    return Taught(False, float(best.mean()), float(learned.mean()), float(chance.mean()), share)


def in_tables(reward: RewardFunction, truth: RewardFunction | None, tables: Tables) -> Taught:
    """Solve a table for a reward and for the true one."""
    mdp = tables.mdp
    true = tables.reward if truth is None else table_of(truth, mdp, tables.observations)
    policies = mdp.optimal_policy(true), mdp.optimal_policy(table_of(reward, mdp, tables.observations)), mdp.uniform()
    best, learned, random = (mdp.policy_return(true, policy) for policy in policies)
    gain = best - random
    share = (learned - random) / gain if gain > 1e-6 * max(1.0, abs(best)) else None
    return Taught(True, best, learned, random, None if share is None else MeanEstimate(share, share, share))


def share_of_gain(chance: FloatArray, best: FloatArray, learned: FloatArray) -> MeanEstimate | None:
    """Return the share of the gain over random actions that a policy gets, with its interval (Fieller 1954).

    The interval holds the shares s for which the mean of ``learned - chance - s * (best - chance)`` is within `SURE` standard
    errors of 0: those that these returns, by start, ``[episodes]``, can't rule out. None if the best policy has no sure gain.
    """
    more, most = learned - chance, best - chance
    mean, gain = float(more.mean()), float(most.mean())
    covariance = np.cov(more, most) / len(most)
    a, b = gain**2 - SURE**2 * covariance[1, 1], mean * gain - SURE**2 * covariance[0, 1]
    c = mean**2 - SURE**2 * covariance[0, 0]
    if gain <= 0 or a <= 0:
        return None
    half = float(np.sqrt(max(b**2 - a * c, 0.0)))
    return MeanEstimate(mean / gain, (b - half) / a, (b + half) / a)


class ShortPolicy:
    """A policy on vectors or numbers: two MLPs, for the action and for the value."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]):
        self.action_space = action_space
        self.states = int(observation_space.n) if isinstance(observation_space, gym.spaces.Discrete) else 0
        self.first = int(action_space.start) if isinstance(action_space, gym.spaces.Discrete) else 0
        width = self.states or int(np.prod(observation_space.shape or ()))
        vectors = gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.network = ActorCriticNetwork(vectors, action_space, PolicyShape())

    @torch.no_grad()
    def inputs(self, observations: Array) -> Tensor:
        """Convert observations ``[n, …]`` to the networks' inputs ``[n, size]``: one-hot for numbers."""
        if self.states:
            return torch.nn.functional.one_hot(torch.as_tensor(np.asarray(observations, np.int64)), self.states).float()
        return self.network.encode(torch.as_tensor(np.array(observations, np.float32)).flatten(1))

    @torch.no_grad()
    def act(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw actions; without a generator, take the means of Box actions."""
        outputs = self.network.distribution(inputs)
        return best(outputs, self.action_space) if generator is None else sample(outputs, self.action_space, generator)

    def to_env(self, actions: Tensor) -> Array:
        """Convert drawn actions to those of the environment."""
        return to_env_actions(actions.numpy(), self.action_space) + self.first


def train(environment: str, reward: RewardFunction | None, *, steps: int, gamma: float, seed: int) -> ShortPolicy:
    """Train a policy on a reward (None: the environment's own); observations are vectors or numbers."""
    envs = make_vector_env(environment, COPIES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = ShortPolicy(envs.single_observation_space, envs.single_action_space)
        update = PPOUpdate(policy.network, envs.single_action_space)
        optimizer = FlatAdam(update.flat, lr=LEARNING_RATE, eps=1e-5)
        orders = torch.Generator()  # of its own: an environment may seed torch's
        orders.set_state(torch.get_rng_state())
        rollouts = _Rollouts(envs, policy, reward, gamma, seed)
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

    def __init__(self, envs: Any, policy: ShortPolicy, reward: RewardFunction | None, gamma: float, seed: int):
        self.envs, self.policy, self.reward, self.gamma = envs, policy, reward, gamma
        self.generator = torch.Generator().manual_seed(seed)
        self.observations, _ = envs.reset(seed=seed)
        self.reset = np.zeros(COPIES, bool)
        self.discounted, self.square = np.zeros(COPIES), 1e-8
        self.recent = RecentDeviation()

    def collect(self, update: PPOUpdate) -> PPORows:
        """Sample a rollout; return its steps without those that only reset."""
        policy, network = self.policy, self.policy.network
        inputs, actions, rewards, real, terminated, truncated = [], [], [], [], [], []
        for _ in range(ROLLOUT):
            inputs.append(policy.inputs(self.observations))
            actions.append(policy.act(inputs[-1], self.generator))
            rewarded, ended, cut = self._step(policy.to_env(actions[-1]))
            rewards.append(rewarded)
            real.append(~self.reset)
            terminated.append(ended)
            truncated.append(cut)
            self.reset = ended | cut
        inputs.append(policy.inputs(self.observations))
        values = update.values_of(torch.cat(inputs)).view(ROLLOUT + 1, COPIES)
        scaled, cuts = np.stack(rewards) / self.square**0.5, np.stack(truncated) | ~np.stack(real)
        estimates = advantages(scaled, values.numpy(), np.stack(terminated), cuts, gamma=self.gamma, decay=GAE)
        counted = torch.as_tensor(np.stack(real))
        read, drawn, gains, before = (
            column[counted]
            for column in (torch.stack(inputs[:-1]), torch.stack(actions), torch.as_tensor(estimates), values[:-1])
        )
        with torch.no_grad():
            chosen = log_probability(network.distribution(read), drawn, policy.action_space)
        standardised = (gains - gains.mean()) / (gains.std() + 1e-8) * self.recent.share(gains)
        return PPORows(read, drawn, chosen, standardised, gains + before, before)

    def _step(self, actions: Array) -> tuple[FloatArray, BoolArray, BoolArray]:
        after, rewarded, terminated, truncated, _ = self.envs.step(actions)
        if self.reward is not None:
            rewarded = self.reward(self.observations, actions, after, np.asarray(terminated, bool))
        rewarded = np.asarray(rewarded, np.float64)
        self.discounted = np.where(self.reset, 0, self.discounted * self.gamma + rewarded)
        self.square = max(self.square, 1e-8) * 0.999 + 0.001 * float(np.mean(self.discounted**2))
        self.observations = after
        return rewarded, terminated, truncated


def true_returns(
    environment: str, policy: ShortPolicy | None, *, episodes: int, seed: int, truth: RewardFunction | None = None
) -> FloatArray:
    """Measure the undiscounted true returns of the first episodes of each copy, by start; of random actions without a policy.

    ``truth``: the true reward, if that is not the environment's own.

    Returns:
        ``[episodes]``, rounded up to a multiple of the copies: the returns of all copies' first episodes, then of their second,
        and so on. With one seed, episodes in one place have the same start if the environment draws nothing but starts.
    """
    copies = min(COPIES, episodes)
    envs = make_vector_env(environment, copies)
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
