"""A tiny environment whose rules are known, and agents that follow them for a known reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.envs.batch import BatchStep

STEPS, BACK = 14, 6
"""Steps of an episode; steps that lamps are remembered."""
SIZE = 2 * BACK + 1
"""Memory of `remember`: lamp A now, 1, … 5 steps ago, then lamp B, then the steps."""
A5, A2, B3, CLOCK = 5, 2, BACK + 3, 2 * BACK

OBSERVED = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTED = gym.spaces.Discrete(2)


class Lamps:
    """Two lamps are on or off at random. Observations: lamp A, lamp B, and the last action's echo; each -1 or 1.

    Each step in which the action is what ``rule`` says is worth 1: "a5", lamp A was on 5 steps ago; "both", lamp A was on 2 steps
    ago and lamp B 3 steps ago; "late", from step 7 on; "a", lamp A is on; "echo", the last action was 0.
    """

    def __init__(self, n: int, rule: str = "a"):
        self.name, self.n, self.rule = "Lamps", n, rule
        self.observation_space, self.action_space = OBSERVED, ACTED
        self.action_names = ["off", "on"]
        self.edits = {"flip_a": "switches lamp A", "flip_b": "switches lamp B", "flip_echo": "forges the echo"}
        self.fields = [("lamps", "i1", (2, STEPS + BACK + 1)), ("step", "<i4"), ("echo", "i1")]

    def reset(self, levels: Sequence[int]) -> Array:
        self.state = np.zeros(self.n, self.fields)
        for row, level in enumerate(levels):
            drawn = np.random.default_rng(level).integers(2, size=(2, STEPS + 1))
            self.state["lamps"][row, :, BACK:] = 2 * drawn - 1
        self.state["echo"] = -1
        return self._seen()

    def ago(self, lamp: int, steps: int) -> Array:
        at = np.minimum(self.state["step"], STEPS) + BACK - steps
        return self.state["lamps"][np.arange(self.n), lamp, at]

    def wanted(self) -> BoolArray:
        if self.rule == "a5":
            return self.ago(0, 5) > 0
        if self.rule == "both":
            return (self.ago(0, 2) > 0) & (self.ago(1, 3) > 0)
        if self.rule == "late":
            return self.state["step"] >= 7
        return self.state["echo"] < 0 if self.rule == "echo" else self.ago(0, 0) > 0

    def step(self, actions: Array) -> BatchStep:
        going = self.state["step"] < STEPS
        rewards = np.where(going & (actions == self.wanted()), 1.0, 0.0)
        self.state["echo"] = np.where(going, 2 * np.asarray(actions) - 1, self.state["echo"])
        self.state["step"] += going
        over = self.state["step"] >= STEPS
        return BatchStep(self._seen(), rewards, np.zeros(self.n, bool), over, ["timeout" if o else "" for o in over])

    def states(self) -> list[bytes]:
        return [row.tobytes() for row in self.state]

    def restore(self, states: Sequence[bytes]) -> Array:
        self.state = np.frombuffer(b"".join(states), self.fields).copy()
        return self._seen()

    def describe(self) -> dict[str, Array]:
        told = {f"a{back}": self.ago(0, back) > 0 for back in (0, 2, 5)}
        return told | {f"b{back}": self.ago(1, back) > 0 for back in (0, 3, 5)}

    def masks(self) -> dict[str, BoolArray]:
        return {}

    def edit(self, name: str, rows: BoolArray | None = None) -> Array:
        at = np.flatnonzero(np.ones(self.n, bool) if rows is None else rows)
        if name == "flip_echo":
            self.state["echo"][at] *= -1
        else:
            self.state["lamps"][at, int(name == "flip_b"), np.minimum(self.state["step"][at], STEPS) + BACK] *= -1
        return self._seen()

    def close(self) -> None:
        pass

    def _seen(self) -> Array:
        return np.stack([self.ago(0, 0), self.ago(1, 0), self.state["echo"]], 1).astype(np.float32)


def remember(seen: Tensor, memory: Tensor) -> Tensor:
    """Shift both lamps' pasts by a step, and count."""
    a, b, clock = memory[:, :BACK], memory[:, BACK : 2 * BACK], memory[:, CLOCK:]
    return torch.cat([seen[:, :1], a[:, :-1], seen[:, 1:2], b[:, :-1], clock + 1.0 / STEPS], 1)


def planted(drive: Callable[[Tensor, Tensor], Tensor], name: str, worth: int = BACK) -> FunctionAgent:
    """An agent with `remember` that switches on where ``drive`` (seen, memory) is positive; its value is memory ``worth``."""
    return FunctionAgent(
        lambda seen, memory: (torch.stack([-drive(seen, memory), drive(seen, memory)], 1), memory[:, worth]),
        OBSERVED, ACTED, remember=remember, memory_size=SIZE, name=name,
    )  # fmt: skip


AGENTS = {
    "a5": planted(lambda seen, memory: memory[:, A5], "a5"),
    "both": planted(lambda seen, memory: memory[:, A2] + memory[:, B3] - 1.0, "both"),
    "late": planted(lambda seen, memory: 4.0 * (memory[:, CLOCK] - 7.5 / STEPS), "late"),
    "a": planted(lambda seen, memory: seen[:, 0], "a"),
    "echo": planted(lambda seen, memory: -seen[:, 2], "echo"),
}
"""By the rule that each follows."""
