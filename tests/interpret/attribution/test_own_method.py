"""A user's own method from outside: a module in a folder of theirs, its checks in both reports, errors before the start."""

from __future__ import annotations

import sys

import gymnasium as gym
import pytest

from rlhf_ray.agents.recorded import record_inside
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import make_batch
from rlhf_ray.interpret.agent.steps.attribution import STEP
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.interpret.attribution import known_methods, methods_key
from rlhf_ray.interpret.attribution.question import Method
from rlhf_ray.interpret.reward.report import report_reward
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward
from rlhf_ray.study.step import StepContext
from tests.command_line import fails_with
from tests.interpret.agent.worlds import network_agent
from tests.interpret.attribution.test_methods import VECTOR, a_callable, steps_for

OWN = '''
import numpy as np
from rlhf_ray.interpret.attribution import Method

class Deviation(Method):
    """The change of the output by a linear model: exact for linear functions."""

    def attribute(self, question, moments):
        before, maps = question.values(moments), {}
        for name, own in question.arrays(moments).items():
            maps[name] = np.zeros((len(before), *question.parts(name)[1].shape[1:]))
            for mask in question.parts(name)[1]:
                usual = np.where(mask, question.usual(name), own)
                fall = before - question.changed(moments, name, usual[None])[0]
                maps[name] += fall.reshape(-1, *(1,) * mask.ndim) * mask / mask.sum()
        return maps

class Wrong(Method):
    def attribute(self, question, moments):
        return {"state": np.zeros(3)}

class Nothing:
    pass
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "their_methods.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("their_methods", None)


@pytest.fixture
def reward():
    return CallableReward(a_callable, VECTOR, gym.spaces.Discrete(3))


@pytest.mark.slow
def test_it_stands_in_the_report_about_an_agent_with_its_deletion_curve(own, tmp_path):
    batch = make_batch("rlhf_ray/MiniRun-v0", 4)
    agent = network_agent(batch.observation_space, batch.action_space)
    record_inside(agent, batch, list(range(8)), tmp_path / "recording")
    subject = AgentSubject(agent, "rlhf_ray/MiniRun-v0", effort=0.01, methods=("their_methods:Deviation",))
    (tmp_path / "out").mkdir()
    section = STEP.run(StepContext(subject, {"recording": tmp_path / "recording"}, tmp_path / "out"))
    orders = section.values["areas"]
    assert {"value/Deviation", "action/Deviation"} < set(orders)
    assert orders["value/Deviation"]["deletion"] > orders["value/Deviation"]["random_deletion"]
    assert any("Deviation" in row for row in section.tables[0].rows)


@pytest.mark.parametrize(
    ("name", "words"),
    [("salience", "--methods is 'salience'; did you mean saliency"), ("their_methods:Deviations", "has no Deviations"),
     ("their_methods:Nothing", "lacks .*attribute"), ("no_module:Method", "no_module")],
)  # fmt: skip
def test_a_wrong_name_is_one_line_before_the_start(own, name, words, capsys):
    with pytest.raises(SettingError, match=words):
        known_methods([name])
    assert name in fails_with(capsys, "interpret", "agent", "nowhere", "--methods", name)


def test_maps_of_a_wrong_shape_are_named(own, reward, tmp_path):
    subject = Subject(reward, steps_for(reward, 50), effort=0.2, methods=("their_methods:Wrong",))
    [section] = report_reward(subject, tmp_path / "report", ["attribution"]).sections
    assert "'Wrong' returned maps {'state': (3,)}" in section.checks[0].remedy


def test_methods_are_named_or_given_and_are_part_of_the_key(own):
    class Local(Method):
        def attribute(self, question, moments):
            return {}

    given, named = known_methods([Local, "saliency"])
    assert named == "saliency"
    assert given != named
    keys = {methods_key(names) for names in ([], [named], [given], ["their_methods:Deviation"])}
    assert len(keys) == 4
