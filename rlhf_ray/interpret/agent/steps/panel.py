"""The panel, a static folder that shows the agent's internals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from rlhf_ray.agents.agent import MEMORY, Agent, edits_for
from rlhf_ray.agents.episodes import Episodes, Stretches, action_inputs, moments_of
from rlhf_ray.agents.play import play, site_of, values_at
from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.changes import Change, edit_world
from rlhf_ray.interpret.agent.panel import write_panel
from rlhf_ray.interpret.agent.panel.data import PanelPair, PanelRollout, actions_of, collect, end_of, pieces_of
from rlhf_ray.interpret.agent.questions import Faithful
from rlhf_ray.interpret.agent.steps.bases import basis_of
from rlhf_ray.interpret.agent.steps.behaviours import behaviours
from rlhf_ray.interpret.agent.steps.clusters import tsne
from rlhf_ray.interpret.agent.steps.world_model import valid_horizon, world_of
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside, split_episodes
from rlhf_ray.interpret.agent.world_model.simulate import Simulation, World, simulate
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import random_bases
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.study.section import Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "panel", "Panel"

SAMPLES, STEPS = 2000, 16
"""Samples at effort 1, and steps of each."""
FEWEST = 64
EPISODES = 400
"""Episodes to draw them from, at effort 1."""
COMPONENTS = 16
PAIRS = 6
"""Components whose interventions are shown."""


LEVELS = 8
"""Levels that each intervention is tried on; the one that shows most is kept."""
CONTROLS = 5
"""Random directions of equal variance that a component is compared with."""
MOMENTS = 24
"""Steps that each edit is tried at."""
LONGEST = 48
"""Most steps of a pair."""
DREAMED = 16
"""Steps of a simulated pair."""


@dataclass(frozen=True)
class OfAttribution:
    """What the panel reads of the attribution's figures."""

    faithful: Faithful


def run(context: AgentContext) -> Section:
    """Write the panel to ``context.out``."""
    subject, rng = context.subject, context.rng(NAME)
    episodes = split_episodes(context, "test", subject.count(EPISODES, FEWEST))
    pieces = pieces_of(episodes, subject.count(SAMPLES, FEWEST), STEPS, rng)
    site = site_of(subject.agent)
    basis = _basis(context, episodes, site)
    known = context.figures("attribution", OfAttribution)
    made = PairMaker(subject.agent, subject.make_batch, episodes, pieces, basis, site)
    pairs, components = made.of_interventions(PAIRS, context.say)
    context.say("editing levels")
    pairs += made.of_edits(rng)
    if (world := world_of(context)) is not None:
        context.say("the same inside the world model")
        pairs += made.simulated(world, components)
    notes = {
        "Agent": f"{subject.agent.name}, {subject.agent.digest}",
        "Environment": subject.environment,
        "Components": f"the {len(basis)} {directions.TITLES[basis.kind]} of its {subject.site_name}, with the report's numbers",
        "Behaviours": "clusters of what is inside and done in these samples; not those of the report",
        "Value and likeliest action": "at each step: gradient times the difference from the mean frame or memory",
        "Seed": str(subject.seed),
    }
    context.say("gradients of the samples")
    data = collect(
        subject.agent,
        episodes,
        pieces,
        basis,
        site,
        rng,
        action_names=list(subject.action_names),
        maps={"t-SNE": partial(tsne, seed=subject.seed)},
        labels=_behaviours(context, episodes),
        faithful=Faithful() if known is None else known.faithful,
        pairs=pairs,
        title=f"{subject.environment.removeprefix('rlhf_ray/')}: the agent's internals",
        notes=notes,
        horizon=valid_horizon(context),
    )
    write_panel(data, context.out)
    size = sum(file.stat().st_size for file in context.out.rglob("*") if file.is_file())
    row = [len(data), int(data.lengths.sum()), len(basis), len(pairs), round(size / 1e6, 1)]
    figures = {"page": "index.html", "samples": len(data), "comparisons": len(pairs), "bytes": size}
    caption = "Open panel/index.html in a browser: it needs no server and no network."
    table = Table(["samples", "steps", "components", "comparisons", "MB"], [row], caption)
    return Section(NAME, TITLE, (), (), [table], (), (), figures)


def _basis(context: AgentContext, episodes: Episodes, site: str) -> Directions:
    """The basis of the step "bases"; without one, independent components. Names are short: "component 3"."""
    basis = basis_of(context) if site == MEMORY else None
    if basis is None:
        inside = values_at(context.subject.agent, episodes, site)[episodes.real].astype(np.float64)
        basis = directions.fit("ica", inside, COMPONENTS, seed=context.subject.seed)
    if basis.kind in directions.LABELLED:
        return basis
    return replace(basis, names=[f"component {number}" for number in range(len(basis))])


def _behaviours(context: AgentContext, episodes: Episodes) -> dict[str, tuple[IntArray, Sequence[str]]]:
    """Behaviours: clusters of windows of what is inside and what is done."""
    agent = context.subject.agent
    actions = action_inputs(episodes.actions, agent.action_space)
    blocks = {"inside": values_at(agent, episodes), "actions": actions}
    clustered = behaviours(blocks, episodes.real, seed=context.subject.seed)
    return {"Behaviour": (clustered.labels, [f"behaviour {number + 1}" for number in range(len(clustered))])}


