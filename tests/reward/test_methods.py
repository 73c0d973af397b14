"""SURF, RIME, RUNE and a method of the user's own; likelihoods of answers; the reward of unsupervised pretraining."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.data.comparisons import Changes, Comparisons
from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward.likelihood import LOSSES, SLOPES, discounts, label_smoothing_loss, log_likelihood_loss
from rlhf_ray.reward.methods import (
    CONFIDENCE,
    FLIP,
    UNLABELLED_PAIRS,
    FitLabels,
    FitMethod,
    Rime,
    Surf,
    make_methods,
    unlabelled_pairs,
)
from rlhf_ray.reward.novelty import NEIGHBOURS, RECENT, Novelty
from rlhf_ray.settings import Experiment, RewardModelSettings, from_json, to_json
from tests.made_up import beats, right_about, some_comparisons
from tests.reward.fits import same, trainer_of

SMALL = RewardModelSettings(hidden=(16,), batch_size=16, weight_decay=0.01)


def test_surf_learns_from_confident_pairs_alone() -> None:
    odds = math.log(CONFIDENCE / (1 - CONFIDENCE))
    whole = torch.tensor([[odds + 0.1, -odds - 0.1, odds - 0.1, 0.0, odds + 0.1]])
    cropped = torch.tensor(
        [[odds, -odds, odds + 9, odds + 9, -1.0]], requires_grad=True
    )  # the last crop contradicts the whole
    loss = Surf().unlabelled_loss(cropped, whole)
    loss.sum().backward()
    gradient = cropped.grad
    wrong = 1 / (1 + math.exp(-1.0))  # of probability: the cross entropy's gradient is probability minus label
    expected = [(CONFIDENCE - 1) / 5, (1 - CONFIDENCE) / 5, 0, 0, -wrong / 5]
    assert gradient[0].tolist() == pytest.approx(expected, rel=1e-4)


class Seen(Surf):
    """Keeps what a fit hands it."""

    def __init__(self) -> None:
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def unlabelled_loss(self, differences: torch.Tensor, whole: torch.Tensor) -> torch.Tensor | None:
        assert differences.requires_grad
        assert not whole.requires_grad
        self.kept.append((differences.detach(), whole))
        return super().unlabelled_loss(differences, whole)


def test_pseudo_labels_are_those_of_whole_fragments() -> None:
    trainer = trainer_of(dataclasses.replace(SMALL, methods=(Seen,)), some_comparisons(8, 20))
    pairs = some_comparisons(1, 20, seed=7).pairs  # one pair: the pool has nothing else to draw
    trainer.fit(10, unlabelled=pairs)
    kept = trainer.methods[0].kept  # type: ignore[attr-defined]
    assert all(
        torch.allclose(whole, whole[:, :1].expand_as(whole)) for _, whole in kept
    )  # of one pair, whatever the crop
    assert any(float(cropped.std(1).min()) > 0 for cropped, _ in kept)  # each crop has its own window


def test_surf_crops_windows_of_one_length_at_places_of_their_own() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = set()
    for _ in range(50):
        crop = Surf().steps(30, 50, generator)
        assert crop.shape == (30, 2, 50)
        kept = crop.sum(-1)
        assert (kept == kept[0, 0]).all()
        lengths.add(int(kept[0, 0]))
        edges = (crop[..., 1:] != crop[..., :-1]).sum(-1) + (crop[..., 0] > 0).float() + (crop[..., -1] > 0).float()
        assert (edges == 2).all()  # one window, without holes
    assert min(lengths) == 45
    assert max(lengths) == 50


def test_a_crop_is_the_likelihood_of_the_cropped_fragments() -> None:
    comparisons = some_comparisons(8, 6)
    trainer = trainer_of(SMALL, comparisons)
    crop = torch.zeros(8, 2, 6)
    crop[:, 0, 1:4] = 1
    crop[:, 1, 3:6] = 1
    rewards = trainer._all_rewards(trainer.comparisons.stacked)  # type: ignore[arg-type]
    found = trainer._differences(rewards, crop=crop)
    expected = rewards[:, :, 0, 1:4].sum(-1) - rewards[:, :, 1, 3:6].sum(-1)
    assert torch.allclose(found, expected, atol=1e-6)


def test_surf_is_part_of_a_fit_and_works_without_unlabelled_pairs() -> None:
    settings = dataclasses.replace(SMALL, methods=("surf",))
    plain, alone, both = (trainer_of(of, some_comparisons(40, 10)) for of in (SMALL, settings, settings))
    plain.fit(60)
    alone.fit(60)
    both.fit(60, unlabelled=some_comparisons(300, 10, seed=7).pairs)
    unseen = some_comparisons(500, 10, seed=1)
    known = right_about(unseen, plain.ensemble)
    for trainer in (alone, both):  # on 40 labels it learns what a plain fit learns
        assert beats(0.75, right_about(unseen, trainer.ensemble)[known])
    weights = [of.ensemble.state()["reward_std"].tolist() for of in (plain, alone, both)]
    assert weights[0] != weights[1] != weights[2]


def test_rime_trusts_turns_round_and_leaves_out_by_its_thresholds() -> None:
    rime = Rime()
    rime.rho, rime.variance = 0.3, 0.1
    for rime.passes, beta in ((0, 3.0), (15, 2.5), (30, 2.0), (60, 1.0), (1000, 1.0)):  # falls by 1/30 per pass
        assert rime.threshold == pytest.approx(-math.log(0.3 + 1e-8) + 0.5 * 0.3 + beta * 0.1)
    threshold = -math.log(0.3 + 1e-8) + 0.5 * 0.3 + 0.1
    losses = [0.1, threshold - 0.01, threshold + 0.01, FLIP - 0.1, FLIP + 0.1]
    revised = rime.revise(_labels_with(losses))
    assert revised.weights.tolist() == [1, 1, 0, 0, 1]
    assert revised.preferences.tolist() == [1, 1, 1, 1, 0]
    assert rime.metrics() == {"trusted_share": pytest.approx(0.6), "flipped_share": pytest.approx(0.2)}
    again = Rime()
    again.load_state(rime.state())
    assert again.threshold == rime.threshold


def _labels_with(losses: Sequence[float]) -> FitLabels:
    """Labels of the left fragment with these losses, in nats, by one member."""
    odds = [[math.log(math.exp(-loss) / (1 - math.exp(-loss))) for loss in losses]]
    return FitLabels(torch.tensor(odds), torch.ones(len(losses)), torch.ones(len(losses)))


def test_rimes_bound_is_a_running_mean_and_its_spread_a_pooled_variance() -> None:
    """As in the authors' code: its means move a tenth of the way, its variance pools passes by their sizes."""
    rime, losses = Rime(), [0.2, 0.5, 1.1]
    for passed in range(1, 6):
        rime.revise(_labels_with(losses))
        assert rime.rho == pytest.approx(1.1 * (1 - 0.9**passed), rel=1e-5)
    mixed, count = Rime(), 0
    mean, variance = 0.0, 1.0
    for batch in ([0.1, 0.4], [0.2, 0.3, 0.9, 1.6], [0.05]):
        mixed.revise(_labels_with(batch))
        beyond, total = np.mean(batch) - mean, count + len(batch)
        within = (variance * count + np.var(batch) * len(batch)) / total
        variance = within + beyond**2 * (count / total) * (len(batch) / total)
        mean, count = mean + 0.1 * beyond, total
        assert (mixed.mean, mixed.variance, mixed.count) == (
            pytest.approx(mean),
            pytest.approx(variance, rel=1e-5),
            count,
        )


