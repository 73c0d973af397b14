"""ProcgenBatch: copies of a procgen game that tools can question, as an `EnvBatch`.

A level is played by writing its seed into a saved state and drawing the next level: as fast as procgen's own reset. After each step
the state of each copy is saved (0.4 ms each), because procgen starts the next level before anyone could ask how the last one ended.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from gymnasium import spaces

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import coinrun_levels
from rlhf_ray.envs.batch import BatchStep
from rlhf_ray.envs.procgen import ProcgenOptions, check_settings, import_procgen
from rlhf_ray.envs.procgen_state import GameState, with_level, without_time_limit

_FORCE_RESET, _STAND = -1, 4
ACTION_NAMES = (
    *("left-down", "left", "left-up", "down", "none", "up", "right-down", "right", "right-up"),
    *("D", "A", "W", "S", "Q", "E"),
)


class ProcgenBatch:
    """Copies of a procgen game. See `EnvBatch`.

    A level is the seed of a level of this game and mode. Every copy starts from the same state, so an episode depends on its level
    and actions only. As in `ProcgenVectorEnv`, the last observation of a terminated episode repeats the one before. ``describe()``
    says where the agent is; in coinrun, also where coin, saws, enemies and lava are, and coinrun has edits and masks.

    Args:
        name: ``procgen/GAME-MODE``.
        n: number of copies.
        max_episode_steps: truncate after this many steps; None: the game's own limit.
        **options: see `ProcgenOptions`.

    Raises:
        SettingError: an option that has no meaning here.
    """

    def __init__(self, name: str, n: int, *, max_episode_steps: int | None = None, **options: Unpack[ProcgenOptions]):
        self.game, _, mode = name.removeprefix("procgen/").rpartition("-")
        check_settings(self.game, mode, 0, 0, dict(options))
        if n < 1 or (max_episode_steps is not None and max_episode_steps < 1):
            raise SettingError(f"{name} has n={n}, max_episode_steps={max_episode_steps}; both must be 1 or more.")
        if mode == "exploration" or options.get("use_sequential_levels"):
            raise SettingError(
                f"{name} can't play a given level: the mode exploration and use_sequential_levels choose levels themselves. Use "
                "another mode."
            )
        self.name, self.n = name, n
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space: spaces.Space[Any] = spaces.Discrete(len(ACTION_NAMES))
        self.action_names: Sequence[str] = ACTION_NAMES
        self.edits: Mapping[str, str] = coinrun_levels.EDITS if self.game == "coinrun" else {}
        self._native: Any = import_procgen()(
            num=n, env_name=self.game, distribution_mode=mode, num_threads=0, rand_seed=0, **options
        )
        self._native.observe()
        self._template = self._native.get_state()[0]
        self._limit = max_episode_steps
        self._limits = np.zeros(n, np.int64)
        self._steps = np.zeros(n, np.int64)
        self._frames = np.zeros((n, 64, 64, 3), np.uint8)
        self._terminated, self._truncated = np.zeros(n, bool), np.zeros(n, bool)
        self._causes = [""] * n
        self._saved: list[bytes] = [self._template] * n
        """Native state of each copy: after its last step, or before it if that terminated the episode."""
        self._parsed: dict[int, GameState] = {}

    def reset(self, levels: Sequence[int]) -> Array:
        """See `EnvBatch.reset`. A level is in 0 … 2**31 - 2."""
        assert len(levels) == self.n, (len(levels), self.n)
        if bad := [level for level in levels if not 0 <= level < 2**31 - 1]:
            raise SettingError(f"level {bad[0]} of {self.name}: it must be from 0 to 2**31 - 2.")
        self._native.set_state([with_level(self._template, int(level)) for level in levels])
        self._native.act(np.full(self.n, _FORCE_RESET, np.int32))
        self._native.observe()
        own_limit, states = without_time_limit(self._native.get_state(), self.game)
        self._limits[:] = self._limit or own_limit
        self._steps[:] = 0
        self._terminated[:] = self._truncated[:] = False
        self._causes = [""] * self.n
        return self._set(states)

    def step(self, actions: Array) -> BatchStep:
        """See `EnvBatch.step`."""
        over = self._terminated | self._truncated
        chosen = np.where(over, _STAND, np.asarray(actions)).astype(np.int32)
        if chosen.min() < 0 or chosen.max() >= len(ACTION_NAMES):
            raise SettingError(
                f"actions of {self.name} are {chosen.tolist()}; they must be from 0 to {len(ACTION_NAMES) - 1}."
            )
        self._native.act(chosen)
        rewards, observation, done = self._native.observe()
        self._steps += ~over
        ending = np.asarray(done, bool) & ~over
        solved = self._native._info["prev_level_complete"] != 0
        for i in np.flatnonzero(ending):
            self._causes[i] = self._cause_of_end(int(i), bool(solved[i]))
        self._terminated |= ending
        timeout = (self._steps >= self._limits) & ~over & ~ending
        for i in np.flatnonzero(timeout):
            self._causes[i] = "timeout"
        self._truncated |= timeout
        moved = ~(over | ending)
        self._frames[moved] = observation["rgb"][moved]
        states = self._native.get_state()
        self._saved = [states[i] if moved[i] else self._saved[i] for i in range(self.n)]
        self._parsed = {i: parsed for i, parsed in self._parsed.items() if not moved[i]}
        true = np.where(over, 0.0, rewards).astype(np.float64)
        return BatchStep(self._frames.copy(), true, self._terminated.copy(), self._truncated.copy(), list(self._causes))

    def states(self) -> list[bytes]:
        """See `EnvBatch.states`."""
        blobs = []
        for i, state in enumerate(self._saved):
            about = json.dumps(
                {
                    "steps": int(self._steps[i]),
                    "limit": int(self._limits[i]),
                    "ended": [bool(self._terminated[i]), bool(self._truncated[i]), self._causes[i]],
                }
            ).encode()
            blobs.append(struct.pack("<i", len(about)) + about + state)
        return blobs

    def restore(self, states: Sequence[bytes]) -> Array:
        """See `EnvBatch.restore`."""
        assert len(states) == self.n, (len(states), self.n)
        native = []
        for i, blob in enumerate(states):
            end = 4 + struct.unpack_from("<i", blob)[0]
            about = json.loads(blob[4:end])
            self._steps[i], self._limits[i] = about["steps"], about["limit"]
            self._terminated[i], self._truncated[i], self._causes[i] = about["ended"]
            native.append(blob[end:])
        return self._set(native)

    def describe(self) -> dict[str, Array]:
        """See `EnvBatch.describe`. Positions in cells, y upwards; after a termination, as before the last step."""
        facts = [self._describe(self._state(i)) for i in range(self.n)]
        return {name: np.array([fact[name] for fact in facts], np.float32) for name in facts[0]}

    def masks(self) -> dict[str, BoolArray]:
        """See `EnvBatch.masks`: in coinrun, the rectangles of coin, saws, enemies, crates and lava; else unknown."""
        if self.game != "coinrun":
            return {}
        masks = [coinrun_levels.masks(self._state(i)) for i in range(self.n)]
        return {name: np.stack([mask[name] for mask in masks]) for name in masks[0]}

    def edit(self, name: str, rows: BoolArray | None = None) -> Array:
        """See `EnvBatch.edit`.

        Raises:
            SettingError: the game has no such edit.
        """
        if name not in self.edits:
            which = f"choose from {', '.join(self.edits)}" if self.edits else "of procgen's games, coinrun has edits"
            raise SettingError(f"{self.name} has no edit {name!r}; {which}.")
        chosen = ~(self._terminated | self._truncated) & (True if rows is None else rows)
        states = [
            coinrun_levels.edit(self._state(i), name) if chosen[i] else state for i, state in enumerate(self._saved)
        ]
        return self._set(states)

    def close(self) -> None:
        """See `EnvBatch.close`."""
        self._native.close()

    def _set(self, states: list[bytes]) -> Array:
        self._native.set_state(states)
        self._saved, self._parsed = states, {}
        self._frames[:] = self._native.observe()[1]["rgb"]
        return self._frames.copy()

    def _state(self, i: int) -> GameState:
        if i not in self._parsed:
            self._parsed[i] = GameState.parse(self._saved[i])
        return self._parsed[i]

    def _describe(self, state: GameState) -> dict[str, float]:
        agent = state.agent
        facts = {f"agent_{name}": float(agent[name]) for name in ("x", "y", "vx", "vy")} | {"time": float(state.time)}
        return facts | (coinrun_levels.describe(state) if self.game == "coinrun" else {})

    def _cause_of_end(self, i: int, solved: bool) -> str:
        if self.game == "coinrun":
            return "coin" if solved else coinrun_levels.danger(self._state(i))
        return "solved" if solved else "died"
