"""How good a world model is, step by step over the horizon, beside baselines that need no model, and how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.world_model.simulate import World, simulate
from rlhf_ray.interpret.agent.world_model.training import as_policy_actions
from rlhf_ray.measure.intervals import blocks, jackknife_interval
from rlhf_ray.measure.statistics import auc, spearman
from rlhf_ray.policies.actions import best, to_env_actions

BASELINES = ("copy_last", "mean_frame", "shuffled_actions")
"""copy_last: the context's last observation. mean_frame: the mean of all observations. shuffled_actions: the model, with the
actions of another window."""
MARGIN = 0.05
"""By how much the agent's actions in the model must agree with reality more often than the most common action."""
CLOSE = 0.2
"""Largest difference of Box actions, in policy units (-1 to 1), that counts as agreement."""
BATCH = 128


@dataclass(frozen=True)
class HorizonCurve:
    """A mean over windows at each step ``0 … steps``, with 95 % intervals over episodes; NaN where none was measured."""

    mean: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True)
class Quality:
    """What was measured. Errors are mean squared, images divided by 255, other observations in their deviations."""

    steps: int  # horizon, without the context. Step 0 is the reconstruction of the context's last observation.
    windows: int  # number of windows
    errors: Mapping[str, HorizonCurve]  # by name: ``model`` and `BASELINES`
    # how often the agent, acting in the model, prefers the action that it prefers in reality at that step
    agreement: HorizonCurve
    majority: float  # how often that is its most common action
    # cosine between the agent's memory after the step in the model and in reality; empty without memory
    memory: HorizonCurve | None
    # reward, end: rank correlation of predicted with real rewards, and AUC of predicted ends; NaN if there is only one kind
    reward: float
    end: float
    # last step up to which `agreement` exceeds the majority's by `MARGIN` (by half of the rest where less is left), and the
    # model's error is below the mean frame's
    valid_horizon: int

    def ratio(self, step: int, to: str = "copy_last") -> float:
        """Return the model's error relative to a baseline's."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.divide(self.errors["model"].mean[step], self.errors[to].mean[step]))

    def skill(self, step: int) -> float:
        """Return the share of the mean frame's error that the model avoids."""
        return 1.0 - self.ratio(step, "mean_frame")


def measure(
    world: World, agent: Agent, episodes: Episodes, *, steps: int = 24, starts: int = 1, seed: int = 0
) -> Quality:
    """Measure a world model on episodes that it wasn't trained on, whole or in parts.

    Errors and rewards are those of open loop: the recorded actions are given. The agent's actions and memory are those of closed
    loop: the agent acts in the model, from its real memory; compared with recorded steps as long as the recorded actions are
    those that it prefers. Nothing after the end of an episode counts.

    ``steps`` is the horizon, ``starts`` are the windows of each episode, from random steps, which ``seed`` draws.

    Raises:
        SettingError: no episode has ``world.context`` steps.
    """
    rng = np.random.default_rng([seed, 11])
    long = np.flatnonzero(episodes.lengths >= world.context)
    if not len(long):
        raise SettingError(
            f"No episode has {world.context + 1} observations, which the world model's context and one step need; record longer "
            "ones."
        )
    rows = np.repeat(long, starts)
    firsts = rng.integers(episodes.lengths[rows] - world.context + 1)
    seen = _mean_of(episodes)
    other = rng.permutation(len(rows)) if len(rows) > 1 else np.zeros(1, np.int64)
    parts: list[dict[str, Array]] = []
    for begin in range(0, len(rows), BATCH):
        of = slice(begin, begin + BATCH)
        windows = cut_out(episodes, rows[of], firsts[of], world.context + steps + 1)
        strange = cut_out(episodes, rows[other[of]], firsts[other[of]], world.context + steps + 1)
        with torch.no_grad():
            parts.append(_measured(world, agent, windows, strange, steps, *seen))
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    errors = {name: _curve(found[f"error.{name}"], rows) for name in ("model", *BASELINES)}
    agreement = _curve(found["agreement"], rows)
    majority = _majority(found["preferred"], agent.action_space)
    made = ~np.isnan(found["reward"])
    return Quality(
        steps=steps,
        windows=len(rows),
        errors=errors,
        agreement=agreement,
        majority=majority,
        memory=_curve(found["memory"], rows) if "memory" in found else None,
        reward=spearman(*(found[name][made] for name in ("reward", "reward_real"))),
        end=auc(found["end"][made], found["end_real"][made] > 0),
        valid_horizon=valid_horizon(errors["model"].mean, errors["mean_frame"].mean, agreement.mean, majority),
    )


