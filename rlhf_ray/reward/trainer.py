"""The reward trainer: fits the ensemble to the comparisons and produces new versions of it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.data.comparisons import Changes, Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.optim import AdamW, FlatAdamW, add_gradients, leave_cores_to_parts
from rlhf_ray.reward.annotators import PRIOR, Estimates, annotator_model, likelihood_rates, log_evidence
from rlhf_ray.reward.comparison_set import ComparisonSet, NothingToFitError, StackedComparisons, rows_of
from rlhf_ray.reward.ensemble import RewardEnsemble, device_for
from rlhf_ray.reward.fit_report import FitReport, best_of, losses_of_pass, scores_of
from rlhf_ray.reward.fused import FusedMLPs
from rlhf_ray.reward.likelihood import SLOPES, make_loss, return_differences
from rlhf_ray.reward.methods import AdaptiveL2, EarlyStopping, PassLosses, WeightAverage, make_methods, revise
from rlhf_ray.reward.networks import MixedMLP, is_built_in
from rlhf_ray.reward.networks.cnn import steps_that_fit, takes_averages
from rlhf_ray.settings import RewardModelSettings

logger = logging.getLogger(__name__)

BACKWARD_STEPS = 8192
"""Most steps times members per backward pass (gradients accumulate): more exceeds a core's cache, fewer costs overhead."""

ESTIMATES = 7
"""Estimates of the annotators' model within the first fit, at equal distances, besides the one after it: the rest of the fit uses
them. Later fits start from the last one's."""

STRONG_DECAY, WEAK_DECAY = 5.0, 0.01
"""The weight decay that auto stands for: of the networks that auto chooses among, and of all others."""
CHOSEN = ("auto", "mlp", "mixed", "cnn")


