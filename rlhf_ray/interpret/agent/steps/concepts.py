"""What an agent remembers: what its hidden state tells of its world's state, since how many steps, and the row that removes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.decomposition import PCA

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes, StepBatch
from rlhf_ray.agents.play import values_at
from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside, recorded
from rlhf_ray.interpret.directions import Directions, labelled
from rlhf_ray.interpret.directions.labelled import direction, held_out
from rlhf_ray.measure.intervals import MeanEstimate, mean_interval
from rlhf_ray.measure.statistics import auc
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "concepts", "What it remembers"

STEPS, LEAST_STEPS = 2500, 500
LAGS = (1, 2, 3, 5, 8, 13, 21, 34)
"""Steps ago of which a concept is read, as far as episodes reach."""
FOLDS, QUICK = 4, 2
"""Folds of levels; folds for what was some steps ago."""
WIDEST = 192
"""Features that a probe reads: principal components of wider inputs."""
FEWEST = 20
"""Steps of each class that a concept needs, over all folds."""
READABLE: Mapping[str, float] = {"AUC": 0.75, "R²": 0.3}
"""Scores from which a concept counts as readable."""
GAIN = 0.05
"""How far a score has to be above that of other episodes' labels, which only follow the time, to say since when."""
ELEMENTS = 8
"""Elements of an array that become concepts of their own."""
ELAPSED = "steps so far"
"""A concept of every environment: much of what is read off a memory only follows the time."""

Measure = Literal["AUC", "R²"]
LARGEST_SIDE = 32
"""Pixels of a frame's side as probes see it; larger frames are averaged down."""

CAPTION = """\
What the agent's {site} tells of each concept, on episodes that nothing was fitted to: AUC (0.5: nothing) or R² (0: \
nothing), with the interval over folds, beside shuffled episodes' labels and one frame. Steps ago: the farthest back \
that it can be read, of {lags}. Removed: the share of levels in which any action changes without its direction, from \
the table of effects."""


@dataclass(frozen=True)
class Uses:
    """What the step "effects" finds: the share of levels in which any action changes, by row, and its control."""

    unit: float
    actions: dict[str, MeanEstimate]
    controls: dict[str, float]


@dataclass(frozen=True)
class Concepts:
    """What the step finds: where concepts are read, at how many steps, and how well each is."""

    site: str
    steps: int
    concepts: list[DecodedConcept]


def run(context: AgentContext) -> Section:
    """Probe for each concept, now and some steps ago."""
    subject, episodes = context.subject, recorded(context)
    steps = max(LEAST_STEPS, round(STEPS * min(1.0, subject.effort)))
    inside = samples(subject.agent, episodes, most=steps, seed=subject.seed)
    every, lags = library(episodes, subject.action_names), [lag for lag in LAGS if lag < episodes.lengths.mean()]
    context.say(f"probes for {len(every)} concepts")
    decoded = decode(inside, every, frames(episodes, inside), lags, subject.seed)
    figures, uses = Concepts(subject.site_name, len(inside), decoded), context.figures("effects", Uses)
    rows = []
    for one in decoded:
        row = None if uses is None else uses.actions.get(one.concept)
        changed = "–" if row is None or uses is None else f"{row.text()} (control {uses.controls[one.concept]:.2f})"
        frame = "–" if one.frame is None else f"{one.frame:z.2f}"
        rows.append([one.concept, one.measure, one.score.text(), one.shuffled.text(), frame, one.since, changed])
    caption = CAPTION.format(site=subject.site_name, lags=", ".join(map(str, LAGS)))
    columns = ["concept", "measure", "hidden state", "shuffled", "one frame", "steps ago", "removed"]
    notes = () if decoded else ("The environment says nothing that varies about its state.",)
    table = [Table(columns, rows, caption)] if rows else []
    return Section(NAME, TITLE, (), (), table, (), notes, values_of(figures))


def library(episodes: Episodes, action_names: Sequence[str] = (), within: int = 5) -> dict[str, FloatArray]:
    """Return concepts ``[n, T + 1]`` by name: numbers, or 0 and 1; NaN where one is not defined, and after an episode's end.

    They are what the environment says about its state, and events: whether there is a reward, or the episode terminates, within
    ``within`` steps, what the agent does next, and how many steps it has made.
    """
    n, steps = episodes.actions.shape[:2]
    elapsed = {ELAPSED: np.broadcast_to(np.arange(steps + 1.0), (n, steps + 1))}
    concepts = {**_numbers(episodes, ELEMENTS), **_events(episodes, action_names, within), **elapsed}
    known = np.arange(steps + 1)[None] <= episodes.lengths[:, None]
    return {name: np.where(known, values.astype(np.float64), np.nan) for name, values in concepts.items()}


