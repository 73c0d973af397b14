import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from rlhf_ray.data.checkpoints import KEPT, all_checkpoints, damaged_files, last_checkpoint, save_checkpoint
from rlhf_ray.data.failures import explain
from rlhf_ray.data.nested import NAME, read_nested, write_nested
from tests.data.test_atomic import full_disk


def _save(folder: Path, iteration: int, text: str = "weights") -> Path:
    def write(path: Path) -> None:
        for name, content in (("learner/state", text), ("config", "settings"), ("preferences/labels", "labels")):
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(content)

    return save_checkpoint(folder, iteration, write, unlisted="preferences")


def test_the_newest_is_found_and_old_ones_are_deleted(tmp_path):
    assert last_checkpoint(tmp_path) is None
    for iteration, text in ((2, "old"), (9, "old"), (10, "old"), (11, "old"), (11, "weights")):
        assert _save(tmp_path, iteration, text) == last_checkpoint(tmp_path)
    newest = last_checkpoint(tmp_path)
    assert int(newest.name) == 11
    assert (newest / "learner" / "state").read_text() == "weights"
    assert len(list(tmp_path.iterdir())) == KEPT
    (newest / "preferences" / "labels").write_text("damaged")  # which looks after itself
    assert last_checkpoint(tmp_path) == newest


def test_files_of_operating_systems_are_no_part_of_a_checkpoint(tmp_path):
    def write(path: Path) -> None:
        (path / "config").write_text("settings")
        (path / "._config").write_bytes(b"\0")

    newest = save_checkpoint(tmp_path, 3, write, unlisted="preferences")
    (newest / "._config").unlink()
    assert damaged_files(newest) == []
    shutil.copytree(newest, tmp_path / f"{newest.name} (conflicted copy)")
    (tmp_path / "._00000009").mkdir()
    assert all_checkpoints(tmp_path) == [newest]


def test_a_checkpoint_that_was_being_written_is_not_seen_and_is_cleared_away(tmp_path):
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


@pytest.mark.parametrize(
    "write",
    [
        lambda path: save_file({"weights": np.zeros(10_000)}, path / "policy.safetensors"),
        lambda path: pq.write_table(pa.table({"weights": np.random.default_rng(0).random(10_000)}), path / "a.parquet"),
        lambda path: (path / "state.pkl").write_bytes(bytes(10_000)),
    ],
)
def test_a_full_disk_is_said_with_the_checkpoint_and_leaves_nothing_half(tmp_path, write):
    good = _save(tmp_path, 1)
    with full_disk(), pytest.raises(OSError, match="File too large") as error:
        save_checkpoint(tmp_path, 2, write, unlisted="preferences")
    assert explain(error.value).startswith(f"{tmp_path / '00000002'}: File too large. Please raise")
    assert last_checkpoint(tmp_path) == good
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "manifest"])
def test_a_damaged_one_is_named_and_the_one_before_is_taken(tmp_path, damage, caplog):
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


STATE: dict[str, Any] = {
    "empty": {},
    "clips": {
        (3, -1): {"observations": np.arange(6, dtype=np.uint8).reshape(2, 3)},
        (4, 0): {"rewards": np.array([np.nan])},
    },
    "asked": {0: [("a", "b"), ("c", "d")], 7: []},
    "numbers": [1, 2.5, True, None, "text", {"array": 3, "more": 4}],
    "scalar": np.float32(0.5),
}


def test_a_state_comes_back_as_it_was(tmp_path):
    write_nested(STATE, tmp_path)
    state = read_nested(tmp_path)
    np.testing.assert_equal(state, STATE)
    assert list(state["asked"]) == [0, 7]
    assert state["asked"][0][0] == ("a", "b")
    assert state["clips"][(3, -1)]["observations"].dtype == np.uint8


def test_another_format_is_refused(tmp_path):
    write_nested(STATE, tmp_path)
    (tmp_path / NAME).write_text('{"format": "rlhf_ray.wrapper/2"}')
    with pytest.raises(ValueError, match=r"this version reads rlhf_ray.nested/1"):
        read_nested(tmp_path)
