"""The command line: `rlhf-ray train | evaluate | record | label | links | fit | tune | submit | ps | stop | store | doctor`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rlhf_ray.runs.interruption import Interrupted, leave, nothing_to_save, sigterm_as_ctrl_c

with nothing_to_save():  # these take a second or more
    import tyro

    import tune_configs
    from rlhf_ray.cli import store as commands
    from rlhf_ray.cli.arguments import parse_arguments
    from rlhf_ray.data.errors import SettingError
    from rlhf_ray.data.failures import DEBUG, cause, debugging, explain
    from rlhf_ray.envs import consent
    from rlhf_ray.envs.modules import look_in
    from rlhf_ray.labelling import links
    from rlhf_ray.runs.progress import Progress
    from rlhf_ray.runs.trackers import TrackerName, check_tracker
    from rlhf_ray.settings import Experiment, load_experiment
    from rlhf_ray.settings.start import Start

if TYPE_CHECKING:
    from rlhf_ray.runs.folder import RunFolder

USAGE = """usage: rlhf-ray COMMAND …

  rlhf-ray train PRESET [--SETTING VALUE …]   learn a reward from comparisons and train an agent on it
  rlhf-ray train --resume RUN                 go on with a run that was stopped or killed
  rlhf-ray evaluate RUN [--episodes N]        measure a run's saved policy on the true reward
  rlhf-ray record RUN --out FILE              write down what a run's saved policy does
  rlhf-ray label SOURCE --store STORE         have people compare clips, without training
  rlhf-ray links RUN [--revoke NAME]          show people's links to a labelling page, make new ones, shut somebody out
  rlhf-ray fit STORE [--out FOLDER]           fit a reward model to stored labels
  rlhf-ray tune PRESET [--trials N …]         try different settings: the preset's search space, or what --vary names
  rlhf-ray tune --resume FOLDER               go on with a sweep that was stopped or killed
  rlhf-ray submit -- COMMAND …                run one of these in a cluster
  rlhf-ray ps                                 list the runs of a cluster
  rlhf-ray stop RUN                           stop a run of a cluster as Ctrl-C does
  rlhf-ray store ACTION PATH …                look after a preference store; `rlhf-ray store` lists the actions
  rlhf-ray doctor [--address …]               check the installation, this machine and the Ray cluster

PRESET is one of {presets}; or the name of an environment, which starts from the defaults; or a
JSON file of settings (a run's config.json, a sweep's best.json). An environment module:Id that a file names and you have
not typed before needs --allow-import MODULE, since importing it runs its code.
`rlhf-ray COMMAND --help` (and `rlhf-ray train PRESET --help`) explains every option. With --debug (or RLHF_RAY_DEBUG=1) every
command shows the whole trace of what goes wrong."""


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
    teacher: Literal["oracle", "stochastic", "human"] | None = None
    """Short for preferences.teacher. With human, training goes on while people label (preferences.mode=asynchronous), unless
    wait_for_labels is set."""
    wait_for_labels: bool = False
    """With teacher=human: in each round, wait until people have answered all questions (preferences.mode=synchronous)."""
    start: Annotated[Start, tyro.conf.arg(name="")] = field(default_factory=Start)


@dataclass(frozen=True)
class Evaluate:
    """Measure a run's saved policy, acting deterministically, on the true reward."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    episodes: int = 20
    """Episodes to play."""
    json: bool = False
    """Print one JSON object instead of a sentence."""


