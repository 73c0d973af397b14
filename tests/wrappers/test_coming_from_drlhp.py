"""Rows of the page for those who come from drlhp about its wrapper: each names what a test of our wrapper shows."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from tests.coming_from.pages import ROWS, spans
from tests.wrappers import test_exploring, test_single

ARGUMENTS, METHODS = "Arguments of `HumanPreferencesEnvWrapper`", "Methods and attributes"
SHOWN: dict[tuple[str, str], tuple[str, Callable[..., None]]] = {
    (ARGUMENTS, "train_reward"): (
        "HumanPreferencesEnv(fit)",
        test_single.test_preferences_are_collected_without_fitting_and_fitted_to_without_collecting,
    ),
    (ARGUMENTS, "collect_prefs"): (
        "HumanPreferencesEnv(ask)",
        test_single.test_preferences_are_collected_without_fitting_and_fitted_to_without_collecting,
    ),
    (ARGUMENTS, "obs_transform_func"): (
        "HumanPreferencesEnv(observation_transform)",
        test_single.test_a_dict_space_works_from_end_to_end_by_its_transform,
    ),
    (ARGUMENTS, "pretrained_reward_predictor_dir"): (
        "HumanPreferencesEnv(reward_model)",
        test_single.test_a_fixed_reward_needs_neither_labels_nor_ray,
    ),
    (METHODS, "start_segment_collection"): (
        "HumanPreferencesEnv.resume_collecting",
        test_exploring.test_collecting_can_be_paused_alone,
    ),
    (METHODS, "stop_segment_collection"): (
        "HumanPreferencesEnv.pause_collecting",
        test_exploring.test_collecting_can_be_paused_alone,
    ),
    (METHODS, "switch_to_true_reward"): (
        "HumanPreferencesEnv.use_true_reward",
        test_single.test_switching_the_reward_is_idempotent_and_survives_new_versions,
    ),
    (METHODS, "switch_to_predicted_reward"): (
        "HumanPreferencesEnv.use_learned_reward",
        test_single.test_switching_the_reward_is_idempotent_and_survives_new_versions,
    ),
    (METHODS, "save_prefs"): (
        "HumanPreferencesEnv.save",
        test_single.test_saved_and_loaded_it_goes_on_where_it_was,
    ),
    (METHODS, "last_true_reward"): (
        "HumanPreferencesEnv.step",
        test_single.test_the_reward_is_learned_once_it_can_be_and_the_true_one_is_always_in_info,
    ),
}
"""By heading and name of theirs: our first name in the row, and the test that shows what it does."""


@pytest.mark.parametrize("case", SHOWN, ids=lambda case: case[1])
def test_rows_of_the_wrapper(case: tuple[str, str]) -> None:
    name, show = SHOWN[case]
    (row,) = [row for row in ROWS if row.page == "from_drlhp.md" and row.heading == case[0] and case[1] in row.theirs]
    assert spans(row.ours[0])[0] == name
    used = name.removeprefix("HumanPreferencesEnv").strip("(.)")
    helpers = inspect.getsource(test_single) if used == "step" else ""  # which takes the steps
    source = inspect.getsource(show) + helpers
    assert f".{used}(" in source or f"{used}=" in source, f"{show.__name__} does not use {used}"
