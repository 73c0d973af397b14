"""Runs that are stopped or killed, or whose actors are, and go on."""

import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from ray.rllib.core import DEFAULT_MODULE_ID

from rlhf_ray.cli import main
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID
from rlhf_ray.runs.folder import RunFolder, read_metrics
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings
from tests.command_line import fails_with
from tests.made_up import labels_in, wait_for
from tests.whole_runs import (
    check_resumes,
    differences,
    finish,
    kill_everything,
    left_behind,
    options,
    outcome,
    running,
    small,
    start,
    stored_by,
)


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
def test_with_two_env_runners_too(tmp_path: Path) -> None:
    ppo = PPOSettings(num_envs=2, num_env_runners=2, rollout_length=150, minibatch_size=200, epochs=2, hidden=(16,))
    check_resumes(PreferencePPOConfig.from_experiment(small(ppo=ppo)), tmp_path / "checkpoint")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    ("ring", "runners"), [("ring_in_process", 0), pytest.param("ray_session", 2, marks=pytest.mark.soak)]
)
def test_an_asynchronous_run_goes_on_with_its_newest_reward_its_labels_and_another_number_of_env_runners(
    tmp_path: Path, ring: str, runners: int, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(ring)
    experiment = small()
    experiment = dataclasses.replace(
        experiment, preferences=dataclasses.replace(experiment.preferences, mode="asynchronous")
    )
    store = tmp_path / "store"
    with running(PreferencePPOConfig.from_experiment(experiment).preferences(store=store).build_algo()) as algorithm:
        for _ in range(2):
            algorithm.train()
        wait_for(lambda: algorithm.ring.version >= 2)  # ahead of the learner, which has not asked since
        algorithm.save_to_path(str(tmp_path / "checkpoint"))
        before, version = outcome(algorithm), algorithm.ring.version
    ppo = dataclasses.replace(experiment.ppo, num_envs=2, num_env_runners=runners)
    config = PreferencePPOConfig.from_experiment(dataclasses.replace(experiment, ppo=ppo)).preferences(store=store)
    with running(config.build_algo()) as algorithm:
        algorithm.restore_from_path(str(tmp_path / "checkpoint"))
        assert algorithm.training_iteration == 2
        assert algorithm.env_steps == before["env_steps"]
        reward = algorithm.learner_group.get_weights([REWARD_MODULE_ID])[REWARD_MODULE_ID]
        assert reward["ensemble.version"] == version
        for name, value in before["reward"].items():
            np.testing.assert_array_equal(value, reward[f"ensemble.{name}"])
        for name, value in before["policy"].items():
            np.testing.assert_array_equal(
                value, algorithm.learner_group.get_weights([DEFAULT_MODULE_ID])[DEFAULT_MODULE_ID][name]
            )
        while not algorithm.finished:
            algorithm.train()
        after = outcome(algorithm)
        assert after["ids"][: len(before["ids"])] == before["ids"]
        assert len(after["ids"]) == len(set(after["ids"])) <= 40
        wait_for(lambda: algorithm.ring.version > version)  # the fit to the last labels need not be over yet
        assert algorithm.env_steps <= experiment.total_env_steps


@pytest.fixture
def begin() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start`, with nothing left running after the test."""
    begun = []

    def begin(*words: str, **options: str) -> subprocess.Popen[str]:
        begun.append(start(*words, **options))
        return begun[-1]

    yield begin
    for process in begun:
        if process.poll() is None:
            kill_everything(process)


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_a_run_killed_with_everything_it_started_goes_on_elsewhere_and_comes_to_the_same_bit_for_bit(
    trained_run: RunFolder, tmp_path: Path, begin: Callable[..., subprocess.Popen[str]]
) -> None:
    """The same as one that was never killed; begun on Ray's actors, and ended with the ring in one process, like that one."""
    run = tmp_path / "killed"
    words = ["train", "Pendulum-v1", "--run-dir", str(run), "--evaluation-episodes", "2", *options(small())]
    process = begin(*words)
    wait_for(lambda: len(read_metrics(run / "metrics.jsonl")) >= 3 or process.poll() is not None, 600)
    assert process.poll() is None, process.communicate()
    kill_everything(process)
    run = Path(shutil.move(run, tmp_path / "moved"))
    main(["train", "--resume", str(run)])
    assert differences(left_behind(trained_run.path), left_behind(run)) == []


SWEEP = """
import sys
from pathlib import Path
from tests.whole_runs import small
from ray import tune
from rlhf_ray.sweeps import Plan, go_on, sweep
from rlhf_ray.runs.quiet import quiet
from rlhf_ray.runs.train import start_ray
quiet()
start_ray(cpus=2)
plan = Plan(small(), {"ppo.gamma": tune.choice([0.9, 0.99])}, trials=1, evaluation_episodes=2)
folder = Path(sys.argv[1])
go_on(folder) if sys.argv[2:] else sweep(plan, folder)
"""


@pytest.mark.soak
@pytest.mark.ray
def test_a_sweep_killed_with_everything_goes_on_from_its_trials_checkpoints_and_keeps_their_labels(tmp_path, begin):
    folder = tmp_path / "sweep"
    process = begin(str(folder), program=SWEEP)
    wait_for(lambda: list(folder.glob("*/checkpoint_*")) or process.poll() is not None, 600)
    assert process.poll() is None, process.communicate()
    checkpoints = list(folder.glob("*/checkpoint_*"))
    kill_everything(process)
    store = checkpoints[0].parent / "preferences"
    before = labels_in(store)
    finish(begin(str(folder), "go on", program=SWEEP))
    after = labels_in(store)
    assert after.pairs.ids[: len(before)] == before.pairs.ids
    assert len(after) == len(set(after.pairs.ids)) == 40
    rows = [json.loads(line) for line in (store.parent / "result.json").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows][-1] == 4
    assert rows[-1]["preferences"]["finished"] == 1.0


@pytest.mark.soak
@pytest.mark.ray
def test_a_sweep_that_is_terminated_ends_as_by_ctrl_c(tmp_path, begin):
    folder = tmp_path / "sweep"
    vary = ["--vary", "ppo.gamma=0.9,0.99", "--trials", "1", "--evaluation-episodes", "2", "--run-dir", str(folder)]
    process = begin("tune", "Pendulum-v1", *vary, *options(small()))
    wait_for(lambda: list(folder.glob("*/checkpoint_*")) or process.poll() is not None, 600)
    assert process.poll() is None, process.communicate()
    for _ in range(2):  # `timeout` signals the process, and then its whole group
        os.killpg(process.pid, signal.SIGTERM)
    said, _ = process.communicate(timeout=300)
    assert "trials, best first" in said, said
    assert f"resume with: rlhf-ray tune --resume {folder}" in said.replace("\n", ""), said
    assert "Traceback" not in said
    assert (folder / "trials.json").exists()


def test_a_complete_run_and_other_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path / "run", small())
    for words, message in (
        (["--resume"], "needs the run folder"),
        (["--resume", str(tmp_path / "nothing")], "is not a run folder"),
        (["--resume", str(folder.path), "--seed", "4"], "keeps the run's settings, and seed was 3, not 4;"),
        (["--resume", str(folder.path), "--ppo.learning-rate", "0.5"], "and ppo.learning_rate was "),
        (["--resume", str(folder.path), "--reward-model.hidden", "8"], "reward_model.hidden was"),
        (["--resume", str(folder.path), "--ppo.num-env-runners", "2"], "with preferences.mode=asynchronous"),
    ):
        assert message in fails_with(capsys, "train", *words)
    folder.finish({}, interrupted=False)
    for words in ([], ["--ppo.env-threads", "2"]):  # nothing depends on the number of threads
        assert "is complete" in fails_with(capsys, "train", "--resume", folder.path, *words)


ROLES = ("EnvRunner", "ActorHost", "FragmentPool", "GathererActor", "PreferenceStore", "RewardTrainerActor")
ROLES += ("RolloutCollector",)
"""What Ray calls the processes of a run's actors."""


def alive(pid: int) -> dict[str, psutil.Process]:
    """The living actors among the descendants of a process, by class."""
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            found |= {role: process for role in ROLES if title.startswith("ray::") and role in title}
    return found


@contextlib.contextmanager
def killing(pid: int, count: int, seed: int, progress: Callable[[], float]) -> Iterator[list[str]]:
    """Kill ``count`` of a run's actors by kill -9, at moments drawn evenly from its progress, from 0 to 1; yield their classes."""
    draw, kills, over = random.Random(seed), list[str](), threading.Event()
    planned = sorted((draw.random(), draw.random()) for _ in range(count))  # moments, and which of those alive then

    def kill() -> None:
        while planned and not over.wait(0.1):
            moment, which = planned[0]
            if progress() > moment and (living := sorted(alive(pid).items())):
                role, process = living[int(which * len(living))]
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
                    kills.append(role)
                    del planned[0]

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join()


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_a_run_whose_actors_are_killed_keeps_every_label_once_and_comes_to_its_end(tmp_path: Path, mode: str) -> None:
    experiment = Experiment(
        total_env_steps=500 + 20 * 800,
        seed=1,
        fragments=FragmentSettings(length=10, initial_env_steps=500, pool=60, exploration_env_steps=0),
        preferences=PreferenceSettings(mode=mode, comparisons=60, initial_comparisons=20, rounds=10),  # type: ignore[arg-type]
        reward_model=RewardModelSettings(hidden=(16,), initial_updates=20, updates=5),
        ppo=PPOSettings(num_envs=2, num_env_runners=2, rollout_length=200, minibatch_size=200, epochs=2, hidden=(16,)),
    )
    algorithm = PreferencePPOConfig.from_experiment(experiment).preferences(store=tmp_path / "store").build_algo()
    acknowledged: set[str] = set()
    published: dict[int, dict[str, Any]] = {}
    publish = algorithm.ring.newest_reward

    def noted() -> dict[str, Any]:
        version = publish()
        published[int(version["version"])] = {name: np.array(value) for name, value in version.items()}
        return version

    algorithm.ring.newest_reward = noted  # type: ignore[method-assign]
    try:
        algorithm.begin()
        with killing(os.getpid(), 8, 5, lambda: algorithm.env_steps / experiment.total_env_steps) as kills:
            while not algorithm.finished:
                result = algorithm.train()
                stored = stored_by(algorithm)
                assert acknowledged <= set(stored.pairs.ids)
                acknowledged |= set(stored.pairs.ids)
                learner = algorithm.learner_group.get_weights([REWARD_MODULE_ID])[REWARD_MODULE_ID]
                version = int(learner["ensemble.version"])
                assert result["learners"][DEFAULT_MODULE_ID]["reward_version"] == version >= 1
                # The learner has a version as it was published, the whole of it.
                for name, value in published[version].items():
                    np.testing.assert_array_equal(learner[f"ensemble.{name}"], value)
        assert len(kills) >= 6, "too few kills to show anything"
    finally:
        algorithm.stop()
    stored = labels_in(tmp_path / "store")
    assert len(stored) == len(set(stored.pairs.ids))
    assert acknowledged <= set(stored.pairs.ids)
    assert 50 <= len(stored) <= 60  # the last may still have been asked about when the run came to its end
