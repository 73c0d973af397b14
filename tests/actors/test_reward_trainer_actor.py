import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.gatherer import SyntheticGatherer
from actors.reward_trainer import RewardTrainerActor, StateLostError
from rlhf_ray.data.comparisons import Changes, Comparisons
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings
from rlhf_ray.store import PreferenceStore
from tests.made_up import FORCES, VECTORS, some_comparisons

FIRST, SECOND = some_comparisons(6, seed=1), some_comparisons(4, seed=2)


def _actor() -> RewardTrainerActor:
    return RewardTrainerActor(RewardModelSettings(hidden=(8,)), PreferenceSettings(), VECTORS, FORCES, seed=0)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def _version(actor: RewardTrainerActor) -> dict[str, Any]:
    return actor.trainer.ensemble.state()


def test_fitting_the_same_version_again_returns_it_without_fitting_again() -> None:
    actor = _actor()
    report, state = actor.fit(5, 1, FIRST)
    again, same_state = actor.fit(5, 1, FIRST)
    assert again == report
    assert report.version == 1
    assert _same(state["ensemble"], same_state["ensemble"])
    assert state["keys"] == same_state["keys"]
    later, _ = actor.fit(5, 2, SECOND)
    undisturbed = _actor()
    undisturbed.fit(5, 1, FIRST)
    expected, _ = undisturbed.fit(5, 2, SECOND)
    assert str(dataclasses.replace(later, seconds=0)) == str(dataclasses.replace(expected, seconds=0))  # NaN is not NaN
    assert _same(_version(actor), _version(undisturbed))


def test_a_version_is_whole() -> None:
    _, state = _actor().fit(3, 1, FIRST)
    assert state["ensemble"]["version"] == 1
    assert {"reward_mean", "reward_std"} < set(state["ensemble"])


def test_several_batches_are_taken_in_at_once() -> None:
    one, other = _actor(), _actor()
    report, _ = one.fit(5, 1, FIRST, SECOND)
    other.fit(5, 1, Comparisons.concatenate([FIRST, SECOND]))
    assert report.comparisons == 10
    assert _same(_version(one), _version(other))


def test_a_restarted_trainer_says_that_it_lost_its_state_and_goes_on_when_given_it_back() -> None:
    undisturbed = _actor()
    _, state = undisturbed.fit(5, 1, FIRST)
    restarted = _actor()
    with pytest.raises(StateLostError, match="at version 0; version 2 cannot follow"):
        restarted.fit(5, 2, SECOND)
    restarted.load_state(state, FIRST)
    undisturbed.fit(5, 2, SECOND)
    report, _ = restarted.fit(5, 2, SECOND)
    assert report.comparisons == 10
    assert _same(_version(restarted), _version(undisturbed))


def test_a_version_cannot_be_skipped_or_gone_back_to() -> None:
    actor = _actor()
    actor.fit(1, 1, FIRST)
    actor.fit(1, 2)
    for version in (1, 4):
        with pytest.raises(StateLostError):
            actor.fit(1, version, SECOND)
    assert _version(actor)["version"] == 2
    assert len(actor.trainer.keys) == 6  # nothing of what was refused was taken in


def test_a_fit_without_new_comparisons_fits_the_old_ones() -> None:
    actor = _actor()
    first, _ = actor.fit(5, 1, FIRST)
    second, _ = actor.fit(50, 2)
    assert second.comparisons == first.comparisons == 6
    assert second.train_loss < first.train_loss


def test_what_is_held_out_is_what_the_settings_say() -> None:
    settings = PreferenceSettings(held_out_share=0.5)
    actor = RewardTrainerActor(RewardModelSettings(hidden=(8,)), settings, VECTORS, FORCES, seed=0)
    report, _ = actor.fit(1, 1, some_comparisons(60))
    assert 15 <= report.held_out <= 45


def test_changes_are_taken_in_and_where_everything_was_withdrawn_no_version_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    actor = _actor()
    nothing, _ = actor.fit(5, 1, Changes(1, None, (("gone", "anna"),)))
    assert (nothing.version, nothing.comparisons, nothing.gradient_steps) == (0, 0, 0)
    assert "No new version of the reward model: There are no comparisons" in caplog.text
    report, state = actor.fit(5, 1, FIRST, Changes(9, SECOND, tuple(FIRST.keys[:2]), {"anna": 0.5}))
    assert (report.version, report.comparisons) == (1, 8)
    assert state["weights"] == {"anna": 0.5}
    nothing, state = actor.fit(5, 2, Changes(20, None, tuple(FIRST.keys + SECOND.keys)))
    assert (nothing.version, nothing.gradient_steps) == (1, 0)
    assert np.isnan(nothing.train_loss)
    assert state["keys"] == []
    assert state["ensemble"]["version"] == 1
    report, _ = actor.fit(5, 2, FIRST)
    assert (report.version, report.comparisons) == (2, 6)


def test_a_trainer_restored_from_the_store_has_what_the_gatherer_gave_it_and_takes_it_once(tmp_path: Path) -> None:
    store, gatherer = PreferenceStore(tmp_path), SyntheticGatherer(PreferenceSettings(), seed=0)
    first, second = gatherer.gather(FIRST.pairs, 0), gatherer.gather(SECOND.pairs, 1)
    undisturbed, restarted = _actor(), _actor()
    _, state = undisturbed.fit(5, 1, first)
    for answers in (first, second):
        store.commit(answers, annotator=PreferenceSettings().teacher)
    restarted.load_state(state, store.since(0))
    stored = store.load()
    assert stored is not None
    report, _ = restarted.fit(5, 2, stored)
    assert report.comparisons == 10
    undisturbed.fit(5, 2, second)
    assert _same(_version(restarted), _version(undisturbed))
