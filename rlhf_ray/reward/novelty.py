"""Novelty: an intrinsic reward for training without labels, the distance of a state to its nearest neighbours among recent states.

Maximising it maximises a k-nearest-neighbour estimate of the entropy of the visited states (PEBBLE, Lee et al. 2021, section 4.1;
the logarithm with 1 added, as in APT, Liu and Abbeel 2021, equation 5).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

NEIGHBOURS = 5
"""Which nearest neighbour the distance is to (PEBBLE)."""
RECENT = 4_096
"""Number of newest states among which the neighbours are."""
CHUNK = 512
"""States whose distances are computed at once."""
LEAST_SPREAD = 1e-6


class Novelty(nn.Module):
    """Computes the intrinsic reward of states, and remembers them.

    The reward is log(1 + d), with d the Euclidean distance of the state to its 5th-nearest neighbour among the states of the same
    call and the newest 4,096 states of earlier ones, itself excluded. It is normalised with the running mean and standard deviation
    of all rewards so far. Everything is in buffers: a saved and loaded module continues exactly.
    """

    def __init__(self, size: int):
        super().__init__()
        self.states: Tensor = nn.Buffer(torch.zeros(RECENT, size))
        self.seen: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.count: Tensor = nn.Buffer(torch.zeros(()))
        self.mean: Tensor = nn.Buffer(torch.zeros(()))
        self.squares: Tensor = nn.Buffer(torch.zeros(()))

    @torch.no_grad()
    def forward(self, states: Tensor, remember: bool = True) -> Tensor:
        """Compute the rewards of ``states``, ``[n]`` float32; remember the states, and update the normalisation.

        Args:
            states: ``[n, …]``.
            remember: False for states of a replay buffer, which were remembered when they were new.
        """
        states = states.reshape(len(states), self.states.shape[1]).float()
        if not len(states):
            return states.new_zeros(0)
        rewards = torch.log1p(self._distances(states, remember))
        if remember:
            self._remember(states)
            self._update(rewards)
        spread = (self.squares / self.count.clamp_min(1)).sqrt().clamp_min(LEAST_SPREAD)
        return (rewards - self.mean) / spread

    def _distances(self, states: Tensor, new: bool) -> Tensor:
        """Return the distance of each state to its 5th-nearest neighbour, or to the farthest if there are fewer."""
        known = self.states[: int(self.seen.clamp_max(RECENT))]
        among = torch.cat([known, states]) if new or not len(known) else known
        nearest = min(NEIGHBOURS + 1, len(among))  # the nearest of all is the state itself
        parts = [torch.cdist(part, among).kthvalue(nearest, 1).values for part in torch.split(states, CHUNK)]
        return torch.cat(parts)

    def _remember(self, states: Tensor) -> None:
        newest = states[-RECENT:]
        places = (int(self.seen) + torch.arange(len(newest), device=states.device)) % RECENT
        self.states[places] = newest
        self.seen += len(newest)

    def _update(self, rewards: Tensor) -> None:
        """Merge the moments of ``rewards`` (Chan et al. 1979)."""
        total = self.count + len(rewards)
        shift = rewards.mean() - self.mean
        self.squares += ((rewards - rewards.mean()) ** 2).sum() + shift**2 * self.count * len(rewards) / total
        self.mean += shift * len(rewards) / total
        self.count.copy_(total)
