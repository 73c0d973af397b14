"""The report of one fit: how well the ensemble predicts the answers that it was fitted to, and those held out; and its curve."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf_ray.data.atomic import whole_file, write_text
from rlhf_ray.data.metrics import Metric, declare
from rlhf_ray.measure.held_out import brier_scores, calibration_error, log_likelihoods, probabilities_of
from rlhf_ray.reward.annotators import Estimates
from rlhf_ray.reward.comparison_set import StackedComparisons
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.likelihood import Loss
from rlhf_ray.reward.methods import PassLosses
from rlhf_ray.store.answers import Presses

declare(
    "reward model",
    Metric("ties", "Ties among the stored comparisons.", "comparisons", int),
    Metric("held_out", "Comparisons held out from the fit.", "comparisons", int),
    Metric("held_out_decided", "Those without ties, that held_out_accuracy is about.", "comparisons", int),
    Metric("train_loss", "Mean loss on training comparisons.", "nats"),
    Metric("train_accuracy", "Share of training comparisons, without ties, that the model agrees with.", "share"),
    Metric("held_out_loss", "Mean loss on held-out comparisons.", "nats"),
    Metric(
        "held_out_accuracy",
        "Share of held-out comparisons, without ties, that the model agrees with.",
        "share",
        bar="reward fits",
        label="held-out accuracy",
        among="held_out_decided",
    ),
    Metric(
        "held_out_log_likelihood",
        "Mean log-likelihood of held-out answers, whatever the loss: guessing gives -0.69.",
        "nats",
    ),
    Metric(
        "held_out_brier",
        "Mean squared error of predicted probabilities on held-out comparisons: guessing gives 0.25.",
        "share",
    ),
    Metric(
        "held_out_calibration_error",
        "Mean distance between predicted and observed shares on held-out comparisons; few make it larger.",
        "share",
    ),
    Metric("reward_mean", "Mean raw reward per step, before normalisation.", "raw reward"),
    Metric("reward_std", "Standard deviation of the raw reward: the scale of this version.", "raw reward"),
    Metric("additive_share", "Share of the reward that is a sum of functions of single inputs.", "share"),
    Metric(
        "additive_evidence",
        "Log-likelihood of answers that members were not fitted to, by such sums alone, above that by MLPs alone.",
        "nats",
    ),
    Metric("disagreement", "Standard deviation over members of the predicted preference.", "share"),
    *(
        Metric(
            f"chosen_{side}", f"Newest answers of an annotator {what}.", "comparisons", int, "annotator", gauge=False
        )
        for side, what in (
            ("left", "for the fragment shown on the left"),
            ("right", "for the fragment shown on the right"),
            ("equal", 'that are "equally good"'),
        )
    ),
    Metric(
        "best_fragments",
        "What the best twentieth of the compared fragments earns per step at least, by the normalised learned reward.",
    ),
    Metric("gradient_steps", "Gradient steps of the fit.", kind=int),
    Metric("fit_seconds", "Time of the fit.", "s"),
    Metric("suspicious_answers", "Answers that are more likely wrong than right.", "comparisons", int),
    Metric(
        "rationality",
        "Estimated rationality of an annotator, relative to the others.",
        tag="annotator",
        gauge=False,
    ),
    Metric("l2", "Coefficient of the adaptive L2 penalty."),
    Metric("method", "What a method of the fits says of the last one.", tag="name", gauge=False),
)


@dataclass(frozen=True, kw_only=True)
class FitReport(Estimates):
    """Report of one fit, with what it found about annotators.

    Accuracies use the mean over members and exclude ties; NaN where no comparison remains. ``comparisons``, ``held_out`` and
    ``ties`` count everything; all other values exclude annotators of weight 0.
    """

    version: int
    comparisons: int
    held_out: int
    held_out_decided: int
    """Held-out comparisons without ties: those that ``held_out_accuracy`` is about."""
    ties: int
    train_loss: float
    train_accuracy: float
    held_out_loss: float
    held_out_accuracy: float
    held_out_brier: float
    """Mean Brier score on held-out comparisons: see `rlhf_ray.measure.held_out`."""
    held_out_calibration_error: float
    """Expected calibration error on held-out comparisons: see `rlhf_ray.measure.held_out.calibration_error`."""
    reward_mean: float
    """The raw reward's mean before normalisation, averaged over members."""
    reward_std: float
    """The raw reward's standard deviation before normalisation, averaged over members: the scale of this version."""
    disagreement: float
    """Standard deviation over members of the probability that left is preferred (without label noise), averaged over
    comparisons; NaN for a single member."""
    best_fragments: float
    """95th percentile, over the compared fragments, of the mean normalised reward per step: the mean step of all of them has 0. NaN
    without `RewardModelSettings.normalize_outputs`."""
    gradient_steps: int
    seconds: float
    additive_share: float = math.nan
    """The additive models' share of the reward, 0 to 1 (`rlhf_ray.reward.networks.mixed`); NaN for other networks."""
    additive_evidence: float = math.nan
    """What the answers say for that share (`MixedMLP.evidence`), in nats; NaN for other networks."""
    l2: float = 0.0
    """Coefficient of the L2 penalty after the fit; 0 without `RewardModelSettings.adaptive_l2`."""
    methods: dict[str, float] = field(default_factory=dict)
    """Metrics of `RewardModelSettings.methods`."""
    chosen: dict[str, Presses] = field(default_factory=dict)
    """How often each annotator chose the fragment shown on the left, that on the right, and "equally good", of their newest answers
    (at most `RECENT_ANSWERS`); 0 for an annotator of weight 0."""
    held_out_log_likelihood: float = math.nan
    """Mean log-likelihood of the held-out answers in nats, whatever the loss: see `rlhf_ray.measure.held_out`."""

    @classmethod
    def nothing_fitted(cls, version: int, comparisons: int) -> FitReport:
        """Return a report of the current version when there is nothing to fit: no gradient steps, scores NaN."""
        required = [
            field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING
        ]
        values: dict[str, Any] = dict.fromkeys(required, math.nan)
        values |= dict.fromkeys(("held_out", "held_out_decided", "ties", "gradient_steps"), 0)
        return cls(**values | {"comparisons": comparisons, "version": version, "seconds": 0.0})

    def metrics(self) -> dict[str, float]:
        """Return the values by the names of metrics, with one per annotator or method as ``error_rate/NAME``."""
        values = dict(vars(self))
        values["fit_seconds"] = values.pop("seconds")
        wrong, rates = values.pop("wrong"), values.pop("error_rates")
        values["suspicious_answers"] = len(values.pop("suspicions"))
        for name, rate in {"": wrong, **rates}.items():
            if rate is not None:
                values |= rate.metrics(name)
        for name, drift in values.pop("drifts").items():
            values |= drift.metrics(name)
        named = (("rationalities", "rationality"), ("assumed", "error_rate_assumed"), ("methods", "method"))
        for attribute, metric in named:
            values |= {f"{metric}/{name}": value for name, value in values.pop(attribute).items()}
        for name, presses in values.pop("chosen").items():
            values |= {f"chosen_{side}/{name}": count for side, count in asdict(presses).items()}
        return values


