"""What a study of an agent examines: distinct levels, and levels that were held out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rlhf_ray.agents.recorded import record_inside, split_of
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.subject import NOT_HELD_OUT, AgentContext, AgentSubject, split_episodes
from rlhf_ray.study.run import run_alone
from rlhf_ray.study.section import Section
from rlhf_ray.study.step import Step
from tests.agents.test_play import agent_of
from tests.interpret.agent.corridor import Corridors
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
