"""Scaling: env runners on this machine, and what a model of larger clusters says.

1. Costs. Two asynchronous runs with one env runner, with rollouts of L and of 2 L steps of each environment copy, and one with four
   env runners and very short rollouts, tell what a rollout, an iteration and learning cost in CPU seconds, process by process,
   and how much the time of rollouts varies.
2. Check. The env steps per second of runs with 1, 2 and 4 env runners (where there are cores for them, also 8 and 15), in those of
   one env runner times their number (`efficiency`), and beside what `benchmarks/cluster_model.py` says from those costs, which
   are CPU seconds, for this machine's cores; and by how much more CPU time a rollout takes where more cores are busy, which the
   model does not know. All runs take turns, a few iterations each, since the speed of a shared machine changes from one second to
   the next.
3. Prediction. The same model for clusters of up to 100 nodes, with the settings that they need.

    python benchmarks/scaling.py                      # MuJoCo's HalfCheetah: sampling takes longer than learning

Writes benchmarks/results/scaling.json; intervals are from bootstrap samples of the turns. Three turns: four minutes on 16 cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import scipy.optimize

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.cluster_model import POOL, Cluster, Costs, Line, simulate
from benchmarks.intervals import bootstrap
from benchmarks.record import record
from rlhf_ray.actors import executor
from rlhf_ray.rllib import PreferencePPO, PreferencePPOConfig
from rlhf_ray.runs.quiet import quiet
from rlhf_ray.runs.train import start_ray
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings

COPIES, LENGTH, SHORT = 8, 500, 25
FRAGMENT = 25
LARGEST = 500_000
"""Environment steps of an iteration, at most: with more env runners rollouts are shorter."""
WARM_UP, ITERATIONS = 2, 3
ROLES = ("runners", "process", "learning", "ray", "pool", "gatherer", "store", "trainer", "collector")
"""What CPU seconds are counted of: the env runners, the run's process, what of that is learning, Ray's own processes, the ring."""
REDUCE = 0.02
"""Seconds of an iteration for each doubling of the learners, to agree on gradients: assumed, since no run here has several."""
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
        ring: Any = algorithm.ring
        actors = {
            "gatherer": ring.actors.gatherers[0].actor,
            "collector": ring.source.collector,
            **{name: getattr(ring.actors, name) for name in ("pool", "store", "trainer")},
        }
        self.actors = {name: psutil.Process(ray.get(actor.run(_pid))) for name, actor in actors.items()}
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
        others = (child for child in me.children(recursive=True) if not child.name().startswith("ray::"))
        seen["ray"] = sum(map(seconds, others))  # type: ignore[assignment]
        return seen


def _pid(actor: Any) -> int:
    return os.getpid()


@dataclass(frozen=True)
class Arm:
    """A run that takes turns with others: so many env runners, rollouts of so many steps of each environment copy."""

    runners: int
    length: int
    iterations: int = ITERATIONS
    """That are measured in a turn."""

    @property
    def steps(self) -> int:
        """Environment steps of a rollout."""
        return COPIES * self.length


CORES = os.cpu_count() or 1
ARMS = {
    "one": Arm(1, LENGTH),
    "two": Arm(2, LENGTH),
    "four": Arm(4, LENGTH),
    "eight": Arm(8, LENGTH),
    "fifteen": Arm(15, LENGTH),
    "twice": Arm(1, 2 * LENGTH),
    "many": Arm(4, SHORT, 4 * ITERATIONS),
}
COSTS = ("one", "twice", "many")
"""The arms that costs are taken from (CPU seconds)."""
CHECKED = ("one", "two", "four", *(name for name in ("eight", "fifteen") if ARMS[name].runners < CORES))
"""Those that the model's env steps per second are compared with."""


def measure(environment: str, names: Sequence[str], count: int) -> tuple[dict[str, list[Turn]], float]:
    """``count`` turns of each of these arms, the first of them "one", and the bytes of an environment step in a rollout."""
    algorithms = {
        name: build(environment, ARMS[name].runners, ARMS[name].length, WARM_UP + count * (1 + ARMS[name].iterations))
        for name in names
    }
    meters = {name: Meter(algorithm) for name, algorithm in algorithms.items()}
    for algorithm in algorithms.values():
        for _ in range(WARM_UP):
            algorithm.train()
        idle(algorithm)
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    order, draw = list(names), random.Random(0)
    for number in range(count):
        draw.shuffle(order)
        for name in order:
            turns[name].append(take_turn(algorithms[name], meters[name], ARMS[name].iterations))
        print("turn", number, {name: round(turns[name][-1].speed) for name in names}, flush=True)
    [rollout_bytes] = algorithms["one"].env_runner_group.foreach_env_runner(
        lambda runner: len(ray.cloudpickle.dumps(runner.sample())), local_env_runner=False
    )
    for algorithm in algorithms.values():
        algorithm.stop()
    return turns, float(rollout_bytes) / ARMS["one"].steps