def scores_of(
    data: StackedComparisons, differences: Tensor, loss: Loss, counted: Tensor, train: Tensor
) -> dict[str, Any]:
    """Compute the scores of a `FitReport`, by name.

    ``differences [members, n]`` are the log odds that the left fragment is better, ``counted`` the rows of annotators with weight,
    ``train`` those that were trained on.
    """
    mean_difference = differences.mean(0)
    losses = loss(mean_difference, data.preferences, data.noise)
    decided = data.preferences != 0.5
    right = (mean_difference > 0) == (data.preferences > 0.5)
    counts, trained = (torch.zeros(len(data), dtype=torch.bool) for _ in range(2))
    counts[counted], trained[train] = True, True
    unseen = data.held_out & counts & ~trained
    noise = data.noise[unseen].numpy() if isinstance(data.noise, Tensor) else data.noise
    predicted = probabilities_of(mean_difference[unseen].numpy(), noise)
    answered = data.preferences[unseen].numpy()
    spread = torch.sigmoid(differences[:, counted]).std(0, correction=0)
    return {
        "comparisons": len(data),
        "held_out": int(data.held_out.sum()),
        "held_out_decided": int((unseen & decided).sum()),
        "ties": int((~decided).sum()),
        "train_loss": _mean(losses, trained),
        "train_accuracy": _mean(right, trained & decided),
        "held_out_loss": _mean(losses, unseen),
        "held_out_accuracy": _mean(right, unseen & decided),
        "held_out_brier": float(brier_scores(predicted, answered).mean()) if len(answered) else math.nan,
        "held_out_calibration_error": calibration_error(predicted, answered),
        "held_out_log_likelihood": float(log_likelihoods(predicted, answered).mean()) if len(answered) else math.nan,
        "disagreement": float(spread.mean()) if len(differences) > 1 else math.nan,
    }


