"""Evaluation: what a run came to, for people to read."""

from rlhf_ray.runs.report.run_report import write_report

__all__ = ["write_report"]
