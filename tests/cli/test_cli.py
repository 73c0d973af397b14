"""The command line: what it says, and whole runs in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_ray import cli
from rlhf_ray.agents.true_return import TrueReturn
from rlhf_ray.cli import presets
from rlhf_ray.cli.train import refused
from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.outcome import Outcome
from rlhf_ray.settings import Experiment
from rlhf_ray.store import PreferenceStore
from tests.made_up import some_comparisons

PROGRAM = str(Path(sys.executable).with_name("rlhf-ray"))
SMALL = shlex.split(
    """--total-env-steps 2800 --fragments.initial-env-steps 400 --preferences.comparisons 40
    --preferences.initial-comparisons 20 --preferences.rounds 2 --ppo.num-envs 4 --ppo.epochs 2
    --evaluation-episodes 4"""
)


def test_a_terminal_without_our_characters_gets_plain_ones() -> None:
    environment = _environment() | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([PROGRAM], capture_output=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"usage: rlhf-ray COMMAND ..." in done.stdout
    assert "−1 ± …".encode("ascii", "in_plain_characters") == b"-1 +- ..."


def test_the_name_of_an_environment_starts_from_the_defaults() -> None:
    assert presets.preset("MountainCarContinuous-v0") == Experiment(environment="MountainCarContinuous-v0")


def test_a_run_on_the_true_reward_tells_the_return_and_the_success_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trained(*arguments: Any, watch: Any, **settings: Any) -> Outcome:
        watch({"env_steps": 100, "true_return_mean": 3.5, "success_rate": 0.25})
        watch({"env_steps": 200, "true_return_mean": None, "success_rate": None})
        results = [TrueReturn(value, 0.0, 4, 0.1, success_rate=share) for value, share in ((1.0, 0.0), (5.0, 0.75))]
        return Outcome("Pendulum-v1", 0, 200, 0, None, results[0], None, results[1], None, 1.0, interrupted=False)

    monkeypatch.setattr("rlhf_ray.runs.expert.train_expert", trained)
    words = ["--true-reward", "--ppo.epochs", "2", "--preferences.comparisons", "300"]
    cli.main(["train", "pendulum", *words, "--run-dir", str(tmp_path / "run")])
    printed = " ".join(capsys.readouterr().out.split())
    assert "mean true return 5.0, 75 % of episodes succeeded after 200 steps" in printed
    assert "(random actions: 1.0, 0 % of episodes succeeded)" in printed
    assert "--true-reward asks nobody and fits no reward; without effect: --preferences.comparisons." in printed


@pytest.mark.parametrize(
    ("has", "error", "kept"),
    [
        ("nothing", SettingError("ppo.epochs is 0"), False),
        ("nothing", RuntimeError("the machine"), True),
        ("a row", SettingError("ppo.epochs is 0"), True),
        ("a skip", SettingError("ppo.epochs is 0"), True),
    ],
)
def test_a_refused_run_leaves_a_folder_only_with_something_in_it(
    tmp_path: Path, has: str, error: Exception, kept: bool
) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    store = PreferenceStore(folder.preferences)
    if has == "a row":
        folder.metrics.write_text('{"iteration": 1}\n')
    if has == "a skip":
        store.skip(some_comparisons(1).pairs, annotator="ada")
    with pytest.raises(type(error)), refused(folder):
        raise error
    assert folder.path.exists() == kept


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_a_run_leaves_a_whole_folder_that_can_be_moved_and_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    cli.main(["train", "pendulum", *SMALL, "--seed", "5", "--run-dir", str(run), "--reference"])
    assert "trained on the true reward" in capsys.readouterr().out
    files = ("config.json", "metrics.jsonl", "tensorboard", "preferences", "reward_model", "checkpoints", "report.html")
    assert [name for name in files if not (run / name).exists()] == []
    result = json.loads((run / "result.json").read_text())
    assert result["env_steps"] == 2800
    assert result["comparisons"] == 40
    assert result["reference"]["episodes"] == 4
    shutil.move(run, tmp_path / "moved")
    cli.main(["evaluate", str(tmp_path / "moved"), "--episodes", "4", "--json"])
    values = json.loads(capsys.readouterr().out)
    assert values["true_return_mean"] == pytest.approx(result["trained"]["true_return_mean"])
    names = "true_return_mean true_return_std episodes action_spread cut success_rate learned_reward env_steps comparisons seed"
    assert values.keys() == {*names.split(), "reward_model"}
    assert values["learned_reward"] == pytest.approx(result["trained"]["learned_reward"], rel=1e-4)
    scored = values["reward_model"]
    assert scored["overall"]["accuracy"]["mean"] == pytest.approx(result["held_out_accuracy"])
    assert "returns_rank" in scored["correlations"]
    assert (values["env_steps"], values["comparisons"], values["seed"]) == (2800, 40, 5)
    assert int(RewardEnsemble.load(tmp_path / "moved" / "reward_model").version) == 3


OWN_ENVIRONMENT = """
import pathlib, time
import actors.sizes
import gymnasium
from gymnasium.envs.classic_control import PendulumEnv

