"""GridWorld: an agent among goals, walls and a key on a grid of object codes. A family of levels and a level editor."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from gymnasium import spaces

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.formula import Formula, KnownReward, Shaping, checked_option

FREE, WALL, AGENT, GOAL, KEY = range(5)
"""Object codes in observations."""
OBJECTS = {"wall": WALL, "agent": AGENT, "goal": GOAL, "key": KEY}

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""(rows, columns) of the actions: 0 up, 1 right, 2 down, 3 left."""

Position: TypeAlias = tuple[int, int]
Goals: TypeAlias = Literal["fixed", "coin", "two", "random", "many", "none"]
RANDOM_GOALS = {"random": 1, "many": 8}
"""Goals drawn for each episode."""
MOST_TABLE_ENTRIES = 20_000_000

_COLOURS = np.array([(255, 255, 255), (60, 60, 60), (0, 114, 178), (0, 158, 115), (230, 159, 0)], np.uint8)
"""Of the codes, told apart by colour-blind people as well."""
_PIXELS = 16
"""Side of a cell in pictures."""


@dataclass(frozen=True)
class GridStates:
    """The ``S`` states of a deterministic grid environment, for tools that look at all moves.

    Attributes:
        grid: (rows, columns).
        layers: names of the layers, for example ``without key`` and ``with key``, or one for each level.
        layer: ``[S]``: the layer of each state.
        rows: ``[S]``: the agent's row.
        columns: ``[S]``: the agent's column.
        observations: ``[S, *observation_shape]``.
        next_states: ``[S, A]``: the state that each action leads to.
        moves: (rows, columns) of each action.
        terminal: ``[S]``: whether the episode is over there.
        walls: ``[rows, columns]``.
        marks: for each layer, cells by letter: ``G`` goal, ``K`` key.
    """

    grid: tuple[int, int]
    layers: Sequence[str]
    layer: IntArray
    rows: IntArray
    columns: IntArray
    observations: Array
    next_states: IntArray
    moves: Sequence[tuple[int, int]]
    terminal: BoolArray
    walls: BoolArray
    marks: Sequence[Mapping[str, Sequence[tuple[int, int]]]]

    def __len__(self) -> int:
        return len(self.layer)


