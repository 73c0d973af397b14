"""Bases of the agent's memory: principal, independent and additive components, and directions of concepts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.steps import concepts
from rlhf_ray.interpret.agent.steps.concepts import Concepts
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside, recorded
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.stability import SEEDS, STABLE, stability
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.plots import bars
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "bases", "Directions in the agent's hidden state"

ROWS, REFITTED = 5000, 1500
"""Steps that bases are fitted to, and those that their stability is measured on."""
COMPONENTS = 16
QUICK, REFITS = 0.3, 2
"""Effort below which stability is measured with two fits instead of five."""
LEAST_STABLE = 0.5
"""Share of the components that has to be stable."""
CHECKED = ("pca", "ica")
SHOWN = 24
PREFERRED = ("ica", "pca", "probe")
"""Kinds whose components other steps ask about: the first that there is."""


@dataclass(frozen=True)
class FittedBasis:
    """A basis of the agent's memory."""

    names: list[str]  # its components
    explained: float  # share of the variance that it reproduces
    # seeds, halves, stable: see `rlhf_ray.interpret.directions.stability.Stability`
    seeds: FloatArray
    halves: FloatArray
    stable: list[bool]


def basis_of(context: AgentContext) -> Directions | None:
    """Load a basis of the agent's memory whose components are worth asking about; None if there is none."""
    folder = context.folders.get(NAME)
    for kind in PREFERRED:
        if folder is not None and (folder / f"{kind}.npz").exists():
            basis = directions.load(folder / f"{kind}.npz")
            if len(basis) and len(basis.center) == context.subject.agent.memory_size:
                return basis
    return None


def run(context: AgentContext) -> Section:
    """Fit and save one basis of each kind."""
    subject, episodes = context.subject, recorded(context)
    inside = concepts.samples(subject.agent, episodes, most=ROWS, seed=subject.seed)
    labels = {name: inside.cut(label) for name, label in concepts.library(episodes, subject.action_names).items()}
    labels = _readable(context, labels)
    few = np.sort(np.random.default_rng(subject.seed).permutation(len(inside))[:REFITTED])
    some = {name: label[few] for name, label in labels.items()}
    fitted: dict[str, FittedBasis] = {}
    for kind in directions.KINDS:
        if kind in directions.LABELLED and not labels:
            continue
        context.say(f"basis {kind}")
        count = len(labels) if kind in directions.LABELLED else COMPONENTS
        basis = directions.fit(kind, inside.values, count, subject.seed, labels)
        basis.save(context.out / f"{kind}.npz")
        refits = REFITS if subject.effort < QUICK else SEEDS
        again = stability(basis, inside.values[few], inside.rows[few], some, refits, subject.seed)
        total = float(((inside.values - inside.values.mean(0)) ** 2).sum())
        left = float(((inside.values - basis.decode(basis.encode(inside.values))) ** 2).sum())
        explained = 1.0 - left / total if total > 1e-12 else 1.0
        fitted[kind] = FittedBasis(list(basis.names), explained, again.seeds, again.halves, again.stable.tolist())
    rows = [
        [directions.TITLES[kind], len(one.names), f"{one.explained:.0%}", f"{sum(one.stable)} of {len(one.stable)}"]
        for kind, one in fitted.items()
    ]
    caption = (
        f"Bases of the agent's {subject.site_name}: components, the variance that they explain, and how many of them other seeds "
        "and halves of the episodes find again."
    )
    tables = [Table(["basis", "components", "explains", "stable"], rows, caption)]
    return Section(NAME, TITLE, _checks(fitted), (), tables, _pictures(fitted), (), values_of(fitted))


def _readable(context: AgentContext, labels: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Return the concepts that probes can read, the best first; all of them if that step did not run."""
    known = context.figures("concepts", Concepts)
    if known is None:
        return labels
    readable = [concept for concept in known.concepts if concept.readable and concept.concept in labels]
    readable.sort(key=lambda concept: (concept.measure != "AUC", -concept.score.mean))
    return {concept.concept: labels[concept.concept] for concept in readable}


def _checks(fitted: dict[str, FittedBasis]) -> list[Check]:
    checks = []
    for kind in CHECKED:
        if kind in fitted and fitted[kind].stable:
            share, title = float(np.mean(fitted[kind].stable)), directions.TITLES[kind]
            remedy = f"Read no meaning into {title} that other seeds and halves of the episodes don't find again."
            bound = f"≥ {LEAST_STABLE}"
            checks.append(Check.of(f"{title} found again", share >= LEAST_STABLE, share, bound, remedy))
    return checks


def _pictures(fitted: dict[str, FittedBasis]) -> list[Picture]:
    pictures = []
    for kind, basis in fitted.items():
        if basis.names:
            found = {"other seeds": basis.seeds, "halves of the episodes": basis.halves}
            series = {name: of[:SHOWN].tolist() for name, of in found.items()}
            image = bars(basis.names[:SHOWN], series, "mean |r| with the same component of another fit", STABLE)
            caption = f"{directions.TITLES[kind]}: which are found again (dashed: stable)."
            pictures.append(Picture(f"stability_{kind}", image, caption))
    return pictures


STEP = Step(NAME, TITLE, run, needs=("recording", "concepts"), why_not=nothing_inside)
