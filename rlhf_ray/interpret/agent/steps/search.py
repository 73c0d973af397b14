"""Search the world model's states for realistic rollouts that raise or lower the value, an action or a component."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.moments import WorldMoments, draw_moments
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.interpret.agent.questions import quantities
from rlhf_ray.interpret.agent.questions.quantities import Quantity
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.agent.search import STEPS, NothingToSearchError, SearchResult, search
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.steps.bases import basis_of
from rlhf_ray.interpret.agent.steps.quality import valid_horizon
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.subject import AgentContext, no_world
from rlhf_ray.interpret.agent.world_model.world import World
from rlhf_ray.interpret.attribution.drawing import strip
from rlhf_ray.measure.intervals import mean_interval
from rlhf_ray.study.section import Check, Picture, Section
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

EPISODES, REAL, STARTS = 200, 400, 12
"""Episodes; moments that tell what is realistic; starts per search."""
ROLLOUT, SHORTEST = 4, 2
"""Steps of a rollout, at most as many as can be trusted, and at least."""
FEWEST_SIMULATIONS = 20
COMPONENTS, ACTIONS = 2, 5
"""Components and actions that are searched for."""
SLACK = 1e-4
"""How far the realism of a rollout may be above 1."""
SHOWN = 3


@dataclass(frozen=True)
class Searched:
    """What a search for one quantity, up or down, reached; means over starts.

    Attributes:
        quantity: its title.
        rise: whether it should rise.
        before, after: the quantity from the recorded starts, and from those that were found.
        moved: by how many standard deviations it moved the wanted way; ``interval``: 95 % interval.
        random: the same by random search.
        best_real: the best quantity of any recorded start.
        realism: the largest distance to the data of a rollout that was found: up to 1 it is realistic.
        about: the quantity's name, steps, estimator, digests.
    """

    quantity: str
    rise: bool
    before: float
    after: float
    moved: float
    interval: list[float] | None
    random: float
    best_real: float
    realism: float
    about: Mapping[str, Any]

    @classmethod
    def summed_up(cls, result: SearchResult, quantity: Quantity) -> Searched:
        """Take the means of a search's result."""
        realism = float(result.realism[result.raised > 0].max(initial=0.0))
        before, after, moved, random = (
            float(values.mean()) for values in (result.before, result.after, result.raised, result.raised_at_random)
        )
        interval, rise = mean_interval(result.raised.tolist()), result.sign > 0
        return cls(
            quantity.title, rise, before, after, moved, interval, random, result.best_real, realism, result.about
        )


def run(context: AgentContext) -> Section:
    """Search for each quantity, up and down."""
    subject, rng = context.subject, context.rng(WORDS.name)
    world, horizon = world_of(context), valid_horizon(context)
    assert world is not None, "no_world() said that there is one"
    episodes = split_episodes(context, "test", EPISODES)
    moments = draw_moments(subject.agent, episodes, REAL + STARTS, rng, context=world.context)
    order = rng.permutation(len(moments))
    starts, real = moments[np.sort(order[:STARTS])], moments[np.sort(order[STARTS:])]
    rollout = ROLLOUT if horizon is None else int(np.clip(horizon, SHORTEST, ROLLOUT))
    budget = subject.count(STEPS, FEWEST_SIMULATIONS)
    tasks = [(quantity, rise) for quantity in _quantities(context) for rise in (True, False)]
    context.say(f"{len(tasks)} searches")
    one = partial(
        _search, agent=subject.agent, world=world, starts=starts, real=real, rollout=rollout, budget=budget, seed=subject.seed
    )  # fmt: skip
    results, figures, flat = {}, {}, dict[str, None]()
    for (quantity, rise), result in zip(tasks, context.mapper(one, tasks), strict=True):
        if result is None:
            flat[quantity.title] = None
        else:
            name = f"{quantity.name}_{'up' if rise else 'down'}"
            results[name], figures[name] = result, Searched.summed_up(result, quantity)
    if not results:
        return WORDS.skipped("flat", names=list(flat))
    arrays = {
        f"{name}/{key}": getattr(result, key)
        for name, result in results.items()
        for key in ("states", "frames", "along")
    }
    np.savez_compressed(context.out / "search.npz", **arrays)
    about: dict[str, Any] = {
        "starts": len(starts),
        "rollout": rollout,
        "budget": budget,
        "horizon": horizon,
        "flat": list(flat),
    }
    table = WORDS.table("searches", [_row(searched) for searched in figures.values()], **about)
    names = feature_names(context.subject.agent.observation_space)
    return WORDS.section((), _checks(figures), [table], _pictures(results, figures, rollout, horizon, names), figures)


