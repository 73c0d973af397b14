"""Planted dynamics and behaviours: series whose rules are known, and an agent whose memory follows them exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import MEMORY, Agent, AgentStep, Edit
from rlhf_ray.data.arrays import Array, FloatArray, IntArray

CLUSTERS, SIZE = 4, 5


def matrices(seed: int) -> FloatArray:
    """Return one matrix ``[to, from]`` for each cluster, ``[4, 5, 5]``, with a spectral radius of 0.8."""
    rng = np.random.default_rng([seed, 0x21])
    found = rng.normal(size=(CLUSTERS, SIZE, SIZE)) * (rng.random((CLUSTERS, SIZE, SIZE)) < 0.6)
    radii = np.abs(np.linalg.eigvals(found)).max(1)
    scaled: FloatArray = 0.8 * found / np.maximum(radii, 1e-3)[:, None, None]
    return scaled


@dataclass(frozen=True)
class Series:
    """Scores ``[episodes, T, k]`` and the cluster of each step ``[episodes, T]``, which rules the step after it."""

    scores: FloatArray
    labels: IntArray


def series(rules: FloatArray, seed: int, episodes: int = 60, steps: int = 60, stay: int = 15) -> Series:
    """Draw series that follow ``rules`` with noise of variance 1; the cluster changes every ``stay`` steps."""
    rng = np.random.default_rng([seed, 0x22])
    segments = rng.integers(len(rules), size=(episodes, -(-steps // stay)))
    labels = np.repeat(segments, stay, 1)[:, :steps]
    scores = np.zeros((episodes, steps, rules.shape[1]))
    scores[:, 0] = rng.normal(size=scores[:, 0].shape)
    for t in range(steps - 1):
        noise = rng.normal(size=scores[:, 0].shape)
        scores[:, t + 1] = np.einsum("nij,nj->ni", rules[labels[:, t]], scores[:, t]) + noise
    return Series(scores, labels)


class LinearMemory:
    """An agent whose memory follows the rule that its observation names: one-hot of the cluster, then what is added."""

    def __init__(self, rules: FloatArray):
        self.rules = torch.as_tensor(rules, dtype=torch.float32)
        self.name, self.digest = "linear memory", "0" * 16
        self.memory_size = rules.shape[1]
        width = len(rules) + rules.shape[1]
        self.observation_space: gym.Space = gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(2)
        self.layers: Sequence[str] = []

    def initial_memory(self, n: int) -> Tensor:
        """Return zeros."""
        return torch.zeros(n, self.memory_size)

    def step(
        self, observations: Tensor, memory: Tensor, *, edits: Mapping[str, Edit] = {}, keep: Sequence[str] = ()
    ) -> AgentStep:
        """Take one step; the action depends on the first unit."""
        which, added = observations[:, : len(self.rules)].float(), observations[:, len(self.rules) :].float()
        after = torch.einsum("nc,cij,nj->ni", which, self.rules, memory) + added
        if MEMORY in edits:
            after = edits[MEMORY](after)
        logits = torch.stack([torch.zeros_like(after[:, 0]), after[:, 0]], 1)
        return AgentStep(logits, after[:, 0], after)

    def fresh(self, seed: int) -> Agent | None:
        """Return None: there are no weights."""
        return None


def seen(labels: Array, rules: FloatArray) -> FloatArray:
    """Return the observations ``[n, …]`` that name the clusters ``labels`` ``[n]``, with nothing added."""
    one_hot: FloatArray = np.eye(len(rules))[labels]
    return np.concatenate([one_hot, np.zeros((len(labels), rules.shape[1]))], 1).astype(np.float32)


def behaving(seed: int, episodes: int = 40, steps: int = 40) -> tuple[dict[str, FloatArray], IntArray]:
    """Return memory, world states and actions of four planted behaviours that take turns, and the behaviour of each step.

    Each behaviour has its own course over 5 steps in memory, its own level in the world's state, and its own actions.
    """
    rng = np.random.default_rng([seed, 0x23])
    stay = 5
    labels = np.repeat(rng.integers(4, size=(episodes, steps // stay)), stay, 1)
    courses = rng.normal(size=(4, stay, 8))
    levels = rng.normal(size=(4, 12))
    phase = np.arange(steps) % stay
    memory = courses[labels, phase] + 0.3 * rng.normal(size=(episodes, steps, 8))
    world = levels[labels] + 0.5 * rng.normal(size=(episodes, steps, 12))
    chances = 0.7 * np.eye(4)[labels] + 0.075
    actions = np.array([[rng.choice(4, p=each / each.sum()) for each in row] for row in chances])
    return {"memory": memory, "world": world, "actions": np.eye(4)[actions]}, labels
