"""Moments: what is chosen of them, and what belongs to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rlhf_ray.agents.episodes import Moments, Stretches, WindowNumbers


@dataclass(frozen=True)
class Some(Moments):
    tensor: torch.Tensor
    states: list[bytes]
    label: float


def test_all_that_belongs_to_moments_is_chosen_with_them() -> None:
    some = Some(np.array([0, 0, 1]), np.array([1, 2, 0]), torch.arange(3), [b"a", b"b", b"c"], 0.5)
    for chosen in ([2, 0], np.array([2, 0]), torch.tensor([2, 0])):
        part = some[chosen]
        assert (part.rows.tolist(), part.steps.tolist()) == ([1, 0], [0, 1])
        assert (part.tensor.tolist(), part.states, part.label) == ([2, 0], [b"c", b"a"], 0.5)
    assert some[np.array([False, True, False])].states == some[1:2].states == [b"b"]
    assert len(some[[]]) == 0
    assert some.cut(np.arange(6).reshape(2, 3)).tolist() == [1, 2, 3]


def test_a_stretch_repeats_its_last_step_as_padding() -> None:
    stretches = Stretches(np.array([0, 1]), np.array([0, 2]), np.array([3, 1]), 3)
    assert stretches.window(np.arange(8).reshape(2, 4)).tolist() == [[0, 1, 2], [6, 6, 6]]
    assert (stretches.containing(0, 2), stretches.containing(1, 2), stretches.containing(1, 1)) == (0, 1, None)


def test_windows_are_numbered_episode_by_episode() -> None:
    windows = WindowNumbers(np.array([4, 1, 3]), 3)
    assert len(windows) == 3 + 1 + 2
    starts = windows.starts(range(6))
    assert starts.rows.tolist() == [0, 0, 0, 1, 2, 2]
    assert starts.steps.tolist() == [0, 1, 2, 0, 0, 1]
    with pytest.raises(IndexError, match="There are 6 windows"):
        windows.starts([6])
