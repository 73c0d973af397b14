"""Step: search the world model's states for realistic rollouts that raise or lower the value, an action or a component."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.moments import WorldMoments, draw_moments
from rlhf_ray.data.atomic import write_text
from rlhf_ray.interpret.agent.at_hand import action_names
from rlhf_ray.interpret.agent.attribution import quantities as of
from rlhf_ray.interpret.agent.attribution.drawing import frames_picture
from rlhf_ray.interpret.agent.attribution.looked_at import basis_of, valid_horizon, world_of
from rlhf_ray.interpret.agent.attribution.quantities import Quantity, mean_over_steps
from rlhf_ray.interpret.agent.attribution.question import Question
from rlhf_ray.interpret.agent.search import STEPS, NothingToSearchError, SearchResult, search
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.agent.world_model.world import World
from rlhf_ray.measure.intervals import mean_interval
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step

NAME = "search"
TITLE = "Rollouts that raise or lower a quantity"

EPISODES, REAL, STARTS = 200, 400, 12
"""Episodes; moments that tell what is realistic; starts per search."""
ROLLOUT = 4
"""Steps of a rollout, at most as many as can be trusted, at least 2."""
COMPONENTS, ACTIONS = 2, 5
"""Components and actions that are searched for."""
SHOWN = 3


def why_not(context: AgentContext) -> str | None:
    """Return why there is nothing to search; None otherwise."""
    there = all(context.folders.get(name, context.out / name).exists() for name in ("recording", "world_model"))
    return None if there else "There is no world model of the agent's environment."


def run(context: AgentContext) -> Section:
    """Search for each quantity, up and down."""
    world, horizon, rng = world_of(context), valid_horizon(context), context.rng(NAME)
    assert world is not None, "why_not() said that there is one"
    moments = draw_moments(
        context.subject.agent, split_episodes(context, "test", EPISODES), REAL + STARTS, rng, context=world.context
    )
    order = rng.permutation(len(moments))
    starts, real = moments[np.sort(order[:STARTS])], moments[np.sort(order[STARTS:])]
    steps = ROLLOUT if horizon is None else int(np.clip(horizon, 2, ROLLOUT))
    tasks = [(quantity, rise) for quantity in _asked(context) for rise in (True, False)]
    context.say(f"{len(tasks)} searches")
    budget = max(20, int(STEPS * context.subject.effort))
    function = partial(
        _search,
        agent=context.subject.agent,
        world=world,
        starts=starts,
        real=real,
        rollout=steps,
        budget=budget,
        seed=context.subject.seed,
    )
    found = [(each, quantity) for each, (quantity, _) in zip(context.mapper(function, tasks), tasks, strict=True)]
    results = [each for each, _ in found if each is not None]
    flat = list(dict.fromkeys(quantity.title for each, quantity in found if each is None))
    if not results:
        return Section(NAME, TITLE, skipped=_flat(flat))
    section = _section(
        results, [quantity for each, quantity in found if each is not None], flat, steps, budget, horizon
    )
    write_text(context.out / "search.json", json.dumps(section.values, indent=1) + "\n")
    arrays = {
        f"{name}/{key}": getattr(found, key) for name, found in _named(results) for key in ("states", "frames", "along")
    }
    np.savez_compressed(context.out / "search.npz", **arrays)
    return section


def _asked(context: AgentContext) -> list[Quantity]:
    space = context.subject.agent.action_space
    chosen = [of.value()]
    if isinstance(space, gym.spaces.Discrete):
        count, names = int(space.n), action_names(context)
        named = names if len(names) == count else [""] * count
        chosen += [of.log_odds(space, i, named[i]) for i in range(min(ACTIONS, count)) if count > 1]
    elif isinstance(space, gym.spaces.Box):
        chosen.append(of.action_mean(space, 0))
    if (basis := basis_of(context)) is not None:
        chosen += [of.loading(basis, i) for i in range(min(COMPONENTS, len(basis)))]
    return [mean_over_steps(each) for each in chosen]


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
    """Return what a search found; None if the quantity is the same from every start."""
    quantity, rise = task
    rng = np.random.default_rng([seed, rise, *quantity.name.encode()])
    try:
        return search(Question(agent, quantity, rollout, world), starts, real, rng, rise=rise, steps=budget)
    except NothingToSearchError:
        return None


def _flat(titles: Sequence[str]) -> str:
    """Say which quantities never vary."""
    return f"Nothing to search for, as it is the same from every start: {', '.join(titles)}."


def _named(results: Sequence[SearchResult]) -> list[tuple[str, SearchResult]]:
    return [(f"{found.about['quantity']}_{'up' if found.sign > 0 else 'down'}", found) for found in results]


def _section(
    results: Sequence[SearchResult],
    quantities: Sequence[Quantity],
    flat: Sequence[str],
    rollout: int,
    budget: int,
    horizon: int | None,
) -> Section:
    rows, pictures, values = [], [], {}
    checks = []
    for (name, found), quantity in zip(_named(results), quantities, strict=True):
        raised, chance = float(found.raised.mean()), float(found.raised_at_random.mean())
        interval = mean_interval(found.raised.tolist())
        realism = float(found.realism[found.raised > 0].max(initial=0.0))
        verb = "raise" if found.sign > 0 else "lower"
        values[name] = {
            "raised": raised, "interval": interval, "random": chance, "realism": realism, "before": float(found.before.mean()),
            "after": float(found.after.mean()), "best_real": found.best_real, "spread": found.spread, **found.about,
        }  # fmt: skip
        shown = "" if interval is None else " ({:.1f} to {:.1f})".format(*interval)
        rows.append(
            [quantity.title, verb, f"{found.before.mean():.3g}", f"{found.after.mean():.3g}", f"{raised:.1f}{shown}",
             f"{chance:.1f}", f"{found.best_real:.3g}", f"{realism:.2f}"]
        )  # fmt: skip
        passed = realism <= 1.0 + 1e-4
        checks.append(
            Check(
                f"realistic, {verb} the {quantity.title}",
                passed,
                realism,
                "<= 1",
                "" if passed else "Rollouts left the data.",
            )
        )
        frames = np.stack([found.frames_before, found.frames], 1)[np.argsort(-found.raised, kind="stable")[:SHOWN]]
        frames = frames.reshape(-1, *frames.shape[2:])
        captions = [label for _ in range(len(frames) // 2) for label in ("recorded\nstart", "found\nstart")]
        beyond = (
            np.zeros(frames.shape[:2], bool)
            if horizon is None
            else np.arange(frames.shape[1])[None].repeat(len(frames), 0) > horizon
        )
        image = frames_picture(frames, captions, [f"step {i}" for i in range(rollout + 1)], beyond)
        pictures.append(
            Picture(
                name, image, f"Rollouts from the starts that {verb} the {quantity.title} most, below the recorded ones."
            )
        )
    trusted = ""
    if horizon is not None and horizon < rollout:
        trusted = f" The world model can be trusted for {horizon} of the {rollout} steps; what lies beyond is grey."
    caption = (
        f"Means over {len(results[0].before)} starts of the mean over rollouts of {rollout} steps; {budget} simulations per start "
        "for gradients and for random search. Moved: in standard deviations over real starts (95 % interval). Realism: the largest "
        f"distance to the data, in units of the 95th percentile of real rollouts.{trusted}{f' {_flat(flat)}' if flat else ''}"
    )
    heads = ["quantity", "to", "before", "after", "moved", "random search", "best real start", "realism"]
    return Section(NAME, TITLE, (), checks, [Table(heads, rows, caption)], pictures, values)


STEP = Step(NAME, TITLE, run, needs=("recording", "world_model", "quality", "bases"), why_not=why_not)
