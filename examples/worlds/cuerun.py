"""CueRun: a cue at the start tells whether to jump the gates to come. After two steps it lives in the agent's memory alone."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray

from . import runner
from .level_envs import LevelEnv, LevelVectorEnv
from .levels import LevelBatch

REWARD = 10.0
LENGTH = 14
CUE_STEPS = 2
"""Observations that show the cue."""
NEAR = 3
"""Cells ahead that gate_ahead looks at."""

_NOOP, _RIGHT, _JUMP_RIGHT = range(3)
_DX = np.array([0, 1, 1])
_GATE, _GOAL, _RED, _BLUE = range(4, 8)
_FIRST, _LATER, _WON = range(1, 4)


class CueRunBatch(LevelBatch):
    """Copies of CueRun; registered as ``rlhf_ray/CueRun-v0``.

    The sky is red or blue in the first two observations. Red: the agent must be in the air when it passes a gate. Blue: on the
    ground. The two gates of a level are grey and look alike for both. Jumps are MiniRun's.

    * Actions: 0 noop, 1 right, 2 jump_right.
    * Reward: 10 at the yellow goal, which ends the episode, as does a gate passed wrongly, for nothing. Limit: 40 steps.
    * An agent that doesn't know the cue passes the first gate half the time. It can do worse over both gates, so ends at the first
      gate have a cause of their own.

    Args:
        n: number of copies.
        max_episode_steps: time limit.
    """

    name = "rlhf_ray/CueRun-v0"
    action_names = ("noop", "right", "jump_right")
    causes = ("first_gate", "later_gate", "goal")
    edits = {  # noqa: RUF012
        "flip_cue": "Exchanges red and blue: the truth, and the picture while it shows the cue.",
        "hide_cue": "Hides the cue from the picture; the truth stays.",
        "remove_gate": "Removes the nearest gate in view ahead of the agent.",
    }
    kinds = runner.COLOURS | {
        "gate": (((150, 150, 150), (120, 120, 120)), ((120, 120, 120), (150, 150, 150))),
        "goal": (250, 210, 30),
        "red": (220, 40, 40),
        "blue": (30, 50, 230),
    }

    def __init__(self, n: int, max_episode_steps: int = 40):
        fields = [("x", "<i2"), ("phase", "i1"), ("red", "?"), ("hidden", "?"), ("gates", "?", (LENGTH,))]
        super().__init__(n, fields, 3, max_episode_steps)

    def draw(self, state: Array, random: FloatArray) -> None:
        """Draw the cue, a gate in the cells 4 to 6, and one in the cells 9 to 11."""
        state["red"] = random[:, 0] < 0.5
        rows = np.arange(len(state))
        for first, numbers in ((4, random[:, 1]), (9, random[:, 2])):
            state["gates"][rows, first + (3 * numbers).astype(int)] = True

    def act(self, state: Array, actions: IntArray) -> tuple[FloatArray, IntArray]:
        """Move; see `LevelBatch.act`."""
        heights = runner.move(state, _DX[actions], actions == _JUMP_RIGHT, LENGTH)
        rows, x = np.arange(len(state)), state["x"]
        wrong = state["gates"][rows, x] & ((heights > 0) != state["red"])
        won = x == LENGTH - 1
        ends = np.where(won, _WON, np.where(wrong, np.where(_passed(state) > 0, _LATER, _FIRST), 0))
        return REWARD * won, ends

    def codes(self, state: Array) -> IntArray:
        """See `LevelBatch.codes`. Gates and goal are columns; the agent hides a part of them."""
        seen, inside = runner.columns(state, LENGTH)
        codes = runner.scene(state, inside)
        sky = codes[:, : runner.STANDING + 1]
        shown = _shows_cue(state)
        colour = np.where(state["red"], _RED, _BLUE)
        sky[:] = np.where(shown[:, None, None] & (sky == runner.SKY), colour[:, None, None], sky)
        gates = state["gates"][np.arange(len(state))[:, None], seen] & inside
        for row in range(runner.STANDING - 2, runner.STANDING + 1):
            sky[:, row] = np.where(gates, _GATE, np.where((seen == LENGTH - 1) & inside, _GOAL, sky[:, row]))
        runner.put_agent(codes, runner.HEIGHTS[state["phase"]])
        return codes

    def concepts(self, state: Array) -> dict[str, Array]:
        """Return what is known about each copy.

        ``cue``: the truth, 1 red, 0 blue. ``cue_visible``: whether the picture shows it. ``gate_ahead``: whether a gate is in the
        next three cells. ``gate_distance``: cells to the next gate; NaN without one. ``gates_passed``: a count. ``jump_phase``,
        ``height``, ``x``: as in MiniRun.
        """
        next_gate = runner.ahead(state["gates"], state, LENGTH)
        distance = np.where(next_gate < 0, np.nan, next_gate - state["x"].astype(float)).astype(np.float32)
        return {
            "cue": state["red"].astype(np.float32),
            "cue_visible": _shows_cue(state),
            "gate_ahead": distance <= NEAR,
            "gate_distance": distance,
            "gates_passed": _passed(state).astype(np.float32),
            "jump_phase": state["phase"].astype(np.float32),
            "height": runner.HEIGHTS[state["phase"]].astype(np.float32),
            "x": state["x"].astype(np.float32),
        }

    def plan(self, state: Array) -> BoolArray:
        """Return the actions on a shortest right way to the goal."""
        goals = np.zeros((len(state), LENGTH, runner.JUMPS), bool)
        goals[:, LENGTH - 1] = True
        flying = np.arange(runner.JUMPS) > 0
        deadly = state["gates"][:, :, None] & (flying != state["red"][:, None])[:, None]
        return runner.plan(state, goals, deadly, _DX, np.arange(len(_DX)) == _JUMP_RIGHT)

    def _edit_flip_cue(self, state: Array) -> None:
        state["red"] = ~state["red"]

    def _edit_hide_cue(self, state: Array) -> None:
        state["hidden"] = True

    def _edit_remove_gate(self, state: Array) -> None:
        cells = runner.ahead(state["gates"], state, runner.AHEAD)
        rows = np.flatnonzero(cells >= 0)
        state["gates"][rows, cells[rows]] = False


def _shows_cue(state: Array) -> BoolArray:
    shown: BoolArray = (state["step"] < CUE_STEPS) & ~state["hidden"]
    return shown


def _passed(state: Array) -> IntArray:
    """Count the gates behind the agents, ``[n]``."""
    behind: IntArray = (state["gates"] & (np.arange(LENGTH) < state["x"][:, None])).sum(1)
    return behind


class CueRun(LevelEnv):
    """One CueRun; see `CueRunBatch`."""

    batch_class = CueRunBatch


class CueRunVectorEnv(LevelVectorEnv):
    """Copies of CueRun with next-step autoreset; see `CueRunBatch`."""

    batch_class = CueRunBatch