def _quantities(context: AgentContext) -> list[Quantity]:
    space, basis = context.subject.agent.action_space, basis_of(context)
    chosen = [quantities.value()]
    if isinstance(space, gym.spaces.Discrete):
        count, names = int(space.n), context.subject.action_names
        named = names if len(names) == count else [""] * count
        chosen += [
            quantities.log_odds(space, action, named[action]) for action in range(min(ACTIONS, count)) if count > 1
        ]
    elif isinstance(space, gym.spaces.Box):
        chosen.append(quantities.action_mean(space, 0))
    if basis is not None:
        chosen += [quantities.loading(basis, component) for component in range(min(COMPONENTS, len(basis)))]
    return [quantities.mean_over_steps(quantity) for quantity in chosen]


def _search(
    task: tuple[Quantity, bool],
    *,
    agent: Agent,
    world: World,
    starts: WorldMoments,
    real: WorldMoments,
    rollout: int,
    budget: int,
    seed: int,
) -> SearchResult | None:
    """Search for a quantity, up or down; return None if it is the same from every start."""
    quantity, rise = task
    rng = np.random.default_rng([seed, rise, *quantity.name.encode()])
    try:
        return search(AgentQuestion(agent, quantity, rollout, world), starts, real, rng, rise=rise, steps=budget)
    except NothingToSearchError:
        return None


def _row(searched: Searched) -> Sequence[Any]:
    shown = "" if searched.interval is None else " ({:.1f} to {:.1f})".format(*searched.interval)
    values = f"{searched.before:.3g}", f"{searched.after:.3g}", f"{searched.moved:.1f}{shown}", f"{searched.random:.1f}"
    verb = WORDS.text("verb", rise=searched.rise)
    return [searched.quantity, verb, *values, f"{searched.best_real:.3g}", f"{searched.realism:.2f}"]


def _checks(figures: Mapping[str, Searched]) -> Iterator[Check]:
    for searched in figures.values():
        passed, about = searched.realism <= 1.0 + SLACK, {"rise": searched.rise, "quantity": searched.quantity}
        yield WORDS.check("realistic", passed, searched.realism, **about)


def _pictures(
    results: Mapping[str, SearchResult],
    figures: Mapping[str, Searched],
    rollout: int,
    horizon: int | None,
    names: Sequence[str],
) -> Iterator[Picture]:
    """Draw the rollouts that move each quantity most, below the recorded ones."""
    for name, result in results.items():
        most = np.argsort(-result.raised, kind="stable")[:SHOWN]
        frames = np.stack([result.frames_before, result.frames], 1)[most].reshape(-1, *result.frames.shape[1:])
        beyond = np.broadcast_to(np.arange(rollout + 1) > (rollout if horizon is None else horizon), frames.shape[:2])
        columns = [f"step {step}" for step in range(rollout + 1)]
        image = strip(
            frames, None, ["recorded\nstart", "found\nstart"] * len(most), columns, "value", beyond, names=names
        )
        yield WORDS.picture("rollouts", image, name, rise=figures[name].rise, quantity=figures[name].quantity)


STEP = Step(WORDS.name, WORDS.title, run, ("recording", "world_model", "quality", "bases"), no_world)
