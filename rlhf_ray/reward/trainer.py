"""The reward trainer: fits the ensemble to the comparisons and makes versions of it."""

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
"""Steps, times members, per backward pass of the fit (gradients add up): more outgrow a core's cache, fewer cost overhead."""

RECENT_ANSWERS = 50
"""The newest decided answers that `FitReport.left_share` is taken over: few enough to show somebody who has begun to always
give the same one, and enough that chance alone does not look like it."""

_POISSON_CDF = np.cumsum([np.exp(-1.0) / float(np.prod(range(1, k + 1))) for k in range(8)])


@dataclass(frozen=True)
class FitReport:
    """What a fit came to. Accuracies are over comparisons that are no ties, of the mean over members; NaN where there are none.

    ``comparisons``, ``held_out`` and ``ties`` count all there are; everything else leaves out those of annotators of weight 0.
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
    """Mean over members of the raw reward's mean, before normalisation."""
    reward_std: float
    """Mean over members of the raw reward's standard deviation, before normalisation: the scale of this version."""
    disagreement: float
    """Mean over comparisons of the standard deviation, over members, of the probability that left is preferred (label noise
    left out); NaN for a single member."""
    left_share: float
    """Share of the newest decided answers (at most `RECENT_ANSWERS`) that prefer the left fragment; NaN where there are none."""
    gradient_steps: int
    seconds: float
    error_rates: dict[str, float]
    """With `RewardModelSettings.annotator_errors`: the probability that each annotator answers the opposite; else empty."""


def bootstrap_weights(ids: Sequence[str], members: int) -> FloatArray:
    """How often each member's bootstrap sample holds each comparison, ``[members, n]`` float32, Poisson(1) distributed.

    Decided by a hash of the comparison's id, so that it stays as it is when comparisons are added or reordered.
    """
    draws = [stable_uniform(ids, f"bootstrap {member}") for member in range(members)]
    return np.searchsorted(_POISSON_CDF, np.stack(draws)).astype(np.float32)


def device_for(settings: RewardModelSettings) -> torch.device:
    """The device to fit on.

    Raises:
        SettingError: a GPU is asked for, and torch sees none.
    """
    if settings.gpus and not torch.cuda.is_available():
        raise SettingError(
            f"reward_model.gpus is {settings.gpus:g}, and torch {torch.__version__} sees no GPU on {platform.node()}: set it to 0 "
            "to fit on the CPU, or install torch's CUDA build there and give the machine a GPU."
        )
    return torch.device("cuda" if settings.gpus else "cpu")


class NothingToFitError(ValueError):
    """There is no comparison to fit to: none was added, all were withdrawn, or none of them counts."""


