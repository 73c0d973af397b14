"""The report about a reward, a study: ``report.html``, its twin ``report.json``, and a folder for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.lock import Lock
from rlhf_ray.interpret.reward.consistency import check_function
from rlhf_ray.interpret.reward.steps import CATALOGUE
from rlhf_ray.interpret.reward.subject import Subject, check_digits
from rlhf_ray.study.page import Screen, screen_of, write_page
from rlhf_ray.study.run import Study, run_study
from rlhf_ray.study.section import Section

PICTURES = ("films", "moves", "examples", "saliency", "integrated_gradients", "episodes", "against_true")
"""Names of the pictures that the first screen may show, the best first."""


@dataclass(frozen=True)
class Report:
    """A written report."""

    page: Path  # path of ``report.html``
    screen: Screen  # what the page shows first
    sections: tuple[Section, ...]  # the sections, in the order of the page


def reward_study(subject: Subject, folder: Path, own: Sequence[str] = ()) -> Study[Subject]:
    """Return the study of a reward. ``own``: ``module:Name`` of the user's own steps.

    Raises:
        SettingError: there are fewer than two steps, or the rewards differ by less than their numbers can tell.
    """
    if len(subject.data) < 2:
        raise SettingError(f"The data have {len(subject.data)} steps; a report needs at least 2.")
    check_digits(subject.reward, subject.data)
    return Study(subject, CATALOGUE, folder, tuple(own))


def write_report(study: Study[Subject], sections: Sequence[Section], about: dict[str, Any] | None = None) -> Report:
    """Write the report to the study's folder, of what `rlhf_ray.study.run_study` returned.

    ``about``: what the page says about where reward and data come from.
    """
    subject = study.subject
    facts: dict[str, Any] = {
        "reward": subject.reward.name,
        "environment": subject.environment,
        "steps": len(subject.data),
        "episodes": len(np.unique(subject.data.episodes)),
        "seed": subject.seed,
        "effort": subject.effort,
        "gamma": subject.gamma,
    }
    model = (about or {}).get("model")
    name = subject.reward.name
    if model is not None and Path(model).name != name:
        name = f"{name} of {Path(model).name}"
    heading = " · ".join(filter(None, (name, subject.environment)))
    under = f"{facts['steps']} steps of {facts['episodes']} episodes, seed {subject.seed}, effort {subject.effort:g}"
    screen = screen_of("reward report", heading, under, sections, PICTURES)
    page = write_page(study.folder, facts | (about or {}), sections, screen)
    return Report(page, screen, tuple(sections))


def report_reward(subject: Subject, out: Path | str, steps: Sequence[str] | None = None) -> Report:
    """Examine a reward in this process and write the report: `reward_study`, `run_study`, `write_report`.

    Args:
        subject: the reward, and the environment steps to examine it on.
        out: the report's folder, created if missing. Steps that an earlier, stopped call finished for the same subject are kept.
        steps: the steps to run, by name or ``module:Name`` of your own; None: all.

    Raises:
        SettingError: the reward is not a function of a step.
    """
    with Lock(out):
        check_function(subject.reward, subject.data)
        study = reward_study(subject, Path(out), [name for name in steps or () if ":" in name])
        return write_report(study, run_study(study, steps))
