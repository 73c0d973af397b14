"""Outcome: what a run came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhf_ray.measure.true_return import TrueReturn
from rlhf_ray.runs.report.verdict import Verdict


@dataclass(frozen=True)
class Outcome:
    """What a run came to; see `rlhf_ray.runs.folder` for the file it is written to."""

    environment: str
    seed: int
    env_steps: int
    comparisons: int
    held_out_accuracy: float | None
    random: TrueReturn | None
    trained: TrueReturn | None
    """None where the run was stopped and there was no time to evaluate, or nothing to."""
    reference: TrueReturn | None
    normalised: float | None
    """(trained - random) / (reference - random), the mean true returns; None where that would say nothing (see `verdicts`)."""
    train_seconds: float
    interrupted: bool
    training_return: float | None = None
    """The last mean true return in training, where the policy acts at random around what it thinks best."""
    verdicts: list[Verdict] = field(default_factory=list)
    """What the numbers alone could hide."""
