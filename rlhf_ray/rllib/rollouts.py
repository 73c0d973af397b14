"""Rollouts ahead: env runners sample while the learner learns, and wait neither for it nor for each other.

Processes exchange references: an env runner keeps its rollout in its node's object store, and the learner fetches it from there,
once. This process sees observations only if it is the learner.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable
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


def learn_while_sampling(algorithm: Algorithm, ahead: RolloutsAhead, most: int, **of_update: Any) -> None:
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
