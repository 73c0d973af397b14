"""`rlhf-ray tune`: a preset's search space, or settings of your choosing, from the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlhf_ray import tune_configs
from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.presets import new_folder, preset
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import run_path
from rlhf_ray.runs.interruption import nothing_to_save
from rlhf_ray.runs.trackers import TrackerName
from rlhf_ray.settings import Experiment
from rlhf_ray.settings.sweep import Metric, Schedule, Search

if TYPE_CHECKING:
    from rlhf_ray.sweeps.running import Plan


@dataclass(frozen=True)
class Tune(Experiment):
    """Run trials with different settings: those that the preset's search space varies, or that --vary names.

    Prints a table; leaves best.json for `rlhf-ray train`, a report, and each trial's folder. Every other setting can be given as in
    `rlhf-ray train`.
    """

    vary: tuple[str, ...] = ()
    """What to vary, instead of the preset's search space: ppo.gamma=0.95,0.98 for these values, ppo.gamma=0.9..0.99 for what lies
    between, reward_model.learning_rate=1e-4..1e-2:log for the same on a logarithmic scale. Several may follow."""
    trials: int = 4
    """Trials, each with settings drawn from the search space."""
    concurrent: int | None = None
    """Trials at a time, at most; as many as there is room for unless given. On a cluster that grows: how many to ask for."""
    search: Search = "random"
    """Who chooses a trial's settings: random, or optuna (by what came out so far)."""
    schedule: Schedule = "none"
    """none: all trials run to the end. asha: those that do worse than others stop early. pbt and pb2: a population; those that do
    worse go on from others' checkpoints, labels and reward model included, with settings changed on the way."""
    metric: Literal["auto", Metric] = "auto"
    """What trials are measured by. return: the true return of the policy on environments of its own, acting deterministically.
    likelihood: that of held-out comparisons under the reward model, where there is no true reward. auto: return, or likelihood
    where people are asked."""
    evaluation_episodes: int = 20
    """Episodes for each measurement of the true return; the same beginnings for all trials."""
    seeds: int = 0
    """Afterwards, train the best settings with so many other seeds, for a mean and its interval."""
    tracker: TrackerName = "none"
    """Where results go besides TensorBoard: wandb is Weights & Biases (its login, or WANDB_MODE=offline)."""
    run_dir: Path | None = None
    """Folder for the sweep; a new one under runs/ unless given."""


def run(words: list[str]) -> None:
    """Run the command: ``words`` are the preset and the options, or ``--resume FOLDER``."""
    if "--resume" in words:
        resumed = _resumed(words)
        with nothing_to_save():
            from rlhf_ray.runs.train import quiet
            from rlhf_ray.sweeps.running import go_on, read_plan
        quiet()
        _begin(read_plan(resumed), resumed, go_on)
        return
    name, rest = words[0], words[1:]
    experiment = preset(name)
    defaults = Tune(**vars(experiment))
    command: Tune = parse_arguments(Tune, f"rlhf-ray tune {name}", rest, defaults)
    with nothing_to_save():
        from rlhf_ray.runs.train import quiet
        from rlhf_ray.sweeps.running import sweep
    quiet()
    plan = plan_of(command, name)
    plan.check()
    folder = command.run_dir or new_folder(f"tune-{Path(name).stem}", command.seed)
    _begin(plan, run_path(folder).absolute(), lambda path: sweep(plan, path))


def _begin(plan: Plan, folder: Path, turn: Callable[[Path], object]) -> None:
    """Start Ray, and have the sweep listed while it runs."""
    from rlhf_ray.actors.announced import announced
    from rlhf_ray.runs.train import start_ray

    start_ray(cpus=2 + plan.experiment.ppo.num_env_runners + plan.experiment.ppo.num_learners)
    with announced(folder, environment=plan.experiment.environment, sweep=True) as announcement:
        announcement.tell("tuning")
        turn(folder)


def plan_of(command: Tune, name: str) -> Plan:
    """What a command line comes to."""
    from rlhf_ray.sweeps.running import Plan
    from rlhf_ray.sweeps.space import parse

    space = tune_configs.load(name).search_space() if name in tune_configs.names() and not command.vary else {}
    experiment = Experiment(**{f.name: getattr(command, f.name) for f in dataclasses.fields(Experiment)})
    asks_people = experiment.preferences.asks_people
    metric: Metric
    metric = ("likelihood" if asks_people else "return") if command.metric == "auto" else command.metric
    return Plan(
        experiment=experiment,
        space=parse(command.vary, experiment) if command.vary else space,
        trials=command.trials,
        # People answer one trial's questions at a time.
        concurrent=1 if asks_people and command.concurrent is None else command.concurrent,
        search=command.search,
        schedule=command.schedule,
        metric=metric,
        evaluation_episodes=command.evaluation_episodes,
        seeds=command.seeds,
        tracker=command.tracker,
        name=name,
    )


def _resumed(words: list[str]) -> Path:
    """The folder in ``--resume FOLDER``, before which the preset may be named."""
    place = words.index("--resume")
    rest = words[place + 2 :]
    if len(words) <= place + 1 or words[place + 1].startswith("-"):
        raise SettingError("--resume needs the folder of the sweep to go on with.")
    if rest or place > 1:
        raise SettingError("--resume goes on with the settings and options that the sweep began with: give no others.")
    return run_path(words[place + 1]).absolute()
