"""Announcing: tells a shared cluster how the run is (`rlhf-ray ps`)."""

from __future__ import annotations

from typing import Any

from actors.announced import Announcement
from rlhf_ray.runs.callbacks import Callback


class Announcing(Callback):
    """Tells the announcement what the run does, how far it is, and where its labelling page is."""

    def __init__(self, announcement: Announcement):
        self._announcement = announcement
        self._stage = "starting"

    def on_stage(self, stage: str) -> None:
        """Tell what the run does."""
        self._stage = stage
        self._announcement.tell(stage)

    def on_links(self, links: dict[str, str]) -> None:
        """Tell where the page is, and no more: whoever has a link labels in its owner's name."""
        self._announcement.tell(self._stage, pages=sorted({link.partition("#")[0] for link in links.values()}))

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Tell how far the run is."""
        self._announcement.tell(env_steps=metrics["env_steps"], labels=metrics["comparisons"])
