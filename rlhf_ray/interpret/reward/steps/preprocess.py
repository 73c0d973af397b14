"""How much easier to read the reward becomes by potential shaping, which changes no optimal policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.reward.preprocess import Certificate, Options, Preprocessed, preprocess
from rlhf_ray.interpret.reward.preprocess.certificate import EQUIVALENT
from rlhf_ray.interpret.reward.preprocess.options import Objective
from rlhf_ray.interpret.reward.preprocess.pictures import before_and_after
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions.scaled import ScaledReward
from rlhf_ray.study.section import Check, Section, Statement
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

SHOWN: tuple[Objective, ...] = ("sparse_l1", "smooth_l1")
STEPS, GRADIENT_STEPS = 3000, 200
"""Recorded steps and gradient steps at effort 1."""
MUCH = 0.5
"""A mean size reduced to below this share is a finding."""
FEWER = 0.005
"""Share of steps that become zero from which the finding names it."""


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there is nothing to preprocess: no steps, or images, whose potentials take minutes to fit."""
    subject = context.subject
    if is_image(subject.reward.observation_space):
        return WORDS.text("images")
    return None if len(subject.data) else WORDS.text("no_steps")


def run(context: StepContext[Subject]) -> Section:
    """Make the reward sparse and smooth."""
    try:
        made = {objective: _preprocessed(context.subject, objective) for objective in SHOWN}
    except SettingError as error:
        return replace(WORDS.section(), skipped=str(error))
    sparse, figures = made["sparse_l1"], {objective: one.certificate for objective, one in made.items()}
    potential, images = sparse.reward.potential.kind, before_and_after(sparse.reward, sparse.problem)
    return WORDS.section(
        _statements(sparse.certificate, potential),
        [_check(one) for one in figures.values()],
        [WORDS.table("objectives", map(_row, figures.values()), potential=potential, gamma=context.subject.gamma)],
        [WORDS.picture(name, image) for name, image in images.items()],
        figures,
    )


def _preprocessed(subject: Subject, objective: Objective) -> Preprocessed:
    most = max(200, int(STEPS * min(1.0, subject.effort)))
    steps = max(20, int(GRADIENT_STEPS * subject.effort))
    options = Options(objective, gamma=subject.gamma, seed=subject.seed, steps=steps)
    data = subject.data[:most]  # whole stretches of episodes, for adjacency
    if data.terminated.any():
        return preprocess(subject.scaled, data, options)
    middle = float(
        np.median(subject.scaled.of(data))
    )  # where no episode ends, a constant changes nothing: it is no size
    return preprocess(ScaledReward(subject.scaled, 1.0, middle), data, options)


def _statements(sparse: Certificate, potential: str) -> list[Statement]:
    share = sparse.mean_size_after / sparse.mean_size_before if sparse.mean_size_before else 1.0
    if share >= MUCH or not sparse.equivalent:
        return []
    fewer = sparse.nonzero_after < sparse.nonzero_before - FEWER
    return [WORDS.statement("smaller", 1 - share, one=sparse, saved=1 - share, potential=potential, fewer=fewer)]


def _check(one: Certificate) -> Check:
    return WORDS.check("equivalent", one.equivalent, one.equivalence_residual, one=one, most=EQUIVALENT)


def _row(one: Certificate) -> list[object]:
    nonzero = (f"{one.nonzero_before:.1%}", f"{one.nonzero_after:.1%}")
    gap = "unknown" if one.gap is None else max(one.gap, 0.0)
    return [one.objective.replace("_", " "), one.before, one.after, *nonzero, gap, one.status]


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
