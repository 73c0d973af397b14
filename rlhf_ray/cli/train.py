"""`rlhf-ray train`: learn a reward from comparisons and train an agent on it."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rlhf_ray import tune_configs
from rlhf_ray.cli.arguments import asks_help, parse_arguments, spelled_out
from rlhf_ray.cli.presets import about_presets, check_agent, check_teacher, new_folder, preset
from rlhf_ray.data import consent
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import cause
from rlhf_ray.data.modules import append_to_path
from rlhf_ray.data.system import bound_cores
from rlhf_ray.runs.callbacks import CALLBACKS, Callback
from rlhf_ray.runs.interruption import Interrupted, nothing_to_save
from rlhf_ray.runs.progress import Counting, ProgressBars
from rlhf_ray.settings import Experiment
from rlhf_ray.settings.checks import Count
from rlhf_ray.settings.experiment import to_json
from rlhf_ray.settings.start import Start

if TYPE_CHECKING:
    from rlhf_ray.runs.folder import RunFolder


OF_RING = ("--fragments.", "--preferences.", "--machine.", "--labelling.", "--reward-model.")


@dataclass(frozen=True)
class Train(Experiment):
    """Learn a reward from comparisons and train an agent on it. `rlhf-ray train --resume RUN` continues a run."""

    run_dir: Path | None = None
    """The run folder, for everything the run writes. None: a new folder under runs/."""
    fast: bool = False
    """Try the preset out in seconds, with tiny budgets and a scripted teacher: everything runs, and nothing is learned. Settings
    you pass still apply."""
    reference: bool = False
    """Also train the agent on the true reward, with the same settings and steps, as a reference."""
    true_reward: bool = False
    """Train the agent on the environment's true reward instead of a learned one, without questions: an expert for
    `rlhf-ray record`."""
    evaluation_episodes: Count = 20
    """Number of episodes for the final evaluation of each agent."""
    cores: Count | None = None
    """Most cores that the run uses. None: all that the process may use. The experiment does not depend on it."""
    callback: tuple[str, ...] = ()
    """Your own callbacks, each as module:Name (see rlhf_ray.runs.callbacks). They receive the run's events and metrics."""
    teacher: str | None = None
    """Short for --preferences.teacher. With human, training continues while people label (preferences.mode=asynchronous), unless
    --wait-for-labels is set."""
    wait_for_labels: bool = False
    """With people as teachers: wait in each round until people have answered all questions (preferences.mode=synchronous)."""
    start: Annotated[Start, tyro.conf.arg(name="")] = field(default_factory=Start)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {"--reference": self.reference, "--callback": self.callback, "what to start from": self.start.parts}
        if self.true_reward and any(given.values()):
            names = ", ".join(name for name, there in given.items() if there)
            raise SettingError(f"--true-reward trains on the true reward alone, without a ring; leave out {names}.")

    @property
    def options(self) -> dict[str, Any]:
        """What a run folder keeps besides the experiment."""
        names = ("reference", "evaluation_episodes", "true_reward", "callback")
        return {name: getattr(self, name) for name in names}


def run(words: list[str]) -> None:
    """Run the command."""
    if words[0].startswith("-") and asks_help(words):
        parse_arguments(Train, "rlhf-ray train PRESET", ["--help"], about=about_presets("train"))
    if "--resume" in words[1:]:
        raise SettingError(
            f"--resume comes after {words[0]}, but a run knows what it trains: `rlhf-ray train --resume RUN`."
        )
    resumed = _resumed(words) if words[0] == "--resume" else None
    with contextlib.nullcontext() if resumed is None else resumed.writing():
        _run(words, resumed)


