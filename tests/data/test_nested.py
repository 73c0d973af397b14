"""States as JSON and arrays."""

from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.nested import NAME, read_nested, write_nested

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
