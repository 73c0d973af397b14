"""Step: what would the agent have done? Edit the level at recorded moments, let it act from there, and compare."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.counterfactual import Counterfact, Snapshots, counterfact, go_on, repeats, snapshots_of
from rlhf_ray.interpret.agent.effects import CausalEffect, Change, effect
from rlhf_ray.interpret.agent.splits import split_episodes
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.measure.intervals import bootstrap
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step

NAME = "counterfactuals"
TITLE = "What the agent does in edited levels"

MOMENTS, FEWEST = 300, 40
"""Moments that levels are edited at."""
EPISODES = 120
LONGEST = 1000
"""Steps to go on for."""
LARGE = 0.1
"""Share of moments whose action changes at once from which on the agent reacts to an edit."""


def why_not(context: AgentContext) -> str | None:
    """Return why nothing can be edited; None otherwise."""
    if "recording" not in context.folders:
        return "There is no recording of the agent."
    batch = context.subject.make_batch(1)
    try:
        if not batch.edits:
            return f"{batch.name} offers no edits of its levels."
        batch.reset([0])
        batch.states()
    except SettingError as error:
        return f"Levels can't be edited at recorded moments: {error}"
    finally:
        batch.close()
    return None


def run(context: AgentContext) -> Section:
    """Make each edit at moments of held-out levels."""
    agent, space = context.subject.agent, context.subject.agent.action_space
    episodes = _episodes(context)
    snapshots = _draw(context, episodes)
    context.say(f"going on from {len(snapshots)} moments")
    batch = context.subject.make_batch(min(64, len(snapshots)))
    names, edits = list(batch.action_names), dict(batch.edits)
    same = repeats(batch, episodes, snapshots)
    batch.close()
    plain, _ = go_on(agent, context.subject.make_batch, snapshots, steps=LONGEST, mapper=context.mapper)
    rows, values, statements = [], {}, []
    for edit, about in edits.items():
        context.say(f"edit {edit}")
        found = counterfact(
            agent, context.subject.make_batch, snapshots, edit=edit, plain=plain, steps=LONGEST, mapper=context.mapper
        )
        if found is None:
            rows.append([edit, 0, "", "", "", "", "", "nothing to change at these moments"])
            continue
        whole = effect(found.plain, found.changed, space, names, context.subject.seed)
        at_once = _at_once(found, space, context.subject.seed)
        rows.append(_row(edit, whole, at_once))
        values[edit] = {
            "about": about,
            "moments": whole.episodes,
            "first_action_changed": at_once["action"].mean,
            "value": at_once["value"].mean,
            "value_size": at_once["size"].mean,
            **whole.to_json(),
        }
        statements += _statements(edit, whole, at_once, isinstance(space, gym.spaces.Box))
    write_text(context.out / "counterfactuals.json", json.dumps(values, indent=1) + "\n")
    share = float(same.mean())
    says = f"{1 - share:.0%} of the restored states don't repeat their episode: don't trust these comparisons."
    checks = [
        Check("restored states repeat their episode", share == 1.0, share, "all of them", "" if share == 1 else says)
    ]
    pictures = (
        [Picture("edits", _figure(values), "How often episodes end how, without and with each edit.")] if values else []
    )
    return Section(NAME, TITLE, statements, checks, [_table(rows)], pictures, {"moments": len(snapshots), **values})


def _episodes(context: AgentContext) -> Episodes:
    """Load episodes of held-out levels with their states, or play them again if the recording left the states out."""
    most = max(FEWEST, round(EPISODES * context.subject.effort))
    episodes = split_episodes(context, "test", most)
    if len(episodes.env_states):
        return episodes
    batch = context.subject.make_batch(min(16, len(episodes)))
    try:
        return play(context.subject.agent, batch, episodes.levels, max_steps=LONGEST, keep_states=True)
    finally:
        batch.close()


def _draw(context: AgentContext, episodes: Episodes) -> Snapshots:
    at = np.argwhere(episodes.real)
    count = max(FEWEST, round(MOMENTS * context.subject.effort))
    chosen = at[np.sort(context.rng(NAME).permutation(len(at))[:count])]
    return snapshots_of(episodes, chosen[:, 0], chosen[:, 1])


def _at_once(found: Counterfact, space: gym.Space[Any], seed: int) -> dict[str, Any]:
    """Return how the agent's first action and value differ: share of other actions (Box: mean distance), value, and its size.

    A value can rise in half of the moments and fall in the others, so its mean change alone doesn't tell whether it reacts.
    """
    first, second = found.plain.actions[:, 0], found.changed.actions[:, 0]
    if isinstance(space, gym.spaces.Discrete):
        moved = (first != second).astype(np.float64)
    else:
        moved = np.abs(first - second).reshape(len(first), -1).mean(1).astype(np.float64)
    levels = found.plain.levels
    value = found.changed.values[:, 0] - found.plain.values[:, 0]
    return {
        "action": bootstrap(moved, levels, seed),
        "value": bootstrap(value, levels, seed),
        "size": bootstrap(np.abs(value), levels, seed),
        "spread": float(found.plain.values[:, 0].std()),
    }


def _row(edit: str, whole: CausalEffect, at_once: dict[str, Any]) -> list[Any]:
    name, outcome = _most(whole)
    return [
        edit,
        whole.episodes,
        at_once["action"].text(),
        at_once["value"].text(),
        at_once["size"].text(),
        f"{whole.returns.before:.2f} to {whole.returns.after:.2f}",
        whole.returns.difference.text(),
        f"{name} {outcome.before:.0%} to {outcome.after:.0%}",
    ]


def _most(whole: CausalEffect) -> tuple[str, Change]:
    return max(whole.outcomes.items(), key=lambda item: abs(item[1].difference.mean))


def _statements(edit: str, whole: CausalEffect, at_once: dict[str, Any], box: bool) -> list[Statement]:
    acted, value, size = at_once["action"], at_once["value"], at_once["size"]
    name = f"the edit “{edit}”"
    what = f"at {whole.episodes} moments, against the same without it"
    differs = f"its first action {'moves by' if box else 'differs in a share of'}"
    if acted.mean >= LARGE:
        text = f"The agent reacts to {name}: {what}, {differs} {acted.text()}, and its value changes by {value.text()}."
        return [Statement("uses", text, acted.mean)]
    if acted.mean > 0.01:
        return []
    goes = f"its actions {'move by' if box else 'differ in a share of'} {whole.acts.text()}"
    later = f"{differs} {acted.text()}, and over all steps from there {goes}"
    if whole.acts.mean > 0.01:
        return [Statement("uses", f"The agent reacts to {name} later, not at once: {what}, {later}.", whole.acts.mean)]
    if size.mean > LARGE * max(at_once["spread"], 1e-9):
        text = (
            f"The agent's value reacts to {name}, and its actions don't: {what}, the value changes by {size.text()} up or down; "
            f"{later}."
        )
        return [Statement("holds", text, 1.0 - acted.mean)]
    if value.holds_zero:
        return [Statement("ignores", f"The agent does not react to {name}: {what}, {later}.", 1.0 - acted.mean)]
    return []


def _table(rows: list[list[Any]]) -> Table:
    heads = [
        "edit", "moments", "acts differently at once", "change of value", "its size", "true return from there", "its change",
        "outcome that changes most",
    ]  # fmt: skip
    caption = (
        "Each edit is made at recorded moments of held-out levels, and the agent goes on greedily; compared with going on from the "
        "same state without the edit. Moments at which an edit has nothing to change don't count. 95 % intervals, by level. For "
        "Box actions, the first action's mean distance stands for the share of other actions."
    )
    return Table(heads, rows, caption)


def _figure(values: dict[str, Any]) -> bytes:
    causes = sorted({cause for each in values.values() for cause in each["outcomes"]})
    colours = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
    figure = Figure((7.0, 0.9 + 0.6 * len(values)), layout="constrained")
    axes = figure.subplots()
    labels, at = [], 0
    for edit, each in reversed(values.items()):
        for side in ("after", "before"):
            left = 0.0
            for number, cause in enumerate(causes):
                share = each["outcomes"].get(cause, {"before": 0.0, "after": 0.0})[side]
                axes.barh(at, share, left=left, color=colours[number % len(colours)], label=cause if not at else None)
                left += share
            labels.append(edit if side == "after" else "without")
            at += 1
    axes.set_yticks(range(at), labels, fontsize=8)
    axes.set_xlabel("share of episodes")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return png(figure)


STEP = Step(NAME, TITLE, run, needs=("recording",), why_not=why_not)
