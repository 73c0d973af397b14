"""What a study examines: distinct and held-out levels; what recorder and environments refuse; what no batch changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.agents.episodes import draw_moments
from rlhf_ray.agents.play import play
from rlhf_ray.agents.recorded import Windows, load_episodes, record_inside, split_of
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.batches import make_batch
from rlhf_ray.interpret.agent.subject import NOT_HELD_OUT, AgentContext, AgentSubject, split_episodes
from rlhf_ray.interpret.agent.world_model.model import RecurrentWorld, WorldShape
from rlhf_ray.interpret.agent.world_model.simulate import simulate
from rlhf_ray.study.run import run_alone
from rlhf_ray.study.section import Section
from rlhf_ray.study.step import Step
from tests.agents.made import network_agent
from tests.agents.test_play import agent_of
from tests.interpret.agent.corridor import Corridors
from tests.interpret.agent.lamps import AGENTS, Lamps
from tests.interpret.contexts import context_of


class FewCorridors(Corridors):
    """Corridors of ``kinds`` different levels."""

    kinds = 5

    def reset(self, levels: Sequence[int]) -> Array:
        return super().reset([level % self.kinds + 7 for level in levels])


def test_levels_with_the_same_content_are_one() -> None:
    subject = AgentSubject(agent_of("gru", False), "Few", batches=FewCorridors)
    levels = np.array([0, 5, 1, 6, 12, 0, 3, 4])
    drawn = [np.random.default_rng(level % 5 + 7) for level in levels]
    what = np.array([(int(rng.integers(3, 7)), int(rng.integers(2))) for rng in drawn])
    groups = subject.groups(levels)
    for first in range(len(levels)):
        for second in range(len(levels)):
            assert (groups[first] == groups[second]) == (what[first] == what[second]).all()
    assert len(np.unique(AgentSubject(agent_of("gru", False), "All", batches=Corridors).groups(range(60)))) == 8


@pytest.fixture
def context(tmp_path: Path) -> AgentContext:
    agent = agent_of("gru", False)
    fitted = [level for level in range(40) if split_of(level) == "train"][:4]
    record_inside(agent, Corridors(2), fitted, tmp_path / "recording", max_steps=5)
    return context_of(agent, Corridors, tmp_path)


def test_a_step_warns_where_no_level_was_held_out(context: AgentContext) -> None:
    def run(context: AgentContext) -> Section:
        assert len(split_episodes(context, "test", 3)) == 3
        split_episodes(context, "test", 3)  # warns once
        return Section("mine", "Mine", notes=["One door."])

    sections = [run_alone(Step(name, name, run), context) for name in ("mine", "other")]
    assert [list(section.notes) for section in sections] == [["One door.", NOT_HELD_OUT]] * 2


def test_levels_of_the_split_need_no_warning_and_other_faults_are_errors(context: AgentContext) -> None:
    assert len(split_episodes(context, "train", 10)) == 4
    assert not context.warnings
    context.folders["recording"].rename(context.out / "gone")
    with pytest.raises(SettingError):
        split_episodes(context, "test", 10)
    assert not context.warnings


MINIRUN = "rlhf_ray/MiniRun-v0"
SMALL = WorldShape(memory=16, groups=2, classes=4)


@pytest.fixture(scope="module")
def agent() -> NetworkAgent:
    torch.set_num_threads(1)
    batch = make_batch(MINIRUN, 1)
    return network_agent(batch.observation_space, batch.action_space, features=16)


def test_a_changed_byte_of_a_recording_is_refused(tmp_path: Path) -> None:
    record_inside(AGENTS["a"], Lamps(10), list(range(10)), tmp_path / "whole")
    (chunk,) = [each for each in (tmp_path / "whole").iterdir() if each.suffix == ".arrow"]
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    for opened in (lambda: load_episodes(tmp_path / "whole"), lambda: Windows(tmp_path / "whole", 4)[np.arange(1)]):
        with pytest.raises(SettingError, match="is damaged") as raised:
            opened()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "options"), [(MINIRUN, {"length": 48}), (MINIRUN, {"coin": "end"}), ("rlhf_ray/CueRun-v0", {})]
)
def test_states_of_other_worlds_and_options_are_refused(agent: NetworkAgent, name: str, options: dict) -> None:  # type: ignore[type-arg]
    episodes = play(agent, make_batch(MINIRUN, 4), range(4), max_steps=3, keep_states=True)
    start = [states[0] for states in episodes.env_states[:2]], episodes.memory[:2, 0], 0
    with pytest.raises(SettingError, match="make the environment with the options that the state was saved with"):
        play(agent, make_batch(name, 2, **options), range(2), start=start)


@pytest.mark.parametrize("n", [1, 7, 64])
def test_nothing_depends_on_how_many_are_computed_at_once(agent: NetworkAgent, n: int) -> None:
    levels = range(40, 54)
    whole, part = (
        play(agent, make_batch(MINIRUN, copies), levels, max_steps=12, keep_states=True) for copies in (14, n)
    )
    np.testing.assert_array_equal(whole.actions, part.actions)
    np.testing.assert_allclose(whole.memory, part.memory, atol=1e-5)
    world = RecurrentWorld(agent.observation_space, agent.action_space, SMALL, agent.digest)
    moments = draw_moments(agent, whole, 64, np.random.default_rng(0), context=world.context)
    given = moments.observations, moments.actions, moments.memory
    with torch.no_grad():
        every = simulate(world, agent, *given, 3)
        some = simulate(world, agent, *(each[:n] for each in given), 3)
    assert len(some.values) == min(n, len(moments))
    assert (some.values - every.values[:n]).abs().max() <= 1e-5
    assert (some.memory - every.memory[:n]).abs().max() <= 1e-5
