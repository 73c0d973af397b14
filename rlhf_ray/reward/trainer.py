"""The reward trainer: fits the ensemble to the comparisons and produces new versions of it."""

from __future__ import annotations

import logging
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.comparisons import Changes, Comparisons, Pairs, Side
from rlhf_ray.data.errors import SettingError
from rlhf_ray.measure.held_out import brier_scores, calibration_error, log_likelihoods, probabilities_of
from rlhf_ray.optim.adam import AdamW
from rlhf_ray.optim.flat import FlatAdamW
from rlhf_ray.reward.annotators import annotator_model, likelihood_rates
from rlhf_ray.reward.averaging import WeightAverage
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.estimates import Estimates
from rlhf_ray.reward.fit_report import ANONYMOUS, RECENT_ANSWERS, FitReport
from rlhf_ray.reward.fused import FusedMLPs
from rlhf_ray.reward.likelihood import discounts, log_likelihood_slope, make_loss
from rlhf_ray.reward.methods import FitLabels, make_methods
from rlhf_ray.reward.networks import is_built_in
from rlhf_ray.reward.networks.convolving import steps_that_fit
from rlhf_ray.reward.regularisation import AdaptiveL2, EarlyStopping, PassLosses
from rlhf_ray.reward.stacked import StackedComparisons, rows_of
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.store.answers import Presses, count_presses

logger = logging.getLogger(__name__)

BACKWARD_STEPS = 8192
"""Most steps times members per backward pass (gradients accumulate): more exceeds a core's cache, fewer costs overhead."""

ESTIMATES = 7
"""Estimates of the annotators' model within the first fit, at equal distances, besides the one after it: the rest of the fit uses
them. Later fits start from the last one's."""


def device_for(settings: RewardModelSettings) -> torch.device:
    """Return the device to fit on.

    Raises:
        SettingError: ``settings.gpus`` is above 0 and torch sees no GPU.
    """
    if settings.gpus and not torch.cuda.is_available():
        raise SettingError(
            f"reward_model.gpus is {settings.gpus:g}, but torch {torch.__version__} sees no GPU on {platform.node()}: set it to 0 "
            "to fit on the CPU, or install torch's CUDA build on a machine with a GPU."
        )
    return torch.device("cuda" if settings.gpus else "cpu")


class NothingToFitError(ValueError):
    """No comparison to fit to: none was added, all were withdrawn, or all have weight 0."""


