"""`rlhf-ray evaluate`: measure the true return of a run's saved policy."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.data.errors import SettingError


@dataclass(frozen=True)
class Evaluate:
    """Measure the true return of a run's saved policy, acting deterministically."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    episodes: int = 20
    """Number of episodes."""
    json: bool = False
    """Print one JSON object instead of text."""


def run(words: list[str]) -> None:
    """Run the command."""
    command = parse_arguments(Evaluate, "rlhf-ray evaluate", words, None)
    if command.episodes < 1:
        raise SettingError(f"--episodes is {command.episodes}; it must be 1 or more.")

    from rlhf_ray.measure.true_return import evaluate
    from rlhf_ray.runs.folder import RunFolder
    from rlhf_ray.runs.policies import newest_policy
    from rlhf_ray.runs.train import quiet

    quiet()
    folder = RunFolder.open(command.run)
    experiment = folder.experiment()
    policy, iteration = newest_policy(folder)
    metrics = folder.metrics_at(iteration)
    result = evaluate(experiment.environment, policy.best, episodes=command.episodes, seed=experiment.seed)
    values = dataclasses.asdict(result) | {
        "env_steps": metrics.get("env_steps", 0 if iteration == 0 else None),
        "comparisons": metrics.get("comparisons", 0 if iteration == 0 else None),
        "seed": experiment.seed,
    }
    if values["env_steps"] is None:
        print(
            f"rlhf-ray: {folder.metrics} has no entry for the policy's iteration {iteration}, so its environment steps and "
            "comparisons are unknown.",
            file=sys.stderr,
        )
    if command.json:
        print(json.dumps(values))
    else:
        taken = "" if values["env_steps"] is None else f", after {values['env_steps']} environment steps"
        print(
            f"{experiment.environment}: true return {result.true_return_mean:.1f} ± {result.true_return_std:.1f} over "
            f"{result.episodes} episodes{taken}" + (f" and {values['comparisons']} comparisons" if taken else "")
        )
