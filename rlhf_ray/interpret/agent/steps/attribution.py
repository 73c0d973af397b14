"""What values and actions depend on, in the frame, in the agent's memory and in the world's, and whether to believe it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.moments import WorldMoments, draw_moments
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.drawn_maps import DrawnMaps, judge_drawn, strips
from rlhf_ray.interpret.agent.questions import SOURCES, AgentQuestion, Quantity, Source, quantities
from rlhf_ray.interpret.agent.questions.estimators import Compared, against_differences, compare
from rlhf_ray.interpret.agent.questions.objects import ObjectFigures, masks_at, object_figures, objects_of, states_of
from rlhf_ray.interpret.agent.questions.paths import WAYS, ways
from rlhf_ray.interpret.agent.questions.samples import GradientSamples, join, sample_gradients
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.steps.bases import basis_of
from rlhf_ray.interpret.agent.steps.quality import valid_horizon
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.agent.world_model.simulate import Estimator
from rlhf_ray.interpret.agent.world_model.world import World
from rlhf_ray.interpret.attribution import Method, attribute, make_methods, methods_key
from rlhf_ray.interpret.attribution.drawing import curves_figure
from rlhf_ray.interpret.attribution.faithfulness import Curves, curves
from rlhf_ray.interpret.attribution.occlusion import Occlusion
from rlhf_ray.study.figures import DRAWN
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

METHODS = ("saliency", "difference_x_gradient", "smoothgrad", "integrated_gradients", "occlusion_typical")
"""The methods, if the subject names none."""
EPISODES = 200
SAMPLES, JUDGED, FEWEST = 400, 64, 16
"""Samples for the panel; moments that checks use; fewest of both."""
STEPS = 4
"""Steps from a sample's start to its question."""
CHUNK = 16
"""Samples per part of the context."""
COMPONENTS = 4
"""Components of a basis that are asked about."""
COPIES, UNTRAINED = 32, 3
"""Copies of the environment; untrained agents."""
COMPLETE, GAP, DIFFERENCES = 0.1, 1e-4, 1e-2
"""Largest gap of complete maps, in standard deviations; of paths; largest error against central differences."""
NUMBERS, LEAST_SHARE = 3, 0.1
"""Numbers of a vector that a sentence names, at most; the share of all changes that each needs."""
VALUES = ("value", "advantage")
"""Quantities that are not what the agent does."""
UNMOVED = 1e-6
"""Share of its standard deviation by which a quantity that doesn't depend on the frame may change with the whole frame."""
ALIKE = 0.9
"""Two estimators with a lower mean cosine can lead to other conclusions."""


@dataclass(frozen=True)
class QuantityMaps:
    """What a quantity's maps of the frame show besides their faithfulness.

    Attributes:
        quantity: the quantity.
        gaps: largest gap of each complete method's maps, in standard deviations of the quantity.
        unmoved: whether the whole frame does not move the quantity: there is nothing to order.
        constant: whether the quantity is the same at all moments.
        numbers: of a vector, for each number, the mean change of the quantity when it alone is set to its typical value.
    """

    quantity: Quantity
    gaps: Mapping[str, float]
    unmoved: bool
    numbers: FloatArray
    constant: bool = False


@dataclass(frozen=True)
class PathFigures:
    """Mean shares of the ways that the world's state takes to a quantity some steps on, and the gap of their sum."""

    quantity: Quantity
    step: int
    shares: Mapping[str, float]
    gap: float
    beyond: bool

    def to_json(self) -> dict[str, Any]:
        """Return shares, and whether the step is beyond the valid horizon."""
        return {**self.shares, "beyond": self.beyond}


@dataclass(frozen=True)
class AgentAttribution:
    """What the step finds, by QUANTITY/METHOD, QUANTITY/OBJECT and QUANTITY/STEP.

    Attributes:
        samples, steps: samples for the panel; their steps.
        valid_horizon: the world model's.
        estimators: compared, by source; empty without a world model or Discrete actions.
        estimator: the one in use.
        differences: median error of gradients against central differences; None for frames of images.
        faithfulness: how far a quantity moves in the order of a method's maps; empty for those that the frame doesn't move.
        objects: what their removal changes.
        paths: shares of the ways that gradients take.
        drawn: which of the maps that strips and the panel draw are faithful.
        maps: of each quantity.
        judged: the moments.
        titles, missing: of the methods, and why they don't apply.
    """

    samples: int
    steps: int
    valid_horizon: int | None
    estimators: Mapping[Source, Compared]
    estimator: Estimator
    differences: float | None
    faithfulness: Mapping[str, Curves]
    objects: Mapping[str, ObjectFigures]
    paths: Mapping[str, PathFigures]
    drawn: DrawnMaps
    maps: Sequence[QuantityMaps] = field(metadata=DRAWN)
    judged: WorldMoments = field(metadata=DRAWN)
    titles: Mapping[str, str] = field(metadata=DRAWN)
    missing: Mapping[str, str] = field(metadata=DRAWN)

    def orders(self) -> Iterator[tuple[Quantity, str, Curves]]:
        """Return quantity, method's title and curves of each order."""
        for maps in self.maps:
            for name, title in self.titles.items():
                if (curves := self.faithfulness.get(f"{maps.quantity.name}/{name}")) is not None:
                    yield maps.quantity, title, curves


