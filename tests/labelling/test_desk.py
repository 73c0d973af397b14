"""The desk, with a real store: what is asked, shown, answered, taken back; what is on the disk when."""

import asyncio
import io
import json
import random
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rlhf_ray.data.answers import ANSWERS
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.labelling.situation import Situation
from rlhf_ray.measure.error_rates import ErrorRate
from rlhf_ray.store import Event, PreferenceStore
from tests.labelling.office import Office, pairs_of

pytestmark = pytest.mark.anyio


async def test_an_answer_is_on_the_disk_when_it_is_acknowledged(office: Office) -> None:
    pairs = pairs_of(3)
    await office.ask(0, pairs)
    shown = await office.next("ada")
    event = await office.give("ada", shown, "left")
    row = office.rows()[0]
    assert (row["event_id"], row["kind"], row["annotator"], row["annotator_type"]) == (event, "label", "ada", "human")
    assert row["pair_id"] == pairs.ids[0]
    swapped = row["presented_swapped"]
    assert (shown.left.id, shown.right.id)[:: -1 if swapped else 1] == (row["left_id"], row["right_id"])
    assert row["preference"] == (0.0 if swapped else 1.0)
    assert (row["view_ms"], row["run_id"], row["reward_version"]) == (700, "run", 3)
    assert json.loads(row["extra"])["answer"] == "left"
    assert row["t_shown"] <= row["t_answered"]
    assert len(PreferenceStore(office.store.path)) == 1


@pytest.mark.parametrize(
    ("answer", "kind"), [("incomparable", "skip"), ("skip", "skip"), ("flag", "flag"), ("equal", "label")]
)
async def test_each_answer_is_stored_as_what_it_is(office: Office, answer: str, kind: str) -> None:
    await office.answer_all(pairs_of(1), "ada", answer)
    assert [row["kind"] for row in office.rows()] == [kind]
    assert office.queue.open() == int(answer == "skip")
    assert len(office.store) == int(answer == "equal")


async def test_an_answer_sent_again_is_stored_once_also_while_the_first_is_under_way(office: Office) -> None:
    await office.ask(0, pairs_of(1))
    shown = await office.next("ada")
    await asyncio.gather(*(office.give("ada", shown, "left", "e" * 32) for _ in range(5)))
    await office.give("ada", shown, "left", "e" * 32)
    assert len(office.rows()) == 1


async def test_what_the_disk_does_not_take_is_not_acknowledged_and_may_be_sent_again(office: Office) -> None:
    await office.ask(0, pairs_of(1))
    shown = await office.next("ada")
    office.local.broken = True
    with pytest.raises(OSError, match="no space"):
        await office.give("ada", shown, "left", "e" * 32)
    assert office.queue.open() == 1
    assert await office.desk.next("ada", 1, []) == []  # whoever gave it sends it again
    office.local.broken = False
    await office.give("ada", shown, "left", "e" * 32)
    assert len(office.rows()) == 1


async def test_an_answer_that_is_not_stored_yet_is_asked_for_on_no_other_page_of_theirs(office: Office) -> None:
    await office.ask(0, pairs_of(2))
    first, second = await office.desk.next("ada", 2, [])
    office.local.broken = True
    with pytest.raises(OSError, match="no space"):
        await office.give("ada", first, "left", "e" * 32)
    await office.desk.release("ada", [second.lease])  # the page is reloaded; the answer is in its outbox
    assert await office.desk.next("bob", 2, []) != []  # what was given back
    assert await office.desk.next("ada", 2, []) == []
    assert "on another page of yours" in (await office.desk.progress("ada"))["reason"]


async def test_a_restarted_page_asks_not_for_what_it_is_being_told(office: Office, tmp_path: Path) -> None:
    """Kept answers come before the questions are there again."""
    pairs = pairs_of(3)
    await office.ask(0, pairs)
    stored, under_way = await office.desk.next("ada", 2, [])
    restarted = Office(tmp_path / "store")
    await restarted.give("ada", stored, "left")
    restarted.local.delay = 0.2
    answer = asyncio.create_task(restarted.give("ada", under_way, "left"))
    await asyncio.sleep(0.01)
    restarted.local.delay = 0.0
    await restarted.ask(0, pairs)
    assert len(await restarted.desk.next("ada", 3, [])) == 1
    await answer
    assert restarted.queue.left(0) == 1


