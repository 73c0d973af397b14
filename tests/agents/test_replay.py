"""An agent along episodes that it did not choose."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.agents.agent import MEMORY, NetworkAgent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import replay, site_of, values_at
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape

SPACES: tuple[gym.Space[Any], gym.Space[Any]] = gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Discrete(2)


def agent(memory: str, seed: int = 0) -> NetworkAgent:
    torch.manual_seed(seed)
    network = ActorCriticNetwork(*SPACES, PolicyShape(hidden=(4,), memory=memory, memory_units=5))  # type: ignore[arg-type]
    return NetworkAgent(network, *SPACES)


def episodes(n: int = 3, steps: int = 6) -> Episodes:
    rng = np.random.default_rng(0)
    return Episodes(
        observations=rng.uniform(-1, 1, (n, steps + 1, 3)).astype(np.float32),
        actions=np.zeros((n, steps), np.int64),
        logits=np.zeros((n, steps, 2)),
        values=np.zeros((n, steps)),
        memory=np.zeros((n, steps + 1, 0)),
        rewards=np.zeros((n, steps)),
        lengths=np.array([steps, 2, 4])[:n],
        terminated=np.ones(n, bool),
        truncated=np.zeros(n, bool),
        causes=[""] * n,
        levels=np.arange(n),
    )


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_a_replay_is_what_the_agent_computes_step_by_step(memory: str) -> None:
    of, given = agent(memory), episodes()
    found = replay(of, given, [of.layers[0]])
    state = of.initial_memory(1)
    for t in range(4):
        step = of.step(torch.as_tensor(given.observations[2:, t]), state)
        state = step.memory
        np.testing.assert_allclose(found.logits[2, t], step.logits[0], atol=1e-6)
        np.testing.assert_allclose(found.memory[2, t + 1], state[0], atol=1e-6)
    np.testing.assert_array_equal(found.memory[1, 2], found.memory[1, 6])  # nothing happens after the end


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_place_to_look_is_memory_or_the_last_layer_before_the_heads_outputs(memory: str) -> None:
    of, given = agent(memory), episodes()
    assert (site_of(of) == MEMORY) == (memory == "gru")
    values = values_at(of, replay(of, given))
    assert values.shape == (3, 6, 5 if memory == "gru" else 4)
    assert values.std(axis=(0, 1)).min() > 0