class GridWorld(KnownReward):
    """An agent on a grid with walls around it; it starts at a random free cell and ends the episode by reaching a goal.

    The family of Michaud, Gleave and Russell, "Understanding Learned Reward Functions" (2020). Registered as ``rlhf_ray/`` and

    * ``FixedGoal-v0``: the goal is at the lower right;
    * ``CoinFlip-v0``: at the upper left or at the lower right, with equal probability;
    * ``TwoGoals-v0``: a goal at each of them;
    * ``RandomGoal-v0``, ``ManyGoals-v0``: one goal, or eight, at random cells;
    * ``NoGoal-v0``: none, and no reward;
    * ``Key-v0``: as FixedGoal, but the goal counts only after the agent has taken the key at the upper right;
    * ``Walls-v0``: as FixedGoal, in four rooms.

    Each has a limit of 200 steps (``max_episode_steps``).

    * Observation: float32 ``[rows * columns]``, the codes of the cells row by row: 0 free, 1 wall, 2 agent, 3 goal, 4 key. The
      agent hides what it stands on; a key that it has taken is gone.
    * Action: Discrete(4): 0 up, 1 right, 2 down, 3 left. Walls stop the agent.
    * Reward: 1 for entering a goal, which terminates the episode; else 0. With ``shaping``, plus potential shaping.

    Args:
        goals: which goals a level has: fixed, coin, two, random, many or none; or the levels, equally likely, each as the positions
            (row, column) of its goals, in the whole grid: the interior starts at (1, 1).
        size: side of the interior in cells, at least 3 (5 with walls); the grid is ``size + 2`` on a side.
        key: whether there is a key.
        walls: whether walls divide the grid into four rooms.
        shaping: none; dense, a potential of minus the L1 distance left to walk; antidense, plus that; random, drawn for each cell.
        gamma: discount of the shaping.
        shaping_seed: draws the random potential.
        render_mode: None or "rgb_array".
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012

    def __init__(
        self,
        goals: Goals | Sequence[Sequence[Position]] = "fixed",
        size: int = 9,
        key: bool = False,
        walls: bool = False,
        shaping: Shaping = "none",
        gamma: float = 0.99,
        shaping_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode of GridWorld is {render_mode!r}; it must be None or 'rgb_array'.")
        if size < (least := 5 if walls else 3):
            raise SettingError(f"size of GridWorld is {size}; it must be at least {least}.")
        checked_option("shaping", shaping, Shaping, "GridWorld")
        self.render_mode, self.size = render_mode, size
        self.grid = (size + 2, size + 2)
        self.observation_space = spaces.Box(FREE, KEY, (self.grid[0] * self.grid[1],), np.float32)
        self.action_space = spaces.Discrete(len(MOVES))
        self.walls = rooms(size) if walls else ()
        inside = range(1, size + 1)
        self._cells = [(row, column) for row in inside for column in inside if (row, column) not in self.walls]
        self.key_at: Position | None = (1, size) if key else None
        self.goals = checked_option("goals", goals, Goals, "GridWorld") if isinstance(goals, str) else "given"
        self._given = [] if isinstance(goals, str) else self._checked_levels(goals)
        name = "entering a goal" if shaping == "none" else f"entering a goal, {shaping} shaping"
        self.formula = Formula(
            name, enters_goal, _potential(shaping, self.grid, shaping_seed), gamma, ("state", "next_state")
        )
        self._agent, self._goals, self._holds_key = (1, 1), tuple[Position, ...](), not key
        self._seen: Array = np.zeros(0, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Draw the goals, and the agent at a free cell without one."""
        super().reset(seed=seed, options=options)
        if self.goals in RANDOM_GOALS:
            self._goals = self._drawn(self.np_random)
        else:
            layouts = self._layouts()
            self._goals = layouts[int(self.np_random.integers(len(layouts)))]
        free = [cell for cell in self._cells if cell != self.key_at and cell not in self._goals]
        self._agent = free[int(self.np_random.integers(len(free)))]
        self._holds_key = self.key_at is None
        self._seen = self._observation()
        return self._seen.copy(), {}

    def step(self, action: int | np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Move the agent."""
        if not 0 <= action < len(MOVES):
            raise ValueError(f"The action of GridWorld is {action}; it must be 0 to {len(MOVES) - 1}.")
        before = self._seen
        self._agent = self._moved(self._agent, int(action))
        terminated = self._holds_key and self._agent in self._goals
        self._holds_key = self._holds_key or self._agent == self.key_at
        self._seen = self._observation()
        return self._seen.copy(), self.formula.step(before, action, self._seen, terminated), terminated, False, {}

    def render(self) -> Array | None:  # type: ignore[override]
        """Return a picture, uint8 ``[16 rows, 16 columns, 3]``, in render_mode "rgb_array"; else None."""
        return picture(self._observation().reshape(self.grid)) if self.render_mode == "rgb_array" else None

    def observe(
        self,
        agent: Position | None = None,
        goals: Iterable[Position] = (),
        walls: Iterable[Position] | None = None,
        keys: Iterable[Position] = (),
    ) -> Array:
        """Build the observation of a level, also of one that never occurs: float32 ``[rows * columns]``.

        Args:
            agent: (row, column) in the whole grid; the interior starts at (1, 1). None leaves the agent out.
            goals: positions of goals.
            walls: positions of walls in the interior; this environment's own if None. The walls around are always there.
            keys: positions of keys.
        """
        codes = np.full(self.grid, WALL, np.float32)
        codes[1:-1, 1:-1] = FREE
        drawn = (
            (self.walls if walls is None else walls, WALL),
            (goals, GOAL),
            (keys, KEY),
            ([agent] if agent else [], AGENT),
        )
        for cells, code in drawn:
            for cell in cells:
                if not (0 <= cell[0] < self.grid[0] and 0 <= cell[1] < self.grid[1]):
                    raise ValueError(
                        f"The position {cell} is outside the grid of {self.grid[0]} x {self.grid[1]} cells."
                    )
                codes[cell] = code
        return codes.ravel()

    def expert(self, rng: np.random.Generator) -> int:
        """Return an action on a shortest path to the nearest goal, via the key if there is one; ties and no goal: random."""
        targets = self._goals if self._holds_key or self.key_at is None else (self.key_at,)
        left = _steps_left(self.size, tuple(self.walls), targets)
        after = [left.get(self._moved(self._agent, action), np.inf) for action in range(len(MOVES))]
        return int(rng.choice(np.flatnonzero(np.array(after) == min(after))))

    def describe(self) -> dict[str, float]:
        """Return positions, the number of goals, the nearest goal, steps to it, and whether the key is held.

        ``goal_row``, ``goal_column`` and ``distance`` are -1 without a goal.
        """
        left = [_steps_left(self.size, tuple(self.walls), (goal,)).get(self._agent, np.inf) for goal in self._goals]
        nearest = int(np.argmin(left)) if left else -1
        goal = self._goals[nearest] if left else (-1, -1)
        return {
            "agent_row": float(self._agent[0]),
            "agent_column": float(self._agent[1]),
            "goals": float(len(self._goals)),
            "goal_row": float(goal[0]),
            "goal_column": float(goal[1]),
            "distance": float(left[nearest]) if left else -1.0,
            "has_key": float(self._holds_key and self.key_at is not None),
        }

    def state_observations(self) -> Array:
        """Return the observation of each state of `mdp_tables`, float32 ``[states, rows * columns]``."""
        return np.stack([self._observation(goals, agent, holds) for goals, agent, holds in self._states])

    def mdp_tables(self) -> tuple[FloatArray, FloatArray, FloatArray, BoolArray]:
        """Return this environment as a table.

        Returns:
            ``P`` ``[S, A, S]``: transition probabilities, a terminal state leading to itself; ``R`` ``[S, A, S]``: the reward,
            with the shaping; ``[S]``: probability of starting in each state; ``[S]`` bool: whether a state is terminal.

        Raises:
            SettingError: there are too many states.
        """
        states = self._states
        if len(MOVES) * len(states) ** 2 > MOST_TABLE_ENTRIES:
            raise SettingError(f"size of GridWorld is {self.size}: {len(states)} states are too many for a table.")
        start = np.array([agent not in goals and holds == (self.key_at is None) for goals, agent, holds in states])
        next_states, terminal = self._next_states()
        probabilities = np.zeros((len(states), len(MOVES), len(states)))
        np.put_along_axis(probabilities, next_states[:, :, None], 1.0, 2)
        return probabilities, self._reward_table(terminal), start / start.sum(), terminal

    def grid_states(self) -> GridStates:
        """Return each state and where each move leads; the layers are the levels, without and with the key.

        Of goals at random cells, three levels, always the same ones.
        """
        if self.goals in RANDOM_GOALS:
            rng = np.random.default_rng(0)
            levels = [self._drawn(rng) for _ in range(3)]
            return GridWorld(levels, self.size, self.key_at is not None, bool(self.walls)).grid_states()
        next_states, terminal = self._next_states()
        layouts, holding = self._layouts(), (True,) if self.key_at is None else (False, True)
        names, marks = [], []
        for i, goals in enumerate(layouts):
            where = f"goal at {', '.join(str(goal) for goal in goals)}" if len(goals) <= 2 else f"{len(goals)} goals"
            level = "" if len(layouts) == 1 else where if len(goals) <= 2 else f"level {i + 1}, {where}"
            for holds in holding:
                key = "" if self.key_at is None else "with key" if holds else "without key"
                names.append(", ".join(part for part in (level, key) if part))
                marks.append({"G": list(goals), "K": [] if holds or self.key_at is None else [self.key_at]})
        number = {
            (goals, holds): i * len(holding) + j for i, goals in enumerate(layouts) for j, holds in enumerate(holding)
        }
        return GridStates(
            grid=self.grid,
            layers=names,
            layer=np.array([number[goals, holds] for goals, _, holds in self._states]),
            rows=np.array([agent[0] for _, agent, _ in self._states]),
            columns=np.array([agent[1] for _, agent, _ in self._states]),
            observations=self.state_observations(),
            next_states=next_states,
            moves=MOVES,
            terminal=terminal,
            walls=self.observe().reshape(self.grid) == WALL,
            marks=marks,
        )

    def _next_states(self) -> tuple[IntArray, BoolArray]:
        """The state that each action leads to ``[S, A]``, a terminal one to itself, and which are terminal ``[S]``."""
        number = {state: i for i, state in enumerate(self._states)}
        terminal = np.array([holds and agent in goals for goals, agent, holds in self._states])
        next_states = np.zeros((len(number), len(MOVES)), np.int64)
        for (goals, agent, holds), here in number.items():
            for action in range(len(MOVES)):
                to = agent if terminal[here] else self._moved(agent, action)
                next_states[here, action] = number[goals, to, holds or to == self.key_at]
        return next_states, terminal

    def _reward_table(self, terminal: BoolArray) -> FloatArray:
        """Compute the reward from each state to each other, ``[S, A, S]``; the potential of terminal states is 0."""
        observations = self.state_observations()
        count = len(observations)
        rewards = np.stack(
            [self.formula.base(np.broadcast_to(one, observations.shape), None, observations) for one in observations]
        ).astype(np.float64)
        if self.formula.potential is not None:
            potential = self.formula.potential(observations) * ~terminal
            plain = Formula("", lambda *_: rewards.ravel(), lambda at: potential[at], self.formula.gamma)
            before, after = np.divmod(np.arange(count**2), count)
            rewards = plain(before, None, after, terminal[after]).reshape(count, count)
        return np.repeat(rewards[:, None], len(MOVES), 1)

    @functools.cached_property
    def _states(self) -> list[tuple[tuple[Position, ...], Position, bool]]:
        """Goals, agent and whether it holds the key, of each state that can occur."""
        holding = (True,) if self.key_at is None else (False, True)
        return [
            (goals, agent, holds)
            for goals in self._layouts()
            for holds in holding
            for agent in self._cells
            if holds or agent != self.key_at
        ]

    def _layouts(self) -> list[tuple[Position, ...]]:
        """The goals of each possible level, equally likely."""
        first, last = (1, 1), (self.size, self.size)
        layouts: dict[str, list[tuple[Position, ...]]] = {
            "fixed": [(last,)],
            "coin": [(first,), (last,)],
            "two": [(first, last)],
            "none": [()],
            "given": self._given,
        }
        if self.goals not in layouts:
            raise SettingError(f"goals of GridWorld is {self.goals!r}: its levels are too many for a table.")
        return layouts[self.goals]

    def _checked_levels(self, levels: Sequence[Sequence[Position]]) -> list[tuple[Position, ...]]:
        checked = [tuple((int(row), int(column)) for row, column in goals) for goals in levels]
        wrong = [goal for goals in checked for goal in goals if goal not in self._cells or goal == self.key_at]
        if wrong or not checked:
            raise SettingError(
                f"goals of GridWorld is {list(levels)!r}; it must be a list of levels, each a list of free cells (row, column) "
                f"from 1 to {self.size}{', without the key' if self.key_at else ''}."
            )
        return checked

    def _drawn(self, rng: np.random.Generator) -> tuple[Position, ...]:
        """Goals at random cells."""
        free = [cell for cell in self._cells if cell != self.key_at]
        count = min(RANDOM_GOALS[self.goals], len(free) - 1)
        return tuple(free[i] for i in sorted(rng.choice(len(free), count, replace=False)))

    def _moved(self, agent: Position, action: int) -> Position:
        row, column = agent[0] + MOVES[action][0], agent[1] + MOVES[action][1]
        inside = 1 <= row <= self.size and 1 <= column <= self.size
        return (row, column) if inside and (row, column) not in self.walls else agent

    def _observation(
        self, goals: Sequence[Position] | None = None, agent: Position | None = None, holds: bool | None = None
    ) -> Array:
        """The observation of a state; of the present one by default."""
        holds = self._holds_key if holds is None else holds
        keys = [] if holds or self.key_at is None else [self.key_at]
        return self.observe(agent or self._agent, self._goals if goals is None else goals, None, keys)


def enters_goal(observations: Any, actions: Any, next_observations: Any) -> Any:
    """Compute GridWorld's reward: 1 where the agent stands in ``s'`` on what was a goal in ``s``, and ``s`` shows no key; else 0.

    Observations are ``[n, cells]``, arrays or tensors; the reward is ``[n]``.
    """
    entered = ((observations == GOAL) & (next_observations == AGENT)).any(1)
    return 1.0 * (entered & ~(observations == KEY).any(1))


def distance_left(observations: Array, grid: tuple[int, int]) -> FloatArray:
    """Return the L1 distance from the agent to the nearest goal, via the key if one is visible, ``[n]``.

    Where no goal is visible, the agent stands on it or there is none: then its own cell counts as the goal. 0 without an agent.
    """
    codes = np.asarray(observations).reshape(len(observations), -1)
    rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    between = np.abs(rows[:, None] - rows) + np.abs(columns[:, None] - columns)
    is_agent, is_goal, is_key = (codes == code for code in (AGENT, GOAL, KEY))
    agent = is_agent.argmax(1)
    goals = np.where(is_goal.any(1)[:, None], is_goal, is_agent)
    via = np.where(is_key.any(1), is_key.argmax(1), agent)
    last = np.where(goals, between[via], np.inf).min(1)
    seen = is_agent.any(1)
    return np.where(seen, between[agent, via] + np.where(seen, last, 0.0), 0.0)


def _potential(shaping: str, grid: tuple[int, int], seed: int) -> Any:
    if shaping == "none":
        return None
    if shaping in ("dense", "antidense"):
        sign = -1.0 if shaping == "dense" else 1.0
        return lambda observations: sign * distance_left(observations, grid)
    drawn = np.random.default_rng(seed).uniform(-1.0, 1.0, (2, grid[0] * grid[1]))

    def potential(observations: Array) -> FloatArray:
        codes = np.asarray(observations).reshape(len(observations), -1)
        is_agent, keyless = codes == AGENT, (codes == KEY).any(1)
        at: IntArray = is_agent.argmax(1)
        return np.where(is_agent.any(1), drawn[keyless.astype(int), at], 0.0)

    return potential


def rooms(size: int) -> tuple[Position, ...]:
    """Return the walls of four rooms with a door between each two neighbours, in an interior of ``size`` x ``size`` cells."""
    middle = (size + 1) // 2
    doors = ((1 + middle) // 2, (middle + 1 + size) // 2)
    along = [i for i in range(1, size + 1) if i not in doors]
    return tuple(sorted({(middle, i) for i in along} | {(i, middle) for i in along}))


@functools.lru_cache(maxsize=4096)
def _steps_left(size: int, walls: tuple[Position, ...], targets: tuple[Position, ...]) -> dict[Position, float]:
    """Length of the shortest path from each cell to the nearest of ``targets``; cells without a path are absent."""
    left = dict.fromkeys(targets, 0.0)
    queue = deque(targets)
    while queue:
        row, column = queue.popleft()
        for down, right in MOVES:
            cell = (row + down, column + right)
            inside = 1 <= cell[0] <= size and 1 <= cell[1] <= size
            if inside and cell not in walls and cell not in left:
                left[cell] = left[row, column] + 1
                queue.append(cell)
    return left


def picture(codes: Array) -> Array:
    """Draw a grid of object codes ``[rows, columns]``: uint8 ``[16 rows, 16 columns, 3]``."""
    known = np.clip(np.asarray(codes).round().astype(int), 0, len(_COLOURS) - 1)
    return np.kron(_COLOURS[known], np.ones((_PIXELS, _PIXELS, 1), np.uint8))
