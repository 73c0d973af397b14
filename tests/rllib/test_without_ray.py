"""A synchronous run on one machine starts no process: neither Ray nor actors."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.settings import Experiment, PPOSettings, PreferenceSettings, RewardModelSettings

SCRIPT = """
import sys
import psutil
import ray
from rlhf_ray.runs.new_run import new_run
from rlhf_ray.runs.quiet import quiet
from rlhf_ray.runs.train import train
from tests.whole_runs import small

quiet()
folder = new_run(sys.argv[1], small())
outcome = train(folder, evaluation_episodes=2, reference=True)
assert not outcome.interrupted
assert not ray.is_initialized()
assert not psutil.Process().children(recursive=True)
"""


@pytest.mark.slow
def test_neither_training_nor_checkpoints_nor_evaluation_start_ray(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "gputil" not in done.stderr


def test_ray_is_needed_where_there_is_more_than_one_process() -> None:
    def needs(ppo: dict[str, Any] | None = None, gpus: float = 0.0, **preferences: Any) -> tuple[bool, bool]:
        experiment = Experiment(
            ppo=PPOSettings(**(ppo or {})),
            preferences=PreferenceSettings(**preferences),
            reward_model=RewardModelSettings(gpus=gpus),
        )
        config = PreferencePPOConfig.from_experiment(experiment)
        return config.ring_here, config.needs_ray

    assert needs() == (True, False)
    assert needs(mode="asynchronous") == needs(gpus=0.5) == needs(teacher="human") == (False, True)
    assert needs({"num_env_runners": 1}) == (False, True)
    assert needs({"num_learners": 1}) == (True, True)
    assert needs(mode="asynchronous", comparisons=0, initial_comparisons=0)[1] is False
    assert PreferencePPOConfig().evaluation(evaluation_num_env_runners=1).needs_ray
