"""Saliency: what value and actions depend on in the frames that the agent sees, through time, and whether to believe it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import WorldStepBatch, draw_moments
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.interpret.agent import questions
from rlhf_ray.interpret.agent.questions import NOW, THROUGH_TIME, AgentQuestion, Faithful, Quantity, Source
from rlhf_ray.interpret.agent.steps.bases import basis_of
from rlhf_ray.interpret.agent.steps.world_model import valid_horizon, world_of
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_recorded, split_episodes
from rlhf_ray.interpret.agent.world_model.simulate import World
from rlhf_ray.interpret.attribution import attribute, make_methods, methods_key
from rlhf_ray.interpret.attribution.drawing import curves_figure, strip
from rlhf_ray.interpret.attribution.faithfulness import Curves, curves
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Picture, Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "attribution", "Saliency"

METHODS = ("saliency", "difference_x_gradient", "smoothgrad", "integrated_gradients", "occlusion_typical")
"""The methods, if the subject names none."""
EPISODES = 200
JUDGED, FEWEST = 64, 16
"""Steps that faithfulness is judged at, at effort 1, and fewest."""
STEPS, SHOWN = 4, 3
"""Steps from a strip's start to its question; strips in a picture."""
COMPONENTS = 4
"""Components of a basis that are asked about."""
ASKED = ("value", "action", "mean_0")
"""Quantities that all methods are compared on."""
COPIES = 4
"""Noisy copies of each strip."""
UNMOVED = 1e-6
"""Share of its standard deviation by which a quantity that doesn't depend on the frame may change with the whole frame."""
AREAS = ("deletion", "random_deletion", "insertion", "random_insertion")


def run(context: AgentContext) -> Section:
    """Judge the maps, and draw them through time."""
    subject, rng = context.subject, context.rng(NAME)
    episodes, world, horizon = split_episodes(context, "test", EPISODES), world_of(context), valid_horizon(context)
    before = world.context if world is not None else 1
    count = max(FEWEST, int(JUDGED * subject.effort))
    judged = draw_moments(subject.agent, episodes, count, rng, context=before, ahead=STEPS + 1)
    every = quantities_of(context)
    context.say(f"faithfulness of the maps of {len(every)} quantities")
    titles, missing, orders, faithful = judge(context, judged, every)
    shown = judged[np.sort(rng.permutation(len(judged))[:SHOWN])]
    context.say(f"gradients of {len(every)} quantities through time")
    pictures = [
        *_curves(orders, titles, every),
        *strips(subject.agent, world, shown, judged, every, STEPS, faithful, horizon),
    ]
    areas = {name: order.areas for name, order in orders.items()}
    figures = {"valid_horizon": horizon, "faithful": faithful, "areas": areas}
    tables = [_table(orders, titles, missing, every, len(judged))]
    return Section(NAME, TITLE, (), (), tables, pictures, (), values_of(figures))


def quantities_of(context: AgentContext) -> list[Quantity]:
    """Choose the quantities: value, advantage, the most likely action or the means, and some components of a basis."""
    space = context.subject.agent.action_space
    chosen = [questions.value(), questions.advantage()]
    if isinstance(space, gym.spaces.Discrete):
        chosen += [questions.chosen_action(space)] if int(space.n) > 1 else []
    elif isinstance(space, gym.spaces.Box):
        chosen += [questions.action_mean(space, i) for i in range(min(2, int(np.prod(space.shape))))]
    if (basis := basis_of(context)) is not None:
        chosen += [questions.loading(basis, i) for i in range(min(COMPONENTS, len(basis)))]
    return chosen


def judge(
    context: AgentContext, judged: WorldStepBatch, every: Sequence[Quantity]
) -> tuple[dict[str, str], dict[str, str], dict[str, Curves], Faithful]:
    """Delete and insert parts of the frame in the order of maps: of all methods, or on most quantities of the drawn ones.

    Returns:
        The methods' titles, why some don't apply, the curves by QUANTITY/METHOD, and which maps are faithful.
    """
    subject = context.subject
    methods = make_methods(subject.methods or METHODS)
    question = AgentQuestion(subject.agent, every[0]).against(judged)
    missing = {name: why for name, method in methods.items() if (why := method.why_not(question))}
    drawn = make_methods((THROUGH_TIME, NOW))
    fitting = drawn | {name: method for name, method in methods.items() if name not in missing}
    by_map: dict[str, Curves] = {}
    unmoved = []
    for quantity in every:
        question = AgentQuestion(subject.agent, quantity, seed=subject.seed).against(judged)
        asked = fitting if quantity.name in ASKED else drawn
        maps = {name: attribute(method, question, judged)["frame"] for name, method in asked.items()}
        orders = curves(question, judged, maps, context.rng(f"curves {quantity.name}"), "frame")
        spread = float(question.values(judged).std()) or 1.0
        if all(order.deletion[-1] <= UNMOVED * spread for order in orders.values()):
            unmoved.append(quantity.name)
        else:
            by_map |= {f"{quantity.name}/{name}": order for name, order in orders.items()}
    titles = {name: method.title for name, method in {**drawn, **methods}.items()}
    faithful = Faithful({name: order.faithful for name, order in by_map.items()}, tuple(unmoved))
    return titles, missing, by_map, faithful


