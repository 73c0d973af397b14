"""Pairs of a panel: the same start, once left alone and once with something changed in the agent, its level or its dream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from rlhf_ray.agents.agent import Agent, edits_for
from rlhf_ray.agents.episodes import Episodes, Stretches
from rlhf_ray.agents.episodes import moments_of as contexts_of
from rlhf_ray.agents.play import play, values_at
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.changes import Change, EditWorld
from rlhf_ray.interpret.agent.panel.data import PanelPair, PanelRollout, actions_of, end_of
from rlhf_ray.interpret.agent.world_model.simulate import Simulation, World, simulate
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import random_bases
from rlhf_ray.interpret.directions.interventions import Intervention

LEVELS = 8
"""Levels that each intervention is tried on; the one that shows most is kept."""
CONTROLS = 5
"""Random directions of equal variance that a component is compared with."""
MOMENTS = 24
"""Moments that each edit is tried at."""
STEPS = 48
"""Most steps of a pair."""
DREAMED = 16
"""Steps of a simulated pair."""


def intervention_pairs(
    agent: Agent,
    make_batch: Callable[[int], EnvBatch],
    episodes: Episodes,
    pieces: Stretches,
    basis: Directions,
    site: str,
    most: int,
    told: Callable[[str], None] = lambda text: None,
) -> tuple[list[PanelPair], list[int]]:
    """Hold one component after the other at its mean, in the real environment.

    Returns:
        the pairs of the ``most`` components that change most, and these components.
    """
    starts = pieces.rows[pieces.steps == 0]
    rows = (starts if len(starts) else np.unique(pieces.rows))[:LEVELS]
    levels = episodes.levels[rows]
    values = values_at(agent, episodes, site)[episodes.real]
    batch = make_batch(len(rows))

    def without(directions: Directions, components: Sequence[int]) -> Episodes:
        held = Intervention(directions, components, "ablate_mean", site=site)
        return play(agent, batch, levels, hooks=[held], max_steps=STEPS)

    try:
        plain = play(agent, batch, levels, max_steps=STEPS)
        played = []
        for component in range(len(basis)):
            told(f"playing without {basis.names[component]}")
            played.append((component, without(basis, [component])))
        played.sort(key=lambda one: -float(differences(plain, one[1]).mean()))
        pairs = []
        for component, changed in played[:most]:
            row = int(differences(plain, changed).argmax())
            drawn = random_bases(basis, [component], values, count=CONTROLS)
            others = [without(random, range(len(random))) for random in drawn]
            ends = [int(other_ends(plain, other).sum()) for other in others]
            average = sum(ends) / max(len(ends), 1)
            instead = f"with {len(ends)} random direction{'s' * (len(ends) > 1)} instead: {average:.1f} on average"
            about = (
                f"B ends otherwise on {int(other_ends(plain, changed).sum())} of {len(rows)} level{'s' * (len(rows) > 1)}; "
                f"{instead if ends else 'there is no other direction to compare it with'}. Shown: the level that differs most."
            )
            name = f"{basis.names[component]} held at its mean"
            pairs.append(_pair(agent, batch, name, about, plain, changed, row, pieces.containing(int(rows[row]), 0)))
    finally:
        batch.close()
    return pairs, [component for component, _ in played[:most]]


def edit_pairs(
    agent: Agent, make_batch: Callable[[int], EnvBatch], episodes: Episodes, pieces: Stretches, rng: np.random.Generator
) -> list[PanelPair]:
    """Make each edit that the environment offers; nothing if the recording holds no states to go back to."""
    if not len(episodes.env_states):
        return []
    some = rng.permutation(len(pieces.rows))[:MOMENTS]
    rows, times = pieces.rows[some], pieces.steps[some] + rng.integers(0, pieces.lengths[some])
    states = [episodes.env_states[row][step] for row, step in zip(rows, times, strict=True)]
    start, numbers = (states, episodes.memory[rows, times], times), np.arange(len(rows))
    batch, pairs = make_batch(len(rows)), []
    try:
        plain = play(agent, batch, episodes.levels[rows], start=start, max_steps=STEPS)
        for edit, does in batch.edits.items():
            sight, _ = Change(edit, EditWorld(edit)).at(times, numbers)
            changed = play(agent, batch, episodes.levels[rows], sight=sight, start=start, max_steps=STEPS)
            row = int(differences(plain, changed).argmax())
            about = f"The level of B is edited: {does.rstrip('.')}. Shown: the most different of {len(rows)} moments."
            sample = pieces.containing(int(rows[row]), int(times[row]))
            pairs.append(_pair(agent, batch, edit, about, plain, changed, row, sample))
    finally:
        batch.close()
    return pairs


def simulated_pairs(
    agent: Agent,
    world: World,
    episodes: Episodes,
    pieces: Stretches,
    basis: Directions,
    site: str,
    components: Sequence[int],
) -> list[PanelPair]:
    """Hold components at their means while the agent acts inside the world model."""
    deep = np.flatnonzero(pieces.steps + pieces.lengths > world.context)[:LEVELS]
    if not len(deep):
        return []
    rows = pieces.rows[deep]
    times = np.maximum(pieces.steps[deep], world.context - 1)
    context = contexts_of(agent, episodes, rows, times, context=world.context)
    pairs = []
    start = context.observations, context.actions, context.memory, DREAMED

    @torch.no_grad()
    def dreamed(held: list[Intervention]) -> Simulation:
        return simulate(world, agent, *start, edits=edits_for(held, times))

    plain = dreamed([])
    for component in components:
        changed = dreamed([Intervention(basis, [component], "ablate_mean", site=site)])
        a, b = (_simulated_actions(one, agent) for one in (plain, changed))
        row = int((a != b).reshape(len(a), -1).mean(1).argmax())
        first, second = (
            PanelRollout(
                _frames(one.observations[row, :DREAMED].numpy(), agent), acts[row], one.values[row, :DREAMED].numpy()
            )
            for one, acts in ((plain, a), (changed, b))
        )
        name = f"{basis.names[component]} held at its mean"
        about = f"Shown: of {len(deep)} starts, the one that differs most."
        pairs.append(PanelPair(name, about, True, first, second, int(deep[row])))
    return pairs


def differences(plain: Episodes, changed: Episodes) -> FloatArray:
    """Return how much pairs differ, ``[n]``: the share of different actions, and 1 more for another end."""
    steps = min(plain.actions.shape[1], changed.actions.shape[1])
    both = np.arange(steps)[None] < np.minimum(plain.lengths, changed.lengths)[:, None]
    unlike = ~np.isclose(plain.actions[:, :steps], changed.actions[:, :steps]).reshape(*both.shape, -1).all(-1)
    share: FloatArray = (unlike & both).sum(1) / np.maximum(both.sum(1), 1)
    apart: FloatArray = share + other_ends(plain, changed)
    return apart


def other_ends(plain: Episodes, changed: Episodes) -> BoolArray:
    """Return which pairs end differently, ``[n]``."""
    return np.array([end_of(plain, row) != end_of(changed, row) for row in range(len(plain))], bool)


def _pair(
    agent: Agent,
    batch: EnvBatch,
    name: str,
    about: str,
    plain: Episodes,
    changed: Episodes,
    row: int,
    sample: int | None,
) -> PanelPair:
    def side(of: Episodes) -> PanelRollout:
        length = int(of.lengths[row])
        actions, _ = actions_of(agent, of.actions[row, :length], batch.action_names)
        return PanelRollout(of.observations[row, :length], actions, of.values[row, :length], end_of(of, row))

    return PanelPair(name, about, False, side(plain), side(changed), sample)


def _simulated_actions(simulation: Simulation, agent: Agent) -> Array:
    """Numbers of Discrete actions ``[n, steps]``, or policy actions ``[n, steps, dimensions]``."""
    actions = simulation.actions.numpy()
    numbers: IntArray = actions.argmax(-1)
    return numbers if hasattr(agent.action_space, "n") else actions


def _frames(observations: Array, agent: Agent) -> Array:
    dtype = agent.observation_space.dtype
    return np.clip(observations, 0, 255).round().astype(np.uint8) if dtype == np.uint8 else observations
