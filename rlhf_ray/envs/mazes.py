"""Mazes: small tabular worlds whose reward is known with any potential shaping."""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.formula import Formula, Shaping, checked_option
from rlhf_ray.envs.gridworld import GridStates
from rlhf_ray.reward.functions import TableReward

MOVES = ((0, 0), (-1, 0), (0, 1), (1, 0), (0, -1))
"""(rows, columns) of the actions: 0 stay, 1 up, 2 right, 3 down, 4 left."""

OFF_PATH = -0.4
"""Reward of a state beside the path."""

MazeReward: TypeAlias = Literal["goal", "path"]


class Maze(gymnasium.Env[int, np.int64]):
    """An agent on a grid without walls, which must stay at the goal: the mazes of Jenner and Gleave (2022), with exact shapings.

    Registered as ``rlhf_ray/EmptyMaze4-v0`` (8 steps), ``EmptyMaze10-v0`` (20), ``KeyMaze6-v0`` (20) and ``KeyMaze10-v0`` (30).
    Never terminates.

    * Observation: Discrete: ``row * size + column``, plus ``size ** 2`` if the agent holds the key.
    * Action: Discrete(5): 0 stay, 1 up, 2 right, 3 down, 4 left. The edge stops the agent.
    * Reward, of the state *before* the step: 1 at the goal, the cell (size - 2, size - 2), in a key maze only with the key, which
      lies at (1, 1); with ``reward="path"``, also -0.4 beside the staircase (i, i), (i, i + 1). Plus potential shaping.
    * Start: a random cell without goal or key.

    Args:
        size: side in cells, at least 4.
        key: whether there is a key.
        reward: goal or path.
        shaping: none; dense, a potential of minus the number of steps left to the goal; antidense, plus that; random, in [-1, 1]
            for each state.
        gamma: discount of the shaping.
        shaping_seed: draws the random potential.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        size: int = 10,
        key: bool = False,
        reward: MazeReward = "goal",
        shaping: Shaping = "none",
        gamma: float = 0.99,
        shaping_seed: int = 0,
        render_mode: None = None,
    ) -> None:
        if size < 4:
            raise SettingError(f"size of Maze is {size}; it must be at least 4.")
        checked_option("reward", reward, MazeReward, "Maze")
        checked_option("shaping", shaping, Shaping, "Maze")
        self.size, self.key, self.grid = size, key, (size, size)
        self.goal_at, self.key_at = (size - 2, size - 2), (1, 1)
        self.states = size * size * (2 if key else 1)
        held, cell = np.divmod(np.arange(self.states), size**2)
        self._rows, self._columns = np.divmod(cell, size)
        self._held: BoolArray = held > 0
        self.observation_space = spaces.Discrete(self.states)
        self.action_space = spaces.Discrete(len(MOVES))
        rewards, potential = self._rewards(reward), self._potential(shaping, shaping_seed)
        self.formula = Formula(
            reward if shaping == "none" else f"{reward}, {shaping} shaping",
            lambda states, actions, next_states: rewards[states],
            None if potential is None else lambda states: potential[states],
            gamma,
            ("state",),
        )
        self._state = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Put the agent at a random cell without goal or key."""
        super().reset(seed=seed, options=options)
        starts = np.flatnonzero(self._starts())
        self._state = int(starts[self.np_random.integers(len(starts))])
        return self._state, {}

    def step(self, action: int | np.int64) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Move the agent. Never terminates."""
        if not 0 <= action < len(MOVES):
            raise ValueError(f"The action of Maze is {action}; it must be 0 to {len(MOVES) - 1}.")
        before, self._state = self._state, int(self.next_states[self._state, action])
        return self._state, self.formula.step(before, action, self._state, False), False, False, {}

    @functools.cached_property
    def next_states(self) -> IntArray:
        """The state that each action leads to, ``[states, actions]``."""
        moves = np.array(MOVES)
        row = np.clip(self._rows[:, None] + moves[:, 0], 0, self.size - 1)
        column = np.clip(self._columns[:, None] + moves[:, 1], 0, self.size - 1)
        takes = (row == self.key_at[0]) & (column == self.key_at[1]) & self.key
        next_states: IntArray = row * self.size + column + (self._held[:, None] | takes) * self.size**2
        return next_states

    def expert(self, rng: np.random.Generator) -> int:
        """Return an action of an optimal policy for the reward without shaping; ties are random."""
        values = self._action_values[self._state]
        return int(rng.choice(np.flatnonzero(values >= values.max() - 1e-9)))

    def describe(self) -> dict[str, float]:
        """Return the agent's place, whether it holds the key, and the steps left to the goal."""
        of = {
            "agent_row": self._rows,
            "agent_column": self._columns,
            "has_key": self._held,
            "distance": self._steps_left(),
        }
        return {name: float(values[self._state]) for name, values in of.items()}

    def ground_truth(self) -> TableReward:
        """Return the reward as a table over all states, actions and next states."""
        return TableReward(self._reward_table(), name=self.formula.name)

    def state_observations(self) -> IntArray:
        """Return the observation of each state of `mdp_tables`: its number."""
        return np.arange(self.states)

    def grid_states(self) -> GridStates:
        """Return each state and where each move leads."""
        goal = {"G": [self.goal_at]}
        return GridStates(
            grid=self.grid,
            layers=("without key", "with key") if self.key else ("",),
            layer=self._held.astype(np.int64),
            rows=self._rows,
            columns=self._columns,
            observations=self.state_observations(),
            next_states=self.next_states,
            moves=MOVES,
            terminal=np.zeros(self.states, bool),
            walls=np.zeros(self.grid, bool),
            marks=(goal | {"K": [self.key_at]}, goal) if self.key else (goal,),
        )

    def mdp_tables(self) -> tuple[FloatArray, FloatArray, FloatArray, BoolArray]:
        """Return this maze as a table: ``P [S, A, S]``, ``R [S, A, S]`` with the shaping, initial ``[S]``, terminal ``[S]``."""
        probabilities = np.zeros((self.states, len(MOVES), self.states))
        np.put_along_axis(probabilities, self.next_states[:, :, None], 1.0, 2)
        start = self._starts()
        return probabilities, self._reward_table(), start / start.sum(), np.zeros(self.states, bool)

    def _reward_table(self) -> FloatArray:
        before, after = np.divmod(np.arange(self.states**2), self.states)
        rewards = self.formula(before, None, after, np.zeros(len(before), bool))
        square = np.asarray(rewards, np.float64).reshape(self.states, self.states)
        return np.repeat(square[:, None], len(MOVES), 1)

    def _starts(self) -> BoolArray:
        return ~self._at(self.goal_at) & ~(self._at(self.key_at) & self.key) & ~self._held

    def _at(self, cell: tuple[int, int]) -> BoolArray:
        """In which states the agent is at ``cell``, ``[states]``."""
        at: BoolArray = (self._rows == cell[0]) & (self._columns == cell[1])
        return at

    def _rewards(self, reward: str) -> FloatArray:
        """The reward of each state, ``[states]``."""
        beside = (self._columns != self._rows) & (self._columns != self._rows + 1)
        rewards = np.where(beside, OFF_PATH, 0.0) if reward == "path" else np.zeros(self.states)
        rewards[self._at(self.goal_at) & (self._held if self.key else True)] = 1.0
        return rewards

    def _steps_left(self) -> FloatArray:
        """Steps from each state to the goal, via the key in a key maze, ``[states]``."""

        def to(cell: tuple[int, int]) -> IntArray:
            steps: IntArray = np.abs(self._rows - cell[0]) + np.abs(self._columns - cell[1])
            return steps

        if not self.key:
            return to(self.goal_at).astype(np.float64)
        between = sum(abs(a - b) for a, b in zip(self.key_at, self.goal_at, strict=True))
        return np.where(self._held, to(self.goal_at), to(self.key_at) + between).astype(np.float64)

    def _potential(self, shaping: str, seed: int) -> FloatArray | None:
        if shaping == "none":
            return None
        if shaping == "random":
            return np.random.default_rng(seed).uniform(-1.0, 1.0, self.states)
        return -self._steps_left() if shaping == "dense" else self._steps_left()

    @functools.cached_property
    def _action_values(self) -> FloatArray:
        """Optimal action values of the reward without shaping at gamma 0.99, ``[states, actions]``."""
        rewards = self.formula.base(np.arange(self.states), None, None)[:, None]
        values = np.zeros(self.states)
        for _ in range(2000):
            values = (rewards + 0.99 * values[self.next_states]).max(1)
        action_values: FloatArray = rewards + 0.99 * values[self.next_states]
        return action_values
