"""Distances of a run's learned reward from the true one: EPIC, DARD, STARC and correlations, on new steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.images import is_image
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.regions import true_reward_of
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.distance_estimates import Estimate
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.functions.function import EnsembleReward
from rlhf_ray.reward.sampled_distances import all_distances, dard, epic, recorded_distances

PAIRS, IMAGE_PAIRS = 512, 128
"""Steps on which EPIC and DARD compare canonical rewards: EPIC takes the square of it in made-up steps."""

LOGGED_STEPS, EPIC_PAIRS, EPIC_DRAWS, DARD_PAIRS, DARD_NEIGHBOURS = 1000, 128, 16, 64, 4
"""Sizes of `logged_distances`, about 30 ms of one core for vectors. On Pendulum, the estimates are within 0.06 of those of
`distances_to_truth`. STARC is not among them: it needs the values of states, and on so few steps it varied by 0.5 with the seed."""


@dataclass(frozen=True)
class RewardDistances:
    """Distances of a learned reward from the true one.

    Attributes:
        version: the reward model's version.
        values: by name (see `rlhf_ray.reward.sampled_distances.DISTANCES`), with 95 % intervals. Distances: 0 is equal up to
            shaping and scale, 1 opposite; EPIC and DARD are 0.71 for unrelated rewards. Without these two if the true reward is
            known for recorded steps only.
    """

    version: int
    values: dict[str, Estimate]


def distances_to_truth(
    reward: RewardEnsemble, environment: str, steps: Transitions, gamma: float, seed: int = 0
) -> RewardDistances:
    """Measure the distances between a learned reward and the true one on ``steps``.

    Args:
        reward: the reward model.
        environment: name of its environment. EPIC and DARD need the reward of steps that nobody took: the environment's own
            formula (`rlhf_ray.envs.ground_truth`), if it has one that agrees with the recorded rewards.
        steps: the steps that the distances rest on; whole episodes.
        gamma: discount of the canonicalisation.
        seed: seeds draws and bootstrap.
    """
    learned = EnsembleReward(reward)
    truth = true_reward_of(environment, steps)
    if truth is None:
        return RewardDistances(int(reward.version), recorded_distances(learned, steps, gamma, seed))
    pairs = IMAGE_PAIRS if is_image(reward.observation_space) else PAIRS
    return RewardDistances(int(reward.version), all_distances(learned, truth, steps, gamma, seed, pairs=pairs))


def logged_distances(
    learned: RewardFunction, truth: RewardFunction, steps: Transitions, gamma: float, seed: int = 0
) -> dict[str, float]:
    """Estimate the distances for the metrics of a run, cheaply and without intervals.

    Args:
        learned: the learned reward.
        truth: the true one.
        steps: recorded steps.
        gamma: discount of the canonicalisation.
        seed: seeds the draws.

    Returns:
        ``epic_distance`` and ``dard_distance``, 0 to 1.
    """
    steps = steps.sample(LOGGED_STEPS, np.random.default_rng([seed, 2]))
    rngs = [np.random.default_rng([seed, at]) for at in range(2)]
    return {
        "epic_distance": epic(learned, truth, steps, gamma, rngs[0], pairs=EPIC_PAIRS, draws=EPIC_DRAWS).value,
        "dard_distance": dard(
            learned, truth, steps, gamma, rngs[1], pairs=DARD_PAIRS, neighbours=DARD_NEIGHBOURS
        ).value,
    }