def _run(words: list[str], resumed: RunFolder | None) -> None:
    """Run the command in a new folder, or in that of the run to resume."""
    from rlhf_ray.data.places import in_job

    defaults = _defaults(words) if resumed is None else _kept(resumed)
    named = 1 if resumed is None else 2
    given = spelled_out(words[named:], "--teacher", "--preferences.teacher")
    command = parse_arguments(Train, f"rlhf-ray train {' '.join(words[:named])}", given, defaults)
    bound_cores(command.cores)
    experiment = _experiment(command)
    check_agent(experiment, defaults)
    check_teacher(experiment, defaults)
    callbacks = _callbacks(command.callback, resumed)
    if resumed is not None:
        _check_resumed(resumed, command, defaults, experiment)

    gc.disable()  # imports leave no garbage, and the search for it takes a sixth of their time
    with nothing_to_save():
        from rlhf_ray.runs.new_run import extended, new_run
        from rlhf_ray.runs.quiet import quiet
        from rlhf_ray.runs.train import train
    gc.freeze()  # modules are never garbage: later searches skip them
    gc.enable()

    quiet()
    if resumed is None:
        with new_folder(command.run_dir, words[0], experiment.seed) as path:
            folder = new_run(path, experiment, command.start, options=command.options, say=print)
        experiment = folder.experiment()
    else:
        folder = resumed
        if (totals := _totals(experiment)) != _totals(folder.experiment()):
            for line in extended(folder, total_env_steps=totals[0], comparisons=totals[1])[1]:
                print(f"rlhf-ray: {line}")
    if in_job():
        print(f"run folder: {folder.path}")
    if command.true_reward:
        if unused := [word.split("=")[0] for word in given if word.startswith(OF_RING)]:
            print(f"rlhf-ray: --true-reward asks nobody and fits no reward; without effect: {', '.join(unused)}.")
        _train_expert(folder, experiment, resumed is not None, command.evaluation_episodes)
        return
    with (
        folder.writing(),
        refused(folder) if resumed is None else contextlib.nullcontext(),
        resumable(folder),
        ProgressBars(experiment) as progress,
    ):
        progress.on_stage("starting, collecting the first fragments" if resumed is None else "starting")
        train(
            folder,
            experiment,
            resume=resumed is not None,
            reference=command.reference,
            evaluation_episodes=command.evaluation_episodes,
            callbacks=[*callbacks, progress],
        )


def _resumed(words: Sequence[str]) -> RunFolder:
    """The run to resume."""
    from rlhf_ray.runs.folder import RunFolder

    if len(words) < 2 or words[1].startswith("-"):
        raise SettingError("--resume needs the run folder of the run to resume.")
    return RunFolder.open(words[1])


def _kept(resumed: RunFolder) -> Train:
    """The command that began a run."""
    options = resumed.about()["options"]
    options["start"] = Start(**options.get("start", {}))
    options["callback"] = tuple(options.get("callback", ()))
    return Train(**vars(resumed.experiment()), run_dir=resumed.path, **options)


def _train_expert(folder: RunFolder, experiment: Experiment, resume: bool, episodes: int) -> None:
    """Train on the true reward, with a progress bar, and print the outcome."""
    from rlhf_ray.agents.true_return import success_of
    from rlhf_ray.runs.expert import train_expert

    def watch(metrics: dict[str, Any]) -> None:
        mean, success = metrics["true_return_mean"], metrics["success_rate"]
        note = "" if mean is None else f"mean true return {mean:.2f}"
        bar.show(metrics["env_steps"], note if success is None else f"{note}, success {success:.2f}")

    with resumable(folder), Counting("env steps", experiment.total_env_steps) as bar:
        outcome = train_expert(folder, experiment, resume=resume, evaluation_episodes=episodes, watch=watch)
    if outcome.random is None or outcome.reference is None:
        print(f"stopped after {outcome.env_steps} steps; resume with `rlhf-ray train --resume {folder.path}`")
        return
    returns = [
        f"{result.true_return_mean:.1f}"
        + (f", {success} of episodes succeeded" if (success := success_of(result.success_rate)) else "")
        for result in (outcome.reference, outcome.random)
    ]
    print(
        f"{folder.path}: mean true return {returns[0]} after {outcome.env_steps} steps on the "
        f"true reward (random actions: {returns[1]}); record it with "
        f"`rlhf-ray record {folder.path} --out FOLDER`"
    )


def _defaults(words: Sequence[str]) -> Train:
    """The command's settings before those in ``words`` that follow the preset."""
    experiment = preset(words[0])
    if "--fast" in words:
        return Train(**vars(tune_configs.fast(experiment)), evaluation_episodes=2)
    return Train(**vars(experiment))


