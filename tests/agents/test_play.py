"""The loop: episodes that don't depend on the batch, that go on from a state as they did, and moments of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rlhf_ray.agents.agent import MEMORY, NetworkAgent
from rlhf_ray.agents.episodes import Episodes, StepBatch, Stretches, WindowNumbers
from rlhf_ray.agents.play import play, replay, site_of, values_at
from rlhf_ray.data.errors import SettingError
from tests.agents.made import network_agent
from tests.interpret.agent.corridor import LIMIT, Corridors

LEVELS = range(100, 113)


def agent_of(memory: str, box: bool) -> NetworkAgent:
    batch = Corridors(1, box)
    return network_agent(batch.observation_space, batch.action_space, memory, seed=4, hidden=(8,))  # takes every action


def same(first: Episodes, second: Episodes) -> None:
    assert first.causes == second.causes
    assert first.lengths.tolist() == second.lengths.tolist()
    for name in ("observations", "actions", "logits", "values", "memory", "rewards", "terminated", "truncated"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("memory", "box"), [("none", False), ("gru", False), ("lstm", True)])
@pytest.mark.parametrize("how", [{}, {"greedy": False}, {"epsilon": 0.5}])
def test_an_episode_depends_on_level_seed_and_index_but_not_on_the_batch(memory: str, box: bool, how: dict) -> None:
    agent = agent_of(memory, box)
    played = play(agent, Corridors(5, box), LEVELS, seed=3, **how)
    same(played, play(agent, Corridors(1, box), LEVELS, seed=3, **how))
    same(played, play(agent, Corridors(20, box), LEVELS, seed=3, **how))
    again = play(agent, Corridors(4, box), LEVELS[7:], seed=3, indices=range(7, 13), **how)
    same(Episodes.concatenate([played.select(range(7)), again]), played)
    if how:
        other = play(agent, Corridors(5, box), LEVELS, seed=4, **how)
        assert played.actions.shape != other.actions.shape or (played.actions != other.actions).any()


def test_episodes_hold_what_happened() -> None:
    agent = agent_of("gru", False)
    episodes = play(agent, Corridors(4), LEVELS, epsilon=0.3, keep=["encoder.0"], keep_states=True)
    assert set(episodes.causes) >= {"trap", "end"}
    assert len(episodes) == len(LEVELS)
    assert episodes.terminated.tolist() == [cause in ("trap", "end") for cause in episodes.causes]
    assert episodes.returns.tolist() == [float(cause == "end") for cause in episodes.causes]
    assert episodes.actions.shape == episodes.values.shape == (13, episodes.lengths.max())
    assert episodes.memory.shape == (13, episodes.lengths.max() + 1, 8)
    for row, length in enumerate(episodes.lengths):
        positions = episodes.states["position"][row]
        walked = np.cumsum(episodes.actions[row, :length])
        assert positions[1 : length + 1].tolist() == walked.tolist()
        assert not positions[length + 1 :].any()
        np.testing.assert_allclose(episodes.observations[row, : length + 1, 0], positions[: length + 1] / 8)
        assert len(episodes.env_states[row]) == length + 1
        assert not episodes.observations[row, length + 1 :].any()
        with torch.no_grad():  # the memory is that before the step
            taken = agent.step(
                torch.as_tensor(episodes.observations[row, :length]),
                torch.as_tensor(episodes.memory[row, :length]),
                keep=["encoder.0"],
            )
        np.testing.assert_allclose(taken.logits, episodes.logits[row, :length], atol=1e-5)
        np.testing.assert_allclose(taken.memory, episodes.memory[row, 1 : length + 1], atol=1e-5)
        np.testing.assert_allclose(
            taken.activations["encoder.0"], episodes.activations["encoder.0"][row, :length], atol=1e-5
        )
    without = play(agent, Corridors(4), LEVELS, epsilon=0.3, frames=False)
    assert without.observations.shape == (*episodes.memory.shape[:2], 0)
    assert (without.actions == episodes.actions).all()


def test_a_described_number_may_be_unknown_after_an_int() -> None:
    class Lost(Corridors):
        said = 0

        def describe(self) -> dict[str, np.ndarray]:
            self.said += 1
            return {
                "column": np.full(self.n, np.nan if self.said > 1 else 4),
                "place": np.full(self.n, 2),
                "picture": np.zeros((self.n, 2), np.uint8),
            }

    played = play(agent_of("none", False), Lost(2), LEVELS[:2], epsilon=1.0, max_steps=2)
    column = played.states["column"]
    assert column[:, 0].tolist() == [4.0, 4.0]
    assert np.isnan(column[0, 1])
    assert played.states["place"].dtype == np.float64  # an episode without any may be played beside one with
    assert played.states["picture"].dtype == np.uint8


@pytest.mark.parametrize("how", [{}, {"greedy": False}])
def test_play_goes_on_from_a_state_as_it_did(how: dict) -> None:
    agent = agent_of("gru", False)
    whole = play(agent, Corridors(4), LEVELS, keep_states=True, **how)
    rows = np.flatnonzero(whole.lengths >= 2)
    at = np.minimum(whole.lengths[rows] - 1, 1 + rows % 3)
    start = ([whole.env_states[row][t] for row, t in zip(rows, at, strict=True)], whole.memory[rows, at], at)
    rest = play(agent, Corridors(3), whole.levels[rows], start=start, indices=rows, **how)
    assert len(rows) > 5
    assert rest.causes == [whole.causes[row] for row in rows]
    for row, t, one in zip(rows, at, range(len(rows)), strict=True):
        length = whole.lengths[row] - t
        assert rest.lengths[one] == length
        np.testing.assert_array_equal(rest.actions[one, :length], whole.actions[row, t : t + length])
        np.testing.assert_allclose(rest.memory[one, : length + 1], whole.memory[row, t : t + length + 1], atol=1e-5)


def test_episodes_can_be_cut_and_time_out() -> None:
    agent = agent_of("gru", False)
    cut = play(agent, Corridors(3), [100], max_steps=1)
    assert cut.lengths.tolist() == [1]
    assert not cut.terminated.any()
    assert not cut.truncated.any()
    assert cut.causes == [""]
    with torch.no_grad():
        agent.network.actor.bias[0] = 1e6  # stays
    still = play(agent, Corridors(3), [100, 101])
    assert still.truncated.all()
    assert set(still.causes) == {"timeout"}
    assert set(still.lengths) == {LIMIT}


def test_bad_requests_are_named() -> None:
    agent = agent_of("none", False)
    for wrong, text in [
        ({"levels": []}, "levels is empty"),
        ({"keep": ["cell"]}, "keep has 'cell'"),
        ({"epsilon": 2.0}, "epsilon is 2.0"),
        ({"max_steps": 0}, "max_steps is 0"),
    ]:
        with pytest.raises(SettingError, match=text):
            play(agent, Corridors(1), **{"levels": [1], **wrong})


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_a_replay_computes_along_the_observations_what_the_agent_did(memory: str) -> None:
    agent = agent_of(memory, False)
    played = play(agent, Corridors(4), LEVELS, keep=agent.layers[:1])
    replace = {"logits": played.logits * 0, "values": played.values * 0, "memory": played.memory * 0, "activations": {}}
    found = replay(agent, dataclasses.replace(played, **replace), agent.layers[:1])  # type: ignore[arg-type]
    within = played.real
    for before, after in ((played.logits, found.logits), (played.values, found.values)):
        np.testing.assert_allclose(after[within], before[within], atol=1e-5)
    np.testing.assert_allclose(found.memory[:, 1:][within], played.memory[:, 1:][within], atol=1e-5)
    layer = agent.layers[0]
    np.testing.assert_allclose(found.activations[layer][within], played.activations[layer][within], atol=1e-5)
    short = int(played.lengths.argmin())  # nothing happens after the end
    np.testing.assert_array_equal(found.memory[short, played.lengths[short]], found.memory[short, -1])
    assert (site_of(agent) == MEMORY) == (memory != "none")
    assert values_at(agent, played).shape == (*within.shape, agent.memory_size or 8)


@dataclass(frozen=True)
class Some(StepBatch):
    tensor: torch.Tensor
    states: list[bytes]
    label: float


def test_all_that_belongs_to_moments_is_chosen_with_them() -> None:
    some = Some(np.array([0, 0, 1]), np.array([1, 2, 0]), torch.arange(3), [b"a", b"b", b"c"], 0.5)
    for chosen in ([2, 0], np.array([2, 0]), torch.tensor([2, 0])):
        part = some[chosen]
        assert (part.rows.tolist(), part.steps.tolist()) == ([1, 0], [0, 1])
        assert (part.tensor.tolist(), part.states, part.label) == ([2, 0], [b"c", b"a"], 0.5)
    assert some[np.array([False, True, False])].states == some[1:2].states == [b"b"]
    assert len(some[[]]) == 0
    assert some.cut(np.arange(6).reshape(2, 3)).tolist() == [1, 2, 3]


def test_a_stretch_repeats_its_last_step_as_padding() -> None:
    stretches = Stretches(np.array([0, 1]), np.array([0, 2]), np.array([3, 1]), 3)
    assert stretches.window(np.arange(8).reshape(2, 4)).tolist() == [[0, 1, 2], [6, 6, 6]]
    assert (stretches.containing(0, 2), stretches.containing(1, 2), stretches.containing(1, 1)) == (0, 1, None)


def test_windows_are_numbered_episode_by_episode() -> None:
    windows = WindowNumbers(np.array([4, 1, 3]), 3)
    assert len(windows) == 3 + 1 + 2
    starts = windows.starts(range(6))
    assert starts.rows.tolist() == [0, 0, 0, 1, 2, 2]
    assert starts.steps.tolist() == [0, 1, 2, 0, 0, 1]
    with pytest.raises(IndexError, match="There are 6 windows"):
        windows.starts([6])
