"""Samples of a panel, from recorded episodes: pieces of a few steps, and what the agent's value and action depend on at each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import Stretches
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.panel.data import PanelSaliency
from rlhf_ray.interpret.agent.saliency import NOW, Faithful
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.policies.env_actions import to_policy_actions

BATCH = 256
"""Steps whose gradients are computed at a time."""

MAP_BYTES = 8 << 20
"""Bytes of all saliency maps together, one for each pixel: as many samples have maps as fit."""

LIKELIEST = "the likeliest action"
VALUE = "the value"
SOURCES = ("what it remembers", "what it sees now")


def pieces_of(episodes: Episodes, count: int, steps: int, rng: np.random.Generator) -> Stretches:
    """Cut episodes into pieces of ``steps`` steps, and draw ``count`` of them."""
    every = [(row, start) for row, length in enumerate(episodes.lengths) for start in range(0, int(length), steps)]
    some = np.array([every[one] for one in np.sort(rng.permutation(len(every))[:count])])
    rows, starts = some[:, 0], some[:, 1]
    return Stretches(rows, starts, np.minimum(steps, episodes.lengths[rows] - starts), steps)


@dataclass(frozen=True)
class StepEffects:
    """What the agent's value and action depend on at each step of the samples.

    Attributes:
        gradients: by the basis' scores, ``[n, T, k]`` by quantity.
        saliency: how much each pixel or feature, by not being as it is on average, raises the quantity (to first order).
        paths: the same for all that the agent remembers, and all that it sees now, ``[n, T, 2]`` by quantity.
    """

    gradients: Mapping[str, FloatArray]
    saliency: Mapping[str, PanelSaliency]
    paths: Mapping[str, FloatArray]


def effects_of(agent: Agent, episodes: Episodes, pieces: Stretches, basis: Directions, site: str) -> StepEffects:
    """Compute the gradients of value and likeliest action at each step of the samples, the first ones' maps too."""
    n, steps = len(pieces.rows), pieces.most
    names = _quantities(agent)
    frames = episodes.observations.shape[2:]
    shape = frames[:-1] if is_image(agent.observation_space) else (int(np.prod(frames)),)
    mapped = min(n, max(1, MAP_BYTES // (steps * len(names) * int(np.prod(shape)))))
    at, when = np.nonzero(np.arange(steps)[None] < pieces.lengths[:, None])
    rows, times = pieces.rows[at], pieces.steps[at] + when
    some = np.linspace(0, len(rows) - 1, min(len(rows), 1000)).astype(int)
    typical = torch.as_tensor(episodes.observations[rows[some], times[some]].astype(np.float32).mean(0))
    usual = torch.as_tensor(episodes.memory[rows[some], times[some]].mean(0))
    gradients = {name: np.full((n, steps, len(basis)), np.nan, np.float32) for name in names}
    paths = {name: np.full((n, steps, 2), np.nan, np.float32) for name in names}
    maps = {name: np.full((mapped, steps, *shape), np.nan, np.float32) for name in names}
    for first in range(0, len(rows), BATCH):
        here = slice(first, first + BATCH)
        frame = torch.as_tensor(episodes.observations[rows[here], times[here]].astype(np.float32)).requires_grad_()
        memory = torch.as_tensor(episodes.memory[rows[here], times[here]]).requires_grad_()
        caught: dict[str, Tensor] = {}

        def catch(values: Tensor, caught: dict[str, Tensor] = caught) -> Tensor:
            caught["site"] = values
            return values

        step = agent.step(frame, memory, edits={site: catch})
        for name in names:
            found = torch.autograd.grad(
                _read(agent, name, step.value, step.logits).sum(),
                (caught["site"], frame, memory),
                retain_graph=True,
                allow_unused=True,
            )
            inside, seen, remembered = (
                torch.zeros_like(of) if part is None else part
                for part, of in zip(found, (caught["site"], frame, memory), strict=True)
            )
            flat = inside.reshape(*inside.shape[:2], -1).sum(-1)  # positions of an image move together
            gradients[name][at[here], when[here]] = basis.gradient(flat.numpy().astype(np.float64))
            by_pixel = ((frame.detach() - typical) * seen).numpy()
            by_unit = ((memory.detach() - usual) * remembered).numpy()
            paths[name][at[here], when[here]] = np.stack(
                [by_unit.sum(1), by_pixel.reshape(len(by_pixel), -1).sum(1)], 1
            )
            if len(shape) == 2:
                by_pixel = by_pixel.sum(-1)
            within = at[here] < mapped
            maps[name][at[here][within], when[here][within]] = by_pixel.reshape(len(by_pixel), *shape)[within]
    saliency = {name: PanelSaliency(np.arange(mapped), of) for name, of in maps.items()}
    return StepEffects(gradients, saliency, paths if agent.memory_size else {})


def doubted(effects: StepEffects, faithful: Faithful) -> StepEffects:
    """Return the effects with a doubt at each map of gradients that is not faithful."""
    saliency = {name: replace(own, doubt=faithful.doubt(_called(name), NOW)) for name, own in effects.saliency.items()}
    return replace(effects, saliency=saliency)


def _called(name: str) -> str:
    """Return what attribution calls a quantity of `_quantities`."""
    return {VALUE: "value", LIKELIEST: "action"}.get(name, name.replace("action ", "mean_"))


def _quantities(agent: Agent) -> list[str]:
    space = agent.action_space
    if isinstance(space, gym.spaces.Discrete):
        return [VALUE, LIKELIEST] if int(space.n) > 1 else [VALUE]
    return [VALUE, *_dimensions(space)[:4]]


def _dimensions(space: gym.Space[object]) -> list[str]:
    return [f"action {number}" for number in range(int(np.prod(space.shape or (1,))))]


def _read(agent: Agent, name: str, value: Tensor, logits: Tensor) -> Tensor:
    if name == VALUE:
        return value
    if name == LIKELIEST:  # log-odds: a log-probability's gradient fades where the action is nearly certain
        best = torch.nn.functional.one_hot(logits.argmax(1), logits.shape[1]).bool()
        return logits[best] - logits.masked_fill(best, -torch.inf).logsumexp(1)
    return logits[:, _dimensions(agent.action_space).index(name)]


def actions_of(agent: Agent, actions: Array, names: Sequence[str]) -> tuple[Array, Sequence[str]]:
    """Return actions ``[…]`` of Discrete spaces from 0, else policy actions ``[…, dimensions]``, and their names."""
    space = agent.action_space
    if isinstance(space, gym.spaces.Discrete):
        count = int(space.n)
        return actions - int(space.start), names if len(names) == count else [str(one) for one in range(count)]
    lead = actions.shape[: actions.ndim - len(space.shape or ())]
    flat = to_policy_actions(actions.reshape(-1, *(space.shape or ())), space)
    return np.asarray(flat).reshape(*lead, -1), _dimensions(space)
