"""Annotators: error rates and rationality, estimated from disagreements between their answers and the reward model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.measure.error_rates import COVERAGE, ROSE_BY, Drift, opposed
from rlhf_ray.measure.error_rates import ErrorRate as ErrorRate  # re-exported for callers

RATES: FloatArray = (np.arange(100) + 0.5) / 100
"""Grid of error rates. Above one half, the annotator is more often wrong than right: inverted."""

TYPICAL, ODD = 10.0, 0.1
"""The prior of an error rate: with probability 1 - `ODD` it has density ∝ (1 - ε)^(TYPICAL - 1) (mean 1/11), otherwise any rate
is as likely."""

TEMPERATURES = np.geomspace(0.02, 3, 21)
"""Return differences, in units of their root mean square, at which an answer without errors is right with probability 0.73. Small
ones say that the reward model is right about nearly all comparisons, large ones that its mistakes explain the disagreements."""

USUAL, AROUND = 0.15, 0.5
"""The prior of the temperature is log-normal: its median, and the standard deviation of the logarithm. Without it, many errors
look like an unsure model: of 200 labels with 30 % wrong, 16 % were found. (Chosen on fits of Pendulum with 0 to 30 % wrong.) Fits
assume it of every reward model. What is said of annotators has another one, see `_typical_temperature`."""

FEW_PAIRS = 5
"""Comparisons below which two members' agreement says nothing."""

UNSURE = 0.8
"""The standard deviation of the logarithm in the prior of what is said: it also holds where the members' agreement misleads."""

SPREAD = 1.0
"""Prior of an annotator's rationality: its logarithm has this standard deviation around 0."""

MOST_WRONG = 0.35
"""Largest mean error rate that the likelihood assumes."""

TOGETHER = 32
"""Answers multiplied before the logarithm is taken: a power of 2. With four times as many, no product would underflow."""

AT_ONCE = 20_000
"""Answers times temperatures whose likelihoods are computed at once: more exceed a core's cache."""

FEW_IN_TIME = 60
"""Answers of an annotator below which no drift is looked for."""


def _prior(rates: FloatArray = RATES, *, inverted: bool = True) -> FloatArray:
    """Return the prior probability of each of ``rates``; without those above one half if nobody can be ``inverted``."""
    typical = (1 - rates) ** (TYPICAL - 1)
    prior: FloatArray = (1 - ODD) * typical / typical.sum() + ODD / len(rates)
    possible: FloatArray = np.where(inverted | (rates < 0.5), prior, 1e-12)
    normalised: FloatArray = possible / possible.sum()
    return normalised


PRIOR = float(_prior() @ RATES)
"""The error rate of an annotator without data: the prior's mean."""


@dataclass(frozen=True)
class Estimates:
    """What is known about annotators; nothing before the first fit, and if no member of the ensemble could judge any answer.

    Attributes:
        wrong: the share of wrong answers among all.
        error_rates: each annotator's error rate.
        assumed: the error rates for the likelihood of the next fit, as if the reward model's mistakes were few. While they are
            many, the rates are too high, and fits learn too little from each answer.
        rationalities: β, the factor of the log odds of each annotator's answers, above 0 and relative to the typical annotator's;
            empty without `RewardModelSettings.annotator_rationality`.
        suspicions: answers that are more likely wrong than right, with that probability, by pair id and annotator.
        drifts: the error rates of each annotator's first and newest answers, where there are enough of them.
    """

    wrong: ErrorRate | None = None
    error_rates: dict[str, ErrorRate] = field(default_factory=dict)
    assumed: dict[str, float] = field(default_factory=dict)
    rationalities: dict[str, float] = field(default_factory=dict)
    suspicions: dict[tuple[str, str], float] = field(default_factory=dict)
    drifts: dict[str, Drift] = field(default_factory=dict)

    def following(self, before: Estimates) -> Estimates:
        """Return the estimates of a fit with how many fits, with those ``before``, have said the same of each annotator."""

        def counted(rate: ErrorRate, earlier: ErrorRate | None) -> ErrorRate:
            return replace(rate, fits=earlier.fits + 1 if earlier is not None and earlier.says == rate.says else 1)

        rates = {name: counted(rate, before.error_rates.get(name)) for name, rate in self.error_rates.items()}
        return replace(self, wrong=self.wrong and counted(self.wrong, before.wrong), error_rates=rates)

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
                name: Drift(ErrorRate(**values["first"]), ErrorRate(**values["newest"]), values["rose"])
                for name, values in state["drifts"].items()
            },
        )


