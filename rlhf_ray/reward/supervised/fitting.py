"""Fit a reward model to recorded rewards: from transitions to a `RewardEnsemble` and a report on episodes it did not see."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.optim.adam import Adam
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.supervised.adversarial import train_adversarially
from rlhf_ray.reward.supervised.balance import Balancer, Extra
from rlhf_ray.reward.supervised.checks import check_steps
from rlhf_ray.reward.supervised.objectives import RewardObjective, make_objective
from rlhf_ray.reward.supervised.report import SupervisedReport, count_episodes, levels_of, measures, predict
from rlhf_ray.reward.trainer import device_for
from rlhf_ray.settings import SUPERVISED_MODEL, RewardModelSettings, SupervisedSettings

Visualise = Callable[[RewardEnsemble, int], Transitions]
"""Makes steps that the reward model scores highly, from a seed. Observations are in the environment's type: images are uint8."""

USUAL = 0.9
"""Quantile of the sizes of the task's gradients in the fit without visualisations, which bounds those of visualisations."""

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
    check_steps(steps, observation_space, action_space)
    if isinstance(action_space, gym.spaces.Discrete):  # they may be whole numbers saved as floats
        steps = steps.with_(actions=steps.actions.astype(np.int64))
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


class Fitter:
    """Fits a new `RewardEnsemble` to ``train``, all of it. See `fit_to_rewards`."""

    def __init__(
        self,
        train: Transitions,
        observation_space: gym.spaces.Box,
        action_space: gym.Space[Any],
        model: RewardModelSettings,
        settings: SupervisedSettings,
        seed: int,
    ):
        self.train, self.settings, self.seed = train, settings, seed
        self.objective: RewardObjective = make_objective(settings)
        self.rng = np.random.default_rng([seed, *b"batches"])
        self.balancer = Balancer(train.rewards != 0, settings, np.random.default_rng([seed, *b"balance"]))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.ensemble = RewardEnsemble(
                observation_space, action_space, replace(model, output=self.objective.output)
            )
        self.ensemble.check_steps("a fit to recorded rewards needs")
        self.device = device_for(model)
        self.ensemble.networks.to(self.device)
        if model.normalize_inputs != "none":
            self.ensemble.observe(self.encode(_Tensors(train).rows(torch.arange(len(train)))), 1)
        self.masks = torch.Generator().manual_seed(seed)
        self.parameters = [of for of in self.ensemble.networks.parameters() if of.requires_grad]
        self.norms: list[float] = []
        self.optimizer = Adam(self.parameters, lr=settings.learning_rate, fused=True)
        self.targets = self.objective.targets(train.rewards.copy())
        self.unit = unit_of(self.targets)
        self.ensemble.reward_std.fill_(1 / self.unit)
        self._weights = torch.as_tensor(self.balancer.weights * self._bootstrap())

    def fit(self, updates: int, tell: Callable[[int], None], extra: Extra | None = None) -> None:
        """Take ``updates`` gradient steps; call ``tell`` with the number of each.

        The gradient of ``extra`` steps is never larger than the task's were (see `USUAL`): a visualisation's error can be a hundred
        times the task's, and Adam, which divides by the size of past gradients, would then hardly learn the task any more.
        """
        steps, targets = _Tensors(self.train), torch.as_tensor(self.targets / self.unit).float()
        others = None if extra is None else _Tensors(extra.steps)
        usual = float(np.quantile(self.norms, USUAL)) if self.norms else 0.0
        for done, batch in enumerate(self.balancer.batches(updates), 1):
            rows = torch.as_tensor(batch)
            gradients = self.gradients(steps.rows(rows), targets[rows], self._weights[:, rows])
            if extra is None or others is None:
                self.norms.append(_norm(gradients))
            else:
                drawn = others.rows(torch.as_tensor(self.rng.integers(len(extra.steps), size=extra.count)))
                wanted = torch.full((extra.count,), extra.target / self.unit)
                added = self.gradients(
                    drawn, wanted, torch.full((len(self._weights), extra.count), extra.count / len(rows))
                )
                scale = min(1.0, usual / max(_norm(added), 1e-12))
                gradients = [of + scale * other for of, other in zip(gradients, added, strict=True)]
            self.step(gradients)
            tell(done)

    def gradients(self, steps: tuple[Tensor, ...], targets: Tensor, weights: Tensor) -> list[Tensor]:
        """Return the loss's gradient by parameter.

        Args:
            steps: observations, actions, next observations and terminated of ``n`` steps, as the environment gives them.
            targets: ``[n]`` float32, in `unit`.
            weights: ``[members, n]`` float32: of each step in each member's loss.
        """
        self.optimizer.zero_grad(set_to_none=True)
        with self.ensemble.training_mode(self.masks):
            losses = self.objective.losses(self.ensemble.networks, self.encode(steps), targets.clone().to(self.device))
        (losses * weights.to(self.device)).mean(1).sum().backward()  # type: ignore[no-untyped-call]
        # Not torch.autograd.grad: its gradients of convolutions have another layout, which the fused Adam does not see.
        return [torch.zeros_like(of) if of.grad is None else of.grad for of in self.parameters]

    def step(self, gradients: list[Tensor]) -> None:
        """Take one gradient step."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    def encode(self, steps: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Return the networks' inputs, each step a fragment of its own, on the device."""
        observations, actions, next_observations, terminated = steps
        frames = torch.stack([observations, next_observations], 1)
        encoded = self.ensemble.networks.encode(frames, actions.unsqueeze(1), terminated)
        return {name: of.to(self.device) for name, of in encoded.items()}

    def on_cpu(self) -> RewardEnsemble:
        """Return the reward model as it is now, on the CPU."""
        return self.ensemble if self.device.type == "cpu" else copy.deepcopy(self.ensemble).cpu()

    def finish(self) -> RewardEnsemble:
        """Return the reward model, on the CPU, as version 1.

        Raises:
            SettingError: its rewards are NaN or infinite.
        """
        self.ensemble.cpu()
        self.ensemble.version.fill_(1)
        if not all(bool(torch.isfinite(of).all()) for of in self.ensemble.parameters()):
            raise SettingError(
                f"supervised.learning_rate is {self.settings.learning_rate:g}, and the fit ends with weights that are NaN or "
                "infinite: lower it."
            )
        return self.ensemble

    def report(self, ensemble: RewardEnsemble, test: Transitions, updates: int, seconds: float) -> SupervisedReport:
        """Measure ``ensemble`` on both parts."""
        predictions, train_predictions = predict(ensemble, test), predict(ensemble, self.train)
        targets = self.objective.targets(test.rewards.copy())
        return SupervisedReport(
            objective=self.settings.objective,
            balance=self.settings.balance,
            train_steps=len(self.train),
            test_steps=len(test),
            train_episodes=count_episodes(self.train.episodes),
            test_episodes=count_episodes(test.episodes),
            trained_steps=len(self.balancer.rows),
            train_nonzero=int((self.train.rewards != 0).sum()),
            test_nonzero=int((test.rewards != 0).sum()),
            gradient_steps=updates,
            seconds=seconds,
            train_error=float(np.square(train_predictions - self.targets).mean()),
            levels=levels_of(predictions, targets, self.targets),
            **measures(predictions, targets, float(self.targets.mean())),  # type: ignore[arg-type]
        )

    def _bootstrap(self) -> FloatArray:
        """How often each member's bootstrap sample contains each step, by episode: ``[members, n]``."""
        model, episodes = self.ensemble.settings, self.train.episodes
        if not model.bootstrap or model.ensemble_size == 1:
            return np.ones((model.ensemble_size, len(episodes)), np.float32)
        _, numbers = np.unique(episodes, return_inverse=True)
        rng = np.random.default_rng([self.seed, *b"bootstrap"])
        return rng.poisson(1.0, (model.ensemble_size, numbers.max() + 1))[:, numbers].astype(np.float32)


class _Tensors:
    """Steps as tensors that share the arrays' memory."""

    def __init__(self, steps: Transitions):
        arrays = (steps.observations, steps.actions, steps.next_observations, steps.terminated)
        self.all = tuple(torch.as_tensor(np.require(of, requirements="W")) for of in arrays)

    def rows(self, index: Tensor) -> tuple[Tensor, ...]:
        return tuple(of[index] for of in self.all)


def _norm(gradients: list[Tensor]) -> float:
    return float(torch.stack([of.norm() for of in gradients]).norm())


def unit_of(targets: FloatArray) -> float:
    """Return the power of ten nearest to the root mean square of the nonzero targets; 1 if all are zero."""
    nonzero = targets[targets != 0]
    if not len(nonzero):
        return 1.0
    size = float(np.abs(nonzero).max())
    return float(10.0 ** np.round(np.log10(size) + np.log10(np.sqrt(np.square(nonzero / size).mean()))))
