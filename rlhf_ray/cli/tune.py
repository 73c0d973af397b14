"""`rlhf-ray tune`: search over settings, from a preset's search space or --vary."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlhf_ray import tune_configs
from rlhf_ray.cli.arguments import asks_help, parse_arguments
from rlhf_ray.cli.presets import about_presets, check_agent, new_folder, preset
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import run_path
from rlhf_ray.data.system import bound_cores
from rlhf_ray.runs.interruption import nothing_to_save, sigterm_as_ctrl_c
from rlhf_ray.settings import Experiment
from rlhf_ray.settings.start import Metric, Schedule, Search

if TYPE_CHECKING:
    from rlhf_ray.sweeps.results import SweepOutcome
    from rlhf_ray.sweeps.running import Plan


@dataclass(frozen=True)
class Tune(Experiment):
    """Run trials with different settings, from the preset's search space or --vary.

    Lists the trials and writes best.json (for `rlhf-ray train`), a report, and a run folder per trial. Takes all settings of
    `rlhf-ray train` too. `rlhf-ray tune --resume FOLDER [--cores N]` continues a sweep.
    """

    vary: tuple[str, ...] = ()
    """Settings to vary, instead of the preset's search space: ppo.gamma=0.95,0.98 (each of these values, in all combinations with
    other lists), ppo.gamma=choice:0.95,0.98 (drawn from them), ppo.gamma=0.9..0.99 (a range),
    reward_model.learning_rate=1e-4..1e-2:log (a range, log scale). Takes one or more, and may be repeated."""
    trials: int | None = None
    """Number of trials. None: one per combination of listed values; at least 4 if settings are drawn from ranges or choices."""
    repeat: int = 1
    """Number of seeds for each draw of settings: it takes this many trials, and their mean objective ranks it."""
    concurrent: int | None = None
    """Maximum number of concurrent trials. None: as many as the resources allow. On an autoscaling cluster: how many to request."""
    search: Search = "random"
    """Search algorithm that chooses the settings: random; optuna (a Parzen estimator) or gp (a Gaussian process), which
    use earlier results; or qmc (covers ranges evenly)."""
    schedule: Schedule = "none"
    """none: all trials run their full budget. asha: stops poor trials early. pbt and pb2: population-based training; poor trials
    continue from better ones' checkpoints (with labels and reward model) under changed settings."""
    metric: Literal["auto", Metric] = "auto"
    """Metric that ranks trials. return: true return of the deterministic policy in separate environments. likelihood:
    log-likelihood of held-out comparisons under the reward model, for tasks without a true reward. auto: return, or likelihood if
    people answer."""
    evaluation_episodes: int = 20
    """Episodes per measurement of the true return, with the same initial states for all trials."""
    seeds: int = 0
    """Number of further seeds to train the best settings with, for a mean and a confidence interval."""
    cores: int | None = None
    """Most cores that each trial uses. None: all that the process may use. Results do not depend on it."""
    run_dir: Path | None = None
    """Folder of the sweep. None: a new folder under runs/."""


def run(words: list[str]) -> None:
    """Run the command; ``words`` are the preset and options, or ``--resume FOLDER [--cores N]``."""
    if words[0].startswith("-") and asks_help(words):
        parse_arguments(Tune, "rlhf-ray tune PRESET", ["--help"], about=about_presets("tune"))
    if "--resume" in words:
        resumed, cores = _resumed(words)
        bound_cores(cores)
        with nothing_to_save():
            from rlhf_ray.runs.quiet import quiet
            from rlhf_ray.sweeps.running import go_on, read_plan
        quiet()
        _begin(read_plan(resumed), resumed, go_on)
        return
    name, rest = words[0], words[1:]
    experiment = preset(name)
    defaults = Tune(**vars(experiment))
    command: Tune = parse_arguments(Tune, f"rlhf-ray tune {name}", _together(rest), defaults)
    check_agent(command, defaults)
    bound_cores(command.cores)
    with nothing_to_save():
        from rlhf_ray.runs.quiet import quiet
        from rlhf_ray.sweeps.running import sweep
        from rlhf_ray.sweeps.space import plan_in_words
    quiet()
    plan = plan_of(command, name)
    plan.check()
    print(plan_in_words(plan.space, plan.trials, plan.repeat, plan.search), flush=True)
    with new_folder(command.run_dir, f"tune-{Path(name).stem}", command.seed) as folder:
        _begin(plan, run_path(folder).absolute(), lambda path: sweep(plan, path))


