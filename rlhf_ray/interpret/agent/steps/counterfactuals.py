"""What would the agent have done? Edit the level at recorded moments, let it act from there, and compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import Moments, draw_steps
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.counterfactual import Counterfact, counterfact, go_on, repeats, snapshots_of
from rlhf_ray.interpret.agent.edits import changed_by
from rlhf_ray.interpret.agent.effects import CausalEffect, Change, acts_otherwise, effect
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.story import NONE
from rlhf_ray.interpret.agent.subject import WORDS as SHARED
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean
from rlhf_ray.study.figures import DRAWN
from rlhf_ray.study.plots import COLOURS, png
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Section, Statement, Table
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words, estimate

WORDS = Words(__file__)

MOMENTS, FEWEST = 300, 40
"""Moments that levels are edited at."""
STARTS = 4
"""One start of an episode is edited for so many of the moments: what is shown only at first is seldom drawn at random."""
STAGES, OF_STAGE = 8, 20
"""Parts of the episodes by step that effects are compared in, at most, and moments that each needs: with fewer, one moment in
twenty would decide."""
EPISODES = 120
LONGEST = 1000
"""Steps to go on for."""
LARGE, SMALL = 0.1, 0.01
"""Share of its standard deviation from which on the value reacts: less is lost in its noise. Share of the actions from which on the
agent reacts to an edit: one in a hundred is what ties and rounding may change. Whole intervals are compared with both."""
COPIES = 64

When = Literal["at once", "later", "open"]


def reacts_when(first: MeanEstimate) -> When:
    """Return when an agent reacts that acts otherwise: "open" where the first action's interval holds some, and not for sure.

    Args:
        first: share of moments at which the first action differs (Box: the mean distance).
    """
    if first.beyond(SMALL):
        return "at once"
    return "later" if first.high is not None and first.high <= SMALL else "open"


@dataclass(frozen=True)
class Stage:
    """What an edit changes when it is made at some steps of the episodes.

    Attributes:
        first, last: the steps.
        moments: how many moments.
        action: share of them at which the first action differs (Box: the mean distance).
        acts: the same of all steps from there on, see `rlhf_ray.interpret.agent.effects.CausalEffect.acts`.
        ever: share of the moments from which any action differs.
        returns: true return from there.
        value: size of the change of the first value, up or down.

    Intervals are wide enough that those of all stages hold together in 95 % (Bonferroni).
    """

    first: int
    last: int
    moments: int
    action: MeanEstimate
    acts: MeanEstimate
    ever: MeanEstimate
    returns: Change
    value: MeanEstimate | None = None

    @property
    def effect(self) -> MeanEstimate | None:
        """The larger of both changes of what the agent does that are clear of chance; None if it acts the same.

        The return says nothing here: without what the world pays for, it pays less, whatever the agent does.
        """
        acted = [each for each in (self.action, self.acts) if each.beyond(SMALL)]
        return max(acted, key=lambda one: abs(one.mean), default=None)

    @property
    def when(self) -> When:
        """When the agent reacts."""
        return reacts_when(self.action)

    @property
    def size(self) -> float:
        """How large that is; 0 if there is none, and 1 at most."""
        return 0.0 if self.effect is None else min(abs(self.effect.mean), 1.0)


@dataclass(frozen=True)
class EditEffect:
    """What an edit changes, where there is something to edit.

    Attributes:
        about: what the edit does.
        action: share of moments at which the first action differs (Box: the mean distance).
        value: change of the first value.
        value_size: size of that change, up or down: a value can rise at half of the moments and fall at the others.
        value_spread: standard deviation of the value without the edit.
        ever: share of the moments from which any action differs.
        effect: on the episodes from there on.
        stages: the same by the step at which the edit is made.
        box: whether actions are numbers.
        changes: the concepts that the edit changes; see `changed_by`.
    """

    about: str
    action: MeanEstimate
    value: MeanEstimate
    value_size: MeanEstimate
    value_spread: float
    ever: MeanEstimate
    effect: CausalEffect
    stages: list[Stage]
    box: bool = field(metadata=DRAWN)
    changes: list[str] = field(default_factory=list)

    @property
    def when(self) -> When:
        """When the agent reacts."""
        return reacts_when(self.action)

    @property
    def peak(self) -> Stage | None:
        """The steps at which the edit has the largest effect that is clear of chance; None if it has none at any."""
        largest = max(self.stages, key=lambda stage: stage.size, default=None)
        return largest if largest is not None and largest.effect is not None else None

    @property
    def valued(self) -> Stage | None:
        """The steps at which the edit moves the value most, by more than `LARGE` of its spread; None if it does so at none."""
        unit = 1.0 / max(self.value_spread, 1e-9)
        some = [(one.value.mean, one) for one in self.stages if one.value and one.value.scaled(unit).beyond(LARGE)]
        return max(some, key=lambda pair: pair[0], default=(0.0, None))[1]

    @property
    def peaks(self) -> bool:
        """Whether the effect at some steps is more than twice that over all moments, most of it: with its whole interval."""
        whole = 2.0 * max(self.action.mean, self.effect.acts.mean)
        return self.peak is not None and self.peak.effect is not None and self.peak.effect.beyond(whole)


@dataclass(frozen=True)
class EditedLevels:
    """What the step finds.

    Attributes:
        moments: moments of held-out levels.
        repeating: share of the restored states that repeat their episode.
        edits: the effect of each edit; None where it has nothing to change at any moment.
    """

    moments: int
    repeating: float
    edits: dict[str, EditEffect | None]


def why_not(context: AgentContext) -> str | None:
    """Return why nothing can be edited; None otherwise."""
    if "recording" not in context.folders:
        return SHARED.text("no_recording")
    batch = context.subject.make_batch(1)
    try:
        if not batch.edits:
            return WORDS.text("no_edits", environment=batch.name)
        batch.reset([0])
        batch.states()
    except SettingError as error:
        return WORDS.text("no_states", error=error)
    finally:
        batch.close()
    return None


def run(context: AgentContext) -> Section:
    """Make each edit at moments of held-out levels."""
    subject, episodes = context.subject, _episodes(context)
    count = subject.count(MOMENTS, FEWEST)
    drawn = draw_steps(episodes.real, count, context.rng(WORDS.name))
    moments, stages = _with_starts(drawn, min(len(episodes), count // STARTS))
    snapshots = snapshots_of(episodes, moments.rows, moments.steps)
    context.say(f"going on from {len(snapshots)} moments")
    batch = subject.make_batch(min(COPIES, len(snapshots)))
    repeating = float(repeats(batch, episodes, snapshots).mean())
    batch.close()
    plain, _ = go_on(subject.agent, subject.make_batch, snapshots, steps=LONGEST, mapper=context.mapper)
    effects: dict[str, EditEffect | None] = {}
    for edit, about in subject.edits.items():
        context.say(f"edit {edit}")
        pair = counterfact(
            subject.agent, subject.make_batch, snapshots, edit=edit, plain=plain, steps=LONGEST, mapper=context.mapper
        )
        effects[edit] = None if pair is None else _effect(context, edit, about, pair, drawn, stages)
    figures = EditedLevels(len(drawn), repeating, effects)
    known = {edit: one for edit, one in effects.items() if one is not None}
    statements = [statement for edit, one in known.items() for statement in _statements(edit, one)]
    check = WORDS.check("repeats", repeating == 1.0, repeating)
    pictures = [WORDS.picture("edits", _draw_outcomes(known))] if known else []
    return WORDS.section(statements, [check], [_table(effects), *_stages(known)], pictures, figures)


def _episodes(context: AgentContext) -> Episodes:
    """Load episodes of held-out levels with their states, or play them again if the recording left the states out."""
    episodes = split_episodes(context, "test", context.subject.count(EPISODES, FEWEST))
    if len(episodes.env_states):
        return episodes
    return context.subject.play(episodes.levels, max_steps=LONGEST, keep_states=True)


def _with_starts(drawn: Moments, count: int) -> tuple[Moments, list[tuple[int, int]]]:
    """Add the starts of ``count`` episodes to moments drawn at random.

    Also returns stages, each its first and last step: the start, then equal shares of the other moments.
    """
    moments = sorted(
        {*zip(drawn.rows.tolist(), drawn.steps.tolist(), strict=True), *((row, 0) for row in range(count))}
    )
    rows, steps = np.array(moments, np.int64).T
    later = np.sort(steps[steps > 0])
    parts = np.array_split(later, max(1, min(STAGES - 1, len(later) // OF_STAGE))) if len(later) else []
    edges = [0, *(int(part[-1]) for part in parts)]
    stages = [(before + 1, last) for before, last in pairwise(edges) if last > before]
    return Moments(rows, steps), [(0, 0), *stages]


def _effect(
    context: AgentContext, edit: str, about: str, pair: Counterfact, drawn: Moments, stages: Sequence[tuple[int, int]]
) -> EditEffect:
    """Measure an edit: over the moments drawn at random (all, if it changes none of these), and by stage."""
    subject, space, steps = context.subject, context.subject.agent.action_space, pair.snapshots.steps
    random = {*zip(drawn.rows.tolist(), drawn.steps.tolist(), strict=True)}
    chosen = np.array([at in random for at in zip(pair.snapshots.rows.tolist(), steps.tolist(), strict=True)])
    chosen = chosen if chosen.any() else ~chosen
    first, second = pair.plain.actions[:, 0], pair.changed.actions[:, 0]
    box = isinstance(space, gym.spaces.Box)
    moved = np.abs(first - second).reshape(len(first), -1).mean(1) if box else (first != second).astype(np.float64)
    value, acts = pair.changed.values[:, 0] - pair.plain.values[:, 0], acts_otherwise(pair.plain, pair.changed, space)
    ever, groups = (acts > 0).astype(np.float64), subject.groups(pair.plain.levels)
    found = []
    for low, high in stages:
        there, count = (steps >= low) & (steps <= high), len(stages)
        if there.any():
            at_once, from_there, any_later = (
                estimate_mean(each[there], groups[there], tests=count) for each in (moved, acts, ever)
            )
            before, after = pair.plain.returns[there], pair.changed.returns[there]
            returns = Change.of(before, after, groups[there], count)
            valued = estimate_mean(np.abs(value[there]), groups[there], tests=count)
            found.append(Stage(low, high, int(there.sum()), at_once, from_there, any_later, returns, valued))
    at, levels = np.flatnonzero(chosen), groups[chosen]
    action, change, size, later = (
        estimate_mean(values[chosen], levels) for values in (moved, value, np.abs(value), ever)
    )
    sides = pair.plain.select(at), pair.changed.select(at)
    whole = effect(*sides, space, subject.action_names, levels)
    spread, changes = float(pair.plain.values[at, 0].std()), changed_by(edit, *sides)
    return EditEffect(about, action, change, size, spread, later, whole, found, box, changes)


def _statements(edit: str, one: EditEffect) -> Iterator[Statement]:
    values: dict[str, Any] = {"edit": edit, "one": one}
    still = all(each.high is not None and each.high <= NONE for each in (one.action, one.effect.acts))
    value = one.value_size.scaled(1.0 / max(one.value_spread, 1e-9))
    reacts = one.action.beyond(SMALL) or one.effect.acts.beyond(SMALL)
    if one.peak is not None and one.peak.effect is not None and (one.peaks or not reacts):
        largest = one.peak.effect if one.box else one.peak.action if one.peak.when == "at once" else one.peak.ever
        yield WORDS.statement("reacts_at", one.peak.size, strength(largest), **values)
    elif one.when == "at once":
        yield WORDS.statement("reacts", one.action.mean, strength(one.action), **values)
    elif reacts:
        strong = strength(one.effect.acts if one.box else one.ever)
        yield WORDS.statement("reacts_later", one.effect.acts.mean, strong, **values)
    elif still and (value.beyond(LARGE) or one.valued is not None):
        yield WORDS.statement("value_reacts", 1.0 - one.action.mean, **values)
    elif still and value.high is not None and value.high <= LARGE:
        yield WORDS.statement("ignores", 1.0 - one.action.mean, **values)


def _table(effects: Mapping[str, EditEffect | None]) -> Table:
    rows: list[list[Any]] = []
    for edit, one in effects.items():
        if one is None:
            rows.append([edit, 0, *[""] * 5, WORDS.text("nothing")])
            continue
        returns, (cause, share) = one.effect.returns, one.effect.largest_outcome
        reaction = [estimate(change) for change in (one.action, one.value, one.value_size)]
        outcome = f"{cause} {share.before:.0%} to {share.after:.0%}"
        change = [f"{returns.before:.2f} to {returns.after:.2f}", estimate(returns.difference), outcome]
        rows.append([edit, one.effect.episodes, *reaction, *change])
    return WORDS.table("edits", rows)


def _stages(effects: Mapping[str, EditEffect]) -> Iterator[Table]:
    rows = [
        [
            edit, f"{stage.first}–{stage.last}" if stage.last > stage.first else stage.first, stage.moments,
            estimate(stage.action), estimate(stage.acts), f"{stage.returns.before:.2f} to {stage.returns.after:.2f}",
            estimate(stage.returns.difference),
        ]
        for edit, one in effects.items()
        for stage in one.stages
    ]  # fmt: skip
    if rows:
        yield WORDS.table("stages", rows)


def _draw_outcomes(effects: Mapping[str, EditEffect]) -> bytes:
    causes = sorted({cause for one in effects.values() for cause in one.effect.outcomes})
    bars = [
        (label, {cause: getattr(share, side) for cause, share in one.effect.outcomes.items()})
        for edit, one in reversed(list(effects.items()))
        for label, side in ((edit, "after"), ("without", "before"))
    ]
    figure = Figure((7.0, 0.9 + 0.3 * len(bars)), layout="constrained")
    axes, left = figure.subplots(), np.zeros(len(bars))
    for cause, colour in zip(causes, COLOURS * len(causes), strict=False):
        shares = np.array([outcomes.get(cause, 0.0) for _, outcomes in bars])
        axes.barh(range(len(bars)), shares, left=left, color=colour, label=cause)
        left += shares
    axes.set_yticks(range(len(bars)), [label for label, _ in bars], fontsize=8)
    axes.set_xlabel("share of episodes")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return png(figure)


STEP = Step(WORDS.name, WORDS.title, run, needs=("recording",), why_not=why_not)
