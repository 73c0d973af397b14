"""What each part of the method is worth: tables of runs over five seeds (three for MuJoCo), resumable, one command each.

    python benchmarks/method.py imitation     # beside imitation 1.0.1 at the same training steps and labels
    python benchmarks/method.py labels        # how many labels a task needs
    python benchmarks/method.py parts         # selection, ensemble, likelihood, regularisation, SURF, RUNE
    python benchmarks/method.py teachers      # six teachers, PPO and SAC
    python benchmarks/method.py sac           # PreferenceSAC beside PreferencePPO
    python benchmarks/method.py coinrun       # a procgen game from pixels
    python benchmarks/method.py people        # teachers that err as people do
    python benchmarks/method.py presets       # twenty seeds of two presets, with the arithmetic of three machines
    python benchmarks/method.py learning      # two tasks, synchronous and asynchronous: the picture in README.md
    python benchmarks/method.py control       # DeepMind Control with the labels of B-Pref, PreferenceSAC
    python benchmarks/method.py metaworld     # Meta-World with the labels of SURF and RIME, PreferenceSAC
    python benchmarks/method.py budgets       # ten tasks with 100, 350 and 700 comparisons, beside imitation with 350

Each run is a training in a process of its own; benchmarks/results/method_TABLE.json has its command. Settings were chosen
on seeds from 100 to 199 and committed before the seeds below were run. `benchmarks/method_tables.py` writes the tables and plots
into docs/results_archive.md. The runs of docs/results.md are those of `benchmarks/page.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.cells import FEW_SEEDS, FIRST_SEED, Cell, cells_of, reference, run, train
from benchmarks.control import control, metaworld
from benchmarks.kernels import KERNELS

PENDULUM, CARTPOLE, ACROBOT = "pendulum", "cartpole", "acrobot"
HOPPER, REACHER = "rlhf_ray/HopperFixed-v0", "Reacher-v5"

FROZEN: Mapping[str, tuple[str, ...]] = {
    HOPPER: ("--reward-model.normalize-inputs", "running"),
    REACHER: ("--reward-model.normalize-inputs", "running"),
}
"""Tasks that have no preset, with what was a default when their settings were frozen."""


def frozen(task: str) -> tuple[str, ...]:
    """A task with its frozen settings."""
    return (task, *FROZEN.get(task, ()))


# Beside imitation.

BUDGETS = {PENDULUM: (100_000, 200), CARTPOLE: (200_000, 200), ACROBOT: (200_000, 200), HOPPER: (200_000, 350)}
"""Environment steps and comparisons of each task."""


def budget_words(task: str) -> tuple[str, ...]:
    """The options that set a task's budgets."""
    steps, comparisons = BUDGETS[task]
    return ("--total-env-steps", str(steps), "--preferences.comparisons", str(comparisons))


def references(tasks: Sequence[str]) -> list[Cell]:
    """PPO on the true reward, in the same number of steps."""
    return [cell for task in tasks for cell in reference(task, *frozen(task), *budget_words(task))]


IMITATION_ENVIRONMENTS = {
    PENDULUM: "Pendulum-v1",
    CARTPOLE: "rlhf_ray/CartPoleFixed-v0",
    ACROBOT: "rlhf_ray/AcrobotFixed-v0",
}
"""imitation's names of environments that have others here."""


def beside(task: str, steps: object, comparisons: object, *more: str) -> tuple[str, ...]:
    """The words of imitation's training."""
    environment = IMITATION_ENVIRONMENTS.get(task, task)
    words = ("--steps", str(steps), "--comparisons", str(comparisons))
    return ("benchmarks/imitation_agent.py", environment, *words, *more)


def imitation() -> list[Cell]:
    cells = references(list(BUDGETS))
    for task, budget in BUDGETS.items():
        cells += cells_of("imitation", task, "rlhf_ray", train(*frozen(task), *budget_words(task)))
        cells += cells_of("imitation", task, "imitation", beside(task, *budget))
        cells += cells_of("imitation", task, "imitation, normalised reward", beside(task, *budget, "--normalise"))
    return cells


