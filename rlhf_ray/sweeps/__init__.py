"""Sweeps: many trainings of one experiment with different settings, run by Ray Tune; the best one, a table and a report.

::

    space.py       which settings vary, and between what
    trial.py       one training as Tune sees it, and what it is measured by
    strategies.py  who chooses the settings; which trials are stopped, or taken over from others
    running.py     Tune itself: begun, gone on with, and never more at once than there is room for
    results.py     what came out: trials.json, best.json, the table
    report.py      the report's page
"""

from rlhf_ray.sweeps.running import Plan, go_on, sweep
from rlhf_ray.sweeps.space import Space, apply

__all__ = ["Plan", "Space", "apply", "go_on", "sweep"]
