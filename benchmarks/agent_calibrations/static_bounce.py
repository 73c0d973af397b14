"""A world model in StaticBounce: errors and rewards over long horizons (AT6)."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym
import numpy as np
import torch

from benchmarks.agent_calibrations import Row
from benchmarks.agent_calibrations.world_model import HELD_OUT, STEPS, EpisodeWindows, bounded
from examples.worlds.static_bounce import sticky_actions
from rlhf_ray.agents.agent import Agent, NetworkAgent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.envs.batches import make_batch
from rlhf_ray.interpret.agent.world_model.quality import measure
from rlhf_ray.interpret.agent.world_model.training import WorldTraining, train_world
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape

BOUNCE = "rlhf_ray/StaticBounce-v0"
TRAIN = range(1000)
BATCHES = 7000


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure AT6 for each of ``seeds``."""
    torch.set_num_threads(1)
    return [row for seed in seeds for row in _of(seed)]


def _of(seed: int) -> list[Row]:
    batch = make_batch(BOUNCE, 1)
    spaces = batch.observation_space, batch.action_space
    agent = NetworkAgent(ActorCriticNetwork(*spaces, PolicyShape("small", features=8)), *spaces)
    settings = WorldTraining(batches=BATCHES, seed=seed)
    world = train_world(agent, EpisodeWindows(_sticky(agent, TRAIN, seed), settings.length), settings)
    quality = measure(world, agent, _sticky(agent, HELD_OUT, seed + 1000), steps=STEPS)
    found = {
        "k=1 ratio": (quality.ratio(1), 0.20, False),
        "k=4 ratio": (quality.ratio(4), 0.10, False),
        "k=23 ratio": (quality.ratio(23), 0.20, False),
        "k=23 skill": (quality.skill(23), 0.75, True),
        "reward AUC": (quality.reward[0], 0.93, True),
    }
    return [bounded("AT6", f"StaticBounce, {name}, seed {seed}", *of) for name, of in found.items()]


def _sticky(agent: Agent, levels: Sequence[int], seed: int) -> Episodes:
    """Play StaticBounce with sticky random actions."""
    n, steps = len(levels), 60
    batch = make_batch(BOUNCE, n)
    actions = sticky_actions(np.random.default_rng(seed), n, steps)
    seen, rewards = [batch.reset(levels)], []
    for t in range(steps):
        step = batch.step(actions[:, t])
        seen.append(step.observations)
        rewards.append(step.rewards)
    assert isinstance(agent.action_space, gym.spaces.Discrete)
    return Episodes(
        observations=np.stack(seen, 1),
        actions=actions,
        logits=np.zeros((n, steps, int(agent.action_space.n)), np.float32),
        values=np.zeros((n, steps), np.float32),
        memory=np.zeros((n, steps + 1, agent.memory_size), np.float32),
        rewards=np.stack(rewards, 1),
        lengths=np.full(n, steps),
        terminated=np.zeros(n, bool),
        truncated=np.ones(n, bool),
        causes=[""] * n,
        levels=np.asarray(levels),
    )
