"""Rows of the page for those who come from drlhp about its wrapper: what they say is tried, or their names are checked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.coming_from.pages import DRLHP, named, note, row_of
from tests.wrappers.walking import act, make

ARGUMENTS, METHODS = "Arguments of `HumanPreferencesEnvWrapper`", "Methods and attributes"
NAMES = {
    (ARGUMENTS, "train_reward"): "HumanPreferencesEnv(fit)",
    (ARGUMENTS, "collect_prefs"): "HumanPreferencesEnv(ask)",
    (ARGUMENTS, "obs_transform_func"): "HumanPreferencesEnv(observation_transform)",
    (ARGUMENTS, "pretrained_reward_predictor_dir"): "HumanPreferencesEnv(reward_model)",
    (METHODS, "start_segment_collection"): "HumanPreferencesEnv.resume_collecting",
    (METHODS, "stop_segment_collection"): "HumanPreferencesEnv.pause_collecting",
    (METHODS, "switch_to_true_reward"): "HumanPreferencesEnv.use_true_reward",
    (METHODS, "switch_to_predicted_reward"): "HumanPreferencesEnv.use_learned_reward",
    (METHODS, "save_prefs"): "HumanPreferencesEnv.save",
    (METHODS, "last_true_reward"): "HumanPreferencesEnv.step",
    (METHODS, "close"): "HumanPreferencesEnv.close",
}
"""Our first name in rows whose claim test_single.py, test_saving.py and test_waiting.py show."""


@pytest.mark.parametrize("case", NAMES, ids=lambda case: case[1])
def test_rows_of_the_wrapper(case: tuple[str, str]) -> None:
    assert named(DRLHP, *case)[0] == NAMES[case]


def test_what_a_step_returns_and_the_status_counts(in_process: SimpleNamespace) -> None:
    assert named(DRLHP, ARGUMENTS, "env") == ("HumanPreferencesEnv",)
    for option in ("step", "using_reward_from_predictor"):
        assert named(DRLHP, METHODS, option) == ("HumanPreferencesEnv.step",)
    (learned,) = [of.split('"')[1] for of in note(DRLHP, METHODS, "using_reward_from_predictor")]
    assert "before the first fit the reward is 0" in row_of(DRLHP, METHODS, "step").ours[-1]
    answers, fits = note(DRLHP, METHODS, "pref_db_size")
    steps = note(DRLHP, METHODS, "segments_collected")[-1]
    with make() as env:
        *_, info = act(env, 1)[0]
        assert not info[learned]
        assert {answers, fits, steps} <= set(env.status())
