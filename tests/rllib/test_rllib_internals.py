"""The private side of RLlib that is used, held to the installed RLlib where a difference would go unnoticed."""

import csv
import inspect
import logging
import random
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from ray.rllib.algorithms import algorithm
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.learner import learner
from ray.rllib.env import env_runner, env_runner_group
from ray.rllib.utils import torch_utils
from ray.tune.logger import CSVLoggerCallback
from ray.util.debug import reset_log_once

from rlhf_ray.rllib import rllib_internals
from rlhf_ray.rllib.policy import built, policy_spec
from rlhf_ray.rllib.ppo import PreferencePPOConfig
from rlhf_ray.settings import PPOSettings


def test_rllib_logs_no_notes_on_its_past_interfaces(caplog: pytest.LogCaptureFixture) -> None:
    loggers = [logging.getLogger(name) for name in ("ray.rllib.algorithms.algorithm_config", "ray._common.deprecation")]

    def logged(config: PPOConfig) -> set[str]:
        for key in (f"{config.algo_class.__name__}_on_new_api_stack", "RLModule(config=[RLModuleConfig object])"):
            reset_log_once(key)
        caplog.clear()
        config.environment("Pendulum-v1").validate()
        space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
        built(policy_spec(PPOSettings()), space, space)
        return {record.getMessage().split()[3] for record in caplog.records}

    for logger in loggers:
        logger.addHandler(caplog.handler)
        caplog.set_level(logging.WARNING, logger=logger.name)  # other tests quiet Ray
    try:
        assert len(logged(PPOConfig())) == 2
        assert logged(PreferencePPOConfig()) == set()
    finally:
        for logger in loggers:
            logger.removeHandler(caplog.handler)


def test_a_seed_reaches_every_global_generator() -> None:
    def drawn(seed: int) -> tuple[float, ...]:
        rllib_internals.seed_process(np.random.SeedSequence(seed))
        return random.random(), float(np.random.random()), float(torch.rand(()))

    assert drawn(1) == drawn(1)
    assert not set(drawn(1)) & set(drawn(2))


def test_groups_of_env_runners_are_made_by_a_name_of_the_algorithms_module_and_keep_their_arguments(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: None)
    before = algorithm.EnvRunnerGroup
    with rllib_internals.spread_env_runners():
        made = algorithm.EnvRunnerGroup
        group = object.__new__(made)
        group._remote_args = {"num_cpus": 1}
        assert group._remote_args == {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
    assert algorithm.EnvRunnerGroup is before
    assert issubclass(made, before)
    source = inspect.getsource(before)
    assert "self._remote_args = " in source
    assert "ray.remote(**self._remote_args)" in source
    assert "EnvRunnerGroup(" in inspect.getsource(algorithm)


def test_a_group_of_env_runners_puts_its_configuration_into_the_store_by_a_name_of_its_module(monkeypatch):
    assert "self._remote_config_obj_ref = ray.put(self._remote_config)" in inspect.getsource(
        env_runner_group.EnvRunnerGroup.__init__
    )
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    assert env_runner_group.ray.put("kept") == "kept"
    assert env_runner_group.ray.get is rllib_internals.ray.get
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    config = PPOConfig()
    assert env_runner_group.ray.put(config) is config
    monkeypatch.setattr("ray.put", lambda value: ("stored", value))
    assert env_runner_group.ray.put("weights") == ("stored", "weights")


def test_seeding_leaves_torchs_deterministic_algorithms_as_they_are() -> None:
    assert "torch.use_deterministic_algorithms(True)" in inspect.getsource(torch_utils.set_torch_seed)
    try:
        for mode in (1, 0):
            torch.set_deterministic_debug_mode(mode)
            for module in (algorithm, env_runner, learner):  # which seed
                module.update_global_seed_if_necessary("torch", 3)
                assert torch.get_deterministic_debug_mode() == mode
                drawn = torch.rand(2)
                assert torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(3)))
    finally:
        torch.set_deterministic_debug_mode(0)


def test_progress_csv_is_one_table_after_a_restore_with_other_columns(tmp_path: Path) -> None:
    class Trial:
        local_path, checkpoint = str(tmp_path), None

        def init_local_path(self) -> None: ...

    trial = Trial()
    first, second = CSVLoggerCallback(), CSVLoggerCallback()
    first.log_trial_result(1, trial, {"steps": 1, "ring": {"labels": 5.0}, "config": {}})
    first.log_trial_result(2, trial, {"steps": 2, "ring": {"labels": 6.0, "ties": 1}})
    with (tmp_path / "progress.csv").open("a") as table:
        table.write("3,")  # a kill cut the row
    second.log_trial_result(3, trial, {"time": 9.5, "ring": {"ties": 2, "labels": 7.0}, "steps": 3})
    second.log_trial_result(4, trial, {"steps": 4})
    rows = list(csv.DictReader((tmp_path / "progress.csv").open()))
    assert [row["steps"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["ring/labels"] for row in rows] == ["5.0", "6.0", "7.0", ""]
    assert [row["ring/ties"] for row in rows] == ["", "1", "2", ""]
    assert [row["time"] for row in rows] == ["", "", "9.5", ""]
    assert all(None not in row and None not in row.values() for row in rows)