@dataclass(frozen=True)
class Turn:
    """Environment steps, the wall seconds of each iteration, and CPU seconds by what they are for, of a turn."""

    steps: int
    seconds: list[float]
    cpu: dict[str, float]

    @property
    def speed(self) -> float:
        """Environment steps per second."""
        return self.steps / sum(self.seconds)


def take_turn(algorithm: PreferencePPO, meter: Meter, iterations: int) -> Turn:
    """Some iterations, after one whose rollouts were ready since the last turn."""
    algorithm.train()
    before, steps, seconds = meter.read(), algorithm.env_steps, []
    for _ in range(iterations):
        started = time.perf_counter()
        algorithm.train()
        seconds.append(time.perf_counter() - started)
    after = meter.read()
    taken = algorithm.env_steps - steps
    idle(algorithm)
    return Turn(taken, seconds, {name: after[name] - before[name] for name in after})


def idle(algorithm: PreferencePPO) -> None:
    """Wait until its env runners, which sample ahead, have done so."""
    algorithm.env_runner_group.foreach_env_runner(lambda runner: None, local_env_runner=False)


def costs_of(turns: dict[str, list[Turn]], step_bytes: float) -> Costs:
    """The model's costs: CPU seconds, means over all turns."""
    seen = {
        name: {
            what: sum(turn.cpu[what] for turn in turns[name]) / (len(turns[name]) * ARMS[name].iterations)
            for what in ROLES
        }
        for name in COSTS
    }

    def of_a_rollout(seconds: Callable[[dict[str, float]], float]) -> Line:
        return line([(ARMS[name].steps, seconds(each) / ARMS[name].runners) for name, each in seen.items()])

    # Around learning, the run's process has so much to do for an iteration, for each rollout, and for what is in it.
    handling, iteration = handling_of({name: each["process"] - each["learning"] for name, each in seen.items()})
    one, of_one = seen["one"], [seconds for turn in turns["one"] for seconds in turn.seconds]
    return Costs(
        rollout=of_a_rollout(lambda each: each["runners"]),
        spread=statistics.stdev(of_one) / statistics.mean(of_one),
        step_bytes=step_bytes,
        clips_bytes=POOL * (FRAGMENT + 1) * step_bytes,
        handling=handling,
        iteration=iteration,
        learning=line([(ARMS[name].runners * ARMS[name].steps, each["learning"]) for name, each in seen.items()]),
        reduce=REDUCE,
        clips=one["pool"],
        fit=one["trainer"] + one["gatherer"] + one["store"] + one["collector"],
        ray=of_a_rollout(lambda each: each["ray"]),
    )


def line(points: Sequence[tuple[float, float]]) -> Line:
    """The line through ``points`` (steps, seconds), each weighed by 1 / steps, that is nowhere below 0."""
    steps, seconds = np.array(points).T
    columns = np.stack([np.ones_like(steps), steps], 1) / np.sqrt(steps)[:, None]
    (fixed, per_step), _ = scipy.optimize.nnls(columns, seconds / np.sqrt(steps))
    return Line(float(fixed), float(per_step))


def handling_of(around: dict[str, float]) -> tuple[Line, float]:
    """What a rollout costs the run's process, and an iteration besides; of what an iteration costs it in each arm."""
    rows = [[ARMS[name].runners, ARMS[name].runners * ARMS[name].steps, 1.0] for name in around]
    (fixed, per_step, iteration), _ = scipy.optimize.nnls(np.array(rows), np.array(list(around.values())))
    return Line(float(fixed), float(per_step)), float(iteration)


def speed(name: str, of: dict[str, list[Turn]]) -> float:
    """Env steps per second of an arm, over all turns."""
    return sum(turn.steps for turn in of[name]) / sum(sum(turn.seconds) for turn in of[name])


def with_interval(
    value: Callable[[dict[str, list[Turn]]], float], turns: dict[str, list[Turn]], draws: int
) -> dict[str, Any]:
    """``value`` of all turns, and its bootstrap 95 % interval."""

    def of(picked: Sequence[int]) -> float:
        return value({name: [each[i] for i in picked] for name, each in turns.items()})

    return {"value": value(turns), "interval_95": bootstrap(range(len(turns["one"])), of, draws)}


def efficiency(name: str, of: dict[str, list[Turn]]) -> float:
    """Speed of these env runners, in that of one times their number."""
    return speed(name, of) / (ARMS[name].runners * speed("one", of))


