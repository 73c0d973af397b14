"""Create run folders, with copies of everything the run starts from, and let runs go on for longer."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from rlhf_ray.actors.ring import check_labels
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.checkpoints import last_checkpoint
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.errors import SettingError
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.rllib.starting import first_weights, fitted_reward
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment, PreferenceSettings
from rlhf_ray.settings.start import Start
from rlhf_ray.store import PreferenceStore
from rlhf_ray.store.files import store_of


def new_run(
    path: Path | str,
    experiment: Experiment,
    start: Start | None = None,
    *,
    options: dict[str, Any] | None = None,
    say: Callable[[str], None] = lambda what: None,
) -> RunFolder:
    """Create the folder of a run that starts from ``start``; `rlhf_ray.runs.train.train` runs it.

    The folder's experiment has all values resolved; with a given reward model, it asks no questions.

    Args:
        path: path of the folder, which must be empty or not exist.
        experiment: the settings.
        start: what to start from; None: from scratch.
        options: other options of the run, needed to resume it.
        say: called with progress messages.

    Raises:
        SettingError: a setting is invalid or does not match the environment or ``start``. Nothing is created then.
    """
    start = start or Start()
    if start.reward_from is not None:
        reward = fitted_reward(start.reward_from)
        experiment = dataclasses.replace(
            experiment, preferences=experiment.preferences.without_questions(), reward_model=reward.settings
        )
    elif experiment.preferences.comparisons == 0:
        raise SettingError(
            "preferences.comparisons is 0; set it to 1 or more, or give a reward model with --reward-from."
        )
    if start.labels is not None and experiment.fragments.length == "auto":
        # All fragments of a fit must have the same length.
        length = _first_label(store_of(str(start.labels))).pairs.left.length
        experiment = dataclasses.replace(experiment, fragments=dataclasses.replace(experiment.fragments, length=length))
    experiment = dataclasses.replace(experiment, preferences=experiment.preferences.resolved())
    config = preference_config(experiment)
    config.start_from(
        reward_model=start.reward_from,
        policy=start.policy_from,
        labels=start.labels,
        demonstrations=start.demonstrations,
        cloning_epochs=start.cloning_epochs,
    )
    config.check_settings()
    checked = config.check_environment()
    for note in checked.notes:
        say(f"{experiment.environment}: {note}")
    if start.reward_from is not None or (options or {}).get("true_reward"):
        _say_used_steps(experiment, say)
    spaces = (checked.observation_space, checked.action_space)
    if config.labels_from is not None:
        check_labels(_first_label(config.labels_from), checked.fragments, *spaces, config.labels_from)
        say(_on_labels(str(start.labels), config.labels_before, experiment.preferences))
    folder = RunFolder.create(path, experiment, (options or {}) | {"start": dataclasses.asdict(start)})
    if not start.parts:
        return folder
    try:
        with whole_folder(folder.start) as new:
            if start.reward_from is not None:
                reward.save(new / "reward_model")
            if config.labels_from is not None:
                PreferenceStore(config.labels_from, create=False).copy_to(new / "labels")
            if (weights := first_weights(config, *spaces, say=say)) is not None:
                save_file(weights, new / _POLICY)
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)  # an incomplete folder could not be resumed
        raise
    return folder


def _say_used_steps(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Say which part of the budget is used, if not all of it: without first fragments, nothing fills up an iteration."""
    total, each = experiment.total_env_steps, experiment.agent_settings.iteration_env_steps
    if unused := total % each:
        say(
            f"{total - unused} of total_env_steps={total} are used: the agent learns after every {each} steps "
            f"({experiment.agent}.rollout_length * {experiment.agent}.num_envs, for each env runner)"
        )


def sources(folder: RunFolder) -> dict[str, Any]:
    """The paths of what the run in ``folder`` starts from, as arguments of `PreferenceConfig.start_from`.

    Raises:
        SettingError: one of them is missing.
    """
    start = Start(**folder.about()["options"].get("start", {}))
    found = {name: folder.start / (_POLICY if name == "policy" else name) for name in start.parts}
    for path in found.values():
        if not path.exists():
            raise SettingError(f"{path} is missing, but the run starts from it: start a new run.")
    return found