def log_evidence(differences: FloatArray, unseen: BoolArray, keys: Sequence[tuple[str, str]]) -> float:
    """Return the logarithm of the answers' likelihood in `annotator_model`, of all error rates and temperatures.

    It says how well the members that were not fitted to the answers predict them, whatever their scale. Arguments are the same.
    """
    judged = _judged(differences, unseen, keys)
    if judged is None:
        return 0.0
    evidence = judged.fits + np.log(_prior(inverted=judged.several))[None, :, None]
    shared = _log_sum(evidence, 1).sum(1) + _log_prior(USUAL, AROUND)
    return float(_log_sum(shared, 0))


@dataclass(frozen=True)
class _Judged:
    """Answers that a member was not fitted to.

    Attributes:
        rows: ``[n]``: which of all answers they are.
        numbers: each annotator's number.
        whose: ``[n]``: the number of the annotator of each answer.
        differences, unseen: ``[members, n]``: as in `annotator_model`; differences in units of their root mean square.
        chances: ``[temperatures, n]``: see `_chances`.
        fits: ``[temperatures, rates, annotators]``: see `_log_likelihoods`.
    """

    rows: IntArray
    numbers: dict[str, int]
    whose: IntArray
    differences: FloatArray
    unseen: BoolArray
    chances: FloatArray
    fits: FloatArray

    @property
    def counts(self) -> IntArray:
        """Answers of each annotator."""
        return np.bincount(self.whose, minlength=len(self.numbers))

    @property
    def several(self) -> bool:
        """Whether more than one annotator has answers."""
        return bool(np.count_nonzero(self.counts) > 1)


def _judged(differences: FloatArray, unseen: BoolArray, keys: Sequence[tuple[str, str]]) -> _Judged | None:
    """Return the answers of `annotator_model` that a member was not fitted to; None if there are none."""
    rows: IntArray = np.flatnonzero(unseen.any(0))
    if not len(rows):
        return None
    numbers: dict[str, int] = {}
    whose = np.array([numbers.setdefault(name, len(numbers)) for _, name in keys], np.int64)[rows]
    differences, unseen = differences[:, rows].astype(np.float64), unseen[:, rows]
    differences = differences / max(float(np.sqrt((differences**2).mean(where=unseen))), 1e-12)
    chances = _chances(differences, unseen)
    return _Judged(rows, numbers, whose, differences, unseen, chances, _log_likelihoods(chances, whose, len(numbers)))


def annotator_model(
    differences: FloatArray, unseen: BoolArray, keys: Sequence[tuple[str, str]], *, rationality: bool = False
) -> Estimates:
    """Estimate error rates and rationalities from answers that members of the ensemble were not fitted to.

    An annotator ``a`` gives an answer with probability ``(1 - ε_a) s + ε_a (1 - s)``, where ``s = sigmoid(β_a d / T)``, ``d`` is
    the return difference in favour of the answer, and ``T`` one temperature for all (after Dawid and Skene 1979). ``s`` is averaged
    over the ensemble members that were not fitted to it: for a member that was, every answer looks right. The posterior of ε is
    computed on a grid, averaged over the posterior of T; the less the members agree, the larger it is expected to be. With
    rationalities, T and each β maximise the likelihood, with a log-normal prior on β. What most answers say is right by definition:
    the rate of all answers together, or of the only annotator, is below one half.

    Args:
        differences: ``[members, n]`` float: return of the preferred fragment minus return of the other one.
        unseen: ``[members, n]`` bool: True where the member was not fitted to the comparison. A comparison that every member
            was fitted to is ignored.
        keys: pair id and annotator of each of the ``n`` answers, the oldest first.
        rationality: whether to estimate rationalities; otherwise they are 1.
    """
    judged = _judged(differences, unseen, keys)
    if judged is None:
        return Estimates()
    numbers, whose, chances, fits, counts = judged.numbers, judged.whose, judged.chances, judged.fits, judged.counts
    prior = np.log(_prior(inverted=judged.several))[None, :, None]
    evidence = _log_sum(fits + prior, 1)  # [temperatures, annotators]
    weights, rationalities = _temperatures(evidence, USUAL, AROUND, rationality=rationality)
    assumed = (np.exp(fits + prior - evidence[:, None]) * weights[:, None]).sum(0)  # [rates, annotators]
    weights, _ = _temperatures(
        evidence, _typical_temperature(judged.differences, judged.unseen), UNSURE, rationality=rationality
    )
    posterior = (np.exp(fits + prior - evidence[:, None]) * weights[:, None]).sum(0)
    together = fits.sum(2) + np.log(_prior(inverted=False))[None]
    of_all = (np.exp(together - _log_sum(together, 1)[:, None]) * weights.mean(1)[:, None]).sum(0)
    found = {name: _summary(posterior[:, number], int(counts[number])) for name, number in numbers.items()}
    rates = np.array([estimate.rate for estimate in found.values()])[whose]
    right = (chances * weights[:, whose]).sum(0)
    wrong = rates * (1 - right)
    suspicion = wrong / (wrong + (1 - rates) * right)
    against = opposed(found)
    return Estimates(
        _summary(of_all, len(whose)),
        found,
        {name: 0.5 if name in against else _summary(assumed[:, number], 0).rate for name, number in numbers.items()},
        dict(zip(numbers, rationalities.tolist(), strict=True)) if rationality else {},
        {keys[judged.rows[row]]: float(suspicion[row]) for row in np.flatnonzero(suspicion > 0.5)},
        {name: _drift(right[whose == number]) for name, number in numbers.items() if counts[number] >= FEW_IN_TIME},
    )


