"""Feature visualisation: make inputs that a reward, or a direction inside it, rates high or low, and tell how real they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.layers import Arguments, Layer
from rlhf_ray.interpret.reward.manifold import FIELDS, Distance, Frame, Manifold, flat
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.functions import EnsembleReward, NotDifferentiableError, RewardFunction

SCALED_ON = 512
"""Steps of the data that give the objective's scale."""
LEARNING_RATE = 0.1
JITTER, SCALE, ROTATION = 0.06, 0.05, 5.0
"""Largest random shift of an image as a share of its shorter side, relative change of its size, and rotation in degrees."""
VARIATION = 0.97
"""Most total variation of an image, in units of the data's mean: a little less than it, for the rounding."""
PULL = 10.0
"""Penalty of a vector for twice the Mahalanobis distance of the data's 95th percentile, in standard deviations of the objective."""
MOST_CODES, CHANGES, MOST_TRIED = 16, 4, 3000
"""Grids: codes; cells that may change; changes tried per step and round, drawn if there are more."""


@dataclass(frozen=True)
class Objective:
    """What an input is made for: a high reward, or a layer's mean activation along a direction over positions."""

    layer: Layer | None = None  # None for the reward itself
    direction: FloatArray | None = None  # [channels]
    low: bool = False  # whether to look for low values

    @property
    def sign(self) -> float:
        """-1 if low values are looked for."""
        return -1.0 if self.low else 1.0

    def __call__(self, reward: RewardFunction, arguments: Arguments) -> Tensor:
        """Compute the value with gradients, ``[n]``."""
        if self.layer is None or self.direction is None:
            return reward.forward(*arguments)
        activations = self.layer.run(reward, arguments)
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

    Regularised, something keeps them near the data: images are changed by their spectrum, moved at random and have at most the
    data's total variation; vectors are pulled to the data. Else pixels change, and vectors keep to ranges.
    """

    steps: int = 200  # gradient steps
    best_action: bool = False  # whether the action suits the objective best, too; else it is that of a step of the data
    regularised: bool = True


@dataclass(frozen=True)
class Visualisations:
    """Inputs that were made, in the environment's types and range."""

    steps: Transitions  # their rewards are unknown (NaN)
    rewards: FloatArray
    distances: list[Distance]  # from the data

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
    settings: VisualisationSettings | None = None,
) -> Transitions:
    """Make inputs that ``reward`` rates high, for adversarial training: `optimise`.

    Returns:
        ``count`` steps like those of ``data``: the same types and range (images are uint8), rewards NaN, no further columns.
    """
    function = EnsembleReward(reward) if isinstance(reward, RewardEnsemble) else reward
    return optimise(function, data, seed, count=count, settings=settings).steps


def seen_frames(reward: RewardFunction) -> tuple[Frame, ...]:
    """Return the observations that ``reward`` sees."""
    return tuple(each for each in FIELDS if each in reward.inputs)


