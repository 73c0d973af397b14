"""Stores on other file systems: an S3-compatible server of our own, and fsspec's."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.errors import SettingError
from rlhf_ray.store import Event, PreferenceStore, store
from tests.made_up import joined, same_comparisons, some_comparisons
from tests.store.test_damage import flip_in


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3 server on this machine, with the bucket ``bucket``."""
    import boto3  # type: ignore[import-untyped]  # a second, in the one process that runs this file
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys).create_bucket(Bucket="bucket")
    yield f"{host}:{port}"
    moto.stop()


@pytest.fixture(params=["s3", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = uuid.uuid4().hex
    if request.param == "memory":
        return f"memory://{folder}"
    server = request.getfixturevalue("server")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    return f"s3://bucket/{folder}?scheme=http&endpoint_override={server}&region=us-east-1"


def cached(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*.arrow"))


def load(url: str) -> Comparisons:
    return PreferenceStore(url, create=False).load()


@pytest.mark.slow
def test_a_remote_store_is_a_store(tmp_path, url):
    batches = [some_comparisons(3, seed=seed) for seed in range(3)]
    opened = PreferenceStore(url)
    for batch in batches:
        assert opened.commit(batch, annotator="oracle") == 3
        assert opened.commit(batch, annotator="oracle") == 0
    everything = joined(batches)
    assert same_comparisons(load(url), everything)
    left, right = batches[0].pairs.left.ids()[0], batches[0].pairs.right.ids()[0]
    opened.record([Event("a", "label", "anna", left, right, 0.5)])
    opened.record([Event("b", "retract", "anna", target="a")])
    assert PreferenceStore(url).verify().problems == ()
    assert len(cached(tmp_path)) == 3
    opened.compact()
    assert same_comparisons(load(url), everything)
    assert len(cached(tmp_path)) == 1
    assert opened.describe()["files"] == {"labels": 1, "clips": 1, "quarantine": 0}


@pytest.mark.slow
def test_the_writer_joins_small_files_there_too(url, monkeypatch):
    monkeypatch.setattr(store, "COMPACT_AT", 3)
    opened, reader = PreferenceStore(url), PreferenceStore(url)
    batches = [some_comparisons(1, seed=seed) for seed in range(7)]
    for batch in batches:
        opened.commit(batch, annotator="oracle")
        assert len(reader.load() or []) == len(opened)
    assert same_comparisons(load(url), joined(batches))
    assert opened.describe()["files"]["labels"] < 3


def test_stores_move_between_file_systems(tmp_path, url):
    batch = some_comparisons(4)
    PreferenceStore(tmp_path / "here").commit(batch, annotator="oracle")
    PreferenceStore(tmp_path / "here").copy_to(url)
    assert same_comparisons(load(url), batch)
    PreferenceStore(url).copy_to(tmp_path / "back")
    assert same_comparisons(load(str(tmp_path / "back")), batch)
    assert PreferenceStore(f"file://{tmp_path}/merged").import_from(url) == 4
    assert same_comparisons(load(str(tmp_path / "merged")), batch)


@pytest.mark.slow
def test_a_damaged_remote_file_is_named_and_put_away_but_a_damaged_copy_is_only_fetched_again(tmp_path, url):
    batch = some_comparisons(4)
    PreferenceStore(url).commit(batch, annotator="oracle")
    load(url)
    (copy,) = cached(tmp_path)
    flip_in(copy, batch.pairs.left.observations[1].tobytes())
    content = copy.read_bytes()
    assert same_comparisons(load(url), batch[np.array([0, 2, 3])])
    opened = PreferenceStore(url)
    opened.load()
    opened.commit(some_comparisons(1, seed=9), annotator="oracle")
    assert same_comparisons(load(url)[:4], batch)
    assert opened.verify().problems == ()
    # Now the original.
    name = next(name for name in opened._files.list("clips") if "/000000000000-" in name)
    opened._files.write(name, lambda sink: sink.write(content))
    opened._files.forget(name)
    opened = PreferenceStore(url)
    opened.load()
    assert any(name in problem for problem in opened.problems)
    opened.commit(some_comparisons(1, seed=10), annotator="oracle")
    assert len(load(url)) == 5
    (moved,) = opened._files.list("quarantine")
    assert any(moved in problem for problem in opened.problems)


def test_a_write_that_fails_says_so_and_may_be_repeated(url, monkeypatch):
    with pytest.raises(ValueError, match="is not a preference store"):
        PreferenceStore(url, create=False)
    opened, batch = PreferenceStore(url), some_comparisons(2)

    def down(*_: object) -> None:
        raise OSError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(type(opened._files), "_at", down)
        with pytest.raises(OSError, match=r"writing .*clips/.*connection lost.*then repeat"):
            opened.commit(batch, annotator="oracle")
    assert len(PreferenceStore(url)) == 0
    assert opened.commit(batch, annotator="oracle") == 2


def test_keys_in_a_url_are_not_shown(server):
    url = f"s3://test:secret@bucket/none?scheme=http&endpoint_override={server}&region=us-east-1"
    with pytest.raises(ValueError, match="is not a preference store") as error:
        PreferenceStore(url, create=False)
    assert "secret" not in str(error.value)


def test_weights_are_there_too(tmp_path, url):
    PreferenceStore(url).weigh("anna", 0.5)
    opened = PreferenceStore(url)
    opened.weigh("bert", 0)
    assert PreferenceStore(url).weights() == {"anna": 0.5, "bert": 0.0}
    opened.copy_to(tmp_path / "here")
    assert PreferenceStore(tmp_path / "here").weights() == {"anna": 0.5, "bert": 0.0}


def test_a_url_that_nobody_knows_is_one_line_without_its_keys():
    with pytest.raises(
        SettingError, match=r"open the preference store 'nosuch://bucket/labels' .*fsspec file system is installed"
    ) as error:
        PreferenceStore("nosuch://key:secret@bucket/labels")
    assert "\n" not in str(error.value)
