"""On the same frames: do two agents choose the same action, do their values go together, how alike is what they hold?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.replay import values_at
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.interpret.agent.comparison.pair import AgentPair, acts, correlation, mean_of, same_action, sites, text
from rlhf_ray.measure.intervals import MeanEstimate, bootstrap, percentile_interval
from rlhf_ray.study.section import Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "alike"
TITLE = "What they do and hold on the same frames"
WIDEST = 128
"""Principal components of what a wider layer holds."""
SHUFFLES = 20
DRAWS = 100
"""Draws of the interval of a similarity."""


def run(context: StepContext[AgentPair]) -> Section:
    """Compare actions, values and what both hold."""
    pair = context.subject
    actions, acted = _actions(pair)
    values, valued = _values(pair)
    held, holds = _held(pair)
    figures = {"frames": len(pair.frames.moments.rows), "actions": acted, "values": valued, "held": holds}
    return Section(NAME, TITLE, _statements(pair, figures), tables=[actions, values, *held], values=figures)


def _actions(pair: AgentPair) -> tuple[Table, dict[str, Any]]:
    frames, space = pair.frames, pair.space
    of = frames.moments.rows
    one, other = (acts(frames.moments.cut(each.logits), space) for each in frames.thoughts)
    rng = np.random.default_rng([pair.seed, 0xA1])
    same = same_action(one, other, space).astype(float)
    shuffled = np.mean(
        [same_action(one, other[rng.permutation(len(other))], space) for _ in range(SHUFFLES)], axis=0, dtype=float
    )
    beside = []
    for mine, twins in ((one, frames.untrained[1]), (other, frames.untrained[0])):
        each = [same_action(mine, acts(frames.moments.cut(twin.logits), space), space).astype(float) for twin in twins]
        beside.append(mean_of(bootstrap(same_of, of, pair.seed).mean for same_of in each))
    found = {
        "all frames": same,
        f"frames of {pair.names[0]}": np.where(frames.by[of] == 0, same, np.nan),
        f"frames of {pair.names[1]}": np.where(frames.by[of] == 1, same, np.nan),
    }
    rows: list[list[Any]] = []
    estimates = {}
    for name, values in found.items():
        known = np.isfinite(values)
        estimates[name] = bootstrap(values[known], of[known], pair.seed)
        rows.append([name, text(estimates[name]), f"{bootstrap(shuffled[known], of[known]).mean:.2f}", *beside])
    caption = (
        "How often both choose the same most likely action, episode by episode"
        + ("" if hasattr(space, "n") else ", to a tenth of its range in every dimension")
        + ". Chance: the second's actions shuffled among frames. Intervals: 95 %, over episodes."
    )
    heads = ("", "same action", "chance", f"{pair.names[0]} and untrained", f"{pair.names[1]} and untrained")
    about = {
        "same": asdict(estimates["all frames"]),
        "chance": bootstrap(shuffled, of).mean,
        "untrained": beside,
        "by_frames_of": [asdict(each) for each in list(estimates.values())[1:]],
    }
    return Table(heads, rows, caption), about


def _values(pair: AgentPair) -> tuple[Table, dict[str, Any]]:
    frames, of = pair.frames, pair.frames.moments.rows
    one, other = (frames.moments.cut(each.values).astype(np.float64) for each in frames.thoughts)
    found = correlation(one, other, of, pair.seed)
    rng = np.random.default_rng([pair.seed, 0xA2])
    shuffled = correlation(one, other[rng.permutation(len(other))], of, pair.seed)
    beside = []
    for mine, twins in ((one, frames.untrained[1]), (other, frames.untrained[0])):
        each = [correlation(mine, frames.moments.cut(twin.values), of, pair.seed) for twin in twins]
        beside.append(mean_of(abs(of.mean) for of in each if of is not None))
    heads = ("", "correlation", "chance", f"{pair.names[0]} and untrained", f"{pair.names[1]} and untrained")
    caption = "Correlation of the values of all frames. Chance: shuffled among frames. Untrained: its mean size."
    rows = [["values", text(found), text(shuffled), *beside]]
    about = {"correlation": None if found is None else asdict(found), "untrained": beside}
    return Table(heads, rows, caption), about


def similarity(one: FloatArray, other: FloatArray) -> float | None:
    """Return the linear CKA (Kornblith et al. 2019) of the same rows ``[n, size]``: 1 if equal up to rotation and scale."""
    x, y = one - one.mean(0), other - other.mean(0)
    own = float(np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    return None if own < 1e-12 else float(np.linalg.norm(x.T @ y) ** 2 / own)


def _held(pair: AgentPair) -> tuple[list[Table], dict[str, Any]]:
    """Compare what both hold, beside untrained twins, shuffled frames, and one half of an agent's units with the other."""
    for agent, name in zip(pair.agents, pair.names, strict=True):
        if not agent.memory_size and not agent.layers:
            return [], {"skipped": f"{name} has neither memory nor layers to look into."}
    frames, of = pair.frames, pair.frames.moments.rows
    one, other = (_inside(pair, agent, each) for agent, each in zip(pair.agents, frames.thoughts, strict=True))
    rng = np.random.default_rng([pair.seed, 0xA3])
    rows: list[list[Any]] = []
    about: dict[str, Any] = {}

    def add(name: str, key: str, x: FloatArray, y: FloatArray, groups: IntArray) -> None:
        found = _similarity_interval(x, y, groups, pair.seed)
        rows.append([name, text(found)])
        about[key] = None if found is None else asdict(found)

    add("both agents", "both", one, other, of)
    half = rng.permutation(np.unique(of))
    within = np.isin(of, half[: len(half) // 2])
    add("both, one half of the episodes", "half_a", one[within], other[within], of[within])
    add("both, the other half", "half_b", one[~within], other[~within], of[~within])
    for at, (mine, name) in enumerate(zip((one, other), pair.names, strict=True)):
        if mine.shape[1] > 1:
            units = rng.permutation(mine.shape[1])
            left, right = mine[:, units[: len(units) // 2]], mine[:, units[len(units) // 2 :]]
            add(f"{name}: one half of its units and the other", f"ceiling_{at}", left, right, of)
        for twin in frames.untrained[at][:1]:
            add(f"{name} and its untrained twin", f"untrained_{at}", mine, _inside(pair, pair.agents[at], twin), of)
    add("frames shuffled", "shuffled", one, other[rng.permutation(len(other))], of)
    caption = (
        "Similarity of what they hold (linear CKA of memory, or of the last shared layer): 1 if the same up to rotation and scale. "
        "The halves of one agent's own units say how alike two views of one agent are; untrained twins see the same frames, and "
        "so are alike in part. Intervals: 95 %, over episodes."
    )
    return [Table(("", "CKA"), rows, caption)], about


def _inside(pair: AgentPair, agent: Agent, thoughts: Episodes) -> FloatArray:
    site = next(iter(sites(agent)), None)
    values: FloatArray = pair.frames.moments.cut(values_at(agent, thoughts, site)).astype(np.float64)
    return values


def _narrow(values: FloatArray) -> FloatArray:
    if values.shape[1] <= WIDEST:
        return values
    centred = values - values.mean(0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    narrow: FloatArray = centred @ vectors[:, -WIDEST:]
    return narrow


def _similarity_interval(x: FloatArray, y: FloatArray, groups: IntArray, seed: int) -> MeanEstimate | None:
    """Bootstrap a similarity over episodes, from each episode's sums of products."""
    x, y = _narrow(x), _narrow(y)
    found = similarity(x, y)
    if found is None:
        return None
    _, of = np.unique(groups, return_inverse=True)
    count = int(of.max()) + 1
    if count < 2:
        return MeanEstimate(found, None, None)
    both = np.concatenate([x - x.mean(0), y - y.mean(0)], 1)
    order = np.split(np.argsort(of, kind="stable"), np.cumsum(np.bincount(of))[:-1])
    products = np.stack([both[rows].T @ both[rows] for rows in order])
    sums, sizes = np.stack([both[rows].sum(0) for rows in order]), np.bincount(of).astype(float)
    rng, cut, drawn = np.random.default_rng([seed, 0xCA]), x.shape[1], []
    for _ in range(DRAWS):
        times = np.bincount(rng.integers(count, size=count), minlength=count).astype(float)
        mean = times @ sums
        product = np.tensordot(times, products, 1) - np.outer(mean, mean) / float(times @ sizes)
        own = float(np.linalg.norm(product[:cut, :cut]) * np.linalg.norm(product[cut:, cut:]))
        drawn.append(float(np.linalg.norm(product[:cut, cut:]) ** 2 / max(own, 1e-300)))
    return MeanEstimate(found, *percentile_interval(drawn))


def _statements(pair: AgentPair, figures: dict[str, Any]) -> list[Statement]:
    same, beside = MeanEstimate(**figures["actions"]["same"]), figures["actions"]["untrained"]
    untrained = mean_of(each for each in beside if each is not None)
    said = f"On the same frames they choose the same action in {text(same)} of them; chance {figures['actions']['chance']:.2f}"
    said += f", beside untrained agents {untrained:.2f}." if untrained is not None else "."
    found = [Statement("uses", said, 2.0)]
    if figures["values"]["correlation"] is not None:
        value = MeanEstimate(**figures["values"]["correlation"])
        found.append(Statement("uses", f"Their values of the same frames have a correlation of {text(value)}.", 1.0))
    held = figures["held"]
    if held.get("both"):
        said = f"What they hold has a similarity (CKA) of {text(MeanEstimate(**held['both']))}"
        twins = mean_of(held[f"untrained_{at}"]["mean"] for at in (0, 1) if held.get(f"untrained_{at}"))
        views = mean_of(held[f"ceiling_{at}"]["mean"] for at in (0, 1) if held.get(f"ceiling_{at}"))
        said += f"; agents and their untrained twins {twins:.2f}" if twins is not None else ""
        said += f"; two halves of one agent's units {views:.2f}" if views is not None else ""
        found.append(Statement("holds", f"{said}."))
    return found


STEP = Step(NAME, TITLE, run)
