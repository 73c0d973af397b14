"""The whole method in one file: an agent learns Pendulum from 200 answers to "which of these two clips is better?".

    pip install gymnasium torch
    python examples/method.py --seed 1

Christiano et al. (2017), "Deep reinforcement learning from human preferences", with PPO, in plain gymnasium and torch. To be read
from top to bottom in ten minutes: environment, clips, answers, reward, PPO, and `learn`, which joins them. Nothing is imported from
rlhf_ray; the numbers are those of its preset `pendulum`, and a test compares the true returns of both. The agent never sees the
environment's reward: only the teacher does, who answers in place of a person. Takes half a minute.
"""

import argparse
import math
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

# Budget.
ENV_STEPS, COMPARISONS = 100_000, 200
FIRST_COMPARISONS = 150  # about clips of random actions, which show all of this task
STEEPNESS = 6.0  # of the schedule: later comparisons are asked at a rate ∝ 1 / (1 + 6t), t from 0 to 1

# Environment and clips.
COPIES, EPISODE = 16, 200  # an iteration is one episode of each copy
LENGTH, POOL = 10, 4_000  # steps of a clip; clips to draw pairs from

# The reward model: an ensemble of MLPs.
MEMBERS, BATCH = 3, 32
FIRST_UPDATES, UPDATES = 200, 20  # gradient steps of the first fit, and of each later one
BOOTSTRAP = 0.8  # share of the comparisons that a member is fitted to
AVERAGED = 50  # a fit publishes the moving average of its weights over about so many gradient steps

# PPO.
EPOCHS, MINIBATCH = 10, 256
GAMMA, LAMBDA, CLIP, VALUE_COEFFICIENT, LARGEST_NORM = 0.98, 0.9, 0.2, 0.5, 0.5
LEARNING_RATE = 2e-3  # falls linearly to 0


# Environment: copies of Pendulum, stepped together.


class Envs:
    """Copies of Pendulum. Observations are cosine and sine of the angle and the angular velocity; actions are torques in ±2."""

    def __init__(self, seed: int):
        self.envs = [gym.make("Pendulum-v1", disable_env_checker=True) for _ in range(COPIES)]
        self.seeds = np.random.default_rng(seed)

    def episode(self, act) -> "Episodes":
        """Play one episode in each copy; ``act`` maps observations ``[copies, 3]`` to torques ``[copies, 1]``."""
        seen = np.stack([env.reset(seed=int(self.seeds.integers(2**31)))[0] for env in self.envs])
        observations, actions, rewards = [seen], [], []
        for _ in range(EPISODE):
            torques = act(seen)
            stepped = [env.step(torque) for env, torque in zip(self.envs, np.clip(torques, -2.0, 2.0), strict=True)]
            seen = np.stack([step[0] for step in stepped])
            observations.append(seen)
            actions.append(torques)
            rewards.append([step[1] for step in stepped])
        return Episodes(
            torch.as_tensor(np.stack(observations, 1), dtype=torch.float32),
            torch.as_tensor(np.stack(actions, 1), dtype=torch.float32),
            torch.as_tensor(np.array(rewards).T),
        )


@dataclass
class Episodes:
    """Steps of several episodes, or of several clips, one after the other in each row."""

    observations: Tensor  # [n, steps + 1, 3]
    actions: Tensor  # [n, steps, 1]: torques as drawn; the environment clips them to ±2
    true_rewards: Tensor  # [n, steps]: for the teacher's eyes only

    def clips(self) -> "Episodes":
        """Cut into clips of `LENGTH` steps."""
        starts = range(0, self.actions.shape[1] - LENGTH + 1, LENGTH)
        return Episodes(
            torch.cat([self.observations[:, at : at + LENGTH + 1] for at in starts]),
            torch.cat([self.actions[:, at : at + LENGTH] for at in starts]),
            torch.cat([self.true_rewards[:, at : at + LENGTH] for at in starts]),
        )

    def features(self) -> Tensor:
        """What the reward of a step depends on: observation and action, ``[n, steps, 4]``."""
        return torch.cat([self.observations[:, :-1], self.actions.clamp(-2.0, 2.0) / 2.0], -1)

    def __getitem__(self, rows) -> "Episodes":
        return Episodes(self.observations[rows], self.actions[rows], self.true_rewards[rows])

    def __add__(self, other: "Episodes") -> "Episodes":
        parts = zip(vars(self).values(), vars(other).values(), strict=True)
        return Episodes(*(torch.cat(both) for both in parts))


