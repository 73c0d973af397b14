"""The reward trainer: fits the ensemble to the comparisons and produces new versions of it."""

from __future__ import annotations

import logging
import math
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.comparisons import Changes, Comparisons, stable_uniform
from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward.annotators import PRIOR, error_rates
from rlhf_ray.reward.ensemble import CHUNK, RewardEnsemble
from rlhf_ray.reward.likelihood import discounts, make_loss
from rlhf_ray.reward.optimizers import AdamW
from rlhf_ray.settings import RewardModelSettings

logger = logging.getLogger(__name__)

BACKWARD_STEPS = 8192
"""Steps times members per backward pass (gradients accumulate): more exceeds a core's cache, fewer costs overhead."""

RECENT_ANSWERS = 50
"""Number of newest non-tied answers behind `FitReport.left_share`: few enough to reveal an annotator who starts to always give
the same answer, and enough that chance alone does not look like one."""

_POISSON_CDF = np.cumsum([np.exp(-1.0) / float(np.prod(range(1, k + 1))) for k in range(8)])


@dataclass(frozen=True)
class FitReport:
    """Report of one fit.

    Accuracies use the mean over members and exclude ties; NaN where no comparison remains. ``comparisons``, ``held_out`` and
    ``ties`` count everything; all other values exclude annotators of weight 0.
    """

    version: int
    comparisons: int
    held_out: int
    ties: int
    train_loss: float
    train_accuracy: float
    held_out_loss: float
    held_out_accuracy: float
    reward_mean: float
    """The raw reward's mean before normalisation, averaged over members."""
    reward_std: float
    """The raw reward's standard deviation before normalisation, averaged over members: the scale of this version."""
    disagreement: float
    """Standard deviation over members of the probability that left is preferred (without label noise), averaged over
    comparisons; NaN for a single member."""
    left_share: float
    """Share of the newest non-tied answers (at most `RECENT_ANSWERS`) that prefer the left fragment; NaN without any."""
    gradient_steps: int
    seconds: float
    error_rates: dict[str, float]
    """The probability that each annotator answers the opposite; empty without `RewardModelSettings.annotator_errors`."""


