"""What a sweep may be told by name, besides the settings of its trials."""

from __future__ import annotations

from typing import Literal

Search = Literal["random", "optuna"]
Schedule = Literal["none", "asha", "pbt", "pb2"]

Metric = Literal["return", "likelihood"]
"""return: the mean true return of the policy, acting deterministically. likelihood: the mean log-likelihood, in nats, of held-out
comparisons under the reward model."""
