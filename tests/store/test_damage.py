"""That damage is noticed, named and put away, and that everything else stays readable."""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.store import DamagedFragmentError, PreferenceStore
from tests.made_up import IMAGES, joined, same_comparisons, some_comparisons

FIRST, SECOND = some_comparisons(8, 2, seed=1), some_comparisons(5, 2, seed=2)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    opened = PreferenceStore(tmp_path / "store")
    for batch in (FIRST, SECOND):
        opened.commit(batch, annotator="oracle")
    return tmp_path / "store"


def only(path: Path, number: int, folder: str) -> Path:
    """The file of the commit with this number."""
    return sorted((path / folder).iterdir())[number]


def overwrite(file: Path, content: bytes) -> None:
    """Replace the content of a file that may be mapped, as a fault of the disk would."""
    with open(file, "r+b") as target:
        target.write(content)
        target.truncate()


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << (bit % 8)
    overwrite(file, bytes(content))


def flip_in(file: Path, what: bytes) -> None:
    flip(file, 8 * file.read_bytes().index(what))


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["labels", "clips"])
def test_of_300_flipped_bits_none_gives_a_wrong_answer(stored, folder):
    rng, whole, noticed = random.Random(0), joined([FIRST, SECOND]), 0
    for _ in range(300):
        file = only(stored, rng.randrange(2), folder)
        before = file.read_bytes()
        flip(file, rng.randrange(8 * len(before)))
        opened = PreferenceStore(stored)
        held = opened.load()
        kept = [i for i, name in enumerate(whole.pairs.ids) if held is not None and name in held.pairs.ids]
        if held is not None:
            assert same_comparisons(held, whole[np.array(kept)])
        if len(kept) < len(whole):
            noticed += 1
            assert any(file.name in problem for problem in opened.problems)
        overwrite(file, before)
    # In labels every bit counts; in clips not those between the columns.
    assert noticed == 300 if folder == "labels" else noticed > 100


@pytest.mark.parametrize("folder", ["labels", "clips"])
def test_a_torn_file_is_left_out_and_put_away_by_the_writer(stored, folder):
    for size in (0, 7, 200, -1):
        file = only(stored, 1, folder)
        content = file.read_bytes()
        overwrite(file, content[:size])
        opened = PreferenceStore(stored)
        assert same_comparisons(opened.load(), FIRST)
        assert opened.verify().problems
        opened.commit(SECOND, annotator="oracle")  # stores the lost part again
        moved = stored / "quarantine" / f"{folder}-{file.name}"
        assert any(moved.name in problem for problem in opened.verify().problems)
        moved.unlink()
        assert same_comparisons(PreferenceStore(stored).load(), joined([FIRST, SECOND]))


def test_the_first_reading_of_a_damaged_clip_is_an_error_and_later_ones_are_without_it(stored):
    opened = PreferenceStore(stored)
    snapshot = opened.snapshot()
    file = only(stored, 0, "clips")
    flip_in(file, FIRST.pairs.right.actions[3].tobytes())
    others = np.arange(13) != 3
    assert same_comparisons(snapshot.gather(others), joined([FIRST, SECOND])[others])
    with pytest.raises(DamagedFragmentError, match=rf"{file.name}.*{FIRST.pairs.right.ids()[3]}"):
        snapshot.gather(np.array([2, 3]))
    assert len(opened.snapshot()) == 12
    assert opened.snapshot().lost == 1
    assert same_comparisons(PreferenceStore(stored).load(), joined([FIRST, SECOND])[others])


def test_the_writer_saves_the_other_clips_of_a_damaged_pack(stored):
    file = only(stored, 0, "clips")
    flip_in(file, FIRST.pairs.left.observations[5].tobytes())
    opened = PreferenceStore(stored)
    assert len(opened.load() or []) == 12
    opened.commit(some_comparisons(1, 2, seed=9), annotator="oracle")
    assert os.listdir(stored / "quarantine") == [f"clips-{file.name}"]
    again = PreferenceStore(stored)
    assert len(again.load() or []) == 13
    assert again.snapshot().lost == 1
    # An answer that is lost with its clip comes back with it.
    again.commit(Comparisons(FIRST.pairs, FIRST.preferences), annotator="someone")
    assert again.snapshot().lost == 0
    assert len(again) == 22