def test_rime_begins_by_trusting_all() -> None:
    revised = Rime().revise(FitLabels(torch.randn(3, 50), torch.ones(50), torch.ones(50)))
    assert revised.weights.all()


def _with_errors(n: int, share: float, seed: int) -> tuple[Comparisons, Any]:
    """Comparisons, and which of them are answered wrongly."""
    right = some_comparisons(n, 10, seed=seed)
    wrong = np.random.default_rng(seed).random(n) < share
    return Comparisons(right.pairs, np.where(wrong, 1 - right.preferences, right.preferences).astype(np.float32)), wrong


@pytest.mark.slow
def test_the_labels_that_rime_turns_round_are_wrong_and_those_that_it_leaves_out_more_often_than_the_rest() -> None:
    turned, left_out = [], []
    for seed in range(2):
        given, wrong = _with_errors(300, 0.3, seed)
        rime = trainer_of(dataclasses.replace(SMALL, network="mlp", methods=("rime",)), given, seed=seed)
        report = rime.fit(900)
        stacked = rime.comparisons.stacked
        revised = rime._revised(stacked, torch.arange(300))
        is_turned = (revised.preferences != stacked.preferences).numpy()
        turned += wrong[is_turned].tolist()
        left_out += wrong[(revised.weights == 0).all(0).numpy() & ~is_turned].tolist()
        assert report.methods["flipped_share"] > 0
    assert beats(0.5, turned)
    assert beats(0.3, left_out)
    state = rime.state()
    restored = trainer_of(rime.settings)
    restored.load_state(state, Changes(1, given))
    rime.fit(20)
    restored.fit(20)
    assert same(rime, restored)


