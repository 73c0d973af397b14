"""Export, merge and import: what goes out comes back, and foreign files are read without running them."""

import gzip
import json
import os
import pickle
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import duckdb
import gymnasium as gym
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_ray.data import pickles
from rlhf_ray.settings import SettingError
from rlhf_ray.store import Event, PreferenceStore
from rlhf_ray.store.exchange import export, import_file
from tests.made_up import CHOICES, IMAGES, same_comparisons, some_comparisons
from tests.store.test_damage import flip_in


@pytest.fixture
def stored(tmp_path: Path) -> PreferenceStore:
    """A store with 70 scripted answers, and a person's correction, retraction and skip."""
    store, batch = PreferenceStore(tmp_path / "store"), some_comparisons(70, 2, reward_version=2)
    store.commit(batch, annotator="oracle")
    left, right = batch.pairs.left.ids(), batch.pairs.right.ids()
    store.record(
        [
            Event("a", "label", "anna", left[0], right[0], 1.0, extra={"key": "left"}),
            Event("b", "supersede", "anna", left[0], right[0], 0.0, target="a"),
            Event("c", "retract", "anna", target="unknown"),
            Event("d", "skip", "anna", left[1], right[1]),
        ]
    )
    return store


def everything(store: PreferenceStore) -> pa.Table:
    return store.events().drop_columns(["sequence", "merge"])


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_an_export_has_all_events_and_says_which_hold(tmp_path, stored, suffix):
    out = tmp_path / "new" / f"out.{suffix}"
    assert export(stored, out) == 74
    read: dict[str, Any] = {"csv": pd.read_csv, "parquet": pd.read_parquet}
    table = pd.read_json(out, lines=True) if suffix == "jsonl" else read[suffix](out)
    assert table["event_id"].tolist() == stored.events()["event_id"].to_pylist()
    assert table["holds"].sum() == 71
    assert table["preference"][71] == 0.0
    assert set(table["kind"]) == {"label", "supersede", "retract", "skip"}


@pytest.mark.parametrize("spaces", [{}, {"observations": IMAGES, "actions": CHOICES}])
def test_an_exported_parquet_holds_the_clips_for_anybody_and_can_be_imported(tmp_path, spaces):
    store, batch = PreferenceStore(tmp_path / "store"), some_comparisons(70, 2, **spaces)
    store.commit(batch, annotator="oracle")
    export(store, tmp_path / "out.parquet")
    table = pd.read_parquet(tmp_path / "out.parquet")
    for name, array in (("observations", batch.pairs.right.observations), ("actions", batch.pairs.right.actions)):
        dtype, shape = json.loads(table["right_arrays"][2])[name]
        assert np.array_equal(np.frombuffer(table[f"right_{name}"][2], dtype).reshape(shape), array[2])
    other = PreferenceStore(tmp_path / "other")
    assert [import_file(other, tmp_path / "out.parquet") for _ in range(2)] == [70, 0]
    assert same_comparisons(other.load(), batch)
    assert other.verify().problems == ()


def _pandas(file: Path) -> None:
    pd.read_parquet(file).sample(frac=1, random_state=0)[lambda table: table.columns[::-1]].to_parquet(file)


def _polars(file: Path) -> None:
    pl.read_parquet(file).write_parquet(file)


def _duckdb(file: Path) -> None:
    duckdb.sql(f"copy (select * from '{file}') to '{file}.new' (format parquet)")
    os.replace(f"{file}.new", file)


def _twice(file: Path) -> None:
    pq.write_table(pa.concat_tables([pq.read_table(file)] * 2), file)


def _as_text(file: Path) -> None:
    table = pq.read_table(file)
    for name in ("preference", "presented_swapped", "view_ms", "left_terminated", "right_start"):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.string()))
    pq.write_table(table.replace_schema_metadata(None), file)


