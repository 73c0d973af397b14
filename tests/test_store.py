import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_ray import store as store_module
from rlhf_ray.comparisons import Comparisons, Pairs
from rlhf_ray.store import PreferenceStore
from tests.made_up import CHOICES, IMAGES, same_comparisons, some_comparisons, some_fragments


def _commit(store: PreferenceStore, comparisons: Comparisons, annotator: str = "oracle") -> int:
    return store.commit(comparisons, annotator=annotator)


def _load(path: Path) -> Comparisons:
    loaded = PreferenceStore(path).load()
    assert loaded is not None
    return loaded


def _clip_ids(path: Path) -> list[str]:
    files = sorted((path / "clips").iterdir())
    return [name for file in files for name in pa.ipc.open_file(file).read_all()["clip_id"].to_pylist()]


def _labels(path: Path) -> list[Path]:
    return sorted((path / "labels").iterdir())


def test_what_was_committed_is_there_in_order_when_the_store_is_opened_again(tmp_path: Path) -> None:
    batches = [some_comparisons(n, seed=n, reward_version=n) for n in (3, 1, 12)]
    for batch in batches:
        store = PreferenceStore(tmp_path / "store")
        assert _commit(store, batch) == len(batch)
    loaded = _load(tmp_path / "store")
    assert same_comparisons(loaded, Comparisons.concatenate(batches))
    assert loaded.pairs.reward_version == 12
    assert len(PreferenceStore(tmp_path / "store")) == 16


