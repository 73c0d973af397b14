"""A study answers a question by steps: each is run once and kept, and its section becomes part of one page and its JSON twin.

The reports about a run, a reward and an agent are studies. They state measured figures, and no sentences about them.
"""

from rlhf_ray.study.page import Screen, screen_of, write_page
from rlhf_ray.study.run import Study, run_study
from rlhf_ray.study.section import Check, Effect, Effects, Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext, StudySubject, find_step

__all__ = [
    "Check",
    "Effect",
    "Effects",
    "Picture",
    "Screen",
    "Section",
    "Step",
    "StepContext",
    "Study",
    "StudySubject",
    "Table",
    "find_step",
    "run_study",
    "screen_of",
    "write_page",
]
