"""Both agents play the same levels: true returns, and why episodes end."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rlhf_ray.interpret.agent.comparison.pair import LEVELS, LONGEST, AgentPair, text
from rlhf_ray.interpret.agent.effects import effect
from rlhf_ray.measure.intervals import bootstrap
from rlhf_ray.study.section import Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "played"
TITLE = "What they reach on the same levels"


def run(context: StepContext[AgentPair]) -> Section:
    """Play the same levels."""
    pair = context.subject
    levels = pair.levels(0, pair.count(LEVELS, 20))
    how: dict[str, Any] = {"max_steps": LONGEST, "frames": False}
    context.say("both play the same levels")
    first, second = (pair.play(agent, levels, **how) for agent in pair.agents)
    random = pair.play(pair.first, levels, epsilon=1.0, **how)
    found = effect(second, first, pair.space, pair.action_names, pair.seed)
    chance = effect(second, random, pair.space, pair.action_names, pair.seed)
    one, other = pair.names
    mean = {who: bootstrap(of.returns, levels, pair.seed) for who, of in ((one, first), (other, second))}
    rows: list[list[Any]] = [
        [
            "true return",
            text(mean[one]),
            text(mean[other]),
            text(found.returns.difference),
            f"{chance.returns.after:.2f}",
        ],
        [
            "steps",
            f"{found.lengths.after:.1f}",
            f"{found.lengths.before:.1f}",
            text(found.lengths.difference, 1),
            f"{chance.lengths.after:.1f}",
        ],
    ]
    for head, changes, others in (
        ("ends by", found.outcomes, chance.outcomes),
        ("action", found.actions, chance.actions),
    ):
        for name, change in changes.items():
            beside = f"{others[name].after:.2f}" if name in others else "0.00"
            rows.append(
                [
                    f"{head} {name}",
                    f"{change.after:.2f}",
                    f"{change.before:.2f}",
                    text(change.difference),
                    beside,
                ]
            )
    caption = (
        f"Both play the same {len(levels)} levels greedily. Difference: first minus second, level by level, with 95 % interval. "
        "Shares of episodes, and of an episode's steps (Box: mean actions)."
    )
    difference = found.returns.difference
    told = "the same within the interval" if difference.holds_zero else f"a difference of {text(difference)}"
    said = (
        f"On the same {len(levels)} levels {one} reaches a true return of {text(mean[one])} and {other} of {text(mean[other])}: "
        f"{told}; random actions reach {chance.returns.after:.2f}."
    )
    values = {
        "levels": len(levels),
        "returns": {"first": asdict(mean[one]), "second": asdict(mean[other]), "random": chance.returns.after},
        "difference": asdict(found),
    }
    heads = ("", one, other, "difference", "random actions")
    return Section(NAME, TITLE, [Statement("uses", said)], tables=[Table(heads, rows, caption)], values=values)


STEP = Step(NAME, TITLE, run)
