"""Interventions: the cue's direction in CueRun (AT11), patterns and filters (AT12), and directions that aren't needed (N1, N2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.agent_calibrations import agent_for
from benchmarks.calibrations import Row
from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.envs.batches import make_batch
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.controls import controlled
from rlhf_ray.interpret.agent.counterfactual import go_on, snapshots_of
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import orthogonal_bases, removed_variance
from rlhf_ray.interpret.directions.interventions import Intervention, Op, Vector
from rlhf_ray.measure.intervals import estimate_mean

AGENTS = ("cuerun",)

CUERUN = "rlhf_ray/CueRun-v0"
EPISODES = 1500
RANDOM, RANDOM_EPISODES = 10, 500
CHOSEN, MEASURED = 5000, 10_000
"""First level of those that reading is tested on, and of those that effects are measured on; directions are fitted to others."""
COPIES = 250
COMPONENTS = 16
ONCE = (2,)
"""Step of the reflection: the first whose picture no longer shows the cue. Memory carries it on; a second one would undo it."""


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure AT11, AT12 and the negative controls for each of ``seeds``."""
    found = []
    for seed in seeds:
        agent = agent_for("cuerun", seed)
        known = play(agent, make_batch(CUERUN, COPIES), range(500), frames=False)
        found += [*_causal(agent, known, seed), *_not_needed(agent, known, seed)]
    return found


def wins(
    agent: Agent, interventions: Sequence[Intervention] = (), episodes: int = EPISODES, *, greedy: bool = False
) -> float:
    """Return the share of levels that the agent wins, on levels that nothing was fitted to.

    Actions are drawn from the policy, as in training. Without the cue, that guesses at each of two gates, which
    wins a quarter; the greedy agent guesses the same each time, which wins half if it walks on, whatever else was done to it.
    """
    levels = range(MEASURED, MEASURED + episodes)
    played = play(
        agent,
        make_batch(CUERUN, COPIES),
        levels,
        hooks=interventions,
        greedy=greedy,
        seed=MEASURED,
        frames=False,
    )
    return float((played.returns > 0).mean())


def _causal(agent: Agent, known: Episodes, seed: int) -> list[Row]:
    """AT11 and AT12. The cue's direction is the difference of its classes' means: nothing is chosen by what it does.

    Random directions are orthogonal to it, and as they are they control for the content. No other direction carries as much
    variance as the cue, so the same directions are moved as far as well, which controls for the size of the disturbance; see
    `moved_as_far`.
    """
    values, cue = after_the_cue(known, "cue")
    direction = directions.fit("mean_difference", values, 1, seed, {"cue": cue})
    components = directions.fit("ica", values, COMPONENTS, seed)
    scores = components.encode(values)
    best = int(np.argmax([abs(roc_auc_score(cue, scores[:, at]) - 0.5) for at in range(len(components))]))

    def after(basis: Directions, component: int, op: Op, vector: Vector = "pattern") -> float:
        return wins(agent, [Intervention(basis, [component], op, vector=vector)])

    def planned(basis: Directions, op: Op, episodes: int = EPISODES, *, greedy: bool = False) -> float:
        when = ONCE if op == "reflect" else None
        return wins(agent, [Intervention(basis, [0], op, when=when)], episodes, greedy=greedy)

    ops: tuple[Op, Op] = ("ablate_midpoint", "reflect")
    plain = wins(agent)
    direct = {op: planned(direction, op) for op in ops}
    pattern = {op: after(components, best, op) for op in ops}
    by_filter = {op: after(components, best, op, "filter") for op in ops}
    drawn = orthogonal_bases(direction, [0], values, cue, RANDOM, seed)
    far = moved_as_far(drawn, direction, 0, values, seed)
    random = {op: [planned(each, op, RANDOM_EPISODES) for each in drawn] for op in ops}
    moved = {op: [planned(each, op, RANDOM_EPISODES) for each in far] for op in ops}
    lowest = {op: min(random[op]) for op in ops}
    named = {"wins": plain, "ablated": direct["ablate_midpoint"], "reflected": direct["reflect"]}
    named |= {"reflected at every step": after(direction, 0, "reflect")}
    named |= {
        f"greedily {what}": planned(direction, op, greedy=True)
        for what, op in zip(("ablated", "reflected"), ops, strict=True)
    }
    named |= {"random ablated, lowest": lowest["ablate_midpoint"], "random reflected, lowest": lowest["reflect"]}
    named |= {
        "as far, ablated, lowest": min(moved["ablate_midpoint"]),
        "median": float(np.median(moved["ablate_midpoint"])),
    }
    named |= {"as far, reflected, lowest": min(moved["reflect"]), "its median": float(np.median(moved["reflect"]))}
    apart = min(lowest[op] - direct[op] for op in ops)
    gap = {op: by_filter[op] - pattern[op] for op in ops}
    return [
        Row(
            "AT11",
            f"the cue's pattern in memory (difference of means), seed {seed}",
            _rounded(named),
            "ablated <= 0.45, reflected <= 0.35, random >= 0.80 and >= 0.40 above",
            direct["ablate_midpoint"] <= 0.45
            and direct["reflect"] <= 0.35
            and min(lowest.values()) >= 0.8
            and apart >= 0.4,
        ),
        Row(
            "AT12",
            f"pattern against filter of the ICA component nearest to the cue, seed {seed}",
            _rounded({f"{op}, pattern": pattern[op] for op in ops} | {f"{op}, filter": by_filter[op] for op in ops}),
            "filter >= 0.20 above pattern",
            min(gap.values()) >= 0.2,
        ),
    ]


