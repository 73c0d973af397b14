"""Procgen's sixteen games (Cobbe et al. 2020, "Leveraging Procedural Generation") as gymnasium environments.

Procgen steps all its games in one native call, and within that call replaces the last frame of an ended episode with the first
frame of the next one ("same-step" autoreset). RLlib and our fragments need gymnasium's "next-step" autoreset: an episode ends with
its own last frame, and the next step, whose action is ignored, returns the first frame of the next episode. Two barely documented
features of procgen turn one into the other at native speed:

* Action -1 abandons the level and draws a new one. It is sent at every reset step, which resets some games while the others
  continue. After a level that procgen ended itself, procgen has already drawn another level, and -1 skips it unseen. This is
  harmless: levels are drawn independently, and a level depends only on its seed (in dodgeball also on the last movement direction
  before it, with or without this class: the agent initially faces that way).
* The time limit is part of a game's saved state. It is removed once, when the games are made, and enforced here instead. So a
  truncated episode ends with its true last frame, from which value estimates bootstrap.

A *terminated* episode (death, or level solved) has no last frame: procgen starts the next level before it draws. Such an episode
ends with a copy of the previous frame.
"""

import contextlib
import io
import platform
import sys
from typing import Any, TypedDict, Unpack

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rlhf_ray.data.by_pip import PROCGEN
from rlhf_ray.envs.first_of import FirstOf
from rlhf_ray.envs.procgen_state import without_time_limit

GAMES = (
    "bigfish",
    "bossfight",
    "caveflyer",
    "chaser",
    "climber",
    "coinrun",
    "dodgeball",
    "fruitbot",
    "heist",
    "jumper",
    "leaper",
    "maze",
    "miner",
    "ninja",
    "plunder",
    "starpilot",
)
_GAMES_WITH_MODE = {
    "easy": GAMES,
    "hard": GAMES,
    "extreme": ("chaser", "dodgeball", "leaper", "starpilot"),
    "memory": ("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"),
    "exploration": ("caveflyer", "climber", "coinrun", "heist", "jumper", "leaper", "maze", "ninja"),
}
_NUM_ACTIONS = 15
_RIGHT, _RIGHT_AND_UP = 7, 8
_FORCE_RESET = -1
_LIMIT_SET_BY_EVERY_LEVEL = ("jumper", "memory")
"""The one game and mode that sets its time limit (2000) again in every level: it is removed each time."""


class ProcgenOptions(TypedDict, total=False):
    """Procgen's own settings, with procgen's defaults."""

    center_agent: bool
    """Keep the agent in the centre of the image, where the game scrolls (default True)."""
    use_backgrounds: bool
    """Draw backgrounds instead of black (default True)."""
    use_monochrome_assets: bool
    """Draw plain rectangles instead of sprites (default False)."""
    restrict_themes: bool
    """Use one theme per kind of object (default False)."""
    use_generated_assets: bool
    """Use generated textures instead of drawn ones (default False)."""
    paint_vel_info: bool
    """Draw the agent's velocity in the corner, in games that support it (default False)."""
    use_sequential_levels: bool
    """Continue with the next level within the episode when one is solved (default False)."""
    debug_mode: int
    """The game's debug mode (default 0)."""


