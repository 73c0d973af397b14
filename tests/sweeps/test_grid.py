"""Lists of values are tried one by one; what else varies is drawn."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Experiment as TuneExperiment
from ray.tune.experiment import Trial

from rlhf_ray.settings import Experiment, SettingError
from rlhf_ray.sweeps.space import Listed, count, describe, parse, plan_in_words, points
from rlhf_ray.sweeps.strategies import searcher

LISTS = {"ppo.gamma": Listed([0.9, 0.95, 0.99]), "ppo.epochs": Listed([2, 4])}
RANGE = {"ppo.clip": tune.uniform(0.1, 0.3)}


def drawn(space: dict[str, Any], trials: int, repeat: int = 1) -> list[dict[str, Any]]:
    """The settings of each trial that Tune makes."""
    chosen = searcher("random", 7, 0, repeat, points(space, trials, 7))
    space = space | ({"seed": tune.grid_search(list(range(repeat)))} if repeat > 1 else {})
    chosen.add_configurations([TuneExperiment("grid", tune.Trainable, config=space, num_samples=trials)])
    found = []
    while isinstance(trial := chosen.next_trial(), Trial):
        found.append(trial.config)
    return found


def test_each_combination_of_listed_values_is_tried_once() -> None:
    assert count(LISTS, None) == 6
    tried = [(of["ppo.gamma"], of["ppo.epochs"]) for of in drawn(LISTS, 6)]
    assert sorted(tried) == [(gamma, epochs) for gamma in (0.9, 0.95, 0.99) for epochs in (2, 4)]


def test_fewer_trials_than_combinations_are_different_ones() -> None:
    tried = {(of["ppo.gamma"], of["ppo.epochs"]) for of in drawn(LISTS, 4)}
    assert len(tried) == 4


def test_more_trials_than_combinations_would_repeat_them() -> None:
    assert count(LISTS, 10) == 6
    assert count(LISTS | RANGE, 10) == 10


def test_ranges_are_drawn_anew_for_each_turn_of_the_values() -> None:
    space = {"ppo.epochs": Listed([2, 4]), **RANGE}
    assert count(space, None) == 4
    found = drawn(space, 4)
    assert [of["ppo.epochs"] for of in found] == [2, 4, 2, 4]
    assert len({of["ppo.clip"] for of in found}) == 4
    assert all(0.1 <= of["ppo.clip"] <= 0.3 for of in found)


def test_each_combination_is_repeated_with_every_seed() -> None:
    tried = sorted((of["ppo.epochs"], of["seed"]) for of in drawn({"ppo.epochs": Listed([2, 4])}, 2, repeat=3))
    assert tried == [(epochs, seed) for epochs in (2, 4) for seed in (0, 1, 2)]


@pytest.mark.parametrize(
    ("space", "trials", "repeat", "search", "line"),
    [
        (LISTS, 6, 1, "random", "6 trials: 6 of 6 combinations of ppo.gamma and ppo.epochs"),
        (LISTS, 4, 1, "random", "4 trials: 4 of 6 combinations"),
        (RANGE, 3, 2, "random", "3 trials: ppo.clip drawn at random; each with 2 seeds"),
        (LISTS | RANGE, 6, 1, "random", "6 trials: 6 of 6 combinations of .*, ppo.clip drawn at random"),
        (LISTS, 6, 1, "optuna", "6 trials, whose settings optuna chooses"),
    ],
)
def test_what_runs_is_said(space: Any, trials: int, repeat: int, search: str, line: str) -> None:
    assert re.match(line, plan_in_words(space, trials, repeat, search))


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("ppo.learning_rate=loguniform:1e-5,1e-3", "ppo.learning_rate is 'loguniform:1e-5'; it must be a number"),
        ("ppo.learning_rate=1e-5..1e-3:log10", "write ppo.learning_rate=LOW..HIGH or"),
        ("ppo.epochs=2.5,3", "ppo.epochs is 2.5; it must be a whole number"),
        ("ppo.clip=low,high", "ppo.clip is 'low'; it must be a number"),
        ("ppo.clip=0.1,,0.3", "empty value"),
        ("ppo.hidden=64,32", r"write ppo.hidden=\[64,64\]"),
    ],
)
def test_what_is_none_of_our_forms_is_refused_in_one_line(word: str, remedy: str) -> None:
    with pytest.raises(SettingError, match=remedy) as error:
        parse([word], Experiment())
    assert "\n" not in str(error.value)


def test_a_choice_is_drawn_and_a_list_is_tried() -> None:
    space = parse(["ppo.gamma=choice:0.9,0.99", "ppo.clip=.1,0.2", "reward_model.label_noise=none,0.1"], Experiment())
    assert {name: describe(domain) for name, domain in space.items()} == {
        "ppo.gamma": {"values": [0.9, 0.99]},
        "ppo.clip": {"values": [0.1, 0.2], "each": True},
        "reward_model.label_noise": {"values": [None, 0.1], "each": True},
    }


def test_a_setting_is_varied_once() -> None:
    with pytest.raises(SettingError, match=r"ppo\.gamma is varied already"):
        parse(["ppo.gamma=0.9,0.95", "ppo.gamma=0.9..0.99"], Experiment())
