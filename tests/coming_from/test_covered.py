"""Rows whose effect takes a training, a sweep or a cluster: another test shows it, and has to use what the row names.

Those tests are read, not called: they take long, and run by themselves.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.coming_from.pages import DRLHP, IMITATION, ROWS, Row, spans

TESTS = Path(__file__).parents[1]
SCRIPT, OTHERS, AGENTS, OPTIONS = (
    "`train_preference_comparisons`",
    "Other scripts",
    "`AgentTrainer`",
    "Options of",
)
COVERED = {
    (IMITATION, AGENTS, "TrajectoryGenerator", "PreferencePPOConfig"): (
        "rllib/test_preference_ppo.py",
        "test_the_learner_sees_the_learned_reward_of_each_real_step_and_metrics_the_true_return",
    ),
    (IMITATION, AGENTS, "AgentTrainer", "rlhf-ray train"): (
        "cli/test_cli.py",
        "test_a_run_leaves_a_whole_folder_that_can_be_moved_and_evaluated",
    ),
    (IMITATION, SCRIPT, "train_preference_comparisons", "rlhf-ray train"): (
        "cli/test_cli.py",
        "test_a_run_leaves_a_whole_folder_that_can_be_moved_and_evaluated",
    ),
    (IMITATION, SCRIPT, "save_preferences", "PreferenceStore"): (
        "rllib/test_workflows.py",
        "test_a_run_starts_from_stored_labels_and_asks_only_for_what_is_missing",
    ),
    (IMITATION, "`RolloutInfoWrapper`", "RolloutInfoWrapper", "rlhf-ray record"): (
        "rllib/test_workflows.py",
        "test_a_policy_is_recorded_cloned_and_trained_on",
    ),
    (IMITATION, OTHERS, "train_imitation", "--demonstrations"): (
        "rllib/test_workflows.py",
        "test_a_policy_is_recorded_cloned_and_trained_on",
    ),
    (IMITATION, OTHERS, "eval_policy", "rlhf-ray evaluate"): (
        "cli/test_cli.py",
        "test_a_run_leaves_a_whole_folder_that_can_be_moved_and_evaluated",
    ),
    (IMITATION, OTHERS, "tuning", "rlhf-ray tune"): (
        "rllib/test_sweeps.py",
        "test_a_sweep_survives_a_kill_asks_for_no_more_than_fits_and_leaves_what_train_takes",
    ),
    (IMITATION, "`PreferenceGatherer`", "PreferenceGatherer", "preferences.gatherer=module:Name"): (
        "test_own_parts.py",
        "test_the_ring_turns_with_own_parts",
    ),
    (DRLHP, OPTIONS, "gather_initial_prefs", "rlhf-ray label"): (
        "rllib/test_label.py",
        "test_people_label_what_random_actions_do_from_the_first_two_clips_on_and_later_go_on",
    ),
    (DRLHP, OPTIONS, "train_policy_with_preferences", "--labels"): (
        "rllib/test_workflows.py",
        "test_a_run_starts_from_stored_labels_and_asks_only_for_what_is_missing",
    ),
    (DRLHP, OPTIONS, "render_episodes", "rlhf-ray record"): (
        "rllib/test_workflows.py",
        "test_a_policy_is_recorded_cloned_and_trained_on",
    ),
    (DRLHP, OPTIONS, "debug", "--debug"): ("data/test_failures.py", "test_a_trace_is_for_those_who_ask"),
    (DRLHP, OPTIONS, "test_mode", "--fast"): ("rllib/test_presets.py", "test_a_fast_variant_runs_to_its_end"),
    (DRLHP, "Workflows", "", "--reward-from"): (
        "rllib/test_workflows.py",
        "test_a_fitted_reward_is_trained_on_and_nothing_is_asked",
    ),
    (DRLHP, "Workflows", "", "rlhf-ray pause RUN"): (
        "runs/test_pausing.py",
        "test_nothing_is_asked_during_a_pause_and_the_labels_are_made_up_for_after_it",
    ),
    (DRLHP, "Workflows", "", "rlhf-ray store show"): (
        "runs/report/test_store_page.py",
        "test_the_latest_comparisons_are_replayed",
    ),
    (DRLHP, "Workflows", "", "HumanPreferencesEnv(fit)"): (
        "wrappers/test_single.py",
        "test_preferences_are_collected_without_fitting_and_fitted_to_without_collecting",
    ),
}
"""By page, heading, name of theirs and the name of ours in the row: the file of the test, and the test."""


def rows_with(page: str, under: str, theirs: str, ours: str) -> list[Row]:
    found = [row for row in ROWS if row.page == page and under in row.heading and (theirs in row.theirs or not theirs)]
    return [row for row in found if ours in [name for cell in row.ours for name in spans(cell)]]


@pytest.mark.parametrize("case", COVERED, ids=lambda case: f"{case[2]} {case[3]}".strip())
def test_the_test_of_a_row_uses_what_the_row_names(case: tuple[str, str, str, str]) -> None:
    file, name = COVERED[case]
    assert len(rows_with(*case)) == 1
    source = (TESTS / file).read_text()
    (found,) = [of for of in ast.parse(source).body if isinstance(of, ast.FunctionDef) and of.name == name]
    ours = case[3].removesuffix(" RUN").partition("(")
    word = re.split(r"[ .=]", (ours[2].rstrip(")") or ours[0]).removesuffix("=module:Name"))[-1].lstrip("-")
    body = ast.unparse([*found.decorator_list, *found.body])  # type: ignore[arg-type]
    assert re.search(rf"(?<![a-zA-Z]){word.replace('-', '[-_]')}(?![a-z])", body), f"{name} does not use {word}"
