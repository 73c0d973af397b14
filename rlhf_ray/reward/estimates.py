"""What a fit finds about those who answered: the last estimates, as a trainer keeps, reports and saves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rlhf_ray.measure.error_rates import Drift, ErrorRate
from rlhf_ray.reward.annotators import AnnotatorModel


@dataclass
class Estimates:
    """The estimates of the last fit; empty before the first, and if no member of the ensemble could judge any answer.

    Attributes:
        wrong: the share of wrong answers among all.
        error_rates: each annotator's error rate.
        assumed: each annotator's error rate in the likelihood of the next fit.
        rationalities: the factor of the log odds of each annotator's answers, with `RewardModelSettings.annotator_rationality`.
        suspicions: answers that are more likely wrong than right, with that probability, by pair id and annotator.
        drifts: the error rates of each annotator's older half of the answers and of the newest, where there are enough of them.
    """

    wrong: ErrorRate | None = None
    error_rates: dict[str, ErrorRate] = field(default_factory=dict)
    assumed: dict[str, float] = field(default_factory=dict)
    rationalities: dict[str, float] = field(default_factory=dict)
    suspicions: dict[tuple[str, str], float] = field(default_factory=dict)
    drifts: dict[str, Drift] = field(default_factory=dict)

    @staticmethod
    def of(
        found: AnnotatorModel, names: Sequence[str], keys: Sequence[tuple[str, str]], *, rationality: bool
    ) -> Estimates:
        """Name what was found.

        Args:
            found: the estimates.
            names: the annotators, in the order of ``found``.
            keys: pair id and annotator of each answer, in the order of ``found``.
            rationality: whether rationalities were estimated.
        """
        return Estimates(
            found.everyone,
            dict(zip(names, found.of, strict=True)),
            dict(zip(names, found.assumed.tolist(), strict=True)),
            dict(zip(names, found.rationalities.tolist(), strict=True)) if rationality else {},
            {key: chance for key, chance in zip(keys, found.suspicion.tolist(), strict=True) if chance > 0.5},
            {name: drift for name, drift in zip(names, found.drifts, strict=True) if drift is not None},
        )

    def with_noise(self, label_noise: float | None) -> Estimates:
        """Return the estimates with the rates that the likelihood has where ``label_noise`` sets them."""
        return self if label_noise is None else replace(self, assumed=dict.fromkeys(self.assumed, label_noise / 2))

    def state(self) -> dict[str, Any]:
        """Return the estimates as plain values."""
        return asdict(self) | {"suspicions": [[*key, chance] for key, chance in self.suspicions.items()]}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Estimates:
        """Restore what `state` returned."""
        return Estimates(
            None if state["wrong"] is None else ErrorRate(**state["wrong"]),
            {name: ErrorRate(**values) for name, values in state["error_rates"].items()},
            dict(state["assumed"]),
            dict(state["rationalities"]),
            {(pair, who): chance for pair, who, chance in state["suspicions"]},
            {
                name: Drift(ErrorRate(**values["earlier"]), ErrorRate(**values["newest"]), values["rose"])
                for name, values in state["drifts"].items()
            },
        )
