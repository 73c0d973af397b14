"""ArrayEnvRunner: samples a vector environment as arrays, without episode objects and connectors. Also cuts fragments of rollouts.

RLlib's env runner spends most of its time on them. Everything that sees or changes episodes needs its own runner, which
`rlhf_ray.rllib.ppo` then takes: callbacks of episodes, other RLModules, memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.env_runner import ENV_STEP_FAILURE
from ray.rllib.utils import force_list
from ray.rllib.utils.metrics import RLMODULE_INFERENCE_TIMER

from rlhf_ray.actors.executor import Actor, Executor, Ref
from rlhf_ray.actors.ray_executor import executor_of
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import LostFragmentsError
from rlhf_ray.data.failures import cause
from rlhf_ray.data.fragments import Fragments, Trajectory, cut_fragments
from rlhf_ray.data.images import is_image
from rlhf_ray.data.seeds import generator
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.data.vector_rollout import VectorRollout
from rlhf_ray.policies.actions import gumbel_noise, log_probability, to_env_actions
from rlhf_ray.policies.network import outputs_of
from rlhf_ray.queries.pool import CutFragments, FragmentPool, PoolReport
from rlhf_ray.rllib.env_runner import EnvRunner
from rlhf_ray.settings import ResolvedFragments

logger = logging.getLogger(__name__)


class FragmentCutter(RLlibCallback):  # type: ignore[misc]
    """Sends fragments of each rollout to the ring's pool.

    In the synchronous mode, it waits until the pool has them: losing a rollout's fragments would change the run, so it fails
    instead. In the asynchronous mode, it doesn't wait: while the pool is still busy with an earlier rollout's fragments, new ones
    are dropped (metric ``fragments_dropped``); errors are logged and counted (``fragments_failed``).
    """

    def __init__(self) -> None:
        super().__init__()
        self._sent: Ref[PoolReport] | None = None
        """Reference of the pending call; ready when the pool has the fragments sent last."""
        self._ring: Executor | None = None
        self._pool: Actor[FragmentPool] | None = None
        """The pool's actor handle, looked up once; stays valid when Ray restarts it."""

    def on_sample_end(self, *, env_runner: Any, metrics_logger: Any, samples: Any, **kwargs: Any) -> None:
        """Cut and send fragments (called by RLlib in the env runner's process)."""
        config = env_runner.config
        preferences = config.checked.experiment.preferences
        if config.in_evaluation or not preferences.comparisons:  # no questions to ask
            return
        if config.checked.films and not is_image(env_runner.env.single_observation_space):
            return  # the gatherer wants films, which the rollout collector renders
        failed = dropped = 0
        ring = self._ring = self._ring or executor_of(config.ring_name)
        if preferences.mode == "synchronous":
            try:
                with ring.apart():
                    ring.get(self._send(ring, env_runner, samples))
            except Exception as error:
                raise LostFragmentsError.because(str(cause(error)).partition("\n")[0]) from error
        else:
            try:
                if self._sent is not None and not ring.ready(self._sent):
                    dropped = 1
                else:
                    self._sent = self._send(ring, env_runner, samples)
            except Exception:
                logger.warning(
                    "Can't send this rollout's fragments to the pool; continuing without them.", exc_info=True
                )
                failed = 1
        metrics_logger.log_dict({"fragments_failed": failed, "fragments_dropped": dropped}, reduce="sum")

    def _send(self, ring: Executor, env_runner: Any, samples: Any) -> Ref[PoolReport]:
        if self._pool is None:
            self._pool = ring.find(FragmentPool, "pool")()
        return self._pool.call(FragmentPool.add, self._cut(env_runner, samples))

    def _cut(self, env_runner: Any, episodes: Any) -> CutFragments:
        config = env_runner.config
        settings: ResolvedFragments = config.checked.fragments
        space = env_runner.env.single_action_space
        if isinstance(episodes[0], VectorRollout):
            (rollout,) = episodes
            version = rollout.version
            trajectories = rollout.trajectories(to_env_actions(rollout.actions, space))
            ended = rollout.episode_lengths()
        else:
            version = max(_weights_version(episode) for episode in episodes)
            trajectories = [
                Trajectory(
                    observations=episode.get_observations(),
                    actions=to_env_actions(episode.get_actions(), space),
                    rewards=np.asarray(episode.get_rewards(), dtype=np.float64),
                    terminated=bool(episode.is_terminated),
                    start=int(episode.t_started),
                )
                for episode in episodes
                if len(episode) > 0
            ]
            ended = tuple(int(episode.t) for episode in episodes if episode.is_done)
        count, steps = -(-settings.pool // max(1, config.num_env_runners)), config.get_rollout_fragment_length()
        horizon = config.checked.horizon
        if settings.varied and horizon:
            # Take few enough per rollout that the pool spans an episode: the end of an episode alone may not vary.
            count = -(-count * steps // max(steps, horizon))
        fragments: Fragments | None = cut_fragments(
            trajectories,
            length=settings.length,
            count=count,
            start_share=settings.start_share,
            policy_version=version,
            rng=generator(config.checked.experiment.seed, "fragments", env_runner.worker_index, version),
        )
        too_short = sum(len(trajectory) < settings.length for trajectory in trajectories)
        return CutFragments(env_runner.worker_index, version, fragments, too_short, ended)


def _weights_version(episode: Any) -> int:
    """Return the version of the weights that acted last in ``episode``, which RLlib stores with every step."""
    versions = episode.get_extra_model_outputs("weights_seq_no")
    return int(versions[-1]) if len(versions) else 0


NOISE_ROWS = 256
"""Steps whose noise is drawn at once."""


EPISODE_HOOKS = (
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
)
"""Callbacks that see episodes."""


def needs_episodes(config: Any) -> str | None:
    """Return what in an RLlib configuration works with RLlib's episodes only, in words; None if there is nothing."""
    for hook in EPISODE_HOOKS:
        if getattr(config, f"callbacks_{hook}"):
            return f"callbacks({hook})"
        for kind in force_list(config.callbacks_class):
            if kind is not FragmentCutter and getattr(kind, hook, None) is not getattr(RLlibCallback, hook):
                return f"callbacks: {getattr(kind, '__name__', 'a function')} may use {hook}"
    if config.output:
        return "offline_data(output)"
    return "several learners (num_learners)" if config.num_learners > 1 else None


class ArrayEnvRunner(EnvRunner):
    """An env runner whose `sample` returns a `VectorRollout`, in a list of its own, for each rollout of a number of steps."""

    _needs_initial_reset: bool
    _seen: Array
    """The newest observation of each copy."""
    _ended: BoolArray
    """Whether each copy's episode has ended, so that its next step is a reset."""
    _lengths: IntArray
    """Steps of each copy's episode so far; of one that has ended, all."""
    _returns: FloatArray
    """True return of each copy's episode so far."""
    _begun: FloatArray
    """Time at which each copy's episode began."""

    def _sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> Any:
        """Sample steps (called by RLlib). A number of whole episodes, or random actions, come as RLlib's episodes."""
        if num_timesteps is None or random_actions or self.config.in_evaluation:
            episodes = super()._sample(
                num_timesteps=num_timesteps,
                num_episodes=num_episodes,
                explore=explore,
                random_actions=random_actions,
                force_reset=force_reset or not self.config.in_evaluation,
            )
            self._needs_initial_reset |= not self.config.in_evaluation  # episodes of one kind don't go on in the other
            return episodes
        with self.of_environment as generator:
            return [self._rollout(num_timesteps, generator if explore else None, force_reset)]

    def _rollout(self, wanted: int, generator: torch.Generator | None, reset: bool) -> VectorRollout:
        """Sample steps, with noise of ``generator``; None: without exploration."""
        policy = outputs_of(self.module.unwrapped().network)
        space = self.env.single_action_space
        acting = _Draws(choices_of(space), generator)
        if reset or self._needs_initial_reset:
            self._begin()
        while True:
            starts = self._lengths.copy()
            observations, actions, outputs, results, reals, clock = [self._seen], [], [], [], [], [time.perf_counter()]
            inference, counted = 0.0, 0
            while counted < wanted:
                began = time.perf_counter()
                logits = policy(self._seen)
                action = acting(logits)
                inference += time.perf_counter() - began
                stepped: Any = self.stepped(to_env_actions(action, space))
                if stepped is ENV_STEP_FAILURE:
                    break
                seen, reward, terminated, truncated, _ = stepped
                self._seen = seen
                real = ~self._ended
                observations.append(self._seen)
                actions.append(action)
                outputs.append(logits)
                results.append((np.array(reward, np.float64), np.array(terminated), np.array(truncated)))
                reals.append(real)
                clock.append(time.perf_counter())
                self._lengths = np.where(real, self._lengths + 1, 0)
                self._ended = terminated | truncated
                counted += int(real.sum())
            else:
                break
            self._begin()
        rewards, terminateds, truncateds = (np.stack(column) for column in zip(*results, strict=True))
        rollout = VectorRollout(
            np.stack(observations),
            np.stack(actions),
            _log_probabilities(np.stack(outputs), np.stack(actions), space),
            rewards,
            terminateds,
            truncateds,
            np.stack(reals),
            starts,
            self._weights_seq_no,
            self.worker_index,
        )
        self.metrics.log_value(RLMODULE_INFERENCE_TIMER, inference / len(actions))
        self._log_episodes(rollout, np.array(clock))
        return rollout

    def _begin(self) -> None:
        """Start new episodes in all copies."""
        seed = self._seed if self._needs_initial_reset else None
        observations, _ = self._try_env_reset(seed=seed, options=None)
        self._seen = observations
        self._ended = np.zeros(self.num_envs, bool)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._returns, self._begun = np.zeros(self.num_envs), np.full(self.num_envs, time.perf_counter())
        self._needs_initial_reset = False

    def _log_episodes(self, rollout: VectorRollout, clock: Any) -> None:
        """Log the number of steps, and what RLlib logs of each episode that has ended."""
        ended = 0
        for copy, rows in rollout.pieces():
            if rows.start:  # a new episode
                self._returns[copy], self._begun[copy] = 0.0, clock[rows.start]
            self._returns[copy] += rollout.rewards[rows, copy].sum()
            last = rows.stop - 1
            if rollout.ended[last, copy]:
                ended += 1
                before = int(rollout.starts[copy]) if rows.start == 0 else 0
                length = before + rows.stop - rows.start
                self._log_episode_metrics(length, float(self._returns[copy]), clock[last + 1] - self._begun[copy])
                self._returns[copy], self._begun[copy] = 0.0, clock[last + 1]
        self._log_env_steps(metric=self._metrics_num_env_steps_sampled, num_steps=len(rollout))
        self._increase_sampled_metrics(len(rollout), ended)


class _Draws:
    """Draws actions from a policy's outputs for Box, Discrete and MultiDiscrete; takes the likeliest without a generator."""

    def __init__(self, choices: tuple[int, ...], generator: torch.Generator | None):
        self.choices, self.generator = choices, generator
        self.splits = np.cumsum(choices)[:-1].astype(int)
        self.noise: Iterator[Any] = iter(())

    def _noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Any:
        noise = next(self.noise, None)
        if noise is None:
            rows = (NOISE_ROWS, *shape)
            drawn = gumbel_noise(rows, generator) if self.choices else torch.randn(rows, generator=generator)
            self.noise = iter(drawn.numpy())
            noise = next(self.noise)
        return noise

    def __call__(self, outputs: Any) -> Any:
        if not self.choices:
            mean, log_std = np.split(outputs, 2, 1)
            return mean if self.generator is None else mean + np.exp(log_std) * self._noise(mean.shape, self.generator)
        if self.generator is not None:
            outputs = outputs + self._noise(outputs.shape, self.generator)
        if len(self.choices) == 1:
            return outputs.argmax(1)
        return np.stack([part.argmax(1) for part in np.split(outputs, self.splits, 1)], 1)


def _log_probabilities(outputs: Any, actions: Any, space: Any) -> Any:
    with torch.inference_mode():
        return log_probability(torch.as_tensor(outputs), torch.as_tensor(actions), space).numpy()
