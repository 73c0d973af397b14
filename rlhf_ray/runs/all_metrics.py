"""All metrics of this package, for readers of run folders: a process that only reads one has not imported what declares them."""

from __future__ import annotations

from rlhf_ray.data.metrics import Metric, in_order


def all_metrics() -> list[Metric]:
    """Import the modules that declare metrics, and return these in the order in which they are shown."""
    import rlhf_ray.runs.health
    import rlhf_ray.runs.train  # noqa: F401 (with all of the ring)

    return in_order()
