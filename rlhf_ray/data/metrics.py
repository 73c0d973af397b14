"""All metrics of a run, each declared once.

Code that computes a metric adds it to the results by name. Everything that shows metrics reads this table: integer types,
Prometheus gauges and help texts, TensorBoard descriptions, terminal bars and the report. A new metric takes one line here and one
where it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """The declaration of a number that a run reports after an iteration.

    Attributes:
        name: name in ``metrics.jsonl`` and everywhere else; for a metric with a tag, see `metric_of`.
        help: description.
        unit: unit; empty for a count.
        kind: int for whole numbers, else float.
        tag: what the metric has one value per; empty for a single value.
        whole: with a tag: whether there is one value for all too, under the name alone.
        gauge: whether it is exported to Prometheus; with ``whole``, the value for all.
        bar: the terminal bar that shows it; empty for none.
        label: its name in that bar.
        among: the metric that counts the answers behind it, which is shown beside it; empty for none.
    """

    name: str
    help: str
    unit: str = ""
    kind: type[int] | type[float] = float
    tag: str = ""
    whole: bool = False
    gauge: bool = True
    bar: str = ""
    label: str = ""
    among: str = ""

    def text(self, value: float, answers: int | None = None) -> str:
        """Format a value for the terminal, with the number of answers behind it, if known."""
        return f"{value:.1f}" if self.unit != "share" else share_of(value, answers)


def share_of(share: float, answers: int | None) -> str:
    """Format a share of answers with their number: on a few, it says little."""
    return f"{share:.2f}" if answers is None else f"{share:.2f} ({answers} answer{'' if answers == 1 else 's'})"


_REWARD, _LEARNED = "true reward per episode", "learned reward per episode"

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("iteration", "Training iterations so far.", kind=int),
        Metric("env_steps", "Environment steps so far, including those for the initial fragments.", "steps", int),
        Metric("comparisons", "Comparisons answered and stored so far.", "comparisons", int),
        Metric("seconds", "Training time so far, without interruptions.", "s"),
        # Returns.
        Metric(
            "true_return_mean",
            "Mean true return of the newest episodes. Training doesn't see it, unless reward_mix is above 0.",
            _REWARD,
            bar="env steps",
            label="true return",
        ),
        Metric(
            "learned_return_mean",
            "Learned return over an episode of mean length.",
            _LEARNED,
            bar="env steps",
            label="learned",
        ),
        Metric("learned_reward_mean", "Mean learned reward per step of the training batch.", "learned reward"),
        Metric("learned_reward_std", "Standard deviation of the learned reward over those steps.", "learned reward"),
        Metric(
            "mixed_reward_mean",
            "Mean per step of what the agent learns from: the learned reward mixed with the environment's (reward_mix above 0).",
            "mixed reward",
        ),
        Metric("episode_length_mean", "Mean length of the newest episodes.", "steps"),
        # The agent.
        Metric("policy_entropy", "Mean entropy of the policy's actions.", "nats"),
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
        Metric("ppo_seconds", "Time of the iteration, without the labelling round before it.", "s"),
        Metric("sampling_seconds", "Time for rollouts; a moving average.", "s"),
        Metric("learning_seconds", "Time for the update; a moving average.", "s"),
        # Fragments.
        Metric("clips_failed", "Rollouts of this iteration whose fragments were lost to an error."),
        Metric("clips_dropped", "Rollouts of this iteration whose fragments were dropped because the pool was busy."),
        Metric("clips_policy_version", "Newest policy version in the pool; -1 is random actions.", kind=int),
        Metric("distinct_clips", "Share of distinct fragments in the pool.", "share"),
        Metric("too_short", "Trajectories so far that were too short for a fragment.", kind=int),
        Metric("fragments_length", "Length of a fragment.", "steps", int),
        Metric("first_clips_env_steps", "Environment steps spent on the initial fragments.", "steps", int),
        Metric(
            "first_clips_gathered", "Times initial fragments were collected; above 1 after nearly all ties.", kind=int
        ),
        # Labels.
        Metric("round", "The labelling round before this iteration.", kind=int),
        Metric("rounds", "Labelling rounds so far.", kind=int),
        Metric("wanted", "Comparisons requested in the round.", "comparisons", int),
        Metric("answered", "Comparisons answered in the round.", "comparisons", int),
        Metric("skipped", "Pairs that an annotator skipped, because they couldn't decide.", kind=int),
        Metric("labels_held_back", "Comparisons due but not requested, because answers are ties.", kind=int),
        Metric("newest_answers", "Newest answers, checked for ties.", "comparisons", int),
        Metric("newest_ties", "Ties among the newest answers.", "comparisons", int),
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
        # The reward model.
        Metric("reward_version", "Newest version of the reward model.", kind=int),
        Metric("learner_reward_version", "Reward version that the agent learned from in this iteration.", kind=int),
        Metric("reward_age", "Environment steps since the newest reward version (asynchronous).", "steps"),
        Metric("ties", "Ties among the stored comparisons.", "comparisons", int),
        Metric("held_out", "Comparisons held out from the fit.", "comparisons", int),
        Metric("held_out_decided", "Those without ties, that held_out_accuracy is about.", "comparisons", int),
        Metric("train_loss", "Mean loss on training comparisons.", "nats"),
        Metric("train_accuracy", "Share of training comparisons, without ties, that the model agrees with.", "share"),
        Metric("held_out_loss", "Mean loss on held-out comparisons.", "nats"),
        Metric(
            "held_out_accuracy",
            "Share of held-out comparisons, without ties, that the model agrees with.",
            "share",
            bar="reward fits",
            label="held-out accuracy",
            among="held_out_decided",
        ),
        Metric(
            "held_out_log_likelihood",
            "Mean log-likelihood of held-out answers, whatever the loss: guessing gives -0.69.",
            "nats",
        ),
        Metric(
            "held_out_brier",
            "Mean squared error of predicted probabilities on held-out comparisons: guessing gives 0.25.",
            "share",
        ),
        Metric(
            "held_out_calibration_error",
            "Mean distance between predicted and observed shares on held-out comparisons; few make it larger.",
            "share",
        ),
        Metric("reward_mean", "Mean raw reward per step, before normalisation.", "raw reward"),
        Metric("reward_std", "Standard deviation of the raw reward: the scale of this version.", "raw reward"),
        Metric(
            "step_correlation",
            "Linear correlation of learned and true rewards of steps in the newest comparisons.",
            "correlation",
        ),
        Metric("step_rank_correlation", "Rank correlation of the same.", "correlation"),
        Metric(
            "return_correlation",
            "Linear correlation of learned and true returns of fragments in the newest comparisons.",
            "correlation",
        ),
        Metric("return_rank_correlation", "Rank correlation of the same.", "correlation"),
        Metric(
            "epic_distance",
            "EPIC distance of the learned to the true reward on the newest comparisons: 0 to 1, 0.71 if unrelated.",
            "distance",
        ),
        Metric("dard_distance", "DARD distance of the same.", "distance"),
        Metric("probe_reward_mean", "Mean learned reward per step on the probe set.", "learned reward"),
        Metric("probe_reward_std", "Standard deviation of the learned reward on the probe set.", "learned reward"),
        Metric(
            "probe_rank_correlation", "Rank correlation of learned and true returns on the probe set.", "correlation"
        ),
        Metric(
            "probe_drift",
            "One minus the rank correlation of the probe set's returns with those of the version before.",
        ),
        Metric(
            "learned_gain",
            "Learned reward per step of the batch above that of the probe set: comparable over reward versions.",
            "probe standard deviations",
        ),
        Metric("disagreement", "Standard deviation over members of the predicted preference.", "share"),
        *(
            Metric(
                f"chosen_{side}",
                f"Newest answers of an annotator {what}.",
                "comparisons",
                int,
                "annotator",
                gauge=False,
            )
            for side, what in (
                ("left", "for the fragment shown on the left"),
                ("right", "for the fragment shown on the right"),
                ("equal", 'that are "equally good"'),
            )
        ),
        Metric("gradient_steps", "Gradient steps of the fit.", kind=int),
        Metric("fit_seconds", "Time of the fit.", "s"),
        *(
            Metric(f"error_rate{what}", f"{of} of all, or of an annotator.", unit, kind, "annotator", whole=True)
            for what, of, unit, kind in (
                ("", "Estimated share of wrong answers,", "share", float),
                ("_low", "Lower end of its 95 % interval,", "share", float),
                ("_high", "Upper end of its 95 % interval,", "share", float),
                ("_answers", "Answers that the estimate is from,", "comparisons", int),
                ("_inverted", "Probability that more than half of the answers are wrong,", "share", float),
            )
        ),
        *(
            Metric(f"error_rate_{what}", of, "share", tag="annotator", gauge=False)
            for what, of in (
                ("earlier", "Error rate of the older half of an annotator's answers."),
                ("earlier_low", "Lower end of its 95 % interval."),
                ("earlier_high", "Upper end of its 95 % interval."),
                ("newest", "Error rate of an annotator's newest 30 answers."),
                ("newest_low", "Lower end of its 95 % interval."),
                ("newest_high", "Upper end of its 95 % interval."),
                ("rose", "Probability that the newest answers have the higher error rate."),
            )
        ),
        Metric("suspicious_answers", "Answers that are more likely wrong than right.", "comparisons", int),
        Metric(
            "rationality",
            "Estimated rationality of an annotator, relative to the others.",
            tag="annotator",
            gauge=False,
        ),
        Metric("l2", "Coefficient of the adaptive L2 penalty."),
        Metric("method", "What a method of the fits says of the last one.", tag="name", gauge=False),
        # Stages of the asynchronous ring.
        Metric("stage_rate", "Items that a stage of the asynchronous ring processed per second.", "1/s", tag="stage"),
        Metric("stage_idle", "Share of the time that the stage was idle.", "share", tag="stage"),
        Metric("stage_queue", "Items waiting for the stage.", tag="stage"),
        Metric("alarms", "Active alarms.", kind=int),
    )
}


def metric_of(name: str) -> tuple[Metric, str] | None:
    """Return the declaration for ``name`` in ``metrics.jsonl`` and the value of its tag; None if undeclared.

    ``error_rate/ada`` is `error_rate` of ada, ``error_rate`` that of all answers; ``fitting_queue`` is `stage_queue` of fitting.
    """
    if (metric := METRICS.get(name)) is not None and (not metric.tag or metric.whole):
        return metric, ""
    head, _, tag = name.partition("/")
    if tag and head in METRICS:
        return METRICS[head], tag
    stage, _, what = name.rpartition("_")
    metric = METRICS.get(f"stage_{what}")
    return None if metric is None or not stage else (metric, stage)


def described(name: str) -> str:
    """Return a metric's description and unit in one line; empty if undeclared."""
    if (found := metric_of(name)) is None:
        return ""
    metric = found[0]
    return f"{metric.help} [{metric.unit}]" if metric.unit else metric.help
