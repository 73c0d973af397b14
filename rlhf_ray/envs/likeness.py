"""Whether an environment that steps many copies together is like the single one, as far as its beginning tells.

One copy, from the same seeds and with the same actions, must return what the single environment returns. One that can't be
compared, because it draws its starts in another order, say, is another one.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.spaces import one_line
from rlhf_ray.envs.carried import statistics_of
from rlhf_ray.envs.checked import RAISED
from rlhf_ray.envs.observations import as_array

PROBED_STEPS = 1_000
"""The most steps that are taken in either to compare them."""

TOLERANCE = 1e-3
"""The largest difference of a number, as a share of the largest that it is in the single environment: dtypes may be others."""


@dataclass(frozen=True)
class Returned:
    """What a step returns, or a reset: step 0."""

    step: int
    observation: Array
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


def played(env: Any, steps: int) -> Iterator[Returned]:
    """Take random steps in an environment, single or a vector of one copy, in episodes from the seeds 0, 1 and so on."""
    together = isinstance(env, VectorEnv)
    actions = copy.deepcopy(env.single_action_space if together else env.action_space)
    actions.seed(0)
    seed = taken = 0
    while taken < steps:
        seen, _ = env.reset(seed=seed)
        yield Returned(0, np.array(as_array(seen)[0] if together else seen))
        ended, begun, seed = False, taken, seed + 1
        while not ended and taken < steps:
            action = actions.sample()
            *given, _ = env.step(np.array([action], env.action_space.dtype) if together else action)
            seen, reward, terminated, truncated = (as_array(part)[0] for part in given) if together else given
            taken, ended = taken + 1, bool(terminated or truncated)
            # Whether a step that terminates also truncates makes no difference.
            yield Returned(
                taken - begun, np.array(seen), float(reward), bool(terminated), bool(truncated and not terminated)
            )


def difference(make_together: Callable[[int], Any], make_alone: Callable[[], Any]) -> str | None:
    """Say in what an environment of copies differs from the single one; None if nothing is found. Has one of them at a time.

    Args:
        make_together: makes a vector environment of so many copies.
        make_alone: makes the single environment.
    """
    try:
        with contextlib.closing(make_alone()) as alone:
            limit = None if alone.spec is None else alone.spec.max_episode_steps
            spaces = alone.observation_space, alone.action_space
            steps = PROBED_STEPS if limit is None else min(PROBED_STEPS, limit + 1)
            wanted = list(played(alone, steps))
        with contextlib.closing(make_together(1)) as together:
            problem = _declared(together, spaces, limit) or _returned(played(together, steps), wanted)
        if problem is None:
            with contextlib.closing(make_together(2)) as two:
                problem = _counted(two, 2)
    except RAISED as error:
        return f"comparing it with the single environment raises {type(error).__name__}: {' '.join(str(error).split())}"
    return problem


def _declared(together: Any, spaces: Any, limit: int | None) -> str | None:
    if (mode := together.metadata.get("autoreset_mode")) is not AutoresetMode.NEXT_STEP:
        return f"its metadata['autoreset_mode'] is {mode}, not AutoresetMode.NEXT_STEP"
    if statistics := statistics_of(together):
        return f"it keeps running statistics ({', '.join(statistics)})"
    given = together.single_observation_space, together.single_action_space
    for what, theirs, own in zip(("observations", "actions"), given, spaces, strict=True):
        if theirs != own:
            return f"its {what} are {one_line(theirs)}, not {one_line(own)}"
    its = getattr(together.unwrapped, "max_episode_steps", limit)  # random steps may not get there
    return None if its == limit else f"its max_episode_steps is {its}, and that of the single environment {limit}"


def _returned(given: Iterator[Returned], wanted: list[Returned]) -> str | None:
    """Say where one copy first returns something else than the single environment."""
    largest: Any = 0.0
    for own in wanted:
        largest = np.maximum(largest, np.abs(own.observation.astype(np.float64)))
    most = max(abs(own.reward) for own in wanted)
    for theirs, own in zip(given, wanted, strict=True):
        where = f"step {own.step}" if own.step else "reset()"
        said = f"from the same seed and actions, one copy's {{}} in {where} is {{}}, and the single environment's {{}}"
        near = np.abs(theirs.observation.astype(np.float64) - own.observation) <= TOLERANCE * largest
        if not near.all():
            at = tuple(np.argwhere(~near)[0])
            return said.format("observation", f"{theirs.observation[at]:.6g}", f"{own.observation[at]:.6g}")
        if not abs(theirs.reward - own.reward) <= TOLERANCE * most:
            return said.format("reward", f"{theirs.reward:.6g}", f"{own.reward:.6g}")
        for what in ("terminated", "truncated"):
            if getattr(theirs, what) != getattr(own, what):
                return said.format(what, getattr(theirs, what), getattr(own, what))
    return None


def _counted(together: Any, copies: int) -> str | None:
    """Say if it does not step as many copies as it was asked for."""
    observations, _ = together.reset(seed=0)
    *given, _ = together.step(together.action_space.sample())
    made = {together.num_envs, len(observations), *map(len, given)} - {copies}
    return f"asked for {copies} copies, it steps {made.pop()}" if made else None
