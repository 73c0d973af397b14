"""Sweeps: train one experiment with different settings on Ray Tune, and report the best.

::

    space.py       the settings that vary, and their ranges
    trial.py       one training as a Tune trial, and its objective
    strategies.py  searchers choose settings; schedulers stop trials or copy others
    running.py     runs and resumes Tune, with as many concurrent trials as fit
    results.py     trials.json, best.json and the table
    report.py      the report page
"""

from rlhf_ray.sweeps.running import Plan, go_on, sweep
from rlhf_ray.sweeps.space import Space, apply

__all__ = ["Plan", "Space", "apply", "go_on", "sweep"]