class Own(PendulumEnv):
    def step(self, action):
        if pathlib.Path(__file__).with_name("slow").exists():
            time.sleep(20)
        return super().step(action)

gymnasium.register("Own-v0", entry_point=Own, max_episode_steps=actors.sizes.LIMIT)
"""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("env_runners", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_sigterm_to_the_whole_group_stops_at_once_and_leaves_a_usable_folder(
    tmp_path: Path, env_runners: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an environment in the current directory, whose module actors and env runners find, and who evaluates it elsewhere.

    Folders there that are called as two of the repository's at the top are the user's own.
    Neither the iteration under way nor the evaluation would come to its end: an episode takes an hour.
    """
    (tmp_path / "own_environment.py").write_text(OWN_ENVIRONMENT)
    for name in ("actors", "tune_configs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "actors" / "sizes.py").write_text("LIMIT = 200\n")
    run = tmp_path / "run"
    more = ["--total-env-steps", "100000", "--ppo.num-env-runners", str(env_runners), "--run-dir", str(run)]
    with _started("train", "own_environment:Own-v0", *SMALL, *more, folder=tmp_path) as process:
        _await(process, lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0)
        (tmp_path / "slow").touch()
        time.sleep(1.0)
        for _ in range(2):  # `timeout` signals its child, and then the child's group
            os.killpg(process.pid, signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
    (tmp_path / "slow").unlink()
    assert process.returncode == 0, printed
    assert "fitting the reward model" in printed
    assert "stopped early" in printed
    assert f"not evaluated; run `rlhf-ray evaluate {run}`" in printed.replace("\n", "")
    assert "raylet" not in printed
    assert json.loads((run / "result.json").read_text())["interrupted"] is True
    assert (run / "report.html").exists()
    monkeypatch.setenv("RLHF_RAY_MODULES", "")  # where the module is stays between the run and this test
    monkeypatch.setattr(sys, "path", list(sys.path))
    capsys.readouterr()
    cli.main(["evaluate", str(run), "--episodes", "2", "--json"])
    values: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert 400 < values["env_steps"] < 100_000


@pytest.mark.soak
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_ctrl_c_while_the_first_clips_are_gathered_leaves_a_run_to_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = ["--total-env-steps", "9000000", "--fragments.initial-env-steps", "5000000", "--run-dir", str(run)]
    with _started("train", "pendulum", *SMALL, *more, folder=tmp_path) as process:
        _await(process, lambda: (run / "preferences" / "store.json").exists())
        time.sleep(2.0)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group gets it
        printed, _ = process.communicate(timeout=200)
    assert process.returncode == 0, printed
    assert "0 labels" in printed
    assert "stopped early" in printed
    assert "raylet" not in printed
    assert f"--resume {run}" in printed.replace("\n", "")
    assert (run / "report.html").exists()


@contextlib.contextmanager
def _started(*words: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=_environment(),
        cwd=folder,
    )
    try:
        yield process
    finally:
        process.kill()


def _await(process: subprocess.Popen[str], done: Callable[[], bool]) -> None:
    while not done():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.2)


def _environment() -> dict[str, str]:
    return {**os.environ, "RAY_AUTH_MODE": "disabled"}
