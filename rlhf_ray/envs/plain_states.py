"""State blobs of ordinary gymnasium environments: everything plain that an environment and its wrappers hold, as JSON.

Numbers, texts, arrays, random generators, MuJoCo's data, and lists, tuples and dicts of these are the state. Spaces, functions,
MuJoCo's models and what draws for people are no state. An environment that holds anything else can't be saved, unless it has
``get_state() -> bytes`` and ``set_state(bytes)``.
"""

from __future__ import annotations

import base64
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.checked import CheckedEnv
from rlhf_ray.envs.views import Viewed


class _NoState(Exception):  # noqa: N818 - told to the user as a SettingError
    """A value that is neither plain nor known to be no state."""


def save(env: gym.Env[Any, Any], name: str) -> dict[str, Any]:
    """Return the state of ``env`` and its wrappers as JSON values.

    Raises:
        SettingError: ``env``, called ``name``, can't be saved.
    """
    if _has_own(env):
        inner = base64.b64encode(env.unwrapped.get_state()).decode()  # type: ignore[attr-defined]
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


def _has_own(env: gym.Env[Any, Any]) -> bool:
    """Whether the environment saves itself. MuJoCo's environments have another ``set_state``, without a ``get_state``."""
    return hasattr(env.unwrapped, "get_state") and hasattr(env.unwrapped, "set_state")


def _layers(env: Any) -> list[Any]:
    """Return the environment and its wrappers, without those that only check, count or convert."""
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return [
        layer for layer in layers if not isinstance(layer, CheckedEnv | Viewed | OrderEnforcing | PassiveEnvChecker)
    ]


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