def codes_of(data: Transitions) -> Array | None:
    """Return the codes that the observations consist of; None if they aren't vectors of a few integers."""
    sample = data.observations[:: max(1, len(data) // 500)]
    if sample.ndim != 2:
        return None
    codes = np.unique(sample)
    whole = np.array_equal(codes, np.round(codes))
    return codes if whole and 2 <= len(codes) <= MOST_CODES and sample.shape[1] > 1 else None


def optimise(
    reward: RewardFunction,
    data: Transitions,
    seed: int = 0,
    objective: Objective | None = None,
    count: int = 4,
    settings: VisualisationSettings | None = None,
    manifold: Manifold | None = None,
) -> Visualisations:
    """Make ``count`` inputs for ``objective``, by default high reward.

    Images are changed by their pixels or spectrum; vectors within the range of the data; grids of codes cell by cell, without
    gradients. Frames that the reward doesn't see stay as in a step of the data.

    Starts and transformations are drawn by ``seed``; starts, ranges, and what the inputs are compared with are those of ``data``,
    whose ``manifold`` is made if it is None. All inputs are made in one batch.

    Raises:
        NotDifferentiableError: the reward has no gradients, and the observations are no grids of codes.
        SettingError: the reward sees no observations.
    """
    objective, settings = objective or Objective(), settings or VisualisationSettings()
    frames = seen_frames(reward)
    if not frames:
        raise SettingError(f"The reward {reward.name!r} sees no observations, but {', '.join(sorted(reward.inputs))}.")
    manifold = manifold or Manifold(data, frames, seed)
    rng = np.random.default_rng([seed, 0x715])
    starts = data[rng.choice(len(data), count, replace=len(data) < count)]
    starts = starts.with_(rewards=np.full(count, np.nan), columns={}, terminated=np.zeros(count, bool))
    codes = codes_of(data)
    if codes is not None:
        made = _search(starts, frames, codes, lambda steps: objective.sign * objective.of(reward, steps), rng)
        made = _best_actions(reward, objective, made, data) if settings.best_action else made
    elif not reward.differentiable:
        raise NotDifferentiableError(
            f"The reward {reward.name!r} has no gradients, and feature visualisation needs them; look at data examples instead."
        )
    else:
        made = _ascend(reward, data, objective, settings, starts, manifold, seed)
    made = made.with_(episodes=np.arange(count), steps=np.zeros(count, np.int64))
    return Visualisations(made, reward.of(made), manifold.judge(made))


def _search(
    starts: Transitions,
    frames: tuple[Frame, ...],
    codes: Array,
    value: Callable[[Transitions], FloatArray],
    rng: np.random.Generator,
) -> Transitions:
    """Change a few cells of each of ``starts``, each time the one that raises ``value`` most: half a wall means nothing."""
    size = starts.observations.shape[1]
    every = np.argwhere(np.ones((len(frames), size, len(codes)), bool))
    made = []
    for at in range(len(starts)):
        step = starts[at : at + 1]
        best = float(value(step)[0])
        for _ in range(CHANGES):
            options = every
            if len(every) > MOST_TRIED:
                options = every[np.sort(rng.choice(len(every), MOST_TRIED, replace=False))]
            tried = step[np.zeros(len(options), np.int64)]
            arrays = {FIELDS[frame]: getattr(tried, FIELDS[frame]).copy() for frame in frames}
            for number, values in enumerate(arrays.values()):
                rows = np.flatnonzero(options[:, 0] == number)
                values[rows, options[rows, 1]] = codes[options[rows, 2]]
            tried = tried.with_(**arrays)
            rated = value(tried)
            top = int(np.argmax(rated))
            if rated[top] <= best + 1e-9:
                break
            best, step = float(rated[top]), tried[top : top + 1]
        made.append(step)
    return Transitions.concatenate(made)


def _ascend(
    reward: RewardFunction,
    data: Transitions,
    objective: Objective,
    settings: VisualisationSettings,
    starts: Transitions,
    manifold: Manifold,
    seed: int,
) -> Transitions:
    """Move ``starts`` along the gradient of the objective."""
    sample = data.sample(SCALED_ON, np.random.default_rng([seed, 0x5CA]))
    factor = objective.sign / (float(objective.of(reward, sample).std()) or 1.0)
    generator = torch.Generator().manual_seed(seed)
    given = (data, starts, seen_frames(reward), manifold, settings.regularised, generator)
    inputs: _Images | _Vectors = _Images(*given) if manifold.images else _Vectors(*given)
    actions: _Ranged | None = None
    if settings.best_action and isinstance(reward.action_space, gym.spaces.Box):
        actions = _Ranged(*(torch.as_tensor(of.actions.astype(np.float32)) for of in (data, starts)))
    parameters = [inputs.parameter, *([actions.logits] if actions else [])]
    optimiser = torch.optim.Adam(parameters, LEARNING_RATE)
    choose = settings.best_action and actions is None and "action" in reward.inputs
    for step in range(settings.steps):
        if choose and step % max(1, settings.steps // 4) == 0:
            starts = _best_actions(reward, objective, inputs.steps(), data)
        values, penalty = inputs()
        chosen = actions() if actions else reward.action_inputs(starts.actions)
        state, after = values["state"], values["next_state"]
        loss = (penalty - factor * objective(reward, (state, chosen, after, torch.zeros(len(starts))))).sum()
        if not loss.requires_grad:
            break  # nothing depends on the inputs
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    made = inputs.steps().with_(actions=starts.actions)
    if actions:
        made = made.with_(actions=actions().detach().numpy().astype(starts.actions.dtype))
    return _best_actions(reward, objective, made, data) if choose else made


class _Ranged:
    """Numbers within the range of the data's ``[n, …]``, by a sigmoid of their logits."""

    def __init__(self, data: Tensor, start: Tensor):
        self.low, self.range = data.amin(0), data.amax(0) - data.amin(0)
        share = (start - self.low) / self.range.clamp_min(1e-9)
        self.logits = torch.logit(share.clamp(0.02, 0.98)).requires_grad_()

    def __call__(self) -> Tensor:
        return self.low + self.range * torch.sigmoid(self.logits)


@dataclass
class _Made:
    """Frames as parameters: a call returns both frames, and a penalty of each step ``[n]``."""

    data: Transitions
    starts: Transitions
    frames: tuple[Frame, ...]
    manifold: Manifold
    regularised: bool
    generator: torch.Generator
    parameter: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.fixed: dict[str, Tensor] = {
            name: torch.as_tensor(np.array(getattr(self.starts, of), np.float32)) for name, of in FIELDS.items()
        }

    def with_arrays(self, arrays: list[Array]) -> Transitions:
        """Return the steps with these frames."""
        return self.starts.with_(**dict(zip(map(FIELDS.__getitem__, self.frames), arrays, strict=True)))


class _Images(_Made):
    """Images as parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        *shape, channels = self.starts.observations.shape
        begin = 0.5 + 0.05 * torch.randn((*shape, channels * len(self.frames)), generator=self.generator)
        self.parameter, self.images = (fourier if self.regularised else pixels)(begin)
        self.most = VARIATION * (self.manifold.mean_variation or 1.0)

    def made(self) -> list[Tensor]:
        """Each frame's images in [0, 1], at most as varied as the data's."""
        found = self.images().chunk(len(self.frames), -1)
        return [_at_most(each, self.most) for each in found] if self.regularised else list(found)

    def __call__(self) -> tuple[dict[str, Tensor], Tensor]:
        images = torch.cat(self.made(), -1)
        if self.regularised:
            images = moved(images, self.generator)
        values = dict(zip(self.frames, (255.0 * images).chunk(len(self.frames), -1), strict=True))
        return self.fixed | values, torch.zeros(len(images))

    def steps(self) -> Transitions:
        with torch.no_grad():
            return self.with_arrays(
                [np.ascontiguousarray((255.0 * of).round().to(torch.uint8).numpy()) for of in self.made()]
            )


class _Vectors(_Made):
    """Vectors as parameters, within the data's range feature by feature."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = flat(self.data, self.frames)
        whole = known.astype(np.float64)
        mean, std = whole.mean(0), whole.std(0)
        std[std < 1e-9] = 1.0
        standard = (whole - mean) / std
        inverse = np.linalg.inv(standard.T @ standard / len(standard) + 1e-3 * np.eye(standard.shape[1]))
        lengths = np.sqrt(np.einsum("ni,ij,nj->n", standard, inverse, standard))
        self.typical = max(float(np.quantile(lengths, 0.95)), 1e-6)
        self.mean, self.std, self.inverse = map(torch.as_tensor, (mean, std, inverse))
        begin = 0.5 * torch.randn((len(self.starts), len(mean)), generator=self.generator)
        self.ranged = _Ranged(torch.as_tensor(known), begin * self.std.float() + self.mean.float())
        self.parameter = self.ranged.logits

    def __call__(self) -> tuple[dict[str, Tensor], Tensor]:
        # The penalty is for the Mahalanobis distance from the data's mean.
        made = self.ranged()
        shape = self.starts.observations.shape
        values = {
            name: of.reshape(shape) for name, of in zip(self.frames, made.chunk(len(self.frames), 1), strict=True)
        }
        standard = (made.double() - self.mean) / self.std
        squared = ((standard @ self.inverse) * standard).sum(1)
        distance = (squared.clamp_min(1e-12).sqrt() / self.typical).float()
        return self.fixed | values, (PULL if self.regularised else 0.0) * (distance - 1.0).clamp_min(0.0)

    def steps(self) -> Transitions:
        with torch.no_grad():
            values = self()[0]
        dtype = self.starts.observations.dtype
        arrays = [values[name].numpy() for name in self.frames]
        return self.with_arrays(
            [(of.round() if np.issubdtype(dtype, np.integer) else of).astype(dtype) for of in arrays]
        )


def pixels(start: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """Return logits of pixels as a parameter, and its images; ``start`` ``[n, height, width, channels]`` is in [0, 1]."""
    logits = torch.logit(start.clamp(0.02, 0.98)).requires_grad_()
    return logits, lambda: torch.sigmoid(logits)


def fourier(start: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """Return a spectrum as a parameter, its frequencies scaled by their inverse, and its images: steps change large shapes first.

    After Olah, Mordvintsev and Schubert, "Feature Visualization", Distill 2017 ("preconditioning"). Each channel is on its own.
    """
    _, height, width, _ = start.shape
    down, across = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None]
    frequency = torch.sqrt(down**2 + across**2).clamp_min(1.0 / max(height, width))
    scale = (1.0 / frequency)[..., None] / max(height, width) ** 0.5
    logits = torch.logit(start.clamp(0.02, 0.98))
    found = torch.fft.rfft2(logits, dim=(1, 2), norm="ortho") / scale
    spectrum = torch.view_as_real(found).contiguous().requires_grad_()

    def images() -> Tensor:
        scaled = torch.view_as_complex(spectrum) * scale
        return torch.sigmoid(torch.fft.irfft2(scaled, s=(height, width), dim=(1, 2), norm="ortho"))

    return spectrum, images


def moved(
    images: Tensor, generator: torch.Generator, jitter: float = JITTER, scale: float = SCALE, rotation: float = ROTATION
) -> Tensor:
    """Shift, scale and rotate each of ``images`` ``[n, height, width, channels]`` at random, all its channels alike.

    What survives this is no pattern of single pixels. The border is repeated.
    """
    n, height, width, _ = images.shape
    drawn = torch.rand(n, 4, generator=generator) * 2.0 - 1.0
    angle, size = drawn[:, 0] * np.radians(rotation), 1.0 + drawn[:, 1] * scale
    across, down = (2.0 * jitter * min(height, width) * drawn[:, axis] for axis in (2, 3))
    cos, sin = torch.cos(angle) * size, torch.sin(angle) * size
    rows = [cos, -sin * height / width, across / width], [sin * width / height, cos, down / height]
    theta = torch.stack([torch.stack(row, 1) for row in rows], 1)
    grid = nn.functional.affine_grid(theta, [n, 1, height, width], align_corners=False)
    found = nn.functional.grid_sample(images.permute(0, 3, 1, 2), grid, padding_mode="border", align_corners=False)
    return found.permute(0, 2, 3, 1)


def _at_most(images: Tensor, most: float) -> Tensor:
    """Take contrast from images whose total variation (`manifold.total_variation`) is above ``most``: it is proportional to it."""
    down = (images[:, 1:] - images[:, :-1]).abs().mean((1, 2, 3))
    across = (images[:, :, 1:] - images[:, :, :-1]).abs().mean((1, 2, 3))
    share = (most / (down + across).clamp_min(1e-9)).clamp_max(1.0)[:, None, None, None]
    mean = images.mean((1, 2), keepdim=True)
    return mean + share * (images - mean)


def _best_actions(reward: RewardFunction, objective: Objective, steps: Transitions, data: Transitions) -> Transitions:
    """Give each of ``steps`` the action, among the data's, that suits the objective best. Continuous actions stay."""
    if not isinstance(reward.action_space, gym.spaces.Discrete):
        return steps
    choices: Array = np.unique(data.actions)
    tried = [steps.with_(actions=np.full_like(steps.actions, choice)) for choice in choices]
    best: Any = np.argmax([objective.sign * objective.of(reward, each) for each in tried], 0)
    return steps.with_(actions=choices[best].astype(steps.actions.dtype))
