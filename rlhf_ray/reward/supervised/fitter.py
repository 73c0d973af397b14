"""The fit of a reward model to recorded rewards: checks, balanced batches, gradients, and steps that are not of the data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.inputs import check_observations, check_recorded, in_type
from rlhf_ray.data.spaces import choices_of, shaped
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.optim import Adam
from rlhf_ray.reward.ensemble import RewardEnsemble, device_for
from rlhf_ray.reward.supervised.objectives import OBJECTIVES, RewardObjective
from rlhf_ray.reward.supervised.report import SupervisedReport, count_episodes, levels_of, measures, predict
from rlhf_ray.settings import RewardModelSettings, SupervisedSettings

USUAL = 0.9
"""Quantile of the sizes of the task's gradients in the fit without visualisations, which bounds those of visualisations."""


def check_steps(
    steps: Transitions,
    observation_space: gym.spaces.Box,
    action_space: gym.Space[Any],
    what: str = "The data",
    own: bool = False,
) -> Transitions:
    """Check that ``steps`` fit the spaces and have known, finite rewards. Return them in the spaces' types.

    Errors call the steps ``what``. Observations that the environment itself returned (``own``) may leave its bounds.

    Raises:
        SettingError: they don't fit; the message says what and how to mend it.
    """
    if not len(steps):
        raise SettingError(f"{what} have no steps; record some first.")
    actions = shaped(steps.actions, action_space)
    if choices_of(action_space) and np.array_equal(actions, np.round(actions)):  # whole numbers may be saved as floats
        actions = actions.astype(np.int64)
    check_recorded(steps.observations, actions, (observation_space, action_space), what, own=own)
    check_observations(steps.next_observations, observation_space, what, own=own)
    unknown = ~np.isfinite(steps.rewards)
    if unknown.any():
        raise SettingError(
            f"{what} have {int(unknown.sum())} of {len(steps)} rewards that are NaN or infinite; record them with their rewards, "
            "or remove those steps."
        )
    seen = [in_type(values, observation_space) for values in (steps.observations, steps.next_observations)]
    return steps.with_(actions=actions, observations=seen[0], next_observations=seen[1])


Extra = tuple[Transitions, float, int]
"""Steps that are added to each batch: those to draw from, what the model should say of each in the rewards' unit, and how many."""


