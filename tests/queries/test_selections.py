"""Each selection against a second computation, and their composition."""

import dataclasses
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.queries.selection import (
    SELECTIONS,
    Candidates,
    KCenter,
    NearOnPolicy,
    Selection,
    choose,
    squared_distances,
)
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import CHOICES, IMAGES, some_fragments


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _candidates(members: int = 3, fragments: int = 12, m: int = 40, seed: int = 0, **changes: Any) -> Candidates:
    rng = np.random.default_rng(seed)
    returns = rng.normal(scale=2, size=(members, fragments)).astype(np.float32)
    index = rng.integers(fragments, size=(m, 2))
    return Candidates(index, some_fragments(fragments, 3, seed=seed), returns, **changes)


def _made(name: str, **settings: Any) -> Selection:
    made = SELECTIONS.make(name, reward_model=RewardModelSettings(**settings))
    assert made is not None
    return made


def _h(p: float) -> float:
    return -sum(q * math.log(q) for q in (p, 1 - p) if q > 0)


def _by_hand(name: str, chances: list[float], logits: list[float], noise: float) -> float:
    mean = sum(chances) / len(chances)
    labels = [1.0 if logit > 0 else 0.0 if logit < 0 else 0.5 for logit in logits]
    noisy = [noise / 2 + (1 - noise) * chance for chance in chances]
    of = {"disagreement": chances, "disagreement_logits": logits, "disagreement_labels": labels}
    if name in of:
        return sum((value - sum(of[name]) / len(logits)) ** 2 for value in of[name]) / len(logits)
    if name == "entropy":
        return _h(mean)
    return _h(sum(noisy) / len(noisy)) - sum(map(_h, noisy)) / len(noisy)


@pytest.mark.parametrize(
    "name", ["disagreement", "disagreement_logits", "disagreement_labels", "entropy", "information_gain"]
)
@given(members=st.integers(1, 5), seed=st.integers(0, 50), noise=st.sampled_from([0.0, 0.2]))
def test_scores_are_those_computed_by_hand(name: str, members: int, seed: int, noise: float) -> None:
    of = _candidates(members, m=6, seed=seed)
    scores = _made(name, label_noise=noise).score(of, _rng())
    assert of.returns is not None
    for score, (left, right) in zip(scores, of.index.tolist(), strict=True):
        logits = [float(row[left]) - float(row[right]) for row in of.returns]
        chances = [1 / (1 + math.exp(-logit)) for logit in logits]
        assert score == pytest.approx(_by_hand(name, chances, logits, noise), abs=1e-5)


def test_information_gain_ignores_what_nobody_can_know_and_entropy_does_not() -> None:
    # First pair: all members find it even. Second: each is sure, and they contradict each other.
    returns = np.array([[0.0, 0.0, 9.0, 0.0], [0.0, 0.0, -9.0, 0.0]], dtype=np.float32)
    of = Candidates(np.array([[0, 1], [2, 3]]), some_fragments(4, 2), returns)
    assert np.allclose(_made("entropy").score(of, _rng()), math.log(2))
    gain = _made("information_gain").score(of, _rng())
    assert gain[0] == pytest.approx(0.0, abs=1e-9)
    assert gain[1] == pytest.approx(math.log(2), abs=0.01)
    noisy = _made("information_gain", label_noise=0.5).score(of, _rng())
    assert noisy[1] < 0.2
    estimated = dataclasses.replace(of, label_noise=0.5)
    assert (_made("information_gain").score(estimated, _rng()) == noisy).all()
    assert (_made("information_gain", label_noise=0.0).score(estimated, _rng()) == gain).all()


