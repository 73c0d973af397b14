"""Methods of attribution to frames, agent memory and world memory; all return an `Attribution`. Objects are in `objects`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.moments import WorldMoments
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret import gradients
from rlhf_ray.interpret.agent.attribution.question import Question, Source
from rlhf_ray.interpret.reward.regions import regions_of

NOISE, SAMPLES = 0.02, 16
"""SmoothGrad: noise in units of the sources' scales, and copies."""
POINTS, MOST_POINTS, GAP = 32, 128, 0.03
"""Integrated gradients: points to begin with, doubled up to the most until the gap is this share of the change."""
BLOCKS = 64
"""Most parts that occlusion divides a memory into."""


@dataclass(frozen=True)
class Reference:
    """What is typical of each source, and how much it differs: the mean and the scale over some moments.

    Attributes:
        typical: ``[1, …]`` for each source.
        scales: for each source: 255 for images; the standard deviation of each feature; for a memory one for all its units.
    """

    typical: Mapping[Source, Tensor]
    scales: Mapping[Source, Tensor]

    @classmethod
    def of(cls, question: Question, moments: WorldMoments) -> Reference:
        """Compute the reference from moments."""
        typical: dict[Source, Tensor] = {}
        scales: dict[Source, Tensor] = {}
        for name, values in question.inputs(moments).items():
            typical[name] = values.mean(0, keepdim=True)
            if name == "frame" and is_image(question.agent.observation_space):
                scales[name] = torch.full((1,), 255.0)
            elif name == "frame":
                scales[name] = values.std(0, unbiased=False, keepdim=True)
            else:
                scales[name] = values.var(0, unbiased=False).mean().sqrt()[None]
        return cls(typical, scales)


@dataclass(frozen=True)
class Attribution:
    """How much each element of each source matters to a quantity.

    Attributes:
        maps: for each source ``[n, …]`` float64, in the quantity's units: the frame's has the shape of an observation (added over a
            world model's context), a memory's ``[n, size]``.
        values: the quantity, ``[n]``.
        method: the method's name.
        about: quantity, steps, estimator, cut, digests.
        gap: integrated gradients: how far the maps' sums are from the quantity's change, ``[n]``; None for other methods.
    """

    maps: Mapping[Source, FloatArray]
    values: FloatArray
    method: str
    about: Mapping[str, Any]
    gap: FloatArray | None = None


def gradient(question: Question, moments: WorldMoments, reference: Reference, seed: int = 0) -> Attribution:
    """Return the gradient times the source's scale: the change per typical change."""
    found = gradients.gradient(*_asked(question, moments))
    return _result(
        "gradient", question, moments, [of * s for of, s in zip(found, _scales(question, reference), strict=True)]
    )


def gradient_x_input(question: Question, moments: WorldMoments, reference: Reference, seed: int = 0) -> Attribution:
    """Return the gradient times the source's difference from its typical value."""
    function, inputs = _asked(question, moments)
    found = gradients.gradient(function, inputs)
    differences = (of - reference.typical[name] for name, of in zip(question.names, inputs, strict=True))
    return _result("gradient_x_input", question, moments, [g * d for g, d in zip(found, differences, strict=True)])


def smoothgrad(
    question: Question,
    moments: WorldMoments,
    reference: Reference,
    seed: int = 0,
    *,
    noise: float = NOISE,
    samples: int = SAMPLES,
) -> Attribution:
    """Return the gradient's mean over noisy copies, times the source's scale (Smilkov et al. 2017)."""
    function, inputs = _asked(question, moments)
    scales = _scales(question, reference)
    found = gradients.smooth_gradient(function, inputs, scales, noise=noise, samples=samples, seed=seed)
    return _result("smoothgrad", question, moments, found)


def integrated_gradients(question: Question, moments: WorldMoments, reference: Reference, seed: int = 0) -> Attribution:
    """Return the gradient's mean on the way from the typical values, times the way (Sundararajan et al. 2017).

    The points are doubled until the sums are complete. In a closed loop they can't be: Discrete actions jump on the way.
    """
    _, inputs = _asked(question, moments)
    rows = torch.arange(len(moments))
    typical = tuple(reference.typical[name] for name in question.names)
    with torch.no_grad():
        values = question.ask(moments)
        start = question.ask(
            moments, {n: reference.typical[n].expand_as(i) for n, i in zip(question.names, inputs, strict=True)}
        )
    change = (values - start).double().numpy()
    enough = GAP * (float(np.abs(change).mean()) or 1.0)
    points = POINTS
    while True:
        found = gradients.integrated_gradients(question.function(moments), inputs, typical, points, rows)
        sums = sum(of.detach().double().flatten(1).sum(1).numpy() for of in found)
        gap = np.abs(np.asarray(sums) - change)
        if gap.max(initial=0.0) <= enough or points >= MOST_POINTS:
            return _result("integrated_gradients", question, moments, found, gap)
        points *= 2


