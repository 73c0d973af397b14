"""How busy the learner is where it is the bottleneck: the share of a run's wall time in which it updates the policy.

An asynchronous run of a preset, with an env runner of its own process and so many epochs that learning from a batch takes longer
than sampling the next. All of the run counts, after the first iterations: what RLlib does around an update, the ring, metrics
and checkpoints. Printed is also where the rest of the time went.

    python benchmarks/busy.py pendulum --epochs 30

Writes benchmarks/results/busy_PRESET.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.record import record
from rlhf_ray import tune_configs
from rlhf_ray.actors.asynchronous import AsynchronousRing
from rlhf_ray.rllib import PreferencePPO
from rlhf_ray.runs import train as training
from rlhf_ray.runs.callbacks import Callback
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment

WARM_UP = 5
"""Iterations that are not counted: torch's first optimiser step loads a second's worth of modules."""
PARTS: dict[str, list[tuple[Any, str]]] = {
    "updating": [(LearnerGroup, "update")],
    "waiting_for_rollouts": [(EnvRunnerGroup, "fetch_ready_async_reqs")],
    "handing_out_weights": [(EnvRunnerGroup, "sync_weights")],
    "ring": [(AsynchronousRing, "take_report"), (PreferencePPO, "_use"), (PreferencePPO, "_log_ring")],
    "checkpoints": [(training, "save")],
}
"""What the run's process does, by the functions that do it. None of them calls another."""


def timed(owner: Any, name: str, part: str, spent: Counter[str]) -> None:
    """Have the seconds that the function ``name`` of ``owner`` takes added to ``spent[part]``."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*arguments, **keywords)
        finally:
            spent[part] += time.perf_counter() - started  # type: ignore[assignment]

    setattr(owner, name, wrapped)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=tune_configs.names())
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--iterations", type=int, default=60)
    options = parser.parse_args()
    experiment: Experiment = tune_configs.load(options.preset).experiment
    ppo = dataclasses.replace(experiment.ppo, num_env_runners=1, epochs=options.epochs)
    experiment = dataclasses.replace(
        experiment,
        ppo=ppo,
        preferences=dataclasses.replace(experiment.preferences, mode="asynchronous"),
        total_env_steps=experiment.resolved_fragments().initial_env_steps
        + options.iterations * ppo.iteration_env_steps,
    )
    spent, rows = Counter[str](), list[Counter[str]]()
    for part, functions in PARTS.items():
        for owner, name in functions:
            timed(owner, name, part, spent)

    class Rows(Callback):
        def on_metrics(self, metrics: dict[str, Any]) -> None:
            rows.append(spent + Counter({"wall": time.perf_counter()}))

    training.quiet()
    training.start_ray(cpus=2 + ppo.num_env_runners)
    others = psutil.cpu_percent(interval=2.0) / 100 * (psutil.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder:
        training.train(
            experiment,
            RunFolder.create(Path(folder) / "run", experiment),
            evaluation_episodes=1,
            callbacks=[Rows()],
        )
    first, last = rows[WARM_UP - 1], rows[-1]
    iterations = len(rows) - WARM_UP
    whole = last["wall"] - first["wall"]
    shares = {part: (last[part] - first[part]) / whole for part in PARTS}
    outcome = {
        "busy_share": shares["updating"],
        "shares": shares | {"rest": 1 - sum(shares.values())},
        "iterations": iterations,
        "seconds_of_an_iteration": whole / iterations,
        "cores_in_use_by_others_before": others,
    }
    record(f"busy_{options.preset}", outcome)
    print(json.dumps(outcome, indent=1))


if __name__ == "__main__":
    main()
