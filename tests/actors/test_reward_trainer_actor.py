import dataclasses
from typing import Any

import numpy as np
import pytest

from rlhf_ray.actors.ring_actors import RewardTrainerActor, StateLostError
from rlhf_ray.data.comparisons import Changes
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings
from tests.made_up import FORCES, VECTORS, some_comparisons

FIRST, SECOND = Changes(6, some_comparisons(6, seed=1)), Changes(10, some_comparisons(4, seed=2))
NOTHING = Changes(10, None)


def _keys(changes: Changes) -> tuple[tuple[str, str], ...]:
    assert changes.held is not None
    return tuple(changes.held.keys)


def _actor() -> RewardTrainerActor:
    return RewardTrainerActor(RewardModelSettings(hidden=(8,)), PreferenceSettings(), VECTORS, FORCES, seed=0)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def _version(actor: RewardTrainerActor) -> dict[str, Any]:
    return actor.trainer.ensemble.state()


def test_fitting_the_same_version_again_returns_it_without_fitting_again() -> None:
    actor = _actor()
    fit, reward, state = actor.fit(5, 1, FIRST)
    again, same_reward, same_state = actor.fit(5, 1, FIRST)
    assert again == fit
    assert (fit.report.version, fit.last) == (1, 6)
    assert _same(reward, same_reward)
    assert state["keys"] == same_state["keys"]
    later, _, _ = actor.fit(5, 2, SECOND)
    undisturbed = _actor()
    undisturbed.fit(5, 1, FIRST)
    expected, _, _ = undisturbed.fit(5, 2, SECOND)
    now, then = (str(dataclasses.replace(of.report, seconds=0)) for of in (later, expected))  # NaN is not NaN
    assert now == then
    assert _same(_version(actor), _version(undisturbed))


def test_a_version_cannot_be_skipped_or_gone_back_to() -> None:
    actor = _actor()
    actor.fit(1, 1, FIRST)
    actor.fit(1, 2, NOTHING)
    for version in (1, 4):
        with pytest.raises(StateLostError):
            actor.fit(1, version, SECOND)
    assert _version(actor)["version"] == 2
    assert len(actor.trainer.comparisons.keys) == 6  # nothing of what was refused was taken in


def test_changes_are_taken_in_and_where_everything_was_withdrawn_no_version_is_made(caplog):
    actor = _actor()
    nothing, _, _ = actor.fit(5, 1, Changes(1, None, (("gone", "anna"),)))
    assert (nothing.report.version, nothing.report.comparisons, nothing.report.gradient_steps) == (0, 0, 0)
    assert "No new version of the reward model: There are no comparisons" in caplog.text
    actor.fit(5, 1, FIRST)
    fit, _, _ = actor.fit(5, 2, Changes(9, SECOND.held, _keys(FIRST)[:2], {"anna": 0.5}))
    assert (fit.report.version, fit.report.comparisons, fit.last) == (2, 8, 9)
    assert actor.trainer.comparisons.weights == {"anna": 0.5}
    nothing, _, state = actor.fit(5, 3, Changes(20, None, (*_keys(FIRST), *_keys(SECOND))))
    assert (nothing.report.version, nothing.report.gradient_steps) == (2, 0)
    assert np.isnan(nothing.report.train_loss)
    assert state["keys"] == []
    assert state["ensemble"]["version"] == 2
    fit, _, _ = actor.fit(5, 3, FIRST)
    assert (fit.report.version, fit.report.comparisons) == (3, 6)
