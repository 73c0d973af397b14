"""Feature visualisation: make inputs that a reward, or a unit inside it, rates high or low, and tell how real they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.codes import codes_of, search
from rlhf_ray.interpret.reward.data_range import DataBox
from rlhf_ray.interpret.reward.layers import Arguments, Layer
from rlhf_ray.interpret.reward.manifold import Distance, Frame, Manifold, frames_of
from rlhf_ray.interpret.reward.parametrisation import (
    Decoded,
    Fourier,
    Parametrisation,
    Pixels,
    Transformation,
    variation,
)
from rlhf_ray.interpret.reward.prior import Prior, fit_prior, joined
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.functions import EnsembleReward, NotDifferentiableError, RewardFunction

SCALED_ON = 512
"""Steps of the data that give the objective's scale."""


@dataclass(frozen=True)
class Objective:
    """What an input is made for.

    Attributes:
        layer: layer to look into; None for the reward itself.
        direction: direction in the layer's channels (`unit`, or a component of `rlhf_ray.interpret.reward.factors.Factors`),
            ``[channels]``. The objective is the mean over positions of the activations along it.
        low: whether to look for low values.
        name: for captions.
    """

    layer: Layer | None = None
    direction: FloatArray | None = None
    low: bool = False
    name: str = "reward"

    def __post_init__(self) -> None:
        wanted = None if self.layer is None else (self.layer.channels,)
        given = None if self.direction is None else self.direction.shape
        if given != wanted:
            raise SettingError(
                f"Objective.direction has shape {given} and layer {self.layer and self.layer.name!r} needs {wanted}."
            )

    @staticmethod
    def unit(layer: Layer, unit: int, low: bool = False) -> Objective:
        """Return the objective of one unit or channel of ``layer``."""
        return Objective(layer, np.eye(layer.channels)[unit], low, f"{layer.name}, unit {unit}")

    def __call__(self, reward: RewardFunction, arguments: Arguments) -> Tensor:
        """Compute the value with gradients, ``[n]``."""
        if self.layer is None or self.direction is None:
            return reward.forward(*arguments)
        activations = self.layer.run(reward, arguments)[1]
        direction = torch.as_tensor(self.direction, dtype=activations.dtype)
        return activations.flatten(2).mean(2) @ direction if activations.dim() > 2 else activations @ direction

    def of(self, reward: RewardFunction, steps: Transitions) -> FloatArray:
        """Compute the value of ``steps``, ``[n]`` float64."""
        if self.layer is None or self.direction is None:
            return reward.of(steps)
        activations = self.layer.activations(reward, steps).astype(np.float64)
        return np.asarray(activations.reshape(*activations.shape[:2], -1).mean(2) @ self.direction)


@dataclass(frozen=True)
class VisualisationSettings:
    """How inputs are made.

    Attributes:
        parametrisation: of images: pixel, fourier, or prior (the code of a `Prior` fitted to the data).
        inputs: the frames to change; None for all that the reward sees. The others stay as in a step of the data.
        action: fixed: the action of a step of the data; best: the action that suits the objective best.
        start: noise: grey noise, or for vectors the data's mean; data: steps of the data.
        steps: gradient steps.
        learning_rate: of Adam.
        jitter: largest random shift of an image, as a share of its shorter side.
        scale: largest random change of an image's size, relative.
        rotation: largest random rotation of an image, degrees.
        total_variation: most total variation of an image, in units of the data's mean: images with more lose contrast. None: no
            limit.
        l2: penalty for the mean squared distance from the start, in standard deviations of the objective for a distance of 1 (the
            full range of a pixel).
        pull: for vectors: penalty for a Mahalanobis distance above the data's 95th percentile, likewise for twice that.
    """

    parametrisation: Literal["pixel", "fourier", "prior"] = "fourier"
    inputs: tuple[Frame, ...] | None = None
    action: Literal["fixed", "best"] = "fixed"
    start: Literal["noise", "data"] = "noise"
    steps: int = 200
    learning_rate: float = 0.1
    jitter: float = 0.06
    scale: float = 0.05
    rotation: float = 5.0
    total_variation: float | None = 1.0
    l2: float = 0.0
    pull: float = 10.0

    def unregularised(self) -> VisualisationSettings:
        """Return the same settings with pixels as parameters and nothing that keeps the inputs near the data."""
        return replace(
            self, parametrisation="pixel", jitter=0.0, scale=0.0, rotation=0.0, total_variation=None, l2=0.0, pull=0.0
        )


