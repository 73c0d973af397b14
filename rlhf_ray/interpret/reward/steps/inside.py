"""The report's section of what a reward's layers represent: probes, factors, and directions taken out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret import editing, factors, probes
from rlhf_ray.interpret.layers import Layer, hidden_layers
from rlhf_ray.interpret.reward.gallery import Tile, gallery
from rlhf_ray.interpret.reward.manifold import Manifold, frames_of
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.visualisation import Objective, VisualisationSettings, optimise, seen_frames
from rlhf_ray.reward.functions import TorchReward
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "inside"
TITLE = "What the layers represent"

LAYERS = 3
FACTORS = 5
EXAMPLES = 4
EDITED = 3
"""Concepts that are taken out, the best represented first."""
REPRESENTED = 0.3
"""R² from which on a concept counts as represented."""
GAIN = 0.1
"""R² that training has to add before a concept counts as learned: an untrained network represents much of its input too."""


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there is nothing to look into."""
    subject = context.subject
    if not isinstance(subject.reward, TorchReward):
        return "The reward has no layers."
    if len(subject.data) < 50:
        return f"The data have {len(subject.data)} steps; at least 50 are needed to look into layers."
    if not hidden_layers(subject.reward):
        return "The network has no hidden layer that can be looked into."
    return None


@dataclass(frozen=True)
class _Taken:
    """A concept's direction that was taken out of a layer."""

    probe: probes.Probe
    edit: editing.Edit


def run(context: StepContext[Subject]) -> Section:
    """Probe layers, factorise the last one, and take directions out of it."""
    subject = context.subject
    reward = subject.reward
    assert isinstance(reward, TorchReward)  # or why_not says so
    data = subject.data.sample(max(200, round(800 * subject.effort)), subject.rng(NAME))
    seed = int(subject.rng(f"{NAME} seed").integers(2**31))
    layers = _layers(reward)
    found = _probes(reward, data, layers, seed)
    taken = _take_out(reward, data, layers, found, seed)
    last = layers[-1]
    kinds = {
        "activations": _factorise(last.activations(reward, data), seed),
        "attributions": _factorise(last.attributions(reward, data), seed, signed=True),
    }
    edits = {
        name: [editing.verify(reward, last, way, data, seed) for way in made.directions[:2] if np.any(way)]
        for name, (made, _) in kinds.items()
    }
    values: dict[str, Any] = {
        "layers": {layer.name: list(layer.shape) for layer in layers},
        "probes": [asdict(each) | {"gain": each.gain} for each in found],
        "factors": {
            name: {"explained": made.explained, "stability": stable.tolist(), "components": made.directions.tolist()}
            for name, (made, stable) in kinds.items()
        },
        "taken_out": [{"concept": each.probe.concept, "layer": each.probe.layer} | asdict(each.edit) for each in taken],
        "factors_taken_out": {name: [asdict(each) for each in of] for name, of in edits.items()},
    }
    all_edits = [each.edit for each in taken] + [each for of in edits.values() for each in of]
    tables = [
        *([_probe_table(found)] if found else []),
        _factor_table(last, kinds, edits, data),
        *([_edit_table(taken)] if taken else []),
    ]
    pictures = _pictures(subject, data, last, kinds["activations"][0], seed)
    return Section(NAME, TITLE, _statements(taken), _checks(found, all_edits, kinds), tables, pictures, values)


def _layers(reward: TorchReward) -> list[Layer]:
    """Return at most `LAYERS` hidden layers of different shapes: of an ensemble with a network per member, the first member's."""
    distinct: dict[tuple[int, ...], Layer] = {}
    for layer in hidden_layers(reward):
        distinct.setdefault(layer.shape, layer)
    every = hidden_layers(reward)
    chosen = list(distinct.values())
    if every[-1] not in chosen and len(every[-1].shape) == 1:
        chosen.append(every[-1])
    return chosen[-LAYERS:]


