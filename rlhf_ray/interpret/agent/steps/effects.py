"""What the agent uses: effects of edits of the world, hidden objects, other observations, other memory and removed directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property

import gymnasium as gym
import numpy as np
import torch

from rlhf_ray.agents.agent import Agent, Hook, Sight, edits_at
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import NotANumberError, Start, play, site_of, values_at
from rlhf_ray.agents.recorded import load_episodes
from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.changes import (
    Change,
    edits,
    hidden_objects,
    masks_at,
    objects_in,
    other_memory,
    other_sights,
)
from rlhf_ray.interpret.agent.steps.concepts import Uses, concept_directions
from rlhf_ray.interpret.agent.steps.header import Achieved
from rlhf_ray.interpret.agent.subject import (
    AgentContext,
    AgentSubject,
    nothing_inside,
    nothing_recorded,
    split_episodes,
)
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import random_bases
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean, share_interval
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Effect, Effects, Section
from rlhf_ray.study.step import Step

NAME, TITLE = "effects", "What it uses"

LEVELS, FEWEST, FRAMES = 60, 20, 100_000
"""New levels at effort 1, and fewest; frames that a change is tried on: fewer levels if episodes are long."""
MOMENTS, LONGEST = 2, 1000
"""Moments of each level at which a change is made once; steps after which an episode is cut."""
NUMBERS = 16
"""Numbers of an observation that are exchanged each alone, at most."""
FITTED, COMPONENTS, CONCEPTS, RANDOM = 4000, 6, 16, 5
"""Steps that directions are fitted to; principal components and concepts that are removed; random directions beside each."""
ACTIONS, RETURN, ONCE, VALUE = COLUMNS = ("actions changed", "return", "return, one moment", "value")
COPIES, ROWS = 64, 1024
"""Episodes that are played at a time; steps that are asked about at a time."""
SAME = 0.1
"""Standard deviations of a Box action's number up to which it counts as the same."""
UNDECIDED = 1e-4
"""Difference of the two largest logits up to which an agent is undecided: which of them it takes is rounding."""

MEANING = """\
actions changed: the share of levels in which any action changes at all (but ties), whether the change is made throughout or in \
one step. return: its change with the change throughout; one moment: with the change in one step, that after which \
most actions differ; in units of {unit:.3g}{why}. value: its mean absolute change at once, in standard deviations. \
{levels} levels."""
EARNS_NOTHING = (
    "Of an agent that earns no more than random actions: at least the largest share of an untrained copy of it."
)
CONTROLS = {
    "inputs": "control: the same share when nothing is changed; of hidden objects, when as much background is painted over.",
    "inside": f"control: the largest share of {RANDOM} random directions that carry as much variance and leave the row's as it is.",
}


def run(context: AgentContext) -> Section:
    """Measure each change on new levels."""
    subject = context.subject
    achieved = context.figures("header", Achieved)
    unit = 1.0 if achieved is None else achieved.unit
    few = load_episodes(context.folders["recording"], most=FEWEST, frames=False)
    most = subject.effort * FRAMES / (MOMENTS + 2) / float(few.lengths.mean())
    count = max(FEWEST, min(subject.count(LEVELS), int(most)))
    levels = np.sort(context.rng("levels").choice(2**31 - 1, count, replace=False))
    plain, notes = _play(subject, levels)
    groups = subject.groups(levels)
    bench = Bench(subject.agent, subject.make_batch, plain, groups, unit, MOMENTS, LONGEST)
    tables = {
        "inputs": ("What it sees, and the world", _inputs(subject, plain, groups)),
        "inside": ("Directions of its hidden state, removed", _inside(context)),
    }
    better = achieved is not None and achieved.earns
    why = ", what it gets more than random actions do" if better else ""
    meaning = MEANING.format(unit=unit, why=why, levels=len(np.unique(groups)))
    least = 0.0 if better else _untrained(context, levels, groups)
    effects = []
    for name, (title, changes) in tables.items():
        rows = []
        for number, change in enumerate(changes):
            context.say(f"{change.name} ({number + 1} of {len(changes)})")
            try:
                row = bench.effect(change)
                rows.append(replace(row, control=max(row.control or 0.0, least)))
            except NotANumberError:
                notes.append(f"{change.name} is left out: with it, the agent's numbers grow without end.")
        control = CONTROLS[name] if better else f"{CONTROLS[name]} {EARNS_NOTHING}"
        rows.sort(key=lambda row: -abs(row.figures[RETURN].mean))
        if rows:
            effects.append(Effects.sort(name, title, COLUMNS, rows, f"{meaning} {control}"))
    every = {row.name: row for table in effects for row in table.rows}
    actions = {name: row.figures[ACTIONS] for name, row in every.items()}
    figures = Uses(unit, actions, {name: row.control or 0.0 for name, row in every.items()})
    return Section(NAME, TITLE, (), effects, (), (), notes, values_of(figures))