def check(turns: dict[str, list[Turn]], step_bytes: float) -> dict[str, Any]:
    """Env steps per second of real runs beside the model's, over all turns, with bootstrap intervals."""

    def predicted(name: str, of: dict[str, list[Turn]], rollout: float = 1.0) -> float:
        """The model's, where a rollout costs so many times what it does with one env runner."""
        cluster = Cluster(steps=ARMS[name].steps, nodes=1, runners=ARMS[name].runners, cores=CORES)
        costs = costs_of(of, step_bytes)
        slower = Line(rollout * costs.rollout.fixed, rollout * costs.rollout.per_step)
        return simulate(dataclasses.replace(costs, rollout=slower), cluster).env_steps_per_second

    def slowdown(name: str, of: dict[str, list[Turn]]) -> float:
        """CPU seconds of a rollout, in those of one env runner.

        Busy cores that share caches, or a host, slow each other. Also, a turn begins with all env runners at the start of a rollout
        and ends with some on the way, whose work counts here and whose steps don't.
        """

        def rollout(arm: str) -> float:
            return sum(turn.cpu["runners"] for turn in of[arm]) / sum(turn.steps for turn in of[arm])

        return rollout(name) / rollout("one")

    return {
        "rows": [
            {
                "runners": ARMS[name].runners,
                "measured": speed(name, turns),
                "efficiency": with_interval(lambda of, name=name: efficiency(name, of), turns, 200),
                "predicted": predicted(name, turns),
                "rollout_slowdown": with_interval(lambda of, name=name: slowdown(name, of), turns, 200),
                "predicted_by_measured_with_slowdown": with_interval(
                    lambda of, name=name: predicted(name, of, slowdown(name, of)) / speed(name, of), turns, 200
                ),
                "predicted_by_measured": with_interval(
                    lambda of, name=name: predicted(name, of) / speed(name, of), turns, 200
                ),
            }
            for name in CHECKED
        ],
    }


def predict(costs: Costs) -> list[dict[str, Any]]:
    """Clusters of so many nodes of 16 cores, 15 env runners on each; the fewest learners within a tenth of the fastest.

    Learners are once as fast as measured, and once ten times as fast, as with a GPU or smaller networks.
    """
    rows = []
    for learner_speed, nodes in itertools.product((1.0, 10.0), (1, 2, 4, 10, 25, 50, 100)):
        choices = []
        for learners in (0, 1, 2, 4, 8, 16):
            cluster = Cluster(
                steps=COPIES * min(LENGTH, LARGEST // (COPIES * 15 * nodes)),
                nodes=nodes,
                runners=15,
                cores=16,
                learners=learners,
                learner_speed=learner_speed,
                home_cores=32,
                network=NETWORK,
            )
            outcome = simulate(costs, cluster, iterations=12)
            choices.append(
                {
                    "learner_speed": learner_speed,
                    "nodes": nodes,
                    "env_runners": 15 * nodes,
                    "rollout_length": cluster.steps // COPIES,
                    "learners": learners,
                    "env_steps_per_second": outcome.env_steps_per_second,
                    "binds": outcome.binds,
                    "busy": outcome.busy,
                }
            )
        fastest: float = max(each["env_steps_per_second"] for each in choices)  # type: ignore[type-var]
        rows.append(next(each for each in choices if each["env_steps_per_second"] >= 0.9 * fastest))  # type: ignore[operator]
    return rows


def outcome_of(environment: str, turns: dict[str, list[Turn]], step_bytes: float) -> dict[str, Any]:
    """Costs, check and prediction."""
    costs = costs_of(turns, step_bytes)
    return {
        "environment": environment,
        "costs": dataclasses.asdict(costs),
        "check": check(turns, step_bytes),
        "prediction": predict(costs),
        "turns": {name: [dataclasses.asdict(turn) for turn in each] for name, each in turns.items()},
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", default="HalfCheetah-v5")
    parser.add_argument("--turns", type=int, default=6)
    options = parser.parse_args()
    quiet()
    start_ray(cpus=64)  # for all arms at once
    executor.one_machine = lambda: False  # each actor in a process of its own, as on several
    turns, step_bytes = measure(options.environment, (*CHECKED, *COSTS[1:]), options.turns)
    outcome = outcome_of(options.environment, turns, step_bytes)
    print(json.dumps({name: outcome[name] for name in ("costs", "check")}, indent=1))
    record("scaling", outcome)
    for row in outcome["prediction"]:
        print(*(value for value in row.values() if not isinstance(value, dict)))


if __name__ == "__main__":
    main()
