"""Play: the one loop that lets an agent act in copies of an environment, with or without hooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from scipy.special import ndtri

from rlhf_ray.agents.agent import MEMORY, Agent, Hook, Sight, check, edits_at
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.policies.actions import to_env_actions


class NotANumberError(SettingError):
    """An agent returns NaN: its weights are broken, or a hook makes its memory grow without end."""


LONGEST = 10_000
"""Steps after which an episode is cut if ``max_steps`` doesn't say otherwise."""
BLOCK = 64
"""Steps whose random numbers are drawn at once."""

Start = tuple[Sequence[bytes], Array, int | IntArray]
"""Where episodes go on from: environment states, the agent's memory ``[n, memory_size]``, and steps made before."""


def play(
    agent: Agent,
    batch: EnvBatch,
    levels: Sequence[int] | IntArray,
    *,
    hooks: Sequence[Hook] = (),
    sight: Sight | None = None,
    greedy: bool = True,
    epsilon: float = 0.0,
    seed: int = 0,
    max_steps: int | None = None,
    keep: Sequence[str] = (),
    keep_states: bool = False,
    start: Start | None = None,
    indices: Sequence[int] | IntArray | None = None,
    frames: bool = True,
) -> Episodes:
    """Play an episode of each of ``levels``, ``batch.n`` at a time.

    An episode depends on its level, ``seed`` and index only, not on the number of copies (but for rounding in the network, about
    1e-7). Nothing has a gradient.

    Args:
        agent: acts.
        batch: copies of its environment. What they played before doesn't matter.
        levels: seeds of the levels.
        hooks: changes of the agent's memory or layers, in this order.
        sight: changes the world, or what the agent sees of it, before each step.
        greedy: take the most likely action; otherwise sample.
        epsilon: probability of a uniformly random action instead.
        seed: seeds sampled and random actions.
        max_steps: cut episodes after as many steps (default: `LONGEST`).
        keep: layers whose outputs to keep in `Episodes.activations`.
        keep_states: whether to keep the environment's states.
        start: where to go on from; None: from the start of each level.
        indices: the episodes' numbers, which seed their draws and choose the source of a patch (default: 0, 1, …). For playing
            a part of the episodes elsewhere, or a second time.
        frames: whether to keep observations; without them, they have shape ``[n, T + 1, 0]``.

    Raises:
        SettingError: a hook's site or a layer that the agent doesn't have, or nothing to play.
    """
    check(hooks, agent)
    if missing := [name for name in keep if name not in agent.layers]:
        raise SettingError(f"keep has {missing[0]!r}; the agent's layers are {', '.join(agent.layers)}.")
    if not len(levels):
        raise SettingError("levels is empty; give at least one.")
    if max_steps is not None and max_steps < 1:
        raise SettingError(f"max_steps is {max_steps}; it must be at least 1.")
    if not 0.0 <= epsilon <= 1.0:
        raise SettingError(f"epsilon is {epsilon}; it must be from 0 to 1.")
    numbers = np.arange(len(levels)) if indices is None else np.asarray(indices, np.int64)
    steps = np.broadcast_to(np.asarray(0 if start is None else start[2], np.int64), len(levels))
    turns = []
    for first in range(0, len(levels), batch.n):
        here = slice(first, min(first + batch.n, len(levels)))
        turn = _Turn(agent, batch, np.asarray(levels[here], np.int64), numbers[here], steps[here])
        turn.begin(None if start is None else (start[0][here], start[1][here]))
        chooser = _Chooser(agent.action_space, greedy, epsilon, seed)
        turns.append(turn.run(hooks, sight, chooser, max_steps or LONGEST, keep, keep_states, frames))
    return Episodes.concatenate(turns)


