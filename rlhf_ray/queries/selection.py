"""Selection: which pairs of fragments to ask about. A selection scores candidate pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.comparisons import numbers_of, spread_of
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.registry import Registry
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.teachers.annotators import ERROR, ERROR_SCALE


@dataclass(frozen=True)
class Candidates:
    """Candidate pairs to select from.

    Attributes:
        index: ``[m, 2]`` int64: positions of each pair's left and right fragment in ``fragments``.
        fragments: the ``n`` fragments.
        returns: ``[members, n]`` float32: each ensemble member's predicted return of each fragment, on the likelihood's scale:
            the difference of two is the pair's logit. None before the first reward version.
        count: number of pairs wanted, at least 1: those with the highest scores are asked about.
        asked: ``[k, 2]`` int64: the pairs asked earlier whose fragments are both still in ``fragments``, as positions there.
        label_noise: the share of random answers that the newest fit found; 0 before the first.
    """

    index: IntArray
    fragments: Fragments
    returns: FloatArray | None
    count: int = 1
    asked: IntArray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    label_noise: float = 0.0

    @cached_property
    def logits(self) -> FloatArray:
        """``[members, m]`` float32: each member's log odds that the left fragment of each pair is preferred.

        Raises:
            SettingError: there is no reward model yet.
        """
        if self.returns is None:
            raise SettingError(
                "preferences.selection reads candidates.logits before there is a reward model: set its needs_reward to True to ask "
                "about random pairs until then, or check candidates.returns for None."
            )
        return self.returns[:, self.index[:, 0]] - self.returns[:, self.index[:, 1]]

    @cached_property
    def probabilities(self) -> FloatArray:
        """``[members, m]`` float32: each member's probability that the left fragment of each pair is preferred.

        Raises:
            SettingError: there is no reward model yet.
        """
        return 1.0 / (1.0 + np.exp(-np.clip(self.logits, -50.0, 50.0)))


class Selection(Protocol):
    """Scores candidate pairs. The pairs with the highest scores are asked about.

    The constructor of a custom selection may take ``reward_model``, the `RewardModelSettings`.
    """

    needs_reward: bool
    """Whether scores use the ensemble's predictions. If so, random pairs are asked about until there is a reward model."""

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """Score each candidate.

        Args:
            candidates: the ``m`` candidate pairs.
            rng: source of randomness.

        Returns:
            ``[m]`` float: higher is better. Earlier candidates win ties.
        """
        ...


def best(selection: Selection, candidates: Candidates, count: int, rng: np.random.Generator) -> IntArray:
    """Return the positions of the ``count`` candidates with the highest scores, best first; earlier candidates win ties.

    Raises:
        SettingError: the selection doesn't return one number per candidate.
    """
    scored = selection.score(candidates, rng)
    scores = numbers_of(scored)
    if scores is None or scores.shape != (len(candidates.index),) or np.isnan(scores).any():
        nan = "" if scores is None or not np.isnan(scores).any() else ", some of them NaN"
        what = f"{type(scored).__name__}, not numbers" if scores is None else f"scores of shape {scores.shape}{nan}"
        raise SettingError(
            f"preferences.selection is {type(selection).__name__}, and for {len(candidates.index)} candidate pairs it returned "
            f"{what}: it must return one number per candidate."
        )
    order: IntArray = np.argsort(-scores, kind="stable")
    return order[:count]


def choose(selection: Selection, candidates: Candidates, count: int, rng: np.random.Generator) -> IntArray:
    """Return the ``count`` candidates with the highest scores, ``[min(count, m), 2]``; earlier candidates win ties."""
    return candidates.index[best(selection, candidates, count, rng)]


class Disagreement:
    """Scores by the variance over members of the probability that left is preferred (Christiano et al. 2017, section 2.2.4)."""

    needs_reward = True

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        variance: FloatArray = self._predicted(candidates).var(axis=0)
        return variance

    def _predicted(self, candidates: Candidates) -> FloatArray:
        return candidates.probabilities


class DisagreementOfLogits(Disagreement):
    """Scores by the variance over members of the log odds, as `imitation` does by default. Favours clear pairs more."""

    def _predicted(self, candidates: Candidates) -> FloatArray:
        return candidates.logits.astype(np.float64)


class DisagreementOfLabels(Disagreement):
    """Scores by the variance over members of the answer that each finds more likely: 1 left, 0 right, 0.5 if both are."""

    def _predicted(self, candidates: Candidates) -> FloatArray:
        return (np.sign(candidates.logits) + 1.0) / 2.0


