"""Play episodes with an agent and keep what goes on inside: a plain loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlhf_ray.data.arrays import Array
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.agent import Agent
from rlhf_ray.interpret.agent.episodes import Episodes
from rlhf_ray.policies.actions import best, sample
from rlhf_ray.policies.env_actions import to_env_actions


@torch.no_grad()
def play(
    agent: Agent,
    batch: EnvBatch,
    levels: Sequence[int],
    *,
    greedy: bool = True,
    epsilon: float = 0.0,
    seed: int = 0,
    max_steps: int | None = None,
    keep: Sequence[str] = (),
    keep_states: bool = False,
) -> Episodes:
    """Play one episode of each of at most ``batch.n`` levels."""
    count = len(levels)
    given = [*levels, *([levels[-1]] * (batch.n - count))]
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    batch.action_space.seed(seed)
    memory = agent.initial_memory(batch.n)
    observations = batch.reset(given)
    over = np.zeros(batch.n, bool)
    lengths = np.zeros(batch.n, np.int64)
    frames: list[dict[str, Any]] = []
    steps: list[dict[str, Array]] = []
    ended: Any = None
    while True:
        at: dict[str, Any] = {
            "observation": np.array(observations),
            "memory": memory.numpy().copy(),
            "said": batch.describe(),
        }
        if keep_states:
            at["blobs"] = batch.states()
        frames.append(at)
        if over[:count].all() or (max_steps is not None and len(steps) >= max_steps):
            break
        step = agent.step(torch.as_tensor(observations), memory, keep=keep)
        chosen = best(step.logits, batch.action_space) if greedy else sample(step.logits, batch.action_space, generator)
        actions = to_env_actions(chosen.numpy(), batch.action_space)
        for i in np.flatnonzero(rng.random(batch.n) < epsilon):
            actions[i] = batch.action_space.sample()
        lengths += ~over
        ended = batch.step(actions)
        steps.append(
            {
                "action": actions,
                "reward": np.array(ended.rewards),
                "logits": step.logits.numpy(),
                "value": step.value.numpy(),
                **{f"a.{name}": values.numpy() for name, values in step.activations.items()},
            }
        )
        memory, observations = step.memory, ended.observations
        over = np.asarray(ended.terminated | ended.truncated)

    def of(parts: list[dict[str, Any]], name: str) -> Array:
        return np.stack([each[name] for each in parts], 1)[:count]

    return Episodes(
        observations=of(frames, "observation"),
        actions=of(steps, "action"),
        logits=of(steps, "logits"),
        values=of(steps, "value"),
        memory=of(frames, "memory"),
        rewards=of(steps, "reward"),
        lengths=lengths[:count],
        terminated=np.array(ended.terminated)[:count],
        truncated=np.array(ended.truncated)[:count],
        causes=list(ended.causes)[:count],
        levels=np.array(levels, np.int64),
        states={name: np.stack([each["said"][name] for each in frames], 1)[:count] for name in frames[0]["said"]},
        activations={name: of(steps, f"a.{name}") for name in keep},
        env_states=[[each["blobs"][i] for each in frames] for i in range(count)] if keep_states else (),
    )
