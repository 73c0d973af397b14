"""`rlhf-ray record`: record episodes of a run's policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.data.errors import SettingError
from rlhf_ray.runs.folder import RunFolder


@dataclass(frozen=True)
class Record:
    """Record episodes of a run's saved policy, acting deterministically: demonstrations, or a dataset to label."""

    run: tyro.conf.Positional[Path]
    """The run folder. The run may still be running."""
    out: Path
    """The output file, .npz, with flat arrays observations, actions, next_observations, rewards, terminals and timeouts."""
    episodes: int = 20
    """Number of episodes."""
    seed: int = 0
    """Random seed for the episodes' initial states."""


def run(words: list[str]) -> None:
    """Run the command."""
    command = parse_arguments(Record, "rlhf-ray record", words)
    if command.episodes < 1:
        raise SettingError(f"--episodes is {command.episodes}; it must be 1 or more.")
    from rlhf_ray.runs.policies import newest_policy
    from rlhf_ray.runs.record import record

    folder = RunFolder.open(command.run)
    policy, iteration = newest_policy(folder)
    demonstrations = record(folder.experiment().environment, policy.best, episodes=command.episodes, seed=command.seed)
    demonstrations.save(command.out)
    assert demonstrations.rewards is not None
    print(
        f"{command.out}: {len(demonstrations)} steps in {command.episodes} episodes of the policy of iteration {iteration}, mean "
        f"true return {demonstrations.rewards.sum() / command.episodes:.1f}"
    )
