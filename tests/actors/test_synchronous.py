"""The whole ring, with real Ray actors."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from actors.pipeline import RoundReport
from actors.synchronous import SynchronousPipeline
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings, SettingError
from rlhf_ray.store import PreferenceStore
from tests.made_up import AlwaysUp, Walk, same_comparisons

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

FRAGMENTS = FragmentSettings(length=5, pool=30, initial_env_steps=200, exploration_env_steps=60)
PREFERENCES = PreferenceSettings(
    comparisons=10,
    initial_comparisons=6,
    rounds=6,
    selection="disagreement",
    oversampling=4,
    teacher="stochastic",
    held_out_share=0.2,
)
LABELS = [6, 1, 0, 1, 1, 0, 1]
REWARD_MODEL = RewardModelSettings(hidden=(8,), batch_size=4, initial_updates=10, updates=5)
ROLES = {"collector", "fragmenter", "gatherer", "store", "reward_trainer"}


@dataclasses.dataclass
class Outcome:
    """What a run of the ring came to."""

    reports: list[RoundReport]
    reward: dict[str, Any]
    comparisons: Comparisons
    env_steps: int


@contextmanager
def _ring(
    folder: Path,
    name: str = "ring",
    *,
    fragments: FragmentSettings = FRAGMENTS,
    preferences: PreferenceSettings = PREFERENCES,
    lengths: tuple[int, ...] = (20,),
    seed: int = 0,
    spread: int = 100,
) -> Iterator[SynchronousPipeline]:
    ring = SynchronousPipeline(
        name=name,
        fragments=fragments,
        preferences=preferences,
        reward_model=REWARD_MODEL,
        observation_space=Walk.observation_space,
        action_space=Walk().action_space,
        make_env=partial(Walk, lengths, numbered=False),
        store=folder / "store",
        seed=seed,
        rollouts=4,
        spread=spread,
    )
    try:
        yield ring
    finally:
        ring.close()


def _round(ring: SynchronousPipeline, number: int) -> RoundReport:
    if number == 0:
        return ring.begin(FRAGMENTS.initial_env_steps)
    ring.explore(number, number, partial(AlwaysUp, 0.1 * number))
    return ring.hold_round(number)


def _run(
    folder: Path, name: str, before_round: Callable[[SynchronousPipeline, int], Any] = lambda ring, number: None
) -> Outcome:
    """All rounds from the first to the last."""
    reports = []
    with _ring(folder, name) as ring:
        for number in range(PREFERENCES.rounds + 1):
            before_round(ring, number)
            reports.append(_round(ring, number))
        return _outcome(ring, folder, reports)


def _outcome(ring: SynchronousPipeline, folder: Path, reports: list[RoundReport]) -> Outcome:
    reward = {name: value.copy() for name, value in ring.publish().items()}
    comparisons = PreferenceStore(folder / "store").load()
    assert comparisons is not None
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
"""Before this round `undisturbed` keeps the ring's state and a copy of its store."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture(scope="module")
def checkpoint() -> dict[str, Any]:
    return {}


@pytest.fixture(scope="module")
def undisturbed(ray_session: None, folder: Path, checkpoint: dict[str, Any]) -> Outcome:
    def keep(ring: SynchronousPipeline, number: int) -> None:
        if number == CHECKPOINT:
            checkpoint.update(ring.state())
            ring.copy_store(folder / "copy")

    return _run(folder, "undisturbed", keep)


def _restart(ring: SynchronousPipeline, role: str) -> None:
    actor = ring.trainer if role == "reward_trainer" else getattr(ring, role)
    ray.kill(actor, no_restart=False)


def test_the_rounds_ask_for_exactly_the_label_budget(undisturbed: Outcome) -> None:
    assert [report.wanted for report in undisturbed.reports] == LABELS
    assert [report.answered for report in undisturbed.reports] == LABELS
    assert [report.comparisons for report in undisturbed.reports] == np.cumsum(LABELS).tolist()
    assert len(undisturbed.comparisons) == sum(LABELS) == PREFERENCES.comparisons
    assert len(set(undisturbed.comparisons.pairs.ids)) == PREFERENCES.comparisons
    assert undisturbed.env_steps == 200 + 6 * 60


def test_each_round_with_answers_makes_a_version_fitted_to_all_of_them_and_one_without_makes_none(
    undisturbed: Outcome,
) -> None:
    version, answers = 0, 0
    for report, labels in zip(undisturbed.reports, LABELS, strict=True):
        answers += labels
        if labels == 0:
            assert report.fit is None
            continue
        version += 1
        assert report.fit is not None
        assert report.fit.version == version
        assert report.fit.comparisons == answers
        assert report.fit.gradient_steps == (10 if version == 1 else 5)
    assert undisturbed.reward["version"] == version


