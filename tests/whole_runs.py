"""Whole runs: a small experiment, runs in processes of their own, and what they leave behind. Not a test itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors.numpy import load_file

from benchmarks.kernels import HOOKS
from rlhf_ray.runs.folder import RunFolder, read_metrics
from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
    to_json,
)
from rlhf_ray.store import PreferenceStore

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "COLUMNS": "200"}
"""Ray as a library, without what it would write to the home folder."""
TIMES = {"seconds", "fit_seconds", "iteration_seconds", "sampling_seconds", "learning_seconds"}
"""Metrics that no two runs share."""


def with_path(*folders: Path) -> dict[str, str]:
    """This environment with these folders alone on PYTHONPATH, and the hooks of `benchmarks/kernels.py` where it has put them."""
    hooks = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder == str(HOOKS)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, folders), *hooks])}


def small(**changes: Any) -> Experiment:
    """Pendulum for four iterations whose ends fall into episodes, with a checkpoint after every second one."""
    values: dict[str, Any] = {
        "total_env_steps": 500 + 4 * 600,
        "seed": 3,
        "checkpoint_every": 2,
        "fragments": FragmentSettings(length=10, initial_env_steps=500, pool=60, exploration_env_steps=0),
        "preferences": PreferenceSettings(
            comparisons=40, initial_comparisons=10, rounds=3, held_out_share=0.2, selection="disagreement"
        ),
        "reward_model": RewardModelSettings(hidden=(16,), initial_updates=20, updates=5),
        "ppo": PPOSettings(num_envs=4, rollout_length=150, minibatch_size=200, epochs=2, hidden=(16,), kl_target=1e-4),
    }
    return Experiment(**(values | changes))


def start(*words: str, program: str = "from rlhf_ray.cli import main; main()") -> subprocess.Popen[str]:
    """`rlhf-ray` (or another program), with Ray and everything in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def options(experiment: Experiment) -> list[str]:
    """The experiment as options of the command line."""
    words = []
    for name, value in to_json(experiment).items():
        if name == "environment":
            continue
        for field, of in value.items() if isinstance(value, dict) else [("", value)]:
            if isinstance(of, bool):
                words.append(f"--{name}.{'' if of else 'no-'}{field}")
            else:
                words += [f"--{name}.{field}".rstrip("."), *map(str, of if isinstance(of, list) else [of])]
    return words


def kill_everything(process: subprocess.Popen[str]) -> None:
    """Kill -9 of the run, and of Ray's processes, as when the machine goes down."""
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def finish(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said


def left_behind(run: Path) -> dict[str, Any]:
    comparisons = PreferenceStore(run / "preferences").load()
    checkpoint = RunFolder(run).checkpoint()
    module = checkpoint / "learner_group" / "learner" / "rl_module" / "default_policy" / "module_state.pkl"
    rows = [{k: v for k, v in row.items() if k not in TIMES} for row in read_metrics(run / "metrics.jsonl")]
    return {
        "ids": comparisons.pairs.ids,
        "preferences": comparisons.preferences.tolist(),
        "reward": load_file(run / "reward_model" / "reward.safetensors"),
        "policy": module.read_bytes(),
        "metrics": [json.dumps(row, sort_keys=True) for row in rows],
        "result": json.loads((run / "result.json").read_text())["trained"],
    }


@contextmanager
def running(algorithm: Any) -> Iterator[Any]:
    """Context manager: an RLlib algorithm that is stopped at the end."""
    try:
        yield algorithm
    finally:
        algorithm.stop()


def stored_by(algorithm: Any) -> Any:
    """The comparisons that a training has stored so far."""
    members = algorithm.ring.actors
    return members.executor.get(members.store.call(PreferenceStore.load))


def differences(expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """The names of what is not the same in two results of `left_behind`."""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
        return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)

    return [name for name in expected if not same(expected[name], got[name])]


def outcome(algorithm: Any) -> dict[str, Any]:
    """What two equal trainings have to agree on."""
    comparisons = stored_by(algorithm)
    return {
        "ids": comparisons.pairs.ids,
        "preferences": comparisons.preferences.tolist(),
        "reward": dict(algorithm.ring.newest_reward()),
        "policy": algorithm.learner_group.get_weights(["default_policy"])["default_policy"],
        "env_steps": algorithm.env_steps,
    }


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    for name in ("ids", "preferences", "env_steps"):
        assert first[name] == second[name], name
    for group in ("reward", "policy"):
        for name, value in first[group].items():
            np.testing.assert_array_equal(value, second[group][name], err_msg=f"{group} {name}")


def check_resumes(config: Any, checkpoint: Path) -> None:
    """Train to the end, and again from the checkpoint of the second iteration: it comes to the same bit for bit."""
    with running(config.build_algo()) as algorithm:
        while not algorithm.finished:
            algorithm.train()
            if algorithm.training_iteration == 2:
                algorithm.save_to_path(str(checkpoint))
        undisturbed = outcome(algorithm)
    with running(type(algorithm).from_checkpoint(str(checkpoint))) as algorithm:
        while not algorithm.finished:
            algorithm.train()
        assert_same(undisturbed, outcome(algorithm))
