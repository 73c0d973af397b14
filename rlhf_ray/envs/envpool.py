"""EnvPool: environments in C++ that step in threads, by ``envpool/`` and any of its ids, such as ``envpool/HalfCheetah-v5``.

DeepMind Control (``envpool/WalkerWalk-v1``), Meta-World (``envpool/MetaWorld/DoorOpen-v3``), MuJoCo, Atari, Box2D, MyoSuite, …:
`envpool.list_all_envs` has them all. The package is imported only when one of them is made.

* Observations and actions are what `rlhf_ray.data.views` makes of EnvPool's: one vector for a Dict, its parts in the order of
  their names; images with channels last. Numbers are float32.
* Episodes and time limits are EnvPool's own. The step after an episode's last one starts the next and has the reward 0.
* `info` has what EnvPool says about each step, for example ``success``.
"""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlhf_ray.data import system
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.data.spaces import fitted
from rlhf_ray.data.views import action_view_of, view_of
from rlhf_ray.envs.first_of import FirstOf

PREFIX = "envpool/"
UNBOUNDED = 1e30
"""Bounds beyond this are none: EnvPool's default ones are the smallest and largest numbers of a dtype."""
ENDLESS = 2**31 - 1
"""The step limit of tasks that have none."""
NOT_SAID = frozenset({"env_id", "players", "elapsed_step"})
"""Parts of EnvPool's info that tell nothing about an episode."""
CLOSEST = 5
"""The number of ids that an error lists."""


class EnvPoolVectorEnv(VectorEnv[Array, Array, Array]):
    """``num_envs`` copies of one of EnvPool's environments, stepped by its threads.

    EnvPool seeds its copies when it makes them: `reset` with a seed makes them again.

    Args:
        name: ``envpool/`` and the id.
        num_envs: number of copies.
        num_threads: threads that step them.
        render_mode: ``"rgb_array"`` for `render`; None for none.
        width, height: size of rendered images in pixels; None for EnvPool's own.
        **options: EnvPool's own options of the environment.

    Raises:
        ImportError: EnvPool, or what one of its games needs, is not installed.
        SettingError: EnvPool has no such id (the message lists the closest ones), an option is invalid, or the environment is for
            several players.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 30,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        name: str,
        num_envs: int = 1,
        *,
        num_threads: int = 1,
        render_mode: str | None = None,
        width: int | None = None,
        height: int | None = None,
        **options: Any,
    ):
        self._pool: Any = None
        check(name)
        rendering = {"render_mode": render_mode, "render_width": width, "render_height": height}
        self.name, self.num_envs, self.render_mode = name, num_envs, render_mode
        self._rendering = {} if render_mode is None else {key: value for key, value in rendering.items() if value}
        self._options = {**options, "num_envs": num_envs, "num_threads": min(num_threads, num_envs)}
        self._ended: BoolArray = np.zeros(num_envs, bool)
        pool_spec = _made("make_spec", name, self._options)
        self.draws_any_size = any("mujoco" in kind.__module__ for kind in type(pool_spec).__mro__)
        if self._rendering and self.draws_any_size and not system.opengl_loaded():
            raise ImportError(
                f"Images of {name} need OpenGL, loaded before EnvPool: install libegl1 (Debian's name), and don't import envpool "
                "before rlhf_ray makes an environment."
            )
        space, actions = _spaces(name, pool_spec)
        steps = getattr(pool_spec.config, "max_episode_steps", 0)
        steps = steps if 0 < steps < ENDLESS else None  # 0: each level has its own limit
        entry = f"{__name__}:{EnvPoolEnv.__name__}"
        self.spec = EnvSpec(PREFIX + name.removeprefix(PREFIX).replace("/", "."), entry, max_episode_steps=steps)
        view = view_of(space)
        self.single_observation_space = space if view is None else view.space
        self._see = (lambda seen: seen) if view is None else view.see
        of_actions = action_view_of(actions)
        self.single_action_space = actions if of_actions is None else of_actions.space
        self._act = np.asarray if of_actions is None else of_actions.act
        self._theirs = pool_spec.gymnasium_action_space
        self._dtype = self.single_observation_space.dtype
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start an episode in every copy, with a seed for each; a number ``s`` gives ``s``, ``s + 1``, …."""
        if seed is not None or self._pool is None:
            self._make(np.random.SeedSequence().generate_state(1)[0] if seed is None else seed)
        observations, info = self._pool.reset()
        self._ended = np.zeros(self.num_envs, bool)
        return self._observed(observations), _said(info)

    def step(self, actions: Array) -> tuple[Array, FloatArray, BoolArray, BoolArray, dict[str, Any]]:
        """Step all copies."""
        observations, rewards, terminated, truncated, info = self._pool.step(fitted(self._act(actions), self._theirs))
        # Of a copy that starts its next episode, some of EnvPool's tasks return a reward of the first state.
        rewards = np.where(self._ended, 0.0, rewards)
        self._ended = terminated | truncated
        return self._observed(observations), rewards, terminated, truncated, _said(info)

    def render(self) -> tuple[Array, ...]:  # type: ignore[override]
        """Return an image of each copy, uint8 ``[height, width, 3]``.

        Raises:
            FaultyEnvironmentError: EnvPool can't draw this environment, or lacks a file for it.
        """
        try:
            return tuple(self._pool.render(np.arange(self.num_envs)))
        except (RuntimeError, OSError) as error:
            raise FaultyEnvironmentError(f"EnvPool can't draw {self.name}: {' '.join(str(error).split())}.") from error

    def close_extras(self, **kwargs: Any) -> None:
        """Free the copies."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _make(self, seed: int | Sequence[int]) -> None:
        self.close_extras()
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int | np.integer) else list(seed)
        seeded = {"seed": [int(each) % 2**31 for each in seeds]}
        self._pool = _made("make", self.name, self._options | self._rendering | seeded)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in `_spaces`; EnvPool keeps its space from now on
            _ = self._pool.observation_space

    def _observed(self, observations: Any) -> Array:
        return np.asarray(self._see(observations), self._dtype)


class EnvPoolEnv(FirstOf):
    """One of EnvPool's environments: arguments as for `EnvPoolVectorEnv`."""

    def __init__(self, name: str, **options: Any):
        copies = EnvPoolVectorEnv(name, 1, **options)
        super().__init__(copies)
        self.draws_any_size = copies.draws_any_size