def why_not(context: AgentContext) -> str | None:
    """Return why there is nothing to attribute; None otherwise."""
    return None if context.folders.get("recording", context.out).exists() else WORDS.text("no_recording")


def run(context: AgentContext) -> Section:
    """Write the samples for the panel, and judge methods, objects, paths and estimators."""
    agent, effort, rng = context.subject.agent, context.subject.effort, context.rng(WORDS.name)
    episodes, world, horizon = split_episodes(context, "test", EPISODES), world_of(context), valid_horizon(context)
    before = world.context if world is not None else 1
    count = max(FEWEST, int(SAMPLES * effort))
    moments = draw_moments(agent, episodes, count, rng, context=before, ahead=STEPS + 1)
    judged = moments[np.sort(rng.permutation(len(moments))[: max(FEWEST, int(JUDGED * effort))])]
    every = quantities_of(context)
    asked = [quantity for quantity in every if quantity.name in ("value", "action", "mean_0")]
    estimators = {} if world is None else _estimators(context, world, judged, asked[0])
    estimator = estimators["world"].best if estimators else "straight_through"
    context.say(f"gradients of {len(every)} quantities at {len(moments)} moments")
    samples = _samples(context, world, moments, every, horizon, estimator)
    samples.save(context.out)
    states = states_of(episodes, judged)
    methods = make_methods(context.subject.methods or METHODS)
    maps, faithfulness, missing = maps_of(context, judged, asked, methods)
    context.say(f"faithfulness of the maps of {len(every)} quantities")
    drawn = judge_drawn(agent, judged, every, context.subject.seed, partial(_orders, context), UNMOVED)
    figures = AgentAttribution(
        len(samples),
        STEPS,
        horizon,
        estimators,
        estimator,
        _differences(context, judged, asked[0]),
        faithfulness,
        _objects(context, judged, asked, states) if states and is_image(agent.observation_space) else {},
        {} if world is None else _paths(context, world, judged, asked, horizon, estimator),
        drawn,
        maps,
        judged,
        {name: method.title for name, method in methods.items()},
        missing,
    )
    pictures = [*_curves(figures), *strips(agent, episodes, samples, every, drawn, judged, rng, WORDS)]
    return WORDS.section(statements(figures), _checks(figures), _tables(figures), pictures, figures)


def quantities_of(context: AgentContext) -> list[Quantity]:
    """Choose the quantities: value, advantage, the most likely action or the means, and some components of a basis."""
    space = context.subject.agent.action_space
    chosen = [quantities.value(), quantities.advantage()]
    if isinstance(space, gym.spaces.Discrete):
        chosen += [quantities.chosen_action(space)] if int(space.n) > 1 else []
    elif isinstance(space, gym.spaces.Box):
        chosen += [quantities.action_mean(space, i) for i in range(min(2, int(np.prod(space.shape))))]
    if (basis := basis_of(context)) is not None:
        chosen += [quantities.loading(basis, i) for i in range(min(COMPONENTS, len(basis)))]
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
    question = AgentQuestion(context.subject.agent, asked[0], 0, world, sources=sources).against(moments)
    function = partial(
        sample_gradients, agent=context.subject.agent, world=world, quantities=asked, scales=question.scales,
        estimator=estimator, steps=STEPS, horizon=horizon,
        with_paths=[quantity.name for quantity in asked if quantity.name in ("value", "action", "mean_0")],
    )  # fmt: skip
    chunks = [moments[start : start + CHUNK] for start in range(0, len(moments), CHUNK)]
    return join(list(context.mapper(function, chunks)))


