"""How the statements about an agent relate: what sets what aside, and what comes first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rlhf_ray.study.screen import first_screen
from rlhf_ray.study.verdict import StudyVerdict, reconcile
from rlhf_ray.study.words import STANCES

from rlhf_ray.interpret.agent.report import RELATIONS
from rlhf_ray.study.section import Section, Statement, Strength

KINDS = ("uses", "holds", "ignores")
USES = {"interventions.needs", "story.both", "story.needs", "story.memory", "counterfactuals.reacts"}


def say(key: str, about: str, strength: Strength = "", listed: str = "") -> Statement:
    kind = "uses" if key in USES else "holds"
    stance = "no" if listed in ("HOLDS, unused", "VALUE ONLY") else STANCES.get(kind, "")
    return Statement(kind, f"{key} {about}", 0.5, about, key, stance, f"{key} {about}", "", strength, listed)  # type: ignore[arg-type]


def told(*statements: Statement) -> tuple[StudyVerdict, list[str], dict[str, list[str]]]:
    names = sorted({statement.key.split(".")[0] for statement in statements})
    sections = [Section(name, name, [each for each in statements if each.key.startswith(f"{name}.")]) for name in names]
    verdict = reconcile(sections, KINDS, relations=RELATIONS)
    screen = first_screen("agent", verdict, sections, RELATIONS)
    return (
        verdict,
        [line.key for line in screen.causes],
        {name: [one.about for one in each] for name, each in screen.lists.items()},
    )


def test_a_memory_that_acts_is_told_before_edits_that_are_as_strong_where_no_concept_explains_it() -> None:
    memory, edits = (
        say("story.memory", "its memory", "strong"),
        [say("counterfactuals.reacts", name, "strong") for name in "abcde"],
    )
    assert told(memory, *edits)[1][0] == "story.memory"
    assert told(memory, say("story.both", "cue", "strong"), *edits)[1][:2] == ["story.both", "counterfactuals.reacts"]


def test_strong_evidence_comes_before_weaker_of_an_earlier_group_and_a_fault_before_all() -> None:
    fault = say("recording.other_levels", "", "")
    memory, weak = say("story.memory", "its memory", "moderate"), say("story.needs", "twin", "weak")
    edits = [say("counterfactuals.reacts", name, "strong") for name in ("alarm", "metal")]
    keys = ["counterfactuals.reacts", "counterfactuals.reacts"]
    assert told(weak, memory, *edits)[1][:3] == [*keys, "story.needs"]  # which explains that the memory acts
    assert told(memory, *edits)[1] == ["story.memory", *keys]
    assert told(fault, weak, *edits)[1] == ["recording.other_levels"]


def test_what_an_edit_changes_takes_no_second_line_and_is_in_no_list_of_what_is_open_or_unused() -> None:
    edit = replace(say("counterfactuals.reacts", "flip_metal", "strong"), changes="metal")
    alarm = replace(say("counterfactuals.reacts", "toggle_alarm", "strong"), changes="alarm")
    assert told(say("story.both", "metal", "strong"), edit, alarm)[1] == ["story.both", "counterfactuals.reacts"]
    assert told(say("story.both", "metal", "weak"), edit)[1] == ["story.both"]
    more = replace(edit, changes="metal; twin")
    assert told(say("story.both", "metal", "weak"), more)[1] == ["counterfactuals.reacts", "story.both"]
    open_ = [say("story.unsettled", name, listed="NOT SETTLED") for name in ("metal", "twin")]
    unused = [say("story.decodable only", name, listed="HOLDS, unused") for name in ("alarm", "room")]
    assert told(edit, alarm, *open_, *unused)[2] == {"HOLDS, unused": ["room"], "NOT SETTLED": ["twin"]}
    assert told(more, *open_)[2] == {"NOT SETTLED": ["metal", "twin"]}  # which of the two is open


@pytest.mark.parametrize("settled", ["interventions.unmatched", "interventions.unsettled"])
def test_a_concept_that_is_not_settled_is_in_no_other_list(settled: str) -> None:
    others = [
        say("story.decodable only", "key", listed="HOLDS, unused"),
        say("story.unsettled", "key", listed="NOT SETTLED"),
        say("story.value_only", "key", listed="VALUE ONLY"),
        say("concepts.holds", "key", listed="HOLDS, untested"),
    ]
    assert told(say(settled, "key", listed="NOT SETTLED"), *others)[2] == {"NOT SETTLED": ["key"]}
    verdict, causes, lists = told(say("interventions.needs", "key"), say(settled, "key", listed="NOT SETTLED"), *others)
    assert (causes, lists) == (["interventions.needs"], {})
    assert len(verdict.explained) == 5


def test_what_one_step_settles_the_other_does_not_leave_open() -> None:
    """Nothing moves a behaviour, so that the story is open; episodes without the concept are the same."""
    unused, open_ = (
        say("interventions.not_needed", "key", listed="HOLDS, unused"),
        say("story.unsettled", "key", listed="NOT SETTLED"),
    )
    assert told(open_, unused)[2] == {"HOLDS, unused": ["key"]}
    assert told(say("interventions.needs", "key", "strong"), say("story.needs", "key", "strong"))[1] == [
        "interventions.needs"
    ]


def test_a_memory_that_changes_nothing_settles_what_taking_a_concept_away_leaves_open() -> None:
    """What is seen at the step may still be needed by way of the memory."""
    inert, open_ = say("story.inert", "", listed="IGNORES"), say("interventions.unsettled", "key", listed="NOT SETTLED")
    unused, needed = (
        say("story.decodable only", "key", listed="HOLDS, unused"),
        say("interventions.needs", "wind", "strong"),
    )
    _, causes, lists = told(inert, open_, unused, needed)
    assert (causes, lists) == (["interventions.needs"], {"HOLDS, unused": ["key"], "IGNORES": [""]})


@pytest.mark.parametrize("key", ["story.elsewhere", "story.follows"])
def test_what_acts_in_the_level_or_follows_another_concept_is_not_listed_as_unused(key: str) -> None:
    where = Statement("holds", key, 0.5, "position", key)
    unused = say("interventions.not_needed", "position", listed="HOLDS, unused")
    assert told(where, unused, say("concepts.holds", "position", listed="HOLDS, untested"))[2] == {}
