"""A model of an asynchronous run on a cluster: what each stage costs, and a simulation (SimPy) of how they wait for each other.

Processes share the cores of their node evenly, as far as there are fewer cores than processes with something to do. One iteration,
as in rlhf_ray/rllib/rollouts.py: the run's process waits for as many rollouts as there are env runners, has each env runner begin
its next one, does what it does for each rollout and iteration, and has the learners learn. Beside it the fragmenter takes clips of
each rollout, and the reward trainer its gradient steps.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy


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
    """CPU seconds, measured."""

    rollout: Line  # of one rollout, in its env runner
    spread: float  # of rollouts, the coefficient of variation
    step_bytes: float  # of an environment step, as it goes to a learner
    clips_bytes: float  # of a full pool of clips, as they go to the fragmenter
    handling: Line  # of the run's process for one rollout: starting it, its metrics, new weights
    iteration: float  # of the run's process for one iteration, whatever the number of rollouts, without learning
    learning: Line  # of the learner for an iteration
    reduce: float  # of each learner to agree on the gradients of an iteration, for each doubling of the learners
    clips: float  # of the fragmenter for a full pool of clips
    fit: float  # of the reward trainer for an iteration
    ray: Line  # of Ray's own processes on the env runner's node for one rollout


@dataclass(frozen=True)
class Cluster:
    """Machines, and how they are used."""

    steps: int  # environment steps of one rollout
    nodes: int  # those with env runners
    runners: int  # env runners on each
    cores: int  # of each
    learners: int = 0  # 0: the run's process learns
    learner_speed: float = 1.0  # of a learner, in the measured one's: above 1 with a GPU
    home_cores: int | None = None  # of the node with run, ring and learners; None: that is the first of `nodes`
    network: float = 1.25e9  # bytes per second of a node


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

Process = Generator[simpy.Event, Any, None]


class Node:
    """Cores that processes share."""

    def __init__(self, env: simpy.Environment, cores: int):
        self._env, self._cores = env, cores
        self._left: dict[simpy.Event, float] = {}
        self._looked = 0.0
        self._planned: simpy.Event | None = None

    def work(self, seconds: float) -> simpy.Event:
        """Happens when so many CPU seconds are done."""
        self._pass()
        done = self._env.event()
        self._left[done] = seconds
        self._plan()
        return done

    @property
    def _rate(self) -> float:
        return min(1.0, self._cores / len(self._left)) if self._left else 1.0

    def _pass(self) -> None:
        done = (self._env.now - self._looked) * self._rate
        for work in self._left:
            self._left[work] -= done
        self._looked = self._env.now

    def _plan(self) -> None:
        if self._left:
            self._planned = self._env.timeout(max(0.0, min(self._left.values())) / self._rate)
            self._planned.callbacks.append(self._serve)

    def _serve(self, planned: simpy.Event) -> None:
        if planned is not self._planned:  # something has begun since
            return
        self._pass()
        for work in [work for work, left in self._left.items() if left <= 1e-9]:
            del self._left[work]
            work.succeed()
        self._plan()


class _Run:
    """The processes of a run, and what they note of themselves."""

    def __init__(self, costs: Costs, cluster: Cluster, iterations: int, seed: int):
        self.costs, self.cluster, self.iterations = costs, cluster, iterations
        self.env, self.rng = simpy.Environment(), random.Random(seed)
        self.runners = cluster.nodes * cluster.runners
        self.learners, self.steps = max(1, cluster.learners), cluster.steps
        self.nodes = [Node(self.env, cluster.cores) for _ in range(cluster.nodes)]
        self.home = self.nodes[0] if cluster.home_cores is None else Node(self.env, cluster.home_cores)
        self.network = cluster.network if cluster.nodes > 1 else math.inf
        self.warm_up = max(1, iterations // 5)
        stages = ("env runners", "the run's process", "learners", "network", "fragmenter", "reward trainer")
        self.busy = dict.fromkeys(stages, 0.0)
        self.begin = [simpy.Container(self.env, init=1) for _ in range(self.runners)]
        self.rollouts = simpy.Store(self.env)
        """The env runner of each rollout, in the order in which they come."""
        self.clips, self.fits = simpy.Container(self.env), simpy.Container(self.env)
        self.began: float | None = None

    def outcome(self) -> Outcome:
        """Run to the end."""
        for process in (*map(self.runner, range(self.runners)), self.fragmenter(), self.trainer()):
            self.env.process(process)
        self.env.run(self.env.process(self.main()))
        assert self.began is not None
        seconds = self.env.now - self.began
        if self.cluster.learners == 0:  # the run's process is the one that learns: one process, two of the stages
            self.busy["the run's process"] += self.busy.pop("learners")
        steps = (self.iterations - self.warm_up) * self.runners * self.steps
        return Outcome(steps / seconds, {stage: each / seconds for stage, each in self.busy.items()})

    def note(self, stage: str, seconds: float) -> None:
        if self.began is not None:
            self.busy[stage] += seconds

    def runner(self, number: int) -> Process:
        node, sigma = self.nodes[number % len(self.nodes)], math.sqrt(math.log(1 + self.costs.spread**2))
        while True:
            yield self.begin[number].get(1)
            began = self.env.now
            yield node.work(self.costs.rollout(self.steps) * self.rng.lognormvariate(-(sigma**2) / 2, sigma))
            self.note("env runners", (self.env.now - began) / self.runners)
            self.rollouts.put(number)
            self.clips.put(1)
            yield node.work(self.costs.ray(self.steps))

    def learner(self) -> Process:
        seconds = self.costs.learning(self.runners * self.steps / self.learners) / self.cluster.learner_speed
        seconds += self.costs.reduce * math.log2(self.learners)
        fetching = self.runners * self.steps * self.costs.step_bytes / self.network
        yield self.env.timeout(fetching)  # all learners are on one node
        self.note("network", fetching / self.learners)
        yield self.home.work(seconds)
        self.note("learners", seconds / self.learners)

    def main(self) -> Process:
        for iteration in range(self.iterations):
            if iteration == self.warm_up:
                self.began = self.env.now
            for _ in range(self.runners):
                yield self.begin[(yield self.rollouts.get())].put(1)
            seconds = self.costs.handling(self.steps) * self.runners + self.costs.iteration
            yield self.home.work(seconds)
            self.note("the run's process", seconds)
            self.fits.put(1)
            yield self.env.all_of([self.env.process(self.learner()) for _ in range(self.learners)])

    def fragmenter(self) -> Process:
        share = max(1 / POOL, 1 / self.runners)  # each env runner sends its share of a full pool
        while True:
            yield self.clips.get(1)
            yield self.env.timeout(share * self.costs.clips_bytes / self.network)
            yield self.home.work(share * self.costs.clips)
            self.note("fragmenter", share * self.costs.clips)

    def trainer(self) -> Process:
        while True:
            yield self.fits.get(1)
            yield self.home.work(self.costs.fit)
            self.note("reward trainer", self.costs.fit)


def simulate(costs: Costs, cluster: Cluster, iterations: int = 30, seed: int = 0) -> Outcome:
    """``iterations`` iterations on ``cluster``; the first fifth is not counted."""
    return _Run(costs, cluster, iterations, seed).outcome()