def test_clips_carry_the_version_of_the_policy_that_made_them(undisturbed: Outcome) -> None:
    pairs = undisturbed.comparisons.pairs
    assert (pairs.left.policy_versions[:6] == -1).all()
    assert set(pairs.left.policy_versions.tolist() + pairs.right.policy_versions.tolist()) > {-1}


def test_a_second_ring_with_the_same_seed_comes_to_the_same_bit_for_bit(undisturbed: Outcome, tmp_path: Path) -> None:
    _assert_same(_run(tmp_path, "second"), undisturbed)


def test_actors_that_die_between_rounds_are_restarted_and_change_nothing(undisturbed: Outcome, tmp_path: Path) -> None:
    deaths = {1: ["collector"], 3: ["reward_trainer"], 4: ["store", "gatherer"]}

    def kill(ring: SynchronousPipeline, number: int) -> None:
        for role in deaths.get(number, []):
            _restart(ring, role)

    _assert_same(_run(tmp_path, "mortal", kill), undisturbed)


def test_a_fragmenter_that_dies_loses_its_clips_and_what_was_due_is_asked_for_later(tmp_path: Path) -> None:
    with _ring(tmp_path) as ring:
        _round(ring, 0)
        _restart(ring, "fragmenter")
        lost = ring.hold_round(1)  # without any new clips
        assert (lost.wanted, lost.answered, lost.fit) == (1, 0, None)
        reports = [_round(ring, number) for number in range(2, 7)]
        assert [report.answered for report in reports] == [1, 1, 1, 0, 1]
        assert ring.answered == PREFERENCES.comparisons
    assert len(PreferenceStore(tmp_path / "store")) == PREFERENCES.comparisons


def test_a_restored_ring_goes_on_bit_for_bit_and_uses_the_answers_that_came_after_the_checkpoint(
    undisturbed: Outcome, folder: Path, checkpoint: dict[str, Any], tmp_path: Path
) -> None:
    # As after a crash: the store holds more than the checkpoint, and the same will be asked again.
    with _ring(tmp_path) as ring:
        ring.import_store(folder / "store")
        ring.load_state(checkpoint)
        later = [_round(ring, number) for number in range(CHECKPOINT, 7)]
        _assert_same(_outcome(ring, tmp_path, undisturbed.reports[:CHECKPOINT] + later), undisturbed)


def test_a_copy_of_the_store_holds_the_answers_up_to_then(undisturbed: Outcome, folder: Path) -> None:
    copy = PreferenceStore(folder / "copy").load()
    assert copy is not None
    assert same_comparisons(copy, undisturbed.comparisons[: sum(LABELS[:CHECKPOINT])])


def test_closing_ends_every_actor(tmp_path: Path) -> None:
    with _ring(tmp_path, "closing"):
        assert {name for name in ray.util.list_named_actors() if name.startswith("closing/")} == {
            f"closing/{role}" for role in ROLES
        }
    # That none of them is left is checked for every test here.


def test_a_training_with_room_for_fewer_rounds_asks_for_all_labels_in_those(tmp_path: Path) -> None:
    with _ring(tmp_path, spread=2) as ring:
        assert ring.labels == [6, 2, 2]
    with _ring(tmp_path, "no room", spread=0) as ring:
        assert ring.labels == [10]


def test_episodes_of_different_lengths_are_an_error_that_names_the_setting(tmp_path: Path) -> None:
    with _ring(tmp_path, lengths=(20, 12)) as ring:
        with pytest.raises(SettingError) as error:
            ring.begin(FRAGMENTS.initial_env_steps)
        assert str(error.value).startswith("preferences.allow_variable_horizon is False, ")
        assert "episodes of 12 to 20 steps" in str(error.value)
        ring.preferences = dataclasses.replace(PREFERENCES, allow_variable_horizon=True)
        assert ring.arrived()["episode_lengths"] == [12, 20]
        assert ring.hold_round(0).answered == 6


def test_fragments_longer_than_the_episodes_are_an_error_that_names_the_setting(tmp_path: Path) -> None:
    with _ring(tmp_path, fragments=FragmentSettings(length=21, initial_env_steps=200)) as ring:
        with pytest.raises(SettingError) as error:
            ring.begin(200)
        assert str(error.value).startswith("fragments.length is 21, ")
        assert "[20] steps" in str(error.value)
        assert "shorten fragments.length" in str(error.value)
