"""That damage to any one file brings no answer back that was taken back or replaced, and gives no wrong one; and is noticed."""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.queries.fitting import fit
from rlhf_ray.settings import RewardModelSettings, SettingError
from rlhf_ray.store import Event, PreferenceStore
from rlhf_ray.store.exchange import export, import_file
from rlhf_ray.store.files import open_files
from tests.made_up import some_comparisons, some_fragments
from tests.store.test_model import held

CLIPS = some_fragments(24, 4, seed=8)
IDS = CLIPS.ids()
OTHER = some_comparisons(3, 4, seed=5)
Right = dict[tuple[str, str], float]
"""What may be trained on: the answers by pair and annotator."""


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here cuts the power, and flushing takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def event(name: str, pair: int, preference: float | None, kind: str = "label", by: str = "ada", **more: str) -> Event:
    return Event(name, kind, by, IDS[2 * pair], IDS[2 * pair + 1], preference, **more)  # type: ignore[arg-type]


def filled(path: Path | str, *, merged: bool = True) -> PreferenceStore:
    """A store in which every kind of event takes something back, each commit in a file of its own."""
    store = PreferenceStore(path)
    store.record([event(f"a{pair}", pair, pair % 2) for pair in range(6)], CLIPS)
    store.record([event(f"b{pair}", pair, 1.0, by="ben") for pair in range(3)])
    store.record([event("r0", 0, None, "retract", target="a0")])
    store.record([event("s1", 1, 0.0, "supersede", target="a1")])
    store.record([event("k6", 6, None, "skip"), event("c7", 7, 1.0, "check")])
    store.record([event("again", 2, 0.5)])  # ada's later answer to a pair is the one that counts
    store.record([event("f8", 8, None, "flag"), event("a9", 9, 1.0)])
    if merged:
        other = PreferenceStore(Path(str(path).replace("://", "-")).with_name(f"other-{uuid.uuid4().hex}"))
        other.commit(OTHER, annotator="cleo")
        store.import_from(other.path)
        store.undo()
    store.record([event("r3", 3, None, "retract", target="a3"), event("a10", 10, 0.0)])
    store.weigh("ben", 0.0)
    store.record([event("r9", 9, None, "retract", target="a9")])
    return store


def answers(store: PreferenceStore) -> Right:
    """What a fit to the store would be to: the answers of annotators whose weight is not 0."""
    held, weights = store.load(), store.weights()
    if held is None:
        return {}
    return {
        key: float(answer)
        for key, answer in zip(held.keys, held.preferences, strict=True)
        if weights.get(key[1], 1.0) > 0
    }


