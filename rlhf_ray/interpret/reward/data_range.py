"""Vectors within the range of the data, and their Mahalanobis distance from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.manifold import Frame, frames_of


class DataBox:
    """Frames as parameters that a sigmoid keeps within the data's range, feature by feature.

    Args:
        data: steps of the environment.
        seen: the frames that the distance counts.
        changed: the frames that are parameters.
    """

    def __init__(self, data: Transitions, seen: Sequence[Frame], changed: Sequence[Frame]):
        self._seen, self._changed = tuple(dict.fromkeys([*seen, *changed])), tuple(changed)
        self._shape = data.observations.shape[1:]
        flat = torch.as_tensor(_flat(data, self._changed))
        self._low, self._range = flat.amin(0), flat.amax(0) - flat.amin(0)
        whole = _flat(data, self._seen).astype(np.float64)
        self._mean, self._std = whole.mean(0), whole.std(0)
        self._std[self._std < 1e-9] = 1.0
        standard = (whole - self._mean) / self._std
        covariance = standard.T @ standard / len(standard) + 1e-3 * np.eye(standard.shape[1])
        self._inverse = np.linalg.inv(covariance)
        lengths = np.sqrt(np.einsum("ni,ij,nj->n", standard, self._inverse, standard))
        self._typical = max(float(np.quantile(lengths, 0.95)), 1e-6)

    def standard(self, steps: Transitions) -> Tensor:
        """Return the frames of ``steps`` in standard deviations from the data's mean, ``[n, size]``."""
        at = [self._seen.index(each) for each in self._changed]
        size = int(np.prod(self._shape))
        index = np.concatenate([np.arange(size) + i * size for i in at])
        return torch.as_tensor((_flat(steps, self._changed) - self._mean[index]) / self._std[index]).float()

    def logits(self, standard: Tensor, steps: Transitions) -> Tensor:
        """Return the parameters of the frames at ``standard``."""
        at = [self._seen.index(each) for each in self._changed]
        size = int(np.prod(self._shape))
        index = np.concatenate([np.arange(size) + i * size for i in at])
        values = standard * torch.as_tensor(self._std[index]).float() + torch.as_tensor(self._mean[index]).float()
        share = (values - self._low) / self._range.clamp_min(1e-9)
        return torch.logit(share.clamp(0.02, 0.98))

    def values(self, logits: Tensor, steps: Transitions) -> dict[str, Tensor]:
        """Return both frames, ``[n, *observation_shape]`` float32; those that aren't parameters as in ``steps``."""
        made = (self._low + self._range * torch.sigmoid(logits)).chunk(len(self._changed), 1)
        found = {
            "state": torch.as_tensor(steps.observations.astype(np.float32)),
            "next_state": torch.as_tensor(steps.next_observations.astype(np.float32)),
        }
        return found | {name: of.reshape(-1, *self._shape) for name, of in zip(self._changed, made, strict=True)}

    def distance(self, values: dict[str, Tensor]) -> Tensor:
        """Return the Mahalanobis distance from the data's mean, in units of the data's 95th percentile, ``[n]``."""
        flat = torch.cat([values[each].flatten(1) for each in self._seen], 1).double()
        standard = (flat - torch.as_tensor(self._mean)) / torch.as_tensor(self._std)
        squared = ((standard @ torch.as_tensor(self._inverse)) * standard).sum(1)
        return (squared.clamp_min(1e-12).sqrt() / self._typical).float()


def _flat(steps: Transitions, frames: Sequence[Frame]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.concatenate([of.reshape(len(of), -1).astype(np.float32) for of in frames_of(steps, frames)], 1)
