"""What a reward network's last hidden layer represents: factors of its activations and attributions (NMF)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.layers import Factors, Layer, fit_factors, found_again, hidden_layers
from rlhf_ray.interpret.reward.manifold import Manifold, frames_of
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.visualisation import Objective, VisualisationSettings, optimise, seen_frames
from rlhf_ray.reward.functions import TorchReward
from rlhf_ray.study.figures import DRAWN, values_of
from rlhf_ray.study.plots import Tile, gallery
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "What the last layer represents"
FEWEST_STEPS = 50
FACTORS = 5
EXAMPLES = 4
STABLE = 0.8
"""Least mean cosine of the factors of halves of the data."""


@dataclass(frozen=True)
class LayerFactors:
    """Factors of a layer: the share that they explain, each one's cosine with that of halves of the data, their directions."""

    explained: float
    stability: FloatArray
    components: FloatArray
    fitted: Factors = field(metadata=DRAWN)


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there is nothing to look into."""
    subject = context.subject
    if not isinstance(subject.reward, TorchReward):
        return "No layers are known that compute this reward."
    if len(subject.data) < FEWEST_STEPS:
        return f"The data have {len(subject.data)} steps; at least {FEWEST_STEPS} are needed to look into layers."
    return None if hidden_layers(subject.reward) else "The network has no hidden layer that can be looked into."


def run(context: StepContext[Subject]) -> Section:
    """Factorise the last hidden layer's activations and attributions, and draw what each factor responds to."""
    subject = context.subject
    data = subject.data.sample(max(200, round(800 * subject.effort)), subject.rng("inside"))
    seed = int(subject.rng("inside seed").integers(2**31))
    layer = hidden_layers(subject.reward)[-1]
    found = {
        "activations": _factorise(layer.activations(subject.reward, data), seed, False),
        "attributions": _factorise(layer.attributions(subject.reward, data), seed, True),
    }
    rows = [
        [f"{name}, {number}", cosine, each.explained]
        for name, each in found.items()
        for number, cosine in enumerate(each.stability.tolist())
    ]
    caption = (
        f"NMF of layer {layer.name}: how well each factor is found again in halves of the data, and what all explain."
    )
    mean = float(np.mean(found["activations"].stability))
    remedy = "The factors depend on the sample: don't interpret single ones."
    name = "cosine of the factors of halves of the data"
    check = Check.of(name, mean >= STABLE, mean, f"≥ {STABLE}", remedy)
    tables = [Table(["factor", "found again (cosine)", "explained by all"], rows, caption)]
    pictures = _pictures(subject, data, layer, found["activations"].fitted, seed)
    return Section("inside", TITLE, [check], (), tables, pictures, (), values_of(found))


def _factorise(values: FloatArray, seed: int, signed: bool) -> LayerFactors:
    fitted = fit_factors(values, FACTORS, seed, signed or bool(values.min() < 0.0))
    return LayerFactors(fitted.explained, found_again(values, fitted, [seed + 1, seed + 2]), fitted.directions, fitted)


def _pictures(subject: Subject, data: Transitions, layer: Layer, fitted: Factors, seed: int) -> list[Picture]:
    """Draw what each factor responds to most, in the data and made up."""
    frames = seen_frames(subject.reward)
    if not frames or data.observations.ndim != 4 or data.observations.dtype != np.uint8:
        return []
    weights = fitted.encode(layer.activations(subject.reward, data))
    strength = weights.reshape(*weights.shape[:2], -1).mean(2)
    manifold = Manifold(data, frames, seed)
    settings = VisualisationSettings(steps=max(10, round(60 * subject.effort)))

    def tile(steps: Transitions, number: int, text: str, off: bool = False) -> Tile:
        return Tile([frame[number] for frame in frames_of(steps, frames)], text, off)

    rows: list[tuple[str, list[Tile]]] = []
    for factor, way in enumerate(fitted.directions):
        if not np.any(way):
            continue
        order = np.argsort(-strength[:, factor], kind="stable")[:EXAMPLES]
        made = optimise(subject.reward, data, seed, Objective(layer, way), 1, settings, manifold)
        text = "made up" + ("\noff the manifold" if made.off[0] else "")
        row = [tile(data, int(number), f"{strength[number, factor]:.2f}") for number in order]
        rows.append((f"factor {factor}", [*row, tile(made.steps, 0, text, made.off[0])]))
    caption = f"What each factor of layer {layer.name} responds to most: steps of the data, then a made-up input."
    return [Picture("factors", gallery(rows), caption)] if rows else []


STEP = Step("inside", TITLE, run, why_not=why_not)
