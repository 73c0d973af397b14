"""Scaling: env runners on this machine, and what a model of larger clusters says.

1. Costs. Two asynchronous runs with one env runner, with rollouts of L and of 2 L steps of each environment copy, and one with four
   env runners and very short rollouts, tell what a rollout, an iteration and learning cost in CPU seconds, process by process.
2. Check. Runs with 1, 2 and 4 env runners, which the costs were not taken from, beside what `benchmarks/cluster_model.py` says
   from those costs for this machine's cores. The runs take turns, a few iterations each.
3. Prediction. The same model for clusters of up to 100 nodes, with the settings that they need.

    python benchmarks/scaling.py                      # MuJoCo's HalfCheetah: sampling takes longer than learning

Writes benchmarks/results/scaling.json. Efficiency is env steps per second with two env runners by twice those with one.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import platform
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import scipy.optimize

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.cluster_model import POOL, Cluster, Costs, Line, simulate
from benchmarks.intervals import median_interval
from rlhf_ray.rllib import PreferencePPO, PreferencePPOConfig
from rlhf_ray.rllib.training import quiet, start_ray
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings

RESULTS = Path(__file__).parent / "results" / "scaling.json"
COPIES, LENGTH, SHORT = 8, 500, 25
FRAGMENT = 25
LARGEST = 500_000
"""Environment steps of an iteration, at most: with more env runners rollouts are shorter."""
WARM_UP, ITERATIONS = 2, 4
TURNS = 7
CHECKED = (1, 2, 4)
NETWORK = 1.25e9
"""Bytes per second: 10 Gbit/s."""


def build(environment: str, runners: int, length: int, iterations: int) -> PreferencePPO:
    """An asynchronous run that samples more than it learns: one pass over large minibatches."""
    ppo = PPOSettings(
        num_envs=COPIES, num_env_runners=runners, rollout_length=length, minibatch_size=COPIES * length, epochs=1
    )
    experiment = Experiment(
        environment=environment,
        total_env_steps=2_000 + (iterations + 1) * ppo.iteration_env_steps,
        fragments=FragmentSettings(length=FRAGMENT, initial_env_steps=2_000, pool=POOL),
        preferences=PreferenceSettings(
            mode="asynchronous",
            comparisons=100,
            initial_comparisons=50,
            rounds=iterations,
            allow_variable_horizon=True,
        ),
        reward_model=RewardModelSettings(initial_updates=20, updates=2),
        ppo=ppo,
    )
    algorithm: PreferencePPO = PreferencePPOConfig.from_experiment(experiment).build_algo()
    algorithm.begin()
    return algorithm


class Meter:
    """CPU seconds of a run's processes, by what they are for."""

    def __init__(self, algorithm: PreferencePPO):
        ring = algorithm.ring
        self.actors = {
            name: psutil.Process(ray.get(getattr(ring, name).__ray_call__.remote(_pid)))
            for name in ("fragmenter", "gatherer", "store", "trainer", "collector")
        }
        pids = algorithm.env_runner_group.foreach_env_runner(_pid, local_env_runner=False)
        self.runners = [psutil.Process(pid) for pid in pids]
        self.learning = 0.0
        update = algorithm.learner_group.update

        def timed(*arguments: Any, **keywords: Any) -> Any:
            started = time.thread_time()
            try:
                return update(*arguments, **keywords)
            finally:
                self.learning += time.thread_time() - started

        algorithm.learner_group.update = timed

    def read(self) -> Counter[str]:
        """Since each process began."""

        def seconds(process: psutil.Process) -> float:
            times = process.cpu_times()
            return float(times.user + times.system)

        me = psutil.Process()
        seen: Counter[str] = Counter({name: seconds(process) for name, process in self.actors.items()})  # type: ignore[arg-type]
        seen["runners"] = sum(map(seconds, self.runners))  # type: ignore[assignment]
        seen["learning"] = self.learning  # type: ignore[assignment]
        seen["process"] = time.process_time()  # type: ignore[assignment]
        seen["all"] = sum(seconds(child) for child in me.children(recursive=True))  # type: ignore[assignment]
        return seen


