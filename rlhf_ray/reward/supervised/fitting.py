"""Fit a reward model to recorded rewards: from transitions to a `RewardEnsemble` and a report on episodes it did not see.

In adversarial training, the model learns that its own feature visualisations earn nothing. Each round visualises inputs that the
current model scores highly and keeps them all (a replay buffer), so that the model does not forget the first ones. The model that
is kept is the last that still does the task on the validation part: episodes that neither training nor test sees. Visualisations
have the data's own type: mixed with bytes, floats in [0, 1] turn a batch's images to floats, whose real images are then no longer
scaled, and the model learns to tell the two kinds apart by their brightness.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.supervised.fitter import Fitter, check_steps
from rlhf_ray.reward.supervised.report import AdversarialReport, SupervisedReport, balanced_auc, count_episodes, predict
from rlhf_ray.settings import SUPERVISED_MODEL, RewardModelSettings, SupervisedSettings

Visualise = Callable[[RewardEnsemble, int], Transitions]
"""Makes steps that the reward model scores highly, from a seed. Observations are in the environment's type: images are uint8."""

KEPT = 0.005, 1.1
"""A model keeps the task if its balanced AUC on the validation part falls by at most the first; where no AUC is known, if its error
there is at most the second times what it was."""
CHECKS = 4
"""Checks of the task per round."""
HELD_OUT = 0, 1, 2
"""Numbers of the visualisations that are only measured: held out, fresh before, fresh after. Round ``k``'s has ``3 + k``."""


def train_adversarially(
    fitter: Fitter,
    validation: Transitions,
    test: Transitions,
    visualise: Visualise,
    updates: int,
    tell: Callable[[int], None],
) -> AdversarialReport:
    """Train ``fitter``'s model against its own visualisations, for the rounds of its settings of ``updates`` gradient steps each.

    The validation part chooses the model; the test part says what the training costs.

    Raises:
        SettingError: a visualisation does not fit the environment's spaces and types.
    """
    settings, train = fitter.settings, fitter.train
    nonsense = float(np.median(train.rewards)) if settings.nonsense_reward is None else settings.nonsense_reward
    target = float(fitter.objective.targets(np.array([nonsense]))[0])

    def made(number: int) -> Transitions:
        seed = int(np.random.default_rng([fitter.seed, *b"visualise", number]).integers(2**31))
        steps = visualise(fitter.on_cpu(), seed)
        steps = steps.with_(rewards=np.full(len(steps), nonsense), columns={})
        spaces = fitter.ensemble.observation_space, fitter.ensemble.action_space
        return check_steps(steps, *spaces, "What visualise returned", own=True)

    def score(steps: Transitions) -> float:
        return float((predict(fitter.on_cpu(), steps) - target).mean())

    def task(part: Transitions) -> tuple[float, float]:
        predictions, targets = predict(fitter.on_cpu(), part), fitter.objective.targets(part.rewards)
        return balanced_auc(predictions, targets), float(np.square(predictions - targets).mean())

    held_out = made(HELD_OUT[0])
    before = score(made(HELD_OUT[1])), score(held_out), *task(test)
    size = fitter.settings.batch_size
    count = max(1, round(size * settings.adversarial_share / (1 - settings.adversarial_share)))
    buffer: list[Transitions] = []
    networks, (least_auc, least_error) = fitter.ensemble.networks, task(validation)
    kept = copy.deepcopy(networks.state_dict())
    for number in range(settings.adversarial_rounds):
        buffer.append(made(3 + number))
        extra = Transitions.concatenate(buffer), target, count
        for part in np.array_split(np.arange(updates), CHECKS):
            fitter.fit(len(part), tell, extra)
            area, error = task(validation)
            if error <= KEPT[1] * least_error if np.isnan(least_auc) else area >= least_auc - KEPT[0]:
                kept = copy.deepcopy(networks.state_dict())
    networks.load_state_dict(kept)
    after = score(made(HELD_OUT[2])), score(held_out), *task(test)
    return AdversarialReport(
        rounds=settings.adversarial_rounds,
        trained=sum(map(len, buffer)),
        nonsense_reward=nonsense,
        **{
            f"{name}_{when}": value
            for when, values in (("before", before), ("after", after))
            for name, value in zip(("fresh", "held_out", "auc", "error"), values, strict=True)
        },
    )


Progress = Callable[[int, int], None]
"""Called with the gradient steps done and their total."""


def fit_to_rewards(
    steps: Transitions,
    observation_space: gym.spaces.Box,
    action_space: gym.Space[Any],
    model: RewardModelSettings = SUPERVISED_MODEL,
    settings: SupervisedSettings | None = None,
    *,
    seed: int = 0,
    visualise: Visualise | None = None,
    progress: Progress | None = None,
) -> tuple[RewardEnsemble, SupervisedReport]:
    """Fit a new reward model to the true rewards of ``steps``. The same steps and seed give the same model.

    The model predicts in the rewards' own unit. Its normaliser has mean 0 and standard deviation 1; only for rewards far from the
    order of 1, the standard deviation is the power of ten that brings the networks' outputs there.

    Args:
        steps: whole episodes, at least two, with their rewards.
        observation_space: observation space of the environment they come from.
        action_space: action space of that environment.
        model: networks, inputs, ensemble size. ``output`` is replaced by the objective's.
        settings: objective, balance, optimiser; defaults to `SupervisedSettings()`.
        seed: seeds the split, the initial weights and the batches.
        visualise: makes the visualisations for ``settings.adversarial_rounds``.
        progress: called during the fit.

    Returns:
        The reward model (version 1, on the CPU) and the report of the fit.

    Raises:
        SettingError: the steps don't fit the spaces, have unknown rewards, or are a single episode; or the rewards can't be fitted.
    """
    started = time.perf_counter()
    settings = settings or SupervisedSettings()
    steps = check_steps(steps, observation_space, action_space, own=True)
    if count_episodes(steps.episodes) < 2:
        raise SettingError(
            "The data is a single episode; give at least 2, so that the reward model can be tested on episodes it did not see."
        )
    rounds = settings.adversarial_rounds
    if rounds and visualise is None:
        raise SettingError(
            f"supervised.adversarial_rounds is {rounds}, which needs visualise: a function that makes the visualisations."
        )
    train, test = steps.split(settings.test_share, np.random.default_rng([seed, *b"test"]))
    if rounds:
        if count_episodes(train.episodes) < 2:
            raise SettingError(
                f"supervised.adversarial_rounds is {rounds}, which needs at least 3 episodes: for training, validation and test."
            )
        train, validation = train.split(settings.test_share, np.random.default_rng([seed, *b"validation"]))
    fitter = Fitter(train, observation_space, action_space, model, settings, seed)
    updates, per_round = settings.epochs * fitter.balancer.steps_per_epoch, fitter.balancer.steps_per_epoch
    total, adversarial = updates + rounds * per_round, None

    def tell(done: int) -> None:
        if progress is not None:
            progress(done, total)

    fitter.fit(updates, tell)
    if visualise is not None and rounds:
        adversarial = train_adversarially(fitter, validation, test, visualise, per_round, tell)
    ensemble = fitter.finish()
    report = fitter.report(ensemble, test, total, time.perf_counter() - started)
    return ensemble, replace(report, adversarial=adversarial)
