"""The outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhf_ray.agents.true_return import TrueReturn


@dataclass(frozen=True)
class Verdict:
    """A caveat about the outcome's numbers.

    Attributes:
        name: fixed name of the verdict.
        message: one or two sentences.
    """

    name: str
    message: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run, written to ``result.json`` (see `rlhf_ray.runs.folder`)."""

    environment: str
    seed: int
    env_steps: int
    comparisons: int
    held_out_accuracy: float | None
    random: TrueReturn | None
    trained: TrueReturn | None
    """None if the run was stopped without time or a policy to evaluate."""
    reference: TrueReturn | None
    normalised: float | None
    """(trained - random) / (reference - random), in mean true returns; None if not meaningful (see `verdicts`)."""
    train_seconds: float
    interrupted: bool
    training_return: float | None = None
    """The last mean true return in training, with the stochastic policy."""
    verdicts: list[Verdict] = field(default_factory=list)
    """Caveats about the numbers."""
    held_out_decided: int | None = None
    """Answers, without ties, behind ``held_out_accuracy``."""
    skipped: int = 0
    """Pairs that annotators skipped."""
    reward_threshold: float | None = None
    """True return from which the environment counts as learned (see `rlhf_ray.envs.thresholds`); None if nobody says one."""