def bootstrap_weights(ids: Sequence[str], members: int) -> FloatArray:
    """Draw how often each member's bootstrap sample contains each comparison, from Poisson(1).

    A hash of the pair id decides, so the weights stay the same when comparisons are added or reordered.

    Args:
        ids: ``n`` pair ids.
        members: ensemble size.

    Returns:
        ``[members, n]`` float32 counts.
    """
    draws = [stable_uniform(ids, f"bootstrap {member}") for member in range(members)]
    return np.searchsorted(_POISSON_CDF, np.stack(draws)).astype(np.float32)


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
        self.optimizer = AdamW(
            self.ensemble.networks.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.keys: list[tuple[str, str]] = []
        """Pair id and annotator of each comparison, in the order they were added."""
        self.weights: dict[str, float] = {}
        """See `weigh`."""
        self.error_rates: dict[str, float] = {}
        """Each annotator's error rate from the last fit, with `RewardModelSettings.annotator_errors`."""
        self._data: _Stacked | None = None

    def add(self, comparisons: Comparisons) -> None:
        """Add comparisons.

        A comparison that is already present (same pair and annotator) keeps its position and takes the new answer. If
        ``comparisons`` contains one twice, the later answer counts.
        """
        rows = {key: row for row, key in enumerate(self.keys)}
        latest = {key: i for i, key in enumerate(comparisons.keys)}  # ordered by first occurrence
        for key in latest.keys() & rows.keys():
            assert self._data is not None
            self._data.preferences[rows[key]] = float(comparisons.preferences[latest[key]])
        new = {key: i for key, i in latest.items() if key not in rows}
        if not new:
            return
        added = _Stacked.of(self.ensemble, comparisons[np.array(list(new.values()))], self.held_out_share)
        self._data = added if self._data is None else self._data.join(added)
        self.keys += new

    def withdraw(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove the comparisons with these `keys`. Ignores unknown keys."""
        gone = set(keys)
        kept = [row for row, key in enumerate(self.keys) if key not in gone]
        if self._data is None or len(kept) == len(self.keys):
            return
        self._data = self._data.keep(kept) if kept else None
        self.keys = [self.keys[row] for row in kept]

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

    def fit(self, updates: int) -> FitReport:
        """Fit to the training window, renew the normalisers and increment the version.

        Args:
            updates: gradient steps.

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
        noise: float | Tensor = self.settings.label_noise or 0.0
        if self.settings.annotator_errors:
            noise = torch.tensor([2 * self.error_rates.get(annotator, PRIOR) for _, annotator in self.keys])
        data = self._data.counting(weights, noise)
        window = counted if self.settings.window is None else counted[-self.settings.window :]
        train = window[~data.held_out[window]]
        if len(train) == 0:  # so few that all of them are held out by chance
            train = window
        self.ensemble.observe({name: of.flatten(0, 1) for name, of in data.inputs.items()}, data.length)
        with self.ensemble.training_mode(self.generator):
            for batch in self._batches(train, updates):
                self.optimizer.zero_grad(set_to_none=True)
                self._backward(data, batch)
                self.optimizer.step()
        rewards = self._all_rewards(data)
        if not bool(torch.isfinite(rewards).all()):
            raise SettingError(
                f"reward_model.learning_rate is {self.settings.learning_rate:g}, and after {updates} gradient steps the rewards "
                f"are NaN or infinite: lower it, or fix reward_model.network ({self.settings.network}) or reward_model.loss "
                f"({self.settings.loss})."
            )
        self._normalise(rewards)
        if self.settings.annotator_errors:
            self._estimate_errors(data, rewards, counted, train)
        self.ensemble.version += 1
        return self._report(data, rewards, counted, train, updates, time.perf_counter() - started)

    def _estimate_errors(self, data: _Stacked, rewards: Tensor, counted: Tensor, train: Tensor) -> None:
        """Update `error_rates` from non-tied answers; a member judges only comparisons outside its bootstrap sample."""
        decided = counted[data.preferences[counted] != 0.5]
        of = [self.keys[row][1] for row in decided]
        names = {name: number for number, name in enumerate(dict.fromkeys(of))}
        preferred = torch.where(data.preferences > 0.5, 1.0, -1.0) * self._return_differences(rewards)
        seen = (data.weights > 0) & ~data.held_out
        seen[:, train] = data.weights[:, train] > 0  # held out or not
        rates = error_rates(
            preferred[:, decided].numpy(),
            ~seen[:, decided].numpy(),
            np.array([names[name] for name in of], np.int64),
            len(names),
        )
        self.error_rates = dict(zip(names, rates.tolist(), strict=True))

    def report_nothing(self) -> FitReport:
        """Return a report of the current version when there is nothing to fit: no gradient steps, metrics NaN."""
        whole = {"comparisons": len(self.keys), "held_out": 0, "ties": 0, "gradient_steps": 0, "error_rates": {}}
        unknown = {field.name: math.nan for field in fields(FitReport)}
        return FitReport(**unknown | whole | {"version": int(self.ensemble.version), "seconds": 0.0})  # type: ignore[arg-type]

    def _backward(self, data: _Stacked, batch: Tensor) -> None:
        """Accumulate the gradient of the weighted mean loss over ``batch``, chunk by chunk."""
        steps = self.settings.ensemble_size * len(batch) * 2 * data.length
        for part in batch.chunk(math.ceil(steps / BACKWARD_STEPS)):
            losses = self._losses(data, part)
            # Passing the weights as the losses' gradient avoids building a graph for the weighted mean.
            losses.backward((data.weights.index_select(1, part) / len(batch)).to(self.device))  # type: ignore[no-untyped-call]

    def _batches(self, train: Tensor, updates: int) -> Iterator[Tensor]:
        """Yield ``updates`` batches of positions from passes over ``train``, reshuffled for each pass."""
        taken = 0
        while taken < updates:
            order = train[torch.randperm(len(train), generator=self.generator)]
            batches: tuple[Tensor, ...] = torch.split(order, self.settings.batch_size)
            for batch in batches[: updates - taken]:
                taken += 1
                yield batch

    def state(self) -> dict[str, Any]:
        """Return the trainer's state as numpy arrays and plain values. Comparisons are stored by key only."""
        optimizer = self.optimizer.state_dict()
        return {
            "ensemble": self.ensemble.state(),
            "optimizer": {
                str(parameter): {name: np.array(value.cpu()) for name, value in moments.items()}
                for parameter, moments in optimizer["state"].items()
            },
            "generator": self.generator.get_state().numpy(),
            "keys": [list(key) for key in self.keys],
            "error_rates": dict(self.error_rates),
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
        self.generator.set_state(torch.as_tensor(np.array(state["generator"])))
        self.keys, self._data = [], None
        self.weigh(changes.weights)
        self.error_rates = dict(state["error_rates"])
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

    def _losses(self, data: _Stacked, batch: Tensor) -> Tensor:
        """Compute the loss of each comparison of ``batch`` for each member, ``[members, batch]``."""
        differences = self._return_differences(self._rewards(data, batch))
        noise = data.noise
        if isinstance(noise, Tensor):
            noise = noise.index_select(0, batch).to(self.device)
        return self.loss(differences, data.preferences.index_select(0, batch).to(self.device), noise)

    def _rewards(self, data: _Stacked, batch: Tensor) -> Tensor:
        """Compute the raw reward of each step of ``batch`` for each member: ``[members, batch, 2, length]``, on the device."""
        inputs = {name: of.index_select(0, batch).to(self.device).flatten(0, 1) for name, of in data.inputs.items()}
        rewards: Tensor = self.ensemble.networks(inputs)
        return rewards.view(-1, len(batch), 2, data.length)

    def _return_differences(self, rewards: Tensor) -> Tensor:
        """Map rewards ``[members, n, 2, length]`` to ``[members, n]``: left return minus right return."""
        discount = self.settings.discount
        returns = (
            rewards.sum(-1) if discount == 1.0 else rewards @ discounts(rewards.shape[-1], discount).to(rewards.device)
        )
        left, right = returns.unbind(-1)
        return left - right

    def _all_rewards(self, data: _Stacked) -> Tensor:
        """Compute `_rewards` of all comparisons without gradients, in chunks that bound memory, and move them to the CPU."""
        pairs_per_chunk = max(1, CHUNK // (2 * data.length))
        with torch.no_grad():
            parts: tuple[Tensor, ...] = torch.split(torch.arange(len(data)), pairs_per_chunk)
            return torch.cat([self._rewards(data, part).cpu() for part in parts], 1)

    def _normalise(self, rewards: Tensor) -> None:
        """Set the normalisers so that each member has mean 0 and standard deviation 1 over all steps of all comparisons."""
        rewards = rewards.flatten(1)
        self.ensemble.reward_mean.copy_(rewards.mean(1))
        self.ensemble.reward_std.copy_(rewards.std(1).clamp_min(1e-6))

    def _report(
        self, data: _Stacked, rewards: Tensor, counted: Tensor, train: Tensor, steps: int, seconds: float
    ) -> FitReport:
        of_members = self._return_differences(rewards)
        differences = of_members.mean(0)
        losses = self.loss(differences, data.preferences, data.noise)
        decided = data.preferences != 0.5
        left = data.preferences > 0.5
        right = (differences > 0) == left

        def mean(values: Tensor, where: Tensor) -> float:
            return float(values[where].float().mean()) if bool(where.any()) else float("nan")

        counts, trained = (torch.zeros(len(data), dtype=torch.bool) for _ in range(2))
        counts[counted], trained[train] = True, True
        return FitReport(
            version=int(self.ensemble.version),
            comparisons=len(data),
            held_out=int(data.held_out.sum()),
            ties=int((~decided).sum()),
            train_loss=mean(losses, trained),
            train_accuracy=mean(right, trained & decided),
            held_out_loss=mean(losses, data.held_out & counts),
            held_out_accuracy=mean(right, data.held_out & counts & decided),
            reward_mean=float(self.ensemble.reward_mean.mean()),
            reward_std=float(self.ensemble.reward_std.mean()),
            disagreement=float(torch.sigmoid(of_members[:, counted]).std(0, correction=0).mean())
            if len(of_members) > 1
            else float("nan"),
            left_share=float(left[decided & counts][-RECENT_ANSWERS:].float().mean()),
            gradient_steps=steps,
            seconds=seconds,
            error_rates=dict(self.error_rates),
        )


@dataclass(frozen=True)
class _Stacked:
    """``n`` comparisons as tensors, left and right stacked on the second axis.

    ``inputs``: the networks' inputs (`RewardNetwork.encode`), each [n, 2, …]; ``length`` of a fragment in steps;
    ``preferences`` [n] float32; ``weights`` [members, n] float32; ``held_out`` [n] bool;
    ``noise``: label noise (see `Loss`), one number or [n] float32, set by `counting`.
    """

    inputs: dict[str, Tensor]
    length: int
    preferences: Tensor
    weights: Tensor
    held_out: Tensor
    noise: float | Tensor = 0.0

    def __len__(self) -> int:
        return len(self.preferences)

    @staticmethod
    def of(ensemble: RewardEnsemble, comparisons: Comparisons, held_out_share: float) -> _Stacked:
        settings, ids = ensemble.settings, comparisons.pairs.ids
        left, right = (ensemble.encode(side) for side in (comparisons.pairs.left, comparisons.pairs.right))
        weights: Array = np.ones((settings.ensemble_size, len(ids)), dtype=np.float32)
        if settings.bootstrap and settings.ensemble_size > 1:
            weights = bootstrap_weights(ids, settings.ensemble_size)
        return _Stacked(
            inputs={name: torch.stack([left[name], right[name]], 1) for name in left},
            length=comparisons.pairs.left.length,
            preferences=torch.as_tensor(np.array(comparisons.preferences, dtype=np.float32)),
            weights=torch.as_tensor(weights),
            held_out=torch.as_tensor(stable_uniform(ids, "held out") < held_out_share),
        )

    def join(self, other: _Stacked) -> _Stacked:
        return _Stacked(
            {name: torch.cat([of, other.inputs[name]]) for name, of in self.inputs.items()},
            self.length,
            torch.cat([self.preferences, other.preferences]),
            torch.cat([self.weights, other.weights], 1),
            torch.cat([self.held_out, other.held_out]),
        )

    def counting(self, weights: Tensor, noise: float | Tensor) -> _Stacked:
        """Return a copy with weights multiplied by ``weights`` ``[n]`` and this label noise. It shares all other tensors."""
        return replace(self, weights=self.weights * weights, noise=noise)

    def keep(self, rows: Sequence[int]) -> _Stacked:
        """Keep only these rows, in ascending order. Invalidates this object.

        Rows move up in place: images are large, and most withdrawn comparisons are among the newest.
        """
        for to, row in enumerate(rows):
            if to != row:
                for tensor in self.inputs.values():
                    tensor[to] = tensor[row]
        index = torch.tensor(rows)
        return _Stacked(
            {name: of[: len(rows)] for name, of in self.inputs.items()},
            self.length,
            self.preferences[index],
            self.weights[:, index],
            self.held_out[index],
        )
