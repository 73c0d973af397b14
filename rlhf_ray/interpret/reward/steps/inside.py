"""What a reward's layers represent: probes, factors, and directions taken out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.directions.labelled import direction
from rlhf_ray.interpret.reward import editing, factors
from rlhf_ray.interpret.reward.gallery import Tile, gallery
from rlhf_ray.interpret.reward.layer_probes import LayerProbe, concepts_of, features, probe_layer
from rlhf_ray.interpret.reward.layers import Layer, hidden_layers
from rlhf_ray.interpret.reward.manifold import Manifold, frames_of
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.visualisation import Objective, VisualisationSettings, optimise, seen_frames
from rlhf_ray.reward.functions import TorchReward
from rlhf_ray.study.figures import DRAWN, values_of
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

FEWEST_STEPS = 50
LAYERS = 3
FACTORS = 5
EXAMPLES = 4
EDITED = 3
"""Concepts that are taken out, the best represented first."""
FACTORS_EDITED = 2
PENALTY = 10.0
"""Of the ridge regression that gives a concept's direction: weights spread over all units that hold it."""
REPRESENTED = 0.3
"""R² from which on a concept counts as represented."""
WELL_REPRESENTED = 0.5
"""R² from which on a concept tells whether training added anything."""
GAIN = 0.1
"""R² that training has to add before a concept counts as learned: an untrained network represents much of its input too."""
SHUFFLED = 0.1
"""Most R² of probes of shuffled labels."""
CHANGE, TIMES = 0.1, 1.5
"""A direction is used if taking it out changes the reward by more than this, in its standard deviations, and by more than this many
times the change of random directions."""
LEFT = 1e-3
"""Most that may be left of a direction that was taken out, or changed beside it."""
STABLE = 0.8
"""Least mean cosine of the factors of halves of the data."""


@dataclass(frozen=True)
class TakenOut:
    """A concept's direction that was taken out of a layer, and what that changes."""

    probe: LayerProbe
    edit: editing.Edit

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {"concept": self.probe.concept, "layer": self.probe.layer} | asdict(self.edit)


@dataclass(frozen=True)
class LayerFactors:
    """Factors of a layer.

    Attributes:
        explained: share that they explain.
        stability: of each, cosine with that of halves of the data.
        components: their directions.
        fitted: the factors.
        edits: what taking the first ones out changes.
    """

    explained: float
    stability: FloatArray
    components: FloatArray
    fitted: factors.Factors = field(metadata=DRAWN)
    edits: list[editing.Edit] = field(metadata=DRAWN)


