"""Evaluation: what a run came to, for people to read."""

from rlhf_ray.evaluation.report import write_report

__all__ = ["write_report"]