def _not_needed(agent: Agent, known: Episodes, seed: int) -> list[Row]:
    """Two directions that nothing to come depends on, by the rules of CueRun: the cue behind the last gate, and the place.

    The cue's direction is turned round throughout the rest of the episode. Before the first gate the same change of the same
    direction costs wins: the test has the power to see an effect.
    """
    values, cue = after_the_cue(known, "cue")
    direction = directions.fit("mean_difference", values, 1, seed, {"cue": cue})
    levels = range(MEASURED, MEASURED + RANDOM_EPISODES)
    episodes = play(agent, make_batch(CUERUN, COPIES), levels, keep_states=True, frames=False)
    gates, hidden = episodes.states["gates_passed"][:, :-1], ~episodes.states["cue_visible"][:, :-1].astype(bool)
    measured: dict[str, float] = {}
    found = {}
    for name, passed in (("before the first gate", 0), ("behind the last gate", 2)):
        there = episodes.real & hidden & (gates == passed)
        at = np.flatnonzero(there.any(1))
        snapshots = snapshots_of(episodes, at, there[at].argmax(1))
        plain, _ = go_on(agent, partial(make_batch, CUERUN), snapshots)
        turned, _ = go_on(
            agent, partial(make_batch, CUERUN), snapshots, interventions=[Intervention(direction, [0], "reflect")]
        )
        found[name] = change = estimate_mean(turned.returns - plain.returns, plain.levels)
        scores = direction.encode(episodes.memory[:, 1:][there])[:, 0]
        auc = float(roc_auc_score(episodes.states["cue"][:, :-1][there], scores))
        measured |= {f"{name}: auc": auc, "change of return": change.mean} if not measured else {f"{name}: auc": auc}
    behind = found["behind the last gate"]
    measured |= {"its change": behind.mean, "low": behind.low or 0.0, "high": behind.high or 0.0}
    return [
        Row(
            "N1",
            f"the cue, which nothing depends on behind the last gate, seed {seed}",
            _rounded(measured),
            "there: auc >= 0.90, the interval of the change holds 0; before the gates: change <= -3",
            measured["behind the last gate: auc"] >= 0.9
            and behind.holds_zero
            and found["before the first gate"].mean <= -3.0,
        ),
        _place(agent, known, seed),
    ]


def _place(agent: Agent, known: Episodes, seed: int) -> Row:
    """Where the agent is can be read off its memory, but it acts on what it sees: the picture moves with it.

    The same variance along random directions costs most of the return in some agents, so no removal has to leave it as it is: the
    place must do no more than they do, as the report asks of a need.
    """
    values, x = after_the_cue(known, "x")
    basis = directions.fit("probe", values, 1, seed, {"x": x})
    other, places = after_the_cue(play(agent, make_batch(CUERUN, COPIES), range(CHOSEN, CHOSEN + 300)), "x")
    auc = float(roc_auc_score(places > np.median(x), basis.encode(other)[:, 0]))
    found = controlled(
        agent,
        lambda n: make_batch(CUERUN, n),
        range(MEASURED, MEASURED + EPISODES),
        lambda given, at: Intervention(given, at, "ablate_midpoint"),
        basis,
        [0],
        values,
        labels=x,
        count=RANDOM,
        copies=COPIES,
        seed=seed,
    )
    change, random = found.effect.returns.difference, [each.returns.difference.mean for each in found.random]
    measured = {"auc": auc, "change of return": change.mean, "low": change.low or 0.0, "high": change.high or 0.0}
    return Row(
        "N2",
        f"a direction that can be decoded and is not needed, the place, seed {seed}",
        _rounded(measured | {"random, most": max(map(abs, random))}),
        "auc >= 0.90; the change is not beyond that by random directions",
        auc >= 0.9 and not found.changes,
    )


def after_the_cue(episodes: Episodes, concept: str) -> tuple[FloatArray, FloatArray]:
    """Return memories ``[n, size]`` at steps at which the picture no longer shows the cue, and a concept there, ``[n]``."""
    chosen = episodes.real & ~episodes.states["cue_visible"][:, :-1].astype(bool)
    return episodes.memory[:, 1:][chosen], episodes.states[concept][:, :-1][chosen]


def moved_as_far(
    controls: Sequence[Directions], basis: Directions, component: int, values: FloatArray, seed: int = 0
) -> list[Directions]:
    """Return random directions whose midpoints are as far from their values as those of a component are from its own.

    Ablating or reflecting them then moves the values as far as the component's does. That is the control for the size of the
    disturbance. It is harsher than the intervention itself: values that hardly vary along a direction are moved out of all that the
    agent has ever had in mind, while a reflected component goes from one of its classes to the other. Random directions as they are
    control for the content: they take away what some other direction of the same kind says.

    Args:
        controls: random directions.
        basis: the directions.
        component: the component that they stand in for.
        values: ``[n, size]`` that the distance is measured on.
        seed: draws the sides.
    """
    rows = np.asarray(values, np.float64)
    scores, length = basis.encode(rows)[:, component], float(np.linalg.norm(basis.patterns[component]))
    wanted = float(((scores - basis.midpoints[component]) ** 2).mean()) * length**2
    total, far = float(rows.var(0).sum()), []
    for control, side in zip(
        controls, np.random.default_rng([seed, 0xFA]).choice([-1.0, 1.0], len(controls)), strict=True
    ):
        # What the scores vary by moves the values already; the rest is the midpoints'.
        left = max(wanted - removed_variance(control, range(len(control)), rows) * total, 0.0)
        along = max(float(np.linalg.norm(control.patterns.sum(0))), 1e-300)
        far.append(replace(control, midpoints=np.full(len(control), side * left**0.5 / along)))
    return far


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}
