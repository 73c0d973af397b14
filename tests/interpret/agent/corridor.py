"""A tiny environment for tests: walk along a corridor to its end, past a trap that a button, seen at the start, opens or not."""

from __future__ import annotations

import json
from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.envs.batch import BatchStep

LIMIT = 12


class Corridors:
    """Copies of a corridor of 3 to 6 cells. Actions: stay, walk, leap two cells. The trap, in cell 2, ends the episode.

    Observations are ``[position / 8, length / 8, trap visible]``; the trap is seen at the first step only. With ``box``, an action
    is a number from 0 to 2, which is rounded.
    """

    def __init__(self, n: int, box: bool = False):
        self.name, self.n = "Corridor", n
        self.observation_space = gym.spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space: gym.Space = gym.spaces.Box(0.0, 2.0, (1,), np.float32) if box else gym.spaces.Discrete(3)
        self.action_names = ["stay", "walk", "leap"]
        self.edits = {"remove_trap": "takes the trap away", "shorten": "makes the corridor a cell shorter"}
        self.restored = 0

    def reset(self, levels: Sequence[int]) -> Array:
        rng = [np.random.default_rng(level) for level in levels]
        self._copies = [
            {"at": 0, "length": int(r.integers(3, 7)), "trap": bool(r.integers(2)), "step": 0, "cause": ""} for r in rng
        ]
        return self._observations()

    def step(self, actions: Array) -> BatchStep:
        rewards = np.zeros(self.n)
        for row, (copy, action) in enumerate(zip(self._copies, np.asarray(actions).reshape(self.n), strict=True)):
            if copy["cause"]:
                continue
            copy["at"] += round(float(action))
            copy["step"] += 1
            if copy["trap"] and copy["at"] == 2:
                copy["cause"] = "trap"
            elif copy["at"] >= copy["length"]:
                copy["cause"], rewards[row] = "end", 1.0
            elif copy["step"] == LIMIT:
                copy["cause"] = "timeout"
        causes = [copy["cause"] for copy in self._copies]
        ended = np.array([cause in ("trap", "end") for cause in causes])
        return BatchStep(self._observations(), rewards, ended, np.array([c == "timeout" for c in causes]), causes)

    def states(self) -> list[bytes]:
        return [json.dumps(copy).encode() for copy in self._copies]

    def restore(self, states: Sequence[bytes]) -> Array:
        self._copies = [json.loads(state) for state in states]
        self.restored += 1
        return self._observations()

    def describe(self) -> dict[str, Array]:
        return {
            "position": np.array([copy["at"] for copy in self._copies]),
            "trap": np.array([copy["trap"] for copy in self._copies]),
        }

    def masks(self) -> dict[str, BoolArray]:
        return {}

    def edit(self, name: str, rows: BoolArray | None = None) -> Array:
        for row, copy in enumerate(self._copies):
            if rows is None or rows[row]:
                if name == "remove_trap":
                    copy["trap"] = False
                else:
                    copy["length"] = max(copy["length"] - 1, 1)
        return self._observations()

    def close(self) -> None:
        pass

    def _observations(self) -> Array:
        return np.array(
            [[c["at"] / 8, c["length"] / 8, float(c["trap"] and c["step"] == 0)] for c in self._copies], np.float32
        )
