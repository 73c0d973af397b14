"""Resolve a command's PRESET or environment, and choose the folder of a new run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from rlhf_ray import tune_configs
from rlhf_ray.data import consent
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import did_you_mean
from rlhf_ray.settings import AgentName, Experiment, load_experiment
from rlhf_ray.teachers import PRESETS, TEACHERS


def about_presets(command: str) -> str:
    """More of the help of a command that takes a PRESET."""
    return (
        f"PRESET is one of {', '.join(tune_configs.names())}; or an environment id, which uses the default settings; or "
        f"a JSON file of settings: a run's config.json, a sweep's best.json. `rlhf-ray {command} PRESET --help` shows a preset's."
    )


def preset(name: str) -> Experiment:
    """The experiment of the preset ``name``, of the JSON file ``name``, or with default settings for the environment ``name``."""
    if name in tune_configs.names():
        experiment: Experiment = tune_configs.load(name).experiment
        return experiment
    if name.endswith(".json"):
        experiment = load_experiment(Path(name))
        consent.check(experiment.own_names(), Path(name))
        return experiment
    import gymnasium

    from rlhf_ray import envs

    try:
        envs.make_env(name).close()  # type: ignore[no-untyped-call]
    except (ValueError, ImportError, gymnasium.error.Error) as error:
        if ":" in name or "/" in name:  # can't be a preset
            raise SettingError(str(error)) from error
        presets = ", ".join(tune_configs.names())
        if near := did_you_mean(name, tune_configs.names()):
            raise SettingError(f"{name!r} is not a preset; {near} Presets: {presets}.") from error
        raise SettingError(f"{name!r} is neither a preset ({presets}) nor an environment: {error}") from error
    consent.allow(consent.module_of(name))  # typing the name is consent
    return Experiment(environment=name)


def spaces_of(environment: str, *, supported: bool = False) -> tuple[Any, Any]:
    """Return the observation and action space of an environment; ``supported``: check that reward models support them."""
    from rlhf_ray import envs
    from rlhf_ray.envs.spaces import check_spaces

    try:
        env: Any = envs.make_env(environment)
        spaces = env.observation_space, env.action_space
        env.close()
        if supported:
            check_spaces(*spaces, environment)
    except SettingError:
        raise
    except (ValueError, ImportError) as error:
        raise SettingError(str(error)) from error
    return spaces


def check_agent(given: Experiment, before: Experiment) -> None:
    """Refuse settings of another agent than that of the experiment ``given``, which differ from those ``before``."""
    for other in get_args(AgentName):
        if other == given.agent:
            continue
        theirs, default = getattr(given, other), getattr(before, other)
        for name, value in vars(theirs).items():
            if value != getattr(default, name):
                raise SettingError(
                    f"{other}.{name} is {value!r}, but the agent is {given.agent}: leave it out, or add --agent {other}."
                )


def check_teacher(given: Experiment, before: Experiment) -> None:
    """Refuse settings of teachers other than those of the experiment ``given``, which differ from those ``before``."""
    of = given.preferences
    names = (of.teacher, *(entry.teacher for entry in of.annotator_entries))
    used = {setting for name in names for part in name.split("+") for setting in PRESETS.get(part, ())}
    known = of.teacher == "human" or of.teacher in TEACHERS.parts or ":" in of.teacher
    if known and given.machine != before.machine:
        changed = next(name for name, value in vars(given.machine).items() if value != getattr(before.machine, name))
        raise SettingError(
            f"machine.{changed} is {getattr(given.machine, changed)!r}, but the teacher is {of.teacher}: leave it out, or add "
            "--teacher machine."
        )
    if ":" in of.teacher or (of.teacher == "population" and not of.annotators):  # one's own; the built-in annotators
        return
    for name, (setting, *_) in filter(lambda item: item[1], PRESETS.items()):
        value = getattr(of, setting)
        if setting not in used and value != getattr(before.preferences, setting):
            raise SettingError(
                f"preferences.{setting} is {value!r}, but the teacher is {of.teacher}, who does not use it: leave it out, or add "
                f"--preferences.teacher {name}."
            )


@contextlib.contextmanager
def new_folder(given: Path | None, name: str, seed: int) -> Iterator[Path]:
    """Yield the folder of a new run or sweep of the preset ``name``: the ``given`` one, or a new one under runs/.

    A new one is made at once, so that no other process takes its name, and removed if it is empty in the end.

    Raises:
        SettingError: it can't be made.
    """
    from rlhf_ray.actors.cluster import job_metadata
    from rlhf_ray.data.places import make_run_folder

    if given is not None:
        yield given
        return
    job = job_metadata().get("job_submission_id", "")[-4:]  # two people may submit the same command in the same second
    try:
        path = make_run_folder(Path(name).stem if name.endswith(".json") else name, seed, job)
    except OSError as error:
        raise SettingError(
            f"The run's folder {error.filename} can't be made ({error.strerror}): name one that can, with --run-dir."
        ) from error
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):  # it is not empty
            path.rmdir()
