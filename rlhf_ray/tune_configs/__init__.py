"""Presets: one file per experiment, with its settings (``experiment``, used by `rlhf-ray train`) and its search space.

``search_space()`` returns a dict from setting names, as on the command line, to the samplers that `rlhf-ray tune` draws from.
`fast` makes any experiment a try-out of seconds (`rlhf-ray train PRESET --fast`).
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from types import ModuleType

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
    return dataclasses.replace(
        experiment,
        total_env_steps=first + exploration + 2 * 2 * rollout,
        fragments=dataclasses.replace(experiment.fragments, initial_env_steps=first, exploration_env_steps=exploration),
        preferences=dataclasses.replace(
            of,
            comparisons=comparisons,
            initial_comparisons=comparisons // 2,
            minimum_comparisons=None,
            rounds=min(1, of.rounds),
            teacher="oracle" if of.teacher == "human" else of.teacher,
            human_share=0.0,
        ),
        reward_model=dataclasses.replace(experiment.reward_model, initial_updates=2, initial_epochs=None, updates=2),
        ppo=dataclasses.replace(
            experiment.ppo,
            num_envs=2,
            num_env_runners=0,
            num_learners=0,
            rollout_length=rollout,
            minibatch_size=rollout,
            epochs=1,
        ),
        sac=dataclasses.replace(
            experiment.sac,
            num_envs=2,
            num_env_runners=0,
            num_learners=0,
            rollout_length=rollout,
            learning_starts=rollout,
        ),
    )
