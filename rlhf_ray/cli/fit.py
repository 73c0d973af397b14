"""`rlhf-ray fit`: fit a reward model to the labels in a preference store."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.data.errors import SettingError
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.interruption import nothing_to_save
from rlhf_ray.settings import Experiment, RewardModelSettings

if TYPE_CHECKING:
    from rlhf_ray.reward import FitReport, RewardEnsemble

USAGE = """usage: rlhf-ray fit STORE [--out FOLDER] [--SETTING VALUE …]

STORE is a preference store's folder or URL, or a run's folder. `rlhf-ray fit STORE --help` explains every option."""


@dataclass(frozen=True)
class Fit:
    """Fit a reward model to all labels in a preference store, and say how often it is right about those held out."""

    out: Path = Path("reward_model")
    """Folder for the reward model; `rlhf-ray train … --reward-from` takes it."""
    environment: str | None = None
    """The environment that the clips are from. A run's folder, or a store in one, tells it."""
    updates: int | None = None
    """Gradient steps; 100 passes over the labels unless given, and at least reward_model.initial_updates."""
    held_out_share: float = 0.1
    """Share of the labels (0 to below 1) kept out of the fit, to measure accuracy on. Decided by a hash of their ids."""
    seed: int = 0
    """Seed of initial weights and batch order."""
    reward_model: RewardModelSettings = field(default_factory=RewardModelSettings)


def run(words: list[str]) -> None:
    """Run the command.

    Raises:
        SettingError: there are no labels, or something does not fit them.
    """
    if not words or words[0].startswith("-"):
        print(USAGE)
        sys.exit(0 if words and words[0] in ("-h", "--help") else 2)
    where = words[0]
    around = RunFolder.around(where) if "://" not in where else None
    command = parse_arguments(
        Fit, f"rlhf-ray fit {where}", words[1:], Fit() if around is None else _as_in(around.experiment())
    )
    if command.environment is None:
        raise SettingError(
            f"{where} is no run's folder and lies in none, which would tell the environment; name it with --environment."
        )
    if command.out.exists() and not (command.out / "reward.json").exists():
        raise SettingError(
            f"--out is {command.out}, and that is something else than a reward model; name another folder."
        )
    with nothing_to_save():
        from rlhf_ray import envs
        from rlhf_ray.envs.spaces import check_spaces
        from rlhf_ray.reward import fit
        from rlhf_ray.store.files import store_of
    try:
        env = envs.make_env(command.environment)
        check_spaces(env.observation_space, env.action_space, command.environment)
        reward, report = fit(
            store_of(where),
            env.observation_space,  # type: ignore[arg-type]  # check_spaces lets no other pass
            env.action_space,
            command.reward_model,
            held_out_share=command.held_out_share,
            updates=command.updates,
            seed=command.seed,
        )
        env.close()  # type: ignore[no-untyped-call]
    except (ValueError, ImportError) as error:
        raise SettingError(str(error)) from error
    reward.save(command.out)
    _say(command, reward, report)


def _as_in(experiment: Experiment) -> Fit:
    """The defaults where a run's settings are known."""
    return Fit(
        environment=experiment.environment,
        held_out_share=experiment.preferences.held_out_share,
        seed=experiment.seed,
        reward_model=experiment.reward_model,
    )


def _say(command: Fit, reward: RewardEnsemble, report: FitReport) -> None:
    held_out = "no labels held out"
    if report.held_out:
        held_out = f"held-out accuracy {report.held_out_accuracy:.2f} ({report.held_out} labels)"
    print(
        f"{command.out}: {len(reward.reward_mean)} networks fitted to {report.comparisons} labels in {report.gradient_steps} "
        f"gradient steps ({report.seconds:.1f} s): {held_out}, training accuracy {report.train_accuracy:.2f}"
    )
