"""Transfer: what many directions do in a world model against what they do in reality, from the same moments (MiniRun, T1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.agent_calibrations import agent_for
from benchmarks.calibrations import Row
from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import draw_moments
from rlhf_ray.agents.play import play
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.envs.batches import make_batch
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent import concepts
from rlhf_ray.interpret.agent.candidates import separate_directions
from rlhf_ray.interpret.agent.counterfactual import go_on, snapshots_of
from rlhf_ray.interpret.agent.effects import action_shares
from rlhf_ray.interpret.agent.world_model.model import RecurrentWorld
from rlhf_ray.interpret.agent.world_model.played import play_in_world
from rlhf_ray.interpret.agent.world_model.training import WorldTraining, train_world
from rlhf_ray.interpret.agent.world_model.windows import EpisodeWindows
from rlhf_ray.interpret.agent.world_model.world import World
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import random_bases
from rlhf_ray.interpret.directions.interventions import Intervention

AGENTS = ("minirun",)

MINIRUN = "rlhf_ray/MiniRun-v0"
TRAIN, HELD_OUT = range(1500), range(100_000, 100_200)
EPSILON = 0.15
COPIES = 100
BATCHES = 1500
"""As many as the chain trains at effort 1."""
FREE, RANDOM = 8, 10
"""Independent components and random directions, beside one direction for each concept and each action."""
MOMENTS, STEPS = 200, 4


def rows(seeds: Sequence[int]) -> list[Row]:
    """Train a small world model for each of ``seeds``, and measure T1."""
    found = []
    for seed in seeds:
        torch.set_num_threads(1)
        agent = agent_for("minirun", seed)
        batch = make_batch(MINIRUN, COPIES)
        noisy = play(agent, batch, TRAIN, epsilon=EPSILON, seed=seed)
        settings = WorldTraining(batches=BATCHES, seed=seed)
        world = train_world(agent, EpisodeWindows(noisy, settings.length), settings)
        torch.manual_seed(seed)
        untrained = RecurrentWorld(agent.observation_space, agent.action_space, world.shape, agent.digest)
        found += transfer_rows(world, untrained, agent, noisy, seed)
    return found


def transfer_rows(world: World, untrained: RecurrentWorld, agent: Agent, fitted: Episodes, seed: int) -> list[Row]:
    """Measure T1 of a world model.

    Args:
        world: the world model.
        untrained: one that knows nothing, the control.
        agent: the agent.
        fitted: episodes that directions are fitted to.
        seed: seeds draws.
    """
    directions = directions_of(agent, fitted, seed)
    tested = play(agent, make_batch(MINIRUN, COPIES), HELD_OUT, keep_states=True)
    found = transferred([world, untrained], agent, tested, directions, seed)
    trained, control = found[1:]
    told = {
        "directions": len(directions),
        **{f"first {k} steps": _rank(found[0].changed[:, k - 1], trained.changed[:, k - 1]) for k in (1, 2, STEPS)},
        "value": _rank(found[0].values, trained.values),
        "two halves of reality": _rank(found[0].half(0), found[0].half(1)),
        "untrained world": _rank(found[0].changed[:, -1], control.changed[:, -1]),
    }
    rank, signed = told[f"first {STEPS} steps"], _pearson(found[0].shares, trained.shares)
    return [
        Row("T1", f"rank correlation of effects over directions, first {STEPS} steps, seed {seed}", rank, ">= 0.8", rank >= 0.8),
        Row("T1", f"correlation of changed action frequencies, seed {seed}", signed, ">= 0.8", signed >= 0.8),
        Row("T1", f"beside, seed {seed}", told, "told", True),
    ]  # fmt: skip


def directions_of(agent: Agent, episodes: Episodes, seed: int) -> list[tuple[Directions, int]]:
    """Return directions of all sorts: of concepts and of the actions, independent components, random ones."""
    rng = np.random.default_rng([seed, 0x7A])
    values = episodes.memory[:, 1:][episodes.real].astype(np.float64)
    some = np.sort(rng.permutation(len(values))[:6000])
    library = concepts.library(episodes)
    labels = {name: each[:, :-1][episodes.real][some] for name, each in library.items()}
    found = [(basis, 0) for basis in separate_directions(values[some], labels).values()]
    free = directions.fit("ica", values[some], FREE, seed)
    found += [(free, at) for at in range(len(free))]
    found += [(each, 0) for each in random_bases(free, [0], values[some], None, RANDOM, seed)]
    return found


@dataclass(frozen=True)
class Effects:
    """What each of ``d`` directions does, in reality or in a world model.

    Attributes:
        changed: share of the first 1, 2, … steps whose action it changes, ``[d, steps]``.
        each: the same of all steps, by moment, ``[d, moments]``.
        shares: change of how often each action is taken, ``[d, actions]``.
        values: mean change of the value at the last step, ``[d]``.
    """

    changed: FloatArray
    each: FloatArray
    shares: FloatArray
    values: FloatArray

    def half(self, which: int) -> FloatArray:
        """Return the share of changed actions ``[d]`` in every other moment."""
        half: FloatArray = self.each[:, which::2].mean(1)
        return half


def transferred(
    worlds: Sequence[World], agent: Agent, episodes: Episodes, directions: Sequence[tuple[Directions, int]], seed: int
) -> list[Effects]:
    """Set each direction to its midpoint from the same moments on: in reality, then in each of ``worlds``."""
    rng = np.random.default_rng([seed, 0x7B])
    moments = draw_moments(agent, episodes, MOMENTS, rng, context=worlds[0].context)
    snapshots = snapshots_of(episodes, moments.rows, moments.steps)

    def every(interventions: Sequence[Intervention]) -> list[Episodes]:
        real, _ = go_on(agent, lambda n: make_batch(MINIRUN, n), snapshots, interventions=interventions, steps=STEPS)
        return [real, *(play_in_world(world, agent, moments, STEPS, interventions) for world in worlds)]

    plain = every(())
    after = [every([Intervention(basis, [at], "ablate_midpoint")]) for basis, at in directions]
    return [_effects(agent, plain[place], [each[place] for each in after]) for place in range(len(plain))]


def _effects(agent: Agent, plain: Episodes, after: Sequence[Episodes]) -> Effects:
    changed, each, shares, values = [], [], [], []
    before = action_shares(plain, agent.action_space).mean(0)
    for one in after:
        both = plain.real & one.real
        differs = (plain.actions != one.actions) & both
        changed.append([differs[:, :k].sum() / max(both[:, :k].sum(), 1) for k in range(1, STEPS + 1)])
        each.append(differs.sum(1) / np.maximum(both.sum(1), 1))
        shares.append(action_shares(one, agent.action_space).mean(0) - before)
        values.append((one.values - plain.values)[both].mean())
    return Effects(*(np.asarray(of, np.float64) for of in (changed, each, shares, values)))


def _rank(one: FloatArray, other: FloatArray) -> float:
    return round(float(spearmanr(one, other).statistic), 3)


def _pearson(one: FloatArray, other: FloatArray) -> float:
    return round(float(np.corrcoef(one.ravel(), other.ravel())[0, 1]), 3)