def _chances(differences: FloatArray, unseen: BoolArray) -> FloatArray:
    """Return the probability of each answer at each of `TEMPERATURES`, were there no errors: ``[temperatures, n]``.

    It is the mean over the members with ``unseen``; both arguments are ``[members, n]``.
    """
    judgements = torch.as_tensor(differences[unseen])
    answers, members = np.nonzero(unseen)[1], unseen.sum(0)
    means = [np.bincount(answers, torch.sigmoid(judgements / at).numpy()) / members for at in TEMPERATURES]
    chances: FloatArray = np.clip(np.array(means), 1e-6, 1 - 1e-6)
    return chances


def _log_likelihoods(chances: FloatArray, whose: IntArray, count: int) -> FloatArray:
    """Return the logarithm of the likelihood of each of `RATES`, ``[temperatures, rates, count]``.

    An answer's is ``(1 - ε) s + ε (1 - s)``, and that of `TOGETHER` a polynomial, ``Σ_k c_k (1 - ε)^(TOGETHER - k) ε^k``. None of
    its coefficients is negative, so that no digit is lost: few products serve all rates, and one logarithm many answers.

    Args:
        chances: ``[temperatures, n]``: the ``s`` of each answer.
        whose: ``[n]``: which of the likelihoods each answer belongs to.
        count: number of likelihoods.
    """
    sizes = np.bincount(whose, minlength=count)
    there, blocks = np.flatnonzero(sizes), -(-sizes // TOGETHER)
    firsts = np.cumsum(blocks) - blocks
    places = np.arange(len(whose)) + np.repeat(firsts * TOGETHER - (np.cumsum(sizes) - sizes), sizes)
    answers = np.full(blocks.sum() * TOGETHER, len(whose))
    answers[places] = np.argsort(whose, kind="stable")
    answers = answers.reshape(-1, TOGETHER).T
    factors = np.ones((2, len(chances), len(whose) + 1))  # where an answer is missing, (1 - ε) + ε
    factors[:, :, :-1] = chances, 1 - chances
    powers = np.arange(TOGETHER + 1)
    of_rates = (1 - RATES[:, None]) ** (TOGETHER - powers) * RATES[:, None] ** powers
    sums, step = np.zeros((len(RATES), len(chances), count)), max(1, AT_ONCE // answers.size)
    for start in range(0, len(chances), step):
        terms = factors[:, start : start + step][:, :, answers]  # [coefficients, temperatures, answers, blocks]
        while half := terms.shape[2] // 2:
            product = np.zeros((2 * len(terms) - 1, terms.shape[1], half, terms.shape[3]))
            for power, term in enumerate(terms[:, :, :half]):
                product[power : power + len(terms)] += term * terms[:, :, half:]
            terms = product
        logs = torch.as_tensor(of_rates @ terms.reshape(len(powers), -1)).log_().view(len(RATES), *terms.shape[1::2])
        sums[:, start : start + step, there] = np.add.reduceat(logs.numpy(), firsts[there], 2)
    return sums.swapaxes(0, 1)


def _temperatures(
    evidence: FloatArray, usual: float, around: float, *, rationality: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the posterior of each annotator's temperature, ``[temperatures, annotators]``, and the rationalities.

    Args:
        evidence: ``[temperatures, annotators]``: the logarithm of the answers' likelihood.
        usual: median of the log-normal prior.
        around: standard deviation of its logarithm.
        rationality: whether annotators have temperatures of their own.
    """
    annotators = evidence.shape[1]
    logs, expected = np.log(TEMPERATURES), _log_prior(usual, around)
    if not rationality:
        total = evidence.sum(1) + expected
        weights: FloatArray = np.repeat(np.exp(total - _log_sum(total, 0))[:, None], annotators, 1)
        return weights, np.ones(annotators)
    apart = -((logs[:, None] - logs[None]) ** 2) / (2 * SPREAD**2)  # [own temperature, shared temperature]
    shared = int(np.argmax((evidence[:, None] + apart[:, :, None]).max(0).sum(1) + expected))
    own = np.argmax(evidence + apart[:, shared, None], 0)
    weights = np.zeros((len(TEMPERATURES), annotators))
    weights[own, np.arange(annotators)] = 1.0
    return weights, TEMPERATURES[shared] / TEMPERATURES[own]


def _log_prior(usual: float, around: float) -> FloatArray:
    """Return the logarithm of the log-normal prior of `TEMPERATURES`, up to a constant. Arguments as for `_temperatures`."""
    prior: FloatArray = -((np.log(TEMPERATURES) - np.log(usual)) ** 2) / (2 * around**2)
    return prior


def _typical_temperature(differences: FloatArray, unseen: BoolArray) -> float:
    """Return the temperature to expect of members that agree as these do: half of ``sqrt((1 - ρ) / ρ)``, and at least `USUAL`.

    ρ is the mean correlation of two members' differences, over comparisons that neither was fitted to. If a difference is the right
    one plus an error of the member's own, that is the ratio of their standard deviations. (The half, and `UNSURE`, were chosen on
    fits of Pendulum and Reacher with 0 to 30 % wrong: with `USUAL` alone, a fourth of an oracle's answers looked wrong to a poor
    reward model of Reacher.)
    """
    correlations = []
    for one, two in itertools.combinations(range(len(differences)), 2):
        both = unseen[one] & unseen[two]
        sizes = float((differences[one, both] ** 2).sum() * (differences[two, both] ** 2).sum())
        if np.count_nonzero(both) >= FEW_PAIRS and sizes > 0:
            correlations.append(float(differences[one, both] @ differences[two, both]) / math.sqrt(sizes))
    if not correlations:
        return USUAL
    agreement = float(np.clip(np.mean(correlations), 0.05, 1.0))
    return max(USUAL, math.sqrt((1 - agreement) / agreement) / 2)


def _drift(right: FloatArray) -> Drift:
    """Estimate the error rates of an annotator's first and newest answers, as if it changed evenly between them.

    ``right [n]`` are the chances of the answers, were there no errors, the oldest first.
    """
    rates, time = RATES[2::5], np.linspace(0, 1, len(right))
    slopes = rates[:, None] * time * (1 - 2 * right)
    logs = np.array([np.log(right + first * (1 - time) * (1 - 2 * right) + slopes).sum(1) for first in rates])
    prior = np.log(_prior(rates))
    logs += prior[:, None] + prior  # [first, newest]
    posterior = np.exp(logs - logs.max())
    rose = posterior[rates - rates[:, None] > ROSE_BY - 1e-9].sum() / posterior.sum()
    first, newest = (_summary(posterior.sum(axis), len(right), rates) for axis in (1, 0))
    return Drift(first, newest, float(rose))


def likelihood_rates(rates: FloatArray) -> FloatArray:
    """Return the error rate that the likelihood uses for each answer, ``[n]`` float32.

    Were their mean one half, the answers would say nothing, and weight decay would make the reward constant: it is lowered to
    `MOST_WRONG`. None becomes 0 or 1: of an answer that a network is sure of, the likelihood's slope would be NaN.

    Args:
        rates: ``[n]`` float32: the estimated error rate of each answer's annotator, or `PRIOR`.
    """
    lowered: FloatArray = np.clip(rates - max(0.0, float(rates.mean()) - MOST_WRONG), float(RATES[0]), float(RATES[-1]))
    return lowered


def _summary(posterior: FloatArray, answers: int, rates: FloatArray = RATES) -> ErrorRate:
    """Return the mean of a posterior on ``rates``, and the cells of highest density that hold `COVERAGE`: from 0 if that is one."""
    posterior = posterior / posterior.sum()
    order = np.argsort(-posterior, kind="stable")
    inside: IntArray = order[: 1 + int(np.searchsorted(np.cumsum(posterior[order]), COVERAGE))]
    half = 0.5 / len(rates)
    low, high = float(rates[inside].min() - half), float(rates[inside].max() + half)
    return ErrorRate(float(posterior @ rates), max(0.0, low), high, answers, float(posterior[rates > 0.5].sum()))


def _log_sum(values: FloatArray, axis: int) -> FloatArray:
    """Return the logarithm of the sum of exponentials along an axis."""
    most = values.max(axis, keepdims=True)
    total: FloatArray = np.log(np.exp(values - most).sum(axis)) + most.squeeze(axis)
    return total
