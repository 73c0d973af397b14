"""That nothing acknowledged is lost and nothing is there twice, whenever the power goes, the disk fills or a process is killed."""

import errno
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlhf_ray.store import PreferenceStore, store, writing
from tests.made_up import joined, same_comparisons, some_comparisons
from tests.store.faulty import FaultyDisk

ROOT = Path(__file__).resolve().parents[2]
BATCHES = [some_comparisons(n, 2, seed=seed) for seed, n in enumerate((1, 2, 1, 3, 1, 2, 1))]


def work(path: Path, acknowledged: list[int]) -> None:
    """Commit the batches one by one, with compactions between, by a store that is opened for each half of them."""
    for half in (range(4), range(4, len(BATCHES))):
        opened = PreferenceStore(path)
        for number in half:
            opened.commit(BATCHES[number], annotator="oracle")
            acknowledged.append(number)
    opened.compact()


def check(path: Path, acknowledged: list[int], seen: int) -> int:
    """Whether the store holds the acknowledged batches, or one more, and is sound. Returns how many batches it holds."""
    opened = PreferenceStore(path)
    verification = opened.verify()
    assert verification.problems == ()
    held = opened.load()
    ends = np.cumsum([0] + [len(batch) for batch in BATCHES])
    assert len(opened) in ends
    batches = int(np.searchsorted(ends, len(opened)))
    assert max(seen, len(acknowledged)) <= batches <= max(seen, len(acknowledged) + 1)
    assert (held is None) == (batches == 0)
    if held is not None:
        assert same_comparisons(held, joined(BATCHES[:batches]))
        events = opened.events()["event_id"].to_pylist()
        assert len(events) == len(set(events)) == len(held)
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.soak)])
def test_whenever_the_disk_fails_the_error_says_so_and_the_commit_may_be_repeated(tmp_path, monkeypatch, number, every):
    monkeypatch.setattr(store, "COMPACT_AT", 3)
    counter = FaultyDisk(-1, random.Random(0))
    with monkeypatch.context() as patch:
        counter.install(patch)
        work(tmp_path / "whole", [])
    for at in range(1 + number % every, counter.done, every):
        folder = tmp_path / str(at)
        disk = FaultyDisk(at, random.Random(at), OSError(number, os.strerror(number)))
        with monkeypatch.context() as patch:
            disk.install(patch)
            opened: PreferenceStore | None = None
            acknowledged: list[int] = []
            for batch_number, batch in enumerate(BATCHES):
                for _ in range(2):
                    try:
                        opened = opened or PreferenceStore(folder)
                        opened.commit(batch, annotator="oracle")
                        acknowledged.append(batch_number)
                        break
                    except OSError as error:
                        said = error
                    assert said.errno == number
                    assert str(folder) in str(said)
                    assert "repeat" in str(said)
                    disk.failing = False
                    check(folder, acknowledged, len(acknowledged))
        assert check(folder, list(range(len(BATCHES))), 0) == len(BATCHES)


def test_a_compaction_for_which_there_is_no_room_does_not_fail_the_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "COMPACT_AT", 2)
    opened = PreferenceStore(tmp_path)
    opened.commit(BATCHES[0], annotator="oracle")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "compact", full)
        assert opened.commit(BATCHES[1], annotator="oracle") == 2
    assert opened.commit(BATCHES[2], annotator="oracle") == 1
    assert len(os.listdir(tmp_path / "labels")) == 1


