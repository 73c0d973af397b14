"""Section: how much easier to read the reward becomes by potential shaping, which changes no optimal policy."""

from __future__ import annotations

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.reward.preprocess import Options, Preprocessed, preprocess
from rlhf_ray.interpret.reward.preprocess.options import Objective
from rlhf_ray.interpret.reward.preprocess.pictures import before_and_after
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "preprocess"
TITLE = "An equivalent reward that is easier to read"

SHOWN: tuple[Objective, ...] = ("sparse_l1", "smooth_l1")
STEPS, GRADIENT_STEPS = 3000, 200
"""Recorded steps and gradient steps at effort 1."""
MUCH = 0.5
"""A mean size reduced to below this share is a finding."""

CAPTIONS = {
    "sizes": "|reward| of all steps, the largest first, before and after making it sparse.",
    "episode": "The reward along an episode, before and after making it sparse; each with its own scale.",
}


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there is nothing to preprocess: no steps, or images, whose potentials take minutes to fit."""
    subject = context.subject
    if is_image(subject.reward.observation_space):
        return "For images, potentials are networks that take minutes to fit; use `rlhf-ray interpret preprocess`."
    return None if len(subject.data) else "There are no steps to make the reward sparse on."


def run(context: StepContext[Subject]) -> Section:
    """Make the reward sparse and smooth."""
    subject = context.subject
    data = subject.data
    most = max(200, int(STEPS * min(1.0, subject.effort)))
    if len(data) > most:  # whole stretches of episodes, for adjacency
        data = data[:most]
    found: dict[Objective, Preprocessed] = {}
    try:
        for objective in SHOWN:
            options = Options(
                objective, gamma=subject.gamma, seed=subject.seed, steps=max(20, int(GRADIENT_STEPS * subject.effort))
            )
            found[objective] = preprocess(subject.reward, data, options)
    except SettingError as error:
        return Section(NAME, TITLE, skipped=str(error))
    checks, rows = [], []
    for objective, one in found.items():
        of = one.certificate
        rows.append(
            [
                objective.replace("_", " "),
                of.before,
                of.after,
                f"{of.nonzero_before:.1%}",
                f"{of.nonzero_after:.1%}",
                "unknown" if of.gap is None else max(of.gap, 0.0),
                of.status,
            ]
        )
        checks.append(
            Check(
                f"the {objective.replace('_', ' ')} reward is equivalent",
                of.equivalent,
                of.equivalence_residual,
                "< 0.0001",
                ""
                if of.equivalent
                else "Its discounted returns differ by more than shaping: don't read it in place of the reward.",
            )
        )
    sparse = found["sparse_l1"]
    columns = ("objective", "before", "after", "non-zero before", "non-zero after", "above the best", "solver")
    return Section(
        NAME,
        TITLE,
        _statements(sparse),
        checks,
        [Table(columns, rows, f"Potential: {sparse.reward.potential.kind}, gamma {subject.gamma:g}.")],
        [
            Picture(name, image, CAPTIONS[name])
            for name, image in before_and_after(sparse.reward, sparse.problem).items()
        ],
        {objective: one.certificate.to_json() for objective, one in found.items()},
    )


def _statements(sparse: Preprocessed) -> list[Statement]:
    of = sparse.certificate
    if of.mean_size_before == 0 or not of.equivalent:
        return []
    share = of.mean_size_after / of.mean_size_before
    if share >= MUCH:
        return []
    text = (
        f"On these steps, shaping by a potential ({sparse.reward.potential.kind}) can stand for "
        f"{100 * (1 - share):.0f} % of the reward's size, which changes no optimal policy"
    )
    if of.nonzero_after < of.nonzero_before - 0.005:
        text += f"; an equivalent reward is non-zero on {of.nonzero_after:.1%} of the steps instead of {of.nonzero_before:.1%}"
    text += "."
    return [Statement("ignores", text, 1 - share)]


STEP = Step(NAME, TITLE, run, why_not=why_not)