@pytest.mark.parametrize("edit", [_pandas, _polars, _duckdb, _twice, _as_text])
def test_an_export_comes_back_from_other_programs(tmp_path, stored, edit):
    export(stored, tmp_path / "out.parquet")
    edit(tmp_path / "out.parquet")
    other = PreferenceStore(tmp_path / "other")
    assert import_file(other, tmp_path / "out.parquet") == 71
    assert everything(other) == everything(stored)
    assert other.snapshot().ids == stored.snapshot().ids
    assert other.verify().problems == ()


def _reversed(content: bytes | None) -> bytes | None:
    return content and content[::-1]


def _set(name: str, value: Any) -> Any:
    return lambda table: table.assign(**{name: value})


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda table: table.drop(columns=["extra", "right_start"]), "columns once: extra, right_start"),
        (_set("preference", lambda table: 1 - table.preference), "the answer of event '.*' was changed after the export"),
        (_set("left_id", lambda table: table.right_id), "was changed after the export"),
        (_set("presented_swapped", True), "the answer of event '.*' was changed"),
        (_set("preference", float("nan")), "kind 'label': label, supersede and check need a preference"),
        (_set("preference", 1.7), "preference must be a probability, 0 to 1"),
        (_set("preference", "left"), "the column preference has type .*string and can't be read as float"),
        (_set("left_terminated", "maybe"), "the column left_terminated has type .*string and can't be read as bool"),
        (_set("extra", "[1]"), "the extra of event '.*' was changed"),
        (_set("extra", None), "the answer of event 'a' was changed"),
        (_set("left_observations", lambda table: table.left_observations.map(_reversed)), "the clip .* was changed"),
        (_set("left_arrays", "{}"), "the clip .* was changed"),
        (_set("event_id", "x"), "was changed after the export"),
        (lambda table: table.assign(checksum=None, event_id="x"), "two different rows have the event id 'x'"),
        (lambda table: table[table.kind == "label"], "1 answers would count although .*first: event 'a'"),
        (_set("holds", True), "answers would count although"),
        (lambda table: table[["pair_id", "view_ms"]], "was not exported by `rlhf-ray store export`"),
    ],
)  # fmt: skip
def test_an_export_that_would_come_back_as_something_else_is_refused_in_one_line(tmp_path, stored, edit, said):
    export(stored, tmp_path / "out.parquet")
    edit(pd.read_parquet(tmp_path / "out.parquet")).to_parquet(tmp_path / "out.parquet")
    with pytest.raises(ValueError, match=said) as caught:
        import_file(tmp_path / "new" / "other", tmp_path / "out.parquet")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_rows_may_be_left_out_of_an_export_and_answers_added(tmp_path, stored):
    export(stored, tmp_path / "out.parquet")
    table = pd.read_parquet(tmp_path / "out.parquet")
    table = table[table.holds].drop(columns=["sequence", "pair_id", "t_shown", "session", "merge", "view_ms"])
    one = table.iloc[:1].assign(event_id="new", annotator="grace", preference=0.25, checksum="")
    pd.concat([table, one]).to_parquet(tmp_path / "out.parquet")
    other = PreferenceStore(tmp_path / "other")
    assert import_file(other, tmp_path / "out.parquet") == 72
    loaded = other.load()
    assert loaded.preferences[-1] == 0.25


def test_answers_whose_clips_are_lost_are_exported_and_not_imported(tmp_path, stored):
    (pack,) = (tmp_path / "store" / "clips").iterdir()
    flip_in(pack, some_comparisons(70, 2).pairs.left.observations[3].tobytes())
    damaged = PreferenceStore(tmp_path / "store")
    assert export(damaged, tmp_path / "out.parquet") == 74
    other = PreferenceStore(tmp_path / "other")
    assert import_file(other, tmp_path / "out.parquet") == 70
    assert len(other.events()) == 73


