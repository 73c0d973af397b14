"""Effects: of trained agents, rows of what its task needs change more than their controls (E1)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.agent_calibrations import Row, agent_for
from rlhf_ray.interpret.agent.steps import CATALOGUE
from rlhf_ray.interpret.agent.steps.effects import ACTIONS, RETURN
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.study import Study, run_study
from rlhf_ray.study.section import Effect

AGENTS = ("minirun", "cuerun")
EFFORT = 0.5
NEEDED = {"cuerun": ("flip_cue", "cue"), "minirun": ("remove_saw", "saw hidden")}
"""By agent, how the names of rows begin that cost it return."""


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure E1 for each of ``seeds``."""
    torch.set_num_threads(1)
    return [row for seed in seeds for name in AGENTS for row in _of(name, seed)]


def _of(name: str, seed: int) -> list[Row]:
    environment = {"minirun": "rlhf_ray/MiniRun-v0", "cuerun": "rlhf_ray/CueRun-v0"}[name]
    steps = {step: CATALOGUE[step] for step in ("recording", "header", "effects")}
    with tempfile.TemporaryDirectory() as folder:
        study = Study(AgentSubject(agent_for(name, seed), environment, seed, EFFORT), steps, Path(folder))
        tables = run_study(study)[1].effects
    every = [row for table in tables for row in table.rows]
    found = []
    for needed in NEEDED[name]:
        row = next((row for row in every if row.name.startswith(needed)), None)
        told = "missing" if row is None else {ACTIONS: row.figures[ACTIONS].text(), RETURN: row.figures[RETURN].text()}
        beyond = row is not None and _beyond(row)
        found.append(
            Row("E1", f"{name}: {needed}, seed {seed}", told, "more actions change than with its control", beyond)
        )
    return found


def _beyond(row: Effect) -> bool:
    low = row.figures[ACTIONS].low
    return low is not None and low > (row.control or 0.0)
