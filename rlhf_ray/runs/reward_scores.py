"""Scores of a run's reward model on the answers that it was not fitted to, for `rlhf-ray evaluate` and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.checkpoints import last_checkpoint
from rlhf_ray.data.comparisons import stable_uniform
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.measure.held_out import (
    DisagreementScores,
    PredictionScores,
    ReliabilityBin,
    disagreement_scores,
    probabilities_of,
    reliability,
    scores,
    scores_by,
)
from rlhf_ray.measure.intervals import RewardCorrelations, reward_correlations
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.annotators import PRIOR, likelihood_rates
from rlhf_ray.reward.probe import learned_rewards
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.store import PreferenceStore

MOST = 2000
"""Most held-out comparisons that are scored, the newest ones: more don't fit into memory if they are images."""


@dataclass(frozen=True)
class RewardScores:
    """Scores of a reward model on held-out comparisons.

    Attributes:
        version: the reward model's version.
        overall: scores of all answers.
        curve: reliability curve.
        groups: scores by ``annotator``, by name.
        disagreement: whether members disagree where the model is wrong; None with one member or few answers.
        correlations: with the true reward, on the compared fragments; NaN where it is unknown.
    """

    version: int
    overall: PredictionScores
    curve: tuple[ReliabilityBin, ...]
    groups: dict[str, dict[str, PredictionScores]]
    disagreement: DisagreementScores | None
    correlations: RewardCorrelations


def score_reward(
    reward: RewardEnsemble,
    store: PreferenceStore,
    held_out_share: float,
    error_rates: Mapping[str, float] | None = None,
    rationalities: Mapping[str, float] | None = None,
) -> RewardScores | None:
    """Score ``reward`` on the comparisons in ``store`` that its fits held out.

    Annotators of weight 0 don't count. Answers are predicted as the likelihood does it: with the mean over members of the return
    differences, with label noise and with what is known of the annotators.

    Args:
        reward: the reward model.
        store: the store that it was fitted to.
        held_out_share: `PreferenceSettings.held_out_share` of the fits: it decides which comparisons were held out.
        error_rates: each annotator's error rate in the likelihood, if `RewardModelSettings.label_noise` is None; without one, a
            typical rate.
        rationalities: each annotator's rationality, with `RewardModelSettings.annotator_rationality`.

    Returns:
        The scores; None if no comparison was held out.
    """
    snapshot, weights = store.snapshot(), store.weights()
    if not len(snapshot):
        return None
    held_out = stable_uniform(snapshot.ids, "held out") < held_out_share
    counted = np.array([weights.get(annotator, 1.0) > 0 for annotator in snapshot.annotators])
    if held_out[counted].all():  # then the fits had to train on them
        return None
    chosen = np.flatnonzero(held_out & counted)[-MOST:]
    if not len(chosen):
        return None
    comparisons = snapshot.gather(chosen)
    said, who = comparisons.preferences, comparisons.annotators
    noise: float | Array = reward.settings.label_noise or 0.0
    if reward.settings.label_noise is None:
        rates = [(error_rates or {}).get(name, PRIOR) for name in snapshot.annotators]
        noise = 2 * likelihood_rates(np.array(rates, np.float32))[chosen]
    sides = (comparisons.pairs.left, comparisons.pairs.right)
    left, right = (reward.fragment_returns(side) for side in sides)
    differences = (left - right) * np.array([(rationalities or {}).get(name, 1.0) for name in who])
    if (limit := reward.settings.largest_log_odds) is not None:
        differences = differences.clip(-limit, limit)
    members = probabilities_of(differences, noise)
    predicted = probabilities_of(differences.mean(0), noise)
    version = int(reward.version)
    groups = {"annotator": scores_by(who, predicted, said)}
    fragments = Fragments.concatenate(sides)
    return RewardScores(
        version,
        scores(predicted, said),
        reliability(predicted, said),
        groups,
        disagreement_scores(members, said),
        reward_correlations(learned_rewards(reward, fragments), fragments.rewards),
    )


def scores_of_run(folder: RunFolder) -> tuple[RewardEnsemble, RewardScores | None] | None:
    """Load a run's newest reward model and score it on the comparisons that its fits held out.

    Returns:
        The reward model, and its scores (None if no comparison was held out); None if the run has no reward model yet, or was
        given one.
    """
    experiment = folder.experiment()
    if experiment.preferences.comparisons == 0 or not (folder.preferences / "store.json").exists():
        return None
    places = [folder.reward_model]
    if (newest := last_checkpoint(folder.checkpoints)) is not None:
        places.insert(0, newest / folder.reward_model.name)  # the run may be training again
    place = next((place for place in places if (place / "reward.json").exists()), None)
    if place is None:
        return None
    reward = RewardEnsemble.load(place)
    store = PreferenceStore(folder.preferences, create=False)
    share = experiment.preferences.held_out_share
    return reward, score_reward(reward, store, share, *newest_of_annotators(folder.rows()))


def newest_of_annotators(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], dict[str, float]]:
    """Return each annotator's error rate in the likelihood and rationality, from the newest row of metrics that has it.

    Both are empty if not estimated.
    """
    found: dict[str, dict[str, float]] = {"error_rate_assumed": {}, "rationality": {}}
    for row in rows:
        for name, value in row.items():
            metric, _, annotator = name.partition("/")
            if annotator and metric in found and value is not None:
                found[metric][annotator] = float(value)
    return found["error_rate_assumed"], found["rationality"]
