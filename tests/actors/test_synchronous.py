"""The synchronous ring, in this process."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from rlhf_ray.actors.executor import LocalExecutor
from rlhf_ray.actors.ring import RoundReport
from rlhf_ray.actors.synchronous import SynchronousRing
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.errors import LostFragmentsError
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.store import PreferenceStore
from tests.actors.rings import REWARD_MODEL, at, ring_in
from tests.made_up import labels_in, same_comparisons

PREFERENCES = PreferenceSettings(
    schedule="constant",
    comparisons=10,
    initial_comparisons=6,
    rounds=6,
    selection="disagreement",
    oversampling=4,
    teacher="stochastic",
    held_out_share=0.2,
)
LABELS = [6, 1, 0, 1, 1, 0, 1]


@dataclasses.dataclass
class Outcome:
    """What a run of the ring came to."""

    reports: list[RoundReport]
    reward: dict[str, Any]
    comparisons: Comparisons
    env_steps: int


def _round(ring: SynchronousRing, number: int) -> RoundReport:
    report = ring.begin(200) if number == 0 else ring.advance(at(number / 6, push=0.1 * number, iteration=number))
    assert report is not None
    return report


Before = Callable[[SynchronousRing, LocalExecutor, int], Any]


def _run(
    folder: Path, before_round: Before = lambda ring, executor, number: None, begun_after: int | None = None
) -> Outcome:
    """All rounds from the first to the last."""
    reports, executor = [], LocalExecutor()
    with ring_in(folder, PREFERENCES, executor=executor, begun_after=begun_after) as ring:
        for number in range(PREFERENCES.rounds + 1):
            before_round(ring, executor, number)
            reports.append(_round(ring, number))
        return _outcome(ring, folder, reports)


def _outcome(ring: SynchronousRing, folder: Path, reports: list[RoundReport]) -> Outcome:
    reward = {name: value.copy() for name, value in ring.newest_reward().items()}
    comparisons = labels_in(folder / "store")
    return Outcome(reports, reward, comparisons, ring.env_steps)


def _without_time(report: RoundReport) -> str:
    fit = None if report.fit is None else dataclasses.replace(report.fit, seconds=0.0)
    return str(dataclasses.replace(report, fit=fit))


def _assert_same(one: Outcome, other: Outcome) -> None:
    assert [_without_time(report) for report in one.reports] == [_without_time(report) for report in other.reports]
    assert same_comparisons(one.comparisons, other.comparisons)
    assert one.reward.keys() == other.reward.keys()
    for name in one.reward:
        assert np.array_equal(one.reward[name], other.reward[name]), name
    assert one.env_steps == other.env_steps


CHECKPOINT = 3
"""Before this round `undisturbed` is saved."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Outcome:
    def keep(ring: SynchronousRing, executor: LocalExecutor, number: int) -> None:
        if number == CHECKPOINT:
            (folder / "checkpoint").mkdir()
            ring.save(folder / "checkpoint")

    return _run(folder, keep)


def test_the_rounds_ask_for_exactly_the_label_budget(undisturbed: Outcome) -> None:
    assert [report.wanted for report in undisturbed.reports] == LABELS
    assert [report.answered for report in undisturbed.reports] == LABELS
    assert [report.comparisons for report in undisturbed.reports] == np.cumsum(LABELS).tolist()
    assert len(undisturbed.comparisons) == sum(LABELS) == PREFERENCES.comparisons
    assert len(set(undisturbed.comparisons.pairs.ids)) == PREFERENCES.comparisons
    assert undisturbed.env_steps == 200 + 6 * 60


def test_each_round_with_answers_makes_a_version_fitted_to_all_of_them_and_one_without_makes_none(undisturbed):
    version, answers = 0, 0
    for report, labels in zip(undisturbed.reports, LABELS, strict=True):
        answers += labels
        if labels == 0:
            assert report.fit is None
            continue
        version += 1
        assert report.fit.version == version
        assert report.fit.comparisons == answers
        assert report.fit.gradient_steps == (10 if version == 1 else 5)
    assert undisturbed.reward["version"] == version


def test_clips_carry_the_version_of_the_policy_that_made_them(undisturbed: Outcome) -> None:
    pairs = undisturbed.comparisons.pairs
    assert (pairs.left.policy_versions[:6] == -1).all()
    assert set(pairs.left.policy_versions.tolist() + pairs.right.policy_versions.tolist()) > {-1}


def test_a_second_ring_with_the_same_seed_comes_to_the_same_bit_for_bit(undisturbed: Outcome, tmp_path: Path) -> None:
    _assert_same(_run(tmp_path), undisturbed)


def test_actors_that_die_between_rounds_are_restarted_and_change_nothing(undisturbed: Outcome, tmp_path: Path) -> None:
    deaths = {1: ["collector"], 3: ["reward_trainer"], 4: ["store", "gatherer"]}

    def kill(ring: SynchronousRing, executor: LocalExecutor, number: int) -> None:
        for role in deaths.get(number, []):
            executor.restart(role)

    _assert_same(_run(tmp_path, kill), undisturbed)


