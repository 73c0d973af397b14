"""Whether other copies of an environment are like the single one, as far as their beginnings tell.

One copy of those that step together must, from the same seeds and with the same actions, return what the single environment does.
One that can't be compared, because it draws its starts in another order, say, is another one.

Wrappers may carry state from one episode to the next, such as running statistics of observations. Each copy has its own, and
evaluations, recordings and resumed runs make new copies: the policy acts there in another environment than it was trained in.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.spaces import one_line
from rlhf_ray.envs.checked import RAISED, TRIED_STEPS, CheckedEnv
from rlhf_ray.envs.observations import as_array
from rlhf_ray.envs.views import Viewed, layers

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
    """Say in what an environment of so many copies differs from the single one; None if nothing is found. Has one at a time."""
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


STATELESS = (OrderEnforcing, PassiveEnvChecker, TimeLimit, CheckedEnv, Viewed)
"""Wrappers around every environment."""


def carried_state(make: Callable[[], gym.Env[Any, Any]]) -> str | None:
    """Say what the wrappers of an environment carry from one episode to the next, and what to do; None if they carry nothing.

    The environment is made once or twice, and closed in between.
    """
    env = make()
    try:
        own = [layer for layer in layers(env) if isinstance(layer, gym.Wrapper) and not isinstance(layer, STATELESS)]
        keepers, first, again = statistics_of(env), None, None
        if own and not keepers:
            first, again = _episode(env), _episode(env)
    finally:
        env.close()  # type: ignore[no-untyped-call]
    if keepers:
        return (
            f"it keeps running statistics ({', '.join(keepers)}), and each copy begins with none, in evaluations, recordings and "
            "resumed runs too, so that these are of another environment than training was in. Leave them out and set "
            "ppo.normalize_observations or sac.normalize_observations, which keep statistics with the policy; the learned "
            "reward is normalised anyway"
        )
    if first is None or again is None or not _same(first[1], again[1]) or _same(first[0], again[0]):
        return None
    env = make()
    try:
        fresh = _episode(env)
    finally:
        env.close()  # type: ignore[no-untyped-call]
    if not _same(first[0], fresh[0]):
        return None  # random anyway
    names = ", ".join(type(layer).__name__ for layer in own)
    return (
        f"its wrappers ({names}) carry something from one episode to the next: after another episode, the same one looks or pays "
        "differently. Evaluations, recordings and resumed runs make the environment anew, and so another one than training was in: "
        "let reset() begin anew"
    )


def statistics_of(env: Any) -> list[str]:
    """Return the names of the layers of an environment, single or vector, that update running means and variances."""
    return [
        type(layer).__name__
        for layer in layers(env)
        if getattr(layer, "update_running_mean", True)
        and any({"mean", "var", "count"} <= getattr(value, "__dict__", {}).keys() for value in vars(layer).values())
    ]


def _episode(env: gym.Env[Any, Any]) -> tuple[list[Any], list[Any]]:
    """Play an episode's beginning, always with one seed; return what the environment gives, and without its wrappers in short."""
    inner: Any = env.unwrapped
    reset, step, raw = inner.reset, inner.step, list[Any]()

    def recorded(made: Any) -> Any:
        raw.append(copy.deepcopy(made[:-1]))
        return made

    inner.reset = lambda **given: recorded(reset(**given))
    inner.step = lambda action: recorded(step(action))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env.action_space.seed(0)
            given: list[Any] = [env.reset(seed=0)[0]]
            for _ in range(TRIED_STEPS):
                *stepped, _ = env.step(env.action_space.sample())
                given += stepped
                if stepped[2] or stepped[3]:
                    break
    finally:
        del inner.reset, inner.step
    return given, raw


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(data_equivalence(a, b) for a, b in zip(one, other, strict=True))
