"""What an attribution method is."""

from __future__ import annotations

from typing import Protocol

import gymnasium as gym

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.attribution.background import Background, Maps


class Method(Protocol):
    """An attribution method: how much each element of each input contributes to the reward of a step.

    Attributes:
        name: name in tables and file names.
        title: what texts call it.
        signed: whether it tells what raises the reward from what lowers it; otherwise its maps are positive.
        complete: whether its maps should add up to the difference between the reward and that of the typical step.
    """

    name: str
    title: str
    signed: bool
    complete: bool

    def unsuitable(self, background: Background) -> str | None:
        """Return why the method does not apply, in one sentence; None if it does."""
        ...

    def __call__(self, background: Background, steps: Transitions) -> Maps:
        """Compute the maps of ``steps``."""
        ...


def no_gradients(background: Background) -> str | None:
    """Return why methods with gradients don't apply; None if they do."""
    reward = background.reward
    if not reward.differentiable:
        return f"The reward {reward.name!r} has no gradients."
    if isinstance(reward.observation_space, gym.spaces.Discrete):
        return "States of a table are numbers without order: they have no gradients."
    return None


def no_images(background: Background) -> str | None:
    """Return why methods for images don't apply; None if they do."""
    if background.regions is None or background.regions.kind != "patch":
        return "The observations are not images."
    if not {"state", "next_state"} & background.reward.inputs:
        return "The reward does not depend on images."
    return None