def _numbers(episodes: Episodes, elements: int) -> dict[str, FloatArray]:
    """Return the numbers that the environment says about its state, ``[n, T + 1]`` by name; the first ``elements`` of arrays."""
    numbers: dict[str, FloatArray] = {}
    for name, values in episodes.states.items():
        if values.dtype.kind in "biuf" and values.ndim >= 2:
            flat = values.reshape(*values.shape[:2], -1).astype(np.float64)
            for element in range(min(elements, flat.shape[2])):
                numbers[name if flat.shape[2] == 1 else f"{name}[{element}]"] = flat[:, :, element]
    return numbers


def _events(episodes: Episodes, action_names: Sequence[str], within: int) -> dict[str, Array]:
    n, steps = episodes.actions.shape[:2]
    acting = np.arange(steps + 1)[None] < episodes.lengths[:, None]
    padded = np.concatenate([np.where(episodes.real, episodes.rewards, 0.0) > 0, np.zeros((n, within + 1), bool)], 1)
    soon = np.any([padded[:, at : at + steps + 1] for at in range(within)], 0)
    left = episodes.lengths[:, None] - np.arange(steps + 1)[None]
    ends = episodes.terminated[:, None] & (left <= within)
    found: dict[str, Array] = {
        f"reward within {within} steps": np.where(acting, soon, np.nan),
        f"end within {within} steps": np.where(acting, ends, np.nan),
    }
    flat = episodes.actions.reshape(n, steps, -1)
    if flat.dtype.kind in "iu" and flat.shape[2] == 1:
        taken = np.concatenate([flat[:, :, 0], np.full((n, 1), -1)], 1)
        for action in np.unique(taken[acting]):
            name = action_names[action] if 0 <= action < len(action_names) else str(action)
            found[f"action is {name}"] = np.where(acting, taken == action, np.nan)
    else:
        for at in range(min(ELEMENTS, flat.shape[2])):
            name = action_names[at] if at < len(action_names) else f"action[{at}]"
            found[name] = np.concatenate([flat[:, :, at].astype(np.float64), np.full((n, 1), np.nan)], 1)
    return found


@dataclass(frozen=True)
class DecodedConcept:
    """How well a concept can be read, on levels that nothing was fitted to."""

    concept: str  # the concept
    measure: Measure  # AUC of yes or no (0.5 is chance), R² of numbers (0 is the mean)
    rows: int  # steps where it is defined
    score: MeanEstimate  # of a linear probe of the hidden state, with its interval over folds
    shuffled: MeanEstimate  # the same with the labels of other episodes at the same step
    frame: float | None  # the same probe of the one frame; None without frames
    # steps ago, the farthest back that it and all that is nearer can be read, better than off other episodes; None if not even
    # now
    since: int | None

    @property
    def readable(self) -> bool:
        """Whether the score reaches `READABLE`."""
        return self.score.mean >= READABLE[self.measure]


def decode(
    inside: Samples,
    library: Mapping[str, FloatArray],
    frames: FloatArray | None = None,
    lags: Sequence[int] = (),
    seed: int = 0,
) -> list[DecodedConcept]:
    """Read concepts off the hidden state by cross-validation over levels. Those that don't vary in enough levels are left out.

    ``library`` holds the concepts of all episodes, ``[episodes, T + 1]`` each, NaN where one is not defined; ``frames`` are those
    of the same steps, ``[n, features]``; ``lags`` are the steps ago that are asked about, ascending.
    """
    rng = np.random.default_rng([seed, 0xC0])
    values, seen = _narrow(inside.values, seed), None if frames is None else _narrow(frames, seed)
    parts, quick = (held_out(inside.levels, folds, rng) for folds in (FOLDS, QUICK))
    found = []
    for name, concept in library.items():
        labels = inside.cut(concept)
        known = int(np.isfinite(labels).sum())
        if not labelled.usable(labels):
            continue
        upper = int(labelled.classes(labels)[labelled.rows(labels)].sum())
        if min(upper, known - upper) < min(FEWEST, known / 4):
            continue
        scores = read(values, labels, parts)
        if not scores:
            continue
        others = concept[rng.permutation(len(concept))]
        shuffled = read(values, inside.cut(others), parts)
        measure: Measure = "AUC" if labelled.yes_no(labels) else "R²"
        by_frame = None if seen is None else float(np.mean(read(seen, labels, parts)))
        since = None
        if float(np.mean(scores)) >= max(READABLE[measure], float(np.mean(shuffled or [0.0])) + GAIN):
            since = 0
            for lag in lags:
                ago = inside.rows, np.maximum(inside.steps - lag, 0)
                past, control = (
                    float(np.mean(read(values, np.where(inside.steps >= lag, of[ago], np.nan), quick) or [0.0]))
                    for of in (concept, others)
                )
                if past < max(READABLE[measure], control + GAIN):
                    break
                since = lag
        found.append(DecodedConcept(name, measure, known, _mean(scores), _mean(shuffled), by_frame, since))
    return found


