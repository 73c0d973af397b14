"""Procgen's sixteen games (Cobbe et al. 2020, "Leveraging Procedural Generation") as gymnasium environments.

Procgen steps all its games in one native call, and inside that call replaces an episode that has ended by the first
frame of the next one ("same-step" autoreset). RLlib and our fragments need gymnasium's "next-step" autoreset: an
episode ends with a frame of its own, and the next step, whose action counts for nothing, brings the next episode's
first frame. Two things that procgen can do, and hardly documents, make the one out of the other at native speed:

* Action -1 abandons the level and draws a new one. It is sent at every reset step, so that some games are reset while
  the others go on. After a level that procgen ended itself, procgen has meanwhile drawn a level that nobody sees, and
  -1 skips it. That is harmless: levels are drawn independently, and a level depends on nothing but its seed (in
  dodgeball also, with or without us, on the last direction moved before it: there the agent looks that way at first).
* The time limit is part of a game's saved state. It is lifted once, when the games are made, and counted here instead.
  So a truncated episode ends in its true last frame, which is the one that value estimates bootstrap from.

The last frame of a *terminated* episode (death, or the level solved) does not exist: procgen starts the next level
before it draws. Such an episode ends in a repetition of the frame before.
"""

import contextlib
import io
import struct
from typing import Any, Unpack

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rlhf_ray.envs.procgen_settings import ProcgenOptions, check_settings

_NUM_ACTIONS = 15
_FORCE_RESET = -1
_NO_TIME_LIMIT = 2**30
_LIMIT_SET_BY_EVERY_LEVEL = ("jumper", "memory")
"""The one game and mode that sets its time limit (2000) anew in every level, so that it has to be lifted each time."""


