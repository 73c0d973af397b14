"""The reader of a recording's splits: what was not held out is said, once for all steps that read it."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest
import torch

from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.agents.recorded import record_inside, split_of
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.subject import NOT_HELD_OUT, AgentContext, split_episodes
from rlhf_ray.study.run import run_alone
from rlhf_ray.study.section import Section
from rlhf_ray.study.step import Step
from tests.interpret.agent.corridor import Corridors
from tests.interpret.contexts import context_of


@pytest.fixture
def context(tmp_path: Path) -> AgentContext:
    env = Corridors(1)
    agent = FunctionAgent(
        lambda seen, memory: (torch.zeros(len(seen), 3), torch.zeros(len(seen))),
        env.observation_space,
        gym.spaces.Discrete(3),
    )
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
