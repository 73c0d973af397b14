"""Whether an environment that steps many copies together is like the single one, as far as its beginning tells."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from rlhf_ray.data.spaces import one_line
from rlhf_ray.envs.carried import statistics_of
from rlhf_ray.envs.checked import RAISED

PROBED_STEPS = 1_000
"""The most steps that are taken in either to find where episodes are truncated."""


@dataclass(frozen=True)
class Truncation:
    """Where an environment truncates episodes.

    Attributes:
        after: steps of the first episode that was truncated; None if none was.
        longest: steps of the longest episode.
    """

    after: int | None
    longest: int

    def unlike(self, other: Truncation) -> bool:
        """Return whether two environments truncate episodes at different steps, for sure."""
        if self.after is not None and other.after is not None:
            return self.after != other.after
        known = self.after or other.after
        return known is not None and max(self.longest, other.longest) > known

    def __str__(self) -> str:
        return (
            f"last {self.longest} steps and more" if self.after is None else f"are truncated after {self.after} steps"
        )


def truncation(env: Any, steps: int) -> Truncation:
    """Take at most ``steps`` random steps in an environment, single or a vector of one copy, until an episode is truncated."""
    length = longest = 0
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(steps):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        length += 1
        longest = max(longest, length)
        if np.any(truncated):
            return Truncation(length, length)
        if np.any(terminated):
            length = 0
            if isinstance(env, VectorEnv):
                env.step(env.action_space.sample())  # begins the next episode
            else:
                env.reset()
    return Truncation(None, longest)


def difference(
    make_together: Callable[[], Any], make_alone: Callable[[], Any], limit: int | None, probe: bool
) -> str | None:
    """Say in what an environment of copies differs from the single one; None if nothing is found. Has one of them at a time.

    Args:
        make_together: makes a vector environment of one copy.
        make_alone: makes the single environment.
        limit: the step limit that both are registered with; None for none.
        probe: whether to take steps.
    """
    steps = min(PROBED_STEPS, PROBED_STEPS if limit is None else limit + 1) if probe else 0
    try:
        with contextlib.closing(make_together()) as together:
            if (mode := together.metadata.get("autoreset_mode")) is not AutoresetMode.NEXT_STEP:
                return f"its metadata['autoreset_mode'] is {mode}, not AutoresetMode.NEXT_STEP"
            if statistics := statistics_of(together):
                return f"it keeps running statistics ({', '.join(statistics)})"
            spaces = together.single_observation_space, together.single_action_space
            theirs = truncation(together, steps)
    except RAISED as error:
        return f"it raises {type(error).__name__}: {' '.join(str(error).split())}"
    with contextlib.closing(make_alone()) as alone:
        wanted = alone.observation_space, alone.action_space
        for what, given, own in zip(("observations", "actions"), spaces, wanted, strict=True):
            if given != own:
                return f"its {what} are {one_line(given)}, not {one_line(own)}"
        usual = truncation(alone, steps)
    return f"its episodes {theirs}, and those of the single environment {usual}" if theirs.unlike(usual) else None
