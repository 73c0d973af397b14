"""Resume: a run that is killed with everything it started, again and again, and what it comes to in the end.

One run is left alone. Another with the same settings and seed is killed (kill -9 of the run and all of Ray's processes), each time
resumed, and killed again. The moments are drawn from a seed and spread over the whole run, one in each tenth of it: a moment is
so many iterations, counted in the run's metrics, and then a part of the time that the undisturbed run took from there to the next.
Before the first iteration everything starts and the first clips are labelled; after the last come the last checkpoint, the
evaluation and the report. Labels, reward model, policy, metrics and the final evaluation have to be the same, bit for bit.

    python benchmarks/resume.py --kills 10

Prints what differs, and writes benchmarks/results/resume.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors.numpy import load_file

from rlhf_ray.data.checkpoints import last_checkpoint
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

RESULTS = Path(__file__).parent / "results"
TIMES = {"seconds", "fit_seconds", "ppo_seconds", "sampling_seconds", "learning_seconds"}
"""Metrics that no two runs share."""
ITERATIONS = 19
POLL_S = 0.02


def small(**changes: Any) -> Experiment:
    """Pendulum for six iterations whose ends fall into episodes, with a checkpoint after every second one."""
    values: dict[str, Any] = {
        "total_env_steps": 500 + 6 * 600,
        "seed": 3,
        "checkpoint_every": 2,
        "fragments": FragmentSettings(length=10, initial_env_steps=500, pool=60, exploration_env_steps=0),
        "preferences": PreferenceSettings(
            comparisons=40, initial_comparisons=10, rounds=5, held_out_share=0.2, selection="disagreement"
        ),
        "reward_model": RewardModelSettings(hidden=(16,), initial_updates=20, updates=5),
        "ppo": PPOSettings(num_envs=4, rollout_length=150, minibatch_size=200, epochs=2, hidden=(16,)),
    }
    return Experiment(**(values | changes))


# Ray as a library, without what it would write to the home folder.
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "COLUMNS": "200"}


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


def launch(run: Path, words: list[str]) -> subprocess.Popen[str]:
    """Begin the run, or go on with it where there is something of it."""
    begun = (run / "config.json").exists()
    return start("train", *(["--resume", str(run)] if begun else ["Pendulum-v1", "--run-dir", str(run), *words]))


def alive(process: subprocess.Popen[str], run: Path, words: list[str]) -> subprocess.Popen[str]:
    """``process``; or another where Ray did not come up within the 30 s it gives itself, as may be on a busy machine.

    Raises:
        RuntimeError: the run failed for another reason.
    """
    if process.poll() in (None, 0):
        return process
    said, _ = process.communicate()
    if "timed out during startup" not in said:
        raise RuntimeError(said)
    return launch(run, words)


def progress(run: Path, words: list[str]) -> list[float]:
    """Have the run go on to its end. When it began, when each of its iterations was in its metrics, and when it ended."""
    process = launch(run, words)
    times = [time.monotonic()]
    while process.poll() != 0:
        time.sleep(POLL_S)
        process = alive(process, run, words)
        times += [time.monotonic()] * (iterations(run) + 1 - len(times))
    return [*times, time.monotonic()]


def iterations(run: Path) -> int:
    """How many iterations are in the metrics of ``run``."""
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def moments(kills: int, draw: random.Random) -> list[float]:
    """Moments between 0, the beginning, and ``ITERATIONS + 1``, the end: one drawn in each of ``kills`` equal parts."""
    return [(part + draw.random()) * (ITERATIONS + 1) / kills for part in range(kills)]


def run_to(moment: float, run: Path, words: list[str], undisturbed: list[float]) -> subprocess.Popen[str]:
    """Have the run go on to ``moment``, or to its end where that came before."""
    process, done = launch(run, words), int(moment)
    while iterations(run) < done and process.poll() != 0:
        time.sleep(POLL_S)
        process = alive(process, run, words)
    deadline = time.monotonic() + (moment - done) * (undisturbed[done + 1] - undisturbed[done])
    while time.monotonic() < deadline and process.poll() != 0:
        time.sleep(POLL_S)
        process = alive(process, run, words)
    return process


def left_behind(run: Path) -> dict[str, Any]:
    comparisons = PreferenceStore(run / "preferences").load()
    assert comparisons is not None
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


def differences(expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """The names of what is not the same in two results of `left_behind`."""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
        return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)

    return [name for name in expected if not same(expected[name], got[name])]


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    chosen = parser.parse_args()
    words = options(
        small(
            total_env_steps=500 + ITERATIONS * 600,
            preferences=PreferenceSettings(
                comparisons=80, initial_comparisons=10, rounds=12, held_out_share=0.2, selection="disagreement"
            ),
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        undisturbed, run = Path(folder) / "undisturbed", Path(folder) / "killed"
        times = progress(undisturbed, words)
        assert len(times) == ITERATIONS + 2, f"{len(times) - 2} iterations"
        kills: list[dict[str, float | None]] = []
        for moment in moments(chosen.kills, random.Random(chosen.seed)):
            process = run_to(moment, run, words, times)
            if process.poll() == 0:
                break
            kill_everything(process)
            checkpoint = last_checkpoint(run / "checkpoints")
            saved = None if checkpoint is None else int(checkpoint.name)
            kills.append({"moment": moment, "iterations": iterations(run), "checkpoint": saved})
            print(kills[-1], flush=True)
        else:
            progress(run, words)
        differ = differences(left_behind(undisturbed), left_behind(run))
    outcome = {
        "command": shlex.join(["python", *sys.argv]),
        "kills": kills,
        "differences": differ,
        "iterations": ITERATIONS,
        "checkpoint_every": small().checkpoint_every,
        "seconds_undisturbed": {"first_iteration": times[1] - times[0], "whole": times[-1] - times[0]},
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "resume.json").write_text(json.dumps(outcome, indent=1) + "\n")
    print(json.dumps(outcome, indent=1))


if __name__ == "__main__":
    main()
