"""Section: distances between the reward and the true one that ignore shaping and scale."""

from __future__ import annotations

import dataclasses

from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.truth import true_reward
from rlhf_ray.reward.sampled_distances import all_distances
from rlhf_ray.study.section import Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "distances"
TITLE = "Distance to the true reward"

NAMES = {
    "epic": "EPIC",
    "dard": "DARD",
    "starc": "STARC",
    "pearson": "linear correlation",
    "spearman": "rank correlation",
}

STEPS = 2000
"""Recorded steps that the distances rest on."""

NEAR, FAR = 0.2, 0.6
"""EPIC below and above which a statement says so. 0: equal up to shaping and scale; 0.71: unrelated; 1: opposite."""


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no distances: the true reward can't be computed for steps that were not recorded."""
    subject = context.subject
    if true_reward(subject) is None:
        return (
            "Distances need the true reward of steps that were not recorded, and it is known for recorded steps only."
        )
    return None


def run(context: StepContext[Subject]) -> Section:
    """Estimate the distances on recorded steps."""
    subject = context.subject
    truth = true_reward(subject)
    assert truth is not None, "why_not() says so"
    image = is_image(subject.reward.observation_space)
    data = subject.data.sample(round(STEPS * min(1.0, subject.effort) / (4 if image else 1)), subject.rng(NAME))
    found = all_distances(subject.reward, truth, data, subject.gamma, subject.seed, pairs=128 if image else 512)
    rows = [[NAMES[name], of.value, of.low, of.high] for name, of in found.items()]
    caption = (
        "Distances on recorded steps: 0 is equal up to potential shaping and scale, 0.71 unrelated, 1 opposite. Correlations: 1 is "
        "equal up to scale; shaping lowers them."
    )
    epic = found["epic"]
    figures = f"EPIC {epic.value:.2f} ({epic.low:.2f} to {epic.high:.2f}), STARC {found['starc'].value:.2f}"
    statements = []
    if epic.high < NEAR:
        text = (
            f"Up to shaping and scale it is close to the true reward: {figures}. Where it orders single steps "
            "differently, that may be shaping."
        )
        statements.append(Statement("rewards", text, 1.0))
    elif epic.low > FAR:
        text = f"Even up to shaping and scale it is far from the true reward (unrelated: 0.71): {figures}."
        statements.append(Statement("warning", text, 1.0))
    values = {name: dataclasses.asdict(of) for name, of in found.items()}
    return Section(
        NAME, TITLE, statements, tables=[Table(["", "value", "95 % from", "to"], rows, caption)], values=values
    )


STEP = Step(NAME, TITLE, run, why_not=why_not)
