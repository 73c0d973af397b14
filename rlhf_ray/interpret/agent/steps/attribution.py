"""Step: what values and actions depend on, in the frame, in the agent's memory and in the world's, and whether to believe it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlhf_ray.agents.moments import WorldMoments, draw_moments
from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.attribution import quantities as of
from rlhf_ray.interpret.agent.attribution.drawing import curves_figure, strip
from rlhf_ray.interpret.agent.attribution.estimators import Compared, against_differences, compare
from rlhf_ray.interpret.agent.attribution.faithfulness import (
    Curves,
    agreement,
    curves,
    trained_against_untrained,
    where_it_matters,
)
from rlhf_ray.interpret.agent.attribution.looked_at import masks_at, objects_of, states_of
from rlhf_ray.interpret.agent.attribution.methods import METHODS, Attribution, Reference
from rlhf_ray.interpret.agent.attribution.objects import by_editing, by_painting
from rlhf_ray.interpret.agent.attribution.paths import WAYS, Ways, ways
from rlhf_ray.interpret.agent.attribution.quantities import Quantity
from rlhf_ray.interpret.agent.attribution.question import SOURCES, Question, Source
from rlhf_ray.interpret.agent.attribution.samples import GradientSamples, join, sample_gradients
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.steps.bases import basis_of
from rlhf_ray.interpret.agent.steps.quality import valid_horizon
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.agent.world_model.simulate import Estimator
from rlhf_ray.interpret.agent.world_model.world import World
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step

NAME = "attribution"
TITLE = "What values and actions depend on"

EPISODES = 200
SAMPLES, JUDGED, FEWEST, SHOWN = 400, 64, 16, 3
"""Samples for the panel; moments that checks use; fewest of both; samples in pictures."""
STEPS = 4
"""Steps from a sample's start to its question."""
CHUNK = 16
"""Samples per part of the context."""
COMPONENTS = 4
"""Components of a basis that are asked about."""
COPIES, UNTRAINED = 32, 3
"""Copies of the environment; untrained agents."""
TRAINED, GAP, DIFFERENCES = 1.2, 1e-4, 1e-2
"""Least ratio of concentrations, trained over untrained; largest gap of paths; largest error against central differences."""
NUMBERS, LEAST_SHARE = 3, 0.1
"""Numbers of a vector that a sentence names, at most; the share of all changes that each needs."""
UNMOVED = 1e-6
"""Share of its standard deviation by which a quantity that doesn't depend on the frame may change with the whole frame."""
ALIKE = 0.9
"""Two estimators with a lower mean cosine can lead to other conclusions."""


def why_not(context: AgentContext) -> str | None:
    """Return why there is nothing to attribute; None otherwise."""
    return None if context.folders.get("recording", context.out).exists() else "There is no recording of the agent."


def run(context: AgentContext) -> Section:
    """Write the samples for the panel, and judge methods, objects, paths and estimators."""
    agent, rng = context.subject.agent, context.rng(NAME)
    episodes, world, horizon = split_episodes(context, "test", EPISODES), world_of(context), valid_horizon(context)
    seen_before = world.context if world is not None else 1
    count = max(FEWEST, int(SAMPLES * context.subject.effort))
    moments = draw_moments(agent, episodes, count, rng, context=seen_before, ahead=STEPS + 1)
    judged = moments[np.sort(rng.permutation(len(moments))[: max(FEWEST, int(JUDGED * context.subject.effort))])]
    asked = _asked(context)
    found = _Findings(context, world, horizon, judged, asked)
    if world is not None:
        found.estimators(world)
    context.say(f"gradients of {len(asked)} quantities at {len(moments)} moments")
    samples = _samples(context, world, moments, asked, horizon, found.estimator)
    samples.save(context.out)
    states = states_of(episodes, judged)
    found.methods()
    found.differences()
    if states and is_image(agent.observation_space):
        found.objects(states)
    if world is not None:
        found.paths()
    found.pictures += _strips(samples, asked, rng)
    if world is not None and horizon is not None and 2 <= horizon < STEPS:  # the step "quality" warns of worse models
        text = (
            f"The world model can be trusted for {horizon} steps, and the samples ask {STEPS} steps on: what lies beyond is grey, "
            "and gradients through it say little."
        )
        found.statements.append(Statement("warning", text, 1.0))
    values = found.values | {"samples": len(samples.steps), "steps": STEPS, "valid_horizon": horizon}
    write_text(context.out / "attribution.json", json.dumps(values, indent=1) + "\n")
    return Section(NAME, TITLE, found.statements, found.checks, found.tables, found.pictures, values)


