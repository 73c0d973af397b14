"""Saliency: what value and actions depend on in the frames that the agent sees, through time, and whether to believe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.episodes import WorldMoments, draw_moments
from rlhf_ray.interpret.agent import questions
from rlhf_ray.interpret.agent.questions import AgentQuestion, Quantity
from rlhf_ray.interpret.agent.saliency import NOW, THROUGH_TIME, Faithful, judge_maps, strips
from rlhf_ray.interpret.agent.steps.bases import basis_of
from rlhf_ray.interpret.agent.steps.world_model import valid_horizon, world_of
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_recorded, split_episodes
from rlhf_ray.interpret.attribution import make_methods, methods_key
from rlhf_ray.interpret.attribution.drawing import curves_figure
from rlhf_ray.interpret.attribution.faithfulness import Curves
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Picture, Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "attribution", "Saliency"

METHODS = ("saliency", "difference_x_gradient", "smoothgrad", "integrated_gradients", "occlusion_typical")
"""The methods, if the subject names none."""
EPISODES = 200
JUDGED, FEWEST = 64, 16
"""Moments that faithfulness is judged at, at effort 1, and fewest."""
STEPS, SHOWN = 4, 3
"""Steps from a strip's start to its question; strips in a picture."""
COMPONENTS = 4
"""Components of a basis that are asked about."""
ASKED = ("value", "action", "mean_0")
"""Quantities that all methods are compared on."""
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
    context: AgentContext, judged: WorldMoments, every: Sequence[Quantity]
) -> tuple[dict[str, str], dict[str, str], dict[str, Curves], Faithful]:
    """Judge all methods on what they are compared on, and the drawn ones on every quantity.

    Returns:
        The methods' titles, why some don't apply, the curves by QUANTITY/METHOD, and which maps are faithful.
    """
    subject = context.subject
    methods = make_methods(subject.methods or METHODS)
    question = AgentQuestion(subject.agent, every[0]).against(judged)
    missing = {name: why for name, method in methods.items() if (why := method.why_not(question))}
    fitting = {name: method for name, method in methods.items() if name not in missing}
    drawn = make_methods((THROUGH_TIME, NOW))
    asked = {quantity: {**drawn, **fitting} if quantity.name in ASKED else drawn for quantity in every}
    faithful, orders = judge_maps(
        subject.agent, judged, asked, subject.seed, lambda name: context.rng(f"curves {name}")
    )
    return {name: method.title for name, method in {**drawn, **methods}.items()}, missing, orders, faithful


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


STEP = Step(
    NAME,
    TITLE,
    run,
    needs=("recording", "world_model", "bases"),
    why_not=nothing_recorded,
    options=lambda subject: methods_key(subject.methods),
)