class _Chooser:
    """Chooses policy actions; what it draws for an episode depends on seed, index and step only."""

    def __init__(self, space: gym.Space[Any], greedy: bool, epsilon: float, seed: int):
        self.space, self.greedy, self.epsilon, self.seed = space, greedy, epsilon, seed
        self.discrete = isinstance(space, gym.spaces.Discrete)
        self._blocks: dict[tuple[int, int], FloatArray] = {}

    def __call__(self, logits: FloatArray, numbers: IntArray, steps: IntArray) -> Array:
        """Return the environment's actions ``[n, …]``, from the distribution's inputs."""
        chosen = self._policy_actions(logits, numbers, steps)
        return to_env_actions(chosen.reshape(len(chosen), *(self.space.shape or ())), self.space)

    def _policy_actions(self, logits: FloatArray, numbers: IntArray, steps: IntArray) -> Array:
        size = logits.shape[1] if self.discrete else logits.shape[1] // 2
        if self.greedy and not self.epsilon:
            return np.asarray(logits.argmax(1) if self.discrete else logits[:, :size])
        drawn = np.stack([self._drawn(*place, size) for place in zip(numbers.tolist(), steps.tolist(), strict=True)])
        uniform, random, noise = drawn[:, 0], drawn[:, 1 : 1 + size], drawn[:, 1 + size :]
        if self.discrete:
            scores = logits if self.greedy else logits - np.log(-np.log(np.clip(noise, 1e-12, 1 - 1e-12)))
            chosen, other = scores.argmax(1), random.argmax(1)
        else:
            chosen, other = logits[:, :size].astype(np.float64), 2.0 * random - 1.0
            if not self.greedy:
                chosen = chosen + np.exp(logits[:, size:]) * ndtri(np.clip(noise, 1e-12, 1 - 1e-12))
        rare = uniform < self.epsilon
        return np.asarray(np.where(rare if self.discrete else rare[:, None], other, chosen))

    def _drawn(self, number: int, step: int, size: int) -> FloatArray:
        key = (number, step // BLOCK)
        if key not in self._blocks:
            self._blocks[key] = np.random.default_rng([self.seed, *key]).random((BLOCK, 1 + 2 * size))
        return np.asarray(self._blocks[key][step % BLOCK])


class _Turn:
    """Episodes that are played at the same time: at most as many as there are copies; the other copies play the last one too."""

    def __init__(self, agent: Agent, batch: EnvBatch, levels: IntArray, numbers: IntArray, steps: IntArray):
        self.agent, self.batch, self.levels, self.numbers, self.steps = agent, batch, levels, numbers, steps
        self.n = len(levels)
        self.copies = np.minimum(np.arange(batch.n), self.n - 1)

    def begin(self, start: tuple[Sequence[bytes], Array] | None) -> None:
        """Set copies and memory to the start of the levels, or to states and memory."""
        if start is None:
            self.observations = self.batch.reset([int(level) for level in self.levels[self.copies]])
            self.memory = self.agent.initial_memory(self.n).clone()
        else:
            self.observations = self.batch.restore([start[0][copy] for copy in self.copies])
            self.memory = torch.as_tensor(np.asarray(start[1], np.float32)).clone()

    @torch.no_grad()
    def run(
        self,
        hooks: Sequence[Hook],
        sight: Sight | None,
        chooser: _Chooser,
        most: int,
        keep: Sequence[str],
        keep_states: bool,
        frames: bool,
    ) -> Episodes:
        """Play until all episodes have ended, or for ``most`` steps."""
        n, went = self.n, np.arange(self.n)
        lengths, causes = np.zeros(n, np.int64), [""] * n
        ended = {"terminated": np.zeros(n, bool), "truncated": np.zeros(n, bool)}
        seen, said, done, inside = (_Padded(n) for _ in range(4))
        states: list[list[bytes]] = [[] for _ in range(n)]
        space = self.agent.action_space
        actions = to_env_actions(np.zeros((self.batch.n, *(space.shape or ()))), space)
        for step in range(most + 1):
            rows = went[~(ended["terminated"] | ended["truncated"])[went]]
            if sight is not None and step < most and len(rows):
                where = rows, self.numbers[rows], self.steps[rows] + step
                self.observations = sight(self.batch, self.observations, *where)
            self._see(seen, said, step, went, frames)
            if keep_states:
                for row, state in zip(range(n), self.batch.states(), strict=False):
                    if len(states[row]) == step and row in went:
                        states[row].append(state)
            if step == most or not len(rows):
                break
            steps, numbers = self.steps[rows] + step, self.numbers[rows]
            edits, here = edits_at(hooks, steps, numbers), torch.as_tensor(self.observations[rows])
            taken = self.agent.step(here, self.memory[rows], edits=edits, keep=keep)
            self.memory[rows] = taken.memory
            logits = taken.logits.numpy()
            if np.isnan(logits).any():
                cause = "with this intervention" if hooks else "with no intervention"
                raise NotANumberError(f"{self.agent.name} returns NaN at step {int(steps.max())}, {cause}.")
            actions[rows] = chooser(logits, numbers, steps)
            result = self.batch.step(actions)
            self.observations = result.observations
            ended["terminated"], ended["truncated"] = result.terminated[:n].copy(), result.truncated[:n].copy()
            values, rewards = taken.value.numpy(), result.rewards[rows]
            done.put(step, rows, {"actions": actions[rows], "logits": logits, "values": values, "rewards": rewards})
            inside.put(step, rows, {name: taken.activations[name].numpy() for name in keep})
            lengths[rows] += 1
            for row in rows:
                causes[row] = result.causes[row]
            went = rows
        steps_made = int(lengths.max())
        return Episodes(
            **seen.arrays(steps_made + 1),
            **done.arrays(steps_made),
            **ended,
            lengths=lengths,
            causes=causes,
            levels=self.levels,
            states=said.arrays(steps_made + 1),
            activations=inside.arrays(steps_made),
            env_states=states if keep_states else (),
        )

    def _see(self, seen: _Padded, said: _Padded, step: int, rows: IntArray, frames: bool) -> None:
        observed = self.observations[rows] if frames else np.zeros((len(rows), 0), self.observations.dtype)
        seen.put(step, rows, {"observations": observed, "memory": self.memory[rows].numpy()})
        for name, values in self.batch.describe().items():
            number = values.ndim == 1 and values.dtype.kind in "iu"  # may be NaN at a later step, or in another episode
            said.put(step, rows, {name: values[rows].astype(np.float64 if number else values.dtype)})


class _Padded:
    """Values of some of ``n`` rows at each step, put together to padded arrays."""

    def __init__(self, n: int):
        self.n = n
        self._parts: dict[str, list[tuple[int, IntArray, Array]]] = {}

    def put(self, step: int, rows: IntArray, columns: Mapping[str, Array]) -> None:
        """Keep columns ``[len(rows), …]`` by name."""
        for name, values in columns.items():
            self._parts.setdefault(name, []).append((step, rows, np.array(values)))

    def arrays(self, steps: int) -> dict[str, Array]:
        """Return ``[n, steps, …]`` by name, 0 where nothing was put."""
        columns = {}
        for name, parts in self._parts.items():
            first = parts[0][2]
            columns[name] = np.zeros((self.n, steps, *first.shape[1:]), first.dtype)
            for step, rows, values in parts:
                columns[name][rows, step] = values
        return columns


REPLAYED = 64
"""Episodes at a time."""


def site_of(agent: Agent) -> str:
    """Return where to look into an agent: its memory, or without one the last layer that both actor and critic read.

    Raises:
        SettingError: it has neither.
    """
    if agent.memory_size:
        return MEMORY
    before = [name for name in agent.layers if not name.startswith(("actor", "critic"))]
    hidden = before or [name for name in agent.layers if name.startswith("actor")][:-1]
    if not hidden:
        raise SettingError(
            f"The agent {agent.name!r} has neither memory nor hidden layers: there is nothing to look into."
        )
    return hidden[-1]


def replay(agent: Agent, episodes: Episodes, keep: Sequence[str] = ()) -> Episodes:
    """Run any agent with the same observations, for example an untrained one, along the observations of whole episodes.

    Returns:
        The episodes with the agent's logits, values, memory and activations (of ``keep``); all else, the actions too, stays.
    """
    n, steps = episodes.actions.shape[:2]
    before, done, inside = (_Padded(n) for _ in range(3))
    with torch.no_grad():
        for first in range(0, n, REPLAYED):
            rows = np.arange(n)[first : first + REPLAYED]
            memory = agent.initial_memory(len(rows))
            before.put(0, rows, {"memory": memory.float().numpy()})
            for t in range(steps):
                step = agent.step(torch.as_tensor(episodes.observations[rows, t]), memory, keep=keep)
                goes_on = torch.as_tensor(t < episodes.lengths[rows])
                memory = torch.where(goes_on[:, None], step.memory, memory)
                before.put(t + 1, rows, {"memory": memory.float().numpy()})
                done.put(t, rows, {"values": step.value.float().numpy(), "logits": step.logits.float().numpy()})
                inside.put(t, rows, {name: values.float().numpy() for name, values in step.activations.items()})
    found: dict[str, Any] = before.arrays(steps + 1) | done.arrays(steps)
    return dataclasses.replace(episodes, **found, activations=inside.arrays(steps))


def values_at(agent: Agent, episodes: Episodes, site: str | None = None) -> FloatArray:
    """Return what a site holds at each step, after the observation was seen: ``[n, T, size]`` float32.

    The site is `rlhf_ray.agents.agent.MEMORY` or a layer; by default `site_of`. Layers that ``episodes`` does not hold are
    computed along its observations; positions of images are averaged.
    """
    site = site_of(agent) if site is None else site
    if site == MEMORY:
        return episodes.memory[:, 1:]
    known = episodes if site in episodes.activations else replay(agent, episodes, [site])
    values = known.activations[site]
    return np.asarray(values.reshape(*values.shape[:3], -1).mean(-1).astype(np.float32))