# Answers: which of two clips is better?


def teacher(left: Episodes, right: Episodes) -> Tensor:
    """Answer in place of a person, by the true return: 1 if left is better, 0 if right is, 0.5 if they are equally good."""
    return (torch.sign(left.true_rewards.sum(1) - right.true_rewards.sum(1)).float() + 1.0) / 2.0


def due(progress: float) -> int:
    """How many comparisons are to be answered when this share of the training is done."""
    share = math.log(1.0 + STEEPNESS * progress) / math.log(1.0 + STEEPNESS)
    return FIRST_COMPARISONS + round((COMPARISONS - FIRST_COMPARISONS) * share)


# Reward: learned from the answers.


class RewardModel:
    """An ensemble of reward networks, fitted to comparisons."""

    def __init__(self):
        self.networks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 64), nn.LeakyReLU(), nn.Linear(64, 64), nn.LeakyReLU(), nn.Linear(64, 1))
            for _ in range(MEMBERS)
        )
        # The decay bounds the weights: a smooth reward can contradict a wrong answer.
        self.optimizer = torch.optim.AdamW(self.networks.parameters(), lr=2e-3, weight_decay=10.0)
        self.average = torch.optim.swa_utils.AveragedModel(self.networks, avg_fn=self._average)
        self.left = self.right = torch.zeros(0, LENGTH, 4)
        self.answers, self.counts = torch.zeros(0), torch.zeros(0, MEMBERS)

    @staticmethod
    def _average(mean: Tensor, new: Tensor, steps: Tensor) -> Tensor:
        return torch.lerp(mean, new, max(1.0 / (int(steps) + 1), 1.0 / AVERAGED))

    def add(self, left: Episodes, right: Episodes, answers: Tensor) -> None:
        """Add answered comparisons. Which members are fitted to one is drawn once and for all."""
        self.left = torch.cat([self.left, left.features()])
        self.right = torch.cat([self.right, right.features()])
        self.answers = torch.cat([self.answers, answers])
        self.counts = torch.cat([self.counts, (torch.rand(len(answers), MEMBERS) < BOOTSTRAP).float() / BOOTSTRAP])

    def fit(self, updates: int) -> None:
        """Fit all members to the comparisons: the better clip has the larger sum of rewards (Bradley and Terry)."""
        order = torch.zeros(0, dtype=torch.int64)
        for _ in range(updates):
            if not len(order):
                order = torch.randperm(len(self.answers))
            batch, order = order[:BATCH], order[BATCH:]
            clips = torch.stack([self.left[batch], self.right[batch]])  # [2, batch, steps, 4]
            losses = []
            for member, network in enumerate(self.networks):
                left, right = network(clips).squeeze(-1).sum(-1)
                loss = nn.functional.binary_cross_entropy_with_logits(
                    left - right, self.answers[batch], reduction="none"
                )
                losses.append((loss * self.counts[batch, member]).mean())
            self.optimizer.zero_grad()
            torch.stack(losses).sum().backward()
            self.optimizer.step()
            self.average.update_parameters(self.networks)
        with torch.no_grad():  # only differences of rewards were learned: the scale is ours to choose
            rewards = self._members(torch.cat([self.left, self.right]))
        self.mean, self.deviation = rewards.mean((1, 2), keepdim=True), rewards.std((1, 2), keepdim=True)

    def _members(self, features: Tensor) -> Tensor:
        return torch.stack([network(features).squeeze(-1) for network in self.average.module])

    @torch.no_grad()
    def __call__(self, episodes: Episodes) -> Tensor:
        """The learned reward of each step, ``[n, steps]``: the mean of the members, each with mean 0 and deviation 1."""
        return ((self._members(episodes.features()) - self.mean) / self.deviation).mean(0)