class RewardTrainer:
    """Holds the comparisons as stacked tensors and fits a `RewardEnsemble` to them.

    Two annotators' answers to one pair are two comparisons, held out and bootstrapped together.

    Args:
        settings: networks and optimiser.
        observation_space, action_space: the environment's.
        held_out_share: share of the comparisons never trained on.
        seed: of initial weights and batch order.

    Comparisons stay in the CPU's memory; where it fits on a GPU, batch after batch goes there.

    Raises:
        SettingError: there is no GPU to fit on.
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
        # The networks are drawn on the CPU, batches too: a fit begins alike wherever it runs.
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
        """With `RewardModelSettings.annotator_errors`: each annotator's, as the last fit found them."""
        self._data: _Stacked | None = None

    def add(self, comparisons: Comparisons) -> None:
        """Take in comparisons.

        One that is already there (the same pair and annotator) keeps its place and takes the new answer; where the answer is
        the same, nothing changes. Of one that is there twice in ``comparisons`` the later answer is taken.
        """
        rows = {key: row for row, key in enumerate(self.keys)}
        latest = {key: i for i, key in enumerate(comparisons.keys)}  # in the order of their first
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
        """Drop the comparisons with these `keys`, as far as they are there."""
        gone = set(keys)
        kept = [row for row, key in enumerate(self.keys) if key not in gone]
        if self._data is None or len(kept) == len(self.keys):
            return
        self._data = self._data.keep(kept) if kept else None
        self.keys = [self.keys[row] for row in kept]

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Have the loss of each comparison multiplied by its annotator's weight: 1 unless named, 0 leaves them out.

        Comparisons of weight 0 are kept, and count for the normalisers (their clips are as good as any), but for no loss,
        accuracy or window.
        """
        self.weights = dict(weights)

    def apply(self, changes: Changes) -> None:
        """Take in what has become of comparisons: what was withdrawn goes, and the weights become those of now."""
        self.withdraw(changes.withdrawn)
        if changes.held is not None:
            self.add(changes.held)
        self.weigh(changes.weights)

    def fit(self, updates: int) -> FitReport:
        """Take ``updates`` gradient steps on what is in the window and not held out, renew the normalisers, make a version.

        Raises:
            NothingToFitError: there are no comparisons, or all are of annotators of weight 0.
            SettingError: the rewards it came to are no numbers.
        """
        started = time.perf_counter()
        weights = torch.tensor([self.weights.get(annotator, 1.0) for _, annotator in self.keys])
        counted = torch.nonzero(weights).squeeze(1)
        if self._data is None or len(counted) == 0:
            raise NothingToFitError(
                f"all {len(self.keys)} comparisons are of annotators whose weight is 0: give one of them another weight."
                if self.keys
                else "There are no comparisons to fit the reward model to; add some first."
            )
        noise: float | Tensor = self.settings.label_noise or 0.0
        if self.settings.annotator_errors:
            noise = torch.tensor([2 * self.error_rates.get(annotator, PRIOR) for _, annotator in self.keys])
        data = self._data.counting(weights, noise)
        window = counted if self.settings.window is None else counted[-self.settings.window :]
        train = window[~data.held_out[window]]
        if len(train) == 0:  # so few that chance held all of them out
            train = window
        for batch in self._batches(train, updates):
            self.optimizer.zero_grad(set_to_none=True)
            self._backward(data, batch)
            self.optimizer.step()
        rewards = self._all_rewards(data)
        if not bool(torch.isfinite(rewards).all()):
            raise SettingError(
                f"reward_model.learning_rate is {self.settings.learning_rate:g}, and after {updates} gradient steps rewards are "
                f"NaN or infinite: lower it, or mend reward_model.network ({self.settings.network}) or reward_model.loss "
                f"({self.settings.loss})."
            )
        self._normalise(rewards)
        if self.settings.annotator_errors:
            self._estimate_errors(data, rewards, counted, train)
        self.ensemble.version += 1
        return self._report(data, rewards, counted, train, updates, time.perf_counter() - started)

    def _estimate_errors(self, data: _Stacked, rewards: Tensor, counted: Tensor, train: Tensor) -> None:
        """Renew `error_rates`. Ties tell nothing; of a comparison that a member's bootstrap left out, that member knows nothing."""
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
        """The report where there is nothing to fit: of the current version, without gradient steps."""
        whole = {"comparisons": len(self.keys), "held_out": 0, "ties": 0, "gradient_steps": 0, "error_rates": {}}
        unknown = {field.name: math.nan for field in fields(FitReport)}
        return FitReport(**unknown | whole | {"version": int(self.ensemble.version), "seconds": 0.0})  # type: ignore[arg-type]

    def _backward(self, data: _Stacked, batch: Tensor) -> None:
        """Add to the gradients those of the weighted mean loss over ``batch``, part by part."""
        steps = self.settings.ensemble_size * len(batch) * 2 * data.length
        for part in batch.chunk(math.ceil(steps / BACKWARD_STEPS)):
            losses = self._losses(data, part)
            # The gradient of the mean is handed to the losses themselves: no graph for weighing and averaging them.
            losses.backward((data.weights.index_select(1, part) / len(batch)).to(self.device))  # type: ignore[no-untyped-call]

    def _batches(self, train: Tensor, updates: int) -> Iterator[Tensor]:
        """``updates`` batches of positions, from passes over ``train`` in ever new random order."""
        taken = 0
        while taken < updates:
            order = train[torch.randperm(len(train), generator=self.generator)]
            batches: tuple[Tensor, ...] = torch.split(order, self.settings.batch_size)
            for batch in batches[: updates - taken]:
                taken += 1
                yield batch

    def state(self) -> dict[str, Any]:
        """All a restarted trainer needs besides the comparisons (which it is given again by their keys), as numpy arrays."""
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
        """The inverse of `state`.

        Args:
            state: as it was.
            changes: all there are: the comparisons that the state names, or as many of them as are left; which were withdrawn
                since, and are not missed; and the weights of now.

        Raises:
            ValueError: none of the comparisons that the state names is left, though not all were withdrawn.
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
        if lost:  # retracted, or lost to damage
            logger.warning("%s; it goes on with the others.", missing)
        self.add(held[np.array(left)])

    def _losses(self, data: _Stacked, batch: Tensor) -> Tensor:
        """The loss of each comparison of ``batch`` for each member, ``[members, batch]``."""
        differences = self._return_differences(self._rewards(data, batch))
        noise = data.noise
        if isinstance(noise, Tensor):
            noise = noise.index_select(0, batch).to(self.device)
        return self.loss(differences, data.preferences.index_select(0, batch).to(self.device), noise)

    def _rewards(self, data: _Stacked, batch: Tensor) -> Tensor:
        """Reward of each step of ``batch`` for each member, not normalised: ``[members, batch, 2, length]``, on the device."""
        inputs = {name: of.index_select(0, batch).to(self.device).flatten(0, 1) for name, of in data.inputs.items()}
        rewards: Tensor = self.ensemble.networks(inputs)
        return rewards.view(-1, len(batch), 2, data.length)

    def _return_differences(self, rewards: Tensor) -> Tensor:
        """``[members, n, 2, length]`` to ``[members, n]``: the left fragment's return minus the right one's."""
        discount = self.settings.discount
        returns = (
            rewards.sum(-1) if discount == 1.0 else rewards @ discounts(rewards.shape[-1], discount).to(rewards.device)
        )
        left, right = returns.unbind(-1)
        return left - right

    def _all_rewards(self, data: _Stacked) -> Tensor:
        """`_rewards` of all comparisons, without gradients, in chunks that bound memory; on the CPU."""
        pairs_per_chunk = max(1, CHUNK // (2 * data.length))
        with torch.no_grad():
            parts: tuple[Tensor, ...] = torch.split(torch.arange(len(data)), pairs_per_chunk)
            return torch.cat([self._rewards(data, part).cpu() for part in parts], 1)

    def _normalise(self, rewards: Tensor) -> None:
        """Set the normalisers so that each member has mean 0 and standard deviation 1 over all stored steps."""
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

    ``inputs``, what the networks take (`RewardNetwork.encode`), each [n, 2, …]; ``length`` of a fragment;
    ``preferences`` [n] float32; ``weights`` [members, n] float32; ``held_out`` [n] bool;
    ``noise`` (see `Loss`) of all or [n] float32, as `counting` sets it.
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
        """With each comparison's weights multiplied by ``weights`` ``[n]``, and this noise. All else is shared."""
        return replace(self, weights=self.weights * weights, noise=noise)

    def keep(self, rows: Sequence[int]) -> _Stacked:
        """These rows, in this (their) order. Nothing else is valid any more.

        They move up in place: clips of pixels are large, and what is withdrawn is mostly of the newest.
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