@dataclass(frozen=True)
class PairMaker:
    """Makes pairs of rollouts that start at recorded steps; ``pieces`` are the panel's samples, ``basis`` is that of the site."""

    agent: Agent
    make_batch: Callable[[int], EnvBatch]
    episodes: Episodes
    pieces: Stretches
    basis: Directions
    site: str

    def of_interventions(
        self, most: int, say: Callable[[str], None] = lambda text: None
    ) -> tuple[list[PanelPair], list[int]]:
        """Hold one component after the other at its mean, in the real environment.

        Returns:
            the pairs of the ``most`` components that change most, and these components.
        """
        agent, episodes, pieces, basis = self.agent, self.episodes, self.pieces, self.basis
        starts = pieces.rows[pieces.steps == 0]
        rows = (starts if len(starts) else np.unique(pieces.rows))[:LEVELS]
        levels = episodes.levels[rows]
        values = values_at(agent, episodes, self.site)[episodes.real]

        def without(directions: Directions, components: Sequence[int]) -> Episodes:
            held = Intervention(directions, components, "ablate_mean", site=self.site)
            return play(agent, batch, levels, hooks=[held], max_steps=LONGEST)

        with closing(self.make_batch(len(rows))) as batch:
            plain = play(agent, batch, levels, max_steps=LONGEST)
            played = []
            for component in range(len(basis)):
                say(f"playing without {basis.names[component]}")
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
                pairs.append(self._pair(batch, name, about, plain, changed, row, pieces.containing(int(rows[row]), 0)))
        return pairs, [component for component, _ in played[:most]]

    def of_edits(self, rng: np.random.Generator) -> list[PanelPair]:
        """Make each edit that the environment offers; nothing if the recording holds no states to go back to."""
        agent, episodes, pieces = self.agent, self.episodes, self.pieces
        if not len(episodes.env_states):
            return []
        some = rng.permutation(len(pieces.rows))[:MOMENTS]
        rows, times = pieces.rows[some], pieces.steps[some] + rng.integers(0, pieces.lengths[some])
        states = [episodes.env_states[row][step] for row, step in zip(rows, times, strict=True)]
        start, numbers = (states, episodes.memory[rows, times], times), np.arange(len(rows))
        pairs = []
        with closing(self.make_batch(len(rows))) as batch:
            plain = play(agent, batch, episodes.levels[rows], start=start, max_steps=LONGEST)
            for edit, does in batch.edits.items():
                sight, _ = Change(edit, edit_world(edit)).at(times, numbers)
                changed = play(agent, batch, episodes.levels[rows], sight=sight, start=start, max_steps=LONGEST)
                row = int(differences(plain, changed).argmax())
                about = (
                    f"The level of B is edited: {does.rstrip('.')}. Shown: the most different of {len(rows)} moments."
                )
                sample = pieces.containing(int(rows[row]), int(times[row]))
                pairs.append(self._pair(batch, edit, about, plain, changed, row, sample))
        return pairs

    def simulated(self, world: World, components: Sequence[int]) -> list[PanelPair]:
        """Hold components at their means while the agent acts inside the world model."""
        agent, pieces = self.agent, self.pieces
        deep = np.flatnonzero(pieces.steps + pieces.lengths > world.context)[:LEVELS]
        if not len(deep):
            return []
        rows = pieces.rows[deep]
        times = np.maximum(pieces.steps[deep], world.context - 1)
        context = moments_of(agent, self.episodes, rows, times, context=world.context)
        pairs = []
        start = context.observations, context.actions, context.memory, DREAMED

        @torch.no_grad()
        def dreamed(held: list[Intervention]) -> Simulation:
            return simulate(world, agent, *start, edits=edits_for(held, times))

        plain = dreamed([])
        for component in components:
            changed = dreamed([Intervention(self.basis, [component], "ablate_mean", site=self.site)])
            acts = [one.actions.numpy() for one in (plain, changed)]
            a, b = (one.argmax(-1) for one in acts) if hasattr(agent.action_space, "n") else acts
            row = int((a != b).reshape(len(a), -1).mean(1).argmax())
            seen = [one.observations[row, :DREAMED].numpy() for one in (plain, changed)]
            if agent.observation_space.dtype == np.uint8:
                seen = [np.clip(frames, 0, 255).round().astype(np.uint8) for frames in seen]
            values = [one.values[row, :DREAMED].numpy() for one in (plain, changed)]
            first, second = map(PanelRollout, seen, (a[row], b[row]), values)
            name = f"{self.basis.names[component]} held at its mean"
            about = f"Shown: of {len(deep)} starts, the one that differs most."
            pairs.append(PanelPair(name, about, True, first, second, int(deep[row])))
        return pairs

    def _pair(
        self, batch: EnvBatch, name: str, about: str, plain: Episodes, changed: Episodes, row: int, sample: int | None
    ) -> PanelPair:
        def side(of: Episodes) -> PanelRollout:
            length = int(of.lengths[row])
            actions, _ = actions_of(self.agent, of.actions[row, :length], batch.action_names)
            return PanelRollout(of.observations[row, :length], actions, of.values[row, :length], end_of(of, row))

        return PanelPair(name, about, False, side(plain), side(changed), sample)


def differences(plain: Episodes, changed: Episodes) -> FloatArray:
    """Return how much pairs differ, ``[n]``: the share of different actions, and 1 more for another end."""
    steps = min(plain.actions.shape[1], changed.actions.shape[1])
    both = np.arange(steps)[None] < np.minimum(plain.lengths, changed.lengths)[:, None]
    unlike = ~np.isclose(plain.actions[:, :steps], changed.actions[:, :steps]).reshape(*both.shape, -1).all(-1)
    share: FloatArray = (unlike & both).sum(1) / np.maximum(both.sum(1), 1)
    return np.asarray(share + other_ends(plain, changed))


def other_ends(plain: Episodes, changed: Episodes) -> BoolArray:
    """Return which pairs end differently, ``[n]``."""
    return np.array([end_of(plain, row) != end_of(changed, row) for row in range(len(plain))], bool)


STEP = Step(NAME, TITLE, run, ("recording", "world_model", "bases", "attribution"), nothing_inside)