class Answerable:
    """Half of the pairs have the highest disagreement times (1 - 2 e(m))², the other half are random.

    ``m`` is the pair's predicted difference of returns over their spread (`rlhf_ray.data.comparisons.spread_of`), and
    ``e(m) = 0.5 exp(-m / 0.33)`` how often people err there (`rlhf_ray.teachers.annotators`). An answer that is wrong with
    probability e carries (1 - 2 e)² times the information of a certain one, for small differences of the log odds. Where the reward
    model is wrong about which pairs are far apart, the random half tells it.
    """

    needs_reward = True

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        information = candidates.probabilities.var(axis=0)
        assert candidates.returns is not None
        spread = max(spread_of(candidates.returns.mean(axis=0)), 1e-9)
        errors = ERROR * np.exp(-np.abs(candidates.logits.mean(axis=0)) / spread / ERROR_SCALE)
        order = np.argsort(-information * (1.0 - 2.0 * errors) ** 2, kind="stable")
        informative = (candidates.count + int(rng.integers(2))) // 2  # of an odd count, half on average
        scores: FloatArray = rng.random(len(order))
        scores[order[:informative]] = 2.0 - np.arange(len(order[:informative])) / len(order)
        return scores


class Entropy:
    """Scores by the entropy of the answer under the ensemble's mean probability (B-Pref's entropy sampling). In nats."""

    needs_reward = True

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        return entropy(candidates.probabilities.mean(axis=0))


class InformationGain:
    """Scores by the mutual information of the answer and the ensemble member, in nats: H(mean p) - mean H(p).

    The answer's own randomness does not count: pairs that every member finds even score 0. Bıyık et al. (2019, APReL) use the same
    score for samples from a posterior; here the members stand for the posterior. ``reward_model.label_noise`` adds the noise that
    the likelihood assumes; with None, what the newest fit found (`Candidates.label_noise`). Estimates for single annotators
    are not used: who will answer is not known yet.
    """

    needs_reward = True

    def __init__(self, reward_model: RewardModelSettings | None = None):
        self.noise = None if reward_model is None else reward_model.label_noise

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        noise = candidates.label_noise if self.noise is None else self.noise
        probabilities = noise / 2 + (1 - noise) * candidates.probabilities.astype(np.float64)
        gain: FloatArray = entropy(probabilities.mean(axis=0)) - entropy(probabilities).mean(axis=0)
        return gain


def entropy(probabilities: FloatArray) -> FloatArray:
    """Compute the entropy in nats of answers that are left with these probabilities. Same shape, float64."""
    left = probabilities.astype(np.float64)
    right = 1.0 - left
    total = np.zeros_like(left)
    for p in (left, right):
        total -= p * np.log(np.where(p > 0, p, 1.0))
    return total


MOST_NUMBERS = 50_000
"""Maximum number of observed numbers per fragment that distances use: of larger fragments, evenly spaced steps."""


class KCenter:
    """Scores by a greedy, farthest-first choice (B-Pref's k-center sampling; Sener and Savarese 2018).

    Each next pair is the one farthest from the nearest pair that was asked earlier or is already chosen. The distance of two pairs
    is Euclidean, over the observations and actions of both fragments, each number in units of its standard deviation; mirroring a
    pair does not change it. The first ``count`` choices score ``count``, ``count - 1``, …; all other pairs score 0.
    """

    needs_reward = False

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        index, asked = candidates.index, candidates.asked
        apart = squared_distances(candidates.fragments)
        nearest = np.full(len(index), np.inf)
        for center in asked:
            np.minimum(nearest, _from_pair(apart, index, center), out=nearest)
        scores = np.zeros(len(index))
        for rank in range(min(candidates.count, len(index))):
            chosen = int(np.argmax(nearest))
            scores[chosen] = candidates.count - rank
            np.minimum(nearest, _from_pair(apart, index, index[chosen]), out=nearest)
            nearest[chosen] = -1.0  # never again, even where all distances are 0
        return scores


def _from_pair(apart: FloatArray, index: IntArray, center: IntArray) -> FloatArray:
    """Squared distance of each pair of ``index`` from ``center``, in the nearer of the two orders."""
    left, right = index.T
    same = apart[left, center[0]] + apart[right, center[1]]
    mirrored = apart[left, center[1]] + apart[right, center[0]]
    nearer: FloatArray = np.minimum(same, mirrored)
    return nearer