def _callbacks(names: Sequence[str], resumed: RunFolder | None) -> list[Callback]:
    """The user's callbacks. Naming one on the command line is consent to import it; names from a run folder need consent."""
    if resumed is not None:
        consent.check(names, resumed.run, resumed.about().get("modules"))
    append_to_path()
    return [CALLBACKS.make(name) for name in names]


@contextlib.contextmanager
def refused(folder: RunFolder) -> Iterator[None]:
    """Where a setting proves wrong before anything is asked or learned, remove the folder, so that the command can be repeated."""
    try:
        yield
    except Exception as error:
        if isinstance(cause(error), SettingError) and not folder.rows():
            from rlhf_ray.store import PreferenceStore

            store = folder.preferences
            if not store.exists() or not PreferenceStore(store, create=False).tally().last:  # of skips, too
                shutil.rmtree(folder.path, ignore_errors=True)
        raise


@contextlib.contextmanager
def resumable(folder: RunFolder) -> Iterator[None]:
    """On an interrupt before the first checkpoint, raise KeyboardInterrupt with the command that resumes the run."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        when = "before training started" if isinstance(stopped, Interrupted) else "immediately"
        raise KeyboardInterrupt(f"stopped {when}; resume with `rlhf-ray train --resume {folder.path}`") from stopped


def _experiment(command: Train) -> Experiment:
    """The experiment that the command line describes."""
    experiment = Experiment(**{f.name: getattr(command, f.name) for f in dataclasses.fields(Experiment)})
    teacher, mode = command.teacher or experiment.preferences.teacher, experiment.preferences.mode
    slow = {"human", "machine"} & set(teacher.split("+"))
    if command.wait_for_labels and not slow:
        raise SettingError("--wait-for-labels needs people or a machine as teachers: add --teacher human.")
    if (command.teacher and slow) or command.wait_for_labels:
        mode = "synchronous" if command.wait_for_labels else "asynchronous"
    return experiment.changed(preferences={"teacher": teacher, "mode": mode})


def _totals(experiment: Experiment) -> tuple[int, int]:
    """What a resumed run may have more of: environment steps and comparisons."""
    return experiment.total_env_steps, experiment.preferences.comparisons


def _first_difference(now: Mapping[str, Any], before: Mapping[str, Any], of: str = "") -> str:
    """Return the first setting that has changed, and its values."""
    name = next(name for name in now if now[name] != before.get(name))
    new, old = now[name], before.get(name)
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        return _first_difference(new, old, f"{of}{name}.")
    return f"{of}{name} was {old}, not {new}"


def _check_resumed(resumed: RunFolder, command: Train, kept: Train, now: Experiment) -> None:
    """A resumed run keeps its settings but for its totals and env threads; in asynchronous mode, env runners may change, too."""
    if command.true_reward != kept.true_reward:
        raise SettingError("--resume keeps the reward of a run; start a new run with or without --true-reward.")
    before = resumed.experiment()
    steps, comparisons = _totals(now)
    preferences = dataclasses.replace(before.preferences, comparisons=comparisons)
    allowed = dataclasses.replace(before, total_env_steps=steps, preferences=preferences, machine=now.machine)
    agent = getattr(now, before.agent)
    allowed = allowed.with_agent_settings(env_threads=agent.env_threads)
    if before.preferences.mode == "asynchronous":
        allowed = allowed.with_agent_settings(num_env_runners=agent.num_env_runners)
    if now != allowed:
        raise SettingError(
            f"--resume keeps the run's settings, and {_first_difference(to_json(now), to_json(allowed))}; only total_env_steps and "
            f"preferences.comparisons may grow, {before.agent}.env_threads, --cores and the machine change, and with "
            f"preferences.mode=asynchronous {before.agent}.num_env_runners. Start a new run for other settings."
        )
    if resumed.finished() and _totals(now) == _totals(before):
        raise SettingError(
            f"--resume is {resumed.path}, but that run is complete; see its report {resumed.report}. To extend it, add "
            f"--total-env-steps with more than {before.total_env_steps}."
        )
    if command.start != kept.start:
        raise SettingError("--resume keeps what the run started from; start a new run to change that.")