@dataclass(frozen=True)
class Doctor:
    """Check the installation, this machine and Ray, and say what to do. Ends with code 1 when there is a problem."""

    address: str | None = None
    """Address of the Ray cluster to check; RAY_ADDRESS unless given, and where that is not set, Ray started for the check. Given
    a dashboard's (http://…), a job of the cluster makes the check."""
    json: bool = False
    """Print a JSON list instead of lines."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Wrong settings end it with code 2, other failures with 1, each with one line that says what to do."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words[: words.index("--")] if "--" in words else words  # what follows is the command of a job
    if "--debug" in own:
        words.remove("--debug")
        os.environ[DEBUG] = "1"
    try:
        _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read what this prints has gone, as `head` does. Python would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt as stopped:
        print(f"rlhf-ray: {str(stopped) or 'stopped at once'}", file=sys.stderr)
        if arguments is None:
            leave(130)
        sys.exit(130)
    except Exception as error:
        if debugging():
            traceback.print_exception(error)
        print(f"rlhf-ray: {explain(error)}", file=sys.stderr)
        sys.exit(2 if isinstance(cause(error), SettingError) else 1)
    if arguments is None:
        leave(0)


def _run(words: list[str]) -> None:
    usage = USAGE.format(presets=", ".join(tune_configs.names()))
    if not words or words[0] in ("-h", "--help"):
        print(usage)
        return
    actions: dict[str, Callable[[list[str]], None]] = {
        "train": _train,
        "evaluate": _evaluate,
        "record": _record,
        "fit": _fit,
        "label": _label,
        "links": links.run,
        "tune": _tune,
        "store": commands.run,
        "submit": _submit,
        "ps": _ps,
        "stop": _stop,
        "doctor": _doctor,
    }
    command, rest = words[0], words[1:]
    if command not in actions:
        sys.exit(f"rlhf-ray: there is no command {command!r}.\n{usage}")
    if command in ("train", "tune") and (not rest or rest[0].startswith("-")) and rest[:1] != ["--resume"]:
        print(usage)
        sys.exit(0 if rest and rest[0] in ("-h", "--help") else 2)
    if threading.current_thread() is threading.main_thread():
        sigterm_as_ctrl_c()
    look_in(Path.cwd())
    actions[command](consent.take_flags(rest))


def preset(name: str) -> Experiment:
    """The experiment called ``name``, or in the JSON file ``name``, or the defaults for the environment of that name."""
    if name in tune_configs.names():
        experiment: Experiment = tune_configs.load(name).experiment
        return experiment
    if name.endswith(".json"):
        experiment = load_experiment(Path(name))
        consent.check(experiment.environment, Path(name))
        return experiment
    import gymnasium

    from rlhf_ray import envs

    try:
        envs.make_env(name).close()  # type: ignore[no-untyped-call]
    except (ValueError, ImportError, gymnasium.error.Error) as error:
        if ":" in name:  # nobody means a preset by that
            raise SettingError(str(error)) from error
        presets = ", ".join(tune_configs.names())
        raise SettingError(f"{name!r} is neither a preset ({presets}) nor an environment: {error}") from error
    consent.allow(consent.module_of(name))  # who types it, means it
    return Experiment(environment=name)


def _train(words: list[str]) -> None:
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
        defaults = Train(**_fields(resumed.experiment()), run_dir=resumed.path, **options)
    else:
        defaults = Train(**_fields(_with_first_comparisons(preset(words[0]), words)))
    command = parse_arguments(
        Train, f"rlhf-ray train {' '.join(words[: 2 if resumed else 1])}", words[2 if resumed else 1 :], defaults
    )
    experiment = _experiment(command)
    if command.evaluation_episodes < 1:
        raise SettingError(f"--evaluation-episodes is {command.evaluation_episodes}; it must be 1 or more.")
    check_tracker(command.tracker)
    if resumed is not None:
        _check_resumed(resumed.experiment(), experiment)
        if command.start != defaults.start:
            raise SettingError("--resume goes on with what the run began with; start a new run from something else.")

    with nothing_to_save():
        from rlhf_ray.runs.new_run import new_run
        from rlhf_ray.runs.train import quiet, start_ray, train

    quiet()
    folder = resumed or new_run(
        command.run_dir or _new_folder(words[0], experiment.seed),
        experiment,
        command.start,
        options={
            "reference": command.reference,
            "evaluation_episodes": command.evaluation_episodes,
            "tracker": command.tracker,
        },
        say=print,
    )
    experiment = folder.experiment() if resumed is None else experiment
    if in_job():
        print(f"run folder: {folder.path}")
    with resumable(folder), Progress(experiment) as progress:
        progress.say("starting Ray")
        start_ray(cpus=2 + experiment.ppo.num_env_runners + experiment.ppo.num_learners)
        progress.say("starting actors, gathering the first clips" if resumed is None else "starting actors")
        outcome = train(
            experiment,
            folder,
            resume=resumed is not None,
            reference=command.reference,
            evaluation_episodes=command.evaluation_episodes,
            observe=progress.show,
            say=progress.say,
            invite=partial(progress.invite, folder=folder.path),
            tracker=command.tracker,
        )
    progress.summarise(outcome, folder)


@contextlib.contextmanager
def resumable(folder: RunFolder) -> Iterator[None]:
    """Say of a run that is left before it could be saved how it goes on."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        when = "before training began" if isinstance(stopped, Interrupted) else "at once"
        raise KeyboardInterrupt(f"stopped {when}; `rlhf-ray train --resume {folder.path}` goes on") from stopped


def _with_first_comparisons(experiment: Experiment, words: Sequence[str]) -> Experiment:
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