@pytest.mark.slow
def test_half_of_the_answerable_pairs_are_informative_ones_that_people_can_tell_apart_and_half_are_random() -> None:
    # Twenty fragments. The members agree about the first ten, disagree a little about the others, and find 18 and 19 far apart.
    returns = np.tile(np.linspace(0.0, 0.1, 20, dtype=np.float32), (2, 1))
    returns[0, 10:], returns[1, 10:] = returns[0, 10:] + 0.2, returns[1, 10:] - 0.2
    returns[:, 18], returns[:, 19] = 2.0, [-2.0, -1.0]
    index = np.array([[left, right] for left in range(20) for right in range(left + 1, 20)])
    of = Candidates(index, some_fragments(20, 2), returns, count=2)
    of_three = Candidates(index, some_fragments(20, 2), returns, count=3)
    rng, chosen, of_odd = _rng(), [], []
    for _ in range(300):
        chosen.append([tuple(index[at]) for at in np.argsort(-_made("answerable").score(of, rng), kind="stable")[:2]])
        of_odd.append(int((_made("answerable").score(of_three, rng) > 1).sum()))
    probabilities = of.probabilities.astype(np.float64)
    means = returns.astype(np.float64).mean(0)
    spread = np.quantile(np.abs(means[index[:, 0]] - means[index[:, 1]]), 0.95)
    errors = 0.5 * np.exp(-np.abs(means[index[:, 0]] - means[index[:, 1]]) / spread / 0.33)
    best = max(range(len(index)), key=lambda at: probabilities[:, at].var() * (1 - 2 * errors[at]) ** 2)
    assert {first for first, _ in chosen} == {tuple(index[best])}
    assert len({second for _, second in chosen}) > 100  # of 189 others
    assert set(of_odd) == {1, 2}
    assert abs(np.mean(of_odd) - 1.5) < 0.1


@pytest.mark.parametrize(
    "name", ["answerable", "disagreement_logits", "disagreement_labels", "entropy", "information_gain"]
)
def test_huge_returns_raise_no_warning_and_give_numbers(name: str) -> None:
    returns = np.array([[1e30, -1e30], [-1e30, 1e30]], dtype=np.float32)
    of = Candidates(np.array([[0, 1]]), some_fragments(2, 2), returns)
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(_made(name).score(of, _rng())).all()


# k-center


def _numbers(fragments: Fragments) -> FloatArray:
    """Each fragment as one row, in units of each number's standard deviation over fragments and steps."""
    observations, actions = fragments.observations.astype(np.float64), fragments.actions.astype(np.float64)
    parts = [of / of.std(axis=(0, 1)) for of in (observations, actions)]
    return np.concatenate([part.reshape(len(fragments), -1) for part in parts], axis=1)


def _apart(numbers: FloatArray, one: IntArray, other: IntArray) -> float:
    def between(pairing: Any) -> float:
        return sum(float(np.sum((numbers[a] - numbers[b]) ** 2)) for a, b in pairing)

    return min(between(zip(one, order, strict=True)) for order in (other, other[::-1]))


@given(st.integers(0, 30), st.integers(1, 8), st.integers(0, 3))
def test_k_center_is_the_greedy_choice_of_the_farthest(seed: int, count: int, asked: int) -> None:
    of = _candidates(fragments=8, m=12, seed=seed, count=count)
    of = dataclasses.replace(of, asked=np.random.default_rng(seed + 1).integers(8, size=(asked, 2)))
    numbers, chosen = _numbers(of.fragments), choose(KCenter(), of, count, _rng()).tolist()
    centers = of.asked.tolist()
    for pair in chosen:
        if centers:
            nearest = [min(_apart(numbers, c, at) for at in centers) for c in of.index.tolist()]
            assert min(_apart(numbers, pair, at) for at in centers) == pytest.approx(max(nearest), rel=1e-4, abs=1e-3)
        centers.append(pair)


def test_k_center_does_not_choose_the_mirror_image_of_a_pair_or_a_copy_of_one_asked() -> None:
    of = some_fragments(6, 3)
    index = np.array([[0, 1], [1, 0], [2, 3], [4, 5]])
    chosen = choose(KCenter(), Candidates(index, of, None, 2, np.array([[3, 2]])), 2, _rng()).tolist()
    assert [2, 3] not in chosen
    assert sorted(sorted(pair) for pair in chosen) == [[0, 1], [4, 5]]


