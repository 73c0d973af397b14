"""That the benchmark of the store compares like with like: both arms read the same clips."""

from pathlib import Path

import numpy as np

from benchmarks.store import MINIBATCH, SHAPES, fill, gathering, made_up
from rlhf_ray.store import PreferenceStore


def test_the_plain_map_holds_what_the_store_holds(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    assert len(fill(tmp_path / "store", SHAPES["vectors"], 3, 30)) == 3
    row = gathering(tmp_path / "store", tmp_path / "plain", 14)
    assert row["ours"]["n"] == row["plain"]["n"] == 4
    everything = PreferenceStore(tmp_path / "store").snapshot().gather(slice(None))
    assert len(everything) == 90 > MINIBATCH
    assert np.array_equal(
        everything[:30].pairs.left.observations, made_up(30, SHAPES["vectors"], 0).pairs.left.observations
    )
    for side, clips in (("left", everything.pairs.left), ("right", everything.pairs.right)):
        for name, array in vars(clips).items():
            assert np.array_equal(np.load(tmp_path / "plain" / f"{side}_{name}.npy"), array)