def test_verify_finds_what_only_a_reading_of_everything_shows(stored):
    opened = PreferenceStore(stored)
    assert opened.verify().problems == ()
    assert (opened.verify().events, opened.verify().comparisons, opened.verify().fragments) == (13, 13, 26)
    file = only(stored, 1, "clips")
    flip_in(file, SECOND.pairs.left.rewards[1].tobytes())
    first, *others = opened.verify().problems
    assert file.name in first
    assert SECOND.pairs.left.ids()[1] in first
    assert others == [
        "labels: 1 are ignored because a fragment is missing or damaged",
        "clips: 1 fragments of stored events are missing or damaged",
    ]


def test_files_of_operating_systems_and_cloud_folders_are_nobody_s(stored):
    """A Mac's on a network drive, Windows', and copies: ignored by all that reads the store, and left where they are."""
    PreferenceStore(stored).weigh("oracle", 0.5)
    sound = PreferenceStore(stored).verify()
    for folder, _, files in list(os.walk(stored)):
        for name in files:
            Path(folder, f"._{name}").write_bytes(b"\0\5\x16\7" + b"\0" * 4000)
            start, dot, end = name.partition(".")
            for copy in (f"{start} (conflicted copy 2026-11-28){dot}{end}", f"{start} 2{dot}{end}", f"Copy of {name}"):
                Path(folder, copy).write_bytes(Path(folder, name).read_bytes()[:-1])
        for name in (".DS_Store", "desktop.ini", "Thumbs.db", "notes.txt"):
            Path(folder, name).write_bytes(b"\0\0\0\1Bud1")
    own = [file for file in stored.rglob("*") if file.stem.endswith("(conflicted copy 2026-11-28)")]
    assert len(own) >= 6
    strays = {file: file.read_bytes() for file in stored.rglob("*") if file.is_file() and file.name[0] in "._dTnC"}
    opened = PreferenceStore(stored)
    assert opened.verify() == sound
    assert sound.problems == ()
    assert opened.weights() == {"oracle": 0.5}
    opened.commit(some_comparisons(1, 2, seed=3), annotator="oracle")
    opened.compact()
    assert (opened.verify().problems, len(PreferenceStore(stored))) == ((), 14)
    assert {file: file.read_bytes() for file in strays} == strays
    assert not (stored / "quarantine").exists()


def test_verify_notices_a_file_that_is_gone(stored):
    only(stored, 0, "labels").unlink()
    assert PreferenceStore(stored).verify().problems == ("labels: events 1 to 8 are missing",)
    only(stored, 0, "clips").unlink()
    PreferenceStore(stored).commit(SECOND, annotator="someone")
    assert PreferenceStore(stored).verify().problems == ("labels: events 1 to 8 are missing",)
    only(stored, 0, "clips").unlink()
    lost = "labels: 10 are ignored because a fragment is missing or damaged"
    assert lost in PreferenceStore(stored).verify().problems


def test_compaction_carries_no_damage_over(stored):
    file = only(stored, 0, "clips")
    flip_in(file, FIRST.pairs.left.actions[0].tobytes())
    PreferenceStore(stored).compact()
    assert f"clips-{file.name}" in os.listdir(stored / "quarantine")
    assert same_comparisons(PreferenceStore(stored).load(), joined([FIRST, SECOND])[1:])


def test_a_clip_that_two_commits_stored_is_read_from_the_intact_pack(tmp_path):
    batch = some_comparisons(2, observations=IMAGES)
    one, other = PreferenceStore(tmp_path), PreferenceStore(tmp_path)
    first = other._contents.refresh
    other._contents.refresh = lambda: None  # type: ignore[method-assign]  # it does not see what the first writes
    one.commit(batch, annotator="anna")
    other.commit(batch[:1], annotator="bert")
    other._contents.refresh = first  # type: ignore[method-assign]
    assert len(os.listdir(tmp_path / "clips")) == 2
    larger = max((tmp_path / "clips").iterdir(), key=lambda file: file.stat().st_size)
    flip_in(larger, batch.pairs.left.actions[0].tobytes())
    assert len(PreferenceStore(tmp_path).load() or []) == 3
