"""The score of the planted causes, and a baseline's attributions, where both are known by construction."""

import gymnasium as gym
import numpy as np
import pytest

from benchmarks import planted_score
from benchmarks.planted_causes import Case
from benchmarks.planted_causes.vectors import steps_of
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.reward.functions import CallableReward


def case(name: str, cause: str, flawed: bool = True) -> Case:
    return Case(name, "", lambda: pytest.fail("answers are scored without the subjects"), cause, flawed=flawed)


CASES = (
    case("one", "^feature 1$"),
    case("two", "red|blue"),
    case("none", "", flawed=False),
    case("none either", "", False),
)


def test_a_tool_is_scored_by_what_it_names_and_whether_it_tells_flawed_from_sound(monkeypatch):
    monkeypatch.setattr(planted_score, "REWARDS", CASES)
    monkeypatch.setattr(planted_score, "AGENTS", ())
    answers = {
        "one": {
            "flawed": True,
            "causes": ["feature 10", "feature 2", "feature 3", "feature 1"],
        },  # the fourth doesn't count
        "two": {"flawed": True, "causes": ["the Blue channel"]},
        "none": {"flawed": False, "causes": ["feature 1"]},
        "none either": None,
    }
    found = planted_score.score(answers)["all"]
    assert found["rewards"] == [1, 2]
    assert (found["called_flawed"], found["called_sound"]) == ([2, 2], [1, 2])
    assert found["told"] == 0.75
    always = planted_score.score({each.name: {"flawed": True, "causes": []} for each in CASES})["all"]
    assert (always["rewards"], always["told"]) == ([0, 2], 0.5)
    frozen = planted_score.score(answers)["frozen"]
    assert frozen["rewards"][1] == sum(planted_score.frozen(each) for each in CASES if each.flawed)


def test_integrated_gradients_of_a_linear_reward_are_its_weights_times_the_way():
    steps, _ = steps_of(0, 200)
    space = gym.spaces.Box(-9, 9, (6,))
    reward = CallableReward(lambda o, a, p, d: 2 * o[:, 0] - 3 * p[:, 4] + 0.5 * d, space, gym.spaces.Discrete(3))
    shares = planted_score.attributed(reward, steps, regions_of(space))
    chosen = steps.sample(planted_score.STEPS, np.random.default_rng(0))
    seen, after = chosen.observations, chosen.next_observations
    sizes = {
        "feature 0": 2 * np.abs(seen[:, 0] - seen[:, 0].mean()).mean(),
        "feature 4": 3 * np.abs(after[:, 4] - after[:, 4].mean()).mean(),
        "whether the step ends the episode": 0.5,
    }
    whole = sum(sizes.values())
    for name, share in shares.items():
        expected = {"the state": sizes["feature 0"], "the next state": sizes["feature 4"]} | sizes
        assert share == pytest.approx(expected.get(name, 0.0) / whole, abs=1e-5), name