def check(name: str) -> None:
    """Check that EnvPool has the environment ``name``.

    Raises:
        ImportError: EnvPool is not installed.
        SettingError: it has no such id; the message lists the closest ones.
    """
    task = name.removeprefix(PREFIX)
    known = _envpool(name).list_all_envs()
    if task not in known:
        raise SettingError(
            f"There is no environment {name!r}: EnvPool has no {task!r}. The closest names are {', '.join(_closest(task, known))}."
        )


def spelled(name: str) -> str | None:
    """Return the id of EnvPool's that ``name`` is but for prefix and case, with its prefix; None if it has none or is missing."""
    task = re.sub(rf"^{PREFIX}", "", name, flags=re.IGNORECASE).lower()
    try:
        known = _envpool(name).list_all_envs()
    except ImportError:
        return None
    return next((f"{PREFIX}{each}" for each in known if each.lower() == task), None)


def _envpool(name: str) -> Any:
    """Return the package, imported after OpenGL: MuJoCo looks for it then, and without it ends the process when it renders."""
    if "envpool" not in sys.modules:
        system.load_opengl()
    try:
        import envpool
    except ImportError as error:
        raise ImportError(f"{name} needs EnvPool: pip install 'rlhf-ray[envpool]' ({error}).") from error
    return envpool


def _closest(task: str, known: Sequence[str]) -> list[str]:
    """Return the ids nearest to one that isn't there, whatever their case, punctuation, family and version."""
    newest_last = sorted(known, key=lambda name: (int((re.findall(r"-v(\d+)$", name) or [0])[0]), -name.count("/")))
    plain = {re.sub(r"v\d+$|[^a-z0-9]", "", name.rpartition("/")[2].lower()): name for name in newest_last}
    wanted = re.sub(r"v\d+$|[^a-z0-9]", "", task.rpartition("/")[2].lower())
    return [f"{PREFIX}{plain[key]}" for key in difflib.get_close_matches(wanted, plain, CLOSEST, 0)]


def _made(what: str, name: str, options: dict[str, Any]) -> Any:
    """Return what EnvPool makes of an id."""
    kinds = {} if what == "make_spec" else {"env_type": "gymnasium"}
    try:
        return getattr(_envpool(name), what)(name.removeprefix(PREFIX), **kinds, **options)
    except ImportError as error:
        raise ImportError(f"{name}: {' '.join(str(error).split())}") from error
    except (AssertionError, TypeError, ValueError, RuntimeError) as error:
        wrong = SettingError if what == "make_spec" else FaultyEnvironmentError  # the spec has all settings
        raise wrong(f"EnvPool can't make {name} with {options}: {' '.join(str(error).split())}.") from error


def _spaces(name: str, spec: Any) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return an environment's spaces: float32 numbers, no bounds where EnvPool's are formal, parts in the order of their names."""
    if (players := getattr(spec.config, "max_num_players", 1)) > 1:
        raise SettingError(f"{name} is for {players} players; only environments for one can be used.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium's, of the precision of formal bounds
        seen, actions = spec.gymnasium_observation_space, spec.gymnasium_action_space
    return _plain(seen), actions if actions.dtype != np.float64 else _plain(actions)


def _plain(space: gym.Space[Any]) -> gym.Space[Any]:
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({name: _plain(space[name]) for name in sorted(space)})
    if not isinstance(space, gym.spaces.Box) or np.dtype(space.dtype).kind != "f":
        return space
    formal = (space.low == np.finfo(space.dtype).tiny) | (np.abs(space.low) > UNBOUNDED)
    low, high = np.where(formal, -np.inf, space.low), np.where(np.abs(space.high) > UNBOUNDED, np.inf, space.high)
    return gym.spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


def _said(info: dict[str, Any]) -> dict[str, Any]:
    """Return what EnvPool says about each copy's step: arrays ``[n, …]`` by name."""
    return {name: value for name, value in info.items() if name not in NOT_SAID}
