"""All metrics of this package, for readers of run folders: a process that only reads one has not imported what declares them."""

from __future__ import annotations

from importlib import import_module

from rlhf_ray.data.metrics import Metric, in_order

DECLARE = (
    "rlhf_ray.actors.ring",
    "rlhf_ray.measure.error_rates",
    "rlhf_ray.queries.schedule",
    "rlhf_ray.reward.fit_report",
    "rlhf_ray.rllib.metrics",
    "rlhf_ray.runs.health",
    "rlhf_ray.runs.probe",
    "rlhf_ray.runs.train",
)
"""The modules that declare metrics, by name: some of them write the files that need all."""


def all_metrics() -> list[Metric]:
    """Import the modules that declare metrics, and return these in the order in which they are shown."""
    for name in DECLARE:
        import_module(name)
    return in_order()
