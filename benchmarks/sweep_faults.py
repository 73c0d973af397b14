"""Sweep under faults: trials of a sweep are killed (kill -9 of the trial's process) at random, again and again.

Every trial has to come to its end, with all the environment steps and labels of its budget, each label once; and no process of the
sweep's may be left over.

    python benchmarks/sweep_faults.py --trials 8 --every 30 --for 300

Writes benchmarks/results/sweep_faults.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import threading
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import record

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # no token in the home folder
from rlhf_ray import tune_configs
from rlhf_ray.runs.quiet import quiet
from rlhf_ray.runs.train import start_ray
from rlhf_ray.settings import Experiment
from rlhf_ray.store import PreferenceStore
from rlhf_ray.sweeps import Plan, sweep

ACTORS = ("SweepTrial", "FragmentPool", "GathererActor", "RolloutCollector", "RewardTrainerActor", "PreferenceStore")


def processes(*names: str) -> list[psutil.Process]:
    """This run's Ray processes of actors with these names."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if words.startswith("ray::") and any(name in words for name in names):
            found.append(process)
    return found


class Killer(threading.Thread):
    """Kills a trial's process, drawn at random, every so often."""

    def __init__(self, every: float, duration: float, seed: int):
        super().__init__(daemon=True)
        self.every, self.duration, self.random = every, duration, random.Random(seed)
        self.kills: list[float] = []

    def run(self) -> None:
        """Kill, until the time is over."""
        started = time.monotonic()
        while time.monotonic() - started < self.duration:
            time.sleep(self.every)
            if trials := processes("SweepTrial"):  # none while all of them are starting
                self.random.choice(trials).kill()
                self.kills.append(time.monotonic() - started)
                print(f"killed a trial, the {len(self.kills)}th time", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", nargs="?", default="pendulum", choices=tune_configs.names())
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two kills")
    parser.add_argument(
        "--for", dest="duration", type=float, default=300.0, help="seconds after which no more are killed"
    )
    parser.add_argument("--total-env-steps", type=int, default=None, help="of each trial; the preset's unless given")
    parser.add_argument("--checkpoint-every", type=int, default=2, help="iterations; what a kill costs at most")
    parser.add_argument("--cpus", type=int, default=4, help="that Ray is told it has; two for each trial at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/sweep-faults"), help="where the sweep goes")
    options = parser.parse_args()
    module = tune_configs.load(options.preset)
    experiment: Experiment = dataclasses.replace(
        module.experiment,
        total_env_steps=options.total_env_steps or module.experiment.total_env_steps,
        seed=options.seed,
        checkpoint_every=options.checkpoint_every,
    )
    quiet()
    start_ray(cpus=options.cpus)
    killer = Killer(options.every, options.duration, options.seed)
    started = time.perf_counter()
    killer.start()
    outcome = sweep(
        Plan(experiment, tune_configs.search_space(options.preset), trials=options.trials, name=options.preset),
        options.runs.absolute(),
    )
    seconds = time.perf_counter() - started
    deadline = time.monotonic() + 30
    while (left := [process.name() for process in processes(*ACTORS)]) and time.monotonic() < deadline:
        time.sleep(0.5)
    labels = {}
    for trial in outcome.trials:
        held = PreferenceStore(options.runs / trial["name"] / "preferences", create=False).load()
        ids = [] if held is None else list(held.pairs.ids)
        labels[trial["name"]] = {"labels": len(ids), "twice": len(ids) - len(set(ids))}
    told = ("status", "env_steps", "objective")
    result = {
        "seconds": seconds,
        "kills": killer.kills,
        "complete": outcome.complete,
        "finished": sum(trial["status"] == "finished" for trial in outcome.trials),
        "trials": [{name: trial[name] for name in told} | labels[trial["name"]] for trial in outcome.trials],
        "actors_left": left,
    }
    record("sweep_faults", result)
    print(json.dumps({name: value for name, value in result.items() if name != "trials"}, indent=1))
    budget = experiment.preferences.comparisons
    assert outcome.complete
    assert result["finished"] == options.trials
    assert all(of == {"labels": budget, "twice": 0} for of in labels.values()), labels
    assert not left, left


if __name__ == "__main__":
    main()