class RewardTrainer:
    """Holds the comparisons as stacked tensors and fits a `RewardEnsemble` to them.

    Two annotators' answers to one pair are two comparisons; they are held out and bootstrapped together. Comparisons stay in CPU
    memory. A fit on a GPU copies one batch at a time.

    Args:
        settings: networks, optimiser and fitting settings.
        observation_space: the environment's observation space.
        action_space: the environment's action space.
        held_out_share: share of the comparisons, in [0, 1), that is never trained on.
        seed: seeds the initial weights and the batch order.

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
        self.settings = settings
        self.held_out_share = held_out_share
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.ensemble = RewardEnsemble(observation_space, action_space, settings)
        # Weights and batches are drawn on the CPU: a fit starts the same way on every device.
        self.device = device_for(settings)
        self.loss = make_loss(settings)
        self.ensemble.networks.to(self.device)
        self._backward_steps = BACKWARD_STEPS // settings.ensemble_size
        if self.device.type == "cpu" and (that_fit := steps_that_fit(self.ensemble.networks)):
            self._backward_steps = min(self._backward_steps, that_fit)
        of_adam: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay, "fused": True}
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
        self.keys: list[tuple[str, str]] = []
        """Pair id and annotator of each comparison, in the order they were added."""
        self._chosen: list[Side] = []
        """The side that each annotator chose, as shown."""
        self.weights: dict[str, float] = {}
        """See `weigh`."""
        self.annotators = Estimates()
        """What the last fit found about those who answered."""
        self.methods = make_methods(settings)
        self.l2 = None
        if settings.adaptive_l2:
            self.l2 = AdaptiveL2(interval=settings.l2_interval, factor=settings.l2_factor)
        self._data: StackedComparisons | None = None

    def add(self, comparisons: Comparisons) -> None:
        """Add comparisons.

        A comparison that is already present (same pair and annotator) keeps its position and takes the new answer. If
        ``comparisons`` contains one twice, the later answer counts.
        """
        rows = {key: row for row, key in enumerate(self.keys)}
        latest = {key: i for i, key in enumerate(comparisons.keys)}  # ordered by first occurrence
        chosen = comparisons.chosen
        for key in latest.keys() & rows.keys():
            assert self._data is not None
            self._data.preferences[rows[key]] = float(comparisons.preferences[latest[key]])
            self._chosen[rows[key]] = chosen[latest[key]]
        new = {key: i for key, i in latest.items() if key not in rows}
        if not new:
            return
        added = StackedComparisons.of(self.ensemble, comparisons[np.array(list(new.values()))], self.held_out_share)
        self._data = added if self._data is None else self._data.join(added)
        self.keys += new
        self._chosen += [chosen[i] for i in new.values()]

    def withdraw(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove the comparisons with these `keys`. Ignores unknown keys."""
        gone = set(keys)
        kept = [row for row, key in enumerate(self.keys) if key not in gone]
        if self._data is None or len(kept) == len(self.keys):
            return
        self._data = self._data.keep(kept) if kept else None
        self.keys, self._chosen = [self.keys[row] for row in kept], [self._chosen[row] for row in kept]

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Multiply the loss of each comparison by its annotator's weight: 1 by default, 0 excludes the annotator.

        Comparisons of weight 0 still count for the normalisers (their fragments are as good as any), but not for losses,
        accuracies or the window.
        """
        self.weights = dict(weights)

    def apply(self, changes: Changes) -> None:
        """Apply changes from the store: remove withdrawn comparisons, add new answers, replace the weights."""
        self.withdraw(changes.withdrawn)
        if changes.held is not None:
            self.add(changes.held)
        self.weigh(changes.weights)

    def fit(
        self,
        updates: int,
        *,
        unlabelled: Pairs | None = None,
        progress: float = 0.0,
        after_pass: Callable[[PassLosses], None] | None = None,
    ) -> FitReport:
        """Fit to the training window, renew the normalisers and increment the version.

        Args:
            updates: gradient steps; fewer are taken with `RewardModelSettings.early_stopping`.
            unlabelled: pairs without answers, for methods that learn from them.
            progress: the training's progress, 0 to 1.
            after_pass: called before the first gradient step and after each pass over the training comparisons.

        Returns:
            The report of the fit.

        Raises:
            NothingToFitError: there are no comparisons, or all have weight 0.
            SettingError: the fitted rewards are NaN or infinite.
        """
        started = time.perf_counter()
        weights = torch.tensor([self.weights.get(annotator, 1.0) for _, annotator in self.keys])
        counted = torch.nonzero(weights).squeeze(1)
        if self._data is None or len(counted) == 0:
            raise NothingToFitError(
                f"All {len(self.keys)} comparisons are from annotators of weight 0; give one of them another weight."
                if self.keys
                else "There are no comparisons to fit the reward model to; add some first."
            )
        data = self._data.counting(weights, *self._of_annotators())
        window = counted if self.settings.window is None else counted[-self.settings.window :]
        train = window[~data.held_out[window]]
        if len(train) == 0:  # so few that all of them are held out by chance
            train = window
        self.ensemble.observe(data.flat_inputs(images=not is_built_in(self.settings)), data.length)
        if self._fused is not None:  # normalised once for all gradient steps
            data = replace(data, inputs={"features": self._fused.features_of(data.inputs)})
        for method in self.methods:
            if (weight := method.deviation_weight(progress)) is not None:
                self.ensemble.deviation_weight.fill_(weight)
        steps, data = self._descend(data, train, counted, updates, unlabelled, after_pass)
        rewards = self._all_rewards(data)
        if not bool(torch.isfinite(rewards).all()):
            of = self.settings
            methods = f", reward_model.methods ({' '.join(of.methods)})" if of.methods else ""
            raise SettingError(
                f"reward_model.learning_rate is {of.learning_rate:g}, and after {steps} gradient steps the rewards are NaN or "
                f"infinite: lower it, or fix reward_model.network ({of.network}), reward_model.loss ({of.loss}){methods}."
            )
        self._normalise(rewards)
        self._estimate_annotators(data, rewards, counted, train)  # for the next fit
        noise = torch.as_tensor(self._of_annotators()[0]).expand(len(data))[counted]
        self.ensemble.label_noise.fill_(torch.minimum(noise, 2 - noise).mean())  # inverted answers are not random
        self.ensemble.version += 1
        return self._report(data, rewards, counted, train, steps, time.perf_counter() - started)

    def _of_annotators(self) -> tuple[float | Tensor, float | Tensor]:
        """Return the label noise and the rationality of each comparison; one number if it is the same for all."""
        noise: float | Tensor = self.settings.label_noise or 0.0
        rationality: float | Tensor = 1.0
        if self.settings.label_noise is None:
            rates = {name: found.rate for name, found in self.annotators.error_rates.items()}
            noise = 2 * torch.as_tensor(likelihood_rates(rates, [annotator for _, annotator in self.keys]))
        if self.settings.annotator_rationality:
            rationality = torch.tensor(
                [self.annotators.rationalities.get(annotator, 1.0) for _, annotator in self.keys]
            )
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
        held_out = counted[data.held_out[counted] & ~torch.isin(counted, train)]
        pool = self._unlabelled(unlabelled)
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
                due = [at for at in due if at > taken]
                data = self._estimate_annotators(data, self._all_rewards(data), counted, train)
            revised = self._revised(data, train)
            with self.ensemble.training_mode(self.generator):
                for batch in self._batches(train, updates - taken):
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
        differences = self._scaled(data, both, self._return_differences(self._all_rewards(data, both)).mean(0))
        losses = self.loss(differences, data.preferences[both], rows_of(data.noise, both, torch.device("cpu")))
        preferences = data.preferences[both]
        right = ((differences > 0) == (preferences > 0.5)).float()
        right[preferences == 0.5] = math.nan
        n = len(train)
        return PassLosses(
            steps,
            train_loss=float(losses[:n].mean()),
            held_out_loss=float(losses[n:].mean()),
            train_accuracy=float(right[:n].nanmean()),
            held_out_accuracy=float(right[n:].nanmean()),
            l2=0.0 if self.l2 is None else self.l2.coefficient,
        )

    def _revised(self, data: StackedComparisons, train: Tensor) -> StackedComparisons:
        """Return the comparisons with the labels and weights that the methods make of them."""
        if not any(method.revises for method in self.methods):
            return data
        differences = self._scaled(data, train, self._return_differences(self._all_rewards(data, train)))
        labels = FitLabels(differences, data.preferences[train], torch.ones(len(train)))
        for method in self.methods:
            labels = method.revise(labels)
        preferences, factors = data.preferences.clone(), torch.ones(len(data))
        preferences[train], factors[train] = labels.preferences, labels.weights
        return replace(data, preferences=preferences, weights=data.weights * factors)

    def _estimate_annotators(
        self, data: StackedComparisons, rewards: Tensor, counted: Tensor, train: Tensor
    ) -> StackedComparisons:
        """Update the annotators' model from non-tied answers, and return the comparisons with it.

        A member judges only comparisons outside its bootstrap sample.
        """
        decided = counted[data.preferences[counted] != 0.5]
        of = [self.keys[row][1] for row in decided]
        names = {name: number for number, name in enumerate(dict.fromkeys(of))}
        preferred = torch.where(data.preferences > 0.5, 1.0, -1.0) * self._return_differences(rewards)
        seen = (data.weights > 0) & ~data.held_out
        seen[:, train] = data.weights[:, train] > 0  # held out or not
        found = annotator_model(
            preferred[:, decided].numpy(),
            ~seen[:, decided].numpy(),
            np.array([names[name] for name in of], np.int64),
            len(names),
            rationality=self.settings.annotator_rationality,
        )
        if found is None:
            self.annotators = Estimates()
            return data
        keys = [self.keys[row] for row in decided.tolist()]
        self.annotators = Estimates.of(found, list(names), keys, rationality=self.settings.annotator_rationality)
        noise, rationality = self._of_annotators()
        return replace(data, noise=noise, rationality=rationality)

    def report_nothing(self) -> FitReport:
        """Return a report of the current version when there is nothing to fit: no gradient steps, metrics NaN."""
        values: dict[str, Any] = {of.name: math.nan for of in fields(FitReport) if of.default_factory is MISSING}
        values |= dict.fromkeys(("held_out", "held_out_decided", "ties", "gradient_steps"), 0)
        values |= {"comparisons": len(self.keys), "version": int(self.ensemble.version), "seconds": 0.0, "wrong": None}
        return FitReport(**values)

    def _set_gradient(self, fused: FusedMLPs, data: StackedComparisons, batch: Tensor) -> None:
        """Set the gradient of the weighted mean loss over ``batch``, as `_backward` does."""
        of = self.settings
        plain = of.loss == "bradley_terry" and of.largest_log_odds is None and not of.annotator_rationality

        def of_differences(member: int, rows: Tensor, differences: Tensor) -> Tensor:
            weights = (data.weights[member].index_select(0, rows) / len(batch)).to(self.device)
            preferences = data.preferences.index_select(0, rows).to(self.device)
            if plain:
                noise = rows_of(data.noise, rows, self.device)
                return log_likelihood_slope(differences, preferences, noise) * weights
            with torch.enable_grad():
                leaf = differences.detach().requires_grad_()
                noise = rows_of(data.noise, rows, self.device)
                losses = self.loss(self._scaled(data, rows, leaf[None]), preferences, noise)
                losses.backward(weights[None])  # type: ignore[no-untyped-call]
            assert leaf.grad is not None
            return leaf.grad

        fused.set_gradient(data.inputs["features"], batch, of_differences)

    def _backward(self, data: StackedComparisons, batch: Tensor, pool: dict[str, Tensor] | None) -> None:
        """Accumulate the gradient of the weighted mean loss over ``batch``, chunk by chunk."""
        for part in batch.chunk(math.ceil(len(batch) * 2 * data.length / self._backward_steps)):
            losses = self._losses(data, part)
            # Passing the weights as the losses' gradient avoids building a graph for the weighted mean.
            losses.backward((data.weights.index_select(1, part) / len(batch)).to(self.device))  # type: ignore[no-untyped-call]
        if pool is not None:
            self._backward_unlabelled(data, len(batch), pool)

    def _backward_unlabelled(self, data: StackedComparisons, batch: int, pool: dict[str, Tensor]) -> None:
        """Accumulate the gradient of the methods' losses of pairs without labels, chunk by chunk."""
        ratio = max(method.unlabelled_ratio for method in self.methods)
        drawn = torch.randint(0, len(next(iter(pool.values()))), (ratio * batch,), generator=self.generator)
        for part in drawn.chunk(math.ceil(len(drawn) * 2 * data.length / self._backward_steps)):
            rewards = self._rewards(pool, part)
            differences = self._return_differences(rewards, crop=self._crop(len(part), data.length))
            whole = self._return_differences(rewards.detach())
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

    def _batches(self, train: Tensor, updates: int) -> Iterator[Tensor]:
        """Yield at most ``updates`` batches of positions: one pass over ``train`` in a new order."""
        order = train[torch.randperm(len(train), generator=self.generator)]
        batches: tuple[Tensor, ...] = torch.split(order, self.settings.batch_size)
        yield from batches[:updates]

    def state(self) -> dict[str, Any]:
        """Return the trainer's state as numpy arrays and plain values. Comparisons are stored by key only."""
        optimizer = self.optimizer.state_dict()
        return {
            "ensemble": self.ensemble.state(),
            "optimizer": {
                str(parameter): {name: np.array(value.cpu()) for name, value in moments.items()}
                for parameter, moments in optimizer["state"].items()
            },
            "average": self._average.state(),
            "generator": self.generator.get_state().numpy(),
            "keys": [list(key) for key in self.keys],
            **self.annotators.state(),
            "l2": 0.0 if self.l2 is None else self.l2.coefficient,
            "methods": [method.state() for method in self.methods],
        }

    def load_state(self, state: dict[str, Any], changes: Changes) -> None:
        """Restore what `state` returned.

        Args:
            state: from `state`.
            changes: everything in the store (`PreferenceStore.since` from 0): the comparisons that the state names, or those
                of them that remain; the withdrawn ones; and the current weights.

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
        if "average" in state:
            self._average.load_state(state["average"])
        self.generator.set_state(torch.as_tensor(np.array(state["generator"])))
        self.keys, self._chosen, self._data = [], [], None
        self.weigh(changes.weights)
        self.annotators = Estimates.from_state(state)
        if self.l2 is not None and state.get("l2"):
            self.l2.coefficient = float(state["l2"])
        for method, kept in zip(self.methods, state.get("methods", ()), strict=False):
            method.load_state(kept)
        withdrawn, held = set(changes.withdrawn), changes.held
        wanted = [key for pair, annotator in state["keys"] if (key := (pair, annotator)) not in withdrawn]
        if not wanted:
            return
        position = {} if held is None else {key: i for i, key in enumerate(held.keys)}
        left = [position[key] for key in wanted if key in position]
        lost = len(wanted) - len(left)
        missing = f"{lost} of the {len(wanted)} comparisons the reward model was fitted to are missing"
        if held is None or not left:
            raise ValueError(f"{missing}.")
        if lost:  # their fragments are damaged, or their files are gone
            logger.warning("%s; continuing with the rest.", missing)
        self.add(held[np.array(left)])

    def _losses(self, data: StackedComparisons, batch: Tensor) -> Tensor:
        """Compute the loss of each comparison of ``batch`` for each member, ``[members, batch]``."""
        rewards = self._rewards(data.inputs, batch)
        differences = self._return_differences(rewards, crop=self._crop(len(batch), data.length))
        preferences = data.preferences.index_select(0, batch).to(self.device)
        return self.loss(self._scaled(data, batch, differences), preferences, rows_of(data.noise, batch, self.device))

    def _rewards(self, inputs: dict[str, Tensor], batch: Tensor) -> Tensor:
        """Compute the raw reward of each step of ``batch`` for each member: ``[members, batch, 2, length]``, on the device."""
        of_batch = {name: of.index_select(0, batch).to(self.device).flatten(0, 1) for name, of in inputs.items()}
        rewards: Tensor = self.ensemble.networks(of_batch)
        return rewards.view(-1, len(batch), 2, rewards.shape[-1])

    def _return_differences(self, rewards: Tensor, crop: Tensor | None = None) -> Tensor:
        """Map rewards ``[members, n, 2, length]`` to ``[members, n]``: left return minus right return."""
        discount = self.settings.discount
        if crop is not None:
            rewards = rewards * crop.to(rewards.device)
        returns = (
            rewards.sum(-1) if discount == 1.0 else rewards @ discounts(rewards.shape[-1], discount).to(rewards.device)
        )
        left, right = returns.unbind(-1)
        return left - right

    def _scaled(self, data: StackedComparisons, rows: Tensor, differences: Tensor) -> Tensor:
        """Return the log odds that the likelihood sees: scaled by the annotators' rationality, then clipped."""
        if isinstance(data.rationality, Tensor):
            differences = differences * data.rationality.index_select(0, rows).to(differences.device)
        limit = self.settings.largest_log_odds
        return differences if limit is None else differences.clamp(-limit, limit)

    def _all_rewards(self, data: StackedComparisons, rows: Tensor | None = None) -> Tensor:
        """Compute `_rewards` of ``rows``, or all, without gradients, in chunks that bound memory; move them to the CPU."""
        pairs_per_chunk = max(1, self.ensemble.at_once // (2 * data.length))
        rows = torch.arange(len(data)) if rows is None else rows
        if self._fused is not None:
            return self._fused.rewards_of(data.inputs["features"], rows)
        with torch.no_grad():
            parts: tuple[Tensor, ...] = torch.split(rows, pairs_per_chunk)
            return torch.cat([self._rewards(data.inputs, part).cpu() for part in parts], 1)

    def _presses(self, counted: Tensor) -> dict[str, Presses]:
        """Count what each annotator chose in their newest answers among the rows ``counted``."""
        names = [annotator or ANONYMOUS for _, annotator in self.keys]
        found = count_presses(((names[row], self._chosen[row]) for row in counted.tolist()), RECENT_ANSWERS)
        return dict.fromkeys(names, Presses()) | found

    def _normalise(self, rewards: Tensor) -> None:
        """Set the normalisers so that each member has mean 0 and standard deviation 1 over all steps of all comparisons."""
        if not self.settings.normalize_outputs:
            return
        rewards = rewards.flatten(1)
        self.ensemble.reward_mean.copy_(rewards.mean(1))
        self.ensemble.reward_std.copy_(rewards.std(1).clamp_min(1e-6))

    def _report(
        self, data: StackedComparisons, rewards: Tensor, counted: Tensor, train: Tensor, steps: int, seconds: float
    ) -> FitReport:
        of_members = self._scaled(data, torch.arange(len(data)), self._return_differences(rewards))
        differences = of_members.mean(0)
        losses = self.loss(differences, data.preferences, data.noise)
        decided = data.preferences != 0.5
        left = data.preferences > 0.5
        right = (differences > 0) == left

        def mean(values: Tensor, where: Tensor) -> float:
            return float(values[where].float().mean()) if bool(where.any()) else float("nan")

        counts, trained = (torch.zeros(len(data), dtype=torch.bool) for _ in range(2))
        counts[counted], trained[train] = True, True
        unseen = data.held_out & counts & ~trained
        noise = data.noise[unseen].numpy() if isinstance(data.noise, Tensor) else data.noise
        predicted = probabilities_of(differences[unseen].numpy(), noise)
        said = data.preferences[unseen].numpy()
        return FitReport(
            version=int(self.ensemble.version),
            comparisons=len(data),
            held_out=int(data.held_out.sum()),
            held_out_decided=int((unseen & decided).sum()),
            ties=int((~decided).sum()),
            train_loss=mean(losses, trained),
            train_accuracy=mean(right, trained & decided),
            held_out_loss=mean(losses, unseen),
            held_out_accuracy=mean(right, unseen & decided),
            held_out_brier=float(brier_scores(predicted, said).mean()) if len(said) else float("nan"),
            held_out_calibration_error=calibration_error(predicted, said),
            reward_mean=float(self.ensemble.reward_mean.mean()),
            reward_std=float(self.ensemble.reward_std.mean()),
            disagreement=float(torch.sigmoid(of_members[:, counted]).std(0, correction=0).mean())
            if len(of_members) > 1
            else float("nan"),
            chosen=self._presses(counted),
            gradient_steps=steps,
            seconds=seconds,
            **vars(self.annotators),
            l2=0.0 if self.l2 is None else self.l2.coefficient,
            methods={name: value for method in self.methods for name, value in method.metrics().items()},
            held_out_log_likelihood=float(log_likelihoods(predicted, said).mean()) if len(said) else float("nan"),
        )