def _evaluate(words: list[str]) -> None:
    command = parse_arguments(Evaluate, "rlhf-ray evaluate", words, None)
    if command.episodes < 1:
        raise SettingError(f"--episodes is {command.episodes}; it must be 1 or more.")

    from rlhf_ray.measure.true_return import evaluate
    from rlhf_ray.runs.folder import RunFolder
    from rlhf_ray.runs.policies import newest_policy
    from rlhf_ray.runs.train import quiet

    quiet()
    folder = RunFolder.open(command.run)
    experiment = folder.experiment()
    policy, iteration = newest_policy(folder)
    metrics = folder.metrics_at(iteration)
    result = evaluate(experiment.environment, policy.best, episodes=command.episodes, seed=experiment.seed)
    values = dataclasses.asdict(result) | {
        "env_steps": metrics.get("env_steps", 0 if iteration == 0 else None),
        "comparisons": metrics.get("comparisons", 0 if iteration == 0 else None),
        "seed": experiment.seed,
    }
    if values["env_steps"] is None:
        print(
            f"rlhf-ray: {folder.metrics} lacks iteration {iteration}, which the policy is from, so its steps and comparisons are "
            "not known.",
            file=sys.stderr,
        )
    if command.json:
        print(json.dumps(values))
    else:
        taken = "" if values["env_steps"] is None else f", after {values['env_steps']} steps"
        print(
            f"{experiment.environment}: true return {result.true_return_mean:.1f} ± {result.true_return_std:.1f} over "
            f"{result.episodes} episodes{taken}" + (f" and {values['comparisons']} comparisons" if taken else "")
        )


def _record(words: list[str]) -> None:
    from rlhf_ray.runs.record import run

    run(words)


def _fit(words: list[str]) -> None:
    from rlhf_ray.cli.fit import run

    run(words)


def _tune(words: list[str]) -> None:
    from rlhf_ray.cli import tune as command
    from rlhf_ray.runs.train import quiet

    def load(name: str) -> tuple[Experiment, dict[str, Any]]:
        experiment = preset(name)
        return experiment, tune_configs.load(name).search_space() if name in tune_configs.names() else {}

    quiet()
    command.run(words, load, _new_folder)


def _label(words: list[str]) -> None:
    from rlhf_ray.runs import label
    from rlhf_ray.runs.train import quiet

    quiet()
    label.run(words, preset)


def _submit(words: list[str]) -> None:
    from rlhf_ray.cli.cluster import submit

    submit(words)


def _ps(words: list[str]) -> None:
    from rlhf_ray.cli.cluster import ps

    ps(words)


def _stop(words: list[str]) -> None:
    from rlhf_ray.cli.cluster import stop

    stop(words)


def _doctor(words: list[str]) -> None:
    command = parse_arguments(Doctor, "rlhf-ray doctor", words, Doctor())
    if command.address is not None:
        os.environ["RAY_ADDRESS"] = command.address
    if "://" in os.environ.get("RAY_ADDRESS", ""):
        from rlhf_ray.cli.cluster import relay

        relay(os.environ["RAY_ADDRESS"], ["doctor", *(["--json"] if command.json else [])])
        return

    from actors.access import show_token

    if os.environ.get("RAY_ADDRESS"):
        show_token()

    from rlhf_ray.cluster.doctor import Finding, examine_machine
    from rlhf_ray.cluster.examination import examine_cluster, examine_ports
    from rlhf_ray.runs.train import quiet

    def show(findings: list[Finding]) -> list[Finding]:
        for finding in [] if command.json else findings:
            print(f"{finding.status:<8} {finding.check:<26} {finding.seen}")
            if finding.remedy:
                print(f"{'':<35} → {finding.remedy}")
        return findings

    quiet()
    findings = show(examine_machine())
    if not os.environ.get("RAY_ADDRESS"):
        findings += show([examine_ports()])
    findings += show(examine_cluster())
    if command.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    if any(finding.status == "problem" for finding in findings):
        sys.exit(1)


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def _new_folder(name: str, seed: int) -> Path:
    from actors.cluster import job_metadata
    from rlhf_ray.data.places import run_path

    moment = datetime.fromtimestamp(time.time(), UTC).strftime("%Y%m%d-%H%M%S")
    short = Path(name).stem if name.endswith(".json") else name.replace("/", "-")
    job = job_metadata().get("job_submission_id", "")[-4:]  # two people may submit the same at the same moment
    return run_path("runs") / "-".join(filter(None, [short, f"seed{seed}", moment, job]))