def test_the_store_keeps_the_answers_that_rime_turned_round() -> None:
    given, _ = _with_errors(60, 0.3, 0)
    trainer = trainer_of(dataclasses.replace(SMALL, methods=("rime",)), given)
    trainer.fit(200)
    assert trainer.comparisons.stacked.preferences.tolist() == given.preferences.tolist()  # type: ignore[union-attr]


class Half(FitMethod):
    """Counts every second comparison only."""

    revises = True

    def __init__(self, settings: RewardModelSettings):
        self.seen: list[int] = []
        self.settings = settings

    def revise(self, labels: FitLabels) -> FitLabels:
        self.seen.append(len(labels.preferences))
        weights = labels.weights.clone()
        weights[::2] = 0
        return dataclasses.replace(labels, weights=weights)


class Idle(Half):
    """Its hook is never called."""

    revises = False


def test_a_method_of_ones_own_by_name_and_as_an_object() -> None:
    given = some_comparisons(40, 5)
    settings = dataclasses.replace(SMALL, methods=("tests.reward.test_methods:Half", "rune"))
    trainer = trainer_of(settings, given)
    trainer.fit(6)  # two passes of three batches
    assert trainer.methods[0].seen == [40, 40]  # type: ignore[attr-defined]
    assert dataclasses.replace(SMALL, methods=(Half,)).methods[0].endswith(":Half")  # type: ignore[arg-type]
    assert dataclasses.replace(SMALL, methods="rime").methods == ("rime",)  # type: ignore[arg-type]
    experiment = Experiment(reward_model=settings)
    assert experiment.own_names() == ["tests.reward.test_methods:Half"]
    assert from_json(Experiment, to_json(experiment)).reward_model.methods == settings.methods


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        (("surv",), "methods is 'surv'; did you mean surf"),
        ((dict,), "lacks unlabelled_ratio"),
        ((Idle,), "revises is False although it has a revise"),
    ],
)
def test_unknown_methods_are_refused(methods: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        make_methods(dataclasses.replace(SMALL, methods=methods))


def test_pairs_without_labels_are_wanted_by_surf_alone() -> None:
    assert unlabelled_pairs(SMALL) == unlabelled_pairs(dataclasses.replace(SMALL, methods=("rime", "rune"))) == 0
    assert unlabelled_pairs(dataclasses.replace(SMALL, methods=("rime", "surf"))) == UNLABELLED_PAIRS


def test_each_version_carries_runes_weight() -> None:
    trainer = trainer_of(dataclasses.replace(SMALL, methods=("rune",)), some_comparisons(20, 5))
    weights = []
    for progress in (0.0, 0.5, 1.0):
        trainer.fit(3, progress=progress)
        weights.append(float(trainer.ensemble.state()["deviation_weight"]))
    assert weights == pytest.approx([0.05, 0.025, 0.0])
    trainer.ensemble.deviation_weight.fill_(0.5)
    members = torch.tensor([[1.0, 2.0], [3.0, 2.0], [2.0, 2.0]])
    assert trainer.ensemble.combine(members).tolist() == pytest.approx([2 + 0.5 * np.sqrt(2 / 3), 2.0])


@given(st.floats(-15, 15), st.floats(0, 1), st.floats(0, 0.99))
def test_the_loss_is_the_cross_entropy_of_the_noisy_bradley_terry_model(difference, preference, noise):
    given_difference, answer = (torch.tensor([value], dtype=torch.float64) for value in (difference, preference))
    loss = log_likelihood_loss(given_difference, answer, noise)
    left = noise / 2 + (1 - noise) / (1 + np.exp(-difference))
    right = noise / 2 + (1 - noise) / (1 + np.exp(difference))
    assert loss.item() == pytest.approx(-preference * np.log(left) - (1 - preference) * np.log(right), rel=1e-6)


@pytest.mark.parametrize("name", list(SLOPES))
@pytest.mark.parametrize("noise", [0.0, 0.4, 1.5, torch.tensor([0.0, 0.1, 0.3, 0.6, 0.9, 1.2, 2.0])], ids=str)
def test_the_slope_is_autograds(name: str, noise: float | torch.Tensor) -> None:
    differences = torch.linspace(-6, 6, 7, requires_grad=True)
    preferences = torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0, 0.5, 1.0])
    torch.autograd.backward(LOSSES.parts[name](differences, preferences, noise).sum())
    assert differences.grad is not None
    slope = SLOPES[name](differences.detach(), preferences, noise)
    torch.testing.assert_close(slope, differences.grad, rtol=1e-4, atol=1e-6)


