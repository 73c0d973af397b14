"""`rlhf-ray fit`: fit a reward model to the labels in a preference store; with ``--from-rewards``, to recorded rewards."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from rlhf_ray.cli import fit_rewards
from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.presets import spaces_of
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.lock import Lock
from rlhf_ray.data.metrics import plain, share_of
from rlhf_ray.measure.held_out import below_chance
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.interruption import nothing_to_save
from rlhf_ray.settings import RewardModelSettings

if TYPE_CHECKING:
    from rlhf_ray.reward import FitReport, RewardEnsemble


@dataclass(frozen=True)
class Fit:
    """Fit a reward model to the labels in a preference store, as a training does, and write the fit's curve and metrics.

    `rlhf-ray fit --from-rewards DATA` fits to recorded true rewards instead; `rlhf-ray fit --from-rewards --help` has its options.
    """

    store: tyro.conf.Positional[str]
    """A preference store's folder or URL, or a run folder."""
    out: Path = Path("reward_model")
    """Folder for the reward model; use it with `rlhf-ray train … --reward-from`."""
    environment: str | None = None
    """Environment of the fragments. None: the run's, for a run folder or a store inside one; otherwise the spaces are made from the
    fragments, and `rlhf-ray train --reward-from` can't use the reward model."""
    updates: int | None = None
    """Gradient steps. None: reward_model.initial_epochs passes over the labels, if set; otherwise 100 passes, and at least
    reward_model.initial_updates."""
    held_out_share: float = 0.1
    """Fraction (0 ≤ x < 1) of labels held out from the fit to measure held-out accuracy. Chosen by a hash of their ids."""
    seed: int = 0
    """Random seed for initial weights and batch order."""
    reward_model: RewardModelSettings = field(default_factory=RewardModelSettings)


def run(words: list[str]) -> None:
    """Run the command."""
    if any(word.partition("=")[0] == fit_rewards.FLAG for word in words):
        fit_rewards.run(words)
        return
    command: Fit = parse_arguments(Fit, "rlhf-ray fit", words)
    if "://" not in command.store and (around := RunFolder.around(command.store)) is not None:
        of = around.experiment()
        share = of.preferences.held_out_share
        defaults = Fit(
            command.store, environment=of.environment, held_out_share=share, seed=of.seed, reward_model=of.reward_model
        )
        command = parse_arguments(Fit, "rlhf-ray fit", words, defaults)
    fit_rewards.check_out(command.out)
    with Lock(command.out):
        _fit(command)


def _fit(command: Fit) -> None:
    with nothing_to_save():
        from rlhf_ray.queries.fitting import fit
        from rlhf_ray.reward.fit_report import write_curve
        from rlhf_ray.reward.methods import PassLosses
        from rlhf_ray.store import PreferenceStore
        from rlhf_ray.store.files import store_of
    passes: list[PassLosses] = []
    environment = command.environment
    try:
        store = PreferenceStore(store_of(command.store), create=False)
        spaces: tuple[Any, Any] = (None, None) if environment is None else spaces_of(environment, supported=True)
        reward, report = fit(
            store,
            *spaces,
            command.reward_model,
            held_out_share=command.held_out_share,
            updates=command.updates,
            seed=command.seed,
            after_pass=passes.append,
        )
        annotators, weights = store.tally().by_annotator, store.weights()
    except (ValueError, ImportError) as error:
        raise SettingError(str(error)) from error
    reward.save(command.out)
    write_curve(passes, command.out)
    metrics = report.metrics() | {"label_noise": reward.settings.label_noise, "weights": weights}
    write_text(command.out / fit_rewards.REPORT, json.dumps(plain(metrics), indent=2) + "\n")
    if environment is None:
        print(
            f"rlhf-ray: the environment of {command.store} is unknown, so the reward model is for the spaces of its fragments: "
            f"observations {reward.observation_space} and actions {reward.action_space}. To train on it, fit "
            "with --environment.",
            file=sys.stderr,
        )
    _say(command, reward, report)
    for line in _of_annotators(annotators, weights, report):
        print(f"  {line}")


def _of_annotators(labels: Mapping[str, int], weights: Mapping[str, float], report: FitReport) -> list[str]:
    """Say what the fit used and found: a line for all answers, then one for each annotator; none if all labels count the same."""
    lines = [] if report.wrong is None else [report.wrong.sentence()]
    if not (weights.keys() & labels.keys() or report.error_rates or report.rationalities):
        return lines
    for name, count in labels.items():
        known = [f"{count} labels"]
        if (weight := weights.get(name, 1.0)) != 1.0:
            known.append(f"weight {weight:g}" if weight else "weight 0: left out")
        if name in report.error_rates:
            known.append(f"error rate {report.error_rates[name]}")
        if name in report.rationalities:
            known.append(f"rationality {report.rationalities[name]:.2f}")
        lines.append(f"{name}: {', '.join(known)}")
    return lines


def _say(command: Fit, reward: RewardEnsemble, report: FitReport) -> None:
    held_out = f"all {report.held_out} labels held out are ties" if report.held_out else "no labels held out"
    if report.held_out_decided:
        held_out = f"held-out accuracy {share_of(report.held_out_accuracy, report.held_out_decided)}"
    learned = report.train_accuracy
    print(
        f"{command.out}: {len(reward.reward_mean)} networks fitted to {report.comparisons} labels in {report.gradient_steps} "
        f"gradient steps ({report.seconds:.1f} s): {held_out}, training accuracy "
        f"{'unknown, for all are ties' if math.isnan(learned) else f'{learned:.2f}'}"
    )
    if below_chance(report.held_out_accuracy, report.held_out_decided):
        print(
            "rlhf-ray: on the answers that it was not fitted to, the reward model is worse than guessing: the answers contradict "
            "each other. `rlhf-ray store info` tells what each annotator chose.",
            file=sys.stderr,
        )
