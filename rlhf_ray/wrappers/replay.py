"""Relabel the replay buffer of an off-policy Stable-Baselines3 agent after the learned reward changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.wrappers.environments import HumanPreferencesEnv

CHUNK = 4096
"""Steps relabelled at a time: a buffer of images does not fit into memory twice."""


def relabel_replay_buffer(agent: Any, env: HumanPreferencesEnv) -> int:
    """Recompute all rewards in ``agent.replay_buffer`` with the newest version of the learned reward.

    Call it when ``env.status()["reward_version"]`` has changed. The buffer stores the rewards that `step` returned: 0.0 before
    the first version, and rewards of older versions after it. See ``examples/sb3_sac.py``.

    Args:
        agent: SAC, TD3, DDPG or DQN, with a `ReplayBuffer`, `DictReplayBuffer` or `NStepReplayBuffer`.
        env: the environment, or any environment that shares its reward.

    Returns:
        Number of steps in the buffer.

    Raises:
        RuntimeError: there is no learned reward yet.
        ValueError: the buffer's observations are not those that ``env`` returned, for example after frame stacking, or its actions
            not those that it got; or the agent has no such buffer, or it has forgotten what the reward reads of the last steps of
            episodes.
    """
    buffer, space = getattr(agent, "replay_buffer", None), env.action_space
    if buffer is None:
        raise ValueError(
            f"{type(agent).__name__} has no replay buffer: it learns from new rewards alone, so don't relabel."
        )
    if hasattr(buffer, "her_ratio"):
        raise ValueError(
            "The replay buffer is a HerReplayBuffer, which takes rewards of other goals from the environment's own compute_reward: "
            "use a DictReplayBuffer."
        )
    rows = buffer.buffer_size if buffer.full else buffer.pos
    original = _original(buffer.observations, env.observation_space)

    def actions_at(rows: IntArray) -> Array:
        # Stable-Baselines3 stores continuous actions scaled to [-1, 1].
        box = isinstance(space, gym.spaces.Box)
        stored: Array = agent.policy.unscale_action(buffer.actions[rows]) if box else buffer.actions[rows]
        return stored.reshape(-1, *(space.shape or ()))

    newest = np.array([(buffer.pos - 1) % buffer.buffer_size])
    _check_latest(agent, env, original(buffer.observations, newest), actions_at(newest), buffer.rewards[newest[0]])
    for start in range(0, rows, max(1, CHUNK // buffer.n_envs)):
        now = np.arange(start, min(rows, start + max(1, CHUNK // buffer.n_envs)))
        after, following = (
            (buffer.observations, (now + 1) % buffer.buffer_size)
            if buffer.optimize_memory_usage
            else (buffer.next_observations, now)
        )
        actions = actions_at(now)
        ended = buffer.dones[now] * (1 - buffer.timeouts[now])
        before, then, over = original(buffer.observations, now), original(after, following), ended.reshape(-1) > 0
        rewards = env.relabel(before, actions, then, over)
        done = buffer.dones[now].reshape(-1) > 0
        if (
            buffer.optimize_memory_usage
        ):  # which replaces the last observation of an episode by the first of the next one
            _check_same(rewards, env.relabel(before, actions, before, over), done, "optimize_memory_usage=False")
        if not buffer.handle_timeout_termination:
            kept = "handle_timeout_termination=True, optimize_memory_usage=False"
            _check_same(rewards, env.relabel(before, actions, then, ~over), done, kept)
        buffer.rewards[now] = rewards.reshape(len(now), buffer.n_envs)
    return int(rows * buffer.n_envs)


def _check_latest(agent: Any, env: HumanPreferencesEnv, observations: Any, actions: Array, rewards: Array) -> None:
    """Refuse a buffer whose newest steps, one for each environment of the agent, are not what these environments stepped.

    Where another reward was returned since, the environment was stepped by somebody else: then nothing is known.
    """
    try:
        latest = agent.get_env().get_attr("latest_step")
    except AttributeError:  # the agent has no environment, or others
        return
    seen = env._see_all(observations)
    for i, step in enumerate(latest):
        if step is None or not step.rewards[0] or np.float32(step.rewards[0]) != rewards[i]:
            continue
        for name, stored, stepped in (("observations", seen[i], step.before), ("actions", actions[i], step.actions)):
            if not np.allclose(stored, stepped[0], rtol=1e-4, atol=1e-4):
                raise ValueError(
                    f"The replay buffer has other {name} than the environment stepped with: a wrapper around HumanPreferencesEnv "
                    "changes them. Apply that wrapper inside: HumanPreferencesEnv(Wrapper(env))."
                )


def _check_same(rewards: FloatArray, otherwise: FloatArray, done: BoolArray, kept: str) -> None:
    """Refuse a buffer that lacks what the rewards of the steps ``done`` depend on."""
    if not np.array_equal(rewards[done], otherwise[done]):
        raise ValueError(
            "The learned reward reads how a step ends (reward_model.use_next_state, use_done), but the replay buffer does not keep "
            f"that of the last steps of episodes: create it with {kept}."
        )


def _original(stored: Any, space: gym.Space[Any]) -> Callable[[Any, Array], Any]:
    """A function from rows of the buffer's observations, ``[rows, n_envs, …]``, to the environment's observations, ``[n, …]``."""
    if isinstance(stored, dict):
        assert isinstance(space, gym.spaces.Dict)
        parts = {name: _original(array, space[name]) for name, array in stored.items()}
        return lambda arrays, rows: {name: part(arrays[name], rows) for name, part in parts.items()}
    shape, wanted = stored.shape[2:], space.shape or ()
    if shape == wanted:
        return lambda array, rows: array[rows].reshape(-1, *wanted)
    if len(wanted) == 3 and shape == (wanted[2], *wanted[:2]):  # transposed by VecTransposeImage
        return lambda array, rows: np.moveaxis(array[rows].reshape(-1, *shape), 1, -1)
    raise ValueError(
        f"The replay buffer has observations of shape {shape}, but the environment returns {wanted}: apply the wrapper that "
        "changes them inside the environment, or call env.relabel() with the original observations."
    )
