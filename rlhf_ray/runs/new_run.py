"""Create run folders, with copies of everything the run starts from."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from rlhf_ray.actors.ring import check_labels
from rlhf_ray.data.atomic import whole_folder
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