class ProcgenVectorEnv(VectorEnv[NDArray[np.uint8], NDArray[np.integer[Any]], NDArray[Any]]):
    """Copies of one procgen game, stepped together natively, with next-step autoreset.

    * Observations: uint8 [num_envs, 64, 64, 3]. Actions: integers [num_envs] in 0..14. Rewards: float32 [num_envs].
    * ``terminations``: the agent died or solved the level. Pitfall: the observation returned with it repeats the previous
      one, because procgen draws no last frame of a terminated episode (see the module). It is never a frame of the next
      level.
    * ``truncations``: the time limit was reached without termination; the observation is the true last frame.
    * ``infos`` (with gymnasium's masks ``_level_seed`` and ``_prev_level_complete``): ``level_seed``, int32: the
      episode's level, at its first and last observation; ``prev_level_complete``, bool: whether the level was solved, at
      the last one.

    With the same seed, sub-environment i plays the same levels regardless of the number of sub-environments.

    Args:
        game: one of `GAMES`.
        distribution_mode: "easy" (published runs: 25 M steps), "hard" (200 M steps), "extreme", "memory" or
            "exploration" (one hard level); ``modes_of(game)`` lists those the game has.
        num_envs: number of copies.
        start_level: seed of the first level. Requires ``num_levels`` above 0.
        num_levels: draw from the levels start_level .. start_level + num_levels - 1; 0 draws from 2**31 levels.
        max_episode_steps: truncate after this many steps; None uses the game's own limit (1000; 500 in leaper and maze,
            2000 in jumper-memory, 4000 in bossfight and plunder, 6000 in bigfish). May exceed the game's limit.
        render_mode: "rgb_array" makes ``render()`` return frames of 512x512 pixels, drawn at every step, which is about
            50 times slower; None draws only observations.
        num_threads: native threads; 0 uses the calling thread, which is fastest per CPU second.
        **options: see ``ProcgenOptions``.

    Raises:
        ValueError: a setting that would make procgen abort the process, or that it would silently ignore.
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
        self._native_class = import_procgen()
        self._native: Any = None  # made by reset(), which has the seed
        self._native_options: dict[str, Any] = {
            "num": num_envs,
            "env_name": game,
            "distribution_mode": distribution_mode,
            "num_threads": num_threads,
            "render_mode": render_mode,
            **options,
        }
        if distribution_mode != "exploration":  # this mode has one fixed level
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

        self._frames = np.zeros((num_envs, 64, 64, 3), np.uint8)  # a copy of the last observations returned
        self._large_frames = np.zeros((num_envs if render_mode else 0, 512, 512, 3), np.uint8)
        self._steps = np.zeros(num_envs, np.int64)  # in the current episode
        self._ended = np.zeros(num_envs, np.bool_)  # the episode has ended; the next step resets it
        self._level_seeds = np.zeros(num_envs, np.int32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start a new episode in all sub-environments.

        Args:
            seed: makes everything after it reproducible (recreates the games, about a millisecond each); None continues
                the current stream of levels.
            options: must not contain "reset_mask": procgen's games can only be stepped together, so resetting some of
                them is not supported.

        Returns:
            Observations, uint8 [num_envs, 64, 64, 3], and infos.
        """
        if options is not None and "reset_mask" in options:
            raise ValueError(
                "options['reset_mask'] is not supported by procgen, whose games step together. "
                "The next step resets ended episodes; remove reset_mask."
            )
        if self.closed:
            raise ResetNeeded("This procgen environment is closed; make a new one.")
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
        """Step every game, and reset those whose episode ended in the previous step.

        Args:
            actions: integers [num_envs] in 0..14; ignored where an episode is reset.

        Returns:
            Observations uint8 [num_envs, 64, 64, 3], rewards float32 [num_envs], terminations and truncations bool
            [num_envs], and infos. Where an episode is reset: its first observation, 0, False, False.

        Raises:
            ValueError: the actions have another shape, or are out of range.
            gymnasium.error.ResetNeeded: before the first reset, or after close.
        """
        if self._native is None:
            raise ResetNeeded("Call reset() before step(): reset() creates procgen's games.")
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
        if any_resetting:  # discard the results of action -1: a step of the skipped level, and its end
            rewards[resetting] = 0.0
            terminations[resetting] = False
            self._steps[resetting] = 0
        if self._levels_within_episode:  # procgen counts steps per level
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
        """Return the current frames, uint8 [512, 512, 3] each, in render_mode "rgb_array"; else None.

        At the end of a terminated episode, this repeats the previous frame, as observations do.
        """
        return tuple(self._large_frames.copy()) if self.render_mode == "rgb_array" else None

    def close_extras(self, **kwargs: Any) -> None:
        """Free the native games."""
        native, self._native = getattr(self, "_native", None), None
        if native is not None:
            native.close()

    def _make_native(self, rand_seed: int) -> None:
        self.close_extras()
        self._native = self._native_class(rand_seed=rand_seed, **self._native_options)
        own_limit = self._lift_time_limit()
        self._time_limit = self._max_episode_steps or own_limit

    def _lift_time_limit(self) -> int:
        """Remove procgen's time limit from all games; return the original one, in steps."""
        own_limit, states = without_time_limit(self._native.get_state(), self._native_options["env_name"])
        self._native.set_state(states)
        return own_limit

    def _checked(self, actions: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        """Copy the actions for procgen, after checking them: a -1 from the caller would reset a level unnoticed."""
        checked = np.array(actions, np.int32)
        if checked.shape != (self.num_envs,) or int(checked.min()) < 0 or int(checked.max()) >= _NUM_ACTIONS:
            raise ValueError(
                f"Actions of procgen are {actions!r}; they must be {self.num_envs} integers in 0..{_NUM_ACTIONS - 1}."
            )
        return checked

    def _keep_frames(self, frames: NDArray[np.uint8], new: NDArray[np.bool_]) -> None:
        """Keep a copy: the caller may modify the returned array, and an episode's end may need the frame again."""
        np.copyto(self._frames, frames)
        if self.render_mode is not None:
            self._large_frames[new] = self._native_info("rgb")[new]

    def _infos(self, resetting: NDArray[np.bool_], terminations: NDArray[np.bool_]) -> dict[str, Any]:
        # At a termination, procgen's seed is already that of the next level.
        self._level_seeds = np.where(terminations, self._level_seeds, self._native_info("level_seed"))
        infos: dict[str, Any] = {"level_seed": self._level_seeds.copy(), "_level_seed": self._ended | resetting}
        if self._ended.any():
            infos["prev_level_complete"] = (self._native_info("prev_level_complete") != 0) & self._ended
            infos["_prev_level_complete"] = self._ended.copy()
        return infos

    def _native_info(self, key: str) -> NDArray[Any]:
        """Copy procgen's array of this name.

        Its own ``get_info()`` builds a dictionary per game and draws the large frames again. gym3 is archived, so this private
        array won't move.
        """
        array: NDArray[Any] = self._native._info[key].copy()
        return array


class ProcgenEnv(FirstOf):
    """One procgen game as an ordinary gymnasium environment.

    Settings, observations, rewards and infos are those of ``ProcgenVectorEnv`` for one sub-environment, without autoreset. The
    last observation of a terminated episode is a copy here too. CoinRun has a scripted player, ``expert(rng)``.
    """

    def __init__(
        self, game: str, distribution_mode: str = "hard", *, render_mode: str | None = None, **options: Any
    ) -> None:
        super().__init__(ProcgenVectorEnv(game, distribution_mode, num_envs=1, render_mode=render_mode, **options))
        if game == "coinrun":
            self.expert = _runs_and_jumps


def _runs_and_jumps(rng: np.random.Generator) -> np.int64:
    """Run right and mostly jump: the coin in 67 % of CoinRun's easy levels, within 57 steps. Random actions: 27 %, within 607."""
    return np.int64(_RIGHT_AND_UP if rng.random() < 0.7 else _RIGHT)


def modes_of(game: str) -> list[str]:
    """Return the distribution modes of a game; empty for an unknown game."""
    return [mode for mode, games in _GAMES_WITH_MODE.items() if game in games]


def check_settings(game: str, mode: str, start_level: int, num_levels: int, options: dict[str, object]) -> None:
    """Raise ValueError for settings that procgen would answer with abort(), an assertion, or silence."""
    if game not in GAMES:
        raise ValueError(f"game of procgen is {game!r}; it must be one of {', '.join(GAMES)}.")
    if mode not in modes_of(game):
        raise ValueError(f"distribution_mode of procgen is {mode!r}; {game} has {', '.join(modes_of(game))}.")
    if unknown := options.keys() - ProcgenOptions.__annotations__.keys():
        raise ValueError(
            f"procgen has no option {', '.join(sorted(unknown))}. Its options are start_level, num_levels, "
            f"max_episode_steps, render_mode, {', '.join(ProcgenOptions.__annotations__)}; and num_threads if vectorised."
        )
    if mode == "exploration" and (start_level, num_levels) != (0, 0):
        raise ValueError(
            f"start_level={start_level}, num_levels={num_levels} of procgen: the mode 'exploration' has one fixed level. "
            "Leave both at 0, or choose another mode."
        )
    if start_level < 0 or num_levels < 0 or start_level + num_levels >= 2**31:
        raise ValueError(
            f"start_level={start_level}, num_levels={num_levels} of procgen: neither may be negative, and their sum "
            "must be below 2**31."
        )
    if start_level > 0 and num_levels == 0:
        raise ValueError(
            f"start_level={start_level} with num_levels=0 of procgen: procgen would ignore start_level and draw from "
            "all levels. Set num_levels above 0, or start_level to 0."
        )


def import_procgen() -> Any:
    """Import the class of native games, without the banner of gym, which procgen imports."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            from procgen import ProcgenGym3Env
    except ImportError as error:
        if sys.version_info >= (3, 13):
            raise ImportError(
                f"procgen's games have no build for Python {platform.python_version()}: use Python 3.11 or 3.12, in a checkout by "
                "`make setup PYTHON=python3.12`."
            ) from error
        raise ImportError(
            f"Can't import procgen, which its games need ({error}). It has wheels for Linux on x86-64 and needs the system "
            f"libraries libgl1 and libglib2.0-0, which minimal containers lack. In a checkout `make setup` installs it, "
            f"elsewhere: {PROCGEN}"
        ) from error
    return ProcgenGym3Env