def without(found: Right, who: str = "dan") -> Right:
    """The answers of everyone else. Dan writes after the damage."""
    return {key: answer for key, answer in found.items() if key[1] != who}


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def a_figure(content: bytes) -> int:
    """Where a digit is: in a text, another number or name that reads as well."""
    return next((i for i, byte in enumerate(content) if chr(byte) in "0123456789"), len(content) // 3)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "delete": lambda content: b"",
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "flip": lambda content: flipped(content, len(content) // 2),
    "flip a figure": lambda content: flipped(content, a_figure(content)),
    "shorten": lambda content: content[:-1],
}


def damage(file: Path, how: str) -> None:
    file.write_bytes(DAMAGES[how](file.read_bytes()))
    if how == "delete":
        file.unlink()


def files_of(path: Path, *folders: str) -> list[str]:
    """The files of a store: all, or those in these folders."""
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    return [name for name in names if not folders or name.startswith(folders)]


def holding_event(path: Path, event: str) -> list[str]:
    """The files with this event."""
    names = files_of(path, "labels", "amendments")
    return [name for name in names if event in pq.read_table(path / name)["event_id"].to_pylist()]


def read(path: Path | str, right: Right, name: str) -> PreferenceStore | None:
    """Open a damaged store, whose answers must be right ones, and its damage known; None if it refuses in one line."""
    try:
        store = PreferenceStore(path, create=False)
        found = answers(store)
    except ValueError as error:
        refused = str(error)
    else:
        assert found.items() <= right.items(), name
        # A clip is checked when it is read, and not all bytes of its file and of texts carry data.
        assert store.problems or name.startswith(("clips", "store.json")) or found == right, name
        return store
    assert "\n" not in refused
    assert any(why in refused for why in ("is damaged", "is missing", "not a preference store", "has format")), refused
    return None


def check_damaged(path: Path, right: Right, name: str) -> None:
    """Whether readers, writers, merges, exports and copies of a damaged store have right answers alone."""
    if (reader := read(path, right, name)) is None:
        return
    assert reader.problems, name
    assert reader.verify().problems, name
    reader.copy_to(path.with_name("copy"))
    assert answers(PreferenceStore(path.with_name("copy"))).items() <= right.items()
    merged = PreferenceStore(path.with_name("merged"))
    merged.import_from(path)
    assert answers(merged).items() <= right.items()
    export(reader, path.with_name("export.parquet"))
    imported = PreferenceStore(path.with_name("imported"))
    import_file(imported, path.with_name("export.parquet"))
    assert without(answers(imported), "ben").items() <= right.items()  # exports have no weights
    assert without(held(reader.since(0)), "ben").items() <= right.items()  # as a trainer reads them
    # A writer that goes on, compacts and is merged with a copy of before the retractions brings nothing back either.
    new = some_comparisons(2, 4, seed=77)
    with_new = right | dict(zip([(pair, "dan") for pair in new.pairs.ids], new.preferences.tolist(), strict=True))
    PreferenceStore(path).commit(new, annotator="dan")
    PreferenceStore(path).compact()
    after = answers(PreferenceStore(path))
    assert after.items() <= with_new.items()
    assert after.keys() - without(after).keys() == with_new.keys() - right.keys()


@pytest.mark.slow
@pytest.mark.parametrize("how", DAMAGES)
def test_whatever_file_is_damaged_nothing_comes_back_and_nothing_is_wrong(tmp_path, how):
    whole = filled(tmp_path / "whole")
    right = answers(whole)
    assert len(right) == 5
    assert whole.verify().problems == ()
    for number, name in enumerate(files_of(tmp_path / "whole")):
        if name.startswith("last/") and how != "delete":
            continue  # an empty file: its name is what counts
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", folder / "store")
        damage(folder / "store" / name, how)
        (check_damaged if how == "delete" else read)(folder / "store", right, name)


@pytest.mark.slow
def test_a_damaged_file_costs_its_own_answers_alone(tmp_path):
    right = answers(filled(tmp_path / "whole"))
    for number, name in enumerate(files_of(tmp_path / "whole", "labels", "amendments")):
        store = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", store)
        events = pq.read_table(store / name).to_pylist()
        own = {(row["pair_id"], row["annotator"]) for row in events if row["kind"] in ("label", "supersede")}
        (store / name).unlink()
        assert right.keys() - answers(PreferenceStore(store)).keys() <= own, name
        PreferenceStore(store).commit(OTHER, annotator="dan")  # which renews the copies
        assert not any("amendments" in problem for problem in PreferenceStore(store).problems)


def test_where_the_event_and_its_copy_are_gone_all_earlier_answers_are_left_out(tmp_path, caplog):
    path = tmp_path / "store"
    filled(path, merged=False)
    gone = holding_event(path, "r3")
    assert len(gone) == 2
    for name in gone:
        (path / name).unlink()
    damaged = PreferenceStore(path)
    assert answers(damaged) == {}
    problem = next(problem for problem in damaged.problems if "don't count" in problem)
    assert "may have taken them back" in problem
    assert problem in caplog.text
    with pytest.raises(SettingError, match=r"no active label.*may have taken them back"):
        fit(path, settings=RewardModelSettings(hidden=(4,)))
    # An earlier copy of the store, such as a checkpoint's, brings back nothing that may have been taken back since.
    before = PreferenceStore(tmp_path / "before")
    before.record([event(f"a{pair}", pair, pair % 2) for pair in range(6)], CLIPS)
    before.record([event("a11", 11, 1.0)])
    assert damaged.import_from(before.path) == 1
    assert {pair for pair, _ in answers(damaged)} == {event("a11", 11, 1.0).row()["pair_id"]}
    # What is answered again counts; so does everything, once the file is back.
    damaged.record([event("once more", 3, 1.0)])
    assert len(answers(PreferenceStore(path))) == 2


def test_the_file_put_back_ends_the_doubt(tmp_path):
    whole = filled(tmp_path / "whole", merged=False)
    shutil.copytree(tmp_path / "whole", tmp_path / "store")
    gone = holding_event(tmp_path / "store", "r9")
    for name in gone:
        (tmp_path / "store" / name).unlink()
    damaged = PreferenceStore(tmp_path / "store")
    assert answers(damaged) == {}
    shutil.copy(tmp_path / "whole" / gone[-1], tmp_path / "store" / gone[-1])
    assert answers(damaged) == answers(whole)
    assert answers(PreferenceStore(tmp_path / "store")) == answers(whole)


def as_before_1_3(path: Path) -> None:
    """Make of the store one that an earlier version wrote: without copies and marker."""
    for folder in ("amendments", "last"):
        shutil.rmtree(path / folder)
    (path / "store.json").write_text(json.dumps({"format": "rlhf_ray.preferences", "major": 1, "minor": 2}))


def test_a_store_of_an_earlier_version_is_sound_and_gets_copies_with_the_next_commit(tmp_path):
    path = tmp_path / "store"
    right = answers(filled(path))
    as_before_1_3(path)
    assert PreferenceStore(path, create=False).verify().problems == ()
    assert answers(PreferenceStore(path)) == right
    PreferenceStore(path).commit(OTHER, annotator="dan")
    assert len(list((path / "amendments").iterdir())) == len(list((path / "last").iterdir())) == 1
    assert PreferenceStore(path).verify().problems == ()
    for name in files_of(path, "labels"):
        folder = tmp_path / "copies" / Path(name).stem
        shutil.copytree(path, folder)
        (folder / name).unlink()
        assert without(answers(PreferenceStore(folder))).items() <= right.items()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["delete", "flip"])
