"""Sampling of actions follows the distribution that the network's outputs describe."""

import gymnasium as gym
import torch

from rlhf_ray.policies import actions


def test_discrete_samples_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4])
    drawn = actions.sample(
        probabilities.log().expand(4000, 4), gym.spaces.Discrete(4), torch.Generator().manual_seed(0)
    )
    assert (drawn.bincount(minlength=4) / 4000 - probabilities).abs().max() < 0.03


def test_continuous_samples_have_mean_and_deviation() -> None:
    logits = torch.tensor([1.0, -2.0, -1.0, 0.5]).expand(4000, 4)
    drawn = actions.sample(logits, gym.spaces.Box(-9.0, 9.0, (2,)), torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), logits[0, :2], atol=0.1, rtol=0.0)
    torch.testing.assert_close(drawn.std(0), logits[0, 2:].exp(), atol=0.0, rtol=0.05)
