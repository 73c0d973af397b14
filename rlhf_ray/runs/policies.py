"""The policies of runs: kept beside the reward model, and read without Ray."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from safetensors.numpy import load_file

from rlhf_ray.agents.agent import Agent, digest_of
from rlhf_ray.agents.saved import POLICY_FILE, WEIGHTS_FILE, ActingPolicy, SavedPolicy
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.runs.folder import RunFolder

if TYPE_CHECKING:
    from rlhf_ray.rllib.policy import CollectorPolicy

_T = TypeVar("_T")


def keep_policy(folder: RunFolder, checkpoint: Path) -> None:
    """Copy the policy of a checkpoint that was just written to the run's ``policy/``, with its iteration and hash.

    A network that JSON can't describe is in the checkpoint alone; then there is no ``policy/``.
    """
    source = checkpoint / folder.policy.name
    if not (source / POLICY_FILE).exists():
        shutil.rmtree(folder.policy, ignore_errors=True)  # an older one's
        return
    about = json.loads((source / POLICY_FILE).read_text())
    about |= {"iteration": int(checkpoint.name), "digest": digest_of(load_file(source / WEIGHTS_FILE))}
    with whole_folder(folder.policy) as new:
        shutil.copy(source / WEIGHTS_FILE, new)
        (new / POLICY_FILE).write_text(json.dumps(about, indent=2) + "\n")


def saved_policy(folder: RunFolder) -> tuple[SavedPolicy, int] | None:
    """A run's newest policy, or that of the checkpoint which `RunFolder.of_policy` was given, and its iteration.

    Returns:
        None if there is none that can be played without RLlib.

    Raises:
        SettingError: there is none at all, or it is damaged.
    """
    if not folder.is_of_checkpoint and (saved := SavedPolicy.load(folder.policy)) is not None:
        return saved, int(saved.about["iteration"])
    saved, iteration = _from_checkpoint(folder, lambda checkpoint: SavedPolicy.load(checkpoint / folder.policy.name))
    return None if saved is None else (saved, iteration)


def newest_policy(folder: RunFolder) -> tuple[ActingPolicy, int]:
    """A run's newest policy (see `saved_policy`) and its iteration. The run may still be running.

    Networks that are not this package's need RLlib.

    Raises:
        SettingError: there is no policy yet, or it is damaged.
    """
    if (found := saved_policy(folder)) is not None:
        return found[0](), found[1]
    return _with_rllib(folder)


def newest_agent(folder: RunFolder) -> Agent:
    """A run's newest policy as an agent to look into, named after the run and its iteration.

    Raises:
        SettingError: there is no policy yet, it is damaged, or it has actions that the tools don't know.
    """
    found = saved_policy(folder)
    if found is not None and (agent := found[0].agent(f"{folder.path.name}, iteration {found[1]}")) is not None:
        return agent
    policy, iteration = _with_rllib(folder)
    from rlhf_ray.rllib.agents import agent_of

    return agent_of(policy, name=f"{folder.path.name}, iteration {iteration}")


def _with_rllib(folder: RunFolder) -> tuple[CollectorPolicy, int]:
    """The policy in the newest whole checkpoint, as an RLModule, and its iteration."""
    from rlhf_ray.rllib.checkpoint_parts import load_policy
    from rlhf_ray.runs.quiet import quiet

    quiet()
    return _from_checkpoint(folder, load_policy)


def _from_checkpoint(folder: RunFolder, load: Callable[[Path], _T]) -> tuple[_T, int]:
    """What ``load`` makes of the newest whole checkpoint, and its iteration."""
    while True:
        checkpoint = folder.checkpoint()
        try:
            return load(checkpoint), int(checkpoint.name)
        except (OSError, ValueError):
            if checkpoint.exists():  # otherwise the run has just replaced it with a newer one
                raise