@dataclass(frozen=True)
class Inside:
    """What the step finds: shapes of the layers, probes, factors of the last layer, and what taking directions out changes."""

    layers: dict[str, tuple[int, ...]]
    probes: list[LayerProbe]
    factors: dict[str, LayerFactors]
    taken_out: list[TakenOut]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "layers": values_of(self.layers),
            "probes": [asdict(probe) | {"gain": probe.gain} for probe in self.probes],
            "factors": values_of(self.factors),
            "taken_out": values_of(self.taken_out),
            "factors_taken_out": {name: values_of(layer_factors.edits) for name, layer_factors in self.factors.items()},
        }

    @property
    def edits(self) -> list[editing.Edit]:
        """All edits."""
        return [part.edit for part in self.taken_out] + [edit for part in self.factors.values() for edit in part.edits]


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there is nothing to look into."""
    subject = context.subject
    if not isinstance(subject.reward, TorchReward):
        return WORDS.text("no_layers")
    if len(subject.data) < FEWEST_STEPS:
        return WORDS.text("few", steps=len(subject.data), least=FEWEST_STEPS)
    return None if hidden_layers(subject.reward) else WORDS.text("no_hidden_layer")


def run(context: StepContext[Subject]) -> Section:
    """Probe layers, factorise the last one, and take directions out of it."""
    subject = context.subject
    assert isinstance(subject.reward, TorchReward), "why_not says so"
    data = subject.data.sample(max(200, round(800 * subject.effort)), subject.rng(WORDS.name))
    seed = int(subject.rng(f"{WORDS.name} seed").integers(2**31))
    layers = _layers(subject.reward)
    figures = measure(subject.reward, data, layers, seed)
    pictures = _pictures(subject, data, layers[-1], figures.factors["activations"].fitted, seed)
    return WORDS.section(_statements(figures), _checks(figures), _tables(figures), pictures, figures)


def measure(reward: TorchReward, data: Transitions, layers: list[Layer], seed: int) -> Inside:
    """Compute the figures."""
    probed = _probes(reward, data, layers, seed)
    taken = _take_out(reward, data, layers, probed, seed)
    last = layers[-1]
    values = {"activations": last.activations(reward, data), "attributions": last.attributions(reward, data)}
    factorised = {name: _factorise(values[name], seed, name == "attributions") for name in values}
    of_layer = {}
    for name, (fitted, stable) in factorised.items():
        ways = [way for way in fitted.directions[:FACTORS_EDITED] if np.any(way)]
        edits = [editing.verify(reward, last, way, data, seed) for way in ways]
        of_layer[name] = LayerFactors(fitted.explained, stable, fitted.directions, fitted, edits)
    return Inside({layer.name: layer.shape for layer in layers}, probed, of_layer, taken)


def _layers(reward: TorchReward) -> list[Layer]:
    """Return at most `LAYERS` hidden layers of different shapes: of an ensemble with a network per member, the first member's."""
    distinct: dict[tuple[int, ...], Layer] = {}
    every = hidden_layers(reward)
    for layer in every:
        distinct.setdefault(layer.shape, layer)
    chosen = list(distinct.values())
    if every[-1] not in chosen and len(every[-1].shape) == 1:
        chosen.append(every[-1])
    return chosen[-LAYERS:]


def _probes(reward: TorchReward, data: Transitions, layers: list[Layer], seed: int) -> list[LayerProbe]:
    concepts = concepts_of(data)
    if not concepts or len(np.unique(data.episodes)) < 4:
        return []
    linear = [probe for layer in layers for probe in probe_layer(reward, data, layer, concepts, "linear", seed)]
    return linear + probe_layer(reward, data, layers[-1], concepts, "mlp", seed, folds=2)


def _take_out(
    reward: TorchReward, data: Transitions, layers: list[Layer], probed: list[LayerProbe], seed: int
) -> list[TakenOut]:
    """Take the direction of each well represented concept out of the layer where training added most."""
    best: dict[str, LayerProbe] = {}
    for probe in probed:
        if probe.kind == "linear" and probe.trained >= REPRESENTED:
            known = best.get(probe.concept)
            if known is None or (probe.gain or 0.0, probe.trained) > (known.gain or 0.0, known.trained):
                best[probe.concept] = probe
    concepts, by_name = concepts_of(data), {layer.name: layer for layer in layers}
    taken = []
    for probe in sorted(best.values(), key=lambda candidate: -(candidate.gain or candidate.trained))[:EDITED]:
        layer = by_name[probe.layer]
        way = direction(features(reward, layer, data), concepts[probe.concept], PENALTY)
        if np.any(way):
            taken.append(TakenOut(probe, editing.verify(reward, layer, way, data, seed)))
    return taken


def _factorise(values: FloatArray, seed: int, signed: bool) -> tuple[factors.Factors, FloatArray]:
    fitted = factors.fit(values, FACTORS, seed, signed or bool(values.min() < 0.0))
    return fitted, factors.stability(values, fitted, [seed + 1, seed + 2])


def _statements(figures: Inside) -> Iterator[Statement]:
    for taken in figures.taken_out:
        probe, edit = taken.probe, taken.edit
        learned = probe.gain is None or probe.gain > GAIN
        if learned and edit.change > max(CHANGE, TIMES * edit.random, edit.random_most):
            yield WORDS.statement("used", min(edit.change, 1.0), probe=probe, edit=edit)