@given(st.floats(-15, 15), st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 2))
def test_label_smoothing_is_the_expected_loss_over_right_and_wrong_answers(difference, preference, noise):
    given_difference, answer = (torch.tensor([value], dtype=torch.float64) for value in (difference, preference))
    loss = label_smoothing_loss(given_difference, answer, noise).item()
    as_given, turned = (log_likelihood_loss(given_difference, given).item() for given in (answer, 1 - answer))
    assert loss == pytest.approx((1 - noise / 2) * as_given + noise / 2 * turned, rel=1e-6, abs=1e-9)


def test_smoothed_answers_end_at_their_log_odds_and_still_move_a_model_that_is_sure() -> None:
    """By construction: 30 % wrong. The likelihood hardly moves a model that is sure of the opposite."""
    right, noise = torch.ones(1), 0.6
    best = torch.log(torch.tensor([0.7 / 0.3]))
    assert SLOPES["label_smoothing"](best, right, noise).abs() < 1e-6
    sure = torch.tensor([-20.0])
    assert SLOPES["label_smoothing"](sure, right, noise).item() == pytest.approx(-0.7)
    assert abs(SLOPES["bradley_terry"](sure, right, noise).item()) < 1e-6


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_wrong_certainty_costs_a_finite_loss_and_noise_bounds_it(noise: float) -> None:
    loss = log_likelihood_loss(torch.tensor([-500.0]), torch.tensor([1.0]), noise).item()
    assert np.isfinite(loss)
    assert loss == pytest.approx(500 if noise == 0 else -np.log(noise / 2), rel=1e-5)


def test_discounts_fall_from_1_by_the_step() -> None:
    assert discounts(4, 0.5).tolist() == [1.0, 0.5, 0.25, 0.125]
    assert discounts(3, 1.0).tolist() == [1.0, 1.0, 1.0]


def _by_hand(before: np.ndarray, states: np.ndarray) -> np.ndarray:
    """log(1 + distance to the 5th-nearest other state), one state after the other."""
    rewards = []
    for i, state in enumerate(states):
        others = np.concatenate([before, np.delete(states, i, axis=0)])
        rewards.append(np.log1p(np.sort(np.linalg.norm(others - state, axis=1))[NEIGHBOURS - 1]))
    return np.array(rewards)


def test_the_reward_is_the_distance_to_the_fifth_neighbour_normalised_over_all_so_far() -> None:
    rng = np.random.default_rng(0)
    novelty, before, every = Novelty(3), np.zeros((0, 3)), np.zeros(0)
    for scale in (1.0, 5.0, 0.2):
        states = (scale * rng.normal(size=(700, 3))).astype(np.float32)
        rewards = novelty(torch.as_tensor(states)).numpy()
        raw = _by_hand(before, states)
        before, every = np.concatenate([before, states])[-RECENT:], np.append(every, raw)
        assert rewards == pytest.approx((raw - every.mean()) / every.std(), abs=2e-3)


@pytest.mark.slow
def test_only_recent_states_count_and_a_loaded_module_continues_exactly() -> None:
    rng = np.random.default_rng(0)
    far, near = (torch.as_tensor(at + rng.normal(size=(RECENT, 2)), dtype=torch.float32) for at in (100.0, 0.0))
    novelty = Novelty(2)
    novelty(far)
    first = novelty(near)[:10]
    novelty(near)  # forgets the far ones
    copy = Novelty(2)
    copy.load_state_dict(novelty.state_dict())
    again = novelty(far[:10])
    assert torch.equal(again, copy(far[:10]))
    assert again.min() > first.max()


def test_a_state_visited_often_is_worth_less_than_a_new_one() -> None:
    novelty = Novelty(1)
    novelty(torch.zeros(100, 1))
    often, new = novelty(torch.tensor([[0.0], [3.0]]))
    assert often < new


def test_few_states_are_no_error() -> None:
    assert torch.isfinite(Novelty(2)(torch.zeros(1, 2))).all()
    assert Novelty(2)(torch.zeros(0, 2)).shape == (0,)


def test_replayed_states_are_judged_but_not_remembered() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(300, 2)).astype(np.float32)
    novelty = Novelty(2)
    first = novelty(torch.as_tensor(states))
    before = {name: value.clone() for name, value in novelty.state_dict().items()}
    drawn = rng.integers(300, size=500)  # with repeats, as from a replay buffer
    again = novelty(torch.as_tensor(states[drawn]), remember=False)
    assert torch.allclose(again, first[torch.as_tensor(drawn)], atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in novelty.state_dict().items())
