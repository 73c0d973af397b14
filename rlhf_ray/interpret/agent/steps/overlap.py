"""Step: are generated states like real ones?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.interpret.agent.at_hand import recorded, world_states
from rlhf_ray.interpret.agent.attribution.looked_at import world_of
from rlhf_ray.interpret.agent.attribution.moments import draw_moments
from rlhf_ray.interpret.agent.chain import Work
from rlhf_ray.interpret.agent.overlap import Likeness, Overlap, overlap
from rlhf_ray.interpret.agent.world_model.simulate import simulate
from rlhf_ray.interpret.section import Check, Section, Statement, Table

NAME = "overlap"
TITLE = "Generated beside real states"
AFTER = ("recording", "world_model")

STARTS, STEPS = 300, 6
ALIKE = 0.1
"""How far the classifier's AUC may be above that of real against real states."""


def unsuitable(work: Work) -> str | None:
    """Return why there is nothing to compare."""
    there = "recording" in work.folders and "world_model" in work.folders
    return None if there else "There is no world model to compare with."


def run(work: Work) -> Section:
    """Let the agent act in the world model, and compare memories and world states with real ones."""
    world = world_of(work)
    assert world is not None, "unsuitable() said that there is one"
    episodes = recorded(work, "test")
    count = max(60, round(STARTS * min(1.0, work.effort)))
    moments = draw_moments(work.agent, episodes, count, work.rng(NAME), context=world.context)
    with torch.no_grad():
        run = simulate(world, work.agent, moments.observations, moments.actions, moments.memory, STEPS)
    # The same steps of the recording: what the agent saw when it lived through them. Cut at the end of each episode.
    at = moments.times[:, None] + np.arange(1, STEPS + 1)
    there = at < episodes.lengths[moments.episodes][:, None]
    rows, ahead = np.nonzero(there)
    real_rows, real_steps = moments.episodes[rows], at[rows, ahead]
    spaces: dict[str, tuple[FloatArray, FloatArray]] = {
        "world model": (
            world_states(world, work.agent, episodes, real_rows, real_steps),
            run.states[:, 1:].double().numpy()[rows, ahead],
        )
    }
    if work.agent.memory_size:
        real = episodes.memory[real_rows, real_steps].astype(np.float64)
        spaces["memory"] = real, run.memory[:, 1:].double().numpy()[rows, ahead]
    found = {name: overlap(*pair, real_rows, real_rows, work.seed) for name, pair in spaces.items()}
    known = {name: each for name, each in found.items() if each is not None}
    values: dict[str, Any] = {"steps": STEPS, "spaces": {name: asdict(each) for name, each in known.items()}}
    write_text(work.out / "overlap.json", json.dumps(values, indent=1) + "\n")
    rows_of = [
        row
        for name, each in known.items()
        for row in (_row(f"{name}: generated", each.generated), _row(f"{name}: other real ones", each.control))
    ]
    columns = ("real states against", "classifier's AUC", "nearest neighbours that are real", "coverage")
    caption = f"Up to {STEPS} steps after the start. Alike: 0.5, 0.5 and as much coverage as among real states."
    return Section(NAME, TITLE, _statements(known), _checks(known), [Table(columns, rows_of, caption)], values=values)


def _row(name: str, each: Likeness) -> list[str]:
    interval = "" if each.interval is None else f" [{each.interval[0]:.2f}, {each.interval[1]:.2f}]"
    return [name, f"{each.auc:.2f}{interval}", f"{each.neighbours:.2f}", f"{each.coverage:.2f}"]


def _checks(known: dict[str, Overlap]) -> list[Check]:
    checks = []
    for name, each in known.items():
        off = each.generated.auc - max(0.5, each.control.auc)
        says = (
            ""
            if off <= ALIKE
            else f"A classifier tells generated from real states ({name}): the model leaves the data."
        )
        bound = f"at most {ALIKE} above real against real"
        checks.append(Check(f"{name}: generated states are like real ones", off <= ALIKE, off, bound, says))
    return checks


def _statements(known: dict[str, Overlap]) -> list[Statement]:
    said = []
    for name, each in known.items():
        if each.generated.auc - max(0.5, each.control.auc) > ALIKE:
            text = (
                f"Generated states differ from real ones ({name}): a classifier tells them apart with AUC {each.generated.auc:.2f} "
                f"(real against real: {each.control.auc:.2f}), and they cover {each.generated.coverage:.0%} of the real ones "
                f"(real: {each.control.coverage:.0%})."
            )
            said.append(Statement("warning", text, each.generated.auc))
    return said