def _checks(figures: Inside) -> Iterator[Check]:
    if figures.probes:
        shuffled = max(probe.shuffled for probe in figures.probes)
        yield WORDS.check("shuffled", shuffled <= SHUFFLED, shuffled, most=SHUFFLED)
    gains = [
        probe.gain
        for probe in figures.probes
        if probe.kind == "linear" and probe.gain is not None and probe.trained > WELL_REPRESENTED
    ]
    if gains:
        yield WORDS.check("added", True if max(gains) > GAIN else None, max(gains), least=GAIN)
    moved = [edit for edit in figures.edits if edit.before > 1e-12]
    if moved:
        left = max(max(edit.after / edit.before, edit.others) for edit in moved)
        yield WORDS.check("gone", left < LEFT, left, most=LEFT)
    mean = float(np.mean(figures.factors["activations"].stability))
    yield WORDS.check("stable", mean >= STABLE, mean, least=STABLE)


def _tables(figures: Inside) -> Iterator[Table]:
    if figures.probes:
        yield WORDS.table("probes", map(_probe_row, figures.probes))
    rows = []
    for name, layer_factors in figures.factors.items():
        for number, cosine in enumerate(layer_factors.stability):
            edit = layer_factors.edits[number] if number < len(layer_factors.edits) else None
            effect = "" if edit is None else f"{edit.change:.2f} (random {edit.random:.2f})"
            rows.append([f"{name}, {number}", f"{cosine:.2f}", effect])
    yield WORDS.table("factors", rows, layer=list(figures.layers)[-1], factors=figures.factors)
    if figures.taken_out:
        yield WORDS.table("taken_out", map(_edit_row, figures.taken_out))


def _probe_row(probe: LayerProbe) -> list[str]:
    trained = f"{probe.trained:.2f} ± {probe.spread:.2f}"
    untrained = "none" if probe.untrained is None else f"{probe.untrained:.2f}"
    return [probe.concept, probe.layer, probe.kind, trained, untrained, f"{probe.shuffled:.2f}", "0.00"]


def _edit_row(taken: TakenOut) -> list[str]:
    edit = taken.edit
    random = f"{edit.random:.2f} (most {edit.random_most:.2f})"
    correlation = "none" if edit.correlation is None else f"{edit.correlation:.2f}"
    return [taken.probe.concept, taken.probe.layer, f"{edit.change:.2f}", random, correlation]


def _pictures(subject: Subject, data: Transitions, last: Layer, fitted: factors.Factors, seed: int) -> list[Picture]:
    """Draw what each factor of the activations responds to most, in the data and made up."""
    frames = seen_frames(subject.reward)
    if not frames or data.observations.ndim != 4 or data.observations.dtype != np.uint8:
        return []
    weights = fitted.encode(last.activations(subject.reward, data))
    strength = weights.reshape(*weights.shape[:2], -1).mean(2)
    manifold = Manifold(data, frames, seed)
    settings = VisualisationSettings(steps=max(10, round(60 * subject.effort)))
    rows: list[tuple[str, list[Tile]]] = []

    def shown(steps: Transitions, number: int) -> list[Array]:
        return [frame[number] for frame in frames_of(steps, frames)]

    for factor, way in enumerate(fitted.directions):
        if not np.any(way):
            continue
        order = np.argsort(-strength[:, factor], kind="stable")[:EXAMPLES]
        row = [Tile(shown(data, number), f"{strength[number, factor]:.2f}") for number in order]
        synthetic = optimise(subject.reward, data, seed, Objective(last, way), 1, settings, manifold)
        text = "made up" + ("\noff the manifold" if synthetic.off[0] else "")
        row.append(Tile(shown(synthetic.steps, 0), text, synthetic.off[0]))
        rows.append((f"factor {factor}", row))
    return [WORDS.picture("factors", gallery(rows), layer=last.name)] if rows else []


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
