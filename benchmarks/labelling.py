"""What a teacher costs PPO: steps per second with slow and quick teachers and with people at the page, and without any.

All arms are asynchronous. They are built in one process and one Ray session and train in turn, a few iterations at a time, in a
new random order each round. A turn ends when its ring has finished the work that the iterations left (fits, commits, films; not
answers that a slow teacher still owes); that time counts. Measured is a turn's wall time; the first turns do not count. Beside it
stands the CPU time of the run's own process: what is above that of "off" is the teacher's work in it, the rest of the difference is
processes that share the cores.

"Off" has its comparisons and its reward model before it begins and asks for no more. The other arms ask for the preset's
comparisons over the benchmark's steps and fit the reward model as answers come. Scripted teachers take 0, 1 and 10 s per answer.
In "people", a script answers over HTTP once a second during that arm's turns, with the page, its films and its store at work.

    python benchmarks/labelling.py pendulum
    python benchmarks/labelling.py pendulum --turns 20 --teachers    # people alone

Writes benchmarks/results/labelling_PRESET.json; labelling_PRESET_people.json for people alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import random
import secrets
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as `rlhf-ray` does; read when torch is imported
sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import ratio
from benchmarks.record import record
from rlhf_ray import tune_configs
from rlhf_ray.rllib import PreferencePPO, PreferencePPOConfig
from rlhf_ray.runs.quiet import quiet
from rlhf_ray.runs.train import start_ray
from rlhf_ray.settings import Experiment

ANSWER_SECONDS = (0.0, 1.0, 10.0)
ITERATIONS = 32
"""Iterations in a turn: at 10,000 steps per second, 5 s of Pendulum."""
WARM_UP = 1
"""Turns of each arm that are not counted: torch's first optimiser step loads a second's worth of modules."""


class Person:
    """Answers once a second, while it is their turn; in a process of their own, as a browser would be."""

    def __init__(self, link: str):
        context = multiprocessing.get_context("spawn")
        self.turn = context.Event()
        context.Process(target=_answer, args=(link, self.turn), daemon=True).start()


def _answer(link: str, turn: Any) -> None:
    base, token = link.split("/#token=")
    client = httpx.Client(base_url=base, headers={"origin": base}, timeout=60)
    client.post("/api/session", json={"token": token}).raise_for_status()
    while True:
        turn.wait()
        questions = client.post("/api/questions", json={"count": 1, "holding": []}).json()["questions"]
        for question in questions:
            for side in ("left", "right"):
                client.get(f"/api/films/{question[side]['id']}")
            answer = {"event_id": secrets.token_hex(16), "lease": question["lease"], "answer": "left"}
            client.post("/api/answers", json=answer).raise_for_status()
        time.sleep(1.0)


def arm(experiment: Experiment, answer_seconds: float | None, people: dict[str, Person] | None = None) -> PreferencePPO:
    """The preset with a teacher of that speed, or with people; with None, with no labelling beyond the first comparisons."""
    of = dataclasses.replace(experiment.preferences, mode="asynchronous")
    if people is not None:
        of = dataclasses.replace(of, teacher="human", minimum_comparisons=2)
        labelling = dataclasses.replace(experiment.labelling, port=0)
        experiment = dataclasses.replace(experiment, labelling=labelling)
    elif answer_seconds is None:
        of = dataclasses.replace(of, comparisons=50, initial_comparisons=50, rounds=0)
    else:
        of = dataclasses.replace(of, answer_seconds=answer_seconds, minimum_comparisons=2)
    config = PreferencePPOConfig.from_experiment(dataclasses.replace(experiment, preferences=of))
    algorithm: PreferencePPO = config.build_algo()
    if people is not None:
        people["people"] = Person(*algorithm.ring.people.page.links.values())
        people["people"].turn.set()
    algorithm.begin()
    return algorithm


def busy(algorithm: PreferencePPO) -> bool:
    """Whether anything but a teacher is at work in its ring."""
    slow = ("answering", "people")
    return any(meter.working for name, meter in algorithm.ring.meters.items() if name not in slow)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=tune_configs.names())
    parser.add_argument("--turns", type=int, default=14, help="turns of each that are counted")
    parser.add_argument(
        "--teachers", nargs="*", type=float, default=ANSWER_SECONDS, help="seconds that each takes for an answer"
    )
    options = parser.parse_args()
    experiment: Experiment = tune_configs.load(options.preset).experiment
    turns = WARM_UP + options.turns
    steps = ITERATIONS * experiment.ppo.iteration_env_steps
    experiment = dataclasses.replace(experiment, total_env_steps=turns * steps)
    quiet()
    start_ray(cpus=8)
    people: dict[str, Person] = {}
    arms = {"off": arm(experiment, None)} | {f"{seconds:g} s": arm(experiment, seconds) for seconds in options.teachers}
    arms["people"] = arm(experiment, None, people)
    people["people"].turn.clear()
    spent: dict[str, list[float]] = {name: [] for name in arms}
    own: dict[str, list[float]] = {name: [] for name in arms}
    order, draw = list(arms), random.Random(0)
    for turn in range(turns):
        draw.shuffle(order)
        for name in order:
            for who, person in people.items():
                person.turn.set() if who == name else person.turn.clear()
            started, cpu = time.perf_counter(), time.process_time()
            for _ in range(ITERATIONS):
                arms[name].train()
            while busy(arms[name]):
                time.sleep(0.01)
            if turn >= WARM_UP:
                spent[name].append(time.perf_counter() - started)
                own[name].append(time.process_time() - cpu)
    rows: dict[str, Any] = {}
    for name, algorithm in arms.items():
        found = ratio(spent["off"], spent[name])
        rows[name] = {
            "env_steps_per_second": steps / statistics.median(spent[name]),
            "against_off": found["median"],
            "against_off_total": sum(spent["off"]) / sum(spent[name]),
            "interval_95_of_median": found["interval_95"],
            "own_cpu_against_off": sum(own["off"]) / sum(own[name]),
            "comparisons": algorithm.ring.answered,
            "reward_versions": algorithm.ring.version,
        }
        algorithm.stop()
    outcome = {
        "preset": options.preset,
        "arms": rows,
        "turns": options.turns,
        "seconds": spent,
        "own_cpu_seconds": own,
    }
    name = f"labelling_{options.preset}" if options.teachers else f"labelling_{options.preset}_people"
    record(name, outcome)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
