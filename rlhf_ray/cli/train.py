"""`rlhf-ray train`: learn a reward from comparisons and train an agent on it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.presets import new_folder, preset
from rlhf_ray.data import consent
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.modules import append_to_path, look_in_all
from rlhf_ray.runs.callbacks import CALLBACKS, Callback
from rlhf_ray.runs.interruption import Interrupted, nothing_to_save
from rlhf_ray.runs.progress import Progress
from rlhf_ray.runs.trackers import TRACKERS, TrackerName, check_tracker
from rlhf_ray.settings import Experiment
from rlhf_ray.settings.start import Start

if TYPE_CHECKING:
    from rlhf_ray.runs.folder import RunFolder


@dataclass(frozen=True)
class Train(Experiment):
    """Learn a reward from comparisons and train an agent on it. Every setting has a default, shown here."""

    run_dir: Path | None = None
    """Folder for everything the run leaves behind; a new one under runs/ unless given."""
    reference: bool = False
    """Also train PPO on the true reward, with the same settings and steps, to compare with."""
    evaluation_episodes: int = 20
    """Episodes each agent is evaluated on at the end."""
    tracker: TrackerName = "none"
    """Where metrics go besides TensorBoard: wandb is Weights & Biases (its login, or WANDB_MODE=offline)."""
    callback: tuple[str, ...] = ()
    """Your own callbacks, each as module:Name (rlhf_ray.runs.callbacks): they are told what the run does, and its metrics."""
    teacher: str | None = None
    """Short for preferences.teacher. With human, training goes on while people label (preferences.mode=asynchronous), unless
    wait_for_labels is set."""
    wait_for_labels: bool = False
    """With teacher=human: in each round, wait until people have answered all questions (preferences.mode=synchronous)."""
    start: Annotated[Start, tyro.conf.arg(name="")] = field(default_factory=Start)


def run(words: list[str]) -> None:
    """Run the command."""
    from rlhf_ray.data.places import in_job
    from rlhf_ray.runs.folder import RunFolder

    resumed = None
    if words[0] == "--resume":
        if len(words) < 2 or words[1].startswith("-"):
            raise SettingError("--resume needs the folder of the run to go on with.")
        resumed = RunFolder.open(words[1])
        if resumed.finished():
            raise SettingError(f"--resume is {words[1]}, and that run is complete: its report is {resumed.report}.")
        options = resumed.about()["options"]
        options["start"] = Start(**options.get("start", {}))
        options["callback"] = tuple(options.get("callback", ()))
        defaults = Train(**vars(resumed.experiment()), run_dir=resumed.path, **options)
    else:
        defaults = Train(**vars(with_first_comparisons(preset(words[0]), words)))
    command = parse_arguments(
        Train, f"rlhf-ray train {' '.join(words[: 2 if resumed else 1])}", words[2 if resumed else 1 :], defaults
    )
    experiment = _experiment(command)
    if command.evaluation_episodes < 1:
        raise SettingError(f"--evaluation-episodes is {command.evaluation_episodes}; it must be 1 or more.")
    check_tracker(command.tracker)
    callbacks = _callbacks(command.callback, resumed)
    if resumed is not None:
        _check_resumed(resumed.experiment(), experiment)
        if command.start != defaults.start:
            raise SettingError("--resume goes on with what the run began with; start a new run from something else.")

    with nothing_to_save():
        from rlhf_ray.runs.new_run import new_run
        from rlhf_ray.runs.train import quiet, start_ray, train

    quiet()
    folder = resumed or new_run(
        command.run_dir or new_folder(words[0], experiment.seed),
        experiment,
        command.start,
        options={
            "reference": command.reference,
            "evaluation_episodes": command.evaluation_episodes,
            "tracker": command.tracker,
            "callback": command.callback,
        },
        say=print,
    )
    experiment = folder.experiment() if resumed is None else experiment
    if in_job():
        print(f"run folder: {folder.path}")
    with resumable(folder), Progress(experiment) as progress:
        progress.on_stage("starting Ray")
        start_ray(cpus=2 + experiment.ppo.num_env_runners + experiment.ppo.num_learners)
        progress.on_stage("starting actors, gathering the first clips" if resumed is None else "starting actors")
        train(
            experiment,
            folder,
            resume=resumed is not None,
            reference=command.reference,
            evaluation_episodes=command.evaluation_episodes,
            callbacks=[*callbacks, *(kind() for kind in TRACKERS[command.tracker]), progress],
        )


def _callbacks(names: Sequence[str], resumed: RunFolder | None) -> list[Callback]:
    """The user's own. Naming one on the command line is consent to import it; what only a run's folder names needs it."""
    if resumed is not None:
        look_in_all(resumed.about().get("modules"))
        consent.check(names, resumed.run)
    append_to_path()
    return [CALLBACKS.make(name) for name in names]


@contextlib.contextmanager
def resumable(folder: RunFolder) -> Iterator[None]:
    """Say of a run that is left before it could be saved how it goes on."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        when = "before training began" if isinstance(stopped, Interrupted) else "at once"
        raise KeyboardInterrupt(f"stopped {when}; `rlhf-ray train --resume {folder.path}` goes on") from stopped


def with_first_comparisons(experiment: Experiment, words: Sequence[str]) -> Experiment:
    """The preset, with first comparisons in its own proportion to the budget that ``words`` set, unless they set both."""
    of, given = experiment.preferences, {}
    for word, value in zip(words, [*words[1:], ""], strict=True):
        name, equals, text = word.partition("=")
        given[name.replace("_", "-")] = text if equals else value
    budget = given.get("--preferences.comparisons", "")
    if not budget.isdecimal() or "--preferences.initial-comparisons" in given or of.initial_comparisons == "auto":
        return experiment
    comparisons = int(budget)
    first = min(comparisons, max(1, round(of.initial_comparisons * comparisons / max(1, of.comparisons))))
    changed = dataclasses.replace(of, comparisons=comparisons, initial_comparisons=first if comparisons else 0)
    return dataclasses.replace(experiment, preferences=changed)


def _experiment(command: Train) -> Experiment:
    """The settings that a command line comes to."""
    experiment = Experiment(**{f.name: getattr(command, f.name) for f in dataclasses.fields(Experiment)})
    preferences = experiment.preferences
    if command.wait_for_labels and "human" not in (command.teacher, preferences.teacher):
        raise SettingError("--wait-for-labels waits for people, and there are none: add --teacher human.")
    if command.teacher is not None:
        mode: Any = preferences.mode
        if command.teacher == "human":
            mode = "synchronous" if command.wait_for_labels else "asynchronous"
        preferences = dataclasses.replace(preferences, teacher=command.teacher, mode=mode)
    return dataclasses.replace(experiment, preferences=preferences)


def _check_resumed(before: Experiment, now: Experiment) -> None:
    """A run goes on with its own settings. Where it need not repeat bit for bit, another number of EnvRunners is no matter."""
    allowed = before
    if before.preferences.mode == "asynchronous":
        allowed = dataclasses.replace(
            before, ppo=dataclasses.replace(before.ppo, num_env_runners=now.ppo.num_env_runners)
        )
    if now != allowed:
        raise SettingError(
            "--resume goes on with the settings the run began with; the only one that may be changed is ppo.num_env_runners, "
            "and that with preferences.mode=asynchronous. Start a new run for other settings."
        )
