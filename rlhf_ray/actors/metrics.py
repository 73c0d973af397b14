"""The metrics of a ring: what its actors, rounds and stages report."""

from __future__ import annotations

from rlhf_ray.data.metrics import Metric, declare

declare(
    "run",
    Metric("env_steps", "Environment steps so far, including those for the initial fragments.", "steps", int),
    Metric("comparisons", "Comparisons answered and stored so far.", "comparisons", int),
)
declare(
    "fragments",
    Metric("fragments_policy_version", "Newest policy version in the pool; -1 is random actions.", kind=int),
    Metric("distinct_fragments", "Share of distinct fragments in the pool.", "share"),
    Metric("too_short", "Trajectories so far that were too short for a fragment.", kind=int),
    Metric("fragments_length", "Length of a fragment.", "steps", int),
    Metric("first_fragments_env_steps", "Environment steps spent on the initial fragments.", "steps", int),
)
declare(
    "labels",
    Metric("rounds", "Labelling rounds so far.", kind=int),
    Metric("skipped", "Pairs that an annotator skipped, because they couldn't decide.", kind=int),
    Metric("labels_due", "Comparisons due so far (asynchronous).", "comparisons"),
    Metric("label_seconds", "Time from request to stored answer, for the newest labels (asynchronous).", "s"),
    Metric(
        "unanswered_seconds",
        "Longest time since the iteration before in which no open question was answered by people.",
        "s",
    ),
    Metric("questions_lost", "Questions lost with a node and replaced by others (asynchronous)."),
    Metric("commits_failed", "Commits of labels that failed and were retried (asynchronous)."),
    Metric("explorations_dropped", "Exploratory rollouts skipped because the collector was busy (asynchronous)."),
)
declare(
    "reward model",
    Metric("reward_version", "Newest version of the reward model.", kind=int),
    Metric("reward_age", "Environment steps since the newest reward version (asynchronous).", "steps"),
)
declare(
    "stages",
    Metric("stage_rate", "Items that a stage of the asynchronous ring processed per second.", "1/s", tag="stage"),
    Metric("stage_idle", "Share of the time that the stage was idle.", "share", tag="stage"),
    Metric("stage_queue", "Items waiting for the stage.", tag="stage"),
)
