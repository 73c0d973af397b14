"""How well an ensemble predicts the answers that it was fitted to, and those that were held out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_ray.measure.held_out import brier_scores, calibration_error, log_likelihoods, probabilities_of
from rlhf_ray.reward.likelihood import Loss
from rlhf_ray.reward.stacked import StackedComparisons

NAN = float("nan")


def scores_of(
    data: StackedComparisons, differences: Tensor, loss: Loss, counted: Tensor, train: Tensor
) -> dict[str, Any]:
    """Compute the scores of a `rlhf_ray.reward.fit_report.FitReport`, by name.

    Args:
        data: all comparisons.
        differences: log odds that the left fragment is better, of each member: ``[members, n]``.
        loss: the loss of the fit.
        counted: rows of annotators with weight.
        train: rows that were trained on.
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
        "held_out_brier": float(brier_scores(predicted, answered).mean()) if len(answered) else NAN,
        "held_out_calibration_error": calibration_error(predicted, answered),
        "held_out_log_likelihood": float(log_likelihoods(predicted, answered).mean()) if len(answered) else NAN,
        "disagreement": float(spread.mean()) if len(differences) > 1 else NAN,
    }


def _mean(values: Tensor, where: Tensor) -> float:
    return float(values[where].float().mean()) if bool(where.any()) else NAN
