"""A run's metrics: flat, as its folder stores them, and as gauges that Ray serves to Prometheus on every node."""

from __future__ import annotations

from typing import Any

from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    ENV_RUNNER_SAMPLING_TIMER,
    LEARNER_RESULTS,
    LEARNER_UPDATE_TIMER,
    TIMERS,
    WEIGHTS_SEQ_NO,
)
from ray.util.metrics import Gauge

from rlhf_ray.actors.ring import OF_ROUND
from rlhf_ray.data.metrics import METRICS, Metric, declarations, declare, declared, described, plain

declare(
    "run",
    Metric("iteration", "Training iterations so far.", kind=int),
)
declare(
    "returns",
    Metric(
        "true_return_mean",
        "Mean true return of the newest episodes. Training doesn't see it, unless reward_mix is above 0.",
        "true reward per episode",
        bar="env steps",
        label="true return",
    ),
    Metric(
        "learned_return_mean",
        "Learned return over an episode of mean length.",
        "learned reward per episode",
        bar="env steps",
        label="learned",
    ),
    Metric(
        "success_rate",
        "Share of the newest episodes in which a step succeeded, for environments that say so.",
        "share",
        bar="env steps",
        label="success",
    ),
    Metric(
        "info_mean",
        "Mean over the newest episodes' steps of a number that the environment says beside the reward.",
        tag="name",
        gauge=False,
    ),
    Metric("learned_reward_mean", "Mean learned reward per step of the training batch.", "learned reward"),
    Metric("learned_reward_std", "Standard deviation of the learned reward over those steps.", "learned reward"),
    Metric(
        "mixed_reward_mean",
        "Mean per step of what the agent learns from: the learned reward mixed with the environment's (reward_mix above 0).",
        "mixed reward",
    ),
    Metric("episode_length_mean", "Mean length of the newest episodes.", "steps"),
)
declare(
    "agent",
    Metric("policy_entropy", "Mean entropy of the policy's actions.", "nats"),
    Metric("policy_kl", "Kullback-Leibler divergence of an iteration's policy from the one that acted (PPO).", "nats"),
    Metric("pace", "Share of the learning rate that the iteration's steps were of (PPO's kl_target).", "share"),
    Metric("value_explained_variance", "Share of the returns' variance that the value function explains.", "share"),
    Metric("alpha", "Temperature alpha: weight of the policy's entropy (SAC)."),
    Metric("critic_loss", "Sum of both critics' mean squared errors (SAC).", "squared learned return"),
    Metric("value_mean", "Mean value of replayed steps, as the critics see it (SAC).", "learned return"),
    Metric("replayed_steps", "Transitions in the replay buffer (SAC).", "steps", int),
    Metric("agent_gradient_steps", "Gradient steps of the agent in this iteration (SAC).", kind=int),
    Metric(
        "policy_age",
        "Updates between the policy that acted and the one that the iteration updated; mean over env runners.",
        "updates",
    ),
    Metric("iteration_seconds", "Time of the iteration, without the labelling round before it.", "s"),
    Metric("sampling_seconds", "Time for rollouts; a moving average.", "s"),
    Metric("learning_seconds", "Time for the update; a moving average.", "s"),
)
declare(
    "fragments",
    Metric("fragments_failed", "Rollouts of this iteration whose fragments were lost to an error."),
    Metric("fragments_dropped", "Rollouts of this iteration whose fragments were dropped because the pool was busy."),
)
declare(
    "reward model",
    Metric("learner_reward_version", "Reward version that the agent learned from in this iteration.", kind=int),
)

PREFERENCES = "preferences"
"""Key of the ring's metrics in results and of its state in checkpoints; also the name of the store's folder."""


def flat_metrics(result: dict[str, Any]) -> dict[str, Any]:
    """Flatten RLlib's nested result of one iteration to declared metrics: plain numbers by name.

    Includes all declared metrics that env runners, learner and ring logged by name, and those derived from RLlib's.
    """
    runners, learner = result[ENV_RUNNER_RESULTS], result[LEARNER_RESULTS][DEFAULT_MODULE_ID]
    ring = dict(result[PREFERENCES])
    held, stages = dict(ring.pop("round", {})), ring.pop("stages", {})
    for values, name in ((held, "version"), (ring, "finished")):  # the ring's reward_version, and no metric
        values.pop(name, None)
    if held.get("iteration") != result["training_iteration"]:  # no round before this iteration
        held = {}
    elif not held["gradient_steps"]:
        held = {metric.name: held[metric.name] for metric in OF_ROUND}
    length = runners.get("episode_len_mean")
    # Between the policy that acted and the one that this iteration updated; the learner counts its update already.
    acted, updated = runners.get(WEIGHTS_SEQ_NO), learner.get(WEIGHTS_SEQ_NO)
    age = None if acted is None or updated is None else max(0.0, float(updated) - 1 - float(acted))
    every = {str(name): value for name, value in {**runners, **learner}.items()}
    logged = {name: value for name, value in every.items() if name in METRICS or name.startswith("info_mean/")}
    told = declared({**stages, **held, **ring})
    made = {
        "iteration": result["training_iteration"],
        "true_return_mean": runners.get("episode_return_mean"),
        "learned_return_mean": None if length is None else learner["learned_reward_mean"] * length,
        "episode_length_mean": length,
        "policy_entropy": learner.get("entropy"),
        "value_explained_variance": learner.get("vf_explained_var"),
        "learner_reward_version": learner["reward_version"],
        "policy_age": age,
        "fragments_failed": runners.get("fragments_failed", 0),
        "fragments_dropped": runners.get("fragments_dropped", 0),
        "sampling_seconds": result[TIMERS][ENV_RUNNER_SAMPLING_TIMER],  # a moving average over iterations
        "learning_seconds": result[TIMERS][LEARNER_UPDATE_TIMER],
    }
    values = plain(told | logged | made)
    whole = {name for name, (metric, _) in declarations(values).items() if metric.kind is int}
    return {name: int(value) if name in whole and value is not None else value for name, value in values.items()}


class Gauges:
    """Exports the newest metrics of a run as gauges ``rlhf_NAME`` (in Prometheus ``ray_rlhf_NAME``) with the tag ``run``.

    Metrics of the asynchronous ring's stages share one gauge each, such as ``rlhf_stage_rate``, with the tag ``stage``. Each
    algorithm has its own gauges, each Tune trial too, so that a sweep is visible like a run.
    """

    def __init__(self, run: str):
        self._run = run
        self._gauges: dict[str, Gauge] = {}

    def set(self, result: dict[str, Any]) -> None:
        """Update the gauges from RLlib's ``result`` of an iteration."""
        values = flat_metrics(result)
        for name, (metric, tag) in declarations(values).items():
            if (value := values[name]) is None or not metric.gauge or (metric.whole and tag):
                continue
            self._set(metric.name, float(value), **({metric.tag: tag} if metric.tag and not metric.whole else {}))

    def _set(self, name: str, value: float, **tags: str) -> None:
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"rlhf_{name}", described(name), tag_keys=("run", *tags))
        values = {"run": self._run, **tags}  # names of folders and people; Ray takes ASCII
        self._gauges[name].set(
            value, {tag: of.encode("ascii", "backslashreplace").decode() for tag, of in values.items()}
        )