def _pid(actor: Any) -> int:
    return os.getpid()


def costs_of(algorithm: PreferencePPO, iterations: int) -> dict[str, float]:
    """CPU seconds of an iteration, by what they are for, and the spread of rollouts."""
    meter = Meter(algorithm)
    for _ in range(WARM_UP):
        algorithm.train()
    before = meter.read()
    for _ in range(iterations):
        algorithm.train()
    seen = meter.read()
    return {name: (seen[name] - before[name]) / iterations for name in seen}


def measure(environment: str) -> tuple[Costs, dict[str, Any]]:
    """The model's costs, and what they were computed from."""
    seen: dict[str, dict[str, float]] = {}
    for name, runners, length in (("one", 1, LENGTH), ("twice", 1, 2 * LENGTH), ("many", 4, SHORT)):
        iterations = 3 * ITERATIONS if name == "many" else ITERATIONS
        algorithm = build(environment, runners, length, WARM_UP + iterations)
        seen[name] = costs_of(algorithm, iterations)
        if name == "one":
            [episodes] = algorithm.env_runner_group.foreach_env_runner(
                lambda runner: len(ray.cloudpickle.dumps(runner.sample())), local_env_runner=False
            )
            rollout_bytes = float(episodes)
        algorithm.stop()
    runners = {"one": 1, "twice": 1, "many": 4}
    steps = {"one": COPIES * LENGTH, "twice": 2 * COPIES * LENGTH, "many": COPIES * SHORT}
    known = ("runners", "fragmenter", "gatherer", "store", "trainer", "collector")

    def of_a_rollout(seconds: Callable[[dict[str, float]], float]) -> Line:
        return line([(steps[name], seconds(each) / runners[name]) for name, each in seen.items()])

    # Around learning, the run's process has so much to do for an iteration, for each rollout, and for what is in it.
    around = {name: each["process"] - each["learning"] for name, each in seen.items()}
    handling, iteration = handling_of(around, runners, steps)
    one = seen["one"]
    step_bytes = rollout_bytes / steps["one"]
    costs = Costs(
        rollout=of_a_rollout(lambda each: each["runners"]),
        spread=0.03,
        step_bytes=step_bytes,
        clips_bytes=POOL * (FRAGMENT + 1) * step_bytes,
        handling=handling,
        iteration=iteration,
        learning=line([(runners[name] * steps[name], each["learning"]) for name, each in seen.items()]),
        reduce=0.02,
        clips=one["fragmenter"],
        fit=one["trainer"] + one["gatherer"] + one["store"] + one["collector"],
        ray=of_a_rollout(lambda each: each["all"] - sum(each[name] for name in known)),
    )
    return costs, {"cpu_seconds_per_iteration": seen, "costs": dataclasses.asdict(costs)}


def line(points: Sequence[tuple[float, float]]) -> Line:
    """The line through ``points`` (steps, seconds), each weighed by 1 / steps, that is nowhere below 0."""
    steps, seconds = np.array(points).T
    columns = np.stack([np.ones_like(steps), steps], 1) / np.sqrt(steps)[:, None]
    (fixed, per_step), _ = scipy.optimize.nnls(columns, seconds / np.sqrt(steps))
    return Line(float(fixed), float(per_step))


def handling_of(around: dict[str, float], runners: dict[str, int], steps: dict[str, int]) -> tuple[Line, float]:
    """What a rollout costs the run's process, and an iteration besides."""
    rows = [[runners[name], runners[name] * steps[name], 1.0] for name in around]
    (fixed, per_step, iteration), _ = scipy.optimize.nnls(np.array(rows), np.array(list(around.values())))
    return Line(float(fixed), float(per_step)), float(iteration)