def _table(
    orders: Mapping[str, Curves],
    titles: Mapping[str, str],
    missing: Mapping[str, str],
    every: Sequence[Quantity],
    count: int,
) -> Table:
    rows: list[list[Any]] = []
    for name, order in orders.items():
        quantity, method = _named(name, titles, every)
        told = (f"{order.areas[area]:.2f}" for area in AREAS)
        rows.append([quantity, method, *told, "yes" if order.faithful else "no"])
    rows += [["", titles[name], "", "", "", "", why] for name, why in missing.items()]
    areas = ["deletion", "at random", "insertion", "at random"]
    caption = (
        "Areas under deletion curves (larger is better) and insertion curves (smaller is better), as shares of the effect of the "
        f"whole frame; means of {count} moments and of 10 random orders."
    )
    return Table(["quantity", "method", *areas, "better than every random order"], rows, caption)


def _curves(orders: Mapping[str, Curves], titles: Mapping[str, str], every: Sequence[Quantity]) -> list[Picture]:
    """Draw the most faithful maps' curves."""
    if not orders:
        return []
    name, best = max(orders.items(), key=lambda item: item[1].areas["deletion"] - item[1].areas["insertion"])
    lines = {"deletion": best.deletion, "insertion": best.insertion}
    chance = {"deletion": best.random_deletion, "insertion": best.random_insertion}
    image = curves_figure(best.shares, lines, chance, "mean absolute change")
    quantity, method = _named(name, titles, every)
    return [Picture("curves", image, f"The most faithful maps ({method}, {quantity}); random orders in grey.")]


def _named(name: str, titles: Mapping[str, str], every: Sequence[Quantity]) -> tuple[str, str]:
    """Return the titles of quantity and method of a name QUANTITY/METHOD."""
    quantity, _, method = name.partition("/")
    return next(each.title for each in every if each.name == quantity), titles[method]


def strips(
    agent: Agent,
    world: World | None,
    moments: WorldStepBatch,
    usual: WorldStepBatch,
    asked: Sequence[Quantity],
    steps: int,
    faithful: Faithful,
    horizon: int | None,
) -> Iterator[Picture]:
    """Draw gradients of each quantity by the frames up to its step; crossed out where they are not faithful at the last one.

    Strips start at ``moments``, and go on in the world model, or without one in the recording; ``usual`` moments give the noise its
    size. Steps after the world model's valid horizon are grey.
    """
    sources: tuple[Source, ...] = ("frame", "memory") if world is None else ("world", "memory")
    columns = [f"step {step}" for step in range(steps + 1)]
    captions = [f"episode {row}\nstep {step}" for row, step in zip(moments.rows, moments.steps, strict=True)]
    beyond = np.arange(steps + 1) > (steps if world is None or horizon is None else horizon)
    source, names = "recorded" if world is None else "simulated", feature_names(agent.observation_space)
    for quantity in asked:
        question = AgentQuestion(agent, quantity, steps, world, sources=sources)
        slopes = through_time(question, moments, question.against(usual).scales, samples=COPIES)
        maps, why = slopes["observations"].astype(np.float64), faithful.doubt(quantity.name, THROUGH_TIME) or None
        faded = np.tile(beyond, (len(moments), 1))
        image = strip(slopes["seen"], maps, captions, columns, "per unit of the frame", faded, why, names)
        caption = (
            f"Gradient of the {quantity.title} at step {steps} by the frames that the agent sees until then ({source}). "
            "One scale for all; what is beyond it has the full colour."
        )
        yield Picture(f"saliency_{quantity.name}", image, caption, why)


def through_time(
    question: AgentQuestion, moments: WorldStepBatch, scales: Mapping[str, Tensor], *, samples: int = 1
) -> dict[str, Array]:
    """Return the gradients of a quantity ``k`` steps on with respect to every step up to it, averaged over noisy copies.

    The first of the ``samples`` has no noise; that of the others has its size in ``scales`` of the sources. Gradients are not
    multiplied by scales.

    Returns:
        ``observations`` ``[n, k + 1, …]``: gradients to the frame that the agent sees at each step; ``memory`` and ``states``: to
        the agent's memory before it and the world's. ``seen``: the frames themselves, without noise.
    """
    inputs = question.inputs(moments)
    generator = torch.Generator().manual_seed(0)
    total: dict[str, Tensor] = {}
    upto = slice(question.steps + 1)
    for copy in range(samples):
        size = AgentQuestion.noise if copy else 0.0
        moved = {
            name: (actual + size * scales[name] * torch.randn(actual.shape, generator=generator)).requires_grad_()
            for name, actual in inputs.items()
        }
        simulation = question.rollout(moments, moved)
        slopes = simulation.gradients(question.read(simulation))
        for name in ("observations", "memory", "states"):
            part = slopes[name][:, upto].detach() / samples
            total[name] = total[name] + part if name in total else part
        if not copy:
            seen = simulation.observations[:, upto].detach()
    return {name: slope.numpy() for name, slope in total.items()} | {"seen": seen.numpy()}


STEP = Step(
    NAME,
    TITLE,
    run,
    needs=("recording", "world_model", "bases"),
    why_not=nothing_recorded,
    options=lambda subject: methods_key(subject.methods),
)
