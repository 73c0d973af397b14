"""Distances between the reward and the true one that ignore shaping and scale."""

from __future__ import annotations

from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.true_reward import true_reward
from rlhf_ray.reward.sampled_distances import DISTANCES, Estimate, all_distances
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Section
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

STEPS = 2000
"""Recorded steps that the distances rest on; a quarter for images."""
PAIRS, PAIRS_OF_IMAGES = 512, 128

UNRELATED = 0.5**0.5
"""EPIC of uncorrelated rewards."""
NEAR, FAR = 0.2, 0.6
"""EPIC, as published, below and above which a statement says so. 0: equal up to shaping and scale; 0.71: unrelated; 1: opposite."""


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no distances: the true reward can't be computed for steps that were not recorded."""
    return WORDS.text("unknown") if true_reward(context.subject) is None else None


def run(context: StepContext[Subject]) -> Section:
    """Estimate the distances on recorded steps."""
    subject = context.subject
    truth = true_reward(subject)
    assert truth is not None, "why_not() says so"
    image = is_image(subject.reward.observation_space)
    steps = round(STEPS * min(1.0, subject.effort) / (4 if image else 1))
    data, pairs = subject.data.sample(steps, subject.rng(WORDS.name)), PAIRS_OF_IMAGES if image else PAIRS
    distances = all_distances(subject.reward, truth, data, subject.gamma, subject.seed, pairs=pairs)
    kind = _kind(distances["epic_published"], distances["epic"])
    epic = distances["epic_published"]
    near = 1 - epic.high / UNRELATED, 1 - epic.low / UNRELATED
    strong = strength((epic.low / UNRELATED, 1.0) if kind == "far" else near)
    statements = [WORDS.statement(kind, 1.0, strong, **distances)] if kind else []
    rows = [
        [label, *(each.value, each.low, each.high), each.refused]
        for name, label in DISTANCES.items()
        for each in (distances[name],)
    ]
    return WORDS.section(statements, tables=[WORDS.table("distances", rows)], figures=distances)


def _kind(published: Estimate, with_ends: Estimate) -> str | None:
    """Return which sentence the distances allow, if any."""
    if published.high < NEAR:
        return "near" if with_ends.high < NEAR else "level" if with_ends.low > NEAR else None
    return "far" if published.low > FAR else None


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
