"""Load steps from anything that holds them: recordings, files of demonstrations, and the clips that a run compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments, Trajectory
from rlhf_ray.data.recordings import load_transitions
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.store import PreferenceStore


def load_steps(path: Path | str, most: int | None = None) -> Transitions:
    """Load steps from a run folder's labelled clips, or from what `load_transitions` accepts.

    Args:
        path: the folder or file.
        most: maximum number of steps, taken from the start; None for all.

    Raises:
        SettingError: there are no steps.
    """
    folder = RunFolder(path)
    if not folder.config.exists():
        return load_transitions(path, most)
    last = None if most is None else max(1, most)  # each comparison has a step or more
    there = folder.preferences.exists()
    comparisons = PreferenceStore(folder.preferences, create=False).load(last) if there else None
    if comparisons is None:
        raise SettingError(
            f"{folder.path} has no labelled clips; record steps with `rlhf-ray record {path} --out FOLDER`."
        )
    pairs = comparisons.pairs
    found = transitions_of(Fragments.concatenate([pairs.left, pairs.right]))
    return found if most is None else found[:most]


def transitions_of(fragments: Fragments) -> Transitions:
    """Convert fragments to steps. Each different fragment becomes one episode; ``policy_version`` is among the columns."""
    names = fragments.ids()
    first = sorted({name: i for i, name in reversed(list(enumerate(names)))}.values())
    of = fragments[np.array(first)]
    trajectories = [
        Trajectory(of.observations[i], of.actions[i], of.rewards[i], bool(of.terminated[i]), int(of.starts[i]))
        for i in range(len(of))
    ]
    return Transitions.of_trajectories(trajectories).with_(
        columns={"policy_version": np.repeat(of.policy_versions, of.length)}
    )
