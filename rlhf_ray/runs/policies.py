"""The policies of runs, kept beside the reward model and read without Ray, and agents as people name them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
from safetensors.numpy import load_file

from rlhf_ray import envs
from rlhf_ray.agents.agent import FORMS, Agent, NetworkAgent, digest_of
from rlhf_ray.agents.own import own_agent
from rlhf_ray.agents.saved import POLICY_FILE, WEIGHTS_FILE, ActingPolicy, SavedPolicy
from rlhf_ray.data import consent
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import run_path
from rlhf_ray.data.spaces import take_names
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
    if folder.chosen is None and (saved := SavedPolicy.load(folder.policy)) is not None:
        return saved, int(saved.about["iteration"])
    saved, iteration = _from_checkpoint(folder, lambda checkpoint: SavedPolicy.load(checkpoint / folder.policy.name))
    return None if saved is None else (saved, iteration)


def newest_policy(folder: RunFolder) -> tuple[ActingPolicy, int]:
    """A run's newest policy (see `saved_policy`) and its iteration. Networks that are not this package's need RLlib."""
    if (found := saved_policy(folder)) is not None:
        return found[0](), found[1]
    return _with_rllib(folder)


def newest_agent(folder: RunFolder) -> Agent:
    """A run's newest policy (see `saved_policy`) as an agent to look into, named after the run and its iteration."""
    found = saved_policy(folder)
    if found is not None and (agent := found[0].agent(f"{folder.path.name}, iteration {found[1]}")) is not None:
        return agent
    policy, iteration = _with_rllib(folder)
    from rlhf_ray.rllib.agents import agent_of

    return agent_of(policy, name=f"{folder.path.name}, iteration {iteration}")


def named_agent(source: Path, environment: str | None) -> tuple[Agent, str, RunFolder | None]:
    """Load an agent for ``environment`` (None: its run's) from one of `FORMS`.

    Returns:
        The agent, its environment's name, and its run's folder, if it is of a run.

    Raises:
        SettingError: there is no agent, or its environment is not known.
    """
    own = consent.OWN.fullmatch(str(source)) is not None and not source.exists()
    found = RunFolder.of_policy(source)
    folder = found if not own and found.config.exists() else None
    if not own and not run_path(source).exists():
        raise SettingError(f"There is no agent at {source}; give {FORMS}.")
    if folder is not None:
        environment = environment or folder.experiment().environment
    elif environment is None:
        raise SettingError(f"{source} is no run folder; if it is an agent, name its environment with --environment.")
    assert environment is not None
    try:
        env = envs.make_env(environment)
    except (ValueError, ImportError) as error:
        raise SettingError(f"--environment: {error}") from error
    spaces = env.observation_space, env.action_space
    env.close()  # type: ignore[no-untyped-call]
    if isinstance(spaces[1], gym.spaces.MultiDiscrete):
        raise SettingError(
            f"The actions of {environment} are {spaces[1]}; the agent's report supports Discrete and Box actions: use one Discrete "
            "space with one action per combination."
        )
    if folder is not None:
        agent = newest_agent(folder)
    elif own:
        agent = own_agent(str(source), *spaces)
    elif (run_path(source) / "agent.json").exists():
        agent = NetworkAgent.load(run_path(source))
    else:
        from rlhf_ray.rllib.agents import agent_of

        agent = agent_of(run_path(source), None, *spaces)
    for mine, its in zip((agent.observation_space, agent.action_space), spaces, strict=True):
        if _kind(mine) != _kind(its):
            raise SettingError(
                f"The agent {source} is for {mine}, but {environment} has {its}; name its own environment."
            )
    take_names(agent.observation_space, spaces[0])
    return agent, environment, folder


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


def _kind(space: gym.Space[Any]) -> tuple[Any, ...]:
    """Return what agent and environment must have in common."""
    return type(space), space.shape, space.dtype, getattr(space, "n", None)
