"""`rlhf-ray interpret preprocess`: turn a reward into an equivalent one that is easier to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.studies import writable
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.lock import Lock
from rlhf_ray.interpret.reward.preprocess.problem import Options
from rlhf_ray.runs.interruption import nothing_to_save


@dataclass(frozen=True)
class Preprocess:
    """Add potential shaping to a reward so that it becomes sparse or smooth. Optimal policies stay the same."""

    path: tyro.conf.Positional[str]
    """A run folder, a reward model's folder, a table (.npz), or a network saved by imitation (.pt)."""
    data: Path | None = None
    """Steps to make it sparse or smooth on: a recording of `rlhf-ray record`, an .npz, or trajectories saved by imitation. Not
    needed with --environment if that has a table of its states."""
    environment: str | None = None
    """An environment with a table of its states, such as rlhf_ray/EmptyMaze10-v0: all its steps count, and optimal actions are
    compared."""
    out: Path = Path("preprocessed")
    """Folder for the new reward, its certificate and pictures."""
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        if (self.data is None) == (self.environment is None):
            raise SettingError("Give either --data with recorded steps, or --environment with a table of its states.")


def preprocess_command(words: list[str]) -> None:
    """Run the command.

    Raises:
        SettingError: there is no such reward, or the options don't suit it.
    """
    command: Preprocess = parse_arguments(Preprocess, "rlhf-ray interpret preprocess", words)
    writable(command.out)
    with Lock(command.out):
        _preprocess(command)


def _preprocess(command: Preprocess) -> None:
    with nothing_to_save():
        import torch

        from rlhf_ray import envs
        from rlhf_ray.data.recordings import load_transitions
        from rlhf_ray.interpret.reward.preprocess.certificate import tables_of
        from rlhf_ray.interpret.reward.preprocess.run import preprocess, write
        from rlhf_ray.reward.functions.loading import load_reward
        from rlhf_ray.runs.interpret import check_steps
    torch.set_num_threads(1)
    if command.environment is None:
        reward = load_reward(command.path)
        assert command.data is not None
        steps = load_transitions(command.data)
        steps = check_steps(reward, steps, command.data)
        found = preprocess(reward, steps, command.options)
    else:
        try:
            env = envs.make_env(command.environment)
        except (ValueError, ImportError) as error:
            raise SettingError(str(error)) from error
        reward = load_reward(command.path, env.observation_space, env.action_space)
        tables = tables_of(env, command.options.gamma)
        if tables is None:
            raise SettingError(
                f"--environment is {command.environment}, which has no table of its states; give recorded steps with --data."
            )
        found = preprocess(reward, tables.mdp, command.options, observations=tables.observations)
    write(found, command.out, base_path=command.path)
    print(f"{command.out}: {found.certificate}")
    for warning in found.certificate.warnings:
        print(f"Warning: {warning}")