def best_of(ensemble: RewardEnsemble, rewards: Tensor, counted: Tensor) -> float:
    """Compute `FitReport.best_fragments`.

    Args:
        ensemble: the one that ``rewards`` are of.
        rewards: ``[members, n, 2, length]``: the raw rewards of all comparisons.
        counted: those that count.
    """
    if not ensemble.settings.normalize_outputs:
        return math.nan
    rewards = ensemble.normalised(rewards[:, counted].to(ensemble.reward_mean.device))
    return float(rewards.mean((0, 3)).quantile(0.95))


def losses_of_pass(
    steps: int, losses: Tensor, differences: Tensor, preferences: Tensor, trained: int, l2: float
) -> PassLosses:
    """Return means of losses and accuracies: of the first ``trained`` comparisons, and of the held-out ones after them.

    ``losses``, ``differences`` (the log odds that the left fragment is better) and ``preferences`` are ``[n]``.
    """
    right = ((differences > 0) == (preferences > 0.5)).float()
    right[preferences == 0.5] = math.nan
    return PassLosses(
        steps,
        train_loss=float(losses[:trained].mean()),
        held_out_loss=float(losses[trained:].mean()),
        train_accuracy=float(right[:trained].nanmean()),
        held_out_accuracy=float(right[trained:].nanmean()),
        l2=l2,
    )


def _mean(values: Tensor, where: Tensor) -> float:
    return float(values[where].float().mean()) if bool(where.any()) else math.nan


TABLE, PLOT = "curve.csv", "curve.png"


def write_curve(passes: Sequence[PassLosses], folder: Path) -> None:
    """Write ``curve.csv``, one row per pass with the fields of `PassLosses`, and ``curve.png`` to the existing ``folder``."""
    names = [field.name for field in fields(PassLosses)]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([getattr(one, name) for name in names] for one in passes)
    write_text(folder / TABLE, text.getvalue())
    with whole_file(folder / PLOT) as sink:
        _figure(passes).savefig(sink, format="png", dpi=120)


def _figure(passes: Sequence[PassLosses]) -> Any:
    from matplotlib.figure import Figure  # slow to import, and most fits draw nothing

    figure = Figure(figsize=(8, 3), layout="constrained")
    steps = [one.gradient_steps for one in passes]
    for axes, what, unit in zip(figure.subplots(1, 2), ("loss", "accuracy"), ("nats per label", "share"), strict=True):
        for part, colour in (("train", "tab:blue"), ("held_out", "tab:orange")):
            values = [getattr(one, f"{part}_{what}") for one in passes]
            axes.plot(steps, values, color=colour, label=part.replace("_", "-"))
        axes.set_xlabel("gradient steps")
        axes.set_ylabel(f"{what} ({unit})")
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    return figure
