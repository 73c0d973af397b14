"""A study answers a question by steps: each is run once and kept, and its section becomes part of one page and its JSON twin.

The reports about a reward and about an agent and the comparison of two agents are studies.
"""

from rlhf_ray.study.page import Look, write_page
from rlhf_ray.study.run import Study, run_study
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext, StudySubject, find_step
from rlhf_ray.study.verdict import StudyVerdict, Told, reconcile

__all__ = [
    "Check",
    "Look",
    "Picture",
    "Section",
    "Statement",
    "Step",
    "StepContext",
    "Study",
    "StudySubject",
    "StudyVerdict",
    "Table",
    "Told",
    "find_step",
    "reconcile",
    "run_study",
    "write_page",
]
