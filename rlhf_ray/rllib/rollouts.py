"""Rollouts ahead: env runners sample while the learner learns, and wait neither for it nor for each other.

Processes exchange references: an env runner keeps its rollout in its node's object store, and the learner fetches it from there,
once. This process sees observations only if it is the learner.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any

import ray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core import ALL_MODULES
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

from rlhf_ray.rllib.rllib_internals import env_runner_calls

TAG = "rollouts"


class RolloutsAhead:
    """The rollouts of a run's env runners. Each env runner starts its next one as soon as the last is done.

    An iteration takes as many rollouts as there are env runners, in order of arrival: a slow or lost env runner delays nobody, and
    faster ones contribute more.
    """

    def __init__(self, algorithm: Algorithm):
        self.runners: Any = algorithm.env_runner_group
        self.config: Any = algorithm.config
        self.ready: deque[tuple[Any, Any]] = deque()
        """References of finished rollouts and their metrics."""

    def take(self, most: int) -> list[tuple[Any, Any]]:
        """Return the next rollouts: one per env runner, fewer if env runners are lost or exceed ``sample_timeout_s``.

        Args:
            most: maximum number of rollouts for the rest of the run, including these. No more are started.
        """
        wanted = min(most, self.config.num_env_runners)
        deadline = time.monotonic() + self.config.sample_timeout_s
        while True:
            self.ready.extend(found for _, found in self.runners.fetch_ready_async_reqs(tags=TAG))
            self._begin(most)
            under_way, left = self._under_way(), deadline - time.monotonic()
            if len(self.ready) >= wanted or not under_way or left <= 0:
                return [self.ready.popleft() for _ in range(min(wanted, len(self.ready)))]
            ray.wait(list(under_way), num_returns=1, timeout=left, fetch_local=False)

    def _begin(self, most: int) -> None:
        """Start rollouts on idle env runners, as many as are still needed."""
        busy = set(self._under_way().values())
        idle = [runner for runner in self.runners.healthy_env_runner_ids() if runner not in busy]
        idle = idle[: max(0, most - len(self.ready) - len(busy))]
        if idle:
            self.runners.foreach_env_runner_async(_sample, tag=TAG, remote_worker_ids=idle)

    def _under_way(self) -> dict[Any, int]:
        """Return the pending rollout calls, with their env runners."""
        return env_runner_calls(self.runners, TAG)


def learn_while_sampling(algorithm: Algorithm, ahead: RolloutsAhead, most: int, **of_update: Any) -> None:
    """Run one iteration of RLlib's algorithm (its `training_step`) on rollouts that started during the previous one.

    The policy that sampled is usually one update old, and older for slow env runners. As always, PPO's probability ratios are
    relative to the policy that sampled; SAC learns from any policy's steps.

    Args:
        algorithm: an algorithm with remote env runners.
        ahead: its rollouts.
        most: maximum number of rollouts until the end of training.
        of_update: the agent's own arguments of `LearnerGroup.update`.
    """
    metrics, runners, learners = algorithm.metrics, algorithm.env_runner_group, algorithm.learner_group
    with metrics.log_time((TIMERS, ENV_RUNNER_SAMPLING_TIMER)):
        rollouts = ahead.take(most)
        if not rollouts:
            return
        metrics.aggregate([results for _, results in rollouts], key=ENV_RUNNER_RESULTS)
    with metrics.log_time((TIMERS, LEARNER_UPDATE_TIMER)):
        data = _data(algorithm, [reference for reference, _ in rollouts])
        if data is None:
            return
        trained = (LEARNER_RESULTS, ALL_MODULES, NUM_MODULE_STEPS_TRAINED_LIFETIME)
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
        runners.sync_weights(
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
