"""That a run which loses its power anywhere, in a commit, a compaction or a checkpoint, goes on as if it had not.

What a training run does with its labels, without Ray and the policy: store, fit, checkpoint, and after a cut all of it again from
the disk. (A fit writes nothing: a cut in it is one before the next write.) The thousand cuts, and how many fell where:

    POWER_CUTS=1000 pytest tests/test_power_cuts.py -m soak -s
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.checkpoints import last_checkpoint, save_checkpoint
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.trainer import RewardTrainer
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.store import PreferenceStore, store, writing
from tests.made_up import FORCES, VECTORS, joined, same_comparisons, some_comparisons
from tests.store.faulty import FaultyRun, PowerCutError

BATCHES = [
    dataclasses.replace(some_comparisons(n, 2, seed=seed), annotators=("oracle",) * n)
    for seed, n in enumerate((2, 1, 3, 1, 2, 1))
]
KINDS = ("commit", "compaction", "checkpoint")
SETTINGS = RewardModelSettings(hidden=(4,), ensemble_size=2)

State = dict[str, Any]


class Disk(FaultyRun):
    """Notes for each operation what it was part of."""

    def __init__(self, at: int, rng: random.Random, root: Path):
        super().__init__(at, rng, root)
        self.kinds: list[str] = []
        self.doing = ["start"]

    @contextmanager
    def within(self, kind: str) -> Iterator[None]:
        self.doing.append(kind)
        yield
        self.doing.pop()  # not after a cut: what was being done then stays

    def step(self) -> None:
        self.kinds.append(self.doing[-1])
        super().step()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().install(monkeypatch)
        compact = writing.compact

        def compacting(*arguments: Any) -> Any:
            with self.within("compaction"):
                return compact(*arguments)

        monkeypatch.setattr(writing, "compact", compacting)


def work(run: Path, acknowledged: set[str], disk: Disk, made: dict[int, State]) -> RewardTrainer:
    """Go on from what is on the disk, with a commit and a fit for each batch and a checkpoint after every second, to the end.

    Args:
        run: the folder of the run.
        acknowledged: takes the ids of the pairs whose commit returned.
        disk: is told what is being done.
        made: takes the versions of the reward model, by number.
    """
    with disk.within("commit"):
        opened = PreferenceStore(run / "preferences")
    trainer, done = RewardTrainer(SETTINGS, VECTORS, FORCES, held_out_share=0.2, seed=0), 0
    checkpoint = last_checkpoint(run / "checkpoints")
    if checkpoint is not None:
        done = int(checkpoint.name)
        with disk.within("commit"):
            opened.import_from(checkpoint / "preferences")
        trainer.load_state(state_in(checkpoint), opened.since(0))

    def write(folder: Path) -> None:
        (folder / "trainer").write_bytes(pickle.dumps(trainer.state()))
        opened.copy_to(folder / "preferences")
        trainer.ensemble.save(folder / "reward_model")

    for number in range(done, len(BATCHES)):
        with disk.within("commit"):
            opened.commit(BATCHES[number], annotator="oracle")
        acknowledged.update(BATCHES[number].pairs.ids)
        trainer.comparisons.add(BATCHES[number])
        trainer.fit(2)
        made[int(trainer.ensemble.version)] = trainer.ensemble.state()
        if number % 2:
            with disk.within("checkpoint"):
                save_checkpoint(run / "checkpoints", number + 1, write, unlisted="preferences")
    return trainer


def state_in(checkpoint: Path) -> State:
    state: State = pickle.loads((checkpoint / "trainer").read_bytes())  # noqa: S301 - written above
    return state


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def check_store(path: Path, acknowledged: set[str]) -> set[str]:
    """Whether the store is sound and holds each acknowledged label once, as it was given. Returns the ids it holds."""
    opened = PreferenceStore(path, create=False)
    assert opened.verify().problems == ()
    events, held = opened.events()["event_id"].to_pylist(), opened.load()
    ids = () if held is None else held.pairs.ids
    assert len(events) == len(set(events)) == len(ids) == len(set(ids))
    assert acknowledged <= set(ids)
    if held is not None:
        everything = joined(BATCHES)
        given = {name: i for i, name in enumerate(everything.pairs.ids)}
        assert same_comparisons(held, everything[np.array([given[name] for name in ids])])
    return set(ids)


def check(run: Path, acknowledged: set[str], versions: dict[int, State], reached: int) -> int:
    """Whether labels and checkpoints are whole; the checkpoint there is, which is none before ``reached``."""
    if (run / "preferences" / "store.json").exists():
        check_store(run / "preferences", acknowledged)
    else:
        assert not acknowledged
    checkpoint = last_checkpoint(run / "checkpoints")
    if checkpoint is None:
        assert reached == 0
        return 0
    state = state_in(checkpoint)
    saved = RewardEnsemble.load(checkpoint / "reward_model")
    assert same(saved.state(), versions[int(saved.version)])
    assert same(state["ensemble"], saved.state())
    assert check_store(checkpoint / "preferences", {pair for pair, _ in state["keys"]}) <= set(
        PreferenceStore(run / "preferences").snapshot().ids
    )
    assert int(checkpoint.name) >= reached
    return int(checkpoint.name)


def cut_power(path: Path, monkeypatch: pytest.MonkeyPatch, cuts: int) -> Counter[str]:
    """Run after run: the power goes twice, each time comes back, and at last stays. Returns how many cuts fell where."""
    monkeypatch.setattr(store, "COMPACT_AT", 3)
    versions: dict[int, State] = {}
    counter = Disk(-1, random.Random(0), path)
    with monkeypatch.context() as patch:
        counter.install(patch)
        undisturbed = work(path / "whole", set(), counter, versions)
    operations = {kind: [at for at, of in enumerate(counter.kinds, 1) if of == kind] for kind in KINDS}
    rng, cut = random.Random(cuts), Counter[str]()
    everything = {name for batch in BATCHES for name in batch.pairs.ids}
    run = path / "cut"
    while cut.total() < cuts:
        acknowledged, reached = set[str](), 0
        for _ in range(2):
            # As often in each kind of work; after the first cut, which shifts everything, wherever it falls.
            disk = Disk(rng.choice(operations[rng.choice(KINDS)]), rng, path)
            with monkeypatch.context() as patch:
                disk.install(patch)
                try:
                    work(run, acknowledged, disk, {})
                except PowerCutError:
                    disk.lose()
                    cut[disk.doing[-1]] += 1
            reached = check(run, acknowledged, versions, reached)
        resumed = work(run, acknowledged, Disk(-1, rng, path), {})
        assert (
            check_store(run / "preferences", everything) == everything == {pair for pair, _ in resumed.comparisons.keys}
        )
        assert same(resumed.ensemble.state(), undisturbed.ensemble.state())
        shutil.rmtree(run)
    return cut


@pytest.mark.slow
def test_a_run_goes_on_whenever_the_power_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(cut_power(tmp_path, monkeypatch, 12)) >= set(KINDS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_of_many_power_cuts_anywhere_in_a_run_none_loses_or_doubles_a_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = int(os.environ.get("POWER_CUTS", "100"))
    cut = cut_power(tmp_path, monkeypatch, cuts)
    print(cut)
    assert min(cut[kind] for kind in KINDS) > cuts // 10
