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

from rlhf_ray.data.nested import plain

PREFERENCES = "preferences"
"""Key of the ring's metrics in results, of its state in checkpoints, and name of the store's folder."""

_OF_CLIPS = (
    "fragments_length",
    "first_clips_env_steps",
    "first_clips_gathered",
    "labels_held_back",
    "newest_answers",
    "newest_ties",
)
"""What was chosen where the settings are auto, and what labels are spent on."""

_OF_FIT = (
    "ties",
    "held_out",
    "train_loss",
    "train_accuracy",
    "held_out_loss",
    "held_out_accuracy",
    "reward_mean",
    "reward_std",
    "disagreement",
    "left_share",
    "gradient_steps",
    "fit_seconds",
)
"""What an iteration's metrics say of the fit before it, where there was one."""


def flat_metrics(result: dict[str, Any]) -> dict[str, Any]:
    """The metrics of one iteration, from RLlib's nested result, as plain numbers with one name each."""
    runners, learner = result[ENV_RUNNER_RESULTS], result[LEARNER_RESULTS][DEFAULT_MODULE_ID]
    ring = dict(result[PREFERENCES])
    held, stages = ring.pop("round", {}), ring.pop("stages", {})
    length = runners.get("episode_len_mean")
    metrics = {
        "iteration": result["training_iteration"],
        "true_return_mean": runners.get("episode_return_mean"),
        "learned_return_mean": None if length is None else learner["learned_reward_mean"] * length,
        "episode_length_mean": length,
        "learned_reward_mean": learner["learned_reward_mean"],
        "policy_entropy": learner["entropy"],
        "value_explained_variance": learner["vf_explained_var"],
        "clips_failed": runners.get("clips_failed", 0),
        "clips_dropped": runners.get("clips_dropped", 0),
        "ppo_seconds": ring["ppo_seconds"],
        "sampling_seconds": result[TIMERS][ENV_RUNNER_SAMPLING_TIMER],  # of this and, ever less, of earlier iterations
        "learning_seconds": result[TIMERS][LEARNER_UPDATE_TIMER],
        **stages,
        **{
            name: ring[name]
            for name in (
                "env_steps",
                "comparisons",
                "reward_version",
                "rounds",
                "too_short",
                "distinct_clips",
                "clips_policy_version",
            )
        },
        "learner_reward_version": learner["reward_version"],
        **{name: ring[name] for name in _OF_CLIPS if name in ring},
    }
    if result["training_iteration"] == held.get("iteration"):  # a round was held before this iteration
        metrics |= {name: held[name] for name in ("round", "wanted", "answered")}
        if held["gradient_steps"]:
            rates = [name for name in held if name.startswith("error_rate/")]
            metrics |= {name: held[name] for name in (*_OF_FIT, *rates)}
    whole = (
        "iteration",
        "env_steps",
        "comparisons",
        "reward_version",
        "learner_reward_version",
        "clips_policy_version",
        "rounds",
        "too_short",
        "round",
        "wanted",
        "answered",
        *_OF_CLIPS,
    )
    return {
        name: int(value) if name in whole and value is not None else value for name, value in plain(metrics).items()
    }


class Gauges:
    """The newest metrics of a run, as gauges named ``rlhf_NAME`` (Prometheus sees ``ray_rlhf_NAME``) with the tag ``run``.

    What is told of each stage of the asynchronous ring is one gauge, ``rlhf_stage_rate`` and the like, with the tag ``stage``.

    Args:
        run: the run's name.
    """

    def __init__(self, run: str):
        self._run = run
        self._gauges: dict[str, Gauge] = {}

    def set(self, result: dict[str, Any]) -> None:
        """Show RLlib's ``result`` of an iteration."""
        for name, value in flat_metrics(result).items():
            stage, _, what = name.rpartition("_")
            if value is None or "/" in name:  # the error rates of annotators are people's own business
                continue
            if f"{stage}_queue" in result[PREFERENCES].get("stages", {}) and what in ("rate", "idle", "queue"):
                self._set(f"stage_{what}", float(value), stage=stage)
            else:
                self._set(name, float(value))

    def _set(self, name: str, value: float, **tags: str) -> None:
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"rlhf_{name}", tag_keys=("run", *tags))
        self._gauges[name].set(value, {"run": self._run, **tags})
