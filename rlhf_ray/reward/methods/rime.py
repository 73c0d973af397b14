"""RIME: leaves out suspected wrong labels, and turns round those that are almost certainly wrong (Cheng et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from rlhf_ray.reward.methods.method import FitLabels, FitMethod

ALPHA = 0.5
"""α of the paper: how fast the threshold grows with the largest loss of a trusted label."""

FIRST_BETA, LAST_BETA, DECAY_PASSES = 3.0, 1.0, 60
"""β of the paper: the threshold's slack in standard deviations of the losses, and the passes in which it shrinks from the first to
the last, as in the authors' code for locomotion."""

MOST_SLACK = 3.0
"""Largest slack, in nats, as in the authors' code."""

FLIP = 3 * math.log(10)
"""Loss, in nats, above which a label is turned round: the model gives it a probability below 0.001."""


class Rime(FitMethod):
    """Denoises labels before each pass.

    A label is trusted if its loss under the ensemble's mean probability is below ``-ln(ρ) + α ρ + β s``: ρ is the largest loss of
    a label trusted in the last pass, s the losses' standard deviation among those. The first two terms bound the loss of wrong
    labels from below. A label with a loss above `FLIP` is turned round. All others don't count in this pass.

    It helps if wrong labels are a matter of chance. If an annotator errs where fragments look alike, plain fits are often better.
    """

    revises = True

    def __init__(self) -> None:
        self.largest, self.spread, self.passes = 0.0, 0.0, 0
        self._shares = {"trusted_share": 1.0, "flipped_share": 0.0}

    def revise(self, labels: FitLabels) -> FitLabels:
        """See `FitMethod.revise`."""
        left = torch.sigmoid(labels.differences).mean(0).clamp(1e-6, 1 - 1e-6)
        loss = -(labels.preferences * left.log() + (1 - labels.preferences) * (1 - left).log())
        trusted, flipped = loss < self.threshold, loss > FLIP
        if bool(trusted.any()):
            self.largest = float(loss[trusted].max())
            self.spread = float(loss[trusted].std(correction=0))
        self.passes += 1
        self._shares = {
            "trusted_share": float((trusted | flipped).float().mean()),
            "flipped_share": float(flipped.float().mean()),
        }
        return replace(
            labels,
            preferences=torch.where(flipped, 1 - labels.preferences, labels.preferences),
            weights=labels.weights * (trusted | flipped),
        )

    @property
    def threshold(self) -> float:
        """Loss, in nats, below which a label is trusted."""
        beta = max(LAST_BETA, FIRST_BETA - (FIRST_BETA - LAST_BETA) * self.passes / DECAY_PASSES)
        return -math.log(self.largest + 1e-8) + ALPHA * self.largest + min(beta * self.spread, MOST_SLACK)

    def metrics(self) -> Mapping[str, float]:
        """Return the shares of labels that the last pass used and turned round."""
        return self._shares

    def state(self) -> dict[str, Any]:
        """See `FitMethod.state`."""
        return {"largest": self.largest, "spread": self.spread, "passes": self.passes}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `FitMethod.load_state`."""
        self.largest, self.spread, self.passes = state["largest"], state["spread"], state["passes"]
