"""What an agent does at a moment, yes or no: one action, several that share a word, or a Box action above its median."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.policies.env_actions import to_env_actions

RARE = 0.01
"""Share of the steps that a behaviour has to be chosen in, and not chosen in: what decides may be done once in an episode; of a few
thousand recorded steps, one in a hundred is still dozens."""
ALIKE = 0.9
"""Share of steps at which two behaviours agree, or disagree, from which on they count as one."""


@dataclass(frozen=True)
class Behaviour:
    """What the agent does at a moment, yes or no.

    Attributes:
        name: in words, for example "jump".
        actions: numbers of Discrete actions; of a Box action, the one element that is looked at.
        above: of a Box action: the behaviour is a mean above this.
    """

    name: str
    actions: tuple[int, ...]
    above: float | None = None

    def done(self, logits: FloatArray, space: gym.Space[Any]) -> FloatArray:
        """Return 1 where the most likely action is the behaviour, ``[n]``, given logits ``[n, outputs]``."""
        if self.above is None:
            return np.isin(logits.argmax(1), self.actions).astype(np.float64)
        size = logits.shape[1] // 2
        taken = to_env_actions(logits[:, :size].reshape(-1, *(space.shape or ())), space).reshape(len(logits), -1)
        return np.asarray(taken[:, self.actions[0]] > self.above).astype(np.float64)

    def taken(self, actions: Array) -> FloatArray:
        """Return 1 where environment actions ``[n, T, …]`` are the behaviour, ``[n, T]``."""
        if self.above is None:
            return np.isin(actions, self.actions).astype(np.float64)
        return np.asarray(actions.reshape(*actions.shape[:2], -1)[:, :, self.actions[0]] > self.above).astype(float)

    def frequency(self, episodes: Episodes) -> FloatArray:
        """Return the share of each episode's steps that are the behaviour, ``[n]``."""
        shares: FloatArray = (self.taken(episodes.actions) * episodes.real).sum(1) / np.maximum(episodes.lengths, 1)
        return shares

    def odds(self, logits: Tensor) -> Tensor:
        """Return the behaviour's log-odds ``[n]``; of a Box action the mean, in standard deviations of the policy."""
        if self.above is not None:
            mean, log_std = logits.chunk(2, -1)
            return mean[:, self.actions[0]] / log_std[:, self.actions[0]].exp().detach()
        own = list(self.actions)
        rest = [at for at in range(logits.shape[1]) if at not in own]
        return logits[:, own].logsumexp(1) - logits[:, rest].logsumexp(1)


def behaviours_of(episodes: Episodes, space: gym.Space[Any], names: Sequence[str] = ()) -> list[Behaviour]:
    """Return what the agent sometimes does: groups of actions that share a word of their names, and single actions.

    By its most likely action: what it does in a share of at least `RARE` of the steps, and does not do in as many; the most evenly
    split first.
    """
    real = episodes.real
    if isinstance(space, gym.spaces.Discrete):
        called = list(names) if len(names) == int(space.n) else [f"action {action}" for action in range(int(space.n))]
        options = _groups(called)
    else:
        flat = episodes.actions.reshape(*real.shape, -1)[real]
        called = list(names) if len(names) == flat.shape[1] else [f"action {number}" for number in range(flat.shape[1])]
        medians = np.median(flat, 0)
        options = [
            Behaviour(f"{name} above its median", (number,), float(medians[number]))
            for number, name in enumerate(called)
        ]
    done = {option: option.done(episodes.logits[real], space) for option in options}
    often = [option for option in options if RARE <= done[option].mean() <= 1.0 - RARE]
    often.sort(key=lambda option: (abs(round(done[option].mean(), 1) - 0.5), -len(option.actions), option.name))
    distinct: list[Behaviour] = []
    for option in often:
        agreeing = [float((done[option] == done[other]).mean()) for other in distinct]
        if not any(share > ALIKE or share < 1.0 - ALIKE for share in agreeing):
            distinct.append(option)
    return distinct


def _groups(names: Sequence[str]) -> list[Behaviour]:
    """Return single Discrete actions, and all that share a word, such as "jump" of "jump_left"; not all actions together."""
    words = list(dict.fromkeys(word for name in names for word in name.split("_")))
    groups: dict[tuple[int, ...], str] = {}
    for action, name in enumerate(names):
        groups[(action,)] = f"only {name}" if name in words else name.replace("_", " ")
    groups |= {tuple(action for action, name in enumerate(names) if word in name.split("_")): word for word in words}
    return [Behaviour(name, actions) for actions, name in groups.items() if len(actions) < len(names)]
