"""What would the agent have done? Edit the level at recorded moments, let it act from there, and compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import draw_steps
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.counterfactual import Counterfact, counterfact, go_on, repeats, snapshots_of
from rlhf_ray.interpret.agent.effects import CausalEffect, effect
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.subject import WORDS as SHARED
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.measure.intervals import MeanEstimate, bootstrap
from rlhf_ray.study.figures import DRAWN
from rlhf_ray.study.plots import COLOURS, png
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Section, Statement, Table
from rlhf_ray.study.step import Step
from rlhf_ray.study.words import Words, estimate

WORDS = Words(__file__)

MOMENTS, FEWEST = 300, 40
"""Moments that levels are edited at."""
EPISODES = 120
LONGEST = 1000
"""Steps to go on for."""
LARGE, SMALL = 0.1, 0.01
"""Share of moments whose action changes at once from which on the agent reacts to an edit, and share up to which it does not. The
value reacts if it changes by more than `LARGE` of its standard deviation."""
COPIES = 64


@dataclass(frozen=True)
class EditEffect:
    """What an edit changes, where there is something to edit.

    Attributes:
        about: what the edit does.
        action: share of moments at which the first action differs (Box: the mean distance).
        value: change of the first value.
        value_size: size of that change, up or down: a value can rise at half of the moments and fall at the others.
        value_spread: standard deviation of the value without the edit.
        effect: on the episodes from there on.
        box: whether actions are numbers.
    """

    about: str
    action: MeanEstimate
    value: MeanEstimate
    value_size: MeanEstimate
    value_spread: float
    effect: CausalEffect
    box: bool = field(metadata=DRAWN)


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
    moments = draw_steps(episodes.real, subject.count(MOMENTS, FEWEST), context.rng(WORDS.name))
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
        effects[edit] = None if pair is None else _effect(context, about, pair)
    figures = EditedLevels(len(snapshots), repeating, effects)
    known = {edit: one for edit, one in effects.items() if one is not None}
    statements = [statement for edit, one in known.items() for statement in _statements(edit, one)]
    check = WORDS.check("repeats", repeating == 1.0, repeating)
    pictures = [WORDS.picture("edits", _draw_outcomes(known))] if known else []
    return WORDS.section(statements, [check], [_table(effects)], pictures, figures)


def _episodes(context: AgentContext) -> Episodes:
    """Load episodes of held-out levels with their states, or play them again if the recording left the states out."""
    episodes = split_episodes(context, "test", context.subject.count(EPISODES, FEWEST))
    if len(episodes.env_states):
        return episodes
    return context.subject.play(episodes.levels, max_steps=LONGEST, keep_states=True)


def _effect(context: AgentContext, about: str, pair: Counterfact) -> EditEffect:
    subject, levels = context.subject, pair.plain.levels
    first, second = pair.plain.actions[:, 0], pair.changed.actions[:, 0]
    box = isinstance(subject.agent.action_space, gym.spaces.Box)
    moved = np.abs(first - second).reshape(len(first), -1).mean(1) if box else first != second
    value = pair.changed.values[:, 0] - pair.plain.values[:, 0]
    action, change, size = (
        bootstrap(values.astype(np.float64), levels, subject.seed) for values in (moved, value, np.abs(value))
    )
    later = effect(pair.plain, pair.changed, subject.agent.action_space, subject.action_names, subject.seed)
    return EditEffect(about, action, change, size, float(pair.plain.values[:, 0].std()), later, box)


def _statements(edit: str, one: EditEffect) -> Iterator[Statement]:
    values: dict[str, Any] = {"edit": edit, "one": one}
    if one.action.mean >= LARGE:
        yield WORDS.statement("reacts", one.action.mean, strength(one.action), **values)
    elif one.action.mean > SMALL:
        return
    elif one.effect.acts.mean > SMALL:
        yield WORDS.statement("reacts_later", one.effect.acts.mean, strength(one.effect.acts), **values)
    elif one.value_size.mean > LARGE * max(one.value_spread, 1e-9):
        yield WORDS.statement("value_reacts", 1.0 - one.action.mean, **values)
    elif one.value.holds_zero:
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
