import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from rlhf_ray.data.checkpoints import KEPT, all_checkpoints, damaged_files, last_checkpoint, save_checkpoint
from rlhf_ray.data.failures import explain


def _save(folder: Path, iteration: int, text: str = "weights") -> Path:
    def write(path: Path) -> None:
        (path / "learner").mkdir()
        (path / "learner" / "state").write_text(text)
        (path / "config").write_text("settings")
        (path / "preferences").mkdir()
        (path / "preferences" / "labels").write_text("labels")

    return save_checkpoint(folder, iteration, write, unlisted="preferences")


def test_the_newest_is_found_and_old_ones_are_deleted(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    for iteration in (2, 9, 10, 11):
        assert _save(tmp_path, iteration) == last_checkpoint(tmp_path)
    newest = last_checkpoint(tmp_path)
    assert int(newest.name) == 11
    assert (newest / "learner" / "state").read_text() == "weights"
    assert len(list(tmp_path.iterdir())) == KEPT


def test_files_of_operating_systems_are_no_part_of_a_checkpoint(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        (path / "config").write_text("settings")
        (path / "._config").write_bytes(b"\0")

    newest = save_checkpoint(tmp_path, 3, write, unlisted="preferences")
    (newest / "._config").unlink()
    assert damaged_files(newest) == []
    shutil.copytree(newest, tmp_path / f"{newest.name} (conflicted copy)")
    (tmp_path / "._00000009").mkdir()
    assert all_checkpoints(tmp_path) == [newest]


def test_a_checkpoint_that_was_being_written_is_not_seen_and_is_cleared_away(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        (path / "half").write_text("…")
        raise ArithmeticError

    good = _save(tmp_path, 1)
    with pytest.raises(ArithmeticError):
        save_checkpoint(tmp_path, 2, fail, unlisted="preferences")
    assert last_checkpoint(tmp_path) == good
    assert not list(tmp_path.glob(".tmp-*"))
    (tmp_path / ".tmp-00000002").mkdir()  # of a process that was killed
    assert _save(tmp_path, 3) == last_checkpoint(tmp_path)
    assert not list(tmp_path.glob(".tmp-*"))


def _safetensors(path: Path) -> None:
    save_file({"weights": np.zeros(10_000)}, path / "policy.safetensors")


def _parquet(path: Path) -> None:
    pq.write_table(pa.table({"weights": np.random.default_rng(0).random(10_000)}), path / "labels.parquet")


def _pickled(path: Path) -> None:
    (path / "state.pkl").write_bytes(bytes(10_000))


@pytest.mark.parametrize("write", [_safetensors, _parquet, _pickled])
def test_a_full_disk_is_said_with_the_checkpoint_and_leaves_nothing_half(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    good = _save(tmp_path, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))  # to the process as good as a full disk
    try:
        with pytest.raises(OSError, match="File too large") as error:
            save_checkpoint(tmp_path, 2, write, unlisted="preferences")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert explain(error.value).startswith(f"{tmp_path / '00000002'}: File too large. Please raise")
    assert last_checkpoint(tmp_path) == good
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "manifest"])
def test_a_damaged_one_is_named_and_the_one_before_is_taken(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, newest = _save(tmp_path, 1), _save(tmp_path, 2)
    file = newest / ("manifest.json" if damage == "manifest" else "learner/state")
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[3] ^= 16
        file.write_bytes(content)
    elif damage == "delete":
        file.unlink()
    else:
        file.write_bytes(content[:4])
    assert last_checkpoint(tmp_path) == before
    assert str(newest) in caplog.text
    assert damaged_files(newest) == ["manifest.json" if damage == "manifest" else "learner/state"]


def test_damage_to_what_looks_after_itself_does_not_count(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    newest = _save(tmp_path, 2)
    (newest / "preferences" / "labels").write_text("damaged")
    assert last_checkpoint(tmp_path) == newest


def test_saving_the_same_iteration_again_replaces_it(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    again = _save(tmp_path, 1, "other weights")
    assert (again / "learner" / "state").read_text() == "other weights"
    assert last_checkpoint(tmp_path) == again
