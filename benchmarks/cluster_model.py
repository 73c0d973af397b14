"""A model of an asynchronous run on a cluster: what each stage costs, and an event simulation of how they wait for each other.

Processes share the cores of their node evenly, as far as there are fewer cores than processes with something to do. One iteration,
as in rlhf_ray/rllib/rollouts.py: the run's process waits for as many rollouts as there are env runners, has each env runner begin
its next one, does what it does for each rollout and iteration, and has the learners learn. Beside it the fragmenter takes clips of
each rollout, and the reward trainer its gradient steps.
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
class Line:
    """CPU seconds for so many environment steps at once."""

    fixed: float
    per_step: float

    def __call__(self, steps: float) -> float:
        """Seconds for ``steps``."""
        return self.fixed + self.per_step * steps


@dataclass(frozen=True)
class Costs:
    """CPU seconds, measured.

    Attributes:
        rollout: of one rollout, in its env runner.
        spread: of rollouts, the coefficient of variation.
        step_bytes: of an environment step, as it goes to a learner.
        clips_bytes: of a full pool of clips, as they go to the fragmenter.
        handling: of the run's process for one rollout: starting it, its metrics, new weights.
        iteration: of the run's process for one iteration, whatever the number of rollouts, without learning.
        learning: of the learner for an iteration.
        reduce: of each learner to agree on the gradients of an iteration, for each doubling of the learners.
        clips: of the fragmenter for a full pool of clips.
        fit: of the reward trainer for an iteration.
        ray: of Ray's own processes on the env runner's node for one rollout.
    """

    rollout: Line
    spread: float
    step_bytes: float
    clips_bytes: float
    handling: Line
    iteration: float
    learning: Line
    reduce: float
    clips: float
    fit: float
    ray: Line


@dataclass(frozen=True)
class Cluster:
    """Machines, and how they are used.

    Attributes:
        steps: environment steps of one rollout.
        nodes: those with env runners.
        runners: env runners on each.
        cores: of each.
        learners: 0: the run's process learns.
        learner_speed: of a learner, in the measured one's: above 1 with a GPU.
        home_cores: of the node with the run's process, the ring and the learners; None: that is the first of ``nodes``.
        network: bytes per second of a node.
    """

    steps: int
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


POOL = 100
"""Clips in a full pool."""

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
    """Runs processes, which are generators that yield what they do next.

    That is ("work", node, seconds), ("sleep", None, seconds), or ("wait", signal, count): until the signal was given so often.
    """

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

    def stop(self) -> None:
        """Let nothing more happen."""
        self._events.clear()

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


class _Run:
    """The processes of a run, and what they note of themselves."""

    def __init__(self, costs: Costs, cluster: Cluster, iterations: int, seed: int):
        self.costs, self.cluster, self.iterations = costs, cluster, iterations
        self.simulation, self.rng = Simulation(), random.Random(seed)
        self.runners = cluster.nodes * cluster.runners
        self.learners, self.steps = max(1, cluster.learners), cluster.steps
        self.nodes = [_Node(cluster.cores) for _ in range(cluster.nodes)]
        self.home = self.nodes[0] if cluster.home_cores is None else _Node(cluster.home_cores)
        self.network = cluster.network if cluster.nodes > 1 else math.inf
        self.warm_up = max(1, iterations // 5)
        stages = ("env runners", "the run's process", "learners", "network", "fragmenter", "reward trainer")
        self.busy = dict.fromkeys(stages, 0.0)
        self.arrived: list[int] = []
        """The env runner of each rollout, in the order in which they came."""
        self.began: float | None = None
        self.ended = 0.0

    def outcome(self) -> Outcome:
        """Run to the end."""
        for _ in range(self.learners):
            self.simulation.start(self.learner())
        for process in (*(self.runner(i) for i in range(self.runners)), self.fragmenter(), self.trainer(), self.main()):
            self.simulation.start(process)
        self.simulation.run()
        assert self.began is not None
        seconds = self.ended - self.began
        if self.cluster.learners == 0:  # the run's process is the one that learns: one process, two of the stages
            self.busy["the run's process"] += self.busy.pop("learners")
        steps = (self.iterations - self.warm_up) * self.runners * self.steps
        return Outcome(steps / seconds, {stage: each / seconds for stage, each in self.busy.items()})

    def note(self, stage: str, seconds: float) -> None:
        if self.began is not None:
            self.busy[stage] += seconds

    def runner(self, number: int) -> Process:
        node, sigma = self.nodes[number % len(self.nodes)], math.sqrt(math.log(1 + self.costs.spread**2))
        for rollout in itertools.count(1):
            yield "wait", ("start", number), rollout
            began = self.simulation.now
            yield "work", node, self.costs.rollout(self.steps) * self.rng.lognormvariate(-(sigma**2) / 2, sigma)
            self.note("env runners", (self.simulation.now - began) / self.runners)
            self.arrived.append(number)
            self.simulation.give("rollout")
            self.simulation.give("clips")
            yield "work", node, self.costs.ray(self.steps)

    def learner(self) -> Process:
        seconds = self.costs.learning(self.runners * self.steps / self.learners) / self.cluster.learner_speed
        seconds += self.costs.reduce * math.log2(self.learners)
        fetching = self.runners * self.steps * self.costs.step_bytes / self.network
        for iteration in range(self.iterations):
            yield "wait", "learn", iteration + 1
            yield "sleep", None, fetching  # all learners are on one node
            self.note("network", fetching / self.learners)
            yield "work", self.home, seconds
            self.note("learners", seconds / self.learners)
            self.simulation.give(("learned", iteration))

    def main(self) -> Process:
        for runner in range(self.runners):
            self.simulation.give(("start", runner))
        for iteration in range(self.iterations):
            if iteration == self.warm_up:
                self.began = self.simulation.now
            for rollout in range(iteration * self.runners, (iteration + 1) * self.runners):
                yield "wait", "rollout", rollout + 1
                self.simulation.give(("start", self.arrived[rollout]))
            seconds = self.costs.handling(self.steps) * self.runners + self.costs.iteration
            yield "work", self.home, seconds
            self.note("the run's process", seconds)
            self.simulation.give("learn")
            self.simulation.give("fit")
            yield "wait", ("learned", iteration), self.learners
        self.ended = self.simulation.now
        self.simulation.stop()

    def fragmenter(self) -> Process:
        share = max(1 / POOL, 1 / self.runners)  # each env runner sends its share of a full pool
        for batch in itertools.count(1):
            yield "wait", "clips", batch
            yield "sleep", None, share * self.costs.clips_bytes / self.network
            yield "work", self.home, share * self.costs.clips
            self.note("fragmenter", share * self.costs.clips)

    def trainer(self) -> Process:
        for iteration in range(self.iterations):
            yield "wait", "fit", iteration + 1
            yield "work", self.home, self.costs.fit
            self.note("reward trainer", self.costs.fit)


def simulate(costs: Costs, cluster: Cluster, iterations: int = 30, seed: int = 0) -> Outcome:
    """``iterations`` iterations on ``cluster``; the first fifth is not counted."""
    return _Run(costs, cluster, iterations, seed).outcome()
