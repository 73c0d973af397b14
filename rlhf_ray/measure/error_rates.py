"""Error rates of answers: what is known of one, and the same words for it wherever a user looks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlhf_ray.data.metrics import Metric, declare

declare(
    "reward model",
    *(
        Metric(f"error_rate{what}", f"{of} of all, or of an annotator.", unit, kind, "annotator", whole=True)
        for what, of, unit, kind in (
            ("", "Estimated share of wrong answers,", "share", float),
            ("_low", "Lower end of its 95 % interval,", "share", float),
            ("_high", "Upper end of its 95 % interval,", "share", float),
            ("_answers", "Answers that the estimate is from,", "comparisons", int),
            ("_inverted", "Probability that more than half of the answers are wrong,", "share", float),
            ("_fits", "Fits in a row whose estimates say the same,", "", int),
        )
    ),
    *(
        Metric(f"error_rate_{what}", of, "share", tag="annotator", gauge=False)
        for what, of in (
            ("first", "Error rate of an annotator's first answers, as if it changed evenly."),
            ("first_low", "Lower end of its 95 % interval."),
            ("first_high", "Upper end of its 95 % interval."),
            ("newest", "Error rate of an annotator's newest answers, as if it changed evenly."),
            ("newest_low", "Lower end of its 95 % interval."),
            ("newest_high", "Upper end of its 95 % interval."),
            ("rose", "Probability that the second is higher by more than 0.1."),
            ("assumed", "Error rate in the likelihood of the next fit, as if the reward model's mistakes were few."),
        )
    ),
)

COVERAGE = 0.95
"""Probability that an error rate is in its interval."""

FEW = 20
"""Answers below which nothing is said of an annotator."""

GUESSED = 0.4, 0.6
"""Error rates between which answers say practically nothing: at 0.4, an answer has 3 % of the information of a sure one."""
GUESSING_WITHIN = 0.25, 0.75
"""Bounds of the interval of such a rate; a wider one says that too little is known."""

INVERTED = 0.95
"""Probability of an error rate above one half from which answers count as inverted."""

WIDE, WIDE_FROM_0 = 0.4, 0.2
"""Width of an interval, and of one that starts at 0, above which too little is known."""

OPPOSED = 0.4
"""Share of all answers from which inverted ones are another opinion, not errors: two camps, and no majority says who is right."""

ROSE, ROSE_BY = 0.98, 0.1
"""Probability, and least rise of the error rate, from which an annotator clearly drifts. Of 100 annotators whose rate stays, at
most 1 reaches it after a fit; of 100 who go from 0 to 0.5 over 300 answers, 71."""

SAID_BY = 2
"""Fits in a row that must say so before an annotator is said to guess, or to be inverted."""

UNSEEN = "errors on close pairs, shared or systematic ones, and a lone person's swapped keys don't show"
"""What an estimate of few errors leaves open."""

Kind = Literal["unknown", "few", "guesses", "inverted", "some"]
"""What an error rate says of answers: too little is known, few or none are wrong, all are as good as guessed, most are wrong, or
some are wrong."""


@dataclass(frozen=True)
class ErrorRate:
    """An estimated error rate: the probability that an answer is the opposite of the right one.

    Attributes:
        rate: in [0, 1]: the posterior mean. Above 0.5: the annotator is inverted.
        low, high: an interval that holds the rate with probability `COVERAGE`.
        answers: number of answers that the estimate is from.
        wrong: posterior probability that the rate is above one half.
        fits: number of fits in a row whose estimates say the same (`says`).
    """

    rate: float
    low: float
    high: float
    answers: int
    wrong: float = 0.0
    fits: int = SAID_BY

    @property
    def kind(self) -> Kind:
        """What the rate says, once several fits say so: the only place that decides it."""
        said = self.says
        return "unknown" if said in ("guesses", "inverted") and self.fits < SAID_BY else said

    @property
    def says(self) -> Kind:
        """What this estimate alone says."""
        narrow = self.low > GUESSING_WITHIN[0] and self.high < GUESSING_WITHIN[1]
        if self.answers >= FEW and GUESSED[0] <= self.rate <= GUESSED[1] and narrow:
            return "guesses"
        if self.wrong > INVERTED:
            return "inverted"
        few = self.low < 0.005
        if self.high - self.low > (WIDE_FROM_0 if few else WIDE):
            return "unknown"
        return "few" if few else "some"

    @property
    def interval(self) -> str:
        """The interval in percent, such as "8–17 %"."""
        return f"{100 * self.low:.0f}–{100 * self.high:.0f} %"

    def __str__(self) -> str:
        """Such as "0.12 (0.08–0.17)"; with "inverted" or "guesses" where it is that."""
        word = self.kind if self.kind in ("inverted", "guesses") else ""
        return f"{self.rate:.2f} ({self.low:.2f}–{self.high:.2f}{word and f', {word}'})"

    def sentence(self, name: str = "") -> str:
        """Say how many answers of the annotator ``name`` look wrong, or of all: "about 12 % of the answers look wrong (8–17 %)"."""
        whose = f"{name}'s answers" if name else "the answers"
        some = f"about {100 * self.rate:.0f} % of {whose} look wrong ({self.interval})"
        match self.kind:
            case "few":
                return f"few or none of {whose} look wrong ({self.interval}); {UNSEEN}"
            case "unknown":
                return f"it is unclear how many of {whose} are wrong ({self.interval})"
            case "guesses" if name:
                return f"{some}, as if guessed"
            case "inverted" if name:
                return f"{some}, as if inverted"
            case _:
                return some

    def metrics(self, name: str = "") -> dict[str, float]:
        """Return the values by the names of metrics: of the annotator ``name``, or of all answers."""
        values = (self.rate, self.low, self.high, self.answers, self.wrong, self.fits)
        return {f"error_rate{end}{name and f'/{name}'}": value for end, value in zip(_OF_RATE, values, strict=True)}


@dataclass(frozen=True)
class Drift:
    """An annotator's error rate in the newest answers, beside that in the first, as if it changed evenly between them.

    Attributes:
        first: of the first answers.
        newest: of the newest answers.
        rose: posterior probability that the second is higher by more than `ROSE_BY`.
    """

    first: ErrorRate
    newest: ErrorRate
    rose: float

    @property
    def clear(self) -> bool:
        """Whether the error rate has clearly risen."""
        return self.rose > ROSE

    def sentence(self, name: str) -> str:
        """Say how the error rate of the annotator ``name`` has changed."""
        now, before = (f"{100 * whose.rate:.0f} %" for whose in (self.newest, self.first))
        return (
            f"About {now} of {name}'s newest answers look wrong ({self.newest.interval}), and of the first ones about {before} "
            f"({self.first.interval})."
        )

    def metrics(self, name: str) -> dict[str, float]:
        """Return the values by the names of metrics, of the annotator ``name``."""
        rates = (self.first, self.newest)
        values = [value for of in rates for value in (of.rate, of.low, of.high)]
        return {f"error_rate{what}/{name}": value for what, value in zip(_OF_DRIFT, [*values, self.rose], strict=True)}


_OF_RATE = ("", "_low", "_high", "_answers", "_inverted", "_fits")
_OF_DRIFT = ("_first", "_first_low", "_first_high", "_newest", "_newest_low", "_newest_high", "_rose")
"""Ends of the names of the metrics of an error rate, and of a drift."""


def newest_rates(rows: Sequence[Mapping[str, Any]]) -> tuple[ErrorRate | None, dict[str, ErrorRate]]:
    """Return the newest estimate of all answers' error rate, and each annotator's, from the metrics so far: those of one fit."""
    for row in reversed(rows):
        rates = {}
        for name in sorted(_names(row, "error_rate")):
            if numbers := _numbers(row, name, _OF_RATE):
                rate, low, high, answers, wrong, fits = numbers
                rates[name] = ErrorRate(rate, low, high, int(answers), wrong, int(fits))
        if rates:
            return rates.pop("", None), rates
    return None, {}


def newest_drifts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Drift]:
    """Return each annotator's drift, from the metrics of the newest fit; its rates lack the numbers of answers."""
    newest: Mapping[str, Any] = next((row for row in reversed(rows) if _names(row, "error_rate")), {})
    drifts = {}
    for name in filter(None, _names(newest, "error_rate_rose")):
        if numbers := _numbers(newest, name, _OF_DRIFT):
            parts = (numbers[:3], numbers[3:6])
            first, now = (ErrorRate(rate, low, high, answers=0) for rate, low, high in parts)
            drifts[name] = Drift(first, now, numbers[-1])
    return drifts


def opposed(rates: Mapping[str, ErrorRate]) -> list[str]:
    """Return the annotators of the smaller camp, if there are two: whom the others contradict, with `OPPOSED` of all answers."""
    against = [name for name, rate in rates.items() if rate.wrong > INVERTED]
    share = sum(rates[name].answers for name in against) / max(1, sum(rate.answers for rate in rates.values()))
    return against if share > OPPOSED else []


def _names(row: Mapping[str, Any], metric: str) -> list[str]:
    """Return the annotators of whom a row has a metric; "" stands for all answers."""
    return [annotator for of, _, annotator in (name.partition("/") for name in row) if of == metric]


def _numbers(row: Mapping[str, Any], name: str, ends: Sequence[str]) -> list[float] | None:
    """Read finite numbers of an annotator, or of all, from a row of metrics; None if one is missing."""
    values = [row.get(f"error_rate{end}{name and f'/{name}'}") for end in ends]
    numbers = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return numbers if len(numbers) == len(values) else None
