"""Step: behaviours, which are clusters of short windows of memory, world state and actions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.replay import values_at
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.interpret.agent import concepts
from rlhf_ray.interpret.agent.at_hand import action_names, nothing_inside, recorded, world_states
from rlhf_ray.interpret.agent.attribution.looked_at import world_of
from rlhf_ray.interpret.agent.behaviours import Behaviours, action_inputs, behaviours, shares
from rlhf_ray.interpret.agent.clusters import STABLE
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.study.plots import draw_observation, png
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step

NAME = "behaviours"
TITLE = "Behaviours"

COUNTS = (4, 6, 8, 10)
SHOWN = 3
"""Windows of each behaviour in the picture."""
MARKS = 4
"""Concepts that describe a behaviour: those that differ most from the other behaviours."""


def why_not(context: AgentContext) -> str | None:
    """Return why there is nothing to cluster."""
    return nothing_inside(context)


def run(context: AgentContext) -> Section:
    """Cluster windows, and describe each cluster by what is different in it."""
    episodes = recorded(context)
    blocks: dict[str, FloatArray] = {"memory": values_at(context.subject.agent, episodes)}
    world = world_of(context)
    if world is not None:
        states = np.zeros((*episodes.real.shape, world.size))
        rows, steps = np.nonzero(episodes.real)
        states[rows, steps] = world_states(world, context.subject.agent, episodes, rows, steps)
        blocks["world model"] = states
    blocks["actions"] = action_inputs(episodes)
    found = behaviours(blocks, episodes.real, seed=context.subject.seed, counts=COUNTS)
    np.savez(context.out / "behaviours.npz", labels=found.labels, levels=episodes.levels)
    described = _described(episodes, found, action_names(context))
    values: dict[str, Any] = {
        "blocks": list(blocks),
        "length": found.length,
        "silhouette": found.clusters.silhouette,
        "stability": found.clusters.stability,
        "behaviours": described,
    }
    write_text(context.out / "behaviours.json", json.dumps(values, indent=1) + "\n")
    rows_of = [[each["name"], each["windows"], f"{each['share']:.0%}", each["differs"]] for each in described]
    caption = (
        f"Clusters of windows of {found.length} steps of {', '.join(blocks)}, and the concepts that differ most from the other "
        "windows (mean in the behaviour, mean elsewhere)."
    )
    stable = found.clusters.stability >= STABLE
    says = "" if stable else "The borders between behaviours depend on the sample: read them as a rough map."
    check = Check("behaviours are found again", stable or None, found.clusters.stability, f"at least {STABLE}", says)
    table = Table(("behaviour", "windows", "share", "what differs"), rows_of, caption)
    return Section(NAME, TITLE, checks=[check], tables=[table], pictures=_pictures(episodes, found), values=values)


def _described(episodes: Episodes, found: Behaviours, names: Any) -> list[dict[str, Any]]:
    library = concepts.library(episodes, names)
    means: dict[str, tuple[FloatArray, FloatArray, float]] = {}
    for name, each in library.items():
        now = each[:, :-1]
        known = np.isfinite(now) & (found.labels >= 0)
        spread = float(now[known].std()) if known.any() else 0.0
        if spread < 1e-9:
            continue
        inside = shares(found.labels, now)
        outside = np.array([_mean(now[known & (found.labels != at)]) for at in range(len(found))])
        means[name] = inside[: len(found)], outside, spread
    described = []
    for at in range(len(found)):
        away = {name: (inside[at] - outside[at]) / spread for name, (inside, outside, spread) in means.items()}
        marks = sorted((name for name, by in away.items() if np.isfinite(by)), key=lambda name: -abs(away[name]))[
            :MARKS
        ]
        differs = ", ".join(f"{name} {means[name][0][at]:.2f} (else {means[name][1][at]:.2f})" for name in marks)
        count = int((found.clusters.labels == at).sum())
        described.append(
            {
                "name": f"B{at}",
                "windows": count,
                "share": count / max(len(found.clusters.labels), 1),
                "differs": differs,
                "marks": {name: [float(means[name][0][at]), float(means[name][1][at])] for name in marks},
            }
        )
    return described


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else float("nan")


def _pictures(episodes: Episodes, found: Behaviours) -> list[Picture]:
    """Draw the most typical windows of each behaviour, one below the other; none if observations are no images."""
    if episodes.observations.ndim != 5 or not len(found):
        return []
    figure = Figure((0.9 * found.length * SHOWN + 1.0, 0.3 + 1.0 * len(found)), layout="constrained")
    grid = figure.subplots(len(found), found.length * SHOWN, squeeze=False)
    for row, examples in enumerate(found.examples):
        distinct: list[int] = []
        for each in examples:  # of different episodes, so that they are not the same moment
            if len(distinct) < SHOWN and found.starts.rows[each] not in found.starts.rows[distinct]:
                distinct.append(int(each))
        for axes in grid[row]:
            axes.set_axis_off()
        for at, each in enumerate(distinct):
            for step in range(found.length):
                axes = grid[row, at * found.length + step]
                axes.set_axis_on()
                draw_observation(axes, episodes.observations[found.starts.rows[each], found.starts.steps[each] + step])
                if step == 0:
                    axes.set_ylabel(f"B{row}" if at == 0 else "", fontsize=10, rotation=0, labelpad=14)
    caption = f"The most typical windows of each behaviour: {SHOWN} windows of {found.length} steps side by side."
    return [Picture("behaviours", png(figure), caption)]


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model"), why_not=why_not)