def read(values: FloatArray, labels: FloatArray, parts: Sequence[tuple[IntArray, IntArray]]) -> list[float]:
    """Return the score of a linear probe on each part of the rows, fitted to the others; parts of one class are left out."""
    known, yes_no, scores = np.isfinite(labels), labelled.yes_no(labels), []
    for fitted, test in ((fitted[known[fitted]], test[known[test]]) for fitted, test in parts):
        if not (labelled.usable(labels[fitted]) and labelled.usable(labels[test])):
            continue
        weights = direction(values[fitted], labels[fitted])
        told = values[test] @ weights
        if yes_no:
            scores.append(auc(told, labels[test] == 1, 0.5))
        else:
            wrong = labels[test] - told + (values[fitted] @ weights - labels[fitted]).mean()
            scores.append(1.0 - float((wrong**2).sum() / ((labels[test] - labels[fitted].mean()) ** 2).sum()))
    return scores


def concept_directions(episodes: Episodes, values: FloatArray, some: IntArray) -> list[Directions]:
    """Return a direction for each concept that other levels' hidden state tells; without it, no linear reader tells the concept.

    ``values`` is the hidden state at all steps of the episodes, ``[n, size]``, and ``some`` the rows to fit to.
    """
    rows, _ = np.nonzero(episodes.real)
    inside, parts = values[some], held_out(episodes.levels[rows[some]], QUICK, np.random.default_rng([0, 0xC1]))
    found = []
    steps = episodes.actions.shape[1]
    elapsed = {ELAPSED: np.tile(np.arange(float(steps)), (len(episodes), 1))}
    for name, concept in {**_numbers(episodes, 1), **elapsed}.items():
        labels = concept[:, :steps][episodes.real][some]
        if not labelled.usable(labels):
            continue
        scores = read(inside, labels, parts)
        if scores and np.mean(scores) >= READABLE["AUC" if labelled.yes_no(labels) else "R²"]:
            basis = directions.fit("probe", inside[np.isfinite(labels)], 1, 0, {name: labels[np.isfinite(labels)]})
            found += [basis] if len(basis) else []
    return found


def _mean(scores: Sequence[float]) -> MeanEstimate:
    low, high = mean_interval(scores) or (None, None)
    mean = float(np.mean(scores)) if scores else float("nan")
    return MeanEstimate(mean, low, None if high is None else min(high, 1.0))


def _narrow(inputs: FloatArray, seed: int) -> FloatArray:
    """Return inputs, or their `WIDEST` largest principal components: nothing is lost of images that repeat few patterns."""
    if inputs.shape[1] <= WIDEST:
        return inputs
    pca = PCA(min(WIDEST, *inputs.shape), svd_solver="randomized", random_state=seed)
    narrow: FloatArray = pca.fit_transform(inputs)
    # Directions that carry nothing would be blown up by scaling.
    return narrow[:, narrow.std(0) > 1e-6 * max(float(narrow.std(0).max()), 1e-12)]


@dataclass(frozen=True)
class Samples(StepBatch):
    """What an agent has in mind at moments, after the observation was seen."""

    values: FloatArray  # ``[n, size]``
    levels: IntArray  # ``[n]``: what is fitted on some levels is tested on others


def samples(agent: Agent, episodes: Episodes, most: int | None = None, seed: int = 0) -> Samples:
    """Return all steps of an agent's ``episodes``, or ``most`` of them drawn at random, in order."""
    rows, steps = np.nonzero(episodes.real)
    if most is not None and len(rows) > most:
        chosen = np.sort(np.random.default_rng([seed, 0x5A]).choice(len(rows), most, replace=False))
        rows, steps = rows[chosen], steps[chosen]
    values = values_at(agent, episodes)[rows, steps].astype(np.float64)
    return Samples(rows, steps, values.reshape(len(rows), -1), np.asarray(episodes.levels)[rows])


def frames(episodes: Episodes, like: Samples) -> FloatArray | None:
    """Return the one observation of each sample, ``[n, features]``; None if there are none. Large images are averaged."""
    if not episodes.observations[:1, :1].size:
        return None
    seen = like.cut(episodes.observations)
    if seen.ndim == 4 and max(seen.shape[1:3]) > LARGEST_SIDE:
        by = -(-max(seen.shape[1:3]) // LARGEST_SIDE)
        height, width = (side // by for side in seen.shape[1:3])
        cut = seen[:, : height * by, : width * by].astype(np.float32)
        seen = cut.reshape(len(seen), height, by, width, by, -1).mean((2, 4))
    return np.asarray(seen.reshape(len(seen), -1).astype(np.float64))


STEP = Step(NAME, TITLE, run, needs=("recording", "effects"), why_not=nothing_inside)