def valid_horizon(model: FloatArray, mean_frame: FloatArray, agreement: FloatArray, majority: float) -> int:
    """Return the last step up to which the model is worth trusting: see `Quality`. Arrays start at step 0; NaN is no objection."""
    least = majority + min(MARGIN, (1.0 - majority) / 2.0)
    acts_alike = ~(agreement <= least) | (agreement == 1.0)
    good = ~(model >= mean_frame) & acts_alike & ~np.isnan(model)
    return int(np.argmin(good[1:])) if not good[1:].all() else len(good) - 1


def _measured(
    world: World, agent: Agent, windows: Episodes, strange: Episodes, steps: int, mean: FloatArray, scale: FloatArray
) -> dict[str, Array]:
    """Measure each of ``n`` windows at each step: ``[n, steps + 1]``, NaN after the end."""
    last = world.context - 1
    seen = torch.as_tensor(np.ascontiguousarray(windows.observations[:, : world.context]))
    actions, others = (as_policy_actions(of.actions, agent.action_space) for of in (windows, strange))
    memory = torch.as_tensor(windows.memory[:, last])
    context = seen, actions[:, :last], memory
    opened = simulate(world, agent, *context, steps, given=actions[:, last:])
    mixed = simulate(world, agent, *context, steps, given=others[:, last:])
    closed = simulate(world, agent, *context, steps + 1)

    image = is_image(agent.observation_space)
    real = windows.observations[:, last : last + steps + 1].astype(np.float32)
    here = np.arange(steps + 1) + last <= windows.lengths[:, None]
    predictions = {
        "model": opened.observations.numpy(),
        "copy_last": real[:, :1],
        "mean_frame": mean,
        "shuffled_actions": mixed.observations.numpy(),
    }
    predictions = {name: np.clip(of, 0.0, 255.0) if image else of for name, of in predictions.items()}
    squares = {name: ((of - real) / scale) ** 2 for name, of in predictions.items()}
    axes = tuple(range(2, real.ndim))
    found: dict[str, Array] = {f"error.{name}": np.where(here, of.mean(axes), np.nan) for name, of in squares.items()}
    made = here[:, 1:]
    rewards = windows.rewards[:, last : last + steps]
    ended = windows.terminated[:, None] & (np.arange(steps) + last == windows.lengths[:, None] - 1)
    found |= {
        "reward": np.where(made, opened.rewards.numpy(), np.nan),
        "reward_real": np.where(made, rewards, np.nan),
        "end": np.where(made, opened.ends.numpy(), np.nan),
        "end_real": np.where(made, ended, np.nan),
    }

    # Closed loop: steps that were taken, after none but preferred actions.
    preferred = best(torch.as_tensor(windows.logits[:, last : last + steps + 1]), agent.action_space).numpy()
    simulated = best(closed.logits[:, : steps + 1], agent.action_space).numpy()
    taken = actions[:, last : last + steps + 1].numpy()
    discrete = isinstance(agent.action_space, gym.spaces.Discrete)
    # As the environment takes them: clipped to its bounds.
    wanted = as_policy_actions(to_env_actions(preferred, agent.action_space), agent.action_space).numpy()
    followed = _alike(taken, wanted, 1e-3).cumprod(1).astype(bool)
    acted = (np.arange(steps + 1) + last < windows.lengths[:, None]) & np.concatenate(
        [np.ones_like(followed[:, :1]), followed[:, :-1]], 1
    )
    agreed = preferred == simulated if discrete else _alike(preferred, simulated, CLOSE)
    found["agreement"] = np.where(acted, agreed, np.nan)
    found["preferred"] = np.where(acted if discrete else acted[..., None], preferred, np.nan)
    if windows.memory.shape[-1]:
        after = windows.memory[:, last + 1 : last + steps + 2]
        inside = closed.memory[:, 1:].numpy()
        norms = np.linalg.norm(after, axis=-1) * np.linalg.norm(inside, axis=-1)
        found["memory"] = np.where(acted, (after * inside).sum(-1) / np.maximum(norms, 1e-12), np.nan)
    return found


