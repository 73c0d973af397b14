"""FirstClips: the first clips that people are asked about, made in parts: the first pair needs two of them, not all."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle

from rlhf_ray.data.fragments import RANDOM_POLICY
from rlhf_ray.settings import ResolvedFragments

FIRST_FILMS = 36
"""Clips that are filmed before training, about. Few, since drawing them costs most; a first pair needs two."""

CLIPS_PER_PART = 2
"""Clips of one part: a pair."""


@dataclass(frozen=True)
class Part:
    """What one call of a collector makes.

    Attributes:
        number: from 1 on; decides everything random.
        env_steps: to take.
        clips: to make, about.
        film: whether they are filmed; else observations are images, which are shown as they are.
        episode: whether an episode is filmed too.
    """

    number: int
    env_steps: int
    clips: int
    film: bool
    episode: bool = False


def parts(env_steps: int, clips: int, rollouts: int, fragments: ResolvedFragments, *, images: bool) -> list[Part]:
    """The parts that the first ``env_steps`` steps are taken in, exactly. The episode that people see comes last.

    Args:
        env_steps: in all.
        clips: to film in all, about, where observations are no images.
        rollouts: stretches that the steps are shared by where they are.
        fragments: the settings.
        images: whether observations are images.
    """
    last = min(env_steps // 2, fragments.filmed_env_steps)
    steps = env_steps - last
    if images:
        count = max(1, min(rollouts, steps // (2 * fragments.length)))
        each = max(2, fragments.pool // count)
    else:
        count = max(1, min(clips // CLIPS_PER_PART - 1, steps // (CLIPS_PER_PART * (fragments.length + 1))))
        each = CLIPS_PER_PART
    ends = [round(steps * i / count) for i in range(count + 1)]
    made = [Part(i + 1, ends[i + 1] - ends[i], each, not images) for i in range(count)]
    return [*made, Part(count + 1, last, 0 if images else CLIPS_PER_PART, True, episode=True)]


class FirstClips:
    """Hands out the parts, and counts what came of them.

    Args:
        parts: all of them.
        make_helpers: makes other collectors, at most so many, for cores that have nothing else to do.
    """

    def __init__(self, parts: list[Part], make_helpers: Callable[[int], list[ActorHandle[Any]]]):
        self.left = deque(parts)
        self.total = sum(part.clips for part in parts)
        """Clips in all, about."""
        self.env_steps = 0
        """Steps of the parts that were made."""
        self.made = 0
        """Clips so far."""
        self.clips: list[Any] = []
        """References of the clips of each part that was made."""
        self._ready: list[ActorHandle[Any]] = []
        self._starting: dict[Any, ActorHandle[Any]] = {}
        """Helpers that are not ready yet, by the reference that tells when they are."""
        self._parts, self._done = len(parts), 0
        self._make_helpers = make_helpers

    @property
    def done(self) -> bool:
        """Whether all were made."""
        return self._done == self._parts

    @property
    def share(self) -> float:
        """The share of the clips that is there, 0 to 1."""
        return 1.0 if self.done else min(1.0, self.made / max(1, self.total))

    def questions(self, wanted: int) -> int:
        """How many of ``wanted`` questions to ask by now: about each clip there is as many as about each that is to come."""
        return min(wanted, max(1, math.floor(wanted * self.share))) if self.made >= 2 else 0

    @property
    def progress(self) -> str:
        """In words, what is being made."""
        return f"clip {min(self.made + 1, self.total)} of {self.total}"

    @property
    def waiting_for(self) -> str:
        """The same, for who waits for a question."""
        return f"the agent's first clips; {self.progress} is being made"

    def make(self, part: Part, collector: ActorHandle[Any]) -> tuple[Any, Any]:
        """Have ``collector`` make a part; the references of its clips and of the film of an episode, if one is filmed."""
        if not part.film:
            return collector.collect.remote(part.env_steps, 1, 0, part=part.number, most=part.clips), None
        film = collector.film.options(num_returns=2)
        clips = max(1, part.clips)
        filmed, shown = film.remote(
            part.env_steps, clips, 0, self.env_steps, RANDOM_POLICY, None, part.episode, part=part.number
        )
        return filmed, shown if part.episode else None

    def took(self, part: Part, clips: Any, made: int) -> None:
        """A part, whose ``clips`` are there, is with the fragmenter, which has ``made`` in all now."""
        self.clips.append(clips)
        self._done += 1
        self.env_steps += part.env_steps
        self.made = max(self.made, made)
        if self._done == 1 and not self.done:  # not before: the first pair is what people wait for
            self._starting = {
                helper.__ray_ready__.remote(): helper for helper in self._make_helpers(len(self.left) // 2)
            }
        if self.done:
            self.end()

    @property
    def helpers(self) -> list[ActorHandle[Any]]:
        """The helpers that are ready: one that takes long to start holds up no part."""
        if self._starting:
            ready, _ = ray.wait(list(self._starting), num_returns=len(self._starting), timeout=0)
            self._ready += [self._starting.pop(each) for each in ready]
        return self._ready

    def end(self) -> None:
        """End the helpers."""
        for helper in (*self._ready, *self._starting.values()):
            ray.kill(helper)
        self._ready, self._starting = [], {}


def free_cores() -> int:
    """Cores of this machine, and of its share in the Ray cluster, that are free besides the one that a collector has."""
    free = int(ray.available_resources().get("CPU", 0.0))
    return max(0, min(free, len(os.sched_getaffinity(0)) - 1))