def test_the_order_holds_beyond_ten_commits(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    batches = [some_comparisons(1, 2, seed=seed) for seed in range(12)]
    for batch in batches:
        _commit(store, batch)
    assert _load(tmp_path).pairs.ids == Comparisons.concatenate(batches).pairs.ids


def test_an_empty_store_has_no_comparisons(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "not" / "there" / "yet")
    assert store.load() is None
    assert len(store) == 0


@pytest.mark.parametrize("actions", [CHOICES, gym.spaces.Box(-1, 1, (2, 3), np.float32)])
@pytest.mark.parametrize("observations", [IMAGES, gym.spaces.Box(-1, 1, (4,), np.float32)])
def test_shapes_and_dtypes_are_kept(tmp_path: Path, observations: gym.spaces.Box, actions: gym.Space[Any]) -> None:
    comparisons = some_comparisons(3, observations=observations, actions=actions)
    _commit(PreferenceStore(tmp_path), comparisons)
    loaded = _load(tmp_path)
    assert same_comparisons(loaded, comparisons)  # dtypes are part of it
    assert loaded.pairs.left.observations.dtype == observations.dtype
    assert loaded.pairs.left.actions.dtype == (np.int64 if actions is CHOICES else np.float32)
    assert loaded.preferences.dtype == np.float32
    assert loaded.pairs.left.ids() == comparisons.pairs.left.ids()


def test_unknown_true_rewards_stay_unknown(tmp_path: Path) -> None:
    comparisons = some_comparisons(1)
    comparisons.pairs.left.rewards[:] = np.nan
    _commit(PreferenceStore(tmp_path), comparisons)
    assert np.isnan(_load(tmp_path).pairs.left.rewards).all()


def test_a_commit_may_be_repeated(tmp_path: Path) -> None:
    store, batch = PreferenceStore(tmp_path), some_comparisons(4)
    assert _commit(store, batch[:2]) == 2
    assert _commit(store, batch) == 2
    assert _commit(store, batch) == 0
    assert _commit(PreferenceStore(tmp_path), batch) == 0
    assert len(store) == 4
    assert same_comparisons(_load(tmp_path), batch)


def test_a_pair_that_is_twice_in_a_commit_is_stored_once_with_its_first_answer(tmp_path: Path) -> None:
    batch = some_comparisons(2)
    twice = Comparisons(batch[np.array([0, 1, 0])].pairs, np.array([1, 0, 0], dtype=np.float32))
    store = PreferenceStore(tmp_path)
    assert _commit(store, twice) == 2
    assert len(store) == 2
    assert _load(tmp_path).preferences.tolist() == [1, 0]


def test_another_annotator_may_answer_the_same_pair(tmp_path: Path) -> None:
    store, batch = PreferenceStore(tmp_path), some_comparisons(1)
    assert _commit(store, batch, "anna") == 1
    assert _commit(store, Comparisons(batch.pairs, 1 - batch.preferences), "bert") == 1
    loaded = _load(tmp_path)
    assert loaded.pairs.ids == batch.pairs.ids * 2
    assert loaded.preferences.tolist() == [batch.preferences[0], 1 - batch.preferences[0]]


def test_each_clip_is_stored_once_however_often_it_is_asked_about(tmp_path: Path) -> None:
    clips = some_fragments(4)
    store = PreferenceStore(tmp_path)
    for index in ([[0, 1], [1, 2], [0, 2]], [[3, 0], [2, 1]], [[1, 0]]):
        pairs = Pairs.of(clips, np.array(index))
        _commit(store, Comparisons(pairs, np.ones(len(pairs), dtype=np.float32)))
        store = PreferenceStore(tmp_path)
    assert sorted(_clip_ids(tmp_path)) == sorted(clips.ids())
    assert len(list((tmp_path / "clips").iterdir())) == 2  # the last commit brought no new clip
    assert len(_load(tmp_path)) == 6


def test_a_newer_major_version_is_refused(tmp_path: Path) -> None:
    PreferenceStore(tmp_path)
    described = json.loads((tmp_path / "store.json").read_text())
    (tmp_path / "store.json").write_text(json.dumps(described | {"minor": 99}))
    PreferenceStore(tmp_path)
    (tmp_path / "store.json").write_text(json.dumps(described | {"major": described["major"] + 1}))
    with pytest.raises(ValueError, match=r"has format rlhf_ray.preferences 2; this version reads"):
        PreferenceStore(tmp_path)
    (tmp_path / "store.json").write_text(json.dumps(described | {"format": "something.else"}))
    with pytest.raises(ValueError, match=r"has format something.else"):
        PreferenceStore(tmp_path)


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="not empty and no preference store"):
        PreferenceStore(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_what_a_killed_process_left_unfinished_is_ignored(tmp_path: Path) -> None:
    batch = some_comparisons(2)
    _commit(PreferenceStore(tmp_path), batch)
    for folder in ("", "clips", "labels"):
        (tmp_path / folder / ".tmp-1-00000001-abc").write_bytes(b"half a file")
    store = PreferenceStore(tmp_path)
    assert len(store) == 2
    assert _commit(store, some_comparisons(1, seed=9)) == 1
    assert len(_load(tmp_path)) == 3


def test_a_store_whose_making_was_cut_short_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / ".tmp-1-store.json").write_text('{"form')
    PreferenceStore(tmp_path)
    for folder in ("clips", "labels"):
        (tmp_path / folder).rmdir()
    assert _commit(PreferenceStore(tmp_path), some_comparisons(1)) == 1


@pytest.mark.parametrize("fails_at", range(4))
def test_a_commit_that_fails_at_any_step_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    first, second = some_comparisons(2, seed=1), some_comparisons(2, seed=2)
    store = PreferenceStore(tmp_path)
    _commit(store, first)
    flush, calls = os.fsync, iter(range(100))

    def fail_once(descriptor: int) -> None:
        if next(calls) == fails_at:
            raise OSError(28, "No space left on device")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(OSError, match="No space left"):
        _commit(store, second)
    _commit(store, second)
    both = Comparisons.concatenate([first, second])
    assert same_comparisons(_load(tmp_path), both)
    reopened = PreferenceStore(tmp_path)
    _commit(reopened, second)
    assert same_comparisons(_load(tmp_path), both)


def test_every_file_is_flushed_before_it_gets_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    flush, rename = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append(f"flush {'new ' if path.name.startswith('.tmp-') else ''}{path.relative_to(tmp_path).parts[0]}")
        flush(descriptor)

    def replace(self: Path, target: Path) -> Path:
        events.append(f"name {target.relative_to(tmp_path).parts[0]}")
        return rename(self, target)

    store = PreferenceStore(tmp_path)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    _commit(store, some_comparisons(1))
    assert events == [f"{event} {folder}" for folder in ("clips", "labels") for event in ("flush new", "name", "flush")]