def squared_distances(fragments: Fragments) -> FloatArray:
    """Compute the squared distance of every two fragments, ``[n, n]`` float64, to about six digits.

    Each number of an observation or action counts in units of its standard deviation over all fragments and steps; integer actions
    are 0 or 1 for each value.
    """
    n, length = fragments.rewards.shape
    observations = fragments.observations.reshape(n, length + 1, -1)
    actions = fragments.actions.reshape(n, length, -1)
    if actions.dtype.kind in "iu":
        actions = (actions[..., None] == np.unique(actions)).reshape(n, length, -1)
    steps = max(1, min(length + 1, MOST_NUMBERS // max(1, observations.shape[2])))
    total = np.zeros((n, n))
    for values, most in ((observations, steps), (actions, length)):
        steps_used = np.unique(np.linspace(0, values.shape[1] - 1, most).round().astype(np.int64))
        mean = np.mean([values[:, step].mean(axis=0, dtype=np.float64) for step in steps_used], axis=0)
        rows = values[:, steps_used].astype(np.float32) - mean.astype(np.float32)
        unit = np.sqrt(np.einsum("nsd,nsd->d", rows, rows) / (n * len(steps_used)))
        rows = (rows / np.where(unit == 0, 1.0, unit).astype(np.float32)).reshape(n, -1)
        squares = np.einsum("nd,nd->n", rows, rows)
        total += squares[:, None] + squares[None, :] - 2 * rows @ rows.T
    np.fill_diagonal(total, 0.0)
    return np.maximum(total, 0.0)


class NearOnPolicy:
    """Draws pairs at random, weighted by how recent the policies of their fragments are (QPA, Hu et al. 2024).

    A fragment has weight ``1 / (1 + age)``, where the newest policy version among the fragments has age 0, the next newest age 1,
    and so on; random actions are the oldest version. A pair's weight is the product. Scores are log weights plus Gumbel noise, so
    the pairs with the highest scores are a weighted sample without replacement.
    """

    needs_reward = False

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        versions = candidates.fragments.policy_versions
        known = np.unique(versions)
        age = len(known) - 1 - np.searchsorted(known, versions)
        weights = -np.log1p(age)[candidates.index].sum(axis=1)
        scores: FloatArray = weights + rng.gumbel(size=len(candidates.index))
        return scores


def random_pairs(
    fragments: int, count: int, rng: np.random.Generator, favoured: BoolArray | None = None, share: float = 0.0
) -> IntArray:
    """Draw ``count`` different pairs of ``fragments`` fragments at random. No fragment is paired with itself.

    A fragment is reused only after all others were used, which spreads labels over as many fragments as possible.

    Args:
        fragments: number of fragments.
        count: number of pairs wanted.
        rng: source of randomness.
        favoured: ``[fragments]`` bool: each draw takes one of these with probability ``share``, however few there are; None for
            no preference.
        share: in [0, 1].

    Returns:
        ``[m, 2]`` int64 positions; ``m < count`` only if fewer than ``count`` different pairs exist.
    """
    if favoured is None or not favoured.any() or favoured.all() or (share == 1.0 and favoured.sum() < 2):
        favoured, share = np.zeros(fragments, dtype=bool), 0.0
    first, rest = _Deck(np.flatnonzero(favoured), rng), _Deck(np.flatnonzero(~favoured), rng)
    if share == 0.0:
        rest = _Deck(np.arange(fragments), rng)
    drawable = len(first.positions) if share == 1.0 else fragments
    count = min(count, drawable * (drawable - 1) // 2)
    pairs: dict[tuple[int, int], tuple[int, int]] = {}
    while len(pairs) < count:
        left = (first if share and rng.random() < share else rest).deal()
        right = (first if share and rng.random() < share else rest).deal(other_than=left)
        if left != right:
            pairs.setdefault((min(left, right), max(left, right)), (left, right))
    return np.array(list(pairs.values()), dtype=np.int64).reshape(-1, 2)


class _Deck:
    """Deals positions in random order; reshuffles after dealing all of them."""

    def __init__(self, positions: IntArray, rng: np.random.Generator):
        self.positions, self._rng = positions, rng
        self._left: list[int] = []

    def deal(self, other_than: int | None = None) -> int:
        """Return the next position. After a reshuffle, put ``other_than`` last if it would come first."""
        if not self._left:
            self._left = self._rng.permutation(self.positions).tolist()
            if self._left[0] == other_than:
                self._left.append(self._left.pop(0))
        return self._left.pop(0)


class Staged:
    """Scores with the last selection those candidates that the earlier ones keep; all others score lowest.

    Each selection but the last keeps the half with the highest scores, but no fewer than the pairs wanted (as B-Pref's hybrids
    k-center + disagreement and k-center + entropy do).
    """

    def __init__(self, stages: Sequence[Selection]):
        self.stages = tuple(stages)
        self.needs_reward = any(stage.needs_reward for stage in stages)

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        kept = np.arange(len(candidates.index))
        for stage in self.stages[:-1]:
            half = max(candidates.count, (len(kept) + 1) // 2)
            remaining = replace(candidates, index=candidates.index[kept], count=half)
            kept = np.sort(kept[best(stage, remaining, half, rng)])
        scores = np.full(len(candidates.index), -np.inf)
        remaining = replace(candidates, index=candidates.index[kept])
        order = best(self.stages[-1], remaining, len(kept), rng)
        scores[kept[order]] = -np.arange(len(order), dtype=np.float64)
        return scores


class _Selections(Registry[Selection | None]):
    """Knows selections joined by ``+`` too."""

    def make(self, name: str, **offered: Any) -> Selection | None:
        """See `Registry.make`."""
        names = name.split("+")
        if len(names) == 1:
            return super().make(name, **offered)
        stages = [super(_Selections, self).make(part, **offered) for part in names]
        if None in stages:
            raise SettingError(f"{self.setting} is {name!r}, but random scores nothing: leave it out.")
        return Staged([stage for stage in stages if stage is not None])


SELECTIONS = _Selections(
    "preferences.selection",
    Selection,
    {
        "random": lambda: None,
        "disagreement": Disagreement,
        "disagreement_logits": DisagreementOfLogits,
        "disagreement_labels": DisagreementOfLabels,
        "answerable": Answerable,
        "entropy": Entropy,
        "information_gain": InformationGain,
        "k_center": KCenter,
        "near_on_policy": NearOnPolicy,
    },
)
"""Built-in selections by name. "random" needs no scores."""
