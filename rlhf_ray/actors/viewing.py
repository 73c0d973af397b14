"""Viewers: who gets the films of fragments. People at the page, and gatherers that want films."""

from __future__ import annotations

from typing import Protocol

from rlhf_ray.actors.gatherer import GathererActor
from rlhf_ray.actors.handles import Actor, Ref, passed
from rlhf_ray.labelling.films import Episode, Film


class Viewer(Protocol):
    """Gets the films of fragments before questions about them."""

    def show(self, films: Ref[tuple[Film, ...]]) -> Ref[None]:
        """Send films. Return a reference that is ready once they are there."""
        ...

    def show_episode(self, episode: Ref[Episode | None]) -> None:
        """Send the film of an episode once it is available. Doesn't wait."""
        ...


class GathererViewer:
    """Sends films to a gatherer that wants them (`rlhf_ray.queries.gatherers.wants_films`).

    Args:
        actor: the gatherer's actor.
    """

    def __init__(self, actor: Actor[GathererActor]):
        self.actor = actor

    def show(self, films: Ref[tuple[Film, ...]]) -> Ref[None]:
        """See `Viewer.show`."""
        return self.actor.call(GathererActor.show, passed(films))

    def show_episode(self, episode: Ref[Episode | None]) -> None:
        """See `Viewer.show_episode`: it is for people."""
