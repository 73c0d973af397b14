"""The report about a reward: its first screen, its page that loads nothing, and what it depends on."""

import dataclasses
import json
import re

import gymnasium as gym
import numpy as np

from rlhf_ray.data.registry import name_of
from rlhf_ray.envs import make_env
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.report import reward_study, write_report
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward
from rlhf_ray.study import Step, StepContext, run_study
from tests.interpret.contexts import steps_of
from tests.study.parts import section

SPACE, ACTIONS = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


def subject(function=lambda o, a, n, d: 2 * o[:, 0], true=lambda o: o[:, 0], n=120):
    rng = np.random.default_rng(0)
    seen = rng.uniform(-1, 1, (n, 3)).astype(np.float32)
    actions, rewards = rng.integers(2, size=n), true(seen).astype(float)
    steps = steps_of(seen, np.roll(seen, -1, 0), actions=actions, rewards=rewards)
    return Subject(CallableReward(function, SPACE, ACTIONS, "mine"), steps)


def fake(context):
    values = {"figure": np.float64(1.5), "list": [float("nan"), np.int64(3)]}
    return dataclasses.replace(section(2), title="A <step>", values=values)


def report(folder):
    study = reward_study(subject(), folder, [name_of(Step("s", "A <step>", fake))])
    return write_report(study, run_study(study, ["s"]))


def test_the_screen_answers_by_the_checks_and_shows_the_largest_effects_first(tmp_path):
    made = report(tmp_path)
    assert made.screen.answer == "Don't use it as it is: the `step` ran"
    assert [row.name for row in made.screen.effects[0].rows][:2] == ["whole", "b"]
    page = made.page.read_text()
    assert "A &lt;step&gt;" in page
    twin = json.loads((tmp_path / "report.json").read_text())
    assert twin["sections"][0]["values"] == {"figure": 1.5, "list": [None, 3]}
    assert not re.search(r"<script|https?://|src=\"(?!data:)|href=\"(?!#|data:)", page), "it loads something"
    assert "default-src 'none'" in page
    files = [tmp_path / "report.html", tmp_path / "report.json"]
    first = [file.read_bytes() for file in files]
    report(tmp_path)  # with the kept step
    assert [file.read_bytes() for file in files] == first


def test_another_discount_reward_data_or_division_is_another_subject():
    others = {"gamma": 0.5}, {"data": subject(n=60).data}, {"regions": regions_of(SPACE, names=["n0", "n1", "n2"])}
    subjects = [subject(), *(dataclasses.replace(subject(), **change) for change in others)]
    subjects += [subject(lambda o, a, n, d: 3 * o[:, 0]), subject(lambda o, a, n, d: o[:, 0] + 5 * (o[:, 1] > 1e6))]
    subjects += [subject(lambda o, a, n, d: o[:, 0] + 7 * (o[:, 1] > 1e6))]  # they differ on no recorded step
    assert len({each.digest for each in subjects}) == 7
    assert subject().digest == subject().digest


def test_every_step_has_a_title_and_says_where_it_does_not_apply(tmp_path):
    for name, step in reward_study(subject(), tmp_path).steps().items():
        assert name == step.name
        assert step.title
        reason = step.why_not(StepContext(subject()))
        assert reason is None or reason.endswith(".")


def test_a_subject_made_in_python_has_the_parts_that_the_command_line_has():
    def parts(space, environment=None):
        reward = CallableReward(lambda o, a, n, d: np.zeros(len(d)), space, ACTIONS)
        return Subject(reward, steps_of(np.zeros(0)), environment=environment).regions

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
