"""The report: tools that stop, sections that are kept, a page that loads nothing."""

import dataclasses
import functools
import json
import re

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs import make_env
from rlhf_ray.interpret.reward import report as reports
from rlhf_ray.interpret.reward.overview import over_episodes
from rlhf_ray.interpret.reward.regions import regions_of
from rlhf_ray.interpret.reward.report import write_report
from rlhf_ray.interpret.reward.sections import NAMES, overview
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.section import Check, Picture, Section, Statement, Table
from rlhf_ray.reward.functions import CallableReward

SPACE, ACTIONS = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


def subject(function=lambda o, a, n, d: 2 * o[:, 0], true=lambda o: o[:, 0], n=120):
    rng = np.random.default_rng(0)
    seen = rng.uniform(-1, 1, (n, 3)).astype(np.float32)
    steps = Transitions(
        seen,
        rng.integers(2, size=n),
        np.roll(seen, -1, 0),
        np.zeros(n, bool),
        true(seen).astype(float),
        np.arange(n) // 12,
        np.arange(n) % 12,
    )
    return Subject(CallableReward(function, SPACE, ACTIONS, "mine"), steps)


class FakeTool:
    """A tool with everything that a section may hold."""

    TITLE = "A <tool>"

    def __init__(self, name, error=None):
        self.NAME, self.error, self.runs = name, error, 0

    def unsuitable(self, subject):
        return None

    def look(self, subject):
        self.runs += 1
        if self.error:
            raise self.error
        return Section(
            self.NAME,
            self.TITLE,
            [
                Statement("rewards", "weak", 0.1),
                Statement("rewards", "strong", 2.0),
                Statement("ignores", "the <rest>"),
            ],
            [Check("good", True, 1.0, "> 0"), Check("bad", False, np.float32(0.25), "> 0.5", "because")],
            [Table(["a", "b"], [["x", float("nan")], ["y", np.int64(3)]], "numbers")],
            [Picture("p", b"\x89PNG", "seen", "it failed")],
            {"figure": np.float64(1.5), "list": np.arange(3).tolist()},
        )


@pytest.fixture
def tools(monkeypatch):
    made = {}
    monkeypatch.setattr(reports, "tool", made.__getitem__)
    return made


def test_the_verdict_says_the_strongest_first_and_what_failed(tools, tmp_path):
    tools["one"] = FakeTool("one")
    made = write_report(subject(), tmp_path, names=["one"])
    assert [said.text for said in made.verdict.rewards] == ["strong", "weak"]
    assert [said.text for said in made.verdict.failed] == ["bad: because"]
    page = made.page.read_text()
    assert "A &lt;tool&gt;" in page
    assert "the &lt;rest&gt;" in page
    assert "Don't trust this picture: it failed" in page
    assert page.index("It seems to reward") < page.index("Evidence")
    twin = json.loads((tmp_path / "report.json").read_text())
    assert twin["sections"][0]["values"] == {"figure": 1.5, "list": [0, 1, 2]}
    assert twin["sections"][0]["tables"][0]["rows"] == [["x", None], ["y", 3]]


def test_the_page_loads_nothing(tools, tmp_path):
    tools["one"] = FakeTool("one")
    page = write_report(subject(), tmp_path, names=["one"]).page.read_text()
    assert not re.search(r"<script|https?://|src=\"(?!data:)|href=\"(?!#|data:)", page)
    assert "default-src 'none'" in page


def test_a_stopped_report_continues_and_gives_the_same_bytes(tools, tmp_path):
    tools |= {"one": FakeTool("one"), "two": FakeTool("two", KeyboardInterrupt())}
    with pytest.raises(KeyboardInterrupt):
        write_report(subject(), tmp_path, names=["one", "two"])
    tools["two"].error = None
    made = write_report(subject(), tmp_path, names=["one", "two"])
    assert (tools["one"].runs, tools["two"].runs) == (1, 2)
    assert [section.name for section in made.sections] == ["one", "two"]
    whole = write_report(subject(), tmp_path / "whole", names=["one", "two"])
    for name in ("report.html", "report.json"):
        assert (tmp_path / name).read_bytes() == (whole.page.parent / name).read_bytes()


@pytest.mark.parametrize("change", [{"seed": 1}, {"gamma": 0.5}, {"data": subject(n=60).data}])
def test_another_subject_is_looked_at_anew(tools, tmp_path, change):
    tools["one"] = FakeTool("one")
    write_report(subject(), tmp_path, names=["one"])
    write_report(dataclasses.replace(subject(), **change), tmp_path, names=["one"])
    assert tools["one"].runs == 2