def test_in_a_store_of_an_earlier_version_a_gap_puts_all_earlier_answers_in_doubt(tmp_path, how):
    path = tmp_path / "store"
    right = answers(filled(path))
    as_before_1_3(path)
    segments = files_of(path, "labels")
    for name in segments[:-1] if how == "delete" else segments:  # of the newest one that is gone, nothing would tell
        folder = tmp_path / Path(name).stem / "store"
        shutil.copytree(path, folder)
        damage(folder / name, how)
        assert read(folder, right, name) is not None
        PreferenceStore(folder).commit(OTHER, annotator="dan")
        assert without(answers(PreferenceStore(folder))).items() <= right.items()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["delete", "flip"])
def test_it_is_so_at_a_url_too(tmp_path, monkeypatch, how):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    right = answers(filled(tmp_path / "whole", merged=False))
    for name in files_of(tmp_path / "whole"):
        if name.startswith("last/") and how != "delete":
            continue
        shutil.copytree(tmp_path / "whole", tmp_path / "store", dirs_exist_ok=False)
        damage(tmp_path / "store" / name, how)
        url = f"memory://{uuid.uuid4().hex}"
        files = open_files(url)
        for each in files_of(tmp_path / "store"):
            content = (tmp_path / "store" / each).read_bytes()
            files.write(each, lambda sink, content=content: sink.write(content))
        shutil.rmtree(tmp_path / "store")
        if (found := read(url, right, name)) is None:
            continue
        found.commit(OTHER, annotator="dan")
        assert without(answers(PreferenceStore(url))).items() <= right.items()


def test_a_file_of_weights_that_is_gone_or_changed_is_refused_until_they_are_set_again(tmp_path):
    store = PreferenceStore(tmp_path / "store")
    given = some_comparisons(4, 4)
    store.commit(Comparisons(given.pairs, np.ones(4, np.float32)), annotator="ada")
    store.weigh("ada", 0.25)
    file = tmp_path / "store" / "annotators.json"
    content = file.read_text()
    file.write_text(content.replace("0.25", "0.75"))
    with pytest.raises(ValueError, match=r"annotators\.json is damaged.*sha256"):
        PreferenceStore(tmp_path / "store").since(0)
    file.write_text('{"weights": {"ada": 0.5}}')  # an earlier version's
    assert PreferenceStore(tmp_path / "store").weights() == {"ada": 0.5}
    file.unlink()
    damaged = PreferenceStore(tmp_path / "store")
    with pytest.raises(ValueError, match=r"annotators\.json is missing, and weights of annotators were set"):
        damaged.since(0)
    damaged.weigh("ada", 0.5)
    assert PreferenceStore(tmp_path / "store").since(0).weights == {"ada": 0.5}
