"""The same training on one core and on more: wall seconds of the command, and whether they learned the same to the bit.

Parts of two presets' trainings, and of HalfCheetah's (EnvPool) with the default settings. Arms take turns, AB, BA, each as a
command of its own with `--cores 1`, `--cores 2`, …, on one machine; a turn with other work on it counts like any other, so run it
on an idle one (the record says the load before each run). Every turn is recorded when it ends; started again at the same commit,
with the same `--cores`, it goes on.

    python benchmarks/cores.py              # 5 turns of each: 25 minutes on an idle machine of two cores
    python benchmarks/cores.py --turns 1 --only moving_dot --cores 1 2 4 8 16

Writes benchmarks/results/cores_N.json, with N the cores of the machine.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import ratio
from benchmarks.record import RESULTS, about, record
from benchmarks.start import PR_SET_CHILD_SUBREAPER, follow

TRAININGS = {
    "pendulum": ("pendulum", "--total-env-steps", "20000"),
    "half_cheetah": ("envpool/HalfCheetah-v4", "--total-env-steps", "40960"),
    "moving_dot": ("moving_dot", "--total-env-steps", "8000", "--preferences.comparisons", "64"),
}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=tuple(TRAININGS), default=tuple(TRAININGS))
    parser.add_argument("--cores", type=int, nargs="+", default=(1, 2), help="1 first: the others are compared with it")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    name_of_record = f"cores_{os.cpu_count()}"
    path = RESULTS / f"{name_of_record}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    trainings: dict[str, Any] = before["trainings"] if before.get("commit") == about()["commit"] else {}
    for turn in range(options.turns):
        for name in options.only:
            runs: list[dict[str, Any]] = trainings.setdefault(name, {"words": TRAININGS[name], "turns": []})["turns"]
            if turn < len(runs):
                continue
            order = options.cores if turn % 2 else options.cores[::-1]
            arms = {str(cores): _run(name, cores, turn) for cores in order}
            if len({arm["weights"] for arm in arms.values()}) > 1:
                raise RuntimeError(f"{name}, seed {turn}: the number of cores has changed what was learned.")
            runs.append(arms)
            wall = {key: [run[key]["wall_seconds"] for run in runs] for key in map(str, options.cores)}
            trainings[name]["over_one"] = {key: ratio(each, wall["1"]) for key, each in wall.items() if key != "1"}
            found = ", ".join(f"{cores}: {each['median']:.2f}" for cores, each in trainings[name]["over_one"].items())
            print(f"{name}, turn {turn}, same bits; wall time in that of one core, by cores: {found}", flush=True)
            record(name_of_record, {"trainings": trainings})


def _run(name: str, cores: int, seed: int) -> dict[str, Any]:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="cores") as folder:
        run = ["train", *TRAININGS[name], "--cores", str(cores), "--seed", str(seed), "--run-dir", f"{folder}/run"]
        found = follow([sys.executable, "-m", "rlhf_ray", *run], Path(folder))
        content = hashlib.sha256(Path(folder, "run/reward_model/reward.safetensors").read_bytes())
        rows = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()]
        content.update(str([row["true_return_mean"] for row in rows]).encode())
    return {
        "wall_seconds": found["wall_seconds"],
        "cpu_seconds": found["cpu_seconds"],
        "load_before": round(load, 1),
        "weights": content.hexdigest()[:16],
    }


if __name__ == "__main__":
    main()