@pytest.mark.parametrize("restart", [False, True])
async def test_a_lease_takes_one_answer(office: Office, tmp_path: Path, restart: bool) -> None:
    await office.ask(0, pairs_of(1))
    shown = await office.next("ada")
    await office.give("ada", shown, "left", "e" * 32)
    at = Office(tmp_path / "store") if restart else office
    with pytest.raises(ValueError, match="already answered"):
        await at.give("ada", shown, "right")
    await at.give("ada", shown, "left", "e" * 32)  # the same one, sent again
    assert len(office.rows()) == 1


@pytest.mark.parametrize("restart", [False, True])
async def test_an_event_id_is_good_for_one_event(office: Office, tmp_path: Path, restart: bool) -> None:
    """What is acknowledged is stored: nothing is, under the id of something else."""
    pairs = pairs_of(4)
    await office.ask(0, pairs)
    shown = await office.desk.next("ada", 2, [])
    await office.give("ada", shown[0], "left", "e" * 32)
    await office.give("ada", shown[1], "left", "f" * 32)
    assert await office.desk.undo("ada", "d" * 32) is not None
    at = Office(tmp_path / "store") if restart else office
    await at.ask(0, pairs)
    other, others = await at.next("ada"), await at.next("bob")
    for who, given, answer, used in (
        ("ada", other, "left", "e"),  # another lease
        ("bob", others, "left", "e"),  # another annotator
        ("ada", shown[0], "right", "e"),  # another answer
        ("ada", other, "left", "d"),  # an undo's
    ):
        with pytest.raises(ValueError, match="not saved: its event id belongs to another event"):
            await at.give(who, given, answer, used * 32)
    for used in "efd":
        with pytest.raises(ValueError, match="belongs to another event"):
            await at.desk.undo("ada", used * 32)  # else the page would forget an answer that the store keeps
    await at.give("ada", shown[0], "left", "e" * 32)  # sent again
    await at.give("ada", shown[1], "left", "f" * 32)  # sent again, and still taken back
    await at.give("ada", other, "right", "a" * 32)  # the refused ones took nothing
    await at.give("bob", others, "right", "b" * 32)
    assert at.queue.left(0) == 1
    assert len(at.store) == 3
    assert sorted(row["event_id"][0] for row in at.rows()) == ["a", "b", "d", "e", "f"]


async def test_two_answers_at_once_under_one_event_id_are_one(office: Office) -> None:
    await office.ask(0, pairs_of(2))
    shown = await office.desk.next("ada", 2, [])
    office.local.delay = 0.02
    both = [office.give("ada", one, "left", "e" * 32) for one in shown]
    first, second = await asyncio.gather(*both, return_exceptions=True)
    assert first == "e" * 32
    assert "not saved" in str(second)
    assert len(office.store) == 1


async def test_an_undo_that_was_not_stored_can_be_sent_again(office: Office) -> None:
    await office.answer_all(pairs_of(1))
    office.local.broken = True
    with pytest.raises(OSError, match="no space"):
        await office.desk.undo("ada", "d" * 32)
    office.local.broken = False
    assert await office.desk.undo("ada", "d" * 32) is not None
    assert len(office.store) == 0


@pytest.mark.parametrize("seed", range(2))
async def test_a_restarted_page_knows_all_that_the_one_before_knew(tmp_path: Path, seed: int) -> None:
    """Counts, pace, what undo takes back next, and who may get which pair: also of checks, undone and reviewed answers."""
    pairs, rng = pairs_of(12, images=True), random.Random(seed)
    options = {"catch_share": 0.5, "overlap_share": 0.5}
    office = Office(tmp_path / "store", **options)

    async def known(of: Office) -> dict[str, Any]:
        progress = [await of.desk.progress(name) for name in ("ada", "bob")]
        counts = [{key: one[key] for key in ("own", "per_minute", "labels")} for one in progress]
        asked = {key: one.said for key, one in of.queue._questions.items()}
        given = {
            name: [replace(one, at=0.0) for one in answers] for name, answers in of.queue._answers.items() if answers
        }
        return {"counts": counts, "undo": given, "checks": of.queue._since_catch, "asked": asked}

    await office.ask(0, pairs)
    for step in range(40):
        who = rng.choice(["ada", "bob"])
        if step % 6 == 5:
            await office.desk.undo(who, secrets.token_hex(16))
        for shown in await office.desk.next(who, 1, []):
            await office.give(who, shown, rng.choice(list(ANSWERS)))
    gone = {row["target"] for row in office.rows()}
    label = next(row for row in office.rows() if row["kind"] == "label" and row["event_id"] not in gone)
    office.desk.suspect(dict.fromkeys(((pair, name) for pair in pairs.ids for name in ("ada", "bob")), 0.9))
    await office.desk.review("ada", secrets.token_hex(16), label["event_id"], "equal")
    assert {"check", "retract", "supersede", "label", "skip"} <= {row["kind"] for row in office.rows()}
    before = await known(office)
    restarted = Office(tmp_path / "store", **options)
    assert (await known(restarted))["counts"] == before["counts"]  # before any pair comes
    await restarted.ask(0, pairs)
    assert await known(restarted) == before
    for name in ("ada", "bob"):  # all that undo reaches, one by one
        for one in reversed(before["undo"][name]):
            again = await restarted.desk.undo(name, secrets.token_hex(16))
            assert {again.left.id, again.right.id} == {one.shown.left, one.shown.right}
            assert restarted.rows()[-1]["target"] == one.stands


