"""An environment whose true reward can't be mistaken, and the search for it in what an agent gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from tests.made_up import Walk

LEAST, LENGTH = 1_000.0, 20


class Generous(Walk):
    """A walk whose true reward is about 1,000 at each step; nothing else is that large."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(np.clip(action, -1.0, 1.0))
        return observation, 2.0 * LEAST + reward, *rest


generous: Any = Generous
gym.register(
    "tests/Generous-v0", generous, max_episode_steps=LENGTH, kwargs={"lengths": (LENGTH + 1,), "numbered": False}
)


def largest(thing: Any) -> float:
    """The largest finite number anywhere in ``thing``; 0 for none."""
    return max((float(part[np.isfinite(part)].max(initial=0.0)) for part in _arrays(thing)), default=0.0)


def _arrays(thing: Any) -> Iterator[Any]:
    if isinstance(thing, torch.Tensor):
        thing = thing.detach().cpu().numpy()
    if isinstance(thing, np.ndarray | float | np.floating):
        if np.asarray(thing).dtype.kind == "f":
            yield np.asarray(thing)
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from _arrays(value)
    elif isinstance(thing, InfiniteLookbackBuffer):
        yield from _arrays(thing.data)
    elif isinstance(thing, SingleAgentEpisode):
        kept = (thing.observations, thing.actions, thing.rewards, thing.infos, thing.extra_model_outputs)
        yield from _arrays(kept)
    elif dataclasses.is_dataclass(thing):
        yield from _arrays(vars(thing))
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _arrays(value)
