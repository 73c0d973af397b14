"""Rollouts ahead: env runners that sample while the learner learns, and wait neither for it nor for each other.

What moves between processes is references: an env runner keeps its rollout in its node's object store, and the learner that learns
from it fetches it from there, once. This process sees frames only where it is the learner.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPO
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
    """The rollouts of a run's env runners: each begins its next as soon as its last is there.

    An iteration takes as many as there are env runners, the first that come, so that one that is slow or lost holds up nobody;
    those that are faster sample more of them.
    """

    def __init__(self, algorithm: PPO):
        self.runners: Any = algorithm.env_runner_group
        self.config: Any = algorithm.config
        self.ready: deque[tuple[Any, Any]] = deque()
        """References of rollouts that came, and their metrics."""

    def take(self, most: int) -> list[tuple[Any, Any]]:
        """The next rollouts, of which there are fewer only where env runners are lost, or too slow for ``sample_timeout_s``.

        Args:
            most: rollouts that may still be taken in the whole run, these included: no more are begun.
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
        """Have those sample who do not, as far as what they make is wanted."""
        busy = set(self._under_way().values())
        idle = [runner for runner in self.runners.healthy_env_runner_ids() if runner not in busy]
        idle = idle[: max(0, most - len(self.ready) - len(busy))]
        if idle:
            self.runners.foreach_env_runner_async(_sample, tag=TAG, remote_worker_ids=idle)

    def _under_way(self) -> dict[Any, int]:
        """The calls that sample, with their env runners."""
        return env_runner_calls(self.runners, TAG)


def learn_while_sampling(algorithm: PPO, ahead: RolloutsAhead, most: int) -> None:
    """One iteration of RLlib's PPO (its `training_step`) on rollouts that were begun during the one before.

    The policy that sampled is mostly one update old, older the slower an env runner is compared with the others. PPO's probability
    ratios are against the policy that sampled, as always.

    Args:
        algorithm: with env runners of their own processes.
        ahead: its rollouts.
        most: rollouts that may be taken until the end of training.
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
            num_epochs=algorithm.config.num_epochs,
            minibatch_size=algorithm.config.minibatch_size,
            shuffle_batch_per_epoch=algorithm.config.shuffle_batch_per_epoch,
        )
        metrics.aggregate(results, key=LEARNER_RESULTS)
    with metrics.log_time((TIMERS, SYNCH_WORKER_WEIGHTS_TIMER)):
        runners.sync_weights(
            from_worker_or_learner_group=learners,
            policies=set(results[0].keys()) - {ALL_MODULES},
            inference_only=True,
        )


def _sample(runner: Any) -> tuple[Any, Any]:
    """A rollout's reference, and the metrics of it (called in the env runner)."""
    return ray.put(runner.sample()), runner.get_metrics()


def _data(algorithm: PPO, references: list[Any]) -> dict[str, Any] | None:
    """The rollouts as the learners take them, by reference where there are enough for all learners; None where none are left."""
    config = algorithm.config
    if config.num_learners == 0 or len(references) < config.num_learners:
        episodes = []
        for reference in references:
            with contextlib.suppress(ray.exceptions.ObjectLostError):  # its node, or its env runner, is gone
                episodes += ray.get(reference)
        return {"episodes": episodes} if episodes else None
    if config.num_learners == 1:
        return {"episodes_refs": references}
    # As many minibatches for each learner, whatever its share: they wait for each other at every one.
    steps = config.total_train_batch_size * len(references) // config.num_env_runners // config.num_learners
    minibatches = max(1, config.num_epochs * steps // config.minibatch_size)
    return {"episodes_refs": references, "num_total_minibatches": minibatches}
