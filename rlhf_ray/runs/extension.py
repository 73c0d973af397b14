"""Extend a run: let it go on for more environment steps, with more comparisons, than it was started with."""

from __future__ import annotations

import dataclasses

from rlhf_ray.data.checkpoints import last_checkpoint
from rlhf_ray.data.errors import SettingError
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment
from rlhf_ray.store import PreferenceStore


def extended(
    folder: RunFolder, *, total_env_steps: int | None = None, comparisons: int | None = None
) -> tuple[Experiment, list[str]]:
    """Write new totals into the folder of a run that is complete or was stopped; `train` with ``resume`` goes on to them.

    From then on the run is one of these totals: its share of done steps shrinks, and everything that follows it goes on from
    there. Labels that such a run would have asked for by now are due first, the others are spread over the rest as the label
    schedule says; labelling rounds and a falling learning rate continue at this share, too.

    Args:
        folder: the run's folder.
        total_env_steps: environment steps in total; by default as before.
        comparisons: comparisons in total; by default as before.

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
        why = None
        if not learned or not labels:
            why = "but a run keeps whether its reward is learned, fixed or the true one: start a new run."
        elif labels < answered:
            why = f"but {answered} are stored in {folder.path}: set it to that or more."
        elif folder.finished() and steps == before.total_env_steps:
            why = (
                f"but the run in {folder.path} has used up total_env_steps={steps}, and comparisons are asked for during the "
                "training: raise total_env_steps, too."
            )
        if why is not None:
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
            f"all {labels} comparisons are there, so the reward stays as it is; more can be asked with "
            "--preferences.comparisons"
        )
    return experiment, said