# Labels.

LABELS = (25, 50, 100, 200)


def labels() -> list[Cell]:
    cells = references([PENDULUM, CARTPOLE])
    for task in (PENDULUM, CARTPOLE):
        for count in LABELS:
            words = train(task, "--total-env-steps", str(BUDGETS[task][0]), "--preferences.comparisons", str(count))
            cells += cells_of("labels", task, str(count), words)
    return cells


# Learning curves, synchronous and asynchronous.


def learning() -> list[Cell]:
    cells = references([PENDULUM, CARTPOLE])
    for task in (PENDULUM, CARTPOLE):
        words = train(task, *budget_words(task))
        cells += cells_of("learning", task, "synchronous", words)
        cells += cells_of("learning", task, "asynchronous", (*words, "--preferences.mode", "asynchronous"))
    return cells


# Every seed, with the arithmetic of three machines.

PRESETS_FIRST_SEED, PRESETS_SEEDS = 2000, 20


def presets() -> list[Cell]:
    """A preset as it is, whose kernels stand for three machines."""
    tasks, first = (CARTPOLE, PENDULUM), PRESETS_FIRST_SEED
    return [cell for task in tasks for cell in reference(task, task, first=first)] + [
        Cell("presets", task, kernels, seed, ("benchmarks/kernels.py", kernels, *train(task)))
        for seed in range(first, first + PRESETS_SEEDS)
        for task in tasks
        for kernels in KERNELS
    ]


# Parts of the method.

SMALL = {
    PENDULUM: ("--total-env-steps", "60000", "--preferences.comparisons", "60"),
    REACHER: ("--total-env-steps", "100000", "--preferences.comparisons", "200"),
}
"""Fewer labels and steps than the presets: with plenty, all variants are equally good."""


def wrong(share: float, *more: str) -> tuple[str, ...]:
    """The options of a teacher who errs."""
    return ("--preferences.teacher", "mistake", "--preferences.mistake", str(share), *more)


SELECTION, METHODS, NOISE = "--preferences.selection", "--reward-model.methods", "--reward-model.label-noise"
OF_200 = ("--preferences.comparisons", "200")
"""60 comparisons, some of them wrong, are too few for Pendulum, whatever the likelihood."""
HELD_OUT = ("--preferences.held-out-share", "0.2")
ERRORS: Mapping[str, tuple[str, ...]] = {
    "10 % wrong": wrong(0.1),
    "10 % wrong, noise model": wrong(0.1, NOISE, "0.2"),
    "30 % wrong": wrong(0.3),
    "30 % wrong, noise model": wrong(0.3, NOISE, "0.6"),
}
PARTS: Mapping[str, tuple[str, ...]] = {
    "random pairs": (),
    "disagreement of probabilities": (SELECTION, "disagreement"),
    "disagreement of logits": (SELECTION, "disagreement_logits"),
    "disagreement of labels": (SELECTION, "disagreement_labels"),
    "entropy": (SELECTION, "entropy"),
    "k-center": (SELECTION, "k_center"),
    "k-center in disagreement": (SELECTION, "disagreement+k_center"),
    "information gain": (SELECTION, "information_gain"),
    "near on-policy": (SELECTION, "near_on_policy"),
    "one network": ("--reward-model.ensemble-size", "1"),
    "no bootstrap": ("--reward-model.no-bootstrap",),
    "adaptive L2": ("--reward-model.adaptive-l2", *HELD_OUT),
    "early stopping": ("--reward-model.early-stopping", "3", *HELD_OUT),
    "SURF": (METHODS, "surf"),
    "RUNE": (METHODS, "rune"),
    **ERRORS,
    **{name.replace("wrong", "wrong of 200"): (*OF_200, *words) for name, words in ERRORS.items()},
}
"""Options of each variant; the first is what the others are compared with."""


