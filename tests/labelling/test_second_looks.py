"""Answers to look at again: which are listed, and what keeping and changing them stores."""

import json
from pathlib import Path

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.labelling import second_looks
from rlhf_ray.labelling.desk import Desk
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.settings import LabellingSettings, RewardModelSettings
from rlhf_ray.store import Event, PreferenceStore
from tests.labelling.office import SECRET, Office, films_of, pairs_of
from tests.made_up import FORCES, VECTORS, some_comparisons

REVIEWS = ("a" * 32, "b" * 32, "c" * 32)

pytestmark = pytest.mark.anyio


async def listed(office: Office) -> list[tuple[str, float]]:
    """The answers to look at again, by pair."""
    pair_of = {row["event_id"]: row["pair_id"] for row in office.rows()}
    return [(pair_of[doubt.event_id], doubt.chance) for doubt in await office.desk.doubts()]


def reopened(office: Office, pairs: Pairs) -> Office:
    """As after a restart of the page."""
    again = Office(Path(office.store.path))
    again.desk.show(films_of(pairs))
    return again


async def test_the_likeliest_wrong_come_first_as_they_were_shown(office: Office) -> None:
    pairs = pairs_of(4)
    of = pairs.ids
    await office.answer_all(pairs, "bob")
    assert await office.desk.doubts() == []
    office.desk.suspect({(of[0], "bob"): 0.6, (of[2], "bob"): 0.9, (of[3], "ada"): 0.95, ("none", "bob"): 1.0})
    doubts = await office.desk.doubts()
    rows = {row["event_id"]: row for row in office.rows()}
    assert [(rows[one.event_id]["pair_id"], one.chance) for one in doubts] == [(of[2], 0.9), (of[0], 0.6)]
    for one in doubts:
        row = rows[one.event_id]
        assert (one.annotator, one.answer) == ("bob", "left")
        left, right = ("right_id", "left_id") if row["presented_swapped"] else ("left_id", "right_id")
        assert (one.left.id, one.right.id) == (row[left], row[right])


async def test_a_kept_answer_does_not_come_back_and_a_changed_one_counts(office: Office) -> None:
    pairs = pairs_of(3)
    suspicions = {(pair, "bob"): 0.9 - i / 10 for i, pair in enumerate(pairs.ids)}
    await office.answer_all(pairs, "bob")
    office.desk.suspect(suspicions)
    kept, changed, _ = await office.desk.doubts()
    before = office.store.load()
    await office.desk.review("ada", REVIEWS[0], kept.event_id, "left")
    await office.desk.review("ada", REVIEWS[1], changed.event_id, "right")
    await office.desk.review("ada", REVIEWS[1], changed.event_id, "right")  # sent again
    assert await listed(office) == [(pairs.ids[2], pytest.approx(0.7))]
    after = office.store.load()
    assert before is not None
    said = [dict(zip(one.pairs.ids, one.preferences.tolist(), strict=True)) for one in (before, after)]
    assert [said[1][pair] - said[0][pair] for pair in pairs.ids] == [0, 1 - 2 * said[0][pairs.ids[1]], 0]
    assert set(after.annotators) == {"bob"}  # whoever changed it

    again = reopened(office, pairs)
    again.desk.suspect(suspicions)
    assert await listed(again) == [(pairs.ids[2], pytest.approx(0.7))]
    await again.desk.review("ada", REVIEWS[1], changed.event_id, "right")  # sent again
    with pytest.raises(ValueError, match="belongs to another event"):
        await again.desk.review("ada", REVIEWS[1], changed.event_id, "equal")
    first, second = [row for row in office.rows() if row["kind"] == "supersede"]
    extra = json.loads(second["extra"])
    assert (extra["reviewed_by"], extra["before"], extra["answer"]) == ("ada", "left", "right")
    assert json.loads(first["extra"])["answer"] == "left"
    assert (first["annotator"], first["annotator_type"], first["run_id"]) == ("bob", "human", "run")


async def test_a_review_can_be_changed_and_an_annotator_can_still_undo(office: Office) -> None:
    pairs = pairs_of(1)
    await office.answer_all(pairs, "bob")
    office.desk.suspect({(pairs.ids[0], "bob"): 0.9})
    (doubt,) = await office.desk.doubts()
    await office.desk.review("ada", REVIEWS[0], doubt.event_id, "right")
    await office.desk.review("ada", REVIEWS[1], REVIEWS[0], "equal")
    assert office.store.load().preferences.tolist() == [0.5]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="changed meanwhile"):
        await office.desk.review("ada", REVIEWS[2], doubt.event_id, "left")
    shown = await office.desk.undo("bob", "d" * 32)
    assert shown is not None
    assert office.store.load() is None
    await office.give("bob", shown, "left")
    assert await listed(office) == [(pairs.ids[0], 0.9)]  # an answer that nobody has looked at again


