"""Does the reward agree with the true one, and do its members agree with each other?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.interpret.reward.equivalence import HOLDS
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes, over_episodes
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.intervals import CORRELATION, SHARE, MeanEstimate, blocks, jackknife_interval
from rlhf_ray.measure.statistics import constant, pearson, spearman
from rlhf_ray.study.figures import DRAWN
from rlhf_ray.study.plots import png
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

AGREES, IN_PART = 0.9, 0.65
"""Shares of pairs of steps ordered like the true reward: with the whole interval below the first, it does not agree, and below the
second, not even in part. Random order: 0.5."""
SAME_ORDER = 0.99
"""Rank correlation, and share of pairs of steps in the true order, from which the order is the same: what is cut off, late or wrong
on one step in fifty stays below."""
MEMBERS_AGREE = 0.7
"""Mean correlation of an ensemble's members."""
PAIRS = 20_000
"""Pairs of steps to compare."""
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
DOTS = 3000


@dataclass(frozen=True)
class Correlations:
    """How a reward goes with the true one.

    Attributes:
        linear: Pearson's correlation over steps.
        rank: Spearman's.
        pairs: share of pairs of steps in the true order; ties count half.
        untied: the same of the pairs that the reward orders; None if those are nearly all.
        of_returns: rank correlation of the episodes' returns; None if either are equal.
    """

    linear: OverEpisodes
    rank: OverEpisodes
    pairs: OverEpisodes
    of_returns: OverEpisodes | None
    untied: OverEpisodes | None = None

    @property
    def but_for_ties(self) -> bool:
        """Whether only ties keep steps from the true order."""
        return self.untied is not None and self.pairs.below(SAME_ORDER) and self.untied.beyond(SAME_ORDER) is True

    @property
    def of_another_shape(self) -> bool:
        """Whether steps are in the true order, but no line puts the rewards on the true ones."""
        ordered = self.rank.beyond(SAME_ORDER) is True and self.pairs.beyond(SAME_ORDER) is True
        return ordered and self.linear.value > 0 and self.linear.below(HOLDS**0.5)