def parts() -> list[Cell]:
    cells = [cell for task, words in SMALL.items() for cell in reference(task, *frozen(task), *words)]
    for variant, more in PARTS.items():
        for task, words in SMALL.items():
            budget = words[:2] if more[:2] == OF_200 else words
            cells += cells_of("parts", task, variant, train(*frozen(task), *budget, *more))
    return cells


# Teachers.

TEACHERS = ("oracle", "stochastic", "mistake", "skip", "equal", "myopic")

TEACHER_TASKS = {
    "pendulum PPO": (PENDULUM, "--total-env-steps", "60000", "--preferences.comparisons", "100"),
    "pendulum SAC": ("pendulum_sac", "--preferences.comparisons", "100"),
    "reacher PPO": (REACHER, *SMALL[REACHER]),
    "reacher SAC": ("reacher_sac", "--preferences.comparisons", "200"),
}
"""Tasks and agents: both agents of a task have the same labels."""


def teachers() -> list[Cell]:
    cells: list[Cell] = []
    for task, (name, *rest) in TEACHER_TASKS.items():
        words = (*frozen(name), *rest)
        cells += reference(task, *words)
        for teacher in TEACHERS:
            cells += cells_of("teachers", task, teacher, train(*words, "--preferences.teacher", teacher))
    return cells


# SAC beside PPO.


