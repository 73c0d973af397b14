"""A reward network of your own: three weights on quantities that you know to matter, which can be read afterwards.

    pip install /path/to/rlhf_ray
    python examples/own_network.py

The same from the command line, in the folder of this file:

    rlhf-ray train pendulum --reward-model.network own_network:Linear

Pendulum's reward is -(θ² + 0.1 ω² + 0.001 u²). The network gets its three terms and learns their weights from 100 comparisons: θ²
counts most. (u² hardly changes the reward, so comparisons say little about its weight.) In about a minute the true return rises
from -1200 to above -700.
"""

import torch
from torch import Tensor, nn

import rlhf_ray as rr


class Linear(nn.Module):
    """A weighted sum of an angle's, a speed's and a torque's squares. The ensemble makes three of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(0.1 * torch.randn(3))

    def forward(self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor) -> Tensor:
        """The reward of each of a batch of steps: ``[batch, 3]`` and ``[batch, 1]`` to ``[batch]``."""
        cosine, sine, speed = observations.unbind(1)
        squares = torch.stack([torch.atan2(sine, cosine), speed, actions[:, 0]], 1).square()
        return squares @ self.weights


if __name__ == "__main__":
    algorithm = (
        rr.PreferencePPOConfig()
        .environment("Pendulum-v1")
        .env_runners(num_envs_per_env_runner=8)
        .training(train_batch_size=1_600, minibatch_size=128, lr=1e-3, gamma=0.95, lambda_=0.9)
        .fragments(length=10)
        .preferences(comparisons=100, total_env_steps=50_000)
        .reward_model(network=Linear, learning_rate=1e-2)
        .debugging(seed=0)
        .build_algo()
    )
    returns: list[float] = []
    while not algorithm.finished:
        returns.append(algorithm.train()["env_runners"]["episode_return_mean"])
    members = algorithm.reward_model().networks.networks
    angle, speed, torque = sum(member.weights for member in members).tolist()
    algorithm.stop()
    print(f"learned reward: {angle:.2f} θ² {speed:+.3f} ω² {torque:+.3f} u², up to its scale")
    print(f"true return: {returns[0]:.0f} in the first iteration, {returns[-1]:.0f} in the last")
