"""Choices for a sweep's options."""

from __future__ import annotations

from typing import Literal

Search = Literal["random", "optuna"]
Schedule = Literal["none", "asha", "pbt", "pb2"]

Metric = Literal["return", "likelihood"]
"""return: mean true return of the deterministic policy. likelihood: mean log-likelihood, in nats per comparison, of held-out
comparisons under the reward model."""