def test_another_reward_is_looked_at_anew(tools, tmp_path):
    tools["one"] = FakeTool("one")
    write_report(subject(), tmp_path, names=["one"])
    write_report(subject(lambda o, a, n, d: 3 * o[:, 0]), tmp_path, names=["one"])
    assert tools["one"].runs == 2


def test_a_tool_that_fails_costs_only_its_own_section_and_is_tried_again(tools, tmp_path):
    tools |= {"one": FakeTool("one", RuntimeError("out of ideas")), "two": FakeTool("two")}
    made = write_report(subject(), tmp_path, names=["one", "two"])
    assert "out of ideas" in made.verdict.failed[0].text
    assert made.sections[1].values
    tools["one"].error = None
    assert write_report(subject(), tmp_path, names=["one", "two"]).sections[0].values


def test_damaged_sections_are_made_again(tools, tmp_path):
    tools["one"] = FakeTool("one")
    write_report(subject(), tmp_path, names=["one"])
    (tmp_path / "sections" / "one" / "section.json").write_text("{")
    write_report(subject(), tmp_path, names=["one"])
    assert tools["one"].runs == 2


def test_every_tool_has_a_title_and_says_where_it_does_not_apply():
    from rlhf_ray.interpret.reward.sections import tool

    for name in NAMES:
        found = tool(name)
        assert name == found.NAME
        assert found.TITLE
        reason = found.unsuitable(subject())
        assert reason is None or reason.endswith(".")


def test_overview_tells_agreement_from_disagreement(monkeypatch):
    monkeypatch.setattr(overview, "over_episodes", functools.partial(over_episodes, resamples=60))
    agrees, opposes = overview.look(subject()), overview.look(subject(lambda o, a, n, d: -o[:, 0]))
    assert agrees.values["correlation"]["rank"]["value"] == pytest.approx(1.0)
    assert [statement.kind for statement in agrees.statements] == ["rewards"]
    assert opposes.values["correlation"]["linear"]["value"] == pytest.approx(-1.0)
    assert "does not agree" in opposes.statements[0].text
    unrelated = overview.look(subject(lambda o, a, n, d: o[:, 1]))
    estimate = unrelated.values["correlation"]["linear"]
    assert estimate["low"] < estimate["value"] < estimate["high"]
    assert abs(estimate["value"]) < 0.3


def test_overview_of_a_constant_reward_says_so():
    section = overview.look(subject(lambda o, a, n, d: 0 * o[:, 0]))
    assert [check.name for check in section.checks if check.passed is False] == ["the reward varies"]


def test_overview_without_true_rewards():
    section = overview.look(subject(true=lambda o: np.full(len(o), np.nan)))
    assert "correlation" not in section.values
    assert all(check.passed for check in section.checks)


def test_a_subject_made_in_python_has_the_parts_that_the_command_line_has():
    def parts(space, environment=None):
        reward = CallableReward(lambda o, a, n, d: np.zeros(len(d)), space, ACTIONS)
        nothing = np.zeros(0)
        steps = Transitions(nothing, nothing, nothing, nothing.astype(bool), nothing, nothing, nothing)
        return Subject(reward, steps, environment=environment).regions

    image = parts(gym.spaces.Box(0, 255, (18, 32, 3), np.uint8))
    assert (image.kind, image.layout) == ("patch", (8, 8))
    assert image.names[0] == "rows 0-1, columns 0-3"
    assert parts(SPACE).kind == "feature"
    pendulum = gym.spaces.Box(-8, 8, (3,), np.float32)
    assert parts(pendulum, "Pendulum-v1").names == ("cos(angle)", "sin(angle)", "angular velocity")
    assert parts(pendulum, "no_such:Thing-v0").names == ("feature 0", "feature 1", "feature 2")
    world = make_env("rlhf_ray/FixedGoal-v0")
    assert parts(world.observation_space, "rlhf_ray/FixedGoal-v0").kind == "cell"
    assert parts(gym.spaces.Discrete(5)) is None


def test_other_parts_make_another_report():
    subjects = [
        dataclasses.replace(subject(lambda o, a, n, d: n[:, 0]), regions=regions)
        for regions in (None, regions_of(SPACE, names=[f"n{i}" for i in range(SPACE.shape[0])]))
    ]
    assert reports.fingerprint(subjects[0]) != reports.fingerprint(subjects[1])
