"""How much easier to read the reward becomes by potential shaping, which changes no optimal policy."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.reward.preprocess.certificate import EQUIVALENT, Certificate
from rlhf_ray.interpret.reward.preprocess.problem import Objective, Options
from rlhf_ray.interpret.reward.preprocess.run import Preprocessed, before_and_after, preprocess
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions.shaped import ScaledReward
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "An equivalent reward that is easier to read"
SHOWN: tuple[Objective, ...] = ("sparse_l1", "smooth_l1")
STEPS, GRADIENT_STEPS = 3000, 200
"""Recorded steps and gradient steps at effort 1."""
CAPTIONS = {
    "sizes": "|reward| of all steps, the largest first, before and after making it sparse.",
    "episode": "The reward along an episode, before and after making it sparse; each with its own scale.",
}


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there is nothing to preprocess: images, whose potentials take minutes to fit."""
    said = "For images, potentials are networks that take minutes to fit; use `rlhf-ray interpret preprocess`."
    return said if is_image(context.subject.reward.observation_space) else None


def run(context: StepContext[Subject]) -> Section:
    """Make the reward sparse and smooth."""
    try:
        made = {objective: _preprocessed(context.subject, objective) for objective in SHOWN}
    except SettingError as error:
        return Section("preprocess", TITLE, skipped=str(error))
    sparse, figures = made["sparse_l1"], {objective: one.certificate for objective, one in made.items()}
    caption = f"Potential: {sparse.reward.potential.kind}, gamma {context.subject.gamma:g}."
    columns = ["objective", "before", "after", "non-zero before", "non-zero after", "above the best", "solver"]
    images = before_and_after(sparse.reward, sparse.problem)
    pictures = [Picture(name, image, CAPTIONS[name]) for name, image in images.items()]
    checks, table = list(map(_check, figures.values())), Table(columns, list(map(_row, figures.values())), caption)
    return Section("preprocess", TITLE, checks, (), [table], pictures, (), values_of(figures))


def _preprocessed(subject: Subject, objective: Objective) -> Preprocessed:
    most = max(200, int(STEPS * min(1.0, subject.effort)))
    steps = max(20, int(GRADIENT_STEPS * subject.effort))
    options = Options(objective, gamma=subject.gamma, seed=subject.seed, steps=steps)
    data = subject.data[:most]  # whole stretches of episodes, for adjacency
    if data.terminated.any():
        return preprocess(subject.scaled, data, options)
    middle = float(np.median(subject.scaled.of(data)))  # where no episode ends, a constant is no size
    return preprocess(ScaledReward(subject.scaled, 1.0, middle), data, options)


def _check(one: Certificate) -> Check:
    name = f"the {one.objective.replace('_', ' ')} reward is equivalent"
    remedy = "Its discounted returns differ by more than shaping: don't read it in place of the reward."
    return Check.of(name, one.equivalent, one.equivalence_residual, f"< {EQUIVALENT:.4f}", remedy)


def _row(one: Certificate) -> list[object]:
    nonzero = (f"{one.nonzero_before:.1%}", f"{one.nonzero_after:.1%}")
    gap = "unknown" if one.gap is None else max(one.gap, 0.0)
    return [one.objective.replace("_", " "), one.before, one.after, *nonzero, gap, one.status]


STEP = Step("preprocess", TITLE, run, why_not=why_not)