@dataclass(frozen=True)
class Overview:
    """What the step finds.

    Attributes:
        reward_mean, reward_std, reward_quantiles: of the given reward, at `QUANTILES`.
        true_quantiles: of the true reward; None if that is unknown, or the given one constant.
        correlation: None if either reward is constant or the true one unknown.
        members_correlation: mean correlation of an ensemble's members; None without members.
        as_true: whether the reward is constant as the true one is.
        equivalent: whether it is the true reward but for shaping; it is compared without that.
        steps: given and true rewards where the true one is known, ``[2, n]``.
    """

    reward_mean: float
    reward_std: float
    reward_quantiles: list[float]
    true_quantiles: list[float] | None = None
    correlation: Correlations | None = None
    members_correlation: float | None = None
    as_true: bool = False
    equivalent: bool = False
    steps: FloatArray = field(default_factory=lambda: np.zeros((2, 0)), metadata=DRAWN)


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there is nothing to say: no steps."""
    return None if len(context.subject.data) else WORDS.text("no_steps")


def run(context: StepContext[Subject]) -> Section:
    """Compare the reward with the true one, and its members with each other."""
    figures = measure(context.subject)
    return WORDS.section(
        _statements(figures), _checks(figures), list(_tables(figures)), list(_pictures(figures)), figures
    )


def measure(subject: Subject) -> Overview:
    """Compute the figures."""
    data = subject.data
    members = subject.scaled.members_of(data)
    rewards, judged = subject.scaled.of(data), subject.judged.of(data)
    known = np.isfinite(data.rewards)
    varies = float(rewards.std()) > 0
    compared = bool(known.any()) and varies
    true, given, episodes = data.rewards[known], judged[known], data.episodes[known]
    of_two = [pearson(members[i], members[j], 0.0) for i in range(len(members)) for j in range(i)] if varies else []
    return Overview(
        float(rewards.mean()),
        float(rewards.std()),
        np.quantile(rewards, QUANTILES).tolist(),
        np.quantile(true, QUANTILES).tolist() if compared else None,
        _correlations(true, given, episodes, subject.rng("overview")) if compared and np.ptp(true) > 0 else None,
        float(np.mean(of_two)) if of_two else None,
        subject.constant_as_true,
        subject.shaped,
        np.stack([given, true]),
    )


def _correlations(true: FloatArray, given: FloatArray, episodes: IntArray, rng: np.random.Generator) -> Correlations:
    linear = over_episodes(lambda at: pearson(true[at], given[at], 0.0), episodes, CORRELATION)
    rank = over_episodes(lambda at: spearman(true[at], given[at], 0.0), episodes, CORRELATION)
    pairs = pairs_in_order(true, given, episodes, rng)
    sums, true_sums = episode_sums(given, episodes), episode_sums(true, episodes)
    of_returns = None
    if not constant(true_sums) and not constant(sums):
        numbers = np.arange(len(sums))
        of_returns = over_episodes(lambda at: spearman(sums[at], true_sums[at], 0.0), numbers, CORRELATION)
    untied = None
    if len(np.unique(given)) < SAME_ORDER * len(given):
        untied = pairs_in_order(true, given, episodes, rng, ties=False)
    return Correlations(linear, rank, pairs, of_returns, untied)


def pairs_in_order(
    true: Array, given: Array, episodes: IntArray, rng: np.random.Generator, *, ties: bool = True
) -> OverEpisodes:
    """Compute the share of pairs of steps with different true rewards that the given reward orders alike.

    Unlike a rank correlation, it does not depend on how many steps share one true reward. 0.5 if all do.

    Args:
        true: ``[n]``.
        given: ``[n]``.
        episodes: of the steps, ``[n]``.
        rng: draws `PAIRS` pairs.
        ties: whether pairs of one given reward count, half; else they are left out.
    """
    first, second = rng.integers(len(true), size=(2, PAIRS))
    differ = (true[first] != true[second]) & (ties | (given[first] != given[second]))
    first, second = first[differ], second[differ]
    alike = (np.sign(given[first] - given[second]) * np.sign(true[first] - true[second]) + 1) / 2
    if not len(alike):
        return OverEpisodes(0.5, np.nan, np.nan)
    block = blocks(episodes)
    kept = [(block[first] != left) & (block[second] != left) for left in range(int(block.max()) + 1)]
    others = np.array([alike[of].mean() if of.any() else np.nan for of in kept])
    value = float(alike.mean())
    return OverEpisodes.of(MeanEstimate(value, *jackknife_interval(value, others, np.bincount(block), SHARE)))


def episode_sums(values: FloatArray, episodes: IntArray) -> FloatArray:
    """Sum ``values`` within each episode: ``[episodes]``, in the order of their numbers."""
    _, inverse = np.unique(episodes, return_inverse=True)
    return np.asarray(np.bincount(inverse, values), np.float64)


def _statements(figures: Overview) -> list[Statement]:
    if figures.correlation is None:
        constant = figures.true_quantiles
        return (
            []
            if constant is None or figures.equivalent
            else [WORDS.statement("constant_truth", 1.0, reward=constant[0])]
        )
    pairs = figures.correlation.pairs
    correlation = figures.correlation
    key = "agrees" if pairs.beyond(AGREES) is not False else "disagrees" if pairs.below(IN_PART) else "agrees_in_part"
    key = "opposite" if pairs.below(1 - AGREES) else key
    key = "ties" if correlation.but_for_ties else key
    key = "other_shape" if key == "agrees" and correlation.of_another_shape else key
    beyond = 2 * figures.correlation.pairs.low - 1, 2 * figures.correlation.pairs.high - 1
    strong = strength(beyond if key in ("agrees", "other_shape", "ties") else (1 - beyond[1], 1 - beyond[0]))
    values = {"correlation": correlation, "equivalent": figures.equivalent}
    return [WORDS.statement(key, 10.0, strong, figures=WORDS.text("figures", **values), **values)]


def _checks(figures: Overview) -> list[Check]:
    checks = [] if figures.as_true else [WORDS.check("varies", figures.reward_std > 0, figures.reward_std)]
    if figures.correlation is not None:
        pairs = figures.correlation.pairs
        checks.append(WORDS.check("orders", pairs.beyond(AGREES), pairs.value, least=AGREES, pairs=pairs))
    if figures.members_correlation is not None:
        agree = figures.members_correlation > MEMBERS_AGREE
        checks.append(WORDS.check("members", agree, figures.members_correlation, least=MEMBERS_AGREE))
    return checks


def _tables(figures: Overview) -> Iterator[Table]:
    true = [] if figures.true_quantiles is None else [["true reward", *figures.true_quantiles]]
    yield WORDS.table("distribution", [["given reward", *figures.reward_quantiles], *true])
    if figures.correlation is not None:
        found = {
            "pairs of steps in the true order": figures.correlation.pairs,
            "linear correlation of steps": figures.correlation.linear,
            "rank correlation of steps": figures.correlation.rank,
            "rank correlation of episodes' returns": figures.correlation.of_returns,
        }
        rows = [[name, figure.value, figure.low, figure.high] for name, figure in found.items() if figure is not None]
        yield WORDS.table("agreement", rows)


def _pictures(figures: Overview) -> Iterator[Picture]:
    if figures.correlation is None:
        return
    given, true = figures.steps[:, :: max(1, figures.steps.shape[1] // DOTS)]
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(true, given, ".", markersize=3, alpha=0.35, color="#0072b2")
    axes.set(xlabel="true reward", ylabel="given reward")
    yield WORDS.picture("against_true", png(figure, dpi=110))


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
