"""How many files of this package one iteration touches, and that a synchronous run on one machine starts no process."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rlhf_ray
from rlhf_ray import tune_configs
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.settings import Experiment, PPOSettings, PreferenceSettings, RewardModelSettings
from tests.command_line import run_python
from tests.whole_runs import running

PACKAGE = f"{Path(rlhf_ray.__file__).parent}/"

MOST_FILES = 62
"""Lower it with each simplification."""

MOST_MOVES = 22
"""Calls from one file of the package to another, for each step of the vector environment."""


class Walk:
    """Counts files and calls between files, in all threads that start while it is watched."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.moves: Counter[tuple[str, str]] = Counter()
        self._counts = False

    def _see(self, frame: Any, event: str, argument: object) -> None:
        if not self._counts or event != "call" or not (to := frame.f_code.co_filename).startswith(PACKAGE):
            return
        self.files.add(to.removeprefix(PACKAGE))
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != to:
            self.moves[caller.f_code.co_filename.removeprefix(PACKAGE), to.removeprefix(PACKAGE)] += 1

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Context manager: watch threads that start inside."""
        before = threading.getprofile()
        threading.setprofile(self._see)
        try:
            yield
        finally:
            threading.setprofile(before)  # type: ignore[arg-type]

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Context manager: count what this thread and the watched ones call inside."""
        before = sys.getprofile()
        sys.setprofile(self._see)
        self._counts = True
        try:
            yield
        finally:
            self._counts = False
            sys.setprofile(before)


@pytest.mark.slow
def test_an_iteration_with_a_round_touches_few_files(tmp_path: Path) -> None:
    walk = Walk()
    experiment = tune_configs.fast(tune_configs.load("pendulum").experiment)
    with (
        walk.threads(),
        running(preference_config(experiment).preferences(run_dir=tmp_path / "run").build_algo()) as algorithm,
    ):
        algorithm.train()
        rounds = algorithm.ring.rounds_held
        with walk.counted():
            algorithm.train()
        assert algorithm.ring.rounds_held == rounds + 1
    assert len(walk.files) <= MOST_FILES, sorted(walk.files)
    steps = walk.moves["rllib/env_runner.py", "policies/network.py"]
    assert steps > 100
    assert sum(walk.moves.values()) <= MOST_MOVES * steps, walk.moves.most_common(20)
    lookups = walk.moves["rllib/metrics.py", "data/metrics.py"]
    assert lookups <= 10


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
    assert "gputil" not in run_python(SCRIPT, tmp_path / "run").stderr


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