def _probes(reward: TorchReward, data: Transitions, layers: list[Layer], seed: int) -> list[probes.Probe]:
    concepts = probes.concepts_of(data)
    if not concepts or len(np.unique(data.episodes)) < 4:
        return []
    found = [each for layer in layers for each in probes.probe(reward, data, layer, concepts, "linear", seed)]
    return found + probes.probe(reward, data, layers[-1], concepts, "mlp", seed, splits=2)


def _take_out(
    reward: TorchReward, data: Transitions, layers: list[Layer], found: list[probes.Probe], seed: int
) -> list[_Taken]:
    """Take the direction of each well represented concept out of the layer where training added most."""
    best: dict[str, probes.Probe] = {}
    for each in found:
        if each.kind == "linear" and each.trained >= REPRESENTED:
            known = best.get(each.concept)
            if known is None or (each.gain or 0.0, each.trained) > (known.gain or 0.0, known.trained):
                best[each.concept] = each
    concepts, by_name = probes.concepts_of(data), {layer.name: layer for layer in layers}
    taken = []
    for each in sorted(best.values(), key=lambda each: -(each.gain or each.trained))[:EDITED]:
        layer = by_name[each.layer]
        way = probes.direction(probes.features(reward, layer, data), concepts[each.concept])
        if np.any(way):
            taken.append(_Taken(each, editing.verify(reward, layer, way, data, seed)))
    return taken


def _factorise(values: FloatArray, seed: int, signed: bool = False) -> tuple[factors.Factors, FloatArray]:
    made = factors.fit(values, FACTORS, "nmf", seed, signed or bool(values.min() < 0.0))
    return made, factors.stability(values, made, [seed + 1, seed + 2])


def _statements(taken: list[_Taken]) -> list[Statement]:
    said = []
    for each in taken:
        one, edit = each.probe, each.edit
        gain = one.gain
        beside = "" if one.untrained is None else f" against {one.untrained:.2f} untrained"
        represents = (
            f"The network represents {one.concept} linearly in layer {one.layer} (R² {one.trained:.2f}{beside})"
        )
        effect = (
            f"taking it out changes the reward by {edit.change:.2f} standard deviations "
            f"(random directions of equal variance: {edit.random:.2f})"
        )
        learned = gain is None or gain > GAIN
        if edit.change > max(0.1, 1.5 * edit.random, edit.random_most) and learned:
            said.append(Statement("rewards", f"{represents}, and uses it: {effect}.", min(edit.change, 1.0)))
    return said


def _checks(found: list[probes.Probe], edits: list[editing.Edit], kinds: dict[str, Any]) -> list[Check]:
    checks = []
    if found:
        shuffled = max(each.shuffled for each in found)
        checks.append(
            Check(
                "probes of shuffled labels find nothing",
                shuffled <= 0.1,
                shuffled,
                "R² at most 0.1",
                ""
                if shuffled <= 0.1
                else "The probes read more off the layers than there is: their figures are too high.",
            )
        )
    compared = [each for each in found if each.kind == "linear" and each.gain is not None and each.trained > 0.5]
    if compared:
        gain = max(each.gain or 0.0 for each in compared)
        checks.append(
            Check(
                "training added to what the layers represent",
                True if gain > GAIN else None,
                gain,
                f"R² more than {GAIN} above an untrained network",
                ""
                if gain > GAIN
                else "An untrained network represents every concept as well: probes can't say what was learned.",
            )
        )
    moved = [each for each in edits if each.before > 1e-12]
    if moved:
        left = max(max(each.after / each.before, each.others) for each in moved)
        checks.append(
            Check(
                "a direction that is taken out is gone, and nothing else changes in its layer",
                left < 1e-3,
                left,
                "less than 0.001 of it left, or changed beside it",
                "" if left < 1e-3 else "The edits do more or less than they should: don't trust their effects.",
            )
        )
    least = float(np.mean(kinds["activations"][1]))
    checks.append(
        Check(
            "halves of the data have the same factors",
            least >= 0.8,
            least,
            "mean cosine at least 0.8",
            "" if least >= 0.8 else "The factors depend on the sample: don't interpret single ones.",
        )
    )
    return checks