# Imports once, then forks the writers that are to be killed. Each writes its process id first.
WRITERS = """
import os, sys
import pandas  # which pyarrow would import in each writer
from rlhf_ray.store import PreferenceStore
from tests.made_up import some_comparisons
for writer in range(5):
    child = os.fork()
    if child == 0:
        store = PreferenceStore(sys.argv[1])
        print(os.getpid(), flush=True)
        for number in range(1000):
            comparisons = some_comparisons(3, seed=1000 * writer + number)
            store.commit(comparisons, annotator="oracle")
            print(*comparisons.pairs.ids, flush=True)
    print("ended by", os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_process_killed_at_any_moment_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(0)
    acknowledged: list[str] = []
    command = [sys.executable, "-c", WRITERS, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[1]
    ) as process:
        assert process.stdout is not None
        for kills in range(1, 6):
            writer = int(process.stdout.readline())
            for _ in range(rng.randrange(1, 12)):
                acknowledged += process.stdout.readline().split()
            for _ in range(rng.randrange(200_000)):  # some milliseconds into one of the next commits
                pass
            os.kill(writer, signal.SIGKILL)
            while not (line := process.stdout.readline()).startswith("ended by"):
                acknowledged += line.split()
            assert line.split() == ["ended", "by", str(int(signal.SIGKILL))]
            stored = _load(tmp_path).pairs.ids  # reads every file, or fails
            assert [name for name in stored if name in set(acknowledged)] == acknowledged
            # A commit is there as a whole or not at all; the one that was being made may be, once for each kill.
            assert len(stored) - len(acknowledged) in range(0, 3 * kills + 1, 3)
    assert len(acknowledged) >= 5 * 3


def test_a_flipped_byte_in_the_labels_is_noticed(tmp_path: Path) -> None:
    batch = some_comparisons(20)
    _commit(PreferenceStore(tmp_path), batch)
    (file,) = _labels(tmp_path)
    content = bytearray(file.read_bytes())
    at = content.index(batch.pairs.ids[7].encode())
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.raises(OSError, match=r"(?i)crc|checksum"):
        PreferenceStore(tmp_path)


def test_the_files_open_without_this_library(tmp_path: Path) -> None:
    batch = some_comparisons(3, observations=IMAGES, reward_version=4)
    PreferenceStore(tmp_path).commit(batch, annotator="anna", annotator_type="human")
    (labels,) = _labels(tmp_path)
    table = pd.read_parquet(labels)
    assert table["pair_id"].tolist() == list(batch.pairs.ids)
    assert table["preference"].tolist() == batch.preferences.tolist()
    assert table["left_id"].tolist() == batch.pairs.left.ids()
    assert set(table["annotator"]) == {"anna"}
    assert set(table["annotator_type"]) == {"human"}
    assert set(table["kind"]) == {"label"}
    assert set(table["reward_version"]) == {4}
    assert str(table["answered_at"].dt.tz) == "UTC"
    assert pq.ParquetFile(labels).schema_arrow.field("preference").type == pa.float32()
    (clips,) = (tmp_path / "clips").iterdir()
    rows = pa.ipc.open_file(clips).read_all()
    first = rows["clip_id"].to_pylist().index(batch.pairs.right.ids()[1])
    observations = rows["observations"].chunk(0).to_numpy_ndarray()
    assert np.array_equal(observations[first], batch.pairs.right.observations[1])


def test_clips_are_read_from_a_memory_mapped_file_without_copying_all_of_it(tmp_path: Path) -> None:
    many = some_comparisons(100, 10, observations=IMAGES)
    _commit(PreferenceStore(tmp_path), many)
    memory = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(memory)
    try:
        loaded = PreferenceStore(tmp_path).load()
    finally:
        pa.set_memory_pool(before)
    assert loaded is not None
    assert memory.max_memory() < many.pairs.left.nbytes / 10  # of Arrow's own; numpy's copy is the result
    loaded.pairs.left.observations[:] = 0  # and the result is no view of the file
    assert same_comparisons(_load(tmp_path), many)


def test_a_copy_is_a_store_of_its_own(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "one")
    first, second, third = (some_comparisons(2, seed=seed) for seed in range(3))
    _commit(store, first)
    store.copy_to(tmp_path / "two")
    assert same_comparisons(_load(tmp_path / "two"), first)
    _commit(PreferenceStore(tmp_path / "two"), second)
    _commit(store, third)
    assert same_comparisons(_load(tmp_path / "one"), Comparisons.concatenate([first, third]))
    assert same_comparisons(_load(tmp_path / "two"), Comparisons.concatenate([first, second]))


def test_a_copy_can_be_brought_up_to_date(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "one")
    for seed in range(3):
        _commit(store, some_comparisons(2, seed=seed))
        store.copy_to(tmp_path / "two")
    assert same_comparisons(_load(tmp_path / "two"), _load(tmp_path / "one"))


def test_where_files_cannot_be_linked_they_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    store = PreferenceStore(tmp_path / "one")
    _commit(store, some_comparisons(2))
    store.copy_to(tmp_path / "two")
    assert same_comparisons(_load(tmp_path / "two"), some_comparisons(2))


def test_copying_a_store_onto_itself_loses_nothing(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    _commit(store, some_comparisons(2))
    store.copy_to(tmp_path)
    assert same_comparisons(_load(tmp_path), some_comparisons(2))


def test_the_copy_of_an_empty_store_is_an_empty_store(tmp_path: Path) -> None:
    PreferenceStore(tmp_path / "one").copy_to(tmp_path / "two")
    assert PreferenceStore(tmp_path / "two").load() is None


def test_import_adds_what_is_missing_after_what_is_there_and_in_order(tmp_path: Path) -> None:
    a, b, c = (some_comparisons(2, seed=seed) for seed in range(3))
    mine, theirs = PreferenceStore(tmp_path / "mine"), PreferenceStore(tmp_path / "theirs")
    _commit(mine, c)
    for batch in (a, b):
        _commit(theirs, batch)
    assert mine.import_from(tmp_path / "theirs") == 4
    assert mine.import_from(tmp_path / "theirs") == 0
    everything = Comparisons.concatenate([c, a, b])
    loaded = mine.load()
    assert loaded is not None
    assert same_comparisons(loaded, everything)
    assert same_comparisons(_load(tmp_path / "mine"), everything)
    assert _commit(mine, a) == 0
    assert len(_load(tmp_path / "theirs")) == 4


def test_import_of_a_copy_that_went_on_adds_only_what_is_new(tmp_path: Path) -> None:
    mine = PreferenceStore(tmp_path / "mine")
    _commit(mine, some_comparisons(2, seed=1))
    mine.copy_to(tmp_path / "theirs")
    _commit(PreferenceStore(tmp_path / "theirs"), some_comparisons(3, seed=2))
    assert mine.import_from(tmp_path / "theirs") == 3
    assert len(_load(tmp_path / "mine")) == 5


def test_answers_that_both_stores_hold_in_different_commits_are_there_once(tmp_path: Path) -> None:
    batch = some_comparisons(4)
    mine, theirs = PreferenceStore(tmp_path / "mine"), PreferenceStore(tmp_path / "theirs")
    _commit(mine, batch[:3])
    _commit(theirs, batch[2:])
    assert mine.import_from(tmp_path / "theirs") == 1
    assert len(mine) == 4
    assert same_comparisons(_load(tmp_path / "mine"), batch)


def test_import_from_a_folder_that_is_no_store_is_an_error_and_makes_none(tmp_path: Path) -> None:
    mine = PreferenceStore(tmp_path / "mine")
    with pytest.raises(ValueError, match="nowhere is no preference store"):
        mine.import_from(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_the_format_is_what_the_documentation_of_existing_stores_says(tmp_path: Path) -> None:
    PreferenceStore(tmp_path)
    assert json.loads((tmp_path / "store.json").read_text()) == {
        "format": "rlhf_ray.preferences",
        "major": 1,
        "minor": 0,
    }
    assert store_module.LABELS.names == [
        "event_id",
        "kind",
        "pair_id",
        "left_id",
        "right_id",
        "preference",
        "annotator",
        "annotator_type",
        "answered_at",
        "reward_version",
    ]
