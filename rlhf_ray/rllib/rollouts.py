"""Rollouts ahead: env runners sample while the learner learns, and wait neither for it nor for each other. And their fragments.

Processes exchange references: an env runner keeps its rollout in its node's object store, and the learner fetches it from there,
once. This process sees observations only if it is the learner.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import ALL_MODULES
from ray.rllib.execution.rollout_ops import synchronous_parallel_sample
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    ENV_RUNNER_SAMPLING_TIMER,
    LEARNER_RESULTS,
    LEARNER_UPDATE_TIMER,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_MODULE_STEPS_TRAINED_LIFETIME,
    SYNCH_WORKER_WEIGHTS_TIMER,
    TIMERS,
)

from rlhf_ray.actors.executor import Actor, Executor, Ref
from rlhf_ray.actors.ray_executor import executor_of
from rlhf_ray.data.errors import LostFragmentsError
from rlhf_ray.data.failures import cause
from rlhf_ray.data.fragments import Fragments, Trajectory, cut_fragments
from rlhf_ray.data.images import is_image
from rlhf_ray.data.seeds import generator
from rlhf_ray.data.vector_rollout import VectorRollout
from rlhf_ray.policies.actions import to_env_actions
from rlhf_ray.queries.pool import CutFragments, FragmentPool, PoolReport
from rlhf_ray.rllib.rllib_internals import env_runner_calls
from rlhf_ray.settings import ResolvedFragments

logger = logging.getLogger(__name__)

TAG = "rollouts"


class RolloutsAhead:
    """The rollouts of a run's env runners. Each env runner starts its next one as soon as the last is done.

    An iteration takes as many rollouts as there are env runners, in order of arrival: a slow or lost env runner delays nobody, and
    faster ones contribute more. With a bound on the age of policies, an iteration takes the rollouts that began first, waits for
    those that would be too old for the next one, and leaves no more than the next ones take in time.

    Args:
        max_age: the most updates between the begin of a rollout and the iteration that takes it; None for no bound.
    """

    def __init__(self, algorithm: Algorithm, max_age: int | None = None):
        self.runners: Any = algorithm.env_runner_group
        self.config: Any = algorithm.config
        self.max_age = max_age
        self.ready: list[tuple[int, Any]] = []
        """Finished rollouts: the iteration that began each, and its reference with its metrics."""
        self.takes = 0
        """Number of iterations so far, with this one."""
        self._begun: dict[int, int] = {}
        """The iteration in which each env runner began its last rollout."""

    def take(self, most: int) -> list[tuple[Any, Any]]:
        """Return the next rollouts: one per env runner, fewer if env runners are lost or exceed ``sample_timeout_s``.

        Args:
            most: maximum number of rollouts for the rest of the run, including these. No more are started.
        """
        wanted = min(most, self.config.num_env_runners)
        deadline = time.monotonic() + self.config.sample_timeout_s
        self.takes += 1
        while True:
            arrived = self.runners.fetch_ready_async_reqs(tags=TAG)
            self.ready += [(self._begun[runner], rollout) for runner, rollout in arrived]
            self._begin(most if self.max_age is None else min(most, wanted * (self.max_age + 1)))
            under_way, left = self._under_way(), deadline - time.monotonic()
            enough = len(self.ready) >= wanted and not any(self._is_late(runner) for runner in under_way.values())
            if enough or not under_way or left <= 0:
                if self.max_age is not None:
                    self.ready.sort(key=operator.itemgetter(0))  # stable: in order of arrival where they began together
                taken, self.ready = self.ready[:wanted], self.ready[wanted:]
                return [rollout for _, rollout in taken]
            late = [call for call, runner in under_way.items() if self._is_late(runner)]
            ray.wait(late or list(under_way), num_returns=1, timeout=left, fetch_local=False)

    def _is_late(self, runner: int) -> bool:
        """Whether the rollout that this env runner is collecting would be too old for the next iteration."""
        return self.max_age is not None and self.takes - self._begun[runner] >= self.max_age

    def _begin(self, most: int) -> None:
        """Start rollouts on idle env runners, as long as fewer than ``most`` are finished or under way."""
        busy = set(self._under_way().values())
        idle = [runner for runner in self.runners.healthy_env_runner_ids() if runner not in busy]
        idle = idle[: max(0, most - len(self.ready) - len(busy))]
        if idle:
            self._begun |= dict.fromkeys(idle, self.takes)
            self.runners.foreach_env_runner_async(_sample, tag=TAG, remote_worker_ids=idle)

    def _under_way(self) -> dict[Any, int]:
        """Return the pending rollout calls, with their env runners."""
        return env_runner_calls(self.runners, TAG)


Ready = Callable[[], None]
"""Waits until the learners can be updated, and prepares them."""


def learn_after_sampling(algorithm: Algorithm, ready: Ready = lambda: None, **of_update: Any) -> None:
    """Run one iteration of RLlib's algorithm (its `training_step`): sample with the newest policy, then update it.

    ``of_update`` are the agent's arguments of `LearnerGroup.update`.
    """
    metrics, config = algorithm.metrics, algorithm.config
    with metrics.log_time((TIMERS, ENV_RUNNER_SAMPLING_TIMER)):
        episodes, results = synchronous_parallel_sample(
            worker_set=algorithm.env_runner_group,
            max_env_steps=config.iteration_env_steps,
            sample_timeout_s=config.sample_timeout_s,
            _uses_new_env_runners=True,
            _return_metrics=True,
        )
        if not episodes:
            return
        metrics.aggregate(results, key=ENV_RUNNER_RESULTS)
    ready()
    learn(algorithm, lambda: {"episodes": episodes}, **of_update)


def learn_while_sampling(algorithm: Algorithm, ahead: RolloutsAhead, most: int, ready: Ready, **of_update: Any) -> None:
    """Run one iteration of RLlib's algorithm (its `training_step`) on rollouts that started during the previous one.

    Until the end of the training, it takes at most ``most``; ``of_update`` are the agent's arguments of `LearnerGroup.update`.

    The policy that sampled is usually one update old, and older for slow env runners, up to `RolloutsAhead`'s bound. As always,
    PPO's probability ratios are relative to the policy that sampled; SAC learns from any policy's steps.
    """
    metrics = algorithm.metrics
    with metrics.log_time((TIMERS, ENV_RUNNER_SAMPLING_TIMER)):
        rollouts = ahead.take(most)
        if not rollouts:
            return
        metrics.aggregate([results for _, results in rollouts], key=ENV_RUNNER_RESULTS)
    ready()
    learn(algorithm, lambda: _data(algorithm, [reference for reference, _ in rollouts]), **of_update)


def learn(algorithm: Algorithm, fetch: Callable[[], dict[str, Any] | None], **of_update: Any) -> None:
    """Update the learners with the rollouts that ``fetch`` returns, if any are left, and give env runners the new weights."""
    metrics, learners = algorithm.metrics, algorithm.learner_group
    with metrics.log_time((TIMERS, LEARNER_UPDATE_TIMER)):
        trained = (LEARNER_RESULTS, ALL_MODULES, NUM_MODULE_STEPS_TRAINED_LIFETIME)
        if (data := fetch()) is None:
            return
        results = learners.update(
            **data,
            timesteps={
                NUM_ENV_STEPS_SAMPLED_LIFETIME: metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME)),
                NUM_MODULE_STEPS_TRAINED_LIFETIME: metrics.peek(trained, default=0),
            },
            **of_update,
        )
        metrics.aggregate(results, key=LEARNER_RESULTS)
    with metrics.log_time((TIMERS, SYNCH_WORKER_WEIGHTS_TIMER)):
        algorithm.env_runner_group.sync_weights(
            from_worker_or_learner_group=learners,
            policies=set(results[0].keys()) - {ALL_MODULES},
            inference_only=True,
        )


def _sample(runner: Any) -> tuple[Any, Any]:
    """Sample a rollout; return its reference and metrics (called in the env runner)."""
    return ray.put(runner.sample()), runner.get_metrics()


def _data(algorithm: Algorithm, references: list[Any]) -> dict[str, Any] | None:
    """Return the rollouts as learner arguments: by reference if there are enough for all learners; None if all were lost."""
    config = algorithm.config
    if config.num_learners == 0 or len(references) < config.num_learners:
        episodes = []
        for reference in references:
            with contextlib.suppress(ray.exceptions.ObjectLostError):  # its node or env runner is gone
                episodes += ray.get(reference)
        return {"episodes": episodes} if episodes else None
    if config.num_learners == 1:
        return {"episodes_refs": references}
    # The same number of minibatches for each learner, whatever its share: they synchronise at every minibatch.
    steps = config.total_train_batch_size * len(references) // config.num_env_runners // config.num_learners
    minibatches = max(1, config.num_epochs * steps // config.minibatch_size)
    return {"episodes_refs": references, "num_total_minibatches": minibatches}


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
            # RLlib stores the version of the weights that acted with every step.
            versions = [episode.get_extra_model_outputs("weights_seq_no") for episode in episodes]
            version = max(int(of[-1]) if len(of) else 0 for of in versions)
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
            apart=settings.apart,
        )
        return CutFragments(env_runner.worker_index, version, fragments, ended)
