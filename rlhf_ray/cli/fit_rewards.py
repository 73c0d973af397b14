"""`rlhf-ray fit --from-rewards`: fit a reward model to recorded rewards, and test it on episodes that it did not see."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.presets import spaces_of
from rlhf_ray.cli.studies import print_section, writable
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.lock import Lock
from rlhf_ray.runs.interruption import nothing_to_save
from rlhf_ray.settings import SUPERVISED_MODEL, RewardModelSettings, SupervisedSettings

FLAG = "--from-rewards"
REPORT = "fit.json"
"""The report, beside the reward model's ``reward.json``."""

ELSEWHERE: dict[str, str | None] = {
    "loss": "supervised.objective",
    "output": "supervised.objective",
    "learning_rate": "supervised.learning_rate",
    "batch_size": "supervised.batch_size",
    "updates": "supervised.epochs",
    "initial_updates": "supervised.epochs",
    "initial_epochs": "supervised.epochs",
    **dict.fromkeys(("weight_decay", "window", "label_noise", "annotator_rationality", "largest_log_odds", "methods")),
    **dict.fromkeys(("adaptive_l2", "l2_interval", "l2_factor", "early_stopping", "normalize_outputs", "discount")),
}
"""Reward model settings that only a fit to comparisons uses, and what to set instead."""


@dataclass(frozen=True)
class FitToRewards:
    """Fit a reward model to the true rewards of recorded episodes, and test it on other episodes of the recording."""

    from_rewards: str
    """A recording, an .npz of steps, trajectories of imitation, or a Minari data set."""
    out: Path = Path("reward_model")
    """Folder for the reward model; use it with `rlhf-ray train … --reward-from` and `rlhf-ray interpret reward --model`."""
    environment: str | None = None
    """Environment of the steps. Not needed where the data knows its spaces: a recording, an .npz of `rlhf-ray record`, Minari."""
    seed: int = 0
    """Random seed for the held-out episodes, initial weights and batches."""
    supervised: SupervisedSettings = field(default_factory=SupervisedSettings)
    reward_model: RewardModelSettings = field(default_factory=lambda: SUPERVISED_MODEL)


def check_out(out: Path) -> None:
    """Check that ``out`` is new or holds a reward model, which the new one replaces."""
    writable(out)
    if out.exists() and not (out / "reward.json").exists():
        raise SettingError(f"--out is {out}, which exists and is not a reward model; give another folder.")


def run(words: list[str]) -> None:
    """Run the command."""
    command: FitToRewards = parse_arguments(FitToRewards, "rlhf-ray fit", words)
    for name, instead in ELSEWHERE.items():
        value = getattr(command.reward_model, name)
        if value != getattr(SUPERVISED_MODEL, name):
            remedy = f"set {instead} instead" if instead else "leave it out"
            raise SettingError(
                f"reward_model.{name} is {value!r}, which only fits to comparisons use; with {FLAG}, {remedy}."
            )
    check_out(command.out)
    with Lock(command.out):
        _fit(command)


def _fit(command: FitToRewards) -> None:
    with nothing_to_save():
        from rlhf_ray.data.recordings import load_transitions, recorded_in
        from rlhf_ray.interpret.reward.visualisation import visualise
        from rlhf_ray.reward.supervised import fit_to_rewards
        from rlhf_ray.reward.supervised.fitter import check_steps
        from rlhf_ray.runs.progress import Counting
        from rlhf_ray.runs.supervised import supervised_section
    data = command.from_rewards
    steps = load_transitions(data)
    observation_space, action_space = _spaces(data, command.environment)
    own = recorded_in(data, observation_space)
    check_steps(steps, observation_space, action_space, f"The data in {data}", own)
    with Counting("gradient steps", 0) as bar:
        reward, report = fit_to_rewards(
            steps,
            observation_space,
            action_space,
            command.reward_model,
            command.supervised,
            seed=command.seed,
            visualise=lambda reward, seed: visualise(reward, steps, seed),
            progress=lambda done, total: bar.show(done, of=total),
        )
    reward.save(command.out)
    section = supervised_section(report)
    about = {"verdict": section.checks[0].text, "data": data, "seed": command.seed}
    write_text(command.out / REPORT, json.dumps(report.to_json() | about, indent=2) + "\n")
    print_section(section)
    print(
        f"{command.out}: fitted to {report.train_steps} of {len(steps)} steps in {report.gradient_steps} gradient steps "
        f"({report.seconds:.1f} s)"
    )


def _spaces(data: str, environment: str | None) -> tuple[Any, Any]:
    """Return the observation and action space of the steps: the recording's own, or the environment's."""
    from rlhf_ray.data.recordings import open_episodes
    from rlhf_ray.envs.spaces import check_spaces

    if environment is not None:
        return spaces_of(environment, supported=True)
    of: Any = open_episodes(data)
    spaces = of.observation_space, of.action_space
    if None in spaces:
        raise SettingError(f"{data} doesn't say what its spaces are; name its environment with --environment.")
    check_spaces(*spaces, str(of.about.get("environment") or data))
    return spaces
