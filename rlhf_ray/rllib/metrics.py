"""A run's metrics: flat, as its folder keeps them, and as gauges, which Ray serves to Prometheus on every node."""

from __future__ import annotations

from typing import Any

from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    ENV_RUNNER_SAMPLING_TIMER,
    LEARNER_RESULTS,
    LEARNER_UPDATE_TIMER,
    TIMERS,
)
from ray.util.metrics import Gauge

from rlhf_ray.data.metrics import METRICS, described, metric_of
from rlhf_ray.data.plain import plain

PREFERENCES = "preferences"
"""Key of the ring's metrics in results, of its state in checkpoints, and name of the store's folder."""

_OF_ROUND = ("round", "wanted", "answered")
"""What a round tells that no fit followed."""


def flat_metrics(result: dict[str, Any]) -> dict[str, Any]:
    """The metrics of one iteration, from RLlib's nested result, as plain numbers with one name each.

    These are all declared metrics that env runners, learner or ring have logged by their names, and those made here from RLlib's.
    """
    runners, learner = result[ENV_RUNNER_RESULTS], result[LEARNER_RESULTS][DEFAULT_MODULE_ID]
    ring = dict(result[PREFERENCES])
    held, stages = ring.pop("round", {}), ring.pop("stages", {})
    if held.get("iteration") != result["training_iteration"]:  # no round was held before this iteration
        held = {}
    elif not held["gradient_steps"]:
        held = {name: held[name] for name in _OF_ROUND}
    length = runners.get("episode_len_mean")
    logged = {name: value for name, value in {**runners, **learner, **ring}.items() if name in METRICS}
    told = {name: value for name, value in {**stages, **held}.items() if metric_of(name) is not None}
    made = {
        "iteration": result["training_iteration"],
        "true_return_mean": runners.get("episode_return_mean"),
        "learned_return_mean": None if length is None else learner["learned_reward_mean"] * length,
        "episode_length_mean": length,
        "policy_entropy": learner["entropy"],
        "value_explained_variance": learner["vf_explained_var"],
        "learner_reward_version": learner["reward_version"],
        "clips_failed": runners.get("clips_failed", 0),
        "clips_dropped": runners.get("clips_dropped", 0),
        "sampling_seconds": result[TIMERS][ENV_RUNNER_SAMPLING_TIMER],  # of this and, ever less, of earlier iterations
        "learning_seconds": result[TIMERS][LEARNER_UPDATE_TIMER],
    }
    return {name: _whole(name, value) for name, value in plain(told | logged | made).items()}


def _whole(name: str, value: Any) -> Any:
    """The value, as an int where the metric is one."""
    found = metric_of(name)
    return int(value) if found is not None and found[0].kind is int and value is not None else value


class Gauges:
    """The newest metrics of a run, as gauges named ``rlhf_NAME`` (Prometheus sees ``ray_rlhf_NAME``) with the tag ``run``.

    What is told of each stage of the asynchronous ring is one gauge, ``rlhf_stage_rate`` and the like, with the tag ``stage``.
    Each algorithm has its own, a trial of Tune's too, so that a sweep is seen as a run is.

    Args:
        run: the run's name.
    """

    def __init__(self, run: str):
        self._run = run
        self._gauges: dict[str, Gauge] = {}

    def set(self, result: dict[str, Any]) -> None:
        """Show RLlib's ``result`` of an iteration."""
        for name, value in flat_metrics(result).items():
            found = metric_of(name)
            if value is None or found is None or not found[0].gauge:
                continue
            metric, tag = found
            self._set(metric.name, float(value), **({metric.tag: tag} if metric.tag else {}))

    def _set(self, name: str, value: float, **tags: str) -> None:
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"rlhf_{name}", described(name), tag_keys=("run", *tags))
        self._gauges[name].set(value, {"run": self._run, **tags})
