"""Batches of environments that tools can question, by name: procgen's games, and copies of any gymnasium environment.

The states of ordinary environments are everything plain that they and their wrappers hold, as JSON: numbers, texts, arrays, random
generators, MuJoCo's data, and lists, tuples and dicts of these. Spaces, functions, MuJoCo's models and what draws for people are no
state. An environment that holds anything else can't be saved, unless it has ``get_state() -> bytes`` and ``set_state(bytes)``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.envs.batch import BatchStep, EnvBatch
from rlhf_ray.envs.checked import CheckedEnv
from rlhf_ray.envs.procgen_batch import ProcgenBatch
from rlhf_ray.envs.registry import PROCGEN_PREFIX, check_gymnasium_id, make_env, procgen_game_and_mode
from rlhf_ray.envs.views import Viewed, layers

BATCHES: dict[str, Callable[..., EnvBatch]] = {}
"""Batches of one's own by the registered id of their environment, each made from ``n`` and options. The module that registers an
environment may add its batch."""


def make_batch(name: str, n: int, **options: Any) -> EnvBatch:
    """Make ``n`` copies of an environment; ``name`` and options are as for `make_env`.

    Raises:
        ValueError: no environment has this name; the message lists the closest ones.
        SettingError: an option is invalid.
    """
    module, _, own = name.rpartition(":")
    if module:
        check_gymnasium_id(name)  # imports the module
    if own in BATCHES:
        return BATCHES[own](n, **options)
    if name.startswith(PROCGEN_PREFIX):
        procgen_game_and_mode(name)
        return ProcgenBatch(name, n, **options)
    return GymBatch(name, n, **options)


class BatchCreator:
    """Makes copies of the environment ``name``, also in a process that doesn't know it.

    Pickling it includes an environment that a script registered under that name.
    """

    def __init__(self, name: str):
        self.name = name
        self._registered, self._batch = gym.registry.get(name), BATCHES.get(name)

    def __call__(self, n: int) -> EnvBatch:
        """Make ``n`` copies."""
        if self._registered is not None:
            gym.registry.setdefault(self.name, self._registered)
        if self._batch is not None:
            BATCHES.setdefault(self.name, self._batch)
        return make_batch(self.name, n)


class GymBatch:
    """Copies of a gymnasium environment, stepped in a loop: arguments as for `make_batch`. See `EnvBatch`.

    A level is a seed of ``reset``. The environment may have, unwrapped:

    * ``action_names``; its info may say the ``cause`` of an episode's end.
    * ``describe()``: numbers and arrays by name, the same names at every step; NaN where a number is unknown.
    * ``masks()``: where objects are in the image, bool ``[height, width]`` by name.
    * ``edits``: names of level edits, with what each does if they are a mapping, and ``edit(name)``, which makes one and returns
      the observation.
    * ``get_state() -> bytes`` and ``set_state(bytes)``; otherwise states are those of `save`.

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
                    "environment": save(env, self.name),
                    "observation": to_json(self._observations[i]),
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
            restore(env, saved["environment"])
            self._observations[i] = of_json(saved["observation"])
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


class _NoState(Exception):  # noqa: N818 - told to the user as a SettingError
    """A value that is neither plain nor known to be no state."""


def save(env: gym.Env[Any, Any], name: str) -> dict[str, Any]:
    """Return the state of ``env`` and its wrappers as JSON values.

    Raises:
        SettingError: ``env``, called ``name``, can't be saved.
    """
    # MuJoCo's environments have another ``set_state``, without a ``get_state``.
    if hasattr(env.unwrapped, "get_state") and hasattr(env.unwrapped, "set_state"):
        inner = base64.b64encode(env.unwrapped.get_state()).decode()
        return {"own": inner, "layers": [_attributes(layer, name) for layer in _layers(env)[:-1]]}
    return {"layers": [_attributes(layer, name) for layer in _layers(env)]}