class RewardTrainer:
    """Holds the comparisons as stacked tensors and fits a `RewardEnsemble` to them.

    Two annotators' answers to one pair are two comparisons; they are held out and bootstrapped together. Comparisons stay in CPU
    memory. A fit on a GPU copies one batch at a time. A fit may go on beside an environment that changes torch's default dtype, so
    that each tensor has its own.

    Args:
        held_out_share: share of the comparisons, in [0, 1), that is never trained on.

    Raises:
        SettingError: ``settings`` ask for a GPU and there is none, or name an unknown network or loss.
    """

    def __init__(
        self,
        settings: RewardModelSettings,
        observation_space: gym.spaces.Box,
        action_space: gym.Space[Any],
        *,
        held_out_share: float,
        seed: int,
    ):
        leave_cores_to_parts()
        self.settings = settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.ensemble = RewardEnsemble(observation_space, action_space, settings)
        self._mixed = networks if isinstance(networks := self.ensemble.networks, MixedMLP) else None
        # Weights and batches are drawn on the CPU: a fit starts the same way on every device.
        self.device = device_for(settings)
        self.loss = make_loss(settings)
        self.ensemble.networks.to(self.device)
        self._backward_steps = BACKWARD_STEPS // settings.ensemble_size
        if self.device.type == "cpu" and not takes_averages(networks := self.ensemble.networks):
            self._backward_steps = min(self._backward_steps, steps_that_fit(networks) or self._backward_steps)
        of_adam: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": self.weight_decay, "fused": True}
        self._fused: FusedMLPs | None = None
        if FusedMLPs.fits(self.ensemble.networks, settings):
            self._fused = FusedMLPs(self.ensemble.networks, settings)
            self.optimizer: AdamW = (flat := FlatAdamW(self._fused.flat, **of_adam))
            self._step: Callable[[], Any] = flat.take_step
        else:
            self.optimizer = AdamW(self.ensemble.networks.parameters(), **of_adam)
            self._step = self.optimizer.step
        self._average = WeightAverage(list(self.ensemble.networks.parameters()))
        self.generator = torch.Generator().manual_seed(seed)
        self.comparisons = ComparisonSet(self.ensemble, held_out_share)
        self.annotators = Estimates()
        """What the last fit found about those who answered."""
        self.methods = make_methods(settings)
        self.l2 = None
        if settings.adaptive_l2:
            self.l2 = AdaptiveL2(interval=settings.l2_interval, factor=settings.l2_factor)

    def fit(
        self,
        updates: int,
        *,
        unlabelled: Pairs | None = None,
        progress: float = 0.0,
        after_pass: Callable[[PassLosses], None] | None = None,
    ) -> FitReport:
        """Fit to the training window, renew the normalisers and increment the version. Return the report.

        Args:
            updates: gradient steps; fewer are taken with `RewardModelSettings.early_stopping`.
            unlabelled: pairs without answers, for methods that learn from them.
            progress: the training's progress, 0 to 1.
            after_pass: called before the first gradient step and after each pass over the training comparisons.

        Raises:
            NothingToFitError: there are no comparisons, or all have weight 0.
            SettingError: the fitted rewards are NaN or infinite.
        """
        started, before, settings = time.perf_counter(), self.annotators, self.settings
        held = self.comparisons
        weights = torch.as_tensor(held.by_annotator(held.weights, 1.0))
        counted = torch.nonzero(weights).squeeze(1)
        if held.stacked is None or len(counted) == 0:
            raise NothingToFitError(
                f"All {len(held)} comparisons are from annotators of weight 0; give one of them another weight."
                if held.keys
                else "There are no comparisons to fit the reward model to; add some first."
            )
        data = held.stacked.counting(weights, *self._of_annotators())
        window = counted if self.settings.window is None else counted[-self.settings.window :]
        train = window[~data.held_out[window]]
        if len(train) == 0:  # so few that all of them are held out by chance
            train = window
        self.ensemble.observe(data.flat_inputs(images=not is_built_in(self.settings)), data.length)
        if self._fused is not None:  # normalised once for all gradient steps
            data = replace(data, inputs=self._fused.features_of(data.inputs))
        for method in self.methods:
            if (weight := method.deviation_weight(progress)) is not None:
                self.ensemble.deviation_weight.fill_(weight)
        steps, data = self._descend(data, train, counted, updates, unlabelled, after_pass)
        rewards = self._weighed_rewards(data, train)
        if not bool(torch.isfinite(rewards).all()):
            methods = f", reward_model.methods ({' '.join(settings.methods)})" if settings.methods else ""
            raise SettingError(
                f"reward_model.learning_rate is {settings.learning_rate:g}, and after {steps} gradient steps the rewards are NaN "
                f"or infinite: lower it, or fix reward_model.network ({settings.network}), reward_model.loss ({settings.loss})"
                f"{methods}."
            )
        self.ensemble.normalise_outputs(rewards)
        self._estimate_annotators(data, rewards, counted, train)  # for the next fit
        self.annotators = self.annotators.following(before)
        noise = torch.as_tensor(self._of_annotators()[0], dtype=torch.float32).expand(len(data))[counted]
        self.ensemble.label_noise.fill_(torch.minimum(noise, 2 - noise).mean())  # inverted answers are not random
        self.ensemble.version += 1
        return self._report(data, rewards, counted, train, steps, time.perf_counter() - started)

    @property
    def weight_decay(self) -> float:
        """The weight decay in use: `RewardModelSettings.weight_decay`, or what auto stands for."""
        if self.settings.weight_decay == "auto":
            return STRONG_DECAY if self.settings.network in CHOSEN else WEAK_DECAY
        return self.settings.weight_decay

    def _of_annotators(self) -> tuple[float | Tensor, float | Tensor]:
        """Return the label noise and the rationality of each comparison; one number if it is the same for all."""
        noise: float | Tensor = self.settings.label_noise or 0.0
        rationality: float | Tensor = 1.0
        if self.settings.label_noise is None:
            rates = self.comparisons.by_annotator(self.annotators.assumed, PRIOR)
            noise = 2 * torch.as_tensor(likelihood_rates(rates))
        if self.settings.annotator_rationality:
            rationality = torch.as_tensor(self.comparisons.by_annotator(self.annotators.rationalities, 1.0))
        return noise, rationality

    def _descend(
        self,
        data: StackedComparisons,
        train: Tensor,
        counted: Tensor,
        updates: int,
        unlabelled: Pairs | None,
        after_pass: Callable[[PassLosses], None] | None,
    ) -> tuple[int, StackedComparisons]:
        """Take the gradient steps, in passes over the comparisons ``train``.

        Returns:
            Their number, and the comparisons with the annotators' model as of the last estimate.
        """
        networks, patience = self.ensemble.networks, self.settings.early_stopping
        stopping = None if patience is None else EarlyStopping(networks, patience)
        judged = self.l2 is not None or stopping is not None or after_pass is not None
        trained = torch.zeros(len(data), dtype=torch.bool).index_fill_(0, train, value=True)
        held_out = counted[data.held_out[counted] & ~trained[counted]]
        pool = self._unlabelled(unlabelled)
        size = self.settings.batch_size
        estimates = ESTIMATES if self.settings.models_annotators and not int(self.ensemble.version) else 0
        due = [updates * number / (estimates + 1) for number in range(1, estimates + 1)]
        taken = 0
        self._average.begin()
        while True:
            if judged:
                losses = self._judge(data, train, held_out, taken)
                if after_pass is not None:
                    after_pass(losses)
                if self.l2 is not None and taken:
                    self.l2.adapt(losses, len(held_out))
                if stopping is not None and stopping.stop(losses, len(held_out)):
                    break
            if taken >= updates:
                break
            if due and taken >= due[0]:
                due = [step for step in due if step > taken]
                data = self._estimate_annotators(data, self._weighed_rewards(data, train), counted, train)
            revised = self._revised(data, train)
            with self.ensemble.training_mode(self.generator):
                order = train[torch.randperm(len(train), generator=self.generator)]
                for batch in torch.split(order[: (updates - taken) * size], size):
                    if self._fused is not None:
                        self._set_gradient(self._fused, revised, batch)
                    else:
                        self.optimizer.zero_grad(set_to_none=True)
                        self._backward(revised, batch, pool)
                    if self.l2 is not None:
                        self.l2.add_gradient(networks.parameters())
                    self._step()
                    self._average.add()
                    taken += 1
        if stopping is None:
            self._average.end()
        else:
            stopping.restore_best()
            self._average.restart()
        return taken, data

    def _unlabelled(self, pairs: Pairs | None) -> dict[str, Tensor] | None:
        """Return the networks' inputs ``[m, 2, …]`` of pairs without answers, if a method wants them."""
        if pairs is None or not any(method.unlabelled_ratio for method in self.methods):
            return None
        left, right = self.ensemble.encode(pairs.left), self.ensemble.encode(pairs.right)
        return {name: torch.stack([left[name], right[name]], 1) for name in left}

    def _judge(self, data: StackedComparisons, train: Tensor, held_out: Tensor, steps: int) -> PassLosses:
        """Compute losses and accuracies of the ensemble's mean, in its present state."""
        both = torch.cat([train, held_out])
        mean = self._differences(self._all_rewards(data, both)).mean(0)
        differences = data.log_odds(mean, both, self.settings.largest_log_odds)
        losses = self.loss(differences, data.preferences[both], rows_of(data.noise, both, torch.device("cpu")))
        l2 = 0.0 if self.l2 is None else self.l2.coefficient
        return losses_of_pass(steps, losses, differences, data.preferences[both], len(train), l2)

    def _revised(self, data: StackedComparisons, train: Tensor) -> StackedComparisons:
        """Return the comparisons with the labels and weights that the methods make of them."""
        if not any(method.revises for method in self.methods):
            return data
        returns = self._differences(self._all_rewards(data, train))
        differences = data.log_odds(returns, train, self.settings.largest_log_odds)
        return data.revised(train, revise(self.methods, differences, data.preferences[train]))

    def _estimate_annotators(
        self, data: StackedComparisons, rewards: Tensor, counted: Tensor, train: Tensor
    ) -> StackedComparisons:
        """Update the annotators' model from non-tied answers, and return the comparisons with it.

        A member judges only comparisons outside its bootstrap sample.
        """
        judged = self._judged(data, rewards[:, counted], counted, train)
        self.annotators = annotator_model(*judged, rationality=self.settings.annotator_rationality)
        if not self.annotators.error_rates:
            return data
        noise, rationality = self._of_annotators()
        return replace(data, noise=noise, rationality=rationality)

    def _judged(
        self, data: StackedComparisons, rewards: Tensor, rows: Tensor, train: Tensor
    ) -> tuple[FloatArray, BoolArray, list[tuple[str, str]]]:
        """Return the arguments of `annotator_model`: of the answers ``rows`` that are no ties, with their rewards."""
        answers, seen = data.preferences[rows], (data.weights > 0) & ~data.held_out
        seen[:, train] = data.weights[:, train] > 0  # held out or not
        preferred, decided = (2 * (answers > 0.5).float() - 1) * self._differences(rewards), answers != 0.5
        keys = [self.comparisons.keys[row] for row in rows[decided].tolist()]
        return preferred[:, decided].numpy(), ~seen[:, rows[decided]].numpy(), keys

    def _weighed_rewards(self, data: StackedComparisons, train: Tensor) -> Tensor:
        """Weigh the parts of `MixedMLP` by the answers that members were not fitted to. Return `_all_rewards`."""
        parts = self._all_parts(data)
        if self._mixed is None:
            return parts
        self._mixed.choose(parts[:, train], lambda rewards: log_evidence(*self._judged(data, rewards, train, train)))
        return self._mixed.mixed(parts)

    def _set_gradient(self, fused: FusedMLPs, data: StackedComparisons, batch: Tensor) -> None:
        """Set the gradient of the weighted mean loss over ``batch``, as `_backward` does."""
        of = self.settings
        plain = of.largest_log_odds is None and not of.annotator_rationality
        slope = SLOPES.get(of.loss) if plain else None
        weights = (self._weights(data, batch) / len(batch)).to(self.device)
        preferences = data.preferences.index_select(0, batch).to(self.device)
        noise = rows_of(data.noise, batch, self.device)

        def of_differences(member: int, at: Tensor, differences: Tensor) -> Tensor:
            on_device = at.to(self.device)
            there = preferences[on_device], noise[on_device] if isinstance(noise, Tensor) else noise
            if slope is not None:
                return slope(differences, *there) * weights[member, on_device]
            with torch.enable_grad():
                leaf = differences.detach().requires_grad_()
                losses = self.loss(data.log_odds(leaf[None], batch[at], of.largest_log_odds), *there)
                losses.backward(weights[None, member, on_device])  # type: ignore[no-untyped-call]
            assert leaf.grad is not None
            return leaf.grad

        fused.set_gradient(data.inputs, batch, data.weights.index_select(1, batch) > 0, of_differences)

    def _backward(self, data: StackedComparisons, batch: Tensor, pool: dict[str, Tensor] | None) -> None:
        """Accumulate the gradient of the weighted mean loss over ``batch``, chunk by chunk."""

        def weighted(part: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
            return self._losses(data, *part), (self._weights(data, part[0]) / len(batch)).to(self.device)

        parts = batch.chunk(math.ceil(len(batch) * 2 * data.length / self._backward_steps))
        drawn = [(part, self._crop(len(part), data.length)) for part in parts]
        add_gradients(self.ensemble.networks.parameters(), weighted, drawn, self.ensemble.over_parts)
        if pool is not None:
            self._backward_unlabelled(data, len(batch), pool)

    def _backward_unlabelled(self, data: StackedComparisons, batch: int, pool: dict[str, Tensor]) -> None:
        """Accumulate the gradient of the methods' losses of pairs without labels, chunk by chunk."""
        ratio = max(method.unlabelled_ratio for method in self.methods)
        drawn = torch.randint(0, len(next(iter(pool.values()))), (ratio * batch,), generator=self.generator)
        for part in drawn.chunk(math.ceil(len(drawn) * 2 * data.length / self._backward_steps)):
            rewards = self._rewards(pool, part)
            differences = self._differences(rewards, crop=self._crop(len(part), data.length))
            whole = self._differences(rewards.detach())
            losses = [
                loss for method in self.methods if (loss := method.unlabelled_loss(differences, whole)) is not None
            ]
            if losses:
                total = torch.stack(losses).sum() * (len(part) / len(drawn))
                total.backward()  # type: ignore[no-untyped-call]

    def _crop(self, pairs: int, length: int) -> Tensor | None:
        """Return factors ``[pairs, 2, length]`` of the steps of a batch; None if every step counts."""
        crop: Tensor | None = None
        for method in self.methods:
            if (steps := method.steps(pairs, length, self.generator)) is not None:
                crop = steps if crop is None else crop * steps
        return crop

    def state(self) -> dict[str, Any]:
        """Return the trainer's state as numpy arrays and plain values. Comparisons are stored by key only."""
        optimizer = self.optimizer.state_dict()
        return {
            "ensemble": self.ensemble.state(),
            "optimizer": {
                str(parameter): {name: value.cpu().numpy().copy() for name, value in moments.items()}
                for parameter, moments in optimizer["state"].items()
            },
            "average": self._average.state(),
            "generator": self.generator.get_state().numpy(),
            "keys": list(self.comparisons.keys),
            **self.annotators.state(),
            "l2": 0.0 if self.l2 is None else self.l2.coefficient,
            "methods": [method.state() for method in self.methods],
        }

    def load_state(self, state: dict[str, Any], changes: Changes) -> None:
        """Restore what `state` returned.

        ``changes`` are everything in the store (`PreferenceStore.since` from 0), with those that the state names which remain.

        Raises:
            ValueError: none of the comparisons that the state names remains, and not all of them were withdrawn.
        """
        self.ensemble.load_state(state["ensemble"])
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {
            int(parameter): {name: torch.as_tensor(np.array(value)) for name, value in moments.items()}
            for parameter, moments in state["optimizer"].items()
        }
        self.optimizer.load_state_dict(optimizer)
        self._average.restart()
        self._average.load_state(state["average"])
        self.generator.set_state(torch.as_tensor(np.array(state["generator"])))
        self.annotators = Estimates.from_state(state)
        if self.l2 is not None and state.get("l2"):
            self.l2.coefficient = float(state["l2"])
        for method, kept in zip(self.methods, state.get("methods", ()), strict=False):
            method.load_state(kept)
        self.comparisons.restore(state["keys"], changes)

    def _weights(self, data: StackedComparisons, batch: Tensor) -> Tensor:
        """Return the weight of each comparison of ``batch`` for each member, or each part of one: ``[members, batch]``."""
        weights = data.weights.index_select(1, batch)
        return weights if self._mixed is None else weights.repeat(2, 1)

    def _losses(self, data: StackedComparisons, batch: Tensor, crop: Tensor | None) -> Tensor:
        """Compute the loss of each comparison of ``batch`` for each member, ``[members, batch]``."""
        differences = self._differences(self._rewards(data.inputs, batch), crop=crop)
        preferences = data.preferences.index_select(0, batch).to(self.device)
        log_odds = data.log_odds(differences, batch, self.settings.largest_log_odds)
        return self.loss(log_odds, preferences, rows_of(data.noise, batch, self.device))

    def _rewards(self, inputs: dict[str, Tensor], batch: Tensor) -> Tensor:
        """Compute the raw reward of each step of ``batch`` for each member: ``[members, batch, 2, length]``, on the device.

        Of `MixedMLP`, those of both parts, which are fitted side by side: ``[2 members, …]``.
        """
        of_batch = {name: value.index_select(0, batch).to(self.device).flatten(0, 1) for name, value in inputs.items()}
        networks = self.ensemble.networks if self._mixed is None else self._mixed.parts
        rewards: Tensor = networks(of_batch)  # [members, 2 batch, length]
        return rewards.view(-1, len(batch), 2, rewards.shape[-1])

    def _differences(self, rewards: Tensor, crop: Tensor | None = None) -> Tensor:
        return return_differences(rewards, self.settings.discount, crop)

    def _all_rewards(self, data: StackedComparisons, rows: Tensor | None = None) -> Tensor:
        """Compute the raw rewards ``[members, n, 2, length]`` of ``rows``, or all, as the ensemble is now, on the CPU."""
        parts = self._all_parts(data, rows)
        return parts if self._mixed is None else self._mixed.mixed(parts)

    def _all_parts(self, data: StackedComparisons, rows: Tensor | None = None) -> Tensor:
        """Compute `_rewards` of ``rows``, or all, without gradients, in chunks that bound memory; move them to the CPU."""
        if self._fused is not None:
            features = data.inputs["features"]
            return self._fused.rewards_of(features if rows is None else features.index_select(0, rows.to(self.device)))
        rows = torch.arange(len(data)) if rows is None else rows
        with torch.no_grad():
            parts = torch.split(rows, max(1, self.ensemble.at_once // (2 * data.length)))
            return torch.cat([*self.ensemble.over_parts(lambda part: self._rewards(data.inputs, part).cpu(), parts)], 1)

    def _report(
        self, data: StackedComparisons, rewards: Tensor, counted: Tensor, train: Tensor, steps: int, seconds: float
    ) -> FitReport:
        differences = data.log_odds(self._differences(rewards), torch.arange(len(data)), self.settings.largest_log_odds)
        return FitReport(
            version=int(self.ensemble.version),
            reward_mean=float(self.ensemble.reward_mean.mean()),
            reward_std=float(self.ensemble.reward_std.mean()),
            chosen=self.comparisons.presses(counted),
            best_fragments=best_of(self.ensemble, rewards, counted),
            gradient_steps=steps,
            seconds=seconds,
            **vars(self.annotators.with_noise(self.settings.label_noise)),
            l2=0.0 if self.l2 is None else self.l2.coefficient,
            **({} if self._mixed is None else self._mixed.scores()),
            methods={name: value for method in self.methods for name, value in method.metrics().items()},
            **scores_of(data, differences, self.loss, counted, train),
        )