@pytest.mark.parametrize("images", [True, False])
async def test_an_answer_from_before_a_restart_is_undone_although_its_pair_is_not_asked_again(office, tmp_path, images):
    await office.answer_all(pairs_of(1, images=images))
    restarted = Office(tmp_path / "store")
    if not images:  # films of other clips can't be made again from the store
        with pytest.raises(ValueError, match="can’t be shown again"):
            await restarted.desk.undo("ada", "a" * 32)
        return
    again = await restarted.desk.undo("ada", "a" * 32)
    assert await restarted.desk.film(again.left.id)
    await restarted.give("ada", again, "right")
    assert await restarted.desk.undo("ada", "v" * 32) is not None
    assert [row["kind"] for row in office.rows()] == ["label", "retract", "label", "retract"][: 4 if images else 1]


async def test_images_are_shown_pixel_by_pixel(office: Office) -> None:
    pairs = pairs_of(1, images=True)
    await office.ask(0, pairs)
    shown = await office.next("ada")
    assert await office.desk.film("0" * 64) is None
    sheet = await office.desk.film(pairs.left.ids()[0])
    info = shown.left
    assert (info.frames, info.columns, info.width, info.height, info.pixelated) == (7, 3, 20, 20, True)
    assert sheet is not None
    pixels = np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB"))
    for k in range(7):
        x, y = k % 3 * 20, k // 3 * 20
        np.testing.assert_array_equal(pixels[y : y + 20, x : x + 20], pairs.left.observations[0, k])


async def test_short_clips_are_played_slowly_enough_to_see_something(office: Office) -> None:
    await office.ask(0, pairs_of(1))
    assert (await office.next("ada")).fps == 6 / 1.5


async def test_catch_pairs_are_stored_as_checks_and_train_nothing(tmp_path: Path) -> None:
    office = Office(tmp_path / "store", catch_share=0.5)
    await office.ask(0, pairs_of(80))
    for _ in range(80):
        (shown,) = await office.desk.next("ada", 1, [], "page")
        assert await office.desk.renew("ada", [shown.lease], "page") == []
        await office.give("ada", shown, "left")
    checks = [row for row in office.rows() if row["kind"] == "check"]
    assert checks
    assert {json.loads(row["extra"])["catch"] for row in checks} == {"same", "repeat"}
    assert len(office.store) == 80 - len(checks)


async def test_statistics_and_weights_are_the_stores(office: Office) -> None:
    await office.ask(0, pairs_of(2))
    await office.give("ada", await office.next("ada"), "left")
    before = office.desk.changes
    await office.desk.weigh("ada", 0.5)
    assert office.desk.changes == before + 1
    with pytest.raises(ValueError, match="weight"):
        await office.desk.weigh("ada", -1.0)
    office.desk.tell(Situation(error_rates={"ada": ErrorRate(0.12, 0.08, 0.17, 40)}))
    values = await office.desk.statistics()
    assert values["labels"] == 1
    assert [(one["error_rate"], one["error_rate_kind"]) for one in values["annotators"]] == [(0.12, "some")]
    assert [(one["name"], one["labels"], one["weight"]) for one in values["annotators"]] == [("ada", 1, 0.5)]


async def test_answers_that_are_later_than_a_clock_that_was_set_back_are_not_of_this_minute(office: Office) -> None:
    pairs, now = pairs_of(3), datetime.now(UTC)
    sides = zip(pairs.left.ids(), pairs.right.ids(), (-30, 3600, 86400), strict=True)
    events = [
        Event(f"{i}", "label", "ada", left, right, 1.0, t_answered=now + timedelta(seconds=later))
        for i, (left, right, later) in enumerate(sides)
    ]
    office.store.record(events, Fragments.concatenate([pairs.left, pairs.right]))
    assert (await office.desk.progress("ada"))["per_minute"] == 1
    assert office.queue.total("ada") == 3