class Balancer:
    """Draws batches of training steps and says how much each step weighs, to make up for rare zero or nonzero rewards.

    Attributes:
        rows: the steps that are trained on.
        weights: ``[n]`` float32: weight of each step in the loss.

    Raises:
        SettingError: a balance is asked for, and there is only one kind of reward.
    """

    def __init__(self, nonzero: BoolArray, settings: SupervisedSettings, rng: np.random.Generator):
        self._settings, self._rng, balance = settings, rng, settings.balance
        n, ones = len(nonzero), int(nonzero.sum())
        if balance != "none" and ones in (0, n):
            raise SettingError(
                f"supervised.balance is {balance!r}, but {'no' if ones else 'every'} training reward is zero: there is nothing to "
                "balance; set it to none."
            )
        self.rows: IntArray = np.arange(n)
        self.weights: FloatArray = np.ones(n, np.float32)
        self._chances: FloatArray | None = None
        of_class = np.where(nonzero, n / 2 / max(ones, 1), n / 2 / max(n - ones, 1))  # mean 1
        if balance == "sampler":
            self._chances = of_class / of_class.sum()
        elif balance == "inverse_frequency":
            self.weights = of_class.astype(np.float32)
        elif balance == "drop_zeros":
            zeros = np.flatnonzero(~nonzero)
            kept = ones if settings.keep_zeros is None else round(settings.keep_zeros * len(zeros))
            kept = int(np.clip(kept, 1, len(zeros)))
            self.rows = np.sort(np.concatenate([np.flatnonzero(nonzero), rng.choice(zeros, kept, replace=False)]))
        self.steps_per_epoch = -(-n // settings.batch_size)

    def batches(self, count: int) -> Iterator[IntArray]:
        """Yield ``count`` batches of positions."""
        size, taken = self._settings.batch_size, 0
        while taken < count:
            order = self._order()
            for start in range(0, len(order), size):
                if taken == count:
                    return
                taken += 1
                yield order[start : start + size]

    def _order(self) -> IntArray:
        """Return the steps of one pass, in random order."""
        if self._chances is None:
            return self._rng.permutation(self.rows)
        return self._rng.choice(len(self._chances), len(self._chances), p=self._chances)


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
        self.objective: RewardObjective = OBJECTIVES.make(settings.objective)
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
            self.ensemble.observe(self.encode([array.clone() for array in _tensors(train)]), 1)
        self.masks = torch.Generator().manual_seed(seed)
        self.parameters = [parameter for parameter in self.ensemble.networks.parameters() if parameter.requires_grad]
        self.norms: list[float] = []
        self.taken = 0
        self.optimizer = Adam(self.parameters, lr=settings.learning_rate, fused=True)
        self.targets = self.objective.targets(train.rewards.copy())
        self.unit = unit_of(self.targets)
        self.ensemble.reward_std.fill_(1 / self.unit)
        self._weights = torch.as_tensor(self.balancer.weights * self._bootstrap())

    def fit(self, updates: int, tell: Callable[[int], None], extra: Extra | None = None) -> None:
        """Take ``updates`` gradient steps; call ``tell`` with the number of those so far after each.

        The gradient of ``extra`` steps is never larger than the task's were (see `USUAL`): a visualisation's error can be a hundred
        times the task's, and Adam, which divides by the size of past gradients, would then hardly learn the task any more.
        """
        steps, targets = _tensors(self.train), torch.as_tensor(self.targets / self.unit).float()
        others = None if extra is None else _tensors(extra[0])
        usual = float(np.quantile(self.norms, USUAL)) if self.norms else 0.0
        for batch in self.balancer.batches(updates):
            rows = torch.as_tensor(batch)
            gradients = self.gradients([array[rows] for array in steps], targets[rows], self._weights[:, rows])
            if extra is None or others is None:
                self.norms.append(_norm(gradients))
            else:
                _, target, count = extra
                drawn = torch.as_tensor(self.rng.integers(len(others[0]), size=count))
                wanted = torch.full((count,), target / self.unit)
                weights = torch.full((len(self._weights), count), count / len(rows))
                added = self.gradients([array[drawn] for array in others], wanted, weights)
                scale = min(1.0, usual / max(_norm(added), 1e-12))
                gradients = [gradient + scale * other for gradient, other in zip(gradients, added, strict=True)]
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
            self.taken += 1
            tell(self.taken)

    def gradients(self, steps: list[Tensor], targets: Tensor, weights: Tensor) -> list[Tensor]:
        """Return the loss's gradient by parameter, of ``n`` steps as the environment gives them.

        ``targets [n]`` are in `unit`; ``weights [members, n]`` are of each step in each member's loss.
        """
        self.optimizer.zero_grad(set_to_none=True)
        with self.ensemble.training_mode(self.masks):
            losses = self.objective.losses(self.ensemble.networks, self.encode(steps), targets.clone().to(self.device))
        (losses * weights.to(self.device)).mean(1).sum().backward()  # type: ignore[no-untyped-call]
        # Not torch.autograd.grad: its gradients of convolutions have another layout, which the fused Adam does not see.
        return [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in self.parameters
        ]

    def encode(self, steps: list[Tensor]) -> dict[str, Tensor]:
        """Return the networks' inputs, each step a fragment of its own, on the device."""
        observations, actions, next_observations, terminated = steps
        frames = torch.stack([observations, next_observations], 1)
        encoded = self.ensemble.networks.encode(frames, actions.unsqueeze(1), terminated)
        return {name: value.to(self.device) for name, value in encoded.items()}

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
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.ensemble.parameters()):
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


def _tensors(steps: Transitions) -> list[Tensor]:
    """Return the steps as tensors that share the arrays' memory."""
    arrays = (steps.observations, steps.actions, steps.next_observations, steps.terminated)
    return [torch.as_tensor(np.require(array, requirements="W")) for array in arrays]


def _norm(gradients: list[Tensor]) -> float:
    return float(torch.stack([gradient.norm() for gradient in gradients]).norm())


def unit_of(targets: FloatArray) -> float:
    """Return the power of ten nearest to the root mean square of the nonzero targets; 1 if all are zero."""
    nonzero = targets[targets != 0]
    if not len(nonzero):
        return 1.0
    size = float(np.abs(nonzero).max())
    return float(10.0 ** np.round(np.log10(size) + np.log10(np.sqrt(np.square(nonzero / size).mean()))))