class ProcgenVectorEnv(VectorEnv[NDArray[np.uint8], NDArray[np.integer[Any]], NDArray[Any]]):
    """Copies of one procgen game, stepped together natively, with next-step autoreset.

    * Observations: uint8 [num_envs, 64, 64, 3]. Actions: integers [num_envs] in 0..14. Rewards: float32 [num_envs].
    * ``terminations``: the agent died or solved the level. Pitfall: the observation returned with it repeats the one
      before, because procgen draws no frame of a terminated episode's end (see the module). It is never a frame of the
      next level.
    * ``truncations``: the time limit was reached without that; the observation is the true last frame.
    * ``infos`` (with gymnasium's masks ``_level_seed`` and ``_prev_level_complete``): ``level_seed``, int32, the
      episode's level, at its first and its last observation; ``prev_level_complete``, bool, whether the level was
      solved, at the last.

    Sub-environment i of a seed plays the same levels however many sub-environments there are.

    Args:
        game: One of ``rlhf_ray.envs.procgen_settings.GAMES``.
        distribution_mode: "easy" (published runs: 25 M steps), "hard" (200 M steps), "extreme", "memory" or
            "exploration" (one hard level); see ``modes_of(game)`` for those the game has.
        num_envs: Copies.
        start_level: The first level's seed. Only with ``num_levels`` above 0.
        num_levels: Draw from the levels start_level .. start_level + num_levels - 1; 0 is any of 2**31 levels.
        max_episode_steps: Truncate after so many steps; None is the game's own limit (1000; 500 in leaper and maze,
            2000 in jumper-memory, 4000 in bossfight and plunder, 6000 in bigfish). It may be longer than that.
        render_mode: "rgb_array" makes ``render()`` give frames of 512x512 pixels, drawn at every step, which is then
            about 50 times slower; None draws only observations.
        num_threads: Native threads; 0 is this one, which is fastest per CPU second.
        **options: See ``ProcgenOptions``.

    Raises:
        ValueError: A setting that procgen would abort the process for, or would silently ignore.
        ImportError: procgen is not installed.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 15,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        game: str,
        distribution_mode: str = "hard",
        *,
        num_envs: int = 1,
        start_level: int = 0,
        num_levels: int = 0,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        num_threads: int = 0,
        **options: Unpack[ProcgenOptions],
    ) -> None:
        check_settings(game, distribution_mode, start_level, num_levels, dict(options))
        if num_envs < 1 or (max_episode_steps is not None and max_episode_steps < 1) or num_threads < 0:
            raise ValueError(
                f"num_envs={num_envs}, max_episode_steps={max_episode_steps}, num_threads={num_threads} of procgen: "
                "the first two must be at least 1 (or max_episode_steps None), and num_threads at least 0."
            )
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode={render_mode!r} of procgen: it must be None or 'rgb_array'.")
        self._native_class = _import_procgen()
        self._native: Any = None  # Made by reset(), which knows the seed.
        self._native_options: dict[str, Any] = {
            "num": num_envs,
            "env_name": game,
            "distribution_mode": distribution_mode,
            "num_threads": num_threads,
            "render_mode": render_mode,
            **options,
        }
        if distribution_mode != "exploration":  # It has its one level, and takes no others.
            self._native_options |= {"start_level": start_level, "num_levels": num_levels}
        self._levels_within_episode = bool(options.get("use_sequential_levels", False))
        self._limit_returns = (game, distribution_mode) == _LIMIT_SET_BY_EVERY_LEVEL
        self._max_episode_steps = max_episode_steps
        self._time_limit = 0

        self.num_envs = num_envs
        self.render_mode = render_mode
        self.single_observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.single_action_space = spaces.Discrete(_NUM_ACTIONS)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

        self._frames = np.zeros((num_envs, 64, 64, 3), np.uint8)  # Our own copy of what was returned last.
        self._large_frames = np.zeros((num_envs if render_mode else 0, 512, 512, 3), np.uint8)
        self._steps = np.zeros(num_envs, np.int64)  # Steps of the current episode.
        self._ended = np.zeros(num_envs, np.bool_)  # The episode has ended, and the next step resets it.
        self._level_seeds = np.zeros(num_envs, np.int32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts new episodes everywhere.

        Args:
            seed: Makes everything after it reproducible (the games are made anew, in about a millisecond each); None
                goes on drawing levels.
            options: None. Resetting some sub-environments and not others ("reset_mask") is not supported, because
                procgen's games can only be stepped all together.

        Returns:
            Observations, uint8 [num_envs, 64, 64, 3], and infos.
        """
        if options is not None and "reset_mask" in options:
            raise ValueError(
                "options['reset_mask'] of procgen's reset is not supported: its games step all together. "
                "Ended episodes are reset by the step that follows."
            )
        if self.closed:
            raise ResetNeeded("This procgen environment is closed. Make a new one.")
        super().reset(seed=seed)
        if self._native is None or seed is not None:
            self._make_native(rand_seed=int(self.np_random.integers(2**31 - 1)))
        else:
            self._native.act(np.full(self.num_envs, _FORCE_RESET, np.int32))
            if self._limit_returns:
                self._lift_time_limit()
        _, observation, _ = self._native.observe()
        everywhere = np.ones(self.num_envs, np.bool_)
        frames: NDArray[np.uint8] = observation["rgb"]
        self._keep_frames(frames, new=everywhere)
        self._steps[:] = 0
        self._ended = ~everywhere
        self._level_seeds = self._native_info("level_seed")
        return frames, {"level_seed": self._level_seeds.copy(), "_level_seed": everywhere}

    def step(
        self, actions: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.uint8], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Steps every game, and resets those whose episode ended in the step before.

        Args:
            actions: Integers [num_envs] in 0..14; without effect where an episode is reset.

        Returns:
            Observations uint8 [num_envs, 64, 64, 3], rewards float32 [num_envs], terminations and truncations bool
            [num_envs], and infos. Where an episode is reset: its first observation, 0, False, False.

        Raises:
            ValueError: Actions of another shape, or out of range.
            gymnasium.error.ResetNeeded: Before the first reset, or after close.
        """
        if self._native is None:
            raise ResetNeeded("Call reset() before step(): procgen's games are made there.")
        resetting = self._ended
        any_resetting = bool(resetting.any())
        native_actions = self._checked(actions)
        if any_resetting:
            native_actions[resetting] = _FORCE_RESET

        self._native.act(native_actions)
        if any_resetting and self._limit_returns:
            self._lift_time_limit()
        rewards, observation, terminations = self._native.observe()
        frames: NDArray[np.uint8] = observation["rgb"]
        self._steps += 1
        if any_resetting:  # What -1 came with: a step of a level that nobody sees, and its end.
            rewards[resetting] = 0.0
            terminations[resetting] = False
            self._steps[resetting] = 0
        if self._levels_within_episode:  # Procgen's clock starts again with each level.
            self._steps[self._native_info("prev_level_complete") != 0] = 0
        truncations = (self._steps >= self._time_limit) & ~terminations
        self._ended = terminations | truncations

        any_terminated = bool(terminations.any())
        if any_terminated:
            frames[terminations] = self._frames[terminations]
        self._keep_frames(frames, new=~terminations)
        infos: dict[str, Any] = {}
        if any_resetting or any_terminated or self._levels_within_episode or truncations.any():
            infos = self._infos(resetting, terminations)
        return frames, rewards, terminations, truncations, infos

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:  # type: ignore[override]
        """The current frames, uint8 [512, 512, 3] each, in render_mode "rgb_array"; else None.

        At a terminated episode's end, the frame before it, as in the observations.
        """
        return tuple(self._large_frames.copy()) if self.render_mode == "rgb_array" else None

    def close_extras(self, **kwargs: Any) -> None:
        """Frees the native games."""
        native, self._native = getattr(self, "_native", None), None
        if native is not None:
            native.close()

    def _make_native(self, rand_seed: int) -> None:
        self.close_extras()
        self._native = self._native_class(rand_seed=rand_seed, **self._native_options)
        own_limit = self._lift_time_limit()
        self._time_limit = self._max_episode_steps or own_limit

    def _lift_time_limit(self) -> int:
        """Takes procgen's time limit away from all games; returns the one that was there, in steps."""
        own_limit, states = _without_time_limit(self._native.get_state(), self._native_options["env_name"])
        self._native.set_state(states)
        return own_limit

    def _checked(self, actions: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        """A copy as procgen takes it. A -1 of the caller's would reset a level behind everybody's back."""
        checked = np.array(actions, np.int32)
        if checked.shape != (self.num_envs,) or int(checked.min()) < 0 or int(checked.max()) >= _NUM_ACTIONS:
            raise ValueError(
                f"Actions {actions!r} of procgen: they must be {self.num_envs} integers in 0..{_NUM_ACTIONS - 1}."
            )
        return checked

    def _keep_frames(self, frames: NDArray[np.uint8], new: NDArray[np.bool_]) -> None:
        """Keeps a copy: a caller may write into what it was given, and an end may have to show it again."""
        np.copyto(self._frames, frames)
        if self.render_mode is not None:
            self._large_frames[new] = self._native_info("rgb")[new]

    def _infos(self, resetting: NDArray[np.bool_], terminations: NDArray[np.bool_]) -> dict[str, Any]:
        # At a termination procgen already speaks of the next level's seed.
        self._level_seeds = np.where(terminations, self._level_seeds, self._native_info("level_seed"))
        infos: dict[str, Any] = {"level_seed": self._level_seeds.copy(), "_level_seed": self._ended | resetting}
        if self._ended.any():
            infos["prev_level_complete"] = (self._native_info("prev_level_complete") != 0) & self._ended
            infos["_prev_level_complete"] = self._ended.copy()
        return infos

    def _native_info(self, key: str) -> NDArray[Any]:
        """A copy of procgen's array of this name.

        Its own ``get_info()`` goes through a dictionary for each game, and draws the large frames a second time; gym3
        is archived, so this private array will not move.
        """
        array: NDArray[Any] = self._native._info[key].copy()
        return array


class ProcgenEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """One procgen game as an ordinary gymnasium environment.

    The settings, observations, rewards and infos are those of ``ProcgenVectorEnv`` for one sub-environment, without its
    automatic reset; its pitfall, a terminated episode's last observation, included.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 15,
    }

    def __init__(
        self, game: str, distribution_mode: str = "hard", *, render_mode: str | None = None, **options: Any
    ) -> None:
        self._vector = ProcgenVectorEnv(game, distribution_mode, num_envs=1, render_mode=render_mode, **options)
        self._ended = True
        self.render_mode = render_mode
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts a new episode; see ``ProcgenVectorEnv.reset``."""
        super().reset(seed=seed)
        frames, infos = self._vector.reset(seed=seed, options=options)
        self._ended = False
        return frames[0], _infos_of_first(infos)

    def step(self, action: int | np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Steps the game; see ``ProcgenVectorEnv.step``. After an end, ``reset`` must come first."""
        if self._ended:
            raise ResetNeeded("The episode has ended or not begun. Call reset().")
        frames, rewards, terminations, truncations, infos = self._vector.step(np.array([action]))
        terminated, truncated = bool(terminations[0]), bool(truncations[0])
        self._ended = terminated or truncated
        return frames[0], float(rewards[0]), terminated, truncated, _infos_of_first(infos)

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """The current frame, uint8 [512, 512, 3], in render_mode "rgb_array"; else None."""
        frames = self._vector.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Frees the native game. Calling it again does nothing."""
        self._ended = True
        self._vector.close()


def _infos_of_first(infos: dict[str, Any]) -> dict[str, Any]:
    return {key: values[0].item() for key, values in infos.items() if not key.startswith("_") and infos[f"_{key}"][0]}


def _import_procgen() -> Any:
    """The class of native games, imported without the banner of gym, in which procgen registers itself."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            from procgen import ProcgenGym3Env
    except ImportError as error:
        raise ImportError(
            f"Procgen's games need procgen, which cannot be imported ({error}). Install it with "
            "uv pip install 'rlhf-ray[procgen]'. It has wheels for Python 3.11 and 3.12 and needs the system libraries "
            "libgl1 and libglib2.0-0, which a bare container lacks."
        ) from error
    return ProcgenGym3Env


def _without_time_limit(states: list[bytes], game: str) -> tuple[int, list[bytes]]:
    """Lifts the time limit in saved states.

    Args:
        states: From procgen's ``get_state()``, one for each copy of the game.
        game: Its name, which the states must carry.

    Returns:
        The smallest time limit that was there, in steps, and the states with a limit of 2**30.

    Raises:
        RuntimeError: The states are not laid out as in procgen 0.10 (``Game::serialize`` in its game.cpp).
    """
    limits = []
    lifted = []
    for state in states:
        try:
            offset = _offset_of_time_limit(state, game)
            (limit,) = struct.unpack_from("<i", state, offset)
        except struct.error as error:
            raise RuntimeError(_UNKNOWN_LAYOUT) from error
        if limit <= 0:
            raise RuntimeError(_UNKNOWN_LAYOUT)
        limits.append(int(limit))
        lifted.append(state[:offset] + struct.pack("<i", _NO_TIME_LIMIT) + state[offset + 4 :])
    return min(limits), lifted


_UNKNOWN_LAYOUT = "procgen's saved state is not laid out as in version 0.10. Install procgen-mirror==0.10.7."


def _offset_of_time_limit(state: bytes, game: str) -> int:
    """Where the time limit stands in a saved state, in bytes.

    The layout is: version, name, 17 settings, two random generators (a flag and a text each), reward, done, level
    complete, action, time limit. Numbers are 4 bytes, little-endian; a text comes after its length.
    """
    version, name_length = struct.unpack_from("<ii", state, 0)
    offset = 8 + name_length
    if version != 0 or state[8:offset] != game.encode():
        raise RuntimeError(_UNKNOWN_LAYOUT)
    offset += 17 * 4
    for _ in range(2):
        seeded, text_length = struct.unpack_from("<ii", state, offset)
        if seeded not in (0, 1) or text_length < 0:
            raise RuntimeError(_UNKNOWN_LAYOUT)
        offset += 8 + text_length
    return int(offset + 4 * 4)
