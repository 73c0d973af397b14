"""Choices for a sweep's options."""

from __future__ import annotations

from typing import Literal

Search = Literal["random", "optuna", "gp", "qmc"]
"""random: independent draws. optuna: Optuna's tree-structured Parzen estimator. gp: its Gaussian process. qmc: its Sobol sequence,
which covers ranges more evenly than independent draws."""

Schedule = Literal["none", "asha", "pbt", "pb2"]

Metric = Literal["return", "likelihood"]
"""return: mean true return of the deterministic policy. likelihood: mean log-likelihood, in nats per comparison, of held-out
comparisons under the reward model."""
