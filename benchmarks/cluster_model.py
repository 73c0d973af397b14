"""A model of an asynchronous run on a cluster: what each stage costs, and an event simulation of how they wait for each other.

Processes share the cores of their node evenly, as far as there are fewer cores than processes with something to do. One iteration,
as in rlhf_ray/rllib/rollouts.py: the run's process waits for the rollouts of all env runners, starts the next ones, has the
learners learn from those it got, and hands out weights. Beside it the fragmenter takes a batch of clips of each rollout, and the
reward trainer its gradient steps.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Costs:
    """CPU seconds, measured.

    Attributes:
        rollout: of one rollout, in its env runner.
        spread: of rollouts, the coefficient of variation.
        steps: environment steps of one rollout.
        rollout_bytes: of one, as it goes to a learner.
        clips_bytes: of one's clips, as they go to the fragmenter.
        per_rollout: of the run's process for one rollout: starting it, its metrics, new weights.
        per_iteration: of the run's process for one iteration, whatever the number of rollouts, without learning.
        learn_fixed, learn_per_step: of the learner for an iteration, and for each environment step in it.
        reduce: of each learner to agree on the gradients of an iteration, for each doubling of the learners.
        clips: of the fragmenter for one rollout's clips.
        fit: of the reward trainer for an iteration.
        others_per_rollout: of Ray's own processes on the env runner's node for one rollout.
    """

    rollout: float
    spread: float
    steps: int
    rollout_bytes: float
    clips_bytes: float
    per_rollout: float
    per_iteration: float
    learn_fixed: float
    learn_per_step: float
    reduce: float
    clips: float
    fit: float
    others_per_rollout: float


@dataclass(frozen=True)
class Cluster:
    """Machines.

    Attributes:
        nodes: those with env runners.
        runners: env runners on each.
        cores: of each.
        learners: 0: the run's process learns.
        learner_speed: of a learner, in the measured one's: above 1 with a GPU.
        home_cores: of the node with the run's process, the ring and the learners; None: that is the first of ``nodes``.
        network: bytes per second of a node.
    """

    nodes: int
    runners: int
    cores: int
    learners: int = 0
    learner_speed: float = 1.0
    home_cores: int | None = None
    network: float = 1.25e9


@dataclass(frozen=True)
class Outcome:
    """What a simulation came to: environment steps per second, and the share of the time that each stage was busy."""

    env_steps_per_second: float
    busy: dict[str, float]

    @property
    def binds(self) -> str:
        """The busiest stage."""
        return max(self.busy, key=lambda stage: self.busy[stage])


Step = tuple[str, Any, float]
Process = Generator[Step, None, None]


class _Node:
    """Cores that processes share. ``version`` tells an outdated event from a current one."""

    def __init__(self, cores: int):
        self.cores = cores
        self.left: dict[int, float] = {}
        self.looked = 0.0
        self.version = 0

    def pass_until(self, now: float) -> None:
        done = (now - self.looked) * self.rate
        for process in self.left:
            self.left[process] -= done
        self.looked = now

    @property
    def rate(self) -> float:
        return min(1.0, self.cores / len(self.left)) if self.left else 1.0


class Simulation:
    """Runs processes, which are generators that yield what they do next: ("work", node, seconds), ("sleep", None, seconds),
    ("wait", signal, count) until a signal was given so often."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._processes: dict[int, Process] = {}
        self._signals: dict[Any, float] = {}
        self._waiting: dict[Any, list[tuple[float, int]]] = {}
        self._numbers = itertools.count()

    def start(self, process: Process) -> None:
        """Begin a process."""
        number = next(self._numbers)
        self._processes[number] = process
        self._resume(number)

    def give(self, signal: Any) -> None:
        """Give a signal once."""
        self._signals[signal] = self._signals.get(signal, 0.0) + 1
        ready = [waiter for waiter in self._waiting.get(signal, []) if waiter[0] <= self._signals[signal]]
        if ready:
            self._waiting[signal] = [waiter for waiter in self._waiting[signal] if waiter not in ready]
            for _, number in ready:
                self._at(self.now, number)

    def run(self) -> None:
        """Run until nothing is left to happen."""
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            if isinstance(what, int):
                self._resume(what)
            else:
                node, version = what
                if version == node.version:
                    self._serve(node)

    def _at(self, when: float, what: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def _resume(self, number: int) -> None:
        for kind, what, amount in self._processes[number]:
            if kind == "work":
                node: _Node = what
                node.pass_until(self.now)
                node.left[number] = amount
                self._plan(node)
                return
            if kind == "sleep":
                self._at(self.now + amount, number)
                return
            if self._signals.get(what, 0.0) < amount:
                self._waiting.setdefault(what, []).append((amount, number))
                return
        del self._processes[number]

    def _plan(self, node: _Node) -> None:
        node.version += 1
        if node.left:
            first = max(0.0, min(node.left.values())) / node.rate
            self._at(self.now + first, (node, node.version))

    def _serve(self, node: _Node) -> None:
        node.pass_until(self.now)
        done = [number for number, left in node.left.items() if left <= 1e-9]
        for number in done:
            del node.left[number]
        self._plan(node)
        for number in done:
            self._resume(number)


def simulate(costs: Costs, cluster: Cluster, iterations: int = 30, seed: int = 0) -> Outcome:
    """``iterations`` iterations on ``cluster``; the first fifth is not counted."""
    simulation, rng = Simulation(), random.Random(seed)
    runners = cluster.nodes * cluster.runners
    nodes = [_Node(cluster.cores) for _ in range(cluster.nodes)]
    home = nodes[0] if cluster.home_cores is None else _Node(cluster.home_cores)
    warm_up = max(1, iterations // 5)
    busy = dict.fromkeys(("env runners", "the run's process", "learners", "network", "fragmenter", "reward trainer"), 0.0)
    began: list[float] = []
    sigma = math.sqrt(math.log(1 + costs.spread**2))

    def note(stage: str, seconds: float) -> None:
        if began:
            busy[stage] += seconds

    def runner(number: int) -> Process:
        node = nodes[number % cluster.nodes]
        for iteration in range(iterations):
            yield "wait", "start", iteration + 1
            seconds = costs.rollout * rng.lognormvariate(-(sigma**2) / 2, sigma)
            began_at = simulation.now
            yield "work", node, seconds
            note("env runners", (simulation.now - began_at) / runners)
            simulation.give(("rollout", iteration))
            simulation.give("clips")
            yield "work", node, costs.others_per_rollout

    def learner(number: int, learners: int) -> Process:
        per_learner = costs.learn_fixed + costs.learn_per_step * runners * costs.steps / learners
        reduce = costs.reduce * math.log2(learners) if learners > 1 else 0.0
        for iteration in range(iterations):
            yield "wait", "learn", iteration + 1
            fetching = runners * costs.rollout_bytes / learners / cluster.network if cluster.nodes > 1 else 0.0
            note("network", fetching / learners)
            yield "sleep", None, fetching
            yield "work", home, per_learner / cluster.learner_speed + reduce
            note("learners", (per_learner / cluster.learner_speed + reduce) / learners)
            simulation.give(("learned", iteration))

    def main() -> Process:
        learners = max(1, cluster.learners)
        simulation.give("start")
        for iteration in range(iterations):
            if iteration == warm_up:
                began.append(simulation.now)
            yield "wait", ("rollout", iteration), runners
            overhead = costs.per_rollout * runners + costs.per_iteration
            yield "work", home, overhead
            note("the run's process", overhead)
            simulation.give("start")
            simulation.give("learn")
            simulation.give("fit")
            yield "wait", ("learned", iteration), learners

    def fragmenter() -> Process:
        for batch in range(iterations * runners):
            yield "wait", "clips", batch + 1
            yield "sleep", None, costs.clips_bytes / cluster.network if cluster.nodes > 1 else 0.0
            yield "work", home, costs.clips
            note("fragmenter", costs.clips)

    def trainer() -> Process:
        for iteration in range(iterations):
            yield "wait", "fit", iteration + 1
            yield "work", home, costs.fit
            note("reward trainer", costs.fit)

    for number in range(runners):
        simulation.start(runner(number))
    for number in range(max(1, cluster.learners)):
        simulation.start(learner(number, max(1, cluster.learners)))
    ended: list[float] = []

    def watch() -> Process:
        yield "wait", ("learned", iterations - 1), max(1, cluster.learners)
        ended.append(simulation.now)

    for process in (fragmenter(), trainer(), watch(), main()):
        simulation.start(process)
    simulation.run()
    seconds = ended[0] - began[0]
    steps = (iterations - warm_up) * runners * costs.steps
    # With no learners of their own, the run's process is the one that learns: one process, two of the stages.
    if cluster.learners == 0:
        busy["the run's process"] += busy.pop("learners")
    return Outcome(steps / seconds, {stage: each / seconds for stage, each in busy.items()})