def check(environment: str, costs: Costs) -> dict[str, Any]:
    """Env steps per second with 1, 2 and 4 env runners, and what the model says."""
    arms = {runners: build(environment, runners, LENGTH, WARM_UP + TURNS * ITERATIONS) for runners in CHECKED}
    speeds: dict[int, list[float]] = {runners: [] for runners in arms}
    order, draw = list(arms), random.Random(0)
    for algorithm in arms.values():
        for _ in range(WARM_UP):
            algorithm.train()
    for _ in range(TURNS):
        draw.shuffle(order)
        for runners in order:
            algorithm = arms[runners]
            algorithm.train()  # its rollouts of the last turn were ready long ago
            started, before = time.perf_counter(), algorithm.env_steps
            for _ in range(ITERATIONS - 1):
                algorithm.train()
            speeds[runners].append((algorithm.env_steps - before) / (time.perf_counter() - started))
            idle(algorithm)
    rows = []
    for runners in arms:
        measured = statistics.median(speeds[runners])
        cluster = Cluster(steps=COPIES * LENGTH, nodes=1, runners=runners, cores=os.cpu_count() or 1)
        predicted = simulate(costs, cluster).env_steps_per_second
        rows.append(
            {
                "runners": runners,
                "measured": measured,
                "predicted": predicted,
                "predicted_by_measured": predicted / measured,
                "each": speeds[runners],
            }
        )
    pairs = [two / (2 * one) for one, two in zip(speeds[1], speeds[2], strict=True)]
    for algorithm in arms.values():
        algorithm.stop()
    return {
        "rows": rows,
        "efficiency_1_to_2": statistics.median(pairs),
        "efficiency_interval_95": median_interval(pairs),
    }


def idle(algorithm: PreferencePPO) -> None:
    """Wait until its env runners, which sample ahead, have done so."""
    algorithm.env_runner_group.foreach_env_runner(lambda runner: None, local_env_runner=False)


def predict(costs: Costs) -> list[dict[str, Any]]:
    """Clusters of so many nodes of 16 cores, 15 env runners on each; the fewest learners that give nearly the most.

    Learners are once as fast as measured, and once ten times as fast, as with a GPU or smaller networks.
    """
    rows = []
    for speed, nodes in itertools.product((1.0, 10.0), (1, 2, 4, 10, 25, 50, 100)):
        best: dict[str, Any] | None = None
        for learners in (0, 1, 2, 4, 8, 16):
            cluster = Cluster(
                steps=COPIES * min(LENGTH, LARGEST // (COPIES * 15 * nodes)),
                nodes=nodes,
                runners=15,
                cores=16,
                learners=learners,
                learner_speed=speed,
                home_cores=32,
                network=NETWORK,
            )
            outcome = simulate(costs, cluster, iterations=12)
            row = {
                "learner_speed": speed,
                "nodes": nodes,
                "env_runners": 15 * nodes,
                "rollout_length": cluster.steps // COPIES,
                "learners": learners,
                "env_steps_per_second": outcome.env_steps_per_second,
                "binds": outcome.binds,
                "busy": outcome.busy,
            }
            # A learner more has to be worth it.
            if best is None or row["env_steps_per_second"] > 1.1 * best["env_steps_per_second"]:
                best = row
        assert best is not None
        rows.append(best)
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", default="HalfCheetah-v5")
    options = parser.parse_args()
    quiet()
    start_ray(cpus=16)
    load = os.getloadavg()
    costs, outcome = measure(options.environment)
    print(json.dumps(outcome["costs"], indent=1), flush=True)
    outcome |= {"environment": options.environment, "check": check(options.environment, costs)}
    print(json.dumps(outcome["check"], indent=1), flush=True)
    outcome["prediction"] = predict(costs)
    outcome["machine"] = {"cpus": psutil.cpu_count(), "platform": platform.platform(), "load_before": load}
    RESULTS.write_text(json.dumps(outcome, indent=1) + "\n")
    for row in outcome["prediction"]:
        print(*(value for value in row.values() if not isinstance(value, dict)))


if __name__ == "__main__":
    main()
