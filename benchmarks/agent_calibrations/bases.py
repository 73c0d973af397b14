"""Bases, concepts and dynamics: what memory carries (AT10, AT14), the projector (AT20), planted dynamics (AT21)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from benchmarks.agent_calibrations import Row, agent_for, planted
from rlhf_ray.agents.play import play, replay
from rlhf_ray.data.arrays import Array
from rlhf_ray.envs import make_batch
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.steps import concepts, dynamics
from rlhf_ray.interpret.agent.steps.behaviours import behaviours

MINIRUN = "rlhf_ray/MiniRun-v0"
LEVELS = 500
ROWS = 2500


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure AT10, AT14, AT20 and AT21 for each of ``seeds``."""
    torch.set_num_threads(1)
    return [row for seed in seeds for row in (*_minirun(seed), *_dynamics(seed), _behaviours(seed))]


def _minirun(seed: int) -> list[Row]:
    agent, batch = agent_for("minirun", seed), make_batch(MINIRUN, 100)
    first = 5_000_000 + 1000 * seed
    # Some random actions: an agent that always does the same shows less of what it can hold.
    episodes = play(agent, batch, list(range(first, first + LEVELS)), epsilon=0.1, seed=seed)
    batch.close()
    found = concepts.samples(agent, episodes)
    library = concepts.library(episodes)
    frames, fresh = concepts.frames(episodes, found), agent.fresh(seed + 1)
    assert frames is not None, "MiniRun has frames"
    rng = np.random.default_rng(seed)

    def read(name: str, inside: concepts.Samples, chosen: Array) -> concepts.DecodedConcept:
        return concepts.decode(inside[chosen], {name: library[name]}, frames[chosen], seed=seed)[0]

    apex = np.sort(rng.permutation(np.flatnonzero(np.isfinite(found.cut(library["first_apex"]))))[:ROWS])
    one = read("first_apex", found, apex)
    figures = {"memory": one.score.mean, "one frame": one.frame or 0.0, "shuffled": one.shuffled.mean}
    figures["untrained"] = read("first_apex", concepts.samples(fresh, replay(fresh, episodes)), apex).score.mean
    passed = figures["memory"] >= max(0.90, figures["one frame"] + 0.10) and 0.40 <= figures["shuffled"] <= 0.60
    bound = "memory >= 0.90, >= 0.10 above one frame, shuffled episodes 0.40 to 0.60"
    result = [Row("AT10", f"first against second apex frame, seed {seed}", _rounded(figures), bound, passed)]
    some = np.sort(rng.permutation(len(found))[:ROWS])
    for name in ("saw_ahead", "pit_ahead", "coin_visible"):
        score = read(name, found, some).score.mean
        result.append(Row("AT14", f"{name}, seed {seed}", round(score, 3), "AUC >= 0.9", score >= 0.9))
    labels = {name: found.cut(library[name])[some] for name in ("saw_ahead", "pit_ahead", "coin_distance")}
    for kind in directions.KINDS:
        result.append(_contract(kind, found.values[some], labels, seed))
    return result


def _contract(kind: str, values: Array, labels: dict[str, Array], seed: int) -> Row:
    """Projector contract on real memories, with a unit that never varies."""
    values = values.copy()
    values[:, 0] = 0.5
    basis = directions.fit(kind, values, 8, seed, labels)
    off = float(np.abs(basis.encode(values) - basis.sources).max())
    weights = np.random.default_rng(seed).normal(size=(20, values.shape[1]))
    scores = torch.as_tensor(basis.encode(values[:20])).requires_grad_()
    rebuilt = torch.as_tensor(basis.center) + scores @ torch.as_tensor(basis.patterns)
    same = float(np.abs(rebuilt.detach().numpy() - basis.decode(scores.detach().numpy())).max())
    (torch.as_tensor(weights) * rebuilt).sum().backward()
    assert scores.grad is not None
    slope = float(np.abs(basis.gradient(weights) - scores.grad.numpy()).max())
    figures = {"transform": off, "inverse": same, "gradient": slope}
    finite = all(np.isfinite(each).all() for each in (basis.patterns, basis.filters, basis.encode(values)))
    passed = off <= 1e-4 and max(same, slope) <= 1e-5 and finite and len(basis) > 0
    return Row("AT20", f"{kind}, seed {seed}", figures, "transform <= 1e-4, gradient <= 1e-5, no NaN", passed)


def _dynamics(seed: int) -> list[Row]:
    rules = planted.matrices(seed)
    series = planted.series(rules, seed)
    real = np.ones(series.labels.shape, bool)
    observed = {
        name: dynamics.lagged(each, seed=seed)
        for name, each in dynamics.pairs(series.scores, real, series.labels).items()
    }
    own = [dynamics.agreement(rules[name], each.regression) for name, each in observed.items()]
    others = [
        dynamics.agreement(rules[other], each.regression).r
        for name, each in observed.items()
        for other in range(len(rules))
        if other != name
    ]
    entries = sum(each.entries for each in own)
    signs = sum((each.signs or 0.0) * each.entries for each in own) / max(entries, 1)
    figures = {"least r": min(each.r for each in own), "largest r of others": max(others), "same sign": signs}
    passed = len(own) == 4 and figures["least r"] >= 0.95 and figures["largest r of others"] < 0.9 and signs >= 0.95
    bound = "r >= 0.95 in each cluster, < 0.9 with others, same sign >= 0.95"
    agent = planted.LinearMemory(rules)
    at = np.random.default_rng(seed).permutation(series.labels.size)[:200]
    chosen = series.labels.ravel()[at]
    memory = series.scores.reshape(-1, planted.SIZE)
    basis = directions.fit("ica", memory, planted.SIZE, seed)
    jacobians = dynamics.step_jacobians(agent, basis, planted.seen(chosen, rules), memory[at])
    off = float(np.abs(jacobians - np.einsum("ki,nij,lj->nkl", basis.filters, rules[chosen], basis.patterns)).max())
    return [
        Row("AT21", f"lag-1 matrices, seed {seed}", _rounded(figures), bound, passed),
        Row("AT21", f"Jacobians of the planted memory, seed {seed}", off, "largest error <= 1e-4", off <= 1e-4),
    ]


def _behaviours(seed: int) -> Row:
    blocks, truth = planted.behaving(seed)
    found = behaviours(blocks, np.ones(truth.shape, bool), length=5, count=4, seed=seed)
    starts = found.starts.steps % 5 == 0
    agreed = adjusted_rand_score(found.starts.cut(truth)[starts], found.clusters.labels[starts])
    return Row(
        "B1", f"planted behaviours, adjusted Rand, seed {seed}", round(float(agreed), 3), ">= 0.8", agreed >= 0.8
    )


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(float(value), 3) for name, value in figures.items()}