async def test_a_page_undoes_its_own_answer_also_once_the_owner_has_changed_it(office: Office) -> None:
    pairs = pairs_of(2)
    await office.ask(0, pairs)
    events = {}
    for shown in await office.desk.next("bob", 2, []):
        events[office.desk._leases.read(shown.lease, "bob").shown.key] = await office.give("bob", shown, "left")
    office.desk.suspect({(pairs.ids[1], "bob"): 0.9})
    await office.desk.review("ada", REVIEWS[0], events[pairs.ids[1]], "right")
    await office.desk.review("ada", REVIEWS[1], REVIEWS[0], "equal")
    for pair, left in ((pairs.ids[1], (pairs.ids[0],)), (pairs.ids[0], ())):
        again = await office.desk.undo("bob", pair, events[pair])
        assert office.desk._leases.read(again.lease, "bob").shown.key == pair
        assert office.queue.left() == 2 - len(left)
        assert tuple(office.store.snapshot().labels["pair_id"].to_pylist()) == left
    assert next(row["target"] for row in office.rows() if row["kind"] == "retract") == REVIEWS[1]


async def test_what_is_not_in_doubt_cannot_be_changed(office: Office) -> None:
    pairs = pairs_of(2)
    await office.answer_all(pairs, "bob")
    office.desk.suspect({(pairs.ids[0], "bob"): 0.9})
    events = {row["pair_id"]: row["event_id"] for row in office.rows()}
    with pytest.raises(ValueError, match="no longer in doubt"):
        await office.desk.review("ada", REVIEWS[0], events[pairs.ids[1]], "right")
    office.local.broken = True
    with pytest.raises(OSError, match="no space"):
        await office.desk.review("ada", REVIEWS[0], events[pairs.ids[0]], "right")
    office.local.broken = False
    await office.desk.review("ada", REVIEWS[0], events[pairs.ids[0]], "right")
    assert sum(row["kind"] == "supersede" for row in office.rows()) == 1


async def test_only_peoples_answers_whose_clips_can_be_shown_are_listed(office, monkeypatch):
    pairs = pairs_of(30)
    suspicions = {(pair, who): 0.8 for pair in pairs.ids for who in ("bob", "oracle")}
    await office.answer_all(pairs, "bob")
    left, right = pairs.left.ids(), pairs.right.ids()
    scripted = [Event(f"s{i}", "label", "oracle", left[i], right[i], 1.0, annotator_type="scripted") for i in (0, 1)]
    office.store.record(scripted)
    office.desk.suspect(suspicions)
    assert len(await office.desk.doubts()) == second_looks.MOST
    assert {one.annotator for one in await office.desk.doubts()} == {"bob"}
    restarted = Desk(office.local, SECRET, LabellingSettings(), fps=30)
    restarted.suspect(suspicions)
    assert await restarted.doubts() == []  # films of vectors are lost
    restarted.show(films_of(pairs)[:1] + films_of(pairs)[30:31])
    restarted.suspect(suspicions)
    assert len(await restarted.doubts()) == 1


async def test_clips_of_images_are_filmed_again(office: Office) -> None:
    pairs = pairs_of(2, images=True)
    await office.answer_all(pairs, "bob")
    restarted = Desk(office.local, SECRET, LabellingSettings(), fps=30)
    restarted.suspect({(pair, "bob"): 0.8 for pair in pairs.ids})
    doubts = await restarted.doubts()
    assert len(doubts) == 2
    assert (await restarted.film(doubts[0].left.id) or b"")[:4] == b"RIFF"


async def test_a_planted_mistake_is_found_and_the_next_fit_uses_what_the_owner_says(office: Office) -> None:
    given = some_comparisons(300, 10, seed=3)
    true = given.preferences.copy()
    apart = np.abs(given.pairs.left.returns() - given.pairs.right.returns())
    planted = int(apart.argmax())
    given.preferences[planted] = 1 - true[planted]
    names = given.pairs.left.ids(), given.pairs.right.ids()
    pair = given.pairs.ids[planted]
    events = [
        Event(f"{i:032x}", "label", "bob", names[0][i], names[1][i], float(preference))
        for i, preference in enumerate(given.preferences)
    ]
    office.store.record(events, Fragments.concatenate([given.pairs.left, given.pairs.right]))
    settings = RewardModelSettings(hidden=(8,))
    trainer = RewardTrainer(settings, VECTORS, FORCES, held_out_share=0.1, seed=0)
    changes = office.store.since(0)
    trainer.comparisons.apply(changes)
    found = trainer.fit(200).suspicions
    assert found[pair, "bob"] == max(found.values())
    office.desk.show(films_of(given.pairs[np.array([planted])]))
    office.desk.suspect(found)
    doubt = (await office.desk.doubts())[0]
    assert doubt.event_id == f"{planted:032x}"
    other = "right" if doubt.answer == "left" else "left"
    await office.desk.review("ada", REVIEWS[0], doubt.event_id, other)
    changes = office.store.since(changes.last)
    assert changes.comparisons.pairs.ids == (pair,)
    assert changes.comparisons.preferences.tolist() == [true[planted]]
    trainer.comparisons.apply(changes)
    assert (pair, "bob") not in trainer.fit(50).suspicions
    assert len(PreferenceStore(office.store.path)) == 300
