"""VectorRollout: steps of a vector environment as arrays, from the environment to the learner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.fragments import Trajectory


@dataclass(frozen=True)
class VectorRollout:
    """``steps`` steps of ``copies`` of an environment, with next-step autoreset.

    The step after an episode's end starts the next episode: it has no action and no reward, and doesn't count (`real`). So the
    observation after each step that counts is in the next row.

    Attributes:
        observations: ``[steps + 1, copies, *observation_shape]``, of the environment's dtype.
        actions: ``[steps, copies, *action_shape]``: the policy's (`rlhf_ray.policies.actions` has the environment's).
        log_probabilities: ``[steps, copies]`` float32: of the actions.
        rewards: ``[steps, copies]`` float64: the true rewards.
        terminated, truncated: ``[steps, copies]`` bool: whether the step ended its episode.
        real: ``[steps, copies]`` bool: False where a copy was reset instead.
        starts: ``[copies]`` int64: steps of the episode before the first row; of a copy that is reset there, those of the episode
            that has ended.
        version: of the policy that acted.
        source: number of the env runner.
    """

    observations: Array
    actions: Array
    log_probabilities: FloatArray
    rewards: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    real: BoolArray
    starts: IntArray
    version: int
    source: int = 0

    def __len__(self) -> int:
        return int(self.real.sum())

    env_steps = agent_steps = __len__
    """What RLlib asks of an episode."""

    @property
    def ended(self) -> BoolArray:
        """``[steps, copies]`` bool: whether the step was its episode's last."""
        return self.terminated | self.truncated

    def pieces(self) -> list[tuple[int, slice]]:
        """Return each episode's rows: its copy, and the rows that count, in the order of the copies and of time."""
        episodes = []
        steps = len(self.real)
        for copy in range(self.real.shape[1]):
            # The row after an episode's end is a reset; one at the very beginning belongs to the rollout before.
            begin = 0 if self.real[0, copy] else 1
            for end in np.flatnonzero(self.ended[:, copy]):
                episodes.append((copy, slice(begin, int(end) + 1)))
                begin = int(end) + 2
            if begin < steps:
                episodes.append((copy, slice(begin, steps)))
        return episodes

    def episode_lengths(self) -> tuple[int, ...]:
        """Return the number of steps of each episode that ended."""
        return tuple(
            rows.stop - rows.start + (int(self.starts[copy]) if rows.start == 0 else 0)
            for copy, rows in self.pieces()
            if self.ended[rows.stop - 1, copy]
        )

    def trajectories(self, env_actions: Array) -> list[Trajectory]:
        """Return each episode's steps, as views.

        Args:
            env_actions: ``[steps, copies, *action_shape]``, as given to the environment.
        """
        return [
            Trajectory(
                self.observations[rows.start : rows.stop + 1, copy],
                env_actions[rows, copy],
                self.rewards[rows, copy],
                terminated=bool(self.terminated[rows.stop - 1, copy]),
                start=int(self.starts[copy]) if rows.start == 0 else 0,
            )
            for copy, rows in self.pieces()
        ]