@dataclass(frozen=True)
class Visualisations:
    """Inputs that were made, in the environment's types and range.

    Attributes:
        objective: what they were made for.
        settings: how.
        steps: the inputs as steps; their rewards are unknown (NaN).
        values: the objective of each.
        rewards: the reward of each.
        distances: how far each is from the data.
    """

    objective: Objective
    settings: VisualisationSettings
    steps: Transitions
    values: FloatArray
    rewards: FloatArray
    distances: list[Distance] = field(default_factory=list)

    @property
    def off(self) -> list[bool]:
        """Whether each is off the manifold."""
        return [each.off for each in self.distances]


def visualise(
    reward: RewardFunction | RewardEnsemble,
    data: Transitions,
    seed: int = 0,
    *,
    count: int = 16,
    low: bool = False,
    settings: VisualisationSettings | None = None,
) -> Transitions:
    """Make inputs that ``reward`` rates high, for adversarial training.

    Args:
        reward: a differentiable reward.
        data: steps that the reward was learned from.
        seed: draws starts and transformations.
        count: number of inputs.
        low: whether to make inputs that are rated low.
        settings: how.

    Returns:
        ``count`` steps like those of ``data``: the same types and range (images are uint8), rewards NaN, no further columns.

    Raises:
        NotDifferentiableError: the reward has no gradients.
    """
    function = EnsembleReward(reward) if isinstance(reward, RewardEnsemble) else reward
    return optimise(function, data, seed, Objective(low=low), count, settings).steps


def seen_frames(reward: RewardFunction) -> tuple[Frame, ...]:
    """Return the observations that ``reward`` sees."""
    both: tuple[Frame, ...] = ("state", "next_state")
    return tuple(each for each in both if each in reward.inputs)


def optimise(
    reward: RewardFunction,
    data: Transitions,
    seed: int = 0,
    objective: Objective | None = None,
    count: int = 4,
    settings: VisualisationSettings | None = None,
    manifold: Manifold | None = None,
    prior: Prior | None = None,
) -> Visualisations:
    """Make ``count`` inputs for ``objective``.

    Images are changed by their pixels, spectrum or code; vectors within the range of the data; grids of codes cell by cell, which
    needs no gradients.

    Args:
        reward: the reward.
        data: steps of the environment: starts, ranges, and what the inputs are compared with.
        seed: draws starts and transformations.
        objective: what to make the inputs for; default: high reward.
        count: number of inputs, which are made in one batch.
        settings: how.
        manifold: of ``data``; made if None.
        prior: of ``data``, for ``parametrisation="prior"``; fitted if None.

    Raises:
        NotDifferentiableError: the reward has no gradients, and the observations are no grids of codes.
        SettingError: the reward sees no frame that may be changed.
    """
    objective, settings = objective or Objective(), settings or VisualisationSettings()
    frames = tuple(each for each in settings.inputs or seen_frames(reward) if each in reward.inputs)
    if not frames:
        raise SettingError(
            f"The reward {reward.name!r} sees none of the frames {settings.inputs or ('state', 'next_state')}; it sees "
            f"{', '.join(sorted(reward.inputs))}."
        )
    manifold = manifold or Manifold(data, seen_frames(reward), seed)
    rng = np.random.default_rng([seed, 0x715])
    starts = data[rng.choice(len(data), count, replace=len(data) < count)]
    starts = starts.with_(rewards=np.full(count, np.nan), columns={}, terminated=np.zeros(count, bool))
    codes = codes_of(data)
    if codes is not None:
        made = search(starts, frames, codes, lambda steps: _signed(objective) * objective.of(reward, steps), rng)
        made = _best_actions(reward, objective, made, data) if settings.action == "best" else made
    elif not reward.differentiable:
        raise NotDifferentiableError(
            f"The reward {reward.name!r} has no gradients, and feature visualisation needs them; look at data examples instead."
        )
    else:
        made = _ascend(reward, data, objective, settings, frames, starts, manifold, prior, seed)
    made = made.with_(episodes=np.arange(count), steps=np.zeros(count, np.int64))
    return Visualisations(objective, settings, made, objective.of(reward, made), reward.of(made), manifold.judge(made))


