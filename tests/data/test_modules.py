"""Modules of users' own are found in the folder one is in, which is remembered; misspelt names find the ones that are meant."""

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from rlhf_ray import envs
from rlhf_ray.data import modules
from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.data.registry import Registry, did_you_mean
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment
from rlhf_ray.sweeps.space import kinds

MODULE = """
import gymnasium
gymnasium.register("Mine-v0", entry_point="gymnasium.envs.classic_control:PendulumEnv", max_episode_steps=200)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(modules.FOLDERS, "")
    (tmp_path / "own_module.py").write_text(MODULE)
    (tmp_path / "broken_module.py").write_text("x = (")
    yield tmp_path
    sys.modules.pop("own_module", None)
    gym.registry.pop("Mine-v0", None)


def test_a_module_is_found_where_one_looks_and_the_run_remembers_it(folder):
    with pytest.raises(
        ValueError, match=r"no environment 'own_module:Mine-v0': there is no module 'own_module' .*PYTHONPATH"
    ):
        envs.make_env("own_module:Mine-v0")
    modules.look_in(folder)
    envs.make_env("own_module:Mine-v0").close()
    assert modules.found_in_all(["own_module", "gymnasium"]) == [str(folder)]  # gymnasium is installed
    run = RunFolder.create(folder / "run", Experiment(environment="own_module:Mine-v0"))
    modules.os.environ[modules.FOLDERS] = ""
    assert run.experiment().environment == "own_module:Mine-v0"
    assert modules.folders() == [str(folder)]


def test_what_lies_in_the_folder_stands_in_for_nothing_else(folder):
    modules.look_in(folder)
    envs.make_env("own_module:Mine-v0").close()
    assert sys.path[-1] == str(folder)


def test_a_module_that_raises_is_named(folder):
    modules.look_in(folder)
    with pytest.raises(
        FaultyEnvironmentError, match=r"Importing broken_module .* raised SyntaxError: .*broken_module.py, line 1"
    ):
        envs.make_env("broken_module:Mine-v0")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("ppo.gama", "ppo.gamma"),
        ("ppo.GAMMA", "ppo.gamma"),
        ("labeling.port", "labelling.port"),
        ("ensemble-size", "reward_model.ensemble_size"),
    ],
)
def test_the_nearest_settings_are_named(given, meant):
    assert did_you_mean(given, kinds()) == f"did you mean {meant}?"


def test_several_are_named_and_nothing_near_is_no_suggestion():
    assert did_you_mean("gamma", ["sac.gamma", "ppo.gamma"], "--{}") == "did you mean --sac.gamma or --ppo.gamma?"
    assert did_you_mean("nonsense", kinds()) == did_you_mean("x", []) == ""


def test_parts_are_suggested_too():
    registry: Registry[object] = Registry("group.part", object, {"steady": object})
    with pytest.raises(
        SettingError, match=r"is 'stedy'; did you mean steady\? It must be one of steady, or module:Name"
    ):
        registry.find("stedy")
    with pytest.raises(
        SettingError, match=r"has no OrderdDict: correct the name \(did you mean OrderedDict\?\), or define it"
    ):
        registry.find("collections:OrderdDict")
