"""Fit a reward model to recorded rewards: from transitions to a `RewardEnsemble` and a report on episodes it did not see."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.supervised.adversarial import Visualise, train_adversarially
from rlhf_ray.reward.supervised.fitter import Fitter, check_steps
from rlhf_ray.reward.supervised.report import SupervisedReport, count_episodes
from rlhf_ray.settings import SUPERVISED_MODEL, RewardModelSettings, SupervisedSettings

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
        adversarial = train_adversarially(
            fitter, validation, test, visualise, per_round, lambda done: tell(updates + done)
        )
    ensemble = fitter.finish()
    report = fitter.report(ensemble, test, total, time.perf_counter() - started)
    return ensemble, replace(report, adversarial=adversarial)
