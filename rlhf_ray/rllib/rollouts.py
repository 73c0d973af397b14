"""Rollouts ahead: env runners that sample the next batch while the learner learns from the last.

What moves between processes is references: an env runner keeps its rollout in its node's object store, and the learner that learns
from it fetches it from there, once. This process sees frames only where it is the learner.
"""

from __future__ import annotations

import contextlib
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

TAG = "rollouts"


def learn_while_sampling(algorithm: PPO, more: bool) -> None:
    """One iteration of RLlib's PPO (its `training_step`) whose rollouts were sampled during the one before.

    The policy that sampled is one update old. PPO's probability ratios are against the policy that sampled, as always.

    Args:
        algorithm: with env runners of their own processes.
        more: whether to have the next rollouts sampled meanwhile.
    """
    metrics, runners, learners = algorithm.metrics, algorithm.env_runner_group, algorithm.learner_group
    with metrics.log_time((TIMERS, ENV_RUNNER_SAMPLING_TIMER)):
        _start(runners)  # refused by those that are sampling
        rollouts = runners.fetch_ready_async_reqs(tags=TAG, timeout_seconds=algorithm.config.sample_timeout_s)
        if not rollouts:
            return
        metrics.aggregate([results for _, (_, results) in rollouts], key=ENV_RUNNER_RESULTS)
    if more:
        _start(runners)
    with metrics.log_time((TIMERS, LEARNER_UPDATE_TIMER)):
        data = _data(algorithm, [reference for _, (reference, _) in rollouts])
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


def _start(runners: Any) -> None:
    runners.foreach_env_runner_async(_sample, tag=TAG)


def _sample(runner: Any) -> tuple[Any, Any]:
    """A rollout's reference, and the metrics of it (called in the env runner)."""
    return ray.put(runner.sample()), runner.get_metrics()


def _data(algorithm: PPO, references: list[Any]) -> dict[str, Any] | None:
    """The rollouts as the learners take them; None where too few are left for them."""
    config = algorithm.config
    if config.num_learners == 0:
        episodes = []
        for reference in references:
            with contextlib.suppress(ray.exceptions.ObjectLostError):  # its node, or its env runner, is gone
                episodes += ray.get(reference)
        return {"episodes": episodes} if episodes else None
    if len(references) < config.num_learners:
        return None
    if config.num_learners == 1:
        return {"episodes_refs": references}
    # As many minibatches for each learner, whatever its share: they wait for each other at every one.
    steps = config.total_train_batch_size * len(references) // config.num_env_runners // config.num_learners
    minibatches = max(1, config.num_epochs * steps // config.minibatch_size)
    return {"episodes_refs": references, "num_total_minibatches": minibatches}
