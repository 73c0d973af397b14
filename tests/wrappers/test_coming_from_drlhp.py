"""Rows of the page for those who come from drlhp about its wrapper: what they say is tried, or a test that shows it is named."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from rlhf_ray.wrappers import HumanPreferencesEnv
from rlhf_ray.wrappers.session import WINDOW
from tests.coming_from.pages import DRLHP, ROWS, named, note, row_of, spans
from tests.made_up import Walk
from tests.wrappers import test_exploring, test_single
from tests.wrappers.test_single import act, make

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


def test_what_a_step_returns_and_the_status_counts(in_process: SimpleNamespace) -> None:
    assert named(DRLHP, ARGUMENTS, "env") == ("HumanPreferencesEnv",)
    for option in ("step", "using_reward_from_predictor"):
        assert named(DRLHP, METHODS, option) == ("HumanPreferencesEnv.step",)
    (learned,) = [of.split('"')[1] for of in note(DRLHP, METHODS, "using_reward_from_predictor")]
    assert "before the first fit the reward is 0" in row_of(DRLHP, METHODS, "step").ours[-1]
    answers, fits = note(DRLHP, METHODS, "pref_db_size")
    steps = note(DRLHP, METHODS, "segments_collected")[-1]
    with make(Walk((20,), numbered=False)) as env:
        observation, reward, terminated, truncated, info = act(env, WINDOW // 2)[-1]
        assert (reward, info[learned], terminated, truncated) == (0.0, False, False, False)
        assert info["true_reward"] == -abs(observation[2])
        assert (env.status()[answers], env.status()[fits], env.status()[steps]) == (0, 0, WINDOW // 2)
        for _ in range(4):
            taken = act(env, WINDOW)
        status, ring = env.status(), in_process.rings[0]
        assert taken[-1][4][learned]
        assert taken[-1][1] != taken[-1][4]["true_reward"]
        assert status[answers] == ring.answered > 0
        assert status[fits] == int(env._session.ensemble.version) > 0
        assert status[steps] == WINDOW // 2 + 4 * WINDOW
        env.use_true_reward()
        assert not env.step(env.action_space.sample())[4][learned]  # also while the true reward is forced


@pytest.mark.parametrize("block", [False, True])
def test_closing(block: bool, in_process: SimpleNamespace) -> None:
    assert named(DRLHP, METHODS, "close") == ("HumanPreferencesEnv.close",)
    env: HumanPreferencesEnv = make()
    if block:
        with env:
            act(env, 3)
    else:
        act(env, 3)
        env.close()
    assert (in_process.held, in_process.rings[0].closed) == (0, 1)
    with pytest.raises(RuntimeError, match="closed"):
        env.step(env.action_space.sample())
