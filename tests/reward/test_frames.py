"""Images of comparisons, each different one kept once."""

import numpy as np
import torch

from rlhf_ray.reward.comparison_set import UniqueFrames
from tests.made_up import CHOICES, IMAGES, some_comparisons


def images(n: int, seed: int = 0) -> torch.Tensor:
    """``[n, 2, 4, 20, 20, 3]``; every comparison has the second image of the first one, twice."""
    pairs = some_comparisons(n, 3, observations=IMAGES, actions=CHOICES, seed=seed).pairs
    both = np.stack([pairs.left.observations, pairs.right.observations], 1)
    both[:, :, 1:3] = both[0, 0, 1]
    return torch.as_tensor(both)


def test_what_is_taken_out_is_what_was_put_in() -> None:
    first, more = images(5), images(4, seed=1)
    frames = UniqueFrames(first)
    assert frames.nbytes < 0.6 * first.nbytes
    frames.extend(more)
    everything = torch.cat([first, more])
    assert len(frames) == 9
    for rows in ([0], [8, 0, 3], list(range(9))):
        assert torch.equal(frames.index_select(0, torch.tensor(rows)), everything[rows])
    before = frames.nbytes
    frames.extend(first)
    assert frames.nbytes - before == frames._index[:5].nbytes


def test_what_is_not_kept_is_forgotten_and_can_come_again() -> None:
    everything = images(8)
    frames = UniqueFrames(everything)
    frames.keep([1, 4, 5])
    assert torch.equal(frames.index_select(0, torch.arange(3)), everything[[1, 4, 5]])
    assert len(frames._frames) == len(frames._rows) == 1 + 3 * 4
    frames.extend(everything[:2])
    assert torch.equal(frames.index_select(0, torch.arange(5)), everything[[1, 4, 5, 0, 1]])
