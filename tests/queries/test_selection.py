import dataclasses
import itertools
import math
import sys
from collections import Counter
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
    Disagreement,
    KCenter,
    NearOnPolicy,
    Selection,
    _Deck,
    choose,
    random_pairs,
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
    "name", ["answerable", "disagreement", "disagreement_logits", "disagreement_labels", "entropy", "information_gain"]
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


def test_logits_before_the_first_reward_are_refused_with_a_remedy() -> None:
    of = Candidates(np.array([[0, 1]]), some_fragments(2, 2), None)
    with pytest.raises(SettingError, match="set its needs_reward to True"):
        choose(Disagreement(), of, 1, np.random.default_rng(0))


def most_disagreed(candidates: IntArray, returns: FloatArray, count: int) -> IntArray:
    of = Candidates(candidates, some_fragments(returns.shape[1], 2), returns)
    return choose(Disagreement(), of, count, np.random.default_rng(0))


@given(st.integers(0, 25), st.integers(0, 400), st.integers(0, 99))
def test_random_pairs_are_different_pairs_of_different_fragments(fragments: int, count: int, seed: int) -> None:
    pairs = random_pairs(fragments, count, np.random.default_rng(seed))
    assert pairs.shape == (min(count, fragments * (fragments - 1) // 2), 2)
    assert pairs.dtype == np.int64
    assert ((pairs >= 0) & (pairs < fragments)).all()
    assert len({frozenset(pair) for pair in pairs.tolist()}) == len(pairs)  # the other way round is the same question
    assert all(left != right for left, right in pairs.tolist())


@given(st.integers(2, 30), st.integers(0, 99))
def test_no_fragment_is_used_again_before_all_others_have_been(fragments: int, seed: int) -> None:
    half = fragments // 2
    once = random_pairs(fragments, half, np.random.default_rng(seed))
    assert len(set(once.flatten().tolist())) == 2 * half
    # With an odd number, the one that is left over is in the next pair.
    all_used = random_pairs(fragments, (fragments + 1) // 2, np.random.default_rng(seed))
    assert set(all_used.flatten().tolist()) == set(range(fragments))


def test_every_pair_is_equally_likely_and_so_is_its_order() -> None:
    rng = np.random.default_rng(0)
    counts = Counter(tuple(random_pairs(5, 1, rng)[0].tolist()) for _ in range(8000))
    assert len(counts) == 20
    chi_square = sum((count - 400) ** 2 / 400 for count in counts.values())
    assert chi_square < 42  # 19 degrees of freedom: exceeded by chance once in 500


def test_the_first_pairs_do_not_depend_on_how_many_are_asked_for() -> None:
    few = random_pairs(9, 3, np.random.default_rng(1))
    many = random_pairs(9, 30, np.random.default_rng(1))
    assert np.array_equal(few, many[:3])


def test_among_equals_earlier_candidates_come_first() -> None:
    candidates = np.array([[0, 1], [2, 3], [1, 0], [4, 5], [3, 2]])
    returns = np.array([[1.0, 0.0, 0.0, 0.0, 5.0, 0.0], [0.0, 1.0, 0.0, 0.0, -5.0, 0.0]])
    assert most_disagreed(candidates, returns, 5).tolist() == [[4, 5], [0, 1], [1, 0], [2, 3], [3, 2]]
    many = np.arange(400).reshape(-1, 2)  # so many, since a sort may be stable for a few only
    spread = np.repeat(np.arange(200) % 3, 2) * np.tile([1.0, 0.0], 200)
    order = [i for level in (2, 1, 0) for i in range(200) if i % 3 == level]
    assert np.array_equal(most_disagreed(many, np.stack([spread, -spread]), 200), many[order])


@given(st.integers(2, 12), st.integers(0, 80), st.floats(0.05, 0.95), st.data())
def test_favouring_some_fragments_keeps_pairs_different_and_finds_all_there_are(fragments, count, share, data):
    favoured = np.array(data.draw(st.lists(st.booleans(), min_size=fragments, max_size=fragments)))
    pairs = random_pairs(fragments, count, np.random.default_rng(0), favoured, share)
    assert len(pairs) == min(count, fragments * (fragments - 1) // 2)
    assert len({frozenset(pair) for pair in pairs.tolist()}) == len(pairs)
    assert all(left != right for left, right in pairs.tolist())


def test_favoured_fragments_make_up_their_share_however_few_they_are() -> None:
    favoured = np.arange(1000) < 100
    pairs = random_pairs(1000, 600, np.random.default_rng(0), favoured, 0.5)
    assert abs(favoured[pairs].mean() - 0.5) < 4 * 0.5 / np.sqrt(1200)
    uses = Counter(pairs.flatten().tolist())
    assert (
        max(uses[i] for i in range(100)) - min(uses[i] for i in range(100)) <= 3
    )  # 6 each, but for pairs that came twice


def test_a_share_of_1_takes_favoured_fragments_only() -> None:
    favoured = np.arange(10) % 2 == 0
    pairs = random_pairs(10, 100, np.random.default_rng(0), favoured, 1.0)
    assert favoured[pairs].all()
    assert len(pairs) == 10


@pytest.mark.parametrize("seed", range(5))
def test_a_new_round_of_fragments_begins_with_another_and_leaves_none_out(seed: int) -> None:
    deck = _Deck(np.arange(3), np.random.default_rng(seed))
    *_, last = (deck.deal() for _ in range(3))
    for _ in range(20):
        dealt = [deck.deal(other_than=last), deck.deal(), deck.deal()]
        assert dealt[0] != last
        assert sorted(dealt) == [0, 1, 2]
        last = dealt[-1]


def test_one_favoured_fragment_alone_makes_no_pair_and_so_none_is_favoured() -> None:
    favoured = np.arange(4) == 2
    assert len(random_pairs(4, 6, np.random.default_rng(0), favoured, 1.0)) == 6
    favoured[0] = True
    assert random_pairs(4, 6, np.random.default_rng(0), favoured, 1.0).tolist() in ([[0, 2]], [[2, 0]])
