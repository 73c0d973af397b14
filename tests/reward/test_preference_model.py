"""Formulas: the likelihoods of answers, and the intrinsic reward of unsupervised pretraining."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.reward.likelihood import LOSSES, SLOPES, discounts, label_smoothing_loss, log_likelihood_loss
from rlhf_ray.reward.novelty import NEIGHBOURS, RECENT, Novelty


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