def test_the_writer_deletes_what_a_dead_one_left_unfinished_and_nothing_else(tmp_path):
    opened = PreferenceStore(tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = os.uname().nodename
    names = {f".tmp-{host}-{pid}-0123abcd" for pid in (dead.pid, os.getpid())} | {f".tmp-{host}x-{dead.pid}-0123abcd"}
    for name in names:
        (tmp_path / "labels" / name).write_bytes(b"half")
    opened.commit(BATCHES[0], annotator="oracle")
    left = {name for name in os.listdir(tmp_path / "labels") if name.startswith(".tmp-")}
    assert left == names - {f".tmp-{host}-{dead.pid}-0123abcd"}
    assert same_comparisons(PreferenceStore(tmp_path).load(), BATCHES[0])


# Imports once, then forks a writer for each line it is sent: a number from which its batches are made. The writer first
# tells its process id, then the pairs of each commit when that has returned.
WRITERS = """
import os, sys
import pandas  # which pyarrow would import in each writer
from rlhf_ray.store import PreferenceStore, store
from tests.made_up import some_comparisons
store.COMPACT_AT = 4
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        opened = PreferenceStore(sys.argv[1])
        for number in range(1000):
            comparisons = some_comparisons(3, seed=1000 * int(line) + number)
            opened.commit(comparisons, annotator="oracle")
            print(*comparisons.pairs.ids, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.soak)])
def test_killed_processes_lose_nothing_they_acknowledged(tmp_path, kills):
    rng, acknowledged = random.Random(0), list[str]()
    command = [sys.executable, "-c", WRITERS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        for kill in range(1, kills + 1):
            process.stdin.write(f"{kill}\n")
            process.stdin.flush()
            writer = int(process.stdout.readline())
            for _ in range(rng.randrange(8)):
                acknowledged += process.stdout.readline().split()
            for _ in range(rng.randrange(200_000)):  # some milliseconds into one of the next commits
                pass
            os.kill(writer, signal.SIGKILL)
            while (line := process.stdout.readline()) != "ended\n":
                acknowledged += line.split()
            opened = PreferenceStore(tmp_path)
            stored = opened.snapshot().ids
            known = set(acknowledged)
            assert [name for name in stored if name in known] == acknowledged
            assert len(set(stored)) == len(stored) == len(opened.events())
            # A commit is there as a whole or not at all; the one that was being made may be, once for each kill.
            assert len(stored) - len(acknowledged) in range(0, 3 * kill + 1, 3)
        assert opened.verify().problems == ()
    assert len(acknowledged) > 3 * kills


COMMITTER = """
import sys
from rlhf_ray.store import PreferenceStore, store
from tests.made_up import some_comparisons
store.COMPACT_AT = 16
opened = PreferenceStore(sys.argv[1])
for number in range(int(sys.argv[3])):
    opened.commit(some_comparisons(1, 2, seed=1000 * int(sys.argv[2]) + number), annotator="oracle")
"""
READER = """
import sys, time
from pathlib import Path
from rlhf_ray.store import PreferenceStore
opened, before = PreferenceStore(sys.argv[1]), set()
while not Path(sys.argv[2]).exists():
    snapshot = opened.snapshot()
    now = set(snapshot.ids)
    assert before <= now and len(now) == len(snapshot) and not snapshot.lost and not opened.problems
    assert set(PreferenceStore(sys.argv[1]).snapshot().ids) >= now
    if now:
        snapshot.gather(slice(None))
    before = now
    time.sleep(0.02)  # the writers need the processor, too
print(len(before))
"""


@pytest.mark.slow
@pytest.mark.parametrize("commits", [8, pytest.param(200, marks=pytest.mark.soak)])
def test_four_committers_at_once_store_everything_once_while_others_read(tmp_path, commits):
    folder, stop = tmp_path / "store", tmp_path / "stop"
    PreferenceStore(folder)
    command = [sys.executable, "-c"]
    readers = [
        subprocess.Popen([*command, READER, str(folder), str(stop)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(2)
    ]
    writers = [
        subprocess.Popen([*command, COMMITTER, str(folder), str(one), str(commits)], cwd=ROOT) for one in range(4)
    ]
    assert [writer.wait() for writer in writers] == [0] * 4
    stop.touch()
    for reader in readers:
        printed, _ = reader.communicate()
        assert reader.returncode == 0
        assert 0 < int(printed) <= 4 * commits
    opened = PreferenceStore(folder)
    assert len(opened) == len(opened.events()) == 4 * commits
    expected = [some_comparisons(1, 2, seed=1000 * one + number) for one in range(4) for number in range(commits)]
    assert set(opened.snapshot().ids) == {batch.pairs.ids[0] for batch in expected}
    assert opened.verify().problems == ()