def restore(env: gym.Env[Any, Any], saved: dict[str, Any]) -> None:
    """Restore a state that `save` returned, of this environment or of another copy."""
    for layer, attributes in zip(_layers(env), saved["layers"], strict=False):
        for name, value in attributes.items():
            current = getattr(layer, name, None)
            if isinstance(value, dict) and "mujoco" in value:
                _restore_mujoco(current, value["mujoco"])
            else:
                setattr(layer, name, of_json(value))
    if "own" in saved:
        env.unwrapped.set_state(base64.b64decode(saved["own"]))  # type: ignore[attr-defined]


def _layers(env: Any) -> list[Any]:
    """Return the environment and its wrappers, without those that only check, count or convert."""
    others = CheckedEnv, Viewed, OrderEnforcing, PassiveEnvChecker
    return [layer for layer in layers(env) if not isinstance(layer, others)]


def _attributes(layer: Any, name: str) -> dict[str, Any]:
    saved = {}
    for attribute, value in vars(layer).items():
        if attribute == "env" or _is_no_state(value):
            continue
        try:
            saved[attribute] = to_json(value)
        except _NoState as error:
            raise SettingError(
                f"{name} can't save its state ({type(layer).__name__}.{attribute} is {error}): give the environment "
                "get_state() -> bytes and set_state(bytes), or use an environment that has them."
            ) from None
    return saved


def _is_no_state(value: Any) -> bool:
    module = type(value).__module__ or ""
    return (
        isinstance(value, gym.Space | EnvSpec | ModuleType)
        or callable(value)
        or module.startswith(("pygame", "gymnasium.envs.mujoco.mujoco_rendering"))
        or (module.startswith("mujoco") and type(value).__name__ == "MjModel")
    )


def to_json(value: Any) -> Any:
    """Return plain values and arrays as JSON values."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.ndarray | np.generic):
        kind = np.asarray(value)
        if kind.dtype.hasobject:
            raise _NoState("an array of objects")
        content = base64.b64encode(np.ascontiguousarray(kind).tobytes()).decode()
        return {"array": content, "dtype": kind.dtype.str, "shape": list(kind.shape), "scalar": np.isscalar(value)}
    if isinstance(value, np.random.Generator):
        return {"generator": value.bit_generator.state}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [to_json(item) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: to_json(item) for key, item in value.items()}}
    if type(value).__name__ == "MjData" and type(value).__module__.startswith("mujoco"):
        return {"mujoco": {name: to_json(array) for name, array in _mujoco_arrays(value).items()}}
    raise _NoState(f"a {type(value).__name__}")


def of_json(value: Any) -> Any:
    """Return the values that `to_json` returned as JSON values."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = np.frombuffer(base64.b64decode(value["array"]), value["dtype"]).reshape(value["shape"]).copy()
        return array[()] if value["scalar"] else array
    if "generator" in value:
        generator = np.random.Generator(getattr(np.random, value["generator"]["bit_generator"])())
        generator.bit_generator.state = value["generator"]
        return generator
    if "dict" in value:
        return {key: of_json(item) for key, item in value["dict"].items()}
    if "tuple" in value:
        return tuple(of_json(item) for item in value["tuple"])
    return [of_json(item) for item in value["list"]]


def _mujoco_arrays(data: Any) -> dict[str, Array]:
    """Return MuJoCo's state and everything of fixed size that it derives from it, which observations read.

    MuJoCo derives quantities before it moves bodies, so that they belong to the state before: computing them anew from the state
    would give other observations. What depends on contacts is not needed: the next step computes it.
    """
    fields = (
        "time qpos qvel act ctrl qacc_warmstart qfrc_applied xfrc_applied mocap_pos mocap_quat userdata eq_active qacc act_dot "
        "xpos xquat xmat xipos ximat xanchor xaxis geom_xpos geom_xmat site_xpos site_xmat cam_xpos cam_xmat subtree_com cinert "
        "cvel cacc cfrc_int cfrc_ext actuator_length actuator_velocity actuator_force qfrc_actuator qfrc_passive qfrc_bias "
        "qfrc_constraint sensordata subtree_linvel subtree_angmom energy"
    )
    return {name: np.array(getattr(data, name)) for name in fields.split() if hasattr(data, name)}


def _restore_mujoco(data: Any, saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        array = of_json(value)
        if np.ndim(array):
            getattr(data, name)[:] = array
        else:
            setattr(data, name, float(array))
