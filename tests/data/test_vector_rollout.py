"""VectorRollout: which rows belong to which episode."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlhf_ray.data.vector_rollout import VectorRollout


def rollout(ended: list[list[int]], begins_with_reset: list[bool], starts: list[int], steps: int = 6) -> VectorRollout:
    """Copies whose episodes end at these rows; the row after each is a reset."""
    copies = len(ended)
    real, truncated = np.ones((steps, copies), bool), np.zeros((steps, copies), bool)
    real[0] = ~np.array(begins_with_reset)
    for copy, rows in enumerate(ended):
        for row in rows:
            truncated[row, copy] = True
            if row + 1 < steps:
                real[row + 1, copy] = False
    number = np.arange((steps + 1) * copies, dtype=np.float32).reshape(steps + 1, copies, 1)
    rewards = number[:-1, :, 0].astype(np.float64)
    actions: Any = number[:-1].copy()
    return VectorRollout(
        number, actions, rewards.astype(np.float32), rewards, ~real & False, truncated, real, np.array(starts), 3
    )


def test_pieces_are_the_rows_between_resets() -> None:
    of = rollout([[2], [], [5], [0]], [False, True, False, False], [4, 9, 0, 7])
    assert of.pieces() == [
        (0, slice(0, 3)),
        (0, slice(4, 6)),
        (1, slice(1, 6)),
        (2, slice(0, 6)),
        (3, slice(0, 1)),
        (3, slice(2, 6)),
    ]
    assert len(of) == of.env_steps() == int(of.real.sum()) == sum(rows.stop - rows.start for _, rows in of.pieces())
    assert of.episode_lengths() == (7, 6, 8)


def test_an_episode_that_ends_at_the_last_row_but_one_leaves_nothing_behind() -> None:
    of = rollout([[4]], [False], [0])
    assert of.pieces() == [(0, slice(0, 5))]


def test_trajectories_have_the_observation_after_their_last_step() -> None:
    of = rollout([[2], []], [False, True], [4, 9])
    first, second, third = of.trajectories(of.actions)
    assert [each.start for each in (first, second, third)] == [4, 0, 0]
    assert first.observations[:, 0].tolist() == [0, 2, 4, 6]
    assert second.observations[:, 0].tolist() == [8, 10, 12]
    assert third.observations[:, 0].tolist() == [3, 5, 7, 9, 11, 13]
    assert [len(each) for each in (first, second, third)] == [3, 2, 5]
    assert np.shares_memory(first.observations, of.observations)
