"""Selection: which pairs of fragments to ask about."""

from __future__ import annotations

from typing import Any

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import Registry
from rlhf_ray.queries.selection.candidates import Candidates, Selection, choose
from rlhf_ray.queries.selection.k_center import KCenter
from rlhf_ray.queries.selection.near_on_policy import NearOnPolicy
from rlhf_ray.queries.selection.pairs import random_pairs
from rlhf_ray.queries.selection.staged import Staged
from rlhf_ray.queries.selection.uncertainty import (
    Answerable,
    Disagreement,
    DisagreementOfLabels,
    DisagreementOfLogits,
    Entropy,
    InformationGain,
)


class _Selections(Registry[Selection | None]):
    """Knows selections joined by ``+`` too."""

    def make(self, name: str, **offered: Any) -> Selection | None:
        """See `Registry.make`."""
        names = name.split("+")
        if len(names) == 1:
            return super().make(name, **offered)
        stages = [super(_Selections, self).make(part, **offered) for part in names]
        if None in stages:
            raise SettingError(f"{self.setting} is {name!r}, but random scores nothing: leave it out.")
        return Staged([stage for stage in stages if stage is not None])


SELECTIONS = _Selections(
    "preferences.selection",
    Selection,
    {
        "random": lambda: None,
        "disagreement": Disagreement,
        "disagreement_logits": DisagreementOfLogits,
        "disagreement_labels": DisagreementOfLabels,
        "answerable": Answerable,
        "entropy": Entropy,
        "information_gain": InformationGain,
        "k_center": KCenter,
        "near_on_policy": NearOnPolicy,
    },
)
"""Built-in selections by name. "random" needs no scores."""

__all__ = [
    "SELECTIONS",
    "Answerable",
    "Candidates",
    "Disagreement",
    "DisagreementOfLabels",
    "DisagreementOfLogits",
    "Entropy",
    "InformationGain",
    "KCenter",
    "NearOnPolicy",
    "Selection",
    "Staged",
    "choose",
    "random_pairs",
]
