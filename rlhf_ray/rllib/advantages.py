"""SteadyAdvantages: a batch in which little is at stake moves the policy little (`RecentDeviation`)."""

from __future__ import annotations

from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing

from rlhf_ray.policies.ppo_update import RecentDeviation


class SteadyAdvantages(RecentDeviation, ConnectorV2):  # type: ignore[misc]
    """Multiplies advantages of deviation 1 by their own deviation over that of recent batches, if that is larger.

    The last of a learner's connectors.
    """

    def __call__(self, *, rl_module: Any, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        columns = batch[DEFAULT_MODULE_ID]
        targets, real = columns[Postprocessing.VALUE_TARGETS], columns[Columns.LOSS_MASK]
        if (values := columns.get(Columns.VF_PREDS)) is None:  # of a module of one's own
            values = rl_module[DEFAULT_MODULE_ID].compute_values(columns).detach()
        raw = (targets - values.to(targets))[real]
        columns[Postprocessing.ADVANTAGES] = columns[Postprocessing.ADVANTAGES] * self.share(raw)
        return batch

    def get_state(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        """Return the variance of recent batches."""
        return {"variance": self.variance}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.variance = state["variance"]
