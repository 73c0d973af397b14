"""What of a memory was there before the step: agents whose update is written down, so that the share is known."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.interpret.agent.chains import ChainMoments, scores_at
from rlhf_ray.interpret.agent.recall import FEWEST, recalled
from rlhf_ray.interpret.agent.story import origin
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.measure.intervals import MeanEstimate

SIZE, N = 4, 300
FIRST = Directions("probe", ["one"], np.zeros(SIZE), np.eye(1, SIZE), np.eye(1, SIZE), np.zeros((0, 1)), np.zeros(1))


def agent_that_writes(remember: Callable[[Tensor, Tensor], Tensor]) -> FunctionAgent:
    """Write what it sees to its memory so."""
    return FunctionAgent(
        lambda seen, memory: (torch.stack([memory[:, 0], -memory[:, 0]], 1), memory[:, 0]),
        gym.spaces.Box(-9.0, 9.0, (SIZE,), np.float32),
        gym.spaces.Discrete(2),
        remember=remember,
        memory_size=SIZE,
    )


def moments_of(rng: np.random.Generator, seen: float = 1.0, stored: float = 1.0) -> tuple[ChainMoments, np.ndarray]:
    """Return moments of a concept that is shown, and stored, as ± so much, beside noise; three of each level."""
    holds = rng.random(N) < 0.4
    signs = np.where(holds, 1.0, -1.0)
    shown, before = (0.1 * rng.standard_normal((2, N, SIZE))).astype(np.float32)
    shown[:, 0] += seen * signs
    before[:, 0] += stored * signs
    return ChainMoments(np.arange(N), np.ones(N, np.int64), shown, before, np.arange(N) // 3), holds


def share_of(remember: Callable[[Tensor, Tensor], Tensor], seen: float = 1.0, stored: float = 1.0) -> MeanEstimate:
    moments, holds = moments_of(np.random.default_rng(0), seen, stored)
    found = recalled(agent_that_writes(remember), moments, holds, FIRST, [0])
    assert found is not None
    return found


def test_what_the_step_has_just_written_is_seen() -> None:
    found = share_of(lambda seen, memory: seen)
    assert (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)
    assert origin(found) == "sight"


def test_what_no_step_writes_is_remembered() -> None:
    found = share_of(lambda seen, memory: memory)
    assert found.mean == pytest.approx(1.0, abs=0.02)
    assert origin(found) == "memory"


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
def test_a_leak_remembers_by_the_share_that_it_keeps(kept: float) -> None:
    """Score = kept x memory + (1 - kept) x seen, both ±1: the distance is 2, of which the memory makes 2 x kept."""
    found = share_of(lambda seen, memory: kept * memory + (1.0 - kept) * seen)
    assert found.mean == pytest.approx(kept, abs=0.01)
    assert found.low <= kept <= found.high
    assert origin(found) == {0.2: "sight", 0.5: "either", 0.9: "memory"}[kept]


def test_a_concept_that_the_memory_did_not_hold_before_is_seen_though_old_memory_moves_the_score() -> None:
    """The x of the step before is in the memory as well, and says nothing of the x of now."""
    found = share_of(lambda seen, memory: seen + 0.5 * memory, stored=0.0)
    assert found.high < 0.05
    assert origin(found) == "sight"


def test_the_share_is_that_of_all_exchanges() -> None:
    """Each memory with what is seen at each moment, one after the other."""
    moments, holds = moments_of(np.random.default_rng(1))
    agent = agent_that_writes(lambda seen, memory: torch.tanh(2.0 * memory + seen))
    found = recalled(agent, moments, holds, FIRST, [0])
    assert found is not None
    pairs = [(sight, memory) for sight in range(N) for memory in range(N)]
    sight, memory = np.array(pairs).T
    crossed = ChainMoments(sight, moments.steps[sight], moments.observations[sight], moments.memory[memory], sight)
    scores = scores_at(agent, crossed, FIRST, "memory")[:, 0]
    plain = scores_at(agent, moments, FIRST, "memory")[:, 0]
    distance = plain[holds].mean() - plain[~holds].mean()
    by = scores.reshape(N, N)
    wanted = (by[:, holds].mean() - by[:, ~holds].mean()) / distance
    assert found.low <= wanted <= found.high
    assert found.mean == pytest.approx(wanted, abs=0.02)


def test_a_direction_that_holds_another_concept_still_has_the_share_of_its_own() -> None:
    """The score is memory 0 less 0.6 x memory 1, a twin that the step has just written: the concept is all remembered."""
    rng = np.random.default_rng(2)
    moments, holds = moments_of(rng, seen=0.0)
    twin = np.where(rng.random(N) < 0.8, holds, ~holds)
    moments.observations[:, 1] = np.where(twin, 1.0, -1.0)
    reader = np.array([[1.0, -0.6, 0.0, 0.0]])
    basis = Directions("probe", ["one"], np.zeros(SIZE), np.eye(1, SIZE), reader, np.zeros((0, 1)), np.zeros(1))
    agent = agent_that_writes(lambda seen, memory: torch.cat([memory[:, :1], seen[:, 1:2], memory[:, 2:]], 1))
    found = recalled(agent, moments, holds, basis, [0], beside=[twin.astype(float)])
    assert found is not None
    assert found.mean == pytest.approx(1.0, abs=0.03)
    assert found.low <= 1.0 <= found.high
    mixed = recalled(agent, moments, holds, basis, [0])  # the twin moves the score against the concept
    assert mixed is not None
    assert mixed.mean == pytest.approx(1.0 / (1.0 - 0.6 * 0.6), abs=0.1)
    half = agent_that_writes(
        lambda seen, memory: torch.cat([0.5 * memory[:, :1] + 0.5 * seen[:, :1], memory[:, 1:2], seen[:, 2:]], 1)
    )
    shown, stored = np.where(holds, 1.0, -1.0), np.where(twin, 1.0, -1.0)
    moments.observations[:, 0], moments.memory[:, 1] = (
        shown,
        stored,
    )  # now the twin is remembered, and half of the concept
    found = recalled(half, moments, holds, basis, [0], beside=[twin.astype(float)])
    assert found is not None
    assert found.mean == pytest.approx(0.5, abs=0.03)


def test_too_few_moments_have_no_share() -> None:
    moments, holds = moments_of(np.random.default_rng(0))
    agent = agent_that_writes(lambda seen, memory: memory)
    few = np.concatenate([np.flatnonzero(holds)[: FEWEST - 1], np.flatnonzero(~holds)])
    assert recalled(agent, moments[few], holds[few], FIRST, [0]) is None
    assert origin(None) == "either"
