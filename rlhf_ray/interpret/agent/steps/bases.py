"""Step: bases of the agent's memory: principal, independent and additive components, and directions of concepts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.interpret.agent import bases, concepts, samples
from rlhf_ray.interpret.agent.at_hand import action_names, bars, nothing_inside, recorded, site_name
from rlhf_ray.interpret.agent.stability import SEEDS, STABLE, Stability, stability
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step

NAME = "bases"
TITLE = "Directions in the agent's memory"

ROWS, REFITTED = 5000, 1500
"""Steps that bases are fitted to, and those that their stability is measured on."""
COMPONENTS = 16
QUICK = 0.3
"""Effort below which stability is measured with two fits instead of five."""
SPARSE = 64
"""Features of the sparse auto-encoder, which is made with full effort only."""


def why_not(context: AgentContext) -> str | None:
    """Return why there is nothing to decompose."""
    return nothing_inside(context)


def run(context: AgentContext) -> Section:
    """Fit and save one basis of each kind."""
    episodes = recorded(context)
    found = samples.samples(context.subject.agent, episodes, most=ROWS, seed=context.subject.seed)
    labels = {name: found.cut(each) for name, each in concepts.library(episodes, action_names(context)).items()}
    labels = _readable(context, labels)
    few = np.sort(np.random.default_rng(context.subject.seed).permutation(len(found))[:REFITTED])
    rows, values = [], {}
    pictures: list[Picture] = []
    for kind in bases.KINDS:
        if (kind in bases.LABELLED and not labels) or (kind == "sparse" and context.subject.effort < 1.0):
            continue
        context.say(f"basis {kind}")
        count = len(labels) if kind in bases.LABELLED else SPARSE if kind == "sparse" else COMPONENTS
        basis = bases.fit(kind, found.values, count, context.subject.seed, labels)
        basis.save(context.out / f"{kind}.npz")
        some = {name: each[few] for name, each in labels.items()}
        again = stability(basis, found.values[few], found.rows[few], some, _refits(context, kind), context.subject.seed)
        explained = _explained(basis, found.values)
        values[kind] = _values(basis, again, explained)
        rows.append([bases.TITLES[kind], len(basis), f"{explained:.0%}", f"{int(again.stable.sum())} of {len(basis)}"])
        if len(basis):
            shown = slice(0, 24)
            series = {"other seeds": list(again.seeds[shown]), "halves of the episodes": list(again.halves[shown])}
            image = bars(list(basis.names)[shown], series, "mean |r| with the same component of another fit", STABLE)
            pictures.append(
                Picture(
                    f"stability_{kind}",
                    image,
                    f"{bases.TITLES[kind].capitalize()}: which are found again (dashed: stable).",
                )
            )
    site = site_name(context.subject.agent)
    write_text(context.out / "bases.json", json.dumps({"site": site, "bases": values}, indent=1) + "\n")
    caption = (
        f"Bases of the agent's {site}: components, the variance that they explain, and how many of them other "
        "seeds and halves of the episodes find again."
    )
    table = Table(("basis", "components", "explains", "stable"), rows, caption)
    return Section(NAME, TITLE, _statements(values), _checks(values), [table], pictures, {"bases": values})


def _readable(context: AgentContext, labels: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Return the concepts that probes can read, the best first; all of them if that step did not run."""
    folder = context.folders.get("concepts")
    if folder is None or not (folder / "concepts.json").exists():
        return labels
    known = json.loads((folder / "concepts.json").read_text())["concepts"]
    good = [each for each in known if each["score"] >= concepts.READABLE[each["measure"]] and each["concept"] in labels]
    good = sorted(good, key=lambda each: (each["measure"] != "auc", -each["score"]))
    return {each["concept"]: labels[each["concept"]] for each in good}


def _refits(context: AgentContext, kind: str) -> int:
    return 2 if kind == "sparse" or context.subject.effort < QUICK else SEEDS


def _explained(basis: bases.Basis, values: FloatArray) -> float:
    """Return the share of the variance that the basis reproduces."""
    total = float(((values - values.mean(0)) ** 2).sum())
    left = float(((values - basis.inverse(basis.transform(values))) ** 2).sum())
    return 1.0 - left / total if total > 1e-12 else 1.0


def _values(basis: bases.Basis, again: Stability, explained: float) -> dict[str, Any]:
    return {
        "names": list(basis.names),
        "explained": explained,
        "seeds": again.seeds.tolist(),
        "halves": again.halves.tolist(),
        "stable": again.stable.tolist(),
    }


def _statements(values: dict[str, Any]) -> list[Statement]:
    stable = values.get("ica", {}).get("stable", [])
    lost = len(stable) - sum(stable)
    return [Statement("warning", _unstable("ica", stable), lost / len(stable))] if lost > len(stable) / 2 else []


def _unstable(kind: str, stable: list[bool]) -> str:
    """Say that most components depend on the sample."""
    return (
        f"{len(stable) - sum(stable)} of {len(stable)} {bases.TITLES[kind]} are not found again by other seeds or in halves of the "
        "episodes: don't read meaning into those that are not stable."
    )


def _checks(values: dict[str, Any]) -> list[Check]:
    checks = []
    for kind in ("pca", "ica"):
        if (names := values.get(kind, {}).get("stable")) is not None and len(names):
            share = sum(names) / len(names)
            says = "" if share >= 0.5 else _unstable(kind, names)
            checks.append(
                Check(f"{bases.TITLES[kind]} are found again", share >= 0.5, share, "at least half of them", says)
            )
    return checks


STEP = Step(NAME, TITLE, run, needs=("recording", "concepts"), why_not=why_not)
