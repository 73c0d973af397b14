"""Settings of the labelling page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlhf_ray.settings.checks import Bounds, Count, Share, check_values, require

Channels = Literal["auto", 1, 3]
Zoom = Count | Literal["auto"]


@dataclass(frozen=True)
class LabellingSettings:
    """The labelling page, where annotators compare clips in a browser."""

    annotators: tuple[str, ...] = ("me",)
    """Names of the annotators; each gets a personal link. The first is the owner: sees everyone's statistics and sets weights."""
    instructions: str = "Which clip shows better behaviour?"
    """Instructions shown above the clips: what annotators should prefer."""
    language: str = "en"
    """Language of the page: en, de, or a JSON file of its texts in yours. The instructions and the title stay as they are."""
    host: str = "127.0.0.1"
    """Address the page's server binds to. With any other than 127.0.0.1, other machines on the network can reach the page."""
    port: Annotated[int, Bounds(0, 65535)] = 8765
    """Port of the page's server. If it is in use, the next free port is used; 0 picks any free port."""
    hosts: tuple[str, ...] = ()
    """Additional host names (without port) under which browsers reach the page, such as a proxy's."""
    lease_seconds: Annotated[float, Bounds(5)] = 120.0
    """Seconds that a pair is reserved for the annotator who sees it. A visible page renews this."""
    overlap_share: Share = 0.1
    """Fraction (0 to 1) of questions that two annotators answer, to measure agreement. Needs two annotators."""
    catch_share: Annotated[float, Bounds(0, 0.5)] = 0.03
    """Fraction (0 to 0.5) of shown pairs that are catch pairs, which check the annotator and are not used for training: a clip
    beside itself, or a pair they have already answered with its sides swapped."""
    channels: Channels = "auto"
    """Channels of an image observation that people see, the last ones: 1 (grey) or 3 (colour). auto: 3 if their number is a
    multiple of 3, else 1. Set 1 if observations are stacks of 3 or 6 grey frames."""
    zoom: Zoom = "auto"
    """Factor (a whole number, 1 or more) by which the page enlarges image observations, without smoothing. auto: the largest one
    with which two clips fit into the window, which is the limit of any other too."""

    def __post_init__(self) -> None:
        check_values(self, "labelling")
        names = self.annotators
        valid = len(names) >= 1 and len(set(names)) == len(names)
        require(valid, "labelling.annotators", names, "give at least one name, each only once")
        for name in names:
            fits = 1 <= len(name) <= 40 and name.isprintable() and name == name.strip()
            require(fits, "labelling.annotators", name, "a name has 1 to 40 printable characters")
