"""From model to reality: in a world model that is exact, each intervention does what it does in the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.agents.moments import draw_moments
from rlhf_ray.agents.play import play
from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.envs.batch import BatchStep
from rlhf_ray.interpret.agent.counterfactual import go_on, snapshots_of
from rlhf_ray.interpret.agent.world_model.played import play_in_world
from rlhf_ray.interpret.directions.interventions import Intervention, patch_from
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.env_actions import to_policy_actions
from tests.interpret.agent.directions import linear, oblique

SEEN, STEPS = 5, 12
OBSERVED = gym.spaces.Box(-10.0, 10.0, (SEEN,), np.float32)
SPACES: dict[str, gym.Space[Any]] = {"discrete": gym.spaces.Discrete(4), "box": gym.spaces.Box(-3.0, 1.0, (2,))}
A, B = (torch.randn(*shape, generator=torch.Generator().manual_seed(0)) for shape in ((SEEN, SEEN), (4, SEEN)))


def following(state: Tensor, actions: Tensor) -> Tensor:
    return 2.0 * torch.sin(state @ A + 1.5 * actions @ B[: actions.shape[1]])


class Exact:
    """The world: its state is what is seen."""

    size, context, digest, agent = SEEN, 2, "exact", "any"

    def begin(self, observations: Tensor, actions: Tensor) -> Tensor:
        return observations[:, -1]

    def next(self, state: Tensor, actions: Tensor) -> Tensor:
        return following(state, actions)

    def observe(self, state: Tensor) -> Tensor:
        return state

    def reward(self, state: Tensor) -> Tensor:
        return state[:, 0]

    def end(self, state: Tensor) -> Tensor:
        return 0.0 * state[:, 0] - 1.0


class Real:
    """The environment."""

    edits: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, n: int, space: gym.Space[Any]):
        self.name, self.n, self.observation_space, self.action_space = "Real", n, OBSERVED, space
        self.action_names: list[str] = []

    def reset(self, levels: Sequence[int]) -> Array:
        self.seen = np.stack([np.random.default_rng(level).normal(size=SEEN) for level in levels]).astype(np.float32)
        self.made = np.zeros(self.n, int)
        return self.seen

    def step(self, actions: Array) -> BatchStep:
        if isinstance(self.action_space, gym.spaces.Discrete):
            inputs = np.eye(4, dtype=np.float32)[actions]
        else:
            inputs = to_policy_actions(actions, self.action_space).astype(np.float32)
        self.seen = following(torch.as_tensor(self.seen), torch.as_tensor(inputs)).numpy()
        self.made += 1
        over = self.made >= STEPS
        return BatchStep(self.seen, self.seen[:, 0].astype(float), np.zeros(self.n, bool), over, [""] * self.n)

    def states(self) -> list[bytes]:
        return [seen.tobytes() + bytes([made]) for seen, made in zip(self.seen, self.made, strict=True)]

    def restore(self, states: Sequence[bytes]) -> Array:
        self.seen = np.stack([np.frombuffer(state[:-1], np.float32) for state in states])
        self.made = np.array([state[-1] for state in states])
        return self.seen

    def describe(self) -> dict[str, Array]:
        return {}

    def masks(self) -> dict[str, BoolArray]:
        return {}

    def close(self) -> None:
        pass


@pytest.mark.parametrize("acts", SPACES)
@pytest.mark.parametrize("memory", ["gru", "lstm", "none"])
def test_an_exact_world_model_transfers_every_intervention(memory: Any, acts: str) -> None:
    torch.manual_seed(0)
    space = SPACES[acts]
    network = ActorCriticNetwork(OBSERVED, space, PolicyShape(hidden=(8,), memory=memory, memory_units=6))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    agent = NetworkAgent(network, OBSERVED, space)
    site = "memory" if agent.memory_size else "actor.1"
    size = agent.memory_size or 8
    keep = [] if agent.memory_size else [site]
    episodes = play(agent, Real(6, space), range(6), keep_states=True, keep=keep)  # type: ignore[arg-type]
    moments = draw_moments(agent, episodes, 20, np.random.default_rng(0), context=2)
    moments = moments[moments.steps < STEPS - 3]
    snapshots = snapshots_of(episodes, moments.rows, moments.steps)

    def both(changes: Sequence[Intervention]) -> tuple[Array, Array]:
        real, _ = go_on(agent, lambda n: Real(n, space), snapshots, interventions=changes, steps=3)  # type: ignore[arg-type,return-value]
        model = play_in_world(Exact(), agent, moments, 3, changes)
        np.testing.assert_allclose(model.actions, real.actions, atol=1e-4)
        return real.logits, model.logits

    plain = both(())[0]
    directions, alone = oblique(size, 3), linear(np.random.default_rng(1).normal(size=(1, size)), np.zeros(size))
    patch = patch_from(episodes, directions, [2], np.arange(6)[::-1], site)
    for change in (
        Intervention(directions, [0], "ablate_mean", site=site),
        Intervention(directions, [1], "ablate_midpoint", amount=0.5, site=site),
        Intervention(directions, [0, 2], "swap", site=site),
        Intervention(alone, [0], "reflect", amount=0.2, site=site),
        Intervention(directions, [1, 2], "scale", amount=-1.0, site=site, when=range(4, 7)),
        Intervention(alone, [0], "steer", amount=1.0, site=site, when=lambda steps, scores: steps % 2 == 0),
        Intervention(directions, [2], "patch", amount=patch, site=site),
    ):
        real, model = both([change])
        np.testing.assert_allclose(model, real, atol=1e-3, err_msg=change.name)
        assert np.abs(real - plain).max() > 0.01, change.name