def sac() -> list[Cell]:
    """SAC at half of PPO's labels, and at as many."""
    cells = references([PENDULUM, HOPPER])
    for task, preset in ((PENDULUM, "pendulum_sac"), (HOPPER, "hopper_sac")):
        steps, comparisons = BUDGETS[task]
        for count in (str(comparisons), str(comparisons // 2)):
            words = ("--preferences.comparisons", count)
            ppo = train(*frozen(task), "--total-env-steps", str(steps), *words)
            cells += cells_of("sac", task, f"PPO, {count} labels", ppo)
            cells += cells_of("sac", task, f"SAC, {count} labels", train(preset, *words))
    return cells


# A procgen game, in what two cores can do.

COINRUN = (
    "coinrun",
    *("--environment", "benchmarks.coinrun_progress:CoinrunProgress-v0", "--total-env-steps", "100000"),
    *("--fragments.initial-env-steps", "10000", "--fragments.pool", "600"),
    *("--preferences.comparisons", "400", "--preferences.rounds", "60"),
    *("--reward-model.ensemble-size", "1", "--reward-model.initial-updates", "150", "--reward-model.updates", "15"),
    *("--reward-model.use-next-state", "--reward-model.no-use-action", "--reward-model.no-use-done"),
    *("--ppo.network", "nature", "--ppo.num-envs", "16", "--ppo.rollout-length", "128", "--ppo.minibatch-size", "256"),
)
"""What a step does is seen in two images. A reward of image and action pays for pressing "right" in front of a wall."""


def coinrun() -> list[Cell]:
    return [
        Cell(experiment, "coinrun", variant, seed, train(*COINRUN, *words))
        for seed in range(FIRST_SEED, FIRST_SEED + FEW_SEEDS)
        for experiment, variant, words in (
            ("coinrun", "comparisons", ()),
            ("reference", "true reward", ("--true-reward",)),
        )
    ]


# People err.

PEOPLE_FIRST_SEED, PEOPLE_SEEDS = 3000, 20

ERRING: Mapping[str, tuple[str, ...]] = {
    "none wrong": (),
    **{f"{percent} % wrong": wrong(percent / 100) for percent in (10, 20, 30)},
    "human-like": ("--preferences.teacher", "human_like"),
    "systematic": ("--preferences.teacher", "systematic"),
}
"""How the teacher errs, from the presets alone."""

FOUR = ("--preferences.teacher", "population", "--preferences.annotators", "oracle", "oracle", "oracle")

ALIKE: Mapping[str, tuple[str, ...]] = {
    "10 % wrong": ("--teacher", "mistake", "--mistake", "0.1", "--noise", "0.2"),
    "human-like": ("--teacher", "human_like", "--noise", "0.2"),
}
"""imitation's options for the same teachers. Its noise model is told the rate, about that of the human-like teacher too."""


def people() -> list[Cell]:
    """Pendulum on twenty seeds, other tasks on five or three, all with the presets as they are."""
    first = PEOPLE_FIRST_SEED
    cells = reference(PENDULUM, PENDULUM, first=first)
    for seed in range(first, first + PEOPLE_SEEDS):
        cells += [Cell("people", PENDULUM, name, seed, train(PENDULUM, *words)) for name, words in ERRING.items()]
    for name in ("inverted", "guessing"):
        cells += cells_of("people", PENDULUM, f"four, one {name}", train(PENDULUM, *FOUR, name), first)
    for task in (CARTPOLE, ACROBOT, REACHER, HOPPER, "HalfCheetah-v5"):
        cells += reference(task, *BUDGET_TASKS[task], first=first)
        human = train(*BUDGET_TASKS[task], "--preferences.comparisons", "350", *ERRING["human-like"])
        cells += cells_of("people", task, "human-like", human, first)
    for count, name in ((50, "none wrong"), (100, "human-like")):
        for task in (PENDULUM, CARTPOLE):
            words = train(*BUDGET_TASKS[task], "--preferences.comparisons", str(count), *ERRING[name])
            cells += cells_of("people", task, f"{name}, {count} labels", words, first)
    for task in (PENDULUM, CARTPOLE):
        for name, more in ALIKE.items():
            cells += cells_of("people", task, f"{name}, imitation", beside(task, *BUDGETS[task], *more), first)
            if task != PENDULUM:
                ours = train(task, *budget_words(task), *ERRING[name])
                cells += cells_of("people", task, f"{name}, {BUDGETS[task][1]} labels", ours, first)
    return cells


# Ten tasks and three budgets.

BUDGETS_FIRST_SEED = 600

BUDGET_TASKS: Mapping[str, tuple[str, ...]] = {
    task: (task, "--total-env-steps", str(steps))
    for task, steps in {
        PENDULUM: 100_000,
        **dict.fromkeys((CARTPOLE, ACROBOT), 200_000),
        **dict.fromkeys((HOPPER, "HalfCheetah-v5", "rlhf_ray/Walker2dFixed-v0", "Swimmer-v5", REACHER), 300_000),
        "moving_dot": 150_000,
    }.items()
} | {"coinrun": COINRUN}
"""The words of each task's training: presets where there are any, elsewhere the defaults alone."""

BUDGET_LABELS = (100, 350, 700)


def budgets() -> list[Cell]:
    """The quick tasks first. imitation's documented networks take no images."""
    cells: list[Cell] = []
    for task, words in BUDGET_TASKS.items():
        first = BUDGETS_FIRST_SEED
        cells += reference(task, *words, first=first)
        for count in BUDGET_LABELS:
            labels_ = train(*words, "--preferences.comparisons", str(count))
            cells += cells_of("budgets", task, str(count), labels_, first)
    for task, words in BUDGET_TASKS.items():
        if task not in ("moving_dot", "coinrun"):
            cells += cells_of("budgets", task, "imitation, 350", beside(task, words[2], 350), BUDGETS_FIRST_SEED)
    return cells


_ORDERED = (
    presets,
    people,
    learning,
    budgets,
    control,
    metaworld,
    imitation,
    labels,
    parts,
    teachers,
    sac,
    coinrun,
)
TABLES: Mapping[str, Callable[[], list[Cell]]] = {table.__name__: table for table in _ORDERED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=list(TABLES), help="which tables to fill")
    parser.add_argument("--only", default="", help="only cells whose name contains this")
    parser.add_argument("--parallel", type=int, default=2, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the run folders go")
    options = parser.parse_args()
    for table in options.tables:
        cells: Any = [cell for cell in TABLES[table]() if options.only in cell.key]
        run(f"method_{table}", cells, options.parallel, options.runs / f"method-{table}")


if __name__ == "__main__":
    main()