def _asked(context: AgentContext) -> list[Quantity]:
    """Choose the quantities: value, advantage, the most likely action or the means, and some components of a basis."""
    space = context.subject.agent.action_space
    chosen = [of.value(), of.advantage()]
    if isinstance(space, gym.spaces.Discrete):
        chosen += [of.chosen_action(space)] if int(space.n) > 1 else []
    elif isinstance(space, gym.spaces.Box):
        chosen += [of.action_mean(space, i) for i in range(min(2, int(np.prod(space.shape))))]
    if (basis := basis_of(context)) is not None:
        chosen += [of.loading(basis, i) for i in range(min(COMPONENTS, len(basis)))]
    return chosen


def _samples(
    context: AgentContext,
    world: World | None,
    moments: WorldMoments,
    asked: Sequence[Quantity],
    horizon: int | None,
    estimator: Estimator,
) -> GradientSamples:
    sources: tuple[Source, ...] = ("frame", "memory") if world is None else ("world", "memory")
    reference = Reference.of(Question(context.subject.agent, asked[0], 0, world, sources=sources), moments)
    function = partial(
        sample_gradients, agent=context.subject.agent, world=world, quantities=asked, reference=reference,
        estimator=estimator, steps=STEPS, horizon=horizon,
        with_paths=[each.name for each in asked if each.name in ("value", "action", "mean_0")],
    )  # fmt: skip
    chunks = [moments[start : start + CHUNK] for start in range(0, len(moments), CHUNK)]
    return join(list(context.mapper(function, chunks)))