def _curve(values: FloatArray, rows: IntArray) -> HorizonCurve:
    """Average ``[n, steps + 1]``, leaving out NaN; intervals leave out the episodes ``rows`` ``[n]``, one after the other."""
    block = blocks(rows)
    sizes = np.bincount(block)
    sums, counts = (np.zeros((len(sizes), values.shape[1])) for _ in range(2))
    np.add.at(sums, block, np.nan_to_num(values))
    np.add.at(counts, block, ~np.isnan(values))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums.sum(0) / counts.sum(0)
        others = (sums.sum(0) - sums) / (counts.sum(0) - counts)
    ends = [jackknife_interval(float(value), left, sizes) for value, left in zip(mean, others.T, strict=True)]
    low, high = np.array(ends, np.float64).T
    return HorizonCurve(mean, low, high)


def cut_out(episodes: Episodes, rows: IntArray, starts: IntArray, length: int) -> Episodes:
    """Return the ``length`` observations from ``starts`` on of the episodes ``rows``; padding repeats an episode's last row."""
    times = starts[:, None] + np.arange(length)
    frames = rows[:, None], np.minimum(times, episodes.lengths[rows][:, None])
    steps = rows[:, None], np.minimum(times[:, :-1], np.maximum(episodes.lengths[rows][:, None] - 1, 0))
    lengths = np.clip(episodes.lengths[rows] - starts, 0, length - 1)
    last = starts + lengths == episodes.lengths[rows]
    return Episodes(
        observations=episodes.observations[frames],
        actions=episodes.actions[steps],
        logits=episodes.logits[steps],
        values=episodes.values[steps],
        memory=episodes.memory[frames],
        rewards=episodes.rewards[steps],
        lengths=lengths,
        terminated=episodes.terminated[rows] & last,
        truncated=episodes.truncated[rows] & last,
        causes=[episodes.causes[row] if ended else "" for row, ended in zip(rows, last, strict=True)],
        levels=episodes.levels[rows],
    )


def _mean_of(episodes: Episodes) -> tuple[FloatArray, FloatArray]:
    """Return the mean observation, and what errors are divided by."""
    length = episodes.observations.shape[1]
    seen = episodes.observations[np.arange(length) <= episodes.lengths[:, None]]
    mean = seen.mean(0, dtype=np.float64).astype(np.float32)
    if is_image(seen[0]):
        return mean, np.float32(255.0) * np.ones(1, np.float32)
    deviation = seen.std(0).astype(np.float32)
    return mean, np.where(deviation > 1e-6, deviation, np.float32(1.0))


def _alike(one: Array, other: Array, within: float) -> BoolArray:
    return np.asarray(np.abs(one - other).max(-1) <= within)


def _majority(preferred: FloatArray, space: gym.Space[Any]) -> float:
    """Return how often the agent prefers its most common action; of Box actions, one within reach of the median."""
    if isinstance(space, gym.spaces.Discrete):
        taken = preferred[~np.isnan(preferred)].astype(int)
        return float(np.bincount(taken).max() / len(taken)) if len(taken) else 0.0
    rows = preferred[~np.isnan(preferred).any(-1)]
    return float(_alike(rows, np.median(rows, 0), CLOSE).mean()) if len(rows) else 0.0
