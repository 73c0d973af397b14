"""The labelling page."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_ray.settings.checks import require


@dataclass(frozen=True)
class LabellingSettings:
    """The page where people compare clips."""

    annotators: tuple[str, ...] = ("me",)
    """Who labels: each name gets a link of its own. The first one may also weigh what the others say."""
    instructions: str = "Which clip shows better behaviour?"
    """What the page asks."""
    host: str = "127.0.0.1"
    """Address the page's server listens at. Anything but this machine's own is reached by others in its network."""
    port: int = 8765
    """Its port; the next free one where it is taken, and 0 takes any."""
    hosts: tuple[str, ...] = ()
    """Further names (without port) that browsers may call the server by: of a proxy before it, say."""
    lease_seconds: float = 120.0
    """Seconds that a question is kept for whoever was shown it; the page asks for more while somebody looks at it."""
    overlap_share: float = 0.1
    """Share of the questions (0 to 1) that two people are asked, where there are two, to see whether they agree."""
    catch_share: float = 0.03
    """Share of what is shown (0 to 0.5) that are catch pairs, which check the person and train nothing: a clip beside itself, and
    a pair they have decided before, the other way round."""
    catch_by_reward: bool = False
    """Whether catch pairs may be clips of very different true return too, where the one with more reward is right. Only for people
    who teach what the environment rewards: whoever teaches something else would be marked wrong."""

    def __post_init__(self) -> None:
        names = self.annotators
        valid = len(names) >= 1 and len(set(names)) == len(names)
        require(valid, "labelling.annotators", names, "name at least one person, and each once")
        for name in names:
            fits = 1 <= len(name) <= 40 and name.isprintable() and name == name.strip()
            require(fits, "labelling.annotators", name, "a name has 1 to 40 printable characters")
        require(0 <= self.port <= 65535, "labelling.port", self.port, "a port is between 0 and 65535")
        require(self.lease_seconds >= 5, "labelling.lease_seconds", self.lease_seconds, "it must be 5 seconds or more")
        require(
            0 <= self.overlap_share <= 1, "labelling.overlap_share", self.overlap_share, "it is a share between 0 and 1"
        )
        require(
            0 <= self.catch_share <= 0.5, "labelling.catch_share", self.catch_share, "it is a share between 0 and 0.5"
        )
