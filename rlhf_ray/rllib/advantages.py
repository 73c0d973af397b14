"""SteadyAdvantages: a batch in which little is at stake moves the policy little.

PPO divides the advantages of each batch by their own deviation. Copies of an environment with episodes of one length are in step: a
batch may show nothing but the ends of episodes, where all actions are equally good (a fallen pole), and the noise of its advantages
would then move the policy as far as a batch that tells. So a batch is divided by no less than the recent batches' deviation.
"""

from __future__ import annotations

import math
from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

KEEPS = 0.9
"""Weight of the batches before in the recent variance: some ten batches count."""


class SteadyAdvantages(ConnectorV2):  # type: ignore[misc]
    """Multiplies advantages of deviation 1 by their own deviation over that of recent batches, if that is larger.

    The last of a learner's connectors. The deviation of recent batches is the root of an exponential moving average of variances.
    """

    variance: float | None = None
    """Of recent batches; None before the first."""

    def __call__(self, *, rl_module: Any, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        columns = batch[DEFAULT_MODULE_ID]
        targets, real = columns[Postprocessing.VALUE_TARGETS], columns[Columns.LOSS_MASK]
        if (values := columns.get(Columns.VF_PREDS)) is None:  # of a module of one's own
            values = rl_module[DEFAULT_MODULE_ID].compute_values(columns).detach()
        raw = (targets - values.to(targets))[real]
        columns[Postprocessing.ADVANTAGES] = columns[Postprocessing.ADVANTAGES] * self.share(raw)
        return batch

    def share(self, advantages: Tensor) -> float:
        """Count a batch's advantages ``[n]``, and return its deviation over the recent ones', at most 1."""
        variance = float(advantages.double().var(correction=0))
        before = variance if self.variance is None else self.variance
        self.variance = KEEPS * before + (1 - KEEPS) * variance
        return 1.0 if variance >= self.variance else math.sqrt(variance / self.variance)

    def get_state(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        """Return the variance of recent batches."""
        return {"variance": self.variance}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.variance = state["variance"]
