"""Latent search: rollouts of a world model that raise or lower a value, an action or a direction, held to realism.

The start is the world's state at a recorded moment. Gradients of the quantity move it, and it may go anywhere as long as the
rollout is as close to the data as real ones are. Random search with as many simulations shows what gradients are worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.moments import WorldMoments
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.agent.world_model.simulate import Simulation
from rlhf_ray.optim.adam import Adam

QUANTILE = 0.95
"""A rollout that is farther from the data than this share of held-out real ones is not realistic."""
STEPS, RATE = 80, 0.05
"""Gradient steps, and their length in standard deviations of the states' units."""
PENALTY = 4.0
"""Weight of being unrealistic, in standard deviations of the quantity per unit."""
SHORT, LONG = 0.02, 0.5
"""Random steps have lengths between these, in standard deviations of each unit."""
LEAST = 8
"""Fewest moments that tell what is realistic."""


class NothingToSearchError(SettingError):
    """A quantity is the same from every start."""


class Realism:
    """How far a simulation is from the data, in units of the 95th percentile of real, held-out starts: above 1, fewer are as far.

    Three distances: the largest, over the steps, of states and of frames to their nearest neighbours among real starts' rollouts;
    and of a frame to what the world makes of it when it sees the rollout so far as its context, if that is long enough.

    Args:
        question: with a world model.
        moments: real starts: one half is what distances are measured to, the other tells what is usual.

    Raises:
        SettingError: too few moments.
    """

    def __init__(self, question: AgentQuestion, moments: WorldMoments):
        if len(moments) < LEAST:
            raise SettingError(f"{len(moments)} moments don't tell what is realistic; record at least {LEAST}.")
        self.question = question
        known, held_out = moments[: len(moments) // 2], moments[len(moments) // 2 :]
        with torch.no_grad():
            near = question.rollout(known, {})
            states = near.states.flatten(0, 1)
            self.middle, self.scale = states.mean(0), states.std(0, unbiased=False)
            self.scale = torch.where(self.scale > 1e-6, self.scale, torch.ones_like(self.scale))
            self.states, self.frames = self._standard(near.states), near.observations.flatten(2).flatten(0, 1)
            self.usual = {
                name: max(float(torch.quantile(of, QUANTILE)), 1e-6)
                for name, of in self._raw(question.rollout(held_out, {})).items()
            }

    def distances(self, simulation: Simulation) -> dict[str, Tensor]:
        """Return each distance in units of what is usual, ``[n]`` by name; differentiable."""
        return {name: of / self.usual[name] for name, of in self._raw(simulation).items()}

    def largest(self, simulation: Simulation) -> Tensor:
        """Return the largest distance, ``[n]``: realistic up to 1."""
        return torch.stack(list(self.distances(simulation).values())).amax(0)

    def _raw(self, simulation: Simulation) -> dict[str, Tensor]:
        n = len(simulation.values)
        frames = simulation.observations.flatten(2)
        found = {
            "states": torch.cdist(self._standard(simulation.states), self.states).amin(1).view(n, -1).amax(1),
            "frames": torch.cdist(frames.flatten(0, 1), self.frames).amin(1).view(n, -1).amax(1),
        }
        world = self.question.world
        assert world is not None
        if simulation.observations.shape[1] >= world.context > 1:
            seen = simulation.observations[:, : world.context]
            again = world.observe(world.begin(seen, simulation.actions[:, : world.context - 1]))
            found["reconstruction"] = (again - seen[:, -1]).flatten(1).norm(dim=1)
        return found

    def _standard(self, states: Tensor) -> Tensor:
        return ((states - self.middle) / self.scale).flatten(0, 1)


@dataclass(frozen=True)
class SearchResult:
    """What a search found, for ``n`` starts.

    Attributes:
        before: the quantity from the real starts, ``[n]``.
        after: from the found ones, ``[n]``; as before where nothing realistic was better.
        random: from the best of random search, ``[n]``.
        spread: standard deviation of the quantity over real starts.
        sign: 1 if it should rise, -1 if it should fall.
        realism: largest distance to the data of each found rollout, ``[n]``: see `Realism`. Above 1 only where nothing was found,
            for a real start whose own rollout is unusual.
        distances: the three of them, ``[n]`` by name.
        best_real: the best quantity of any real start.
        states: the found starts, ``[n, size]``.
        frames: their rollouts, ``[n, steps + 1, …]``.
        frames_before: the real starts' rollouts.
        along: the quantity of the best realistic start so far, mean over starts, ``[gradient steps]``.
        about: quantity, steps, estimator, digests.
    """

    before: FloatArray
    after: FloatArray
    random: FloatArray
    spread: float
    sign: float
    realism: FloatArray
    distances: Mapping[str, FloatArray]
    best_real: float
    states: FloatArray
    frames: Array
    frames_before: Array
    along: FloatArray
    about: Mapping[str, Any]

    @property
    def raised(self) -> FloatArray:
        """By how many standard deviations the quantity moved the wanted way, ``[n]``."""
        return self.sign * (self.after - self.before) / self.spread

    @property
    def raised_at_random(self) -> FloatArray:
        """The same for random search."""
        return self.sign * (self.random - self.before) / self.spread


def search(
    question: AgentQuestion,
    moments: WorldMoments,
    real: WorldMoments,
    rng: np.random.Generator,
    *,
    rise: bool = True,
    steps: int = STEPS,
    rate: float = RATE,
) -> SearchResult:
    """Move the world's state at some moments so that a quantity rises or falls, as long as the rollout stays realistic.

    Args:
        question: what to raise, with a world model, for example `mean_over_steps` of a value, 8 steps on.
        moments: real starts, ``n`` of them.
        real: other moments, which tell what is realistic and how much the quantity differs.
        rng: draws random search's steps.
        rise: whether it should rise; otherwise fall.
        steps: simulations per start, of either search.
        rate: length of a gradient step.

    Raises:
        SettingError: there is no world model, or too few real moments.
    """
    if question.world is None:
        raise SettingError("A latent search needs a world model.")
    question = replace(question, sources=("world",), cut=frozenset())
    realism = Realism(question, real)
    sign = 1.0 if rise else -1.0
    with torch.no_grad():
        usual = question.ask(real).double().numpy()
        start = question.inputs(moments)["world"]
        first = question.rollout(moments, {"world": start})
        before = question.read(first)
    spread = float(usual.std())
    if spread <= 1e-9:
        raise NothingToSearchError(
            f"The {question.quantity.title} is the same from every start: there is nothing to search for."
        )
    best, states, along = _by_gradient(question, moments, realism, start, before, sign, spread, steps, rate)
    chance = _at_random(question, moments, realism, start, before, sign, steps, rng)
    with torch.no_grad():
        last = question.rollout(moments, {"world": states})
        distances = realism.distances(last)
    return SearchResult(
        before.double().numpy(), best.double().numpy(), chance.double().numpy(), spread, sign,
        torch.stack(list(distances.values())).amax(0).double().numpy(),
        {name: of.double().numpy() for name, of in distances.items()},
        float(usual.max() if rise else usual.min()), states.numpy(), last.observations.numpy(),
        first.observations.numpy(), along, question.about | {"rise": rise, "simulations": steps},
    )  # fmt: skip


def _by_gradient(
    question: AgentQuestion,
    moments: WorldMoments,
    realism: Realism,
    start: Tensor,
    before: Tensor,
    sign: float,
    spread: float,
    steps: int,
    rate: float,
) -> tuple[Tensor, Tensor, FloatArray]:
    move = torch.zeros_like(start).requires_grad_()
    optimiser = Adam([move], lr=rate)
    best, states, along = before.clone(), start.clone(), []
    for _ in range(steps):
        state = start + move * realism.scale
        simulation = question.rollout(moments, {"world": state})
        quantity, distance = question.read(simulation), realism.largest(simulation)
        better = (distance <= 1.0) & (sign * (quantity - best) > 0)
        best = torch.where(better, quantity, best).detach()
        states = torch.where(better[:, None], state, states).detach()
        along.append(float(best.mean()))
        loss = -sign * quantity / spread + PENALTY * (distance - 0.9).clamp_min(0.0)
        optimiser.zero_grad()
        loss.sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return best, states, np.array(along)


def _at_random(
    question: AgentQuestion,
    moments: WorldMoments,
    realism: Realism,
    start: Tensor,
    before: Tensor,
    sign: float,
    steps: int,
    rng: np.random.Generator,
) -> Tensor:
    """Climb by random steps of random length, each kept where it is better and realistic."""
    best, states = before.clone(), start.clone()
    with torch.no_grad():
        for _ in range(steps):
            length = np.exp(rng.uniform(np.log(SHORT), np.log(LONG), (len(start), 1)))
            step = torch.as_tensor(length * rng.normal(size=tuple(start.shape)), dtype=start.dtype)
            state = states + step * realism.scale
            simulation = question.rollout(moments, {"world": state})
            quantity = question.read(simulation)
            better = (realism.largest(simulation) <= 1.0) & (sign * (quantity - best) > 0)
            best = torch.where(better, quantity, best)
            states = torch.where(better[:, None], state, states)
    return best