def _probe_table(found: list[probes.Probe]) -> Table:
    rows = [
        [
            each.concept,
            each.layer,
            each.kind,
            f"{each.trained:.2f} ± {each.spread:.2f}",
            "none" if each.untrained is None else f"{each.untrained:.2f}",
            f"{each.shuffled:.2f}",
            "0.00",
        ]
        for each in found
    ]
    columns = ("concept", "layer", "probe", "trained", "untrained", "shuffled labels", "mean")
    return Table(
        columns, rows, "How well each concept can be read off a layer: R² on other episodes, one scale for all."
    )


def _factor_table(last: Layer, kinds: dict[str, Any], edits: dict[str, list[editing.Edit]], data: Transitions) -> Table:
    rows = []
    for name, (_, stable) in kinds.items():
        for at, cosine in enumerate(stable):
            edit = edits[name][at] if at < len(edits[name]) else None
            effect = "" if edit is None else f"{edit.change:.2f} (random {edit.random:.2f})"
            rows.append([f"{name}, {at}", f"{cosine:.2f}", effect])
    explained = ", ".join(f"{name}: {made.explained:.0%} explained" for name, (made, _) in kinds.items())
    columns = ("factor", "found again (cosine)", "change of the reward without it, in standard deviations")
    return Table(columns, rows, f"NMF of layer {last.name} ({explained}).")


def _edit_table(taken: list[_Taken]) -> Table:
    rows = [
        [
            each.probe.concept,
            each.probe.layer,
            f"{each.edit.change:.2f}",
            f"{each.edit.random:.2f} (most {each.edit.random_most:.2f})",
            "none" if each.edit.correlation is None else f"{each.edit.correlation:.2f}",
        ]
        for each in taken
    ]
    columns = ("taken out", "layer", "change of the reward", "random directions", "correlation with before")
    caption = "Changes in standard deviations of the reward; random directions vary as much as the one taken out."
    return Table(columns, rows, caption)


def _pictures(subject: Subject, data: Transitions, last: Layer, made: factors.Factors, seed: int) -> list[Picture]:
    """Draw what each factor of the activations responds to most, in the data and made up."""
    frames = seen_frames(subject.reward)
    if not frames or data.observations.ndim != 4 or data.observations.dtype != np.uint8:
        return []
    weights = made.transform(last.activations(subject.reward, data))
    strength = weights.reshape(*weights.shape[:2], -1).mean(2)
    manifold = Manifold(data, frames, seed)
    settings = VisualisationSettings(steps=max(10, round(60 * subject.effort)))
    rows: list[tuple[str, list[Tile]]] = []

    def shown(steps: Transitions, at: int) -> list[Array]:
        return [of[at] for of in frames_of(steps, frames)]

    for factor, way in enumerate(made.directions):
        if not np.any(way):
            continue
        order = np.argsort(-strength[:, factor], kind="stable")[:EXAMPLES]
        row = [Tile(shown(data, at), f"{strength[at, factor]:.2f}") for at in order]
        synthetic = optimise(subject.reward, data, seed, Objective(last, way), 1, settings, manifold)
        text = "made up" + ("\noff the manifold" if synthetic.off[0] else "")
        row.append(Tile(shown(synthetic.steps, 0), text, synthetic.off[0]))
        rows.append((f"factor {factor}", row))
    if not rows:
        return []
    caption = f"What each factor of layer {last.name} responds to most: steps of the data, then a made-up input."
    return [Picture("factors", gallery(rows), caption)]


STEP = Step(NAME, TITLE, run, why_not=why_not)
