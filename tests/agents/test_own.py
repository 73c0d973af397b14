"""Agents of a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.agents.agent import MEMORY, Agent, AgentStep
from rlhf_ray.agents.own import CarefulAgent, FunctionAgent, own_agent
from rlhf_ray.data.errors import BrokenAgentError, SettingError
from rlhf_ray.data.modules import look_in

OBSERVATIONS = gym.spaces.Box(-1.0, 1.0, (2,))
ACTIONS: gym.Space[Any] = gym.spaces.Discrete(2)

MODULE = """
import torch
from rlhf_ray.agents.own import FunctionAgent

def planted(observation_space, action_space):
    return FunctionAgent(lambda seen, memory: (torch.stack([memory[:, 0], -memory[:, 0]], 1), seen[:, 0]), observation_space,
                         action_space, remember=lambda seen, memory: memory + seen[:, :1], memory_size=1, name="planted")

nothing = 3

def blind(observation_space, action_space):
    return FunctionAgent(lambda seen, memory: (seen[:, 7:], seen[:, 0]), observation_space, action_space)


def nan(observation_space, action_space):
    return FunctionAgent(lambda seen, memory: (seen[:, :2] * float("nan"), seen[:, 0]), observation_space, action_space)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    import sys

    (tmp_path / "planted_agents.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "planted_agents", raising=False)
    look_in(tmp_path)
    return "planted_agents"


def test_an_agent_of_functions_remembers_and_its_memory_can_be_edited_before_it_decides(module: str) -> None:
    agent = own_agent(f"{module}:planted", OBSERVATIONS, ACTIONS)
    seen = torch.tensor([[0.5, 0.0]])
    first = agent.step(seen, agent.initial_memory(1))
    second = agent.step(seen, first.memory)
    assert second.memory.item() == 1.0
    edited = agent.step(seen, first.memory, edits={MEMORY: torch.zeros_like})
    assert edited.logits.abs().max() == 0
    assert agent.fresh(0) is None
    assert own_agent(f"{module}:planted", OBSERVATIONS, ACTIONS).digest == agent.digest


def test_what_the_functions_ignore_has_the_gradient_0() -> None:
    agent = FunctionAgent(
        lambda seen, memory: (torch.ones(len(seen), 2), torch.full((len(seen),), torch.inf)),
        OBSERVATIONS,
        ACTIONS,
        remember=lambda seen, memory: torch.ones_like(memory),
        memory_size=3,
    )
    seen, memory = torch.ones(2, 2, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    step = agent.step(seen, memory)
    for output in (step.logits, step.memory):
        for found in torch.autograd.grad(output.sum(), (seen, memory), retain_graph=True):
            assert found.abs().sum() == 0
    assert step.value.isinf().all()


@pytest.mark.parametrize(
    ("name", "says"), [("nothing", "is int without 'name'"), ("blind", "does not act on"), ("nan", "returns NaN")]
)
def test_what_is_no_agent_for_the_environment_is_refused_in_one_line(module: str, name: str, says: str) -> None:
    with pytest.raises(BrokenAgentError if name == "nan" else SettingError, match=says) as refused:
        own_agent(f"{module}:{name}", OBSERVATIONS, ACTIONS)
    assert "\n" not in str(refused.value)


def test_other_functions_are_another_agent() -> None:
    def agent(sign: float) -> FunctionAgent:
        return FunctionAgent(lambda seen, memory: (sign * seen, seen[:, 0]), OBSERVATIONS, ACTIONS)

    def rare(sign: float) -> FunctionAgent:  # they differ where no random observation is
        return FunctionAgent(
            lambda seen, memory: (sign * seen.sub(0.5).eq(0).float(), seen[:, 0]), OBSERVATIONS, ACTIONS
        )

    for make in (agent, rare):
        assert make(1.0).digest == make(1.0).digest != make(-1.0).digest
    assert np.prod(agent(1.0).initial_memory(3).shape) == 0


class Counting:
    """An agent of a user's own class: it works in place, and its layer keeps statistics in training mode."""

    name, digest, memory_size, layers = "counting", "0" * 16, 1, ()

    def __init__(self) -> None:
        self.norm = torch.nn.BatchNorm1d(2)

    def initial_memory(self, n: int) -> torch.Tensor:
        return torch.zeros(n, 1)

    def step(self, observations: torch.Tensor, memory: torch.Tensor, *, edits: Any = (), keep: Any = ()) -> AgentStep:
        memory += 1
        observations *= 2
        self.norm(torch.cat([observations, observations + 1]))
        return AgentStep(observations - self.norm.running_mean, memory[:, 0], memory)

    def fresh(self, seed: int) -> None:
        return None


def test_an_agent_that_works_in_place_or_keeps_statistics_answers_the_same_twice() -> None:
    def doubling(seen: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.mul_(2)
        memory.add_(1)
        return seen, memory[:, 0]

    def remembering(seen: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        seen.zero_()
        return memory.add_(1)

    agents: list[Agent] = [
        CarefulAgent(Counting(), OBSERVATIONS, ACTIONS),  # type: ignore[arg-type]
        FunctionAgent(doubling, OBSERVATIONS, ACTIONS, remember=remembering, memory_size=1),
    ]
    for agent in agents:
        seen, memory = torch.tensor([[0.5, -0.25]]), torch.tensor([[3.0]])
        first, second = agent.step(seen, memory), agent.step(seen, memory)
        assert seen.tolist() == [[0.5, -0.25]]
        assert memory.tolist() == [[3.0]]
        assert torch.equal(first.logits, second.logits)
        assert first.memory.tolist() == [[4.0]]
    assert agents[1].step(seen, memory).logits.tolist() == [[1.0, -0.5]]