def maps_of(
    context: AgentContext, judged: WorldMoments, asked: Sequence[Quantity], methods: Mapping[str, Method]
) -> tuple[list[QuantityMaps], dict[str, Curves], dict[str, str]]:
    """Compare the methods' orders of the frame's parts with random ones; return also why methods don't apply."""
    subject, all_maps, missing = context.subject, [], {}
    faithfulness: dict[str, Curves] = {}
    for quantity in asked:
        question = AgentQuestion(subject.agent, quantity, seed=subject.seed).against(judged)
        missing = {name: why for name, method in methods.items() if (why := method.why_not(question))}
        fitting = {name: method for name, method in methods.items() if name not in missing}
        maps = {name: attribute(method, question, judged) for name, method in fitting.items()}
        values = question.values(judged)
        spread, constant = float(values.std()) or 1.0, float(np.ptp(values)) <= UNMOVED * float(np.abs(values).max())
        frames = {name: method_maps["frame"] for name, method_maps in maps.items()}
        orders = curves(question, judged, frames, _orders(context, quantity.name), "frame")
        unmoved = all(order.deletion[-1] <= UNMOVED * spread for order in orders.values())
        vector = len(subject.agent.observation_space.shape or ()) == 1
        numbers = np.abs(Occlusion().attribute(question, judged)["frame"]).mean(0) if vector else np.zeros(0)
        complete = [name for name, method in fitting.items() if method.complete]
        gaps = {name: float(question.gap(judged, maps[name]).max()) / spread for name in complete}
        all_maps.append(QuantityMaps(quantity, gaps, unmoved, numbers, constant))
        faithfulness |= {} if unmoved else {f"{quantity.name}/{name}": order for name, order in orders.items()}
    return all_maps, faithfulness, missing


def _orders(context: AgentContext, quantity: str) -> np.random.Generator:
    """What draws the random orders that maps of a quantity are compared with: all maps with the same ones."""
    return context.rng(f"curves {quantity}")


def _differences(context: AgentContext, judged: WorldMoments, quantity: Quantity) -> float | None:
    """Compare gradients with central differences."""
    agent = context.subject.agent
    if not agent.memory_size and is_image(agent.observation_space):
        return None
    source: Source = "memory" if agent.memory_size else "frame"
    return float(np.median(against_differences(AgentQuestion(agent, quantity), judged[:16], source)))


def _objects(
    context: AgentContext, judged: WorldMoments, asked: Sequence[Quantity], states: Sequence[bytes]
) -> dict[str, ObjectFigures]:
    """Remove objects by paint and in the level; see where gradients concentrate."""
    subject, figures = context.subject, {}
    batch = subject.make_batch(min(COPIES, len(states)))
    try:
        objects, background = objects_of(masks_at(batch, states))
        for quantity in asked if objects else ():
            question = AgentQuestion(subject.agent, quantity).against(judged)
            fresh = [question.untrained(subject.seed + 1 + i) for i in range(UNTRAINED)]
            others = [other for other in fresh if other is not None]
            rng = context.rng("control")
            for removed in object_figures(question, others, judged, batch, states, objects, rng, background):
                figures[f"{quantity.name}/{removed.name}"] = removed
    finally:
        batch.close()
    return figures


def _paths(
    context: AgentContext,
    world: World,
    judged: WorldMoments,
    asked: Sequence[Quantity],
    horizon: int | None,
    estimator: Estimator,
) -> dict[str, PathFigures]:
    """Split gradients by the way they take."""
    figures = {}
    for quantity in asked:
        for step in range(STEPS + 1):
            taken = ways(AgentQuestion(context.subject.agent, quantity, step, world, estimator), judged)
            shares: dict[str, float] = {name: float(share.mean()) for name, share in taken.shares.items()}
            beyond = horizon is not None and step > horizon
            figures[f"{quantity.name}/{step}"] = PathFigures(quantity, step, shares, taken.gap, beyond)
    return figures


def _estimators(
    context: AgentContext, world: World, judged: WorldMoments, quantity: Quantity
) -> dict[Source, Compared]:
    """Compare the estimators with each other and with finite changes. Empty without Discrete actions."""
    agent = context.subject.agent
    if not isinstance(agent.action_space, gym.spaces.Discrete):
        return {}
    question = AgentQuestion(agent, quantity, STEPS, world, sources=("world", "memory"))
    sources: list[Source] = ["world", "memory"] if agent.memory_size else ["world"]
    return {source: compare(question, judged, source, context.rng("moves")) for source in sources}


def statements(figures: AgentAttribution) -> Iterator[Statement]:
    """Tell what was found."""
    for source, compared in figures.estimators.items():
        pair, cosine = min(compared.cosine.items(), key=lambda item: item[1])
        if cosine < ALIKE:
            values = {"source": SOURCES[source], "pair": pair.split(", "), "cosine": cosine, "found": compared}
            yield WORDS.statement("disagree", 1.0 - cosine, used=figures.estimator, **values)
    for maps in figures.maps:
        yield from _of_quantity(maps, figures.judged)
    if unfaithful := {title for _, title, order in figures.orders() if not order.faithful}:
        yield WORDS.statement("unfaithful", 0.5, methods=sorted(unfaithful))
    for removed in figures.objects.values():
        if removed.matters:
            beyond = 1.0 - removed.control / removed.painted
            key = "object_of_value" if removed.quantity.name in VALUES else "object"
            yield WORDS.statement(key, beyond, strength((beyond, beyond)), object=removed)
        if removed.distrusted and removed.concentration is not None:
            yield WORDS.statement("concentration", removed.concentration[1], object=removed)
    if figures.paths and figures.valid_horizon is not None and 2 <= figures.valid_horizon < STEPS:
        yield WORDS.statement(
            "horizon", 1.0, horizon=figures.valid_horizon, steps=STEPS
        )  # "quality" warns of worse models