def test_distances_take_actions_by_their_value_and_images_by_some_of_their_steps() -> None:
    choices = some_fragments(4, 3, actions=CHOICES)
    still = dataclasses.replace(choices, observations=np.zeros_like(choices.observations))
    differ = (still.actions[:, None] != still.actions[None, :]).sum(-1)
    assert ((squared_distances(still) > 1e-2) == (differ > 0)).all()
    images = some_fragments(5, 200, observations=IMAGES)  # 241,200 numbers each
    images.observations[1] = images.observations[0]
    images.actions[1] = images.actions[0]
    apart = squared_distances(images)
    assert apart[0, 1] == pytest.approx(0.0, abs=0.1)
    assert (apart[np.triu_indices(5, 1)][1:] > 1.0).all()


# Near on-policy


def test_near_on_policy_draws_by_the_age_of_the_policies() -> None:
    versions = np.array([-1, -1, 7, 7, 9, 9])
    fragments = dataclasses.replace(some_fragments(6, 2), policy_versions=versions)
    of = Candidates(np.array([[0, 1], [2, 3], [4, 5], [0, 4]]), fragments, None)
    rng, draws = _rng(), 4000
    first = [int(np.argmax(NearOnPolicy().score(of, rng))) for _ in range(draws)]
    weights = np.array([1 / 3 * 1 / 3, 1 / 2 * 1 / 2, 1.0, 1 / 3])
    for pair, chance in enumerate(weights / weights.sum()):
        assert abs(first.count(pair) / draws - chance) < 4 * math.sqrt(chance * (1 - chance) / draws)


# Composition


def test_each_stage_keeps_the_better_half_for_the_next() -> None:
    of = _candidates(m=40, count=5)
    chosen = choose(_made("disagreement+entropy"), of, 5, _rng())
    kept = choose(_made("disagreement"), of, 20, _rng())
    best = choose(_made("entropy"), dataclasses.replace(of, index=kept), 5, _rng())
    assert {tuple(pair) for pair in chosen.tolist()} == {tuple(pair) for pair in best.tolist()}


@pytest.mark.parametrize("names", list(itertools.permutations(["near_on_policy", "disagreement"])))
def test_stages_need_a_reward_if_one_of_them_does(names: tuple[str, ...]) -> None:
    assert _made("+".join(names)).needs_reward
    assert not _made("near_on_policy+k_center").needs_reward


def test_a_users_own_selection_is_a_stage_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_stage.py").write_text(
        "import numpy as np\n"
        "class Late:\n"
        "    needs_reward = False\n"
        "    def score(self, candidates, rng):\n"
        "        return np.arange(len(candidates.index), dtype=float)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    of = _candidates(m=20, count=3)
    chosen = {tuple(pair) for pair in choose(_made("own_stage:Late+k_center"), of, 3, _rng()).tolist()}
    assert chosen <= {tuple(pair) for pair in of.index[10:].tolist()}
    assert sys.modules.pop("own_stage")


def test_what_cannot_be_joined_is_one_line() -> None:
    with pytest.raises(SettingError, match=r"selection is 'random\+k_center', but random scores nothing"):
        SELECTIONS.make("random+k_center")
    with pytest.raises(SettingError, match=r"selection is 'psychic'; it must be one of random, "):
        SELECTIONS.make("entropy+psychic")


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (None, "NoneType, not numbers"),
        (["a"] * 20, "list, not numbers"),
        (np.ones(3), r"shape \(3,\)"),
        (np.full(20, math.nan), "some of them NaN"),
    ],
)
def test_scores_that_are_none_are_one_line(scores: Any, said: str) -> None:
    class Rude:
        needs_reward = False

        def score(self, candidates: Candidates, rng: np.random.Generator) -> Any:
            return scores

    with pytest.raises(SettingError, match=rf"selection is Rude, and for 20 .* it returned .*{said}.*one number per"):
        choose(Rude(), _candidates(m=20, count=3), 3, _rng())