class _Findings:
    """Collects what the section says."""

    def __init__(
        self,
        context: AgentContext,
        world: World | None,
        horizon: int | None,
        judged: WorldMoments,
        asked: Sequence[Quantity],
    ):
        self.context, self.world, self.horizon, self.judged = context, world, horizon, judged
        named = {each.name: each for each in asked}
        self.asked = [named[name] for name in ("value", "action", "mean_0") if name in named]
        self.statements: list[Statement] = []
        self.checks: list[Check] = []
        self.tables: list[Table] = []
        self.pictures: list[Picture] = []
        self.values: dict[str, Any] = {}
        self.estimator: Estimator = "straight_through"

    def now(self, quantity: Quantity, agent: Any = None) -> Question:
        """Ask about now, in the recording."""
        return Question(agent or self.context.subject.agent, quantity)

    def _unmoved(self, question: Question, reference: Reference) -> Statement:
        """Say that no part of the frame changes a quantity; and if the agent does something else without it, say that."""
        inputs = question.inputs(self.judged)
        memory = inputs.get("memory", self.context.subject.agent.initial_memory(len(self.judged)))
        with torch.no_grad():
            steps = [
                self.context.subject.agent.step(frame, memory)
                for frame in (inputs["frame"], reference.typical["frame"].expand_as(inputs["frame"]))
            ]
        other = float((steps[0].logits.argmax(1) != steps[1].logits.argmax(1)).float().mean())
        if question.quantity.name == "action" and other > 0:
            text = (
                "What the agent sees now decides what it does, and not how sure it is: with the mean frame its most likely action "
                f"is another one in {other:.0%} of the moments, with the same log-odds. The maps of these are empty."
            )
            return Statement("uses", text, other)
        text = (
            f"What the agent sees now does not matter to the {question.quantity.title} at {len(self.judged)} moments from step "
            f"{self.judged.steps.min()} on: its maps of the frame are empty."
        )
        return Statement("ignores", text, 1.0)

    def methods(self) -> None:
        """Compare the methods' orders of the frame's parts with random ones."""
        rows, found = [], {}
        best: tuple[float, str, Curves] | None = None
        for quantity in self.asked:
            question = self.now(quantity)
            reference = Reference.of(question, self.judged)
            maps = {}
            for name, method in METHODS.items():
                result = method(question, self.judged, reference, self.context.subject.seed)
                maps[name] = result.maps["frame"]
                if result.gap is not None:
                    self._complete(quantity, result)
            rng = self.context.rng(f"curves {quantity.name}")
            ordered = curves(question, self.judged, maps, reference, rng)
            if all(one.deletion[-1] <= UNMOVED * (float(result.values.std()) or 1.0) for one in ordered.values()):
                self.statements.append(self._unmoved(question, reference))
                continue  # nothing to order
            if len(self.context.subject.agent.observation_space.shape or ()) == 1:
                self.statements.append(_numbers(quantity, maps["occlusion"]))
            for name, one in ordered.items():
                areas, intervals = one.areas, one.intervals
                found[f"{quantity.name}/{name}"] = {**areas, "intervals": intervals, "faithful": one.faithful}
                rows.append(
                    [quantity.title, name.replace("_", " "), f"{areas['deletion']:.2f}", f"{areas['random_deletion']:.2f}",
                     f"{areas['insertion']:.2f}", f"{areas['random_insertion']:.2f}", "yes" if one.faithful else "no"]
                )  # fmt: skip
                if best is None or areas["deletion"] - areas["insertion"] > best[0]:
                    best = (areas["deletion"] - areas["insertion"], f"{name.replace('_', ' ')}, {quantity.title}", one)
        heads = [
            "quantity",
            "method",
            "deletion",
            "at random",
            "insertion",
            "at random",
            "better than every random order",
        ]
        caption = (
            "Areas under deletion curves (larger is better) and insertion curves (smaller is better), as shares of the effect of "
            f"the whole frame; means of {len(self.judged)} moments and of 10 random orders."
        )
        self.tables.append(Table(heads, rows, caption))
        self.values["faithfulness"] = found
        if best is not None:
            lines = {"deletion": best[2].deletion, "insertion": best[2].insertion}
            chance = {"deletion": best[2].random_deletion, "insertion": best[2].random_insertion}
            image = curves_figure(best[2].shares, lines, chance, "mean absolute change")
            self.pictures.append(
                Picture("curves", image, f"The most faithful maps ({best[1]}); random orders in grey.")
            )
        unfaithful = sorted({name.partition("/")[2] for name, each in found.items() if not each["faithful"]})
        if unfaithful:
            listed = ", ".join(name.replace("_", " ") for name in unfaithful)
            text = f"Not all maps say what matters: for some quantity, {listed} order the frame no better than a random order can."
            self.statements.append(Statement("warning", text, 0.5))

    def _complete(self, quantity: Quantity, result: Attribution) -> None:
        spread = float(result.values.std()) or 1.0
        gap = float(result.gap.max()) / spread if result.gap is not None else 0.0
        says = f"The maps of integrated gradients miss the change by up to {gap:.2f} standard deviations."
        self.checks.append(
            Check(f"integrated gradients add up, {quantity.title}", gap < 0.1, gap, "< 0.1", "" if gap < 0.1 else says)
        )

    def differences(self) -> None:
        """Check gradients against central differences."""
        source: Source = "memory" if self.context.subject.agent.memory_size else "frame"
        if source == "frame" and is_image(self.context.subject.agent.observation_space):
            return
        error = float(np.median(against_differences(self.now(self.asked[0]), self.judged[:16], source)))
        says = f"The median error is {error:.1e} of the largest gradient."
        passed = error <= DIFFERENCES
        self.checks.append(
            Check(
                "gradients agree with central differences", passed, error, f"<= {DIFFERENCES:g}", "" if passed else says
            )
        )

    def objects(self, states: Sequence[bytes]) -> None:
        """Remove objects by paint and in the level; see where gradients concentrate."""
        batch = self.context.subject.make_batch(min(COPIES, len(states)))
        try:
            objects, background = objects_of(masks_at(batch, states))
            edits = {name: f"remove_{name}" for name in objects if f"remove_{name}" in batch.edits}
            if not objects:
                return
            rows = []
            for quantity in self.asked:
                question = self.now(quantity)
                painted = by_painting(question, self.judged, objects, self.context.rng("control"), background)
                edited = by_editing(question, self.judged, batch, states, list(edits.values()))
                fresh = [self.context.subject.agent.fresh(self.context.subject.seed + 1 + i) for i in range(UNTRAINED)]
                others = [self.now(quantity, other) for other in fresh if other is not None]
                mattering = {name: where_it_matters(mask, painted.changes[name]) for name, mask in objects.items()}
                shares = trained_against_untrained(question, others, self.judged, mattering) if others else {}
                for name, changes in painted.changes.items():
                    if np.isfinite(changes).any():
                        real = edited.get(edits.get(name, ""))
                        rows.append(
                            self._object(quantity, name, changes, painted.control[name], real, shares.get(name))
                        )
        finally:
            batch.close()
        heads = ["quantity", "object", "painted over", "background instead", "taken out of the level", "same sign", "rank",
                 "concentration", "untrained"]  # fmt: skip
        caption = (
            "Mean absolute changes of the quantity when an object is painted over, when as much background is painted, and when "
            "the level itself is edited; agreement of paint and edit (95 % interval); how much of SmoothGrad lies on the object, "
            "relative to its area, in the half of the frames where it matters most, for the agent and for untrained ones."
        )
        self.tables.append(Table(heads, rows, caption))

    def _object(
        self,
        quantity: Quantity,
        name: str,
        changes: FloatArray,
        control: FloatArray,
        real: FloatArray | None,
        shares: tuple[float, float] | None,
    ) -> list[Any]:
        size, base = float(np.nanmean(np.abs(changes))), _mean(np.abs(control))
        there = int(np.isfinite(changes).sum())
        agreed = agreement(changes, real) if real is not None else None
        found = {
            "moments": there, "painted": size, "signed": float(np.nanmean(changes)), "control": base,
            "edited": _mean(np.abs(real)) if real is not None else None,
            "sign": agreed.sign if agreed else None, "rank": agreed.rank if agreed else None, "concentration": shares,
        }  # fmt: skip
        self.values.setdefault("objects", {})[f"{quantity.name}/{name}"] = found
        if base > 0 and size >= 4.0 * base:
            text = (
                f"The {name} matters to the {quantity.title}, which changes by {size:.2g} when the {name} is painted over, and by "
                f"{base:.2g} when as much background is (means of {there} moments)."
            )
            self.statements.append(Statement("uses", text, size / base))
        if shares is not None and shares[0] < TRAINED * shares[1] and shares[0] > 1.0:
            text = (
                f"Don't read meaning into how much of the maps of the {quantity.title} lies on the {name}: it is {shares[0]:.2f} "
                f"times its share of the frame, and {shares[1]:.2f} times with untrained agents."
            )
            self.statements.append(Statement("warning", text, shares[1]))
        interval = (
            ""
            if agreed is None or agreed.interval is None
            else " ({:.2f} to {:.2f})".format(*np.clip(agreed.interval, 0, 1))
        )
        return [
            quantity.title, name, f"{size:.3g}", f"{base:.3g}", "–" if real is None else f"{_mean(np.abs(real)):.3g}",
            "–" if agreed is None else f"{agreed.sign:.2f}{interval}", "–" if agreed is None else f"{agreed.rank:.2f}",
            "–" if shares is None else f"{shares[0]:.2f}", "–" if shares is None else f"{shares[1]:.2f}",
        ]  # fmt: skip

    def paths(self) -> None:
        """Split gradients by the way they take."""
        rows = []
        for quantity in self.asked:
            for step in range(STEPS + 1):
                found = ways(
                    Question(self.context.subject.agent, quantity, step, self.world, self.estimator), self.judged
                )
                shares: dict[str, float] = {name: float(share.mean()) for name, share in found.shares.items()}
                beyond = self.horizon is not None and step > self.horizon
                rows.append(
                    [quantity.title, step, *(f"{shares.get(name, 0.0):.2f}" for name in WAYS), "yes" if beyond else ""]
                )
                self.values.setdefault("paths", {})[f"{quantity.name}/{step}"] = {**shares, "beyond": beyond}
            self._adds_up(quantity, found)
        listed = "; ".join(f"{name}: {words}" for name, words in WAYS.items())
        caption = (
            f"Shares of the ways that the world's state takes to a quantity some steps on ({listed}; estimator "
            f"{self.estimator.replace('_', '-')}). They add up to 1; a way that works against the rest is negative. Means of "
            f"{len(self.judged)} moments."
        )
        self.tables.append(Table(["quantity", "steps on", *WAYS, "beyond the valid horizon"], rows, caption))

    def _adds_up(self, quantity: Quantity, found: Ways) -> None:
        says = f"Parts computed step by step differ from the whole by {found.gap:.1e}."
        passed = found.gap <= GAP
        self.checks.append(
            Check(f"paths add up, {quantity.title}", passed, found.gap, f"<= {GAP:g}", "" if passed else says)
        )

    def estimators(self, world: World) -> None:
        """Compare the estimators with each other and with finite changes."""
        if not isinstance(self.context.subject.agent.action_space, gym.spaces.Discrete):
            return
        rows = []
        sources: list[Source] = ["world", "memory"] if self.context.subject.agent.memory_size else ["world"]
        for source in sources:
            question = Question(self.context.subject.agent, self.asked[0], STEPS, world, sources=("world", "memory"))
            found = compare(question, self.judged, source, self.context.rng("moves"))
            for name, rank in found.rank.items():
                cells = [f"{rank:.2f}", f"{found.sign[name]:.2f}", f"{found.size[name]:.3g}"]
                rows.append([SOURCES[source], name.replace("_", "-"), *cells])
            if source == "world":
                self.estimator = found.best
            self.values.setdefault("estimators", {})[source] = {
                "rank": found.rank, "sign": found.sign, "cosine": found.cosine, "flipped": found.flipped, "best": found.best,
            }  # fmt: skip
            self.statements += _disagree(found, source, self.estimator)
        caption = (
            f"How well the gradient of the {self.asked[0].title} {STEPS} steps on predicts what happens when the source starts a "
            "quarter of the way towards another moment's: rank correlation, and sign of the larger half of effects; mean size."
        )
        self.tables.append(Table(["source", "estimator", "rank", "same sign", "size"], rows, caption))