def test_a_pool_that_dies_loses_its_clips_and_what_was_due_is_asked_for_later(tmp_path: Path) -> None:
    executor = LocalExecutor()
    with ring_in(tmp_path, PREFERENCES, executor=executor) as ring:
        _round(ring, 0)
        executor.restart("pool")
        lost = ring.advance(at(1 / 6, room=0))  # without any new clips
        assert (lost.wanted, lost.answered, lost.fit) == (1, 0, None)
        reports = [_round(ring, number) for number in range(2, 7)]
        assert [report.answered for report in reports] == [1, 1, 1, 0, 1]
        assert ring.answered == PREFERENCES.comparisons
    assert len(PreferenceStore(tmp_path / "store")) == PREFERENCES.comparisons


@pytest.mark.parametrize("where", ["where it was", "elsewhere"])
def test_a_restored_ring_goes_on_bit_for_bit_though_the_store_is_ahead(undisturbed, folder, tmp_path, where):
    # As after a crash: the store holds more than the checkpoint, and the same will be asked again.
    if where == "where it was":
        PreferenceStore(folder / "store").copy_to(tmp_path / "store")
    with ring_in(tmp_path, PREFERENCES) as ring:
        ring.load(folder / "checkpoint")
        later = [_round(ring, number) for number in range(CHECKPOINT, 7)]
        _assert_same(_outcome(ring, tmp_path, undisturbed.reports[:CHECKPOINT] + later), undisturbed)


def test_a_ring_that_begins_again_with_what_it_had_stored_comes_to_the_same_bit_for_bit(undisturbed, folder, tmp_path):
    PreferenceStore(folder / "store").copy_to(tmp_path / "store")

    _assert_same(_run(tmp_path, begun_after=0), undisturbed)


def test_a_checkpoint_holds_the_answers_up_to_then_and_no_pickle(undisturbed: Outcome, folder: Path) -> None:
    copy = labels_in(folder / "checkpoint" / "preferences")
    assert same_comparisons(copy, undisturbed.comparisons[: sum(LABELS[:CHECKPOINT])])
    files = {file for file in (folder / "checkpoint").rglob("*") if file.is_file()}
    assert {file.parent.name for file in files if not file.suffix} == {"last"}  # the store's marker
    assert {file.suffix for file in files} == {".json", ".npz", ".arrow", ".parquet", ""}


def test_labels_that_are_there_count_and_bring_the_gradient_steps_of_their_rounds(undisturbed, folder, tmp_path):
    with ring_in(tmp_path, PREFERENCES) as ring:
        ring.adopt(folder / "checkpoint" / "preferences")
        report = ring.begin(200)
        assert (report.wanted, report.answered, report.comparisons) == (6, 7, 7)
        assert report.fit.gradient_steps == 10 + 5


def test_the_pairs_of_labels_that_are_there_are_not_asked_again(undisturbed, folder, tmp_path):
    first = LABELS[0]
    given = PreferenceStore(tmp_path / "given")
    given.commit(undisturbed.comparisons[:first], annotator="ada")  # another annotator: the events' ids don't tell
    asking = dataclasses.replace(PREFERENCES, comparisons=2 * first, initial_comparisons=2 * first)
    with ring_in(tmp_path, asking) as ring:  # of the same seed: the same fragments, and the same draw of pairs
        ring.adopt(tmp_path / "given")
        ring.begin(200)
    held = labels_in(tmp_path / "store")
    assert len(held) == 2 * first
    assert len({frozenset(pair) for pair in PreferenceStore(tmp_path / "store").pairs()}) == 2 * first


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_clips_that_are_lost_fail_the_run_where_it_would_be_another_one_without_them(tmp_path, monkeypatch, mode):
    preferences = dataclasses.replace(PREFERENCES, mode=mode, selection="random")
    executor = LocalExecutor()
    with ring_in(tmp_path, preferences, executor=executor) as ring:
        assert ring.begin(200) is not None

        def lose(clips: Any) -> None:
            raise ray.exceptions.ObjectLostError("0" * 56, None, "")

        monkeypatch.setattr(executor.actors["pool"], "add", lose)
        if mode == "synchronous":
            with pytest.raises(LostFragmentsError, match=r"--resume RUN.*or set preferences\.mode to asynchronous"):
                ring.advance(at(1 / 6))
        else:
            ring.advance(at(1.0))
            assert ring.settle()[0] == 0


def test_methods_get_pairs_that_nobody_was_asked_about_and_a_run_with_them_repeats(tmp_path: Path) -> None:
    methods = dataclasses.replace(REWARD_MODEL, methods=("surf", "rime", "rune"), adaptive_l2=True, early_stopping=2)
    rewards = []
    for turn in ("once", "again"):
        executor = LocalExecutor()
        with ring_in(tmp_path / turn, PREFERENCES, reward_model=methods, executor=executor) as ring:
            report = [_round(ring, number) for number in range(4)][-1]
            pool = executor.actors["pool"]
            asked = {frozenset(pair) for pairs in pool._asked.values() for pair in pairs}
            unlabelled = pool.unlabelled(40, 1)
            names = list(zip(unlabelled.left.ids(), unlabelled.right.ids(), strict=True))
            assert len(names) == 40
            assert not asked & {frozenset(pair) for pair in names}
            assert set(report.fit.methods) == {"trusted_share", "flipped_share"}
            rewards.append(ring.newest_reward())
    assert all(np.array_equal(of, rewards[1][name]) for name, of in rewards[0].items())
