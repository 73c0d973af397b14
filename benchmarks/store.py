"""The preference store: what a commit takes, what loading takes in time and memory, and gathering beside a plain memory map.

A store is filled by single commits, one comparison with two new clips each: 25 steps of 64 x 64 x 3 uint8 images (26 with the
last one), 320 kB a clip. Each commit writes and flushes a pack and a segment; every 128th also joins the small files, which is in
the figures. A process of its own then opens it: timed is all until the labels are in memory and the clips mapped, and its memory
is the kernel's count of anonymous memory, which leaves out files that are mapped.

Gathering copies random minibatches of 64 comparisons into new arrays. Beside it the same is done from one memory-mapped numpy
file of each array. Both files are in the page cache, every clip was read before, and the two arms alternate; the ratio is the
plain map's time by ours. A second pair of arms has clips of 4 numbers a step, where overheads show. First readings, which compare
each clip with its checksum, are timed on their own.

    ./setup.sh && . .venv/bin/activate
    python benchmarks/store.py            # 10 minutes, 8 GB in $TMPDIR; writes benchmarks/results/store.json
    python benchmarks/store.py --quick    # a look, not a measurement; writes nothing

Expect loads below a second, growth by the labels and not by the clips, and ratios above 0.8. What a commit takes is the disk's four
flushes: on a shared disk its p99 tells more of the neighbours than of the store.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1")  # read when torch is imported

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import bootstrap
from benchmarks.record import record
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.store import PreferenceStore

SHAPES = {"images": (64, 64, 3), "vectors": (4,)}
LENGTH, MINIBATCH = 25, 64

LOAD = """
import json, sys, time
import numpy as np
from rlhf_ray.store import PreferenceStore

def anonymous():
    with open("/proc/self/smaps_rollup") as rollup:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in rollup if line.rstrip().endswith("kB")}
    return {"anonymous_mb": kib["Anonymous"] / 1024, "pss_mb": kib["Pss"] / 1024}

before, started = anonymous(), time.perf_counter()
snapshot = PreferenceStore(sys.argv[1], create=False).snapshot()
seconds = time.perf_counter() - started
clips = sum(pack.fragments.nbytes for pack in snapshot.packs)
grown = {name: value - before[name] for name, value in anonymous().items()}
started = time.perf_counter()
for start in range(0, len(snapshot), 64):
    snapshot.gather(slice(start, start + 64))
print(json.dumps({"comparisons": len(snapshot), "seconds": seconds, "clips_mb": clips / 2**20, "grown": grown,
                  "first_reading_seconds": time.perf_counter() - started}))
"""


def made_up(n: int, shape: tuple[int, ...], seed: int) -> Comparisons:
    """``n`` comparisons of different random clips."""
    rng = np.random.default_rng(seed)
    size = (2 * n, LENGTH + 1, *shape)
    images = len(shape) == 3
    clips = Fragments(
        rng.integers(0, 256, size, np.uint8) if images else rng.standard_normal(size).astype(np.float32),
        rng.integers(0, 4, (2 * n, LENGTH)),
        rng.standard_normal((2 * n, LENGTH)),
        np.zeros(2 * n, bool),
        np.zeros(2 * n, np.int64),
        np.zeros(2 * n, np.int64),
    )
    return Comparisons(Pairs.of(clips, np.arange(2 * n).reshape(n, 2)), rng.integers(0, 2, n).astype(np.float32))


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def spread(values: list[float]) -> dict[str, float]:
    return {
        "n": len(values),
        "median_ms": 1e3 * statistics.median(values),
        "p99_ms": 1e3 * float(np.quantile(values, 0.99)),
        "max_ms": 1e3 * max(values),
    }


def fill(path: Path, shape: tuple[int, ...], commits: int, each: int) -> list[float]:
    """Make ``commits`` commits of ``each`` comparisons; the seconds of each."""
    store, taken = PreferenceStore(path), []
    for number in range(commits):
        comparisons = made_up(each, shape, number)
        taken.append(seconds(lambda comparisons=comparisons: store.commit(comparisons, annotator="oracle")))  # type: ignore[misc]
    return taken


def gathering(path: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Our gather beside a plain map of the same data, alternating."""
    snapshot = PreferenceStore(path, create=False).snapshot()
    maps: dict[str, np.ndarray[Any, Any]] = {}
    for start in range(0, len(snapshot), MINIBATCH):
        part = snapshot.gather(slice(start, start + MINIBATCH)).pairs
        for side, clips in (("left", part.left), ("right", part.right)):
            for name, array in vars(clips).items():
                key = f"{side}_{name}"
                if key not in maps:
                    maps[key] = np.lib.format.open_memmap(
                        folder / f"{key}.npy", "w+", array.dtype, (len(snapshot), *array.shape[1:])
                    )
                maps[key][start : start + MINIBATCH] = array
    del maps
    plain = {file.stem: np.load(file, mmap_mode="r") for file in sorted(folder.glob("*.npy"))}
    for array in plain.values():  # as every clip of ours was read before
        for start in range(0, len(array), MINIBATCH):
            array[start : start + MINIBATCH].max()
    rng, times = np.random.default_rng(0), dict[str, list[float]](ours=[], plain=[])
    for number in range(rounds):
        arms: dict[str, Callable[[Any], object]] = {
            "ours": snapshot.gather,
            "plain": lambda index: [np.asarray(array[index]) for array in plain.values()],
        }
        for name in sorted(arms, reverse=number % 2 == 1):
            index = rng.integers(0, len(snapshot), MINIBATCH)
            times[name].append(seconds(lambda arm=arms[name], index=index: arm(index)))  # type: ignore[misc]
    ratios = np.array(times["plain"][10:]) / np.array(times["ours"][10:])
    return {
        "ratio": float(np.median(ratios)),
        "interval_95": bootstrap(ratios),
        **{name: spread(each[10:]) for name, each in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="300 comparisons")
    count = 300 if parser.parse_args().quick else 5500
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result["batch_commit_of_50"] = spread(fill(folder / "batches", SHAPES["images"], 20, 50))
        print("batches of 50", result["batch_commit_of_50"], flush=True)
        for kind, shape in SHAPES.items():
            path, plain = folder / kind, folder / f"{kind}-plain"
            plain.mkdir()
            row: dict[str, Any] = {"single_commit": spread(fill(path, shape, count, 1))}
            row["files"] = PreferenceStore(path).describe()["files"]
            command = [sys.executable, "-c", LOAD, str(path)]
            loads = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(5)]
            row["load"] = sorted(loads, key=lambda load: load["seconds"])[2] | {
                "each": [load["seconds"] for load in loads]
            }
            row["gather"] = gathering(path, plain, 310 if count > 300 else 60)
            result[kind] = row
            for figure, value in row.items():
                print(kind, figure, value, flush=True)
    if count > 300:
        record("store", result)


if __name__ == "__main__":
    main()
