"""Presets: a file for each, with its settings (``experiment``) and what it varies beyond the shared search space (``VARY``)."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from rlhf_ray.settings import Experiment

if __name__ != "rlhf_ray.tune_configs":  # a second copy of each module, whose classes are not the first's
    raise ImportError(
        f"{__name__} is a link to rlhf_ray.tune_configs for readers of the folder list: import rlhf_ray.tune_configs."
    )


def names() -> list[str]:
    """The names of the presets, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> ModuleType:
    """The module of the preset ``name``.

    Raises:
        ValueError: there is no such preset.
    """
    if name not in names():
        raise ValueError(f"There is no preset {name!r}; choose from {', '.join(names())}.")
    return importlib.import_module(f"{__name__}.{name}")


def search_space(name: str) -> dict[str, Any]:
    """The search space of `rlhf-ray tune NAME`: from names of settings, as on the command line, to Tune's samplers.

    All presets vary learning rates (by a factor of 3 either way), updates and the length of fragments; those of people only how
    each fit learns, as each trial asks for its own answers. The lists in the preset's ``VARY`` are choices in addition.
    """
    from ray import tune  # slow import that training does not need

    of = load(name).experiment
    rates = {"reward_model.learning_rate": of.reward_model.learning_rate}
    choices: dict[str, list[Any]] = {"reward_model.label_noise": [None, 0.1, 0.2]}
    if not of.preferences.asks_people:
        length, updates = of.fragments.length, of.reward_model.updates
        choices = {
            "reward_model.updates": [updates // 2, updates, 2 * updates],
            "fragments.length": [10, 25] if length == "auto" else [length // 2, length, 2 * length],
        } | getattr(load(name), "VARY", {})
        if of.agent == "ppo":
            rates["ppo.learning_rate"] = of.ppo.learning_rate
        else:
            rates |= {
                f"sac.{part}_learning_rate": getattr(of.sac, f"{part}_learning_rate") for part in ("actor", "critic")
            }
            choices["sac.updates_per_env_step"] = [0.5, 1.0, 2.0]
    return {setting: tune.loguniform(rate / 3, 3 * rate) for setting, rate in rates.items()} | {
        setting: tune.choice(values) for setting, values in choices.items()
    }


def fast(experiment: Experiment) -> Experiment:
    """``experiment`` with budgets so small that it runs in seconds and learns nothing: to see that everything works.

    Environment, networks and loss stay. There are at most eight comparisons, answered by a scripted teacher, and two iterations.
    """
    of = experiment.preferences
    length = 10 if experiment.fragments.length == "auto" else experiment.fragments.length
    rollout, first = max(128, length), max(400, 4 * length)
    exploration = experiment.fragments.exploration_env_steps
    exploration = length if isinstance(exploration, float) else exploration
    comparisons = min(8, of.comparisons)
    pretraining = 2 * rollout if of.pretraining_env_steps else 0
    here = {"num_envs": 2, "num_env_runners": 0, "num_learners": 0, "rollout_length": rollout}
    return experiment.changed(
        total_env_steps=pretraining + first + exploration + 2 * 2 * rollout,
        fragments={"initial_env_steps": first, "exploration_env_steps": exploration},
        preferences={
            "comparisons": comparisons,
            "initial_comparisons": comparisons // 2,
            "minimum_comparisons": None,
            "rounds": min(1, of.rounds),
            "pretraining_env_steps": pretraining,
            "teacher": "oracle" if of.teacher == "human" else of.teacher,
            "human_share": 0.0,
        },
        reward_model={"initial_updates": 2, "initial_epochs": None, "updates": 2},
        ppo={**here, "minibatch_size": rollout, "epochs": 1},
        sac={**here, "learning_starts": rollout},
    )
