"""Saved folders and states."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.nested import NAME, read_nested, write_nested
from rlhf_ray.wrappers.saved import find_folder, whole_folder

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


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    write_nested(STATE, tmp_path)
    state = read_nested(tmp_path)
    np.testing.assert_equal(state, STATE)
    assert list(state["asked"]) == [0, 7]
    assert state["asked"][0][0] == ("a", "b")
    assert state["clips"][(3, -1)]["observations"].dtype == np.uint8


def test_another_format_is_refused(tmp_path: Path) -> None:
    write_nested(STATE, tmp_path)
    (tmp_path / NAME).write_text('{"format": "rlhf_ray.wrapper/2"}')
    with pytest.raises(ValueError, match=r"this version reads rlhf_ray.nested/1"):
        read_nested(tmp_path)


def test_what_was_saved_before_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    for number in (1, 2):
        with whole_folder(path) as folder:
            write_nested({"number": number}, folder)
            (folder / f"only {number}").touch()

    def interrupted() -> None:
        with whole_folder(path) as folder:
            write_nested({"number": 3}, folder)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert read_nested(path) == {"number": 2}
    assert sorted(file.name for file in path.iterdir()) == ["only 2", NAME, "state.npz"]


def test_it_is_found_where_a_process_was_killed_between_the_two_renames(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    with whole_folder(path) as folder:
        write_nested({"number": 1}, folder)
    path.rename(tmp_path / ".old-saved")
    assert read_nested(find_folder(path)) == {"number": 1}
    with whole_folder(path) as folder:
        write_nested({"number": 2}, folder)
    assert read_nested(find_folder(path)) == {"number": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]


def test_other_peoples_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="was not written by save"), whole_folder(tmp_path):
        pass
    assert (tmp_path / "thesis.tex").exists()