def _signed(objective: Objective) -> float:
    return -1.0 if objective.low else 1.0


def _ascend(
    reward: RewardFunction,
    data: Transitions,
    objective: Objective,
    settings: VisualisationSettings,
    frames: tuple[Frame, ...],
    starts: Transitions,
    manifold: Manifold,
    prior: Prior | None,
    seed: int,
) -> Transitions:
    """Move ``starts`` along the gradient of the objective."""
    generator = torch.Generator().manual_seed(seed)
    sample = data.sample(SCALED_ON, np.random.default_rng([seed, 0x5CA]))
    spread = float(objective.of(reward, sample).std())
    factor = _signed(objective) / (spread or 1.0)
    make = _images if manifold.images else _vectors
    parameters, inputs, finish = make(data, settings, frames, starts, manifold, prior, generator, seed)
    box_action = settings.action == "best" and isinstance(reward.action_space, gym.spaces.Box)
    actions = _BoxActions(starts, data, box_action)
    optimiser = torch.optim.Adam([*parameters, *actions.parameters], settings.learning_rate)
    choose = settings.action == "best" and not box_action and "action" in reward.inputs
    for step in range(settings.steps):
        if choose and step % max(1, settings.steps // 4) == 0:
            starts = _best_actions(reward, objective, finish(), data)
        values, penalty = inputs()
        given = actions() if actions.parameters else reward.action_inputs(starts.actions)
        state, after = values["state"], values["next_state"]
        loss = (penalty - factor * objective(reward, (state, given, after, torch.zeros(len(starts))))).sum()
        if not loss.requires_grad:
            break  # nothing depends on the inputs
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    made = finish().with_(actions=starts.actions)
    if actions.parameters:
        made = made.with_(actions=actions().detach().numpy().astype(starts.actions.dtype))
    return _best_actions(reward, objective, made, data) if choose else made


Inputs = Callable[[], tuple[dict[str, Tensor], Tensor]]


def _images(
    data: Transitions,
    settings: VisualisationSettings,
    frames: tuple[Frame, ...],
    starts: Transitions,
    manifold: Manifold,
    prior: Prior | None,
    generator: torch.Generator,
    seed: int,
) -> tuple[list[Tensor], Inputs, Callable[[], Transitions]]:
    begin = joined(starts, frames).float() / 255.0
    if settings.start == "noise":
        begin = 0.5 + 0.05 * torch.randn(begin.shape, generator=generator)
    image: Parametrisation
    if settings.parametrisation == "prior":
        prior = prior or fit_prior(data, frames, seed)
        with torch.no_grad():
            codes = prior.encode(joined(starts, frames).float() / 255.0)[0]
        image = Decoded(prior, codes)
    else:
        image = (Fourier if settings.parametrisation == "fourier" else Pixels)(begin)
    side = min(begin.shape[1:3])
    move = Transformation(settings.jitter * side, settings.scale, settings.rotation, generator)
    plain = settings.parametrisation == "prior"  # its images are like the data's; moving them would leave the data
    limit = settings.total_variation
    most = None if limit is None else 0.97 * limit * (manifold.mean_variation or 1.0)  # a little less, for the rounding
    anchor = begin.detach()
    fixed = {"state": starts.observations, "next_state": starts.next_observations}
    fixed_tensors = {name: torch.as_tensor(np.array(of, np.float32)) for name, of in fixed.items()}

    def split(images: Tensor) -> dict[str, Tensor]:
        return dict(zip(frames, images.chunk(len(frames), -1), strict=True))

    def limited() -> Tensor:
        images = image.images()
        if most is None or plain:
            return images
        return torch.cat([_at_most(of, most) for of in split(images).values()], -1)

    def inputs() -> tuple[dict[str, Tensor], Tensor]:
        images = limited()
        penalty = image.penalty()
        if settings.l2:
            penalty = penalty + settings.l2 * ((images - anchor) ** 2).mean((1, 2, 3))
        moved = images if plain else move(images)
        return fixed_tensors | {name: 255.0 * of for name, of in split(moved).items()}, penalty

    def finish() -> Transitions:
        with torch.no_grad():
            made = {name: (255.0 * of).round().to(torch.uint8).numpy() for name, of in split(limited()).items()}
        return _replaced(starts, made)

    return image.parameters, inputs, finish


def _vectors(
    data: Transitions,
    settings: VisualisationSettings,
    frames: tuple[Frame, ...],
    starts: Transitions,
    manifold: Manifold,
    prior: Prior | None,
    generator: torch.Generator,
    seed: int,
) -> tuple[list[Tensor], Inputs, Callable[[], Transitions]]:
    box = DataBox(data, manifold.frames, frames)
    begin = box.standard(starts)
    if settings.start == "noise":
        begin = 0.5 * torch.randn(begin.shape, generator=generator)
    logits = box.logits(begin, starts).requires_grad_()

    def inputs() -> tuple[dict[str, Tensor], Tensor]:
        values = box.values(logits, starts)
        penalty = settings.pull * (box.distance(values) - 1.0).clamp_min(0.0)
        if settings.l2:
            penalty = penalty + settings.l2 * (
                (torch.sigmoid(logits) - torch.sigmoid(box.logits(begin, starts))) ** 2
            ).mean(1)
        return values, penalty

    def finish() -> Transitions:
        with torch.no_grad():
            values = box.values(logits, starts)
        dtype = starts.observations.dtype
        made: dict[str, Array] = {name: values[name].numpy() for name in frames}
        if np.issubdtype(dtype, np.integer):
            made = {name: of.round() for name, of in made.items()}
        return _replaced(starts, {name: of.astype(dtype) for name, of in made.items()})

    return [logits], inputs, finish


def _at_most(images: Tensor, most: float) -> Tensor:
    """Take contrast from images whose total variation is above ``most``: it is proportional to the contrast."""
    share = (most / variation(images).clamp_min(1e-9)).clamp_max(1.0)[:, None, None, None]
    mean = images.mean((1, 2), keepdim=True)
    return mean + share * (images - mean)


def _replaced(steps: Transitions, made: dict[str, Array]) -> Transitions:
    state, after = (
        made.get(name, of)
        for name, of in zip(("state", "next_state"), frames_of(steps, ("state", "next_state")), strict=True)
    )
    return steps.with_(observations=np.ascontiguousarray(state), next_observations=np.ascontiguousarray(after))


class _BoxActions:
    """Continuous actions as parameters within the data's range; none unless ``wanted``."""

    def __init__(self, starts: Transitions, data: Transitions, wanted: bool):
        self.parameters: list[Tensor] = []
        if wanted:
            actions = data.actions.astype(np.float32)
            self._low, high = torch.as_tensor(actions.min(0)), torch.as_tensor(actions.max(0))
            self._range = (high - self._low).clamp_min(1e-6)
            share = (torch.as_tensor(starts.actions.astype(np.float32)) - self._low) / self._range
            self.parameters = [torch.logit(share.clamp(0.02, 0.98)).requires_grad_()]

    def __call__(self) -> Tensor:
        return self._low + self._range * torch.sigmoid(self.parameters[0])


def _best_actions(reward: RewardFunction, objective: Objective, steps: Transitions, data: Transitions) -> Transitions:
    """Give each of ``steps`` the action, among the data's, that suits the objective best. Continuous actions stay."""
    if not isinstance(reward.action_space, gym.spaces.Discrete):
        return steps
    choices: Array = np.unique(data.actions)
    rated = [
        _signed(objective) * objective.of(reward, steps.with_(actions=np.full_like(steps.actions, choice)))
        for choice in choices
    ]
    best: Any = np.argmax(rated, 0)
    return steps.with_(actions=choices[best].astype(steps.actions.dtype))