def test_other_files_are_refused(tmp_path, stored):
    with pytest.raises(ValueError, match=r"out.xlsx must end in .parquet, .csv, .jsonl"):
        export(stored, tmp_path / "out.xlsx")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "table")
    for name, content, said in (
        ("a.parquet", (tmp_path / "table").read_bytes(), "was not exported by"),
        ("cut.parquet", b"PAR1" + b"x" * 40, r"cut\.parquet is damaged"),
        ("b.parquet", b"hello", "is no Parquet file"),
        ("a.csv", b"event_id", "has no clips, which an import needs"),
        ("a.txt", b"hello", "Can't import"),
        ("a.pkl", pickle.dumps({"a": 1}), "neither imitation's PreferenceDataset nor a PrefDB"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=said):
            import_file(stored, tmp_path / name)


@pytest.mark.parametrize("spaces", [{}, {"observations": IMAGES, "actions": CHOICES}])
def test_imitation_opens_an_exported_file_and_it_comes_back(tmp_path, spaces):
    pc = pytest.importorskip("imitation.algorithms.preference_comparisons", reason="the extra 'imitation'")
    batch = some_comparisons(5, **spaces)
    store = PreferenceStore(tmp_path / "store")
    store.commit(batch, annotator="oracle")
    store.commit(some_comparisons(2, seed=1, **spaces), annotator="careless")
    store.weigh("careless", 0.0)
    assert export(store, tmp_path / "out" / "preferences.pkl") == 5
    dataset = pc.PreferenceDataset.load(tmp_path / "out" / "preferences.pkl")
    assert len(dataset) == 5
    (left, right), preference = dataset[3]
    np.testing.assert_array_equal(left.obs, batch.pairs.left.observations[3])
    np.testing.assert_array_equal(right.rews, batch.pairs.right.rewards[3])
    assert (preference, right.terminal) == (batch.preferences[3], batch.pairs.right.terminated[3])
    other = PreferenceStore(tmp_path / "other")
    assert import_file(other, tmp_path / "out" / "preferences.pkl") == 5
    loaded = other.load()
    assert loaded.pairs.ids == batch.pairs.ids
    del loaded, dataset
    assert same_comparisons(store.snapshot().gather(slice(5)), batch)


def test_there_is_nothing_to_export_for_imitation_in_an_empty_store(tmp_path):
    pytest.importorskip("imitation", reason="the extra 'imitation'")
    with pytest.raises(SettingError, match="no comparisons to export"):
        export(PreferenceStore(tmp_path / "store"), tmp_path / "out.pkl")
    assert not (tmp_path / "out.pkl").exists()


@pytest.mark.parametrize("actions", [gym.spaces.Box(-1, 1, (2,), np.float32), CHOICES])
def test_what_imitation_saved_can_be_imported(tmp_path, actions):
    pc = pytest.importorskip("imitation.algorithms.preference_comparisons", reason="the extra 'imitation'")
    from imitation.data.types import TrajectoryWithRew

    batch, dataset = some_comparisons(6, actions=actions), pc.PreferenceDataset()
    sides = [
        [
            TrajectoryWithRew(obs, acts, infos=np.array([{"a": np.float64(1)}] * 5), terminal=bool(end), rews=rews)
            for obs, acts, rews, end in zip(side.observations, side.actions, side.rewards, side.terminated, strict=True)
        ]
        for side in (batch.pairs.left, batch.pairs.right)
    ]
    dataset.push(list(zip(*sides, strict=True)), batch.preferences)
    dataset.save(tmp_path / "preferences.pkl")
    store = PreferenceStore(tmp_path / "store")
    assert import_file(store, tmp_path / "preferences.pkl") == 6
    loaded = store.load()
    assert loaded.pairs.ids == batch.pairs.ids  # and so the same contents
    assert np.array_equal(loaded.preferences, batch.preferences)
    assert set(store.events()["annotator"].to_pylist()) == {"imitation"}
    assert set(store.events()["annotator_type"].to_pylist()) == {"import"}


def test_what_is_packed_in_a_foreign_file_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(pickles, "LARGEST", 1 << 20)
    limit = "more than 0.000976562 GiB in memory, the limit"

    def refused(content: bytes, match: str = limit) -> None:
        (tmp_path / "bomb").write_bytes(content)
        tracemalloc.start()
        with pytest.raises(ValueError, match=match):
            pickles.read(tmp_path / "bomb")
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
        tracemalloc.stop()

    frames, compressed = [np.zeros((100, 100), np.uint8)] * 9, CompressedDict()
    part = gzip.compress(bytes(100 << 20))
    refused(part)
    refused(gzip.compress(bytes(900_000)) * 2)  # in parts, of which none is too large
    refused(part[: len(part) // 100], "is truncated")
    whole = zlib.compress(pickle.dumps([np.full((100, 100), k, np.uint8) for k in range(9)]))
    compressed.store = dict.fromkeys(range(12), whole)
    for segments, prefs in (
        (compressed, [(0, 1, (0.0, 1.0))]),  # in many clips, of which none is too large
        ({0: frames}, [(0, 0, (0.0, 1.0))] * 1000),  # one clip, named again and again
    ):
        database = PrefDB()
        database.segments, database.prefs = segments, prefs
        refused(gzip.compress(pickle.dumps(database)))
    nested: list[object] = [0.0] * 10
    for _ in range(12):
        nested = [nested] * 10
    database = PrefDB()
    database.segments, database.prefs = {0: [nested]}, [(0, 0, (0.0, 1.0))]
    refused(pickle.dumps(database), "expected an array, found a list")


class PrefDB:
    """As far as it is pickled, what learning-from-human-preferences calls so."""


class CompressedDict:
    """Likewise."""


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_what_drlhp_saved_can_be_imported(tmp_path, compressed, protocol):
    rng = np.random.default_rng(0)
    segments: Any = {
        7: list(rng.integers(0, 256, (25, 8, 8, 4), np.uint8)),
        9: rng.integers(0, 256, (25, 8, 8, 4), np.uint8),
    }
    database = PrefDB()
    if compressed:
        packed = CompressedDict()
        vars(packed)["store"] = {key: zlib.compress(pickle.dumps(value, protocol)) for key, value in segments.items()}
        vars(database)["segments"] = packed
    else:
        vars(database)["segments"] = segments
    vars(database).update(seg_refs={7: 2, 9: 2}, prefs=[(7, 9, (1.0, 0.0)), (9, 7, (0.5, 0.5))], maxlen=10)
    file = tmp_path / "train.pkl.gz"
    file.write_bytes(gzip.compress(pickle.dumps(database, protocol)))
    store = PreferenceStore(tmp_path / "store")
    assert import_file(store, file) == 2
    loaded = store.load()
    assert loaded.preferences.tolist() == [1.0, 0.5]
    assert np.array_equal(loaded.pairs.left.observations[0], np.stack(segments[7]))
    assert np.array_equal(loaded.pairs.right.observations[0], segments[9])
    assert loaded.pairs.left.length == 24
    assert np.isnan(loaded.pairs.left.rewards).all()
    assert store.describe()["clips"] == 2


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function: Any, *arguments: Any):
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"a": [x]}])
def test_a_malicious_pickle_runs_nothing(tmp_path, wrap):
    proof, store = tmp_path / "proof", PreferenceStore(tmp_path / "store")
    for call in (
        Call(os.system, f"touch {proof}"),
        Call(eval, f"open({str(proof)!r}, 'w')"),
        Call(getattr, "a", "upper"),
        Call(np.load, str(proof)),
        Call(open, str(proof), "w"),
        Call(pickle.loads, pickle.dumps(Call(os.mkdir, str(proof)))),
    ):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(wrap(call)))
        with pytest.raises(ValueError, match="Can't import"):
            import_file(store, tmp_path / "a.pkl")
    # The same inside a segment that a PrefDB compressed.
    database, packed = PrefDB(), CompressedDict()
    vars(packed)["store"] = {1: zlib.compress(pickle.dumps(Call(os.mkdir, str(proof))))}
    vars(database).update(segments=packed, prefs=[(1, 1, (1.0, 0.0))])
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(database))
    with pytest.raises(ValueError, match="Can't import"):
        import_file(store, tmp_path / "a.pkl")
    assert not proof.exists()
    assert len(store) == 0