def _begin(plan: Plan, folder: Path, turn: Callable[[Path], SweepOutcome]) -> None:
    """Start Ray and the sweep."""
    from rlhf_ray.runs.train import start_ray

    agent = plan.experiment.agent_settings
    try:
        start_ray(cpus=2 + agent.num_env_runners + agent.num_learners)
        if threading.current_thread() is threading.main_thread():
            sigterm_as_ctrl_c()  # again: Ray sets a handler of its own when it connects to a cluster
        outcome = turn(folder)
    except KeyboardInterrupt as stopped:
        from rlhf_ray.sweeps.state import has_started

        next_step = f"resume with `rlhf-ray tune --resume {folder}`" if has_started(folder) else "start the sweep again"
        raise KeyboardInterrupt(f"stopped; {next_step}") from stopped
    if outcome.trials and all(trial["status"] == "failed" for trial in outcome.trials):
        sys.exit(f"rlhf-ray: no trial has run to its end; the first failed with: {outcome.trials[0]['error']}")


def plan_of(command: Tune, name: str) -> Plan:
    """The plan that the command line describes."""
    from rlhf_ray.sweeps.running import Plan
    from rlhf_ray.sweeps.space import count, parse

    experiment = Experiment(**{f.name: getattr(command, f.name) for f in dataclasses.fields(Experiment)})
    asks_people = experiment.preferences.asks_people
    space = tune_configs.search_space(name) if name in tune_configs.names() else {}
    space = parse(command.vary, experiment) if command.vary else space
    metric: Metric
    metric = ("likelihood" if asks_people else "return") if command.metric == "auto" else command.metric
    # Annotators answer one trial's questions at a time.
    concurrent = 1 if asks_people and command.concurrent is None else command.concurrent
    names = ("repeat", "search", "schedule", "evaluation_episodes", "seeds")
    given: dict[str, Any] = {option: getattr(command, option) for option in names}
    trials = count(space, command.trials)
    return Plan(experiment, space, trials, concurrent=concurrent, metric=metric, name=name, **given)


def _together(words: list[str]) -> list[str]:
    """Gather the words of several ``--vary`` after one: the parser would keep the last only."""
    others: list[str] = []
    varied: list[str] = []
    place = others
    for word in words:
        option, _, value = word.partition("=")
        if option == "--vary":
            place = varied
            varied += [value] if value else []
        else:
            place = others if word.startswith("--") and "." not in option else place
            place.append(word)
    return [*others, "--vary", *varied] if varied else others


@dataclass(frozen=True)
class _Resume:
    """What a resumed sweep may have anew."""

    cores: int | None = None


def _resumed(words: list[str]) -> tuple[Path, int | None]:
    """The folder and the cores in ``[PRESET] --resume FOLDER [--cores N]``."""
    place = words.index("--resume")
    rest = words[place + 2 :]
    if len(words) <= place + 1 or words[place + 1].startswith("-"):
        raise SettingError("--resume needs the folder of the sweep to resume.")
    others = [word for word in rest if word.startswith("-") and word.partition("=")[0] != "--cores"]
    if others or place > 1 or (rest and not rest[0].startswith("-")):
        raise SettingError("--resume keeps the sweep's settings and options; give no others than --cores.")
    command = parse_arguments(_Resume, "rlhf-ray tune --resume FOLDER", rest)
    return run_path(words[place + 1]).absolute(), command.cores
