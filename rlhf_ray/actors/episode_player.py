"""Players of whole episodes for a recording: any policy's, or an agent's with its internals."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.recorded import Block, InsidePlan
from rlhf_ray.agents.saved import ActingPolicy
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.data.rollout import Act, rollout
from rlhf_ray.data.seeds import generator
from rlhf_ray.data.spaces import seeded
from rlhf_ray.data.transitions import RecordedEpisode
from rlhf_ray.envs.batch import EnvBatch


class EpisodePlayer:
    """Plays episodes. Each depends only on the seed, the policy's name and the episode's number.

    The policies are:

    * ``policy``: the policy that ``make_policy`` makes, acting deterministically;
    * ``expert``: the environment's scripted one, ``env.unwrapped.expert(rng)``;
    * ``random``: uniformly random actions;
    * ``epsilon``: a share of random actions, otherwise ``policy``, or ``expert`` without one.
    """

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        seed: int,
        epsilon: float,
        make_policy: Callable[[], ActingPolicy] | None = None,
    ):
        self.env = make_env()
        self._seed = seed
        self._epsilon = epsilon
        self._policy = None if make_policy is None else make_policy()

    def play(self, policy: str, number: int) -> RecordedEpisode:
        """Play episode ``number`` of ``policy``."""
        rng = generator(self._seed, "recordings", zlib.crc32(policy.encode()), number)
        seed = int(rng.integers(2**31))
        self._actions = seeded(self.env.action_space, int(rng.integers(2**31)))
        level = seed
        states: list[dict[str, Any]] = []

        def hear(step: int, info: Mapping[str, Any]) -> None:
            nonlocal level
            level = int(info.get("level_seed", seed)) if step == 0 else level
            states.append(self._state(info))

        acting = None if self._policy is None else self._policy.begin()
        rolled = rollout(self.env, self._act(policy, rng, acting), seed=seed, hear=hear)
        truncated = rolled.ended and not rolled.trajectory.terminated
        return RecordedEpisode(rolled.trajectory, truncated, policy, level, _stacked(states))

    def _act(self, policy: str, rng: np.random.Generator, acting: ActingPolicy | None) -> Act:
        if policy == "random":
            return lambda observation: self._actions.sample()
        if policy == "epsilon":
            follow = self._act("expert" if acting is None else "policy", rng, acting)

            def act(observation: Array) -> Any:
                if rng.random() >= self._epsilon:
                    return follow(observation)
                if acting is not None:
                    acting.see(observation)
                return self._actions.sample()

            return act
        if policy == "expert":
            expert = self.env.unwrapped.expert  # type: ignore[attr-defined]
            return lambda observation: expert(rng)
        assert policy == "policy", policy
        assert acting is not None, "there is no policy"
        return lambda observation: acting.best(observation[None])[0]

    def _state(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the environment says about its state: the plain numbers of its info, and its ``describe()``."""
        numbers = {
            name: float(value)
            for name, value in info.items()
            if name != "level_seed" and isinstance(value, bool | int | float | np.number | np.bool_)
        }
        describe = getattr(self.env.unwrapped, "describe", None)
        if describe is None:
            return numbers
        facts = {name: np.array(value) for name, value in describe().items()}
        return numbers | {name: value if value.ndim else float(value) for name, value in facts.items()}


def _stacked(states: list[dict[str, Any]]) -> dict[str, Array]:
    """Stack the states of an episode's observations. A number that was not told is NaN.

    Raises:
        FaultyEnvironmentError: an array changes its shape, or is missing at times.
    """
    columns: dict[str, Array] = {}
    for name in dict.fromkeys(name for state in states for name in state):
        values = [state.get(name, np.nan) for state in states]
        if len({np.shape(value) for value in values}) != 1:
            raise FaultyEnvironmentError(
                f"The environment's describe() returns {name!r} with different shapes within an episode; it must return the same "
                "names and shapes at each step."
            )
        columns[name] = np.stack(values)
    return columns


class InsidePlayer:
    """Plays the blocks of a plan for a recording with an agent's internals, each the same on any player."""

    def __init__(self, plan: InsidePlan, agent: Agent, make_batch: Callable[[int], EnvBatch]):
        self._plan, self._agent = plan, agent
        self._batch = make_batch(plan.copies)

    def play(self, block: Block) -> list[RecordedEpisode]:
        """Play the episodes of ``block``."""
        return self._plan.play(self._agent, self._batch, block)

    def close(self) -> None:
        """Free the copies."""
        self._batch.close()