_POLICY = "policy.safetensors"


def _on_labels(source: str, stored: int, of: PreferenceSettings) -> str:
    """Say how many labels ``source`` has, and who adds how many to them."""
    missing = max(0, of.comparisons - stored)
    teacher = "people" if of.people_share == 1.0 else f"the teacher {of.teacher}"
    if 0.0 < of.people_share < 1.0:
        teacher += " and people"
    added = f"{teacher} will add {missing}" if missing else "nothing more is asked"
    return f"--labels {source}: {stored} stored answers count towards preferences.comparisons={of.comparisons}; {added}"


def _first_label(store: str) -> Comparisons:
    """The first label in ``store``. The fit checks all of them."""
    try:
        snapshot = PreferenceStore(store, create=False).snapshot()
    except ValueError as error:
        raise SettingError(str(error)) from error
    if not len(snapshot):
        raise SettingError(f"--labels is {store}, which has no labels; give a store with labels.")
    return snapshot.gather(slice(1))


def extended(
    folder: RunFolder, *, total_env_steps: int | None = None, comparisons: int | None = None
) -> tuple[Experiment, list[str]]:
    """Write new totals into the folder of a run that is complete or was stopped; `train` with ``resume`` goes on to them.

    From then on the run is one of these totals: its share of done steps shrinks, and everything that follows it goes on from
    there. Labels that such a run would have asked for by now are due first, the others are spread over the rest as the label
    schedule says; labelling rounds and a falling learning rate continue at this share, too.

    Returns:
        The run's new settings, and what happens, in sentences.

    Raises:
        SettingError: a total is smaller than what was done, or leaves nothing to do. Nothing is written then.
    """
    before = folder.experiment()
    steps = before.total_env_steps if total_env_steps is None else total_env_steps
    labels = before.preferences.comparisons if comparisons is None else comparisons
    changed = dataclasses.replace(before.preferences, comparisons=labels)
    experiment = dataclasses.replace(before, total_env_steps=steps, preferences=changed)
    checkpoint = last_checkpoint(folder.checkpoints)
    done = 0 if checkpoint is None else int(folder.metrics_at(int(checkpoint.name)).get("env_steps") or 0)
    iteration = preference_config(experiment).most_iteration_env_steps
    if steps != before.total_env_steps and steps < done + iteration:
        raise SettingError(
            f"total_env_steps is {steps}, but the run in {folder.path} has taken {done} steps, and an iteration takes {iteration}: "
            f"set it to {done + iteration} or more."
        )
    answered = len(PreferenceStore(folder.preferences)) if (folder.preferences / "store.json").exists() else 0
    learned = before.preferences.comparisons > 0 and not folder.about()["options"].get("true_reward")
    if labels != before.preferences.comparisons:
        why = ""
        if not learned or not labels:
            why = "but a run keeps whether its reward is learned, fixed or the true one: start a new run."
        elif labels < answered:
            why = f"but {answered} are stored in {folder.path}: set it to that or more."
        elif folder.finished() and steps == before.total_env_steps:
            why = (
                f"but the run in {folder.path} has used up total_env_steps={steps}, and comparisons are asked for during the "
                "training: raise total_env_steps, too."
            )
        if why:
            raise SettingError(f"preferences.comparisons is {labels}, {why}")
    folder.extend(experiment)
    said = [f"{folder.path} goes on from {done} to {steps} environment steps"]
    if learned and answered < labels:
        said.append(
            f"{labels - answered} more comparisons will be asked: those that a run of {steps} steps would have by now first, then "
            f"as preferences.schedule={experiment.preferences.schedule} says"
        )
    elif learned:
        said.append(
            f"all {labels} comparisons are there, so the reward stays as it is; --preferences.comparisons asks more"
        )
    return experiment, said
