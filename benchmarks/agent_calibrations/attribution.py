"""Attribution: object removal (AT8), concentration of gradients (AT9), gradients against differences (AT16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.agent_calibrations import agent_for
from benchmarks.calibrations import Row
from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.agents.moments import draw_moments
from rlhf_ray.agents.play import play
from rlhf_ray.envs.batches import make_batch
from rlhf_ray.interpret.agent.questions import quantities
from rlhf_ray.interpret.agent.questions.estimators import against_differences
from rlhf_ray.interpret.agent.questions.objects import by_editing, by_painting, masks_at, states_of
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.attribution.faithfulness import agreement, trained_against_untrained
from rlhf_ray.interpret.attribution.gradients import SmoothGrad

AGENTS = ("minirun",)

MINIRUN = "rlhf_ray/MiniRun-v0"
LEVELS = range(10_000, 10_200)
COPIES, MOMENTS, DIFFERENCES = 64, 800, 50
JUMPS = (3, 4)
OBJECTS = ("saw", "coin", "pit")
UNTRAINED = 5
"""Untrained networks: a single one may like an object by chance."""


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure AT8, AT9 and AT16 for each of ``seeds``."""
    return [row for seed in seeds for row in _of(agent_for("minirun", seed), seed)]


def _of(agent: NetworkAgent, seed: int) -> list[Row]:
    batch = make_batch(MINIRUN, COPIES)
    episodes = play(agent, batch, LEVELS, keep_states=True, seed=seed)
    moments = draw_moments(agent, episodes, MOMENTS, np.random.default_rng(seed))
    states = states_of(episodes, moments)
    masks = masks_at(batch, states)
    objects = {name: masks[name] for name in OBJECTS}
    jump = AgentQuestion(agent, quantities.log_odds(agent.action_space, JUMPS, "jump"))
    value = AgentQuestion(agent, quantities.value())

    painted = by_painting(jump, moments, objects, np.random.default_rng(seed), masks["sky"])
    times = {
        name: float(np.nanmean(np.abs(painted.changes[name])) / np.nanmean(np.abs(painted.control[name])))
        for name in OBJECTS
    }
    worth = by_painting(value, moments, objects, np.random.default_rng(seed), masks["sky"]).changes["coin"]
    edited = by_editing(jump, moments, batch, states, [f"remove_{name}" for name in OBJECTS])
    taken = by_editing(value, moments, batch, states, ["remove_coin"])["remove_coin"]
    agreed = {name: agreement(painted.changes[name], edited[f"remove_{name}"]) for name in OBJECTS}
    signs = {name: each.sign for name, each in agreed.items() if each is not None}
    coin = {"painted over": float(np.nanmean(worth)), "taken out of the level": float(np.nanmean(taken))}

    found = {}
    for asked in (jump, value):
        question = replace(asked, seed=seed).against(moments)
        untrained = [replace(question, agent=agent.fresh(1000 * (seed + 1) + i)) for i in range(UNTRAINED)]
        found[asked.quantity.name] = trained_against_untrained(
            question, untrained, moments, objects, SmoothGrad(), "frame"
        )
    ratios = {
        f"{quantity}, {name}": trained / other
        for quantity, pairs in found.items()
        for name, (trained, other) in pairs.items()
    }
    looked = [ratios[f"{jump.quantity.name}, saw"], ratios[f"{value.quantity.name}, coin"]]

    error = float(against_differences(value, moments[:DIFFERENCES]).max())
    return [
        Row(
            "AT8",
            f"MiniRun, seed {seed}: mean absolute change of the jump's log-odds when an object is painted over, over that of a "
            "patch of sky of the same shape",
            times,
            "each >= 4",
            min(times.values()) >= 4.0,
        ),
        Row(
            "AT8",
            f"MiniRun, seed {seed}: mean change of the value without the coin",
            coin,
            "the same sign",
            coin["painted over"] * coin["taken out of the level"] > 0,
        ),
        Row(
            "AT8",
            f"MiniRun, seed {seed}: paint and edited level change the jump's log-odds the same way, larger half of changes",
            signs,
            "each >= 0.8",
            min(signs.values(), default=0.0) >= 0.8,
        ),
        Row(
            "AT9",
            f"MiniRun, seed {seed}: concentration of gradients (SmoothGrad) on objects, trained over untrained",
            ratios,
            "jump on the saw and value on the coin >= 1.4",
            min(looked) >= 1.4,
        ),
        Row(
            "AT16",
            f"MiniRun, seed {seed}: largest error of the value's gradient by the memory against central differences, over the "
            "largest gradient",
            error,
            "<= 0.01",
            error <= 1e-2,
        ),
    ]


if __name__ == "__main__":
    for row in rows((0, 1, 2)):
        print(row)