def _disagree(found: Compared, source: Source, used: Estimator) -> list[Statement]:
    pair, cosine = min(found.cosine.items(), key=lambda item: item[1])
    if cosine >= ALIKE:
        return []
    both = pair.replace("_", "-").replace(", ", " and ")
    text = (
        f"Gradients by the {SOURCES[source]} depend on the estimator: those of {both} have a mean cosine of {cosine:.2f}, and "
        f"{found.flipped[pair]:.0%} of their entries have different signs. The rank correlation with finite changes is "
        f"{found.rank[found.best]:.2f} for {found.best.replace('_', '-')}, the best; paths and samples use "
        f"{used.replace('_', '-')}."
    )
    return [Statement("warning", text, 1.0 - cosine)]


def _strips(samples: GradientSamples, asked: Sequence[Quantity], rng: np.random.Generator) -> list[Picture]:
    rows = np.sort(rng.permutation(len(samples.steps))[:SHOWN])
    steps = samples.observations.shape[1]
    columns = [f"step {step}" for step in range(steps)]
    captions = [f"episode {samples.rows[i]}\nstep {samples.steps[i]}" for i in rows]
    faded: BoolArray = np.zeros((len(rows), steps), bool)
    if samples.horizon is not None:
        faded |= np.arange(steps)[None] > samples.horizon
    made = "simulated frames" if samples.simulated else "recorded frames"
    pictures = []
    for quantity in asked:
        maps = samples.saliency[quantity.name][rows].astype(np.float64)
        image = strip(samples.observations[rows], maps, captions, columns, "per unit of the frame", faded=faded)
        caption = (
            f"Gradient of the {quantity.title} at step {steps - 1} by the frames that the agent sees until then ({made}, estimator "
            f"{samples.estimator.replace('_', '-')}). One scale for all; what is beyond it has the full colour."
        )
        pictures.append(Picture(f"saliency_{quantity.name}", image, caption))
    return pictures


def _mean(values: FloatArray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0


def _numbers(quantity: Quantity, map: FloatArray) -> Statement:
    """Say which numbers of a vector a quantity depends on, by its occlusion map ``[n, numbers]``."""
    changes = np.abs(map).mean(0)
    shares = changes / max(float(changes.sum()), 1e-12)
    order = [int(at) for at in np.argsort(-shares, kind="stable")[:NUMBERS] if shares[at] >= LEAST_SHARE]
    listed = ", ".join(f"number {at}, {changes[at]:.2g} ({shares[at]:.0%})" for at in order)
    text = (
        f"The {quantity.title} depends on these of the {len(changes)} observed numbers, counted from 0: {listed}. That is its mean "
        f"change, and the share of all changes, when this number alone is set to its typical value, at {len(map)} moments."
    )
    return Statement("uses", text, 0.5)


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model", "quality", "bases"), why_not=why_not)
