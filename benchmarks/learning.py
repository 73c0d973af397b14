"""Learning: the true return that a preset reaches from comparisons, over several seeds, beside PPO on the true reward.

What is run, for each seed: `rlhf-ray train PRESET --seed SEED --reference --evaluation-episodes 100`, in a process of its own.
Settings are the preset's; every environment step counts, those of the first clips too. The deterministic policy at the END of
training is evaluated on the true reward. Normalised = (learned - random) / (true-reward - random).

    python benchmarks/learning.py pendulum --seeds 0 1 2 3 4
    python benchmarks/learning.py cartpole --seeds 0 1 2 3 4
    python benchmarks/learning.py moving_dot --seeds 0 1 2
    python benchmarks/learning.py pendulum --no-reference --name asynchronous --preferences.mode asynchronous
    python benchmarks/learning.py pendulum --seeds 0 1 2 --no-reference --name killed --kills 20 --preferences.mode asynchronous \
        --ppo.num-env-runners 1

Options it does not know go to `rlhf-ray train`. Writes benchmarks/results/learning_PRESET[_NAME].json, the metrics of every run
with it, and prints a table.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import record
from rlhf_ray.measure.intervals import mean_interval
from rlhf_ray.runs.folder import RunFolder
from tests.kills import Killer


def run(preset: str, seed: int, folder: Path, reference: bool, kills: int, settings: list[str]) -> dict[str, Any]:
    """One run; what its folder says about it, with the process's wall time and which of its actors were killed when."""
    program = str(Path(sys.executable).with_name("rlhf-ray"))
    command = [program, "train", preset, "--seed", str(seed), "--run-dir", str(folder), "--evaluation-episodes", "100"]
    started = time.perf_counter()
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        process = subprocess.Popen(
            [*command, *(["--reference"] if reference else []), *settings], stdout=log, stderr=log
        )
        killer = Killer(process.pid, kills, seed, functools.partial(progress, folder))
        killer.start()
        cpu, memory = watch(process)
        killer.stop()
    if len(killer.kills) < kills:
        raise RuntimeError(f"Only {len(killer.kills)} of {kills} kills came to pass; see {folder}.log")
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed; see {folder}.log")
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [[row["env_steps"], row["true_return_mean"], row.get("held_out_accuracy")] for row in rows]
    wall = time.perf_counter() - started
    return {**result, "wall_seconds": wall, "cpu_seconds": cpu, "peak_memory_mb": memory, "curve": curve} | (
        {"kills": [asdict(kill) for kill in killer.kills]} if kills else {}
    )


def progress(folder: Path) -> float:
    """The share of its environment steps that the run in ``folder`` has taken; 0 before its first iteration."""
    last = RunFolder(folder).last_metrics()
    return last["env_steps"] / RunFolder(folder).experiment().total_env_steps if last else 0.0


def watch(process: subprocess.Popen[bytes], every: float = 10.0) -> tuple[float, float]:
    """Wait for ``process``. CPU seconds and peak memory (MB, shared pages counted once) of it and all it started.

    Looked at every ten seconds (counting shared pages is slow), so that what a process does right before it ends is missed.
    """
    cpu: dict[int, float] = {}
    peak = 0.0
    while process.poll() is None:
        memory = 0.0
        try:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        for member in family:
            try:
                cpu[member.pid] = sum(member.cpu_times()[:2])
                memory += member.memory_full_info().pss / 2**20
            except psutil.NoSuchProcess:
                continue
        peak = max(peak, memory)
        time.sleep(every)
    process.wait()
    return sum(cpu.values()), peak


def summary(returns: list[float]) -> dict[str, Any]:
    """Mean, median, 95 % interval and each value."""
    return {
        "mean": statistics.mean(returns),
        "median": statistics.median(returns),
        "interval_95": mean_interval(returns),
        "each_seed": returns,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--parallel", type=int, default=2, help="runs at a time")
    parser.add_argument("--no-reference", action="store_true")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the run folders go")
    parser.add_argument("--name", help="goes into the name of the results, beside the preset's")
    parser.add_argument("--kills", type=int, default=0, help="Ray actors of each run to kill at random moments")
    options, settings = parser.parse_known_args()
    title = "_".join(filter(None, [options.preset, options.name]))
    folder = options.runs / f"learning-{title}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    with ThreadPoolExecutor(options.parallel) as pool:
        jobs = [
            pool.submit(
                run, options.preset, seed, folder / f"seed{seed}", not options.no_reference, options.kills, settings
            )
            for seed in options.seeds
        ]
        runs = [job.result() for job in jobs]
    agents = ["random", "trained"] + ([] if options.no_reference else ["reference"])
    values = {name: summary([r[name]["true_return_mean"] for r in runs]) for name in agents}
    if not options.no_reference and (shares := [r["normalised"] for r in runs if r["normalised"] is not None]):
        values["normalised"] = summary(shares)
    outcome = {
        "settings": json.loads((folder / f"seed{options.seeds[0]}" / "config.json").read_text()),
        "summary": values,
        "runs": runs,
    }
    record(f"learning_{title}", outcome)
    for name, value in values.items():
        spread = value["interval_95"]
        bounds = "" if spread is None else f"  95 % interval {spread[0]:.1f} to {spread[1]:.1f}"
        each = ", ".join(f"{item:.2f}" if name == "normalised" else f"{item:.1f}" for item in value["each_seed"])
        print(f"{name:<10} mean {value['mean']:.2f}  median {value['median']:.2f}{bounds}  each {each}")


if __name__ == "__main__":
    main()
