import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.reward.likelihood import discounts, log_likelihood_loss


@given(st.floats(-15, 15), st.floats(0, 1), st.floats(0, 0.99))
def test_the_loss_is_the_cross_entropy_of_the_noisy_bradley_terry_model(
    difference: float, preference: float, noise: float
) -> None:
    given_difference, answer = (torch.tensor([value], dtype=torch.float64) for value in (difference, preference))
    loss = log_likelihood_loss(given_difference, answer, noise)
    left = noise / 2 + (1 - noise) / (1 + np.exp(-difference))
    right = noise / 2 + (1 - noise) / (1 + np.exp(difference))
    assert loss.item() == pytest.approx(-preference * np.log(left) - (1 - preference) * np.log(right), rel=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5])
def test_the_gradient_is_that_of_the_loss(noise: float) -> None:
    differences = torch.linspace(-6, 6, 7, dtype=torch.float64, requires_grad=True)
    preferences = torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0, 0.5, 1.0], dtype=torch.float64)
    torch.autograd.backward(log_likelihood_loss(differences, preferences, noise).sum())
    with torch.no_grad():
        above, below = (log_likelihood_loss(differences + step, preferences, noise) for step in (1e-6, -1e-6))
    assert differences.grad is not None
    assert torch.allclose(differences.grad, (above - below) / 2e-6, atol=1e-6)


def test_every_member_is_measured_by_the_same_answers() -> None:
    differences = torch.tensor([[1.0, -2.0], [3.0, 0.0]])
    preferences = torch.tensor([1.0, 0.0])
    losses = log_likelihood_loss(differences, preferences)
    assert losses.shape == (2, 2)
    for member in range(2):
        assert torch.equal(losses[member], log_likelihood_loss(differences[member], preferences))


def test_a_tie_asks_for_equal_returns() -> None:
    tie = torch.tensor([0.5])
    at_zero, beside = (log_likelihood_loss(torch.tensor([d]), tie).item() for d in (0.0, 0.3))
    assert at_zero == pytest.approx(np.log(2))
    assert beside > at_zero


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_wrong_certainty_costs_a_finite_loss_and_noise_bounds_it(noise: float) -> None:
    loss = log_likelihood_loss(torch.tensor([-500.0]), torch.tensor([1.0]), noise).item()
    assert np.isfinite(loss)
    assert loss == pytest.approx(500 if noise == 0 else -np.log(noise / 2), rel=1e-5)


def test_discounts_fall_from_1_by_the_step() -> None:
    assert discounts(4, 0.5).tolist() == [1.0, 0.5, 0.25, 0.125]
    assert discounts(3, 1.0).tolist() == [1.0, 1.0, 1.0]
