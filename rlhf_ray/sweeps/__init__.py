"""Sweeps: train one experiment with different settings on Ray Tune, and report the best.

``space`` has the settings that vary, ``trial`` one training as a Tune trial, ``strategies`` searchers and schedulers, ``running``
runs and resumes Tune, ``state`` what resuming needs, ``results`` and ``report`` the table, the best settings and the page.
"""

from rlhf_ray.sweeps.running import Plan, go_on, sweep
from rlhf_ray.sweeps.space import Space, apply

__all__ = ["Plan", "Space", "apply", "go_on", "sweep"]