def occlusion(question: Question, moments: WorldMoments, reference: Reference, seed: int = 0) -> Attribution:
    """Return how much the quantity falls when a part gets its typical value, spread evenly over the part."""
    inputs = question.inputs(moments)
    maps: list[Tensor] = []
    with torch.no_grad():
        before = question.ask(moments)
        for name, own in inputs.items():
            found = torch.zeros_like(own, dtype=torch.float64)
            for mask in parts_of(question.agent.observation_space, name, tuple(own.shape[1:])):
                at = torch.as_tensor(mask)
                changed = torch.where(at, reference.typical[name], own)
                fall = (before - question.ask(moments, {**inputs, name: changed})).double() / float(mask.sum())
                found += at * fall.view(-1, *(1,) * mask.ndim)
            maps.append(found)
    return _result("occlusion", question, moments, maps)


Method = Callable[[Question, WorldMoments, Reference, int], Attribution]
METHODS: Mapping[str, Method] = {
    "gradient": gradient,
    "gradient_x_input": gradient_x_input,
    "smoothgrad": smoothgrad,
    "integrated_gradients": integrated_gradients,
    "occlusion": occlusion,
}
"""All methods by name."""


def parts_of(space: gym.Space[Any], source: Source, shape: tuple[int, ...]) -> BoolArray:
    """Return the parts of a source ``[parts, *shape]``: patches or features of a frame, up to `BLOCKS` blocks of a memory."""
    if source == "frame":
        masks = regions_of(space).masks
        return np.broadcast_to(masks[:, None], (len(masks), *shape)) if len(shape) == masks.ndim else masks
    blocks = np.arange(shape[0]) * min(BLOCKS, shape[0]) // max(shape[0], 1)
    found: BoolArray = blocks[None] == np.arange(min(BLOCKS, shape[0]))[:, None]
    return found


def plane(maps: Array) -> FloatArray:
    """Add the channels of maps of images ``[…, height, width, channels]``; the sign stays."""
    added: FloatArray = maps.sum(-1)
    return added


def through_time(
    question: Question,
    moments: WorldMoments,
    reference: Reference,
    *,
    samples: int = 1,
    noise: float = NOISE,
    seed: int = 0,
) -> dict[str, Array]:
    """Return the gradients of a quantity ``k`` steps on with respect to every step up to it, averaged over noisy copies.

    The first copy has no noise. Gradients are not multiplied by scales.

    Args:
        question: with ``steps = k``.
        moments: where.
        reference: gives the noise its size.
        samples: copies of the inputs.
        noise: its standard deviation, in the sources' scales.
        seed: of the noise.

    Returns:
        ``observations`` ``[n, k + 1, …]``: gradients to the frame that the agent sees at each step; ``memory`` and ``states``: to
        the agent's memory before it and the world's. ``observations_seen``, ``memory_seen``, ``values_seen`` and ``logits_seen``
        are the steps' own, without noise.
    """
    inputs = question.inputs(moments)
    generator = torch.Generator().manual_seed(seed)
    total: dict[str, Tensor] = {}
    seen: dict[str, Array] = {}
    for copy in range(samples):
        moved = {
            name: of
            + (0.0 if copy == 0 else noise) * reference.scales[name] * torch.randn(of.shape, generator=generator)
            for name, of in inputs.items()
        }
        simulation = question.rollout(moments, {name: of.requires_grad_() for name, of in moved.items()})
        found = simulation.gradients(question.read(simulation))
        for name in ("observations", "memory", "states"):
            part = getattr(found, name)[:, : question.steps + 1].detach() / samples
            total[name] = total[name] + part if name in total else part
        if copy == 0:
            names = ("observations", "memory", "values", "logits")
            seen = {f"{name}_seen": getattr(simulation, name).detach().numpy() for name in names}
    return {name: of.numpy() for name, of in total.items()} | seen


def _asked(question: Question, moments: WorldMoments) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """Return the quantity as a function of its inputs, and them. The order of rows stays."""
    function, rows = question.function(moments), torch.arange(len(moments))
    return lambda *values: function(*values, rows), tuple(question.inputs(moments).values())


def _scales(question: Question, reference: Reference) -> list[Tensor]:
    return [reference.scales[name] for name in question.names]


def _result(
    method: str, question: Question, moments: WorldMoments, found: Any, gap: FloatArray | None = None
) -> Attribution:
    with torch.no_grad():
        values = question.ask(moments).double().numpy()
    maps = {name: of.detach().double().numpy() for name, of in zip(question.names, found, strict=True)}
    if "frame" in maps and question.world is not None:
        maps["frame"] = maps["frame"].sum(1)
    return Attribution(maps, values, method, question.about, gap)