# The agent: PPO on the learned reward.


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights."""
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def mlp(gain: float) -> nn.Sequential:
    """An MLP with one output; ``gain`` scales its last layer."""
    root = math.sqrt(2.0)
    return nn.Sequential(layer(3, 64, root), nn.Tanh(), layer(64, 64, root), nn.Tanh(), layer(64, 1, gain))


class Agent(nn.Module):
    """A Gaussian policy and its value. Actions are in ±1, torques twice that."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic, self.log_std = mlp(0.01), mlp(1.0), nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.Adam(self.parameters(), lr=LEARNING_RATE)

    def policy(self, observations: Tensor) -> Normal:
        """The distribution of actions; the velocity of up to 8 is scaled to ±1, as all else is."""
        return Normal(self.actor(observations / torch.tensor([1.0, 1.0, 8.0])), self.log_std.exp())

    def value(self, observations: Tensor) -> Tensor:
        """The expected discounted sum of learned rewards."""
        return self.critic(observations / torch.tensor([1.0, 1.0, 8.0])).squeeze(-1)

    @torch.no_grad()
    def sampled(self, observations: np.ndarray) -> np.ndarray:
        """Draw torques for observations."""
        return 2.0 * self.policy(torch.as_tensor(observations, dtype=torch.float32)).sample().numpy()

    @torch.no_grad()
    def best(self, observations: np.ndarray) -> np.ndarray:
        """The most likely torques."""
        return 2.0 * self.policy(torch.as_tensor(observations, dtype=torch.float32)).mean.numpy()

    def learn(self, episodes: Episodes, rewards: Tensor, progress: float) -> None:
        """Update policy and value on episodes with learned ``rewards``."""
        drawn = episodes.actions / 2.0
        with torch.no_grad():
            values = self.value(episodes.observations)
            before = self.policy(episodes.observations[:, :-1]).log_prob(drawn).sum(-1)
        advantages, running = torch.zeros_like(rewards), torch.zeros(len(rewards))
        for step in reversed(range(EPISODE)):  # no episode of Pendulum ends: the last value counts, too
            error = rewards[:, step] + GAMMA * values[:, step + 1] - values[:, step]
            advantages[:, step] = running = error + GAMMA * LAMBDA * running
        targets = (advantages + values[:, :-1]).flatten()
        advantages = ((advantages - advantages.mean()) / advantages.std(correction=0)).flatten()
        observations, drawn, before = episodes.observations[:, :-1].flatten(0, 1), drawn.flatten(0, 1), before.flatten()
        self.optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1.0 - progress)
        orders = torch.cat([torch.randperm(len(targets)) for _ in range(EPOCHS)])
        for rows in orders.split(MINIBATCH):
            ratio = (self.policy(observations[rows]).log_prob(drawn[rows]).sum(-1) - before[rows]).exp()
            clipped = ratio.clamp(1.0 - CLIP, 1.0 + CLIP)
            gain = torch.min(advantages[rows] * ratio, advantages[rows] * clipped).mean()
            error = (self.value(observations[rows]) - targets[rows]).square().mean()
            self.optimizer.zero_grad()
            (VALUE_COEFFICIENT * error - gain).backward()
            nn.utils.clip_grad_norm_(self.parameters(), LARGEST_NORM)
            self.optimizer.step()


# The method.


def learn(seed: int, say=print) -> Agent:
    """Learn a reward from comparisons, and an agent from the reward, at the same time."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    envs, agent, reward = Envs(seed), Agent(), RewardModel()
    iterations = ENV_STEPS // (COPIES * EPISODE) - 1

    # Clips of random actions, and the first comparisons.
    pool = envs.episode(lambda seen: rng.uniform(-2.0, 2.0, (COPIES, 1))).clips()
    for iteration in range(iterations + 1):
        # Ask which of two clips is better, and fit the reward to all answers so far.
        missing = due(iteration / iterations) - len(reward.answers)
        order = torch.as_tensor(rng.permutation(len(pool.actions)))
        left, right = order[:missing], order.roll(1)[:missing]
        reward.add(pool[left], pool[right], teacher(pool[left], pool[right]))
        reward.fit(UPDATES if iteration else FIRST_UPDATES)
        if iteration == iterations:
            break

        # Act, keep clips of it, and learn from the learned reward.
        episodes = envs.episode(agent.sampled)
        pool = (pool + episodes.clips())[-POOL:]
        agent.learn(episodes, reward(episodes), iteration / iterations)
        if iteration % 10 == 0:
            say(
                f"iteration {iteration}: true return {episodes.true_rewards.sum(1).mean():.0f}, {len(reward.answers)} answers"
            )
    return agent


def true_return(agent: Agent, seed: int = 0) -> float:
    """The mean true return of the most likely actions."""
    envs = Envs(1_000_000 + seed)
    return float(torch.cat([envs.episode(agent.best).true_rewards.sum(1) for _ in range(3)]).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    print(f"true return after learning: {true_return(learn(parser.parse_args().seed)):.0f}")
