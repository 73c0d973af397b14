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
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import record
from rlhf_ray.data.checkpoints import last_checkpoint
from rlhf_ray.settings import PreferenceSettings
from tests.whole_runs import differences, kill_everything, left_behind, options, small, start

ITERATIONS = 19
POLL_S = 0.02


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
        "kills": kills,
        "differences": differ,
        "iterations": ITERATIONS,
        "checkpoint_every": small().checkpoint_every,
        "seconds_undisturbed": {"first_iteration": times[1] - times[0], "whole": times[-1] - times[0]},
    }
    record("resume", outcome)
    print(json.dumps(outcome, indent=1))


if __name__ == "__main__":
    main()
