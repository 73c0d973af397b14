"""Every metric of a run, declared once.

What computes a metric puts it into the results under its name; everything that shows metrics reads this table: whole numbers,
Prometheus's gauges and their help, TensorBoard's descriptions, the terminal's bars and the report's table. So a new metric is one
line here and one where it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A number that a run tells after an iteration.

    Attributes:
        name: in ``metrics.jsonl`` and everywhere else; of a metric with a tag, see `metric_of`.
        help: what it is.
        unit: empty for a count.
        kind: int for what is whole.
        tag: what there is one value of the metric for each of.
        gauge: whether Prometheus gets it.
        bar: the terminal's bar that shows it; none unless given.
        label: what it is called there.
    """

    name: str
    help: str
    unit: str = ""
    kind: type[int] | type[float] = float
    tag: str = ""
    gauge: bool = True
    bar: str = ""
    label: str = ""

    def text(self, value: float) -> str:
        """A value as the terminal shows it."""
        return f"{value:.2f}" if self.unit == "share" else f"{value:.1f}"


_REWARD, _LEARNED = "true reward per episode", "learned reward per episode"

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("iteration", "Iterations of the agent's training so far.", kind=int),
        Metric("env_steps", "Environment steps so far, those of the first clips included.", "steps", int),
        Metric("comparisons", "Comparisons answered and stored so far.", "comparisons", int),
        Metric("seconds", "Time since the training began, interruptions left out.", "s"),
        # Returns.
        Metric(
            "true_return_mean",
            "Mean true return of the newest episodes. Training does not see it.",
            _REWARD,
            bar="env steps",
            label="true return",
        ),
        Metric(
            "learned_return_mean",
            "The learned reward of as many steps as those episodes have.",
            _LEARNED,
            bar="env steps",
            label="learned",
        ),
        Metric("learned_reward_mean", "Mean learned reward of a step that the agent learned from.", "learned reward"),
        Metric("learned_reward_std", "Its standard deviation over steps.", "learned reward"),
        Metric("episode_length_mean", "Mean length of the newest episodes.", "steps"),
        # The agent.
        Metric("policy_entropy", "Mean entropy of the policy's actions.", "nats"),
        Metric("value_explained_variance", "Share of the returns' variance that the value function explains.", "share"),
        Metric("ppo_seconds", "Time of the iteration, without the labelling round before it.", "s"),
        Metric("sampling_seconds", "Time for rollouts; an average that forgets earlier iterations.", "s"),
        Metric("learning_seconds", "Time for the update; an average that forgets earlier iterations.", "s"),
        # Clips.
        Metric("clips_failed", "Rollouts of this iteration that gave no clips because of an error."),
        Metric("clips_dropped", "Rollouts of this iteration whose clips the pool had no time for."),
        Metric("clips_policy_version", "The newest policy that clips in the pool are of; -1 is random.", kind=int),
        Metric("distinct_clips", "Share of the clips in the pool that are no copies of others.", "share"),
        Metric("too_short", "Stretches of episodes so far that were too short for a clip.", kind=int),
        Metric("fragments_length", "Length of a clip.", "steps", int),
        Metric("first_clips_env_steps", "Environment steps that the first clips took.", "steps", int),
        Metric(
            "first_clips_gathered", "Times that first clips were gathered; more where all answers were ties.", kind=int
        ),
        # Labels.
        Metric("round", "The labelling round before this iteration.", kind=int),
        Metric("rounds", "Labelling rounds so far.", kind=int),
        Metric("wanted", "Comparisons that the round wanted.", "comparisons", int),
        Metric("answered", "Comparisons that it got.", "comparisons", int),
        Metric("labels_held_back", "Comparisons that are due and not asked for, since they would be ties.", kind=int),
        Metric("newest_answers", "Newest answers looked at for ties.", "comparisons", int),
        Metric("newest_ties", "Ties among them.", "comparisons", int),
        Metric("labels_due", "Comparisons due so far (asynchronous).", "comparisons"),
        Metric("label_seconds", "From asking to stored, of the labels stored last (asynchronous).", "s"),
        Metric("questions_lost", "Questions lost with a node, which others took the place of (asynchronous)."),
        Metric("commits_failed", "Times that labels could not be stored and waited (asynchronous)."),
        Metric("explorations_dropped", "Exploratory rollouts left out because the collector was busy (asynchronous)."),
        # The reward model.
        Metric("reward_version", "Newest version of the reward model.", kind=int),
        Metric("learner_reward_version", "Version that the agent learned from in this iteration.", kind=int),
        Metric("reward_age", "Environment steps since the newest version was made (asynchronous).", "steps"),
        Metric("ties", "Ties among the comparisons of the fit.", "comparisons", int),
        Metric("held_out", "Comparisons held out from the fit.", "comparisons", int),
        Metric("train_loss", "Mean loss on the comparisons of the fit.", "nats"),
        Metric("train_accuracy", "Share of them, ties left out, that the model agrees with.", "share"),
        Metric("held_out_loss", "Mean loss on held-out comparisons.", "nats"),
        Metric(
            "held_out_accuracy",
            "Share of held-out comparisons, ties left out, that the model agrees with.",
            "share",
            bar="reward fits",
            label="held-out accuracy",
        ),
        Metric("reward_mean", "Mean of a step's raw reward, before it is normalised.", "raw reward"),
        Metric("reward_std", "Its standard deviation: the scale of this version.", "raw reward"),
        Metric("disagreement", "Standard deviation over members of the predicted probability.", "share"),
        Metric("left_share", "Share of the newest decided answers that prefer the left clip.", "share"),
        Metric("gradient_steps", "Gradient steps of the fit.", kind=int),
        Metric("fit_seconds", "Time of the fit.", "s"),
        Metric("error_rate", "How often an annotator answers the opposite.", "share", tag="annotator", gauge=False),
        # Stages of the asynchronous ring.
        Metric("stage_rate", "Things that a stage of the asynchronous ring did per second.", "1/s", tag="stage"),
        Metric("stage_idle", "Share of the time that it was idle.", "share", tag="stage"),
        Metric("stage_queue", "What waits for it.", tag="stage"),
        Metric("alarms", "Alarms that are on.", kind=int),
    )
}


def metric_of(name: str) -> tuple[Metric, str] | None:
    """The metric that ``name`` in ``metrics.jsonl`` is of, and the value of its tag; None where none is declared.

    ``error_rate/ada`` is `error_rate` of ada, and ``fitting_queue`` is `stage_queue` of fitting.
    """
    if (metric := METRICS.get(name)) is not None and not metric.tag:
        return metric, ""
    head, _, tag = name.partition("/")
    if tag and head in METRICS:
        return METRICS[head], tag
    stage, _, what = name.rpartition("_")
    metric = METRICS.get(f"stage_{what}")
    return None if metric is None or not stage else (metric, stage)


def described(name: str) -> str:
    """What a metric is and its unit, in a line; empty where it is not declared."""
    if (found := metric_of(name)) is None:
        return ""
    metric = found[0]
    return f"{metric.help} [{metric.unit}]" if metric.unit else metric.help
