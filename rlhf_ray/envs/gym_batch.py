"""GymBatch: copies of any gymnasium environment that tools can question, as an `EnvBatch`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.envs import plain_states
from rlhf_ray.envs.batch import BatchStep
from rlhf_ray.envs.registry import make_env


class GymBatch:
    """Copies of a gymnasium environment, stepped in a loop. See `EnvBatch`.

    A level is a seed of ``reset``. The environment may have, unwrapped:

    * ``action_names``; its info may say the ``cause`` of an episode's end.
    * ``describe()``: numbers and arrays by name, the same names at every step; NaN where a number is unknown.
    * ``masks()``: where objects are in the image, bool ``[height, width]`` by name.
    * ``edits``: names of level edits, with what each does if they are a mapping, and ``edit(name)``, which makes one and returns
      the observation.
    * ``get_state() -> bytes`` and ``set_state(bytes)``; otherwise states are those of `plain_states`.

    Args:
        name: as for `make_env`.
        n: number of copies.
        **options: as for `make_env`.

    Raises:
        FaultyEnvironmentError: what the environment says about itself is invalid, or one of its edits fails.
    """

    def __init__(self, name: str, n: int, **options: Any):
        if n < 1:
            raise SettingError(f"n of {name} is {n}; it must be 1 or more.")
        self.name, self.n = name, n
        self._envs = [make_env(name, **options) for _ in range(n)]
        first = self._envs[0]
        self.observation_space, self.action_space = first.observation_space, first.action_space
        self.action_names: Sequence[str] = tuple(getattr(first.unwrapped, "action_names", ()))
        edits: Any = getattr(first.unwrapped, "edits", {})
        self.edits: Mapping[str, str] = dict(edits if isinstance(edits, Mapping) else dict.fromkeys(edits, ""))
        self._named: dict[str, tuple[str, ...]] = {}
        self._observations: Array = np.zeros((n, *(first.observation_space.shape or ())), first.observation_space.dtype)
        self._terminated, self._truncated = np.zeros(n, bool), np.zeros(n, bool)
        self._causes = [""] * n
        self._begun = False

    def reset(self, levels: Sequence[int]) -> Array:
        """See `EnvBatch.reset`."""
        assert len(levels) == self.n, (len(levels), self.n)
        for i, (env, level) in enumerate(zip(self._envs, levels, strict=True)):
            self._observations[i], _ = env.reset(seed=int(level))
        self._terminated[:] = self._truncated[:] = False
        self._begun = True
        self._causes = [""] * self.n
        return self._observations.copy()

    def step(self, actions: Array) -> BatchStep:
        """See `EnvBatch.step`."""
        rewards: FloatArray = np.zeros(self.n)
        for i in np.flatnonzero(~(self._terminated | self._truncated)):
            self._observations[i], rewards[i], terminated, truncated, info = self._envs[i].step(actions[i])
            self._terminated[i], self._truncated[i] = terminated, truncated and not terminated
            if terminated or truncated:
                self._causes[i] = str(info.get("cause", ""))
        return BatchStep(
            self._observations.copy(), rewards, self._terminated.copy(), self._truncated.copy(), list(self._causes)
        )

    def states(self) -> list[bytes]:
        """See `EnvBatch.states`."""
        return [
            json.dumps(
                {
                    "environment": plain_states.save(env, self.name),
                    "observation": plain_states.to_json(self._observations[i]),
                    "ended": [bool(self._terminated[i]), bool(self._truncated[i]), self._causes[i]],
                }
            ).encode()
            for i, env in enumerate(self._envs)
        ]

    def restore(self, states: Sequence[bytes]) -> Array:
        """See `EnvBatch.restore`."""
        assert len(states) == self.n, (len(states), self.n)
        if not self._begun:
            self.reset([0] * self.n)
        for i, (env, state) in enumerate(zip(self._envs, states, strict=True)):
            saved = json.loads(state)
            plain_states.restore(env, saved["environment"])
            self._observations[i] = plain_states.of_json(saved["observation"])
            self._terminated[i], self._truncated[i], self._causes[i] = saved["ended"]
        return self._observations.copy()

    def describe(self) -> dict[str, Array]:
        """See `EnvBatch.describe`."""
        return self._said("describe")

    def masks(self) -> dict[str, BoolArray]:
        """See `EnvBatch.masks`."""
        return self._said("masks")

    def edit(self, name: str, rows: BoolArray | None = None) -> Array:
        """See `EnvBatch.edit`.

        Raises:
            SettingError: the environment has no such edit.
        """
        if name not in self.edits:
            offered = ", ".join(self.edits) or "none: give it edits and edit(name)"
            raise SettingError(f"{self.name} has no edit {name!r}; it offers {offered}.")
        going = ~(self._terminated | self._truncated)
        for i in np.flatnonzero(going if rows is None else going & rows):
            self._observations[i] = self._after_edit(int(i), name)
        return self._observations.copy()

    def _after_edit(self, i: int, name: str) -> Array:
        """Edit a copy's level; return its observation."""
        env: Any = self._envs[i].unwrapped
        try:
            seen = env.edit(name)
        except Exception as error:
            raise FaultyEnvironmentError(
                f"{self.name}: edit({name!r}) raises {type(error).__name__}: {error}"
            ) from error
        if seen is None or np.shape(seen) != self.observation_space.shape:
            told = "None" if seen is None else f"an array of shape {list(np.shape(seen))}"
            wanted = list(self.observation_space.shape or ())
            raise FaultyEnvironmentError(
                f"{self.name}: edit({name!r}) returns {told}; it must return the new observation, of shape {wanted}."
            )
        return np.asarray(seen)

    def _said(self, method: str) -> dict[str, Array]:
        """Stack what a method of each environment returns by name; nothing if they don't have it."""
        if not hasattr(self._envs[0].unwrapped, method):
            return {}
        facts = [self._checked(method, getattr(env.unwrapped, method)()) for env in self._envs]
        return {name: np.stack([fact[name] for fact in facts]) for name in facts[0]}

    def _checked(self, method: str, said: Any) -> dict[str, Array]:
        """Check what a copy says about itself: numbers, by the same names as before."""
        if not isinstance(said, Mapping):
            raise FaultyEnvironmentError(
                f"{self.name}: {method}() returns a {type(said).__name__}; it must return a dict."
            )
        facts = {str(name): np.asarray(fact) for name, fact in said.items()}
        for name, fact in facts.items():
            if not np.issubdtype(fact.dtype, np.number) and fact.dtype != bool:
                raise FaultyEnvironmentError(
                    f"{self.name}: {method}()[{name!r}] is {said[name]!r}; it must be a number or an array of numbers: 0, 1, … "
                    "for kinds, NaN where it is unknown."
                )
        before = self._named.setdefault(method, tuple(facts))
        if different := set(facts) ^ set(before):
            raise FaultyEnvironmentError(
                f"{self.name}: {method}() says {', '.join(sorted(different))} at some steps only; name the same at every step, "
                "with NaN where it is unknown."
            )
        return facts

    def close(self) -> None:
        """See `EnvBatch.close`."""
        for env in self._envs:
            env.close()  # type: ignore[no-untyped-call]