def _of_quantity(maps: QuantityMaps, judged: WorldMoments) -> Iterator[Statement]:
    title = maps.quantity.title
    if maps.unmoved and maps.constant:
        yield WORDS.statement("constant", 1.0, title=title, count=len(judged))
    elif maps.unmoved:
        yield WORDS.statement("empty", 1.0, title=title, count=len(judged), first=judged.steps.min())
    elif len(maps.numbers):
        shares = maps.numbers / max(float(maps.numbers.sum()), 1e-12)
        order = [
            int(number) for number in np.argsort(-shares, kind="stable")[:NUMBERS] if shares[number] >= LEAST_SHARE
        ]
        largest = [(number, float(maps.numbers[number]), float(shares[number])) for number in order]
        key = "numbers_of_value" if maps.quantity.name in VALUES else "numbers"
        yield WORDS.statement(key, 0.5, title=title, size=len(shares), count=len(judged), numbers=largest)


def _checks(figures: AgentAttribution) -> Iterator[Check]:
    for maps in figures.maps:
        for name, gap in maps.gaps.items():
            words = {"method": figures.titles[name], "title": maps.quantity.title, "most": COMPLETE}
            yield WORDS.check("complete", gap < COMPLETE, gap, **words)
    if figures.differences is not None:
        yield WORDS.check("differences", figures.differences <= DIFFERENCES, figures.differences, most=DIFFERENCES)
    for path in figures.paths.values():
        if path.step == STEPS:
            yield WORDS.check("paths", path.gap <= GAP, path.gap, title=path.quantity.title, most=GAP)


def _tables(figures: AgentAttribution) -> Iterator[Table]:
    rows: list[list[Any]] = []
    for source, compared in figures.estimators.items():
        for name, rank in compared.rank.items():
            cells = [f"{rank:.2f}", f"{compared.sign[name]:.2f}", f"{compared.size[name]:.3g}"]
            rows.append([SOURCES[source], name.replace("_", "-"), *cells])
    if rows:
        yield WORDS.table("estimators", rows, title=figures.maps[0].quantity.title, steps=STEPS)
    rows = [_curve_row(*order) for order in figures.orders()]
    rows += [["", figures.titles[name], "", "", "", "", why] for name, why in figures.missing.items()]
    yield WORDS.table("methods", rows, count=len(figures.judged))
    if figures.objects:
        yield WORDS.table("objects", map(_object_row, figures.objects.values()))
    if figures.paths:
        rows = []
        for path in figures.paths.values():
            shares = (f"{path.shares.get(name, 0.0):.2f}" for name in WAYS)
            rows.append([path.quantity.title, path.step, *shares, "yes" if path.beyond else ""])
        yield WORDS.table("paths", rows, ways=WAYS, estimator=figures.estimator, count=len(figures.judged))


def _curve_row(quantity: Quantity, method: str, order: Curves) -> list[str]:
    areas = (f"{order.areas[name]:.2f}" for name in ("deletion", "random_deletion", "insertion", "random_insertion"))
    return [quantity.title, method, *areas, "yes" if order.faithful else "no"]


def _object_row(removed: ObjectFigures) -> list[str]:
    interval = ""
    if removed.interval is not None:
        interval = " ({:.2f} to {:.2f})".format(*np.clip(removed.interval, 0, 1))
    return [
        removed.quantity.title,
        removed.name,
        f"{removed.painted:.3g}",
        f"{removed.control:.3g}",
        "–" if removed.edited is None else f"{removed.edited:.3g}",
        "–" if removed.sign is None else f"{removed.sign:.2f}{interval}",
        "–" if removed.rank is None else f"{removed.rank:.2f}",
        *("––" if removed.concentration is None else (f"{share:.2f}" for share in removed.concentration)),
    ]


def _curves(figures: AgentAttribution) -> Iterator[Picture]:
    if orders := list(figures.orders()):
        quantity, method, best = max(orders, key=lambda order: order[2].areas["deletion"] - order[2].areas["insertion"])
        lines = {"deletion": best.deletion, "insertion": best.insertion}
        chance = {"deletion": best.random_deletion, "insertion": best.random_insertion}
        image = curves_figure(best.shares, lines, chance, "mean absolute change")
        yield WORDS.picture("curves", image, method=method, title=quantity.title)


STEP = Step(
    WORDS.name,
    WORDS.title,
    run,
    needs=("recording", "world_model", "quality", "bases"),
    why_not=why_not,
    options=lambda subject: methods_key(subject.methods),
)