def _untrained(context: AgentContext, levels: IntArray, groups: IntArray) -> float:
    """Return the largest share of levels in which an untrained copy's actions change with what it sees; 0 if none can be made."""
    fresh = context.subject.agent.fresh(context.subject.seed + 1)
    if fresh is None:
        return 0.0
    subject = replace(context.subject, agent=fresh)
    plain, _ = _play(subject, levels)
    bench = Bench(fresh, subject.make_batch, plain, groups, 1.0, MOMENTS, LONGEST)
    return max(bench.ever(change).mean for change in _inputs(subject, plain, groups))


def _play(subject: AgentSubject, levels: IntArray) -> tuple[Episodes, list[str]]:
    """Play the levels without a change, and keep states; without states, say so."""
    try:
        return subject.play(levels, max_steps=LONGEST, keep_states=True), []
    except SettingError as error:
        note = (
            f"The world can't go back to a step ({error}): its edits are tried at {MOMENTS + 1} moments of each level."
        )
        return subject.play(levels, max_steps=LONGEST), [note]


def _inputs(subject: AgentSubject, plain: Episodes, groups: IntArray) -> list[Change]:
    """Return the edits, hidden objects, and other observations and memory."""
    space = subject.agent.observation_space
    with closing(subject.make_batch(min(len(plain), 32))) as batch:
        changes = edits(batch, plain)
        if is_image(space) and len(plain.env_states):
            states = [plain.env_states[row][int(length) // 2] for row, length in enumerate(plain.lengths)]
            changes += hidden_objects(objects_in(masks_at(batch, states)), subject.seed)
    partners = _partners(groups)
    vector = len(space.shape or ()) == 1
    names = feature_names(space) if vector and plain.observations.shape[-1] <= NUMBERS else []
    changes += other_sights(plain, partners, names)
    return changes + (other_memory(plain, partners) if subject.agent.memory_size else [])


def _partners(groups: IntArray) -> IntArray:
    """Return for each level another one with other contents, ``[n]``; the next one if there is none."""
    count = len(groups)
    found = (np.arange(count) + 1) % count
    for row in range(count):
        others = np.flatnonzero(groups != groups[row])
        if len(others):
            found[row] = others[np.argmin((others - row - 1) % count)]
    return found


def _inside(context: AgentContext) -> list[Change]:
    """Return the removal of concepts' directions and of principal components."""
    agent = context.subject.agent
    if nothing_inside(context) is not None:
        return []
    site, fitted = site_of(agent), split_episodes(context, "train", context.subject.count(300, 40))
    values = values_at(agent, fitted, site)[fitted.real].astype(np.float64)
    some = np.sort(context.rng(NAME).permutation(len(values))[:FITTED])
    bases = concept_directions(fitted, values, some)[:CONCEPTS]
    principal = directions.fit("pca", values[some], COMPONENTS, context.subject.seed)
    bases += [principal.part([at]) for at in range(len(principal))]
    seed = context.subject.seed
    return [removal(one, site, random_bases(one, [0], values[some], count=RANDOM, seed=seed)) for one in bases]


def removal(basis: Directions, site: str, random: Sequence[Directions] = ()) -> Change:
    """Return the removal of a direction: its score is held halfway between its ends."""

    def held(one: Directions) -> Intervention:
        return Intervention(one, range(len(one)), "ablate_midpoint", site=site)

    controls = tuple(Change(one.names[0], hook=held(one)) for one in random)
    return Change(basis.names[0], hook=held(basis), controls=controls)


@dataclass(frozen=True)
class Bench:
    """Plays the same levels again and again, each time with another change."""

    agent: Agent  # acts, greedily
    make_batch: Callable[[int], EnvBatch]  # makes copies of its environment
    plain: Episodes  # the levels without a change, with observations, and states if the environment can save them
    groups: IntArray  # which levels are the same, ``[n]``: intervals are over these
    unit: float  # what counts as a return of 1
    # single moments at which each level is changed, besides the one where the action changes most at once
    moments: int
    most: int  # steps after which episodes are cut

    def effect(self, change: Change) -> Effect:
        """Measure a change: the share of levels in which any action changes, and the changes of return and value.

        At a moment, the change is made in one step, and the episode is played on. A level's worst moment is that after which the
        most of its actions change. Without states to go back to, a world's edit is only tried at moments drawn beforehand.
        """
        acts, values = self._at_once(change)
        always = self.play(change.throughout(len(self.plain)))
        worst, moved = self._single(change, acts, values)
        ever: BoolArray = np.asarray(acts.any(1))
        if self._builds_up(change):
            ever |= self._otherwise(always).any(1)
            if not change.controls:  # which are tried throughout and at once
                ever |= moved
        figures = {ACTIONS: self._share(ever), RETURN: self._mean((always.returns - self.plain.returns) / self.unit)}
        figures[ONCE] = self._mean((worst - self.plain.returns) / self.unit)
        if values.size:
            real = self.plain.real
            figures[VALUE] = self._mean((values * real).sum(1) / self.plain.lengths / self._value_spread)
        controls = [self.ever(each) for each in change.controls]
        return Effect(change.name, figures, max((share.mean for share in controls), default=self.repeated.mean))

    @cached_property
    def repeated(self) -> MeanEstimate:
        """The share of levels in which an action changes when levels are only played again, and states restored."""
        return self.ever(Change("nothing", lambda batch, seen, *_: seen, world=True))

    def play(
        self, how: tuple[Sight | None, tuple[Hook, ...]], rows: IntArray | None = None, start: Start | None = None
    ) -> Episodes:
        """Play the levels, or those in ``rows``, with a change; from ``start`` on, if that is given."""
        levels = self.plain.levels if rows is None else self.plain.levels[rows]
        with closing(self.make_batch(min(COPIES, len(levels)))) as batch:
            return play(
                self.agent,
                batch,
                levels,
                sight=how[0],
                hooks=how[1],
                max_steps=self.most,
                frames=False,
                start=start,
            )

    def ever(self, change: Change) -> MeanEstimate:
        """Return the share of levels in which any action changes, throughout or at once."""
        ever: BoolArray = np.asarray(self._at_once(change)[0].any(1))
        if self._builds_up(change):
            ever |= self._otherwise(self.play(change.throughout(len(self.plain)))).any(1)
        return self._share(ever)

    def _builds_up(self, change: Change) -> bool:
        """Return whether a change may move an action only after some steps; without memory, the first one moves at once."""
        return bool(change.world or self.agent.memory_size)

    def _single(self, change: Change, acts: BoolArray, values: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Make a change at single moments; return each level's return after the worst, and whether any action changes, ``[n]``."""
        plain, count = self.plain, len(self.plain)
        spaced = (np.arange(self.moments) + 0.5) / self.moments * plain.lengths[:, None]
        chosen = np.concatenate([spaced.astype(np.int64), self._largest(acts, values)[:, None]], 1)
        rows, moments = np.repeat(np.arange(count), chosen.shape[1]), chosen.ravel()
        start, begun = None, np.zeros_like(moments)
        if len(plain.env_states):  # what comes before is as it was
            states = [plain.env_states[row][step] for row, step in zip(rows.tolist(), moments.tolist(), strict=True)]
            start, begun = (states, plain.memory[rows, moments], moments), moments
        played = self.play(change.at(moments, rows), rows, start)
        before = (plain.rewards[rows] * (np.arange(plain.rewards.shape[1]) < begun[:, None])).sum(1)
        after = (played.rewards * (np.arange(played.rewards.shape[1]) < (self.most - begun)[:, None])).sum(1)
        moved = self._otherwise(played, rows, begun).sum(1).reshape(chosen.shape)
        worst = moved.argmax(1)
        return (before + after).reshape(chosen.shape)[np.arange(count), worst], moved.any(1)

    def _largest(self, acts: BoolArray, values: FloatArray) -> IntArray:
        """Return the step of each level at which the change changes most at once, ``[n]``."""
        size = acts.astype(np.float64) if acts.size else np.zeros(self.plain.real.shape)
        if values.size:
            size = size + np.minimum(values / (self._value_spread * 100), 0.5)
        return np.asarray(np.where(self.plain.real, size, -1.0).argmax(1))

    @torch.no_grad()
    def _at_once(self, change: Change) -> tuple[BoolArray, FloatArray]:
        """Ask the agent at every recorded step what it does with the change: whether another action, and the value's change.

        Returns:
            ``[n, T]`` each; the second is empty if the world can't go back to these steps.
        """
        plain, real = self.plain, self.plain.real
        acts, values = np.zeros(real.shape, bool), np.zeros(real.shape)
        if change.world and not len(plain.env_states):
            return acts, np.zeros((len(plain), 0))
        rows, steps = np.nonzero(real)
        size = COPIES if change.world else ROWS
        with ExitStack() as stack:
            batch = stack.enter_context(closing(self.make_batch(COPIES))) if change.world else None
            for first in range(0, len(rows), size):
                at, when = rows[first : first + size], steps[first : first + size]
                seen = plain.observations[at, when]
                if batch is not None:
                    copies = np.minimum(np.arange(batch.n), len(at) - 1)
                    seen = batch.restore([plain.env_states[at[copy]][when[copy]] for copy in copies])
                if change.sight is not None:
                    seen = change.sight(batch, seen, np.arange(len(at)), at, when)[: len(at)]
                hooks = [] if change.hook is None else [change.once or change.hook]
                edits = edits_at(hooks, when, at)
                step = self.agent.step(torch.as_tensor(seen), torch.as_tensor(plain.memory[at, when]), edits=edits)
                acts[at, when] = self._differ(step.logits.numpy(), plain.logits[at, when]) & self._decided[at, when]
                values[at, when] = np.abs(step.value.numpy() - plain.values[at, when])
        return acts, values

    def _otherwise(self, after: Episodes, rows: IntArray | None = None, begun: IntArray | None = None) -> BoolArray:
        """Return at which steps the levels, or those in ``rows``, are acted in otherwise, ``[n, T]``; False after either's end.

        ``begun``: the step of each at which ``after`` goes on (None: the first).
        """
        plain, steps = self.plain, after.actions.shape[1]
        rows = (np.arange(len(plain)) if rows is None else rows)[:, None]
        at = np.arange(steps) + (0 if begun is None else begun[:, None])
        there = np.minimum(at, plain.actions.shape[1] - 1)
        both = (at < plain.lengths[rows]) & after.real & self._decided[rows, there]
        first, second = (
            of.reshape(*both.shape, -1).astype(np.float64) for of in (plain.actions[rows, there], after.actions)
        )
        apart = np.abs(first - second) > (0.0 if self._tolerance is None else self._tolerance)
        return np.asarray(apart.any(2) & both)

    @cached_property
    def _decided(self) -> BoolArray:
        """Where the agent prefers one action, ``[n, T]``."""
        if not isinstance(self.agent.action_space, gym.spaces.Discrete) or self.plain.logits.shape[2] < 2:
            return self.plain.real
        best = np.sort(self.plain.logits, axis=2)
        return np.asarray(best[..., -1] - best[..., -2] > UNDECIDED)

    def _differ(self, logits: FloatArray, plain: FloatArray) -> BoolArray:
        if self._tolerance is None:
            return np.asarray(logits.argmax(1) != plain.argmax(1))
        size = logits.shape[1] // 2
        spread = np.maximum(self.plain.logits[self.plain.real][:, :size].std(0), 1e-6)
        return np.asarray((np.abs(logits - plain)[:, :size] > SAME * spread).any(1))

    @cached_property
    def _tolerance(self) -> FloatArray | None:
        if isinstance(self.agent.action_space, gym.spaces.Discrete):
            return None
        taken = self.plain.actions[self.plain.real].reshape(int(self.plain.lengths.sum()), -1).astype(np.float64)
        return np.asarray(SAME * np.maximum(taken.std(0), 1e-6))

    @cached_property
    def _value_spread(self) -> float:
        return max(float(self.plain.values[self.plain.real].std()), 1e-6)

    def _share(self, levels: BoolArray) -> MeanEstimate:
        count = len(np.unique(self.groups))
        return share_interval(estimate_mean(levels.astype(np.float64), self.groups).mean * count, count)

    def _mean(self, values: FloatArray) -> MeanEstimate:
        return estimate_mean(values, self.groups)


STEP = Step(NAME, TITLE, run, needs=("recording", "header"), why_not=nothing_recorded)
