"""The steps of the run report: one file each, which ends with its `rlhf_ray.study.Step`."""

from rlhf_ray.runs.report.steps import doubts, fragments, health, learning, outcome, scores, values

STEPS = (outcome.STEP, learning.STEP, health.STEP, scores.STEP, fragments.STEP, doubts.STEP, values.STEP)
"""The steps, in the order of the page."""
