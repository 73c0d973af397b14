import dataclasses
from typing import Any

import numpy as np
import pytest

from actors.reward_trainer import RewardTrainerActor, StateLostError
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings
from tests.made_up import FORCES, VECTORS, some_comparisons

FIRST, SECOND = some_comparisons(6, seed=1), some_comparisons(4, seed=2)


def _actor() -> RewardTrainerActor:
    return RewardTrainerActor(RewardModelSettings(hidden=(8,)), PreferenceSettings(), VECTORS, FORCES, seed=0)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_fitting_the_same_version_again_returns_it_without_fitting_again() -> None:
    actor = _actor()
    report, state = actor.fit(FIRST, 5, 1)
    again, same_state = actor.fit(FIRST, 5, 1)
    assert again == report
    assert report.version == 1
    assert _same(state["ensemble"], same_state["ensemble"])
    assert state["ids"] == same_state["ids"]
    later, _ = actor.fit(SECOND, 5, 2)
    undisturbed = _actor()
    undisturbed.fit(FIRST, 5, 1)
    expected, _ = undisturbed.fit(SECOND, 5, 2)
    assert str(dataclasses.replace(later, seconds=0)) == str(dataclasses.replace(expected, seconds=0))  # NaN is not NaN
    assert _same(actor.publish(2), undisturbed.publish(2))


def test_a_version_is_published_whole_and_only_if_it_is_the_current_one() -> None:
    actor = _actor()
    actor.fit(FIRST, 3, 1)
    published = actor.publish(1)
    assert published["version"] == 1
    assert {"reward_mean", "reward_std"} < set(published)
    for other in (0, 2):
        with pytest.raises(StateLostError, match=f"at version 1, and version {other}"):
            actor.publish(other)


def test_a_restarted_trainer_says_that_it_lost_its_state_and_goes_on_when_given_it_back() -> None:
    undisturbed = _actor()
    _, state = undisturbed.fit(FIRST, 5, 1)
    restarted = _actor()
    with pytest.raises(StateLostError, match="at version 0; version 2 cannot follow"):
        restarted.fit(SECOND, 5, 2)
    with pytest.raises(StateLostError):
        restarted.publish(1)
    restarted.load_state(state, FIRST)
    undisturbed.fit(SECOND, 5, 2)
    report, _ = restarted.fit(SECOND, 5, 2)
    assert report.comparisons == 10
    assert _same(restarted.publish(2), undisturbed.publish(2))


def test_a_version_cannot_be_skipped_or_gone_back_to() -> None:
    actor = _actor()
    actor.fit(FIRST, 1, 1)
    actor.fit(None, 1, 2)
    for version in (1, 4):
        with pytest.raises(StateLostError):
            actor.fit(SECOND, 1, version)
    assert actor.publish(2)["version"] == 2
    assert len(actor.trainer.ids) == 6  # nothing of what was refused was taken in


def test_a_fit_without_new_comparisons_fits_the_old_ones() -> None:
    actor = _actor()
    first, _ = actor.fit(FIRST, 5, 1)
    second, _ = actor.fit(None, 50, 2)
    assert second.comparisons == first.comparisons == 6
    assert second.train_loss < first.train_loss


def test_what_is_held_out_is_what_the_settings_say() -> None:
    settings = PreferenceSettings(held_out_share=0.5)
    actor = RewardTrainerActor(RewardModelSettings(hidden=(8,)), settings, VECTORS, FORCES, seed=0)
    report, _ = actor.fit(some_comparisons(60), 1, 1)
    assert 15 <= report.held_out <= 45
