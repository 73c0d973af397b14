import ast
import dataclasses
import json
import typing
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    LabellingSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
    SACSettings,
    SettingError,
    from_json,
    load_experiment,
    save_experiment,
    to_json,
)
from rlhf_ray.settings.checks import LARGEST, whole_number

GROUPS: dict[str, type[Any]] = {
    "fragments": FragmentSettings,
    "preferences": PreferenceSettings,
    "reward_model": RewardModelSettings,
    "ppo": PPOSettings,
    "sac": SACSettings,
}

BOUNDS = {
    "0 or more": """fragments.exploration_env_steps=-1 preferences.pretraining_env_steps=-1 preferences.rounds=-1
        preferences.rationality=-1.0 preferences.answer_seconds=-1.0 reward_model.weight_decay=-0.1 ppo.num_env_runners=-1
        sac.learning_starts=-1""",
    "1 or more": """fragments.length=0 preferences.oversampling=0 preferences.max_open_questions=0 reward_model.ensemble_size=0
        reward_model.batch_size=0 reward_model.initial_updates=0 reward_model.updates=0 ppo.num_envs=0 ppo.rollout_length=0
        ppo.minibatch_size=0 ppo.epochs=0 sac.batch_size=0""",
    "1 or more, or None": """preferences.halving_env_steps=0 preferences.max_reward_age=0 reward_model.window=0
        reward_model.early_stopping=0""",
    "2 or more": "fragments.pool=1",
    "above 0": """preferences.steepness=0.0 reward_model.learning_rate=0.0 reward_model.discount=0.0 ppo.learning_rate=-1.0
        sac.tau=0.0 sac.updates_per_env_step=0.0""",
    "above 0, or None": "reward_model.initial_epochs=0.0 reward_model.largest_log_odds=0.0",
    "above 0 and at most 1": "fragments.switch_probability=0.0",
    "at most 1": "reward_model.discount=1.1 sac.gamma=1.5",
    "below 1": "preferences.held_out_share=1.0 reward_model.label_noise=1.0 reward_model.dropout=1.0",
    "between 0 and 1": "fragments.start_share=1.5 fragments.random_action_share=-0.1",
    "between 1 and": "preferences.initial_comparisons=0 preferences.minimum_comparisons=0",
    "comparisons=500": "preferences.initial_comparisons=501 preferences.minimum_comparisons=501",
    "a share of them, above 0": "preferences.initial_comparisons=1.5 preferences.initial_comparisons=0.0",
    "a share of the training's": "fragments.exploration_env_steps=1.5",
    "set that to seconds above 0": "preferences.answer_spread=0.5",
    "at least one": "reward_model.hidden=() sac.hidden=()",
    "at most 2048": "ppo.minibatch_size=2049",
    "one of 0, 1": "sac.num_learners=2",
    "one iteration's 200 steps": "sac.buffer_size=199",
    "or auto": "fragments.length='long' sac.target_entropy='low' ppo.env_threads=0 sac.env_threads='all'",
    "synchronous, asynchronous": "preferences.mode='both'",
    "relu, leaky_relu, tanh": "reward_model.activation='rleu'",
}
"""By words of the remedy, settings with values that can't work."""
WRONG: list[tuple[str, Any, str, dict[str, Any]]] = [
    (name, ast.literal_eval(value), remedy, {})
    for remedy, words in BOUNDS.items()
    for name, _, value in (word.partition("=") for word in words.split())
]
WRONG += [
    ("fragments.start_share", float("nan"), "between 0 and 1", {}),
    ("fragments.initial_env_steps", 49, "50 or more", {"length": 25}),
    ("preferences.comparisons", -1, "0 or more", {"initial_comparisons": 0}),
    ("preferences.initial_comparisons", 50, "between 1 and preferences.comparisons=20, or", {"comparisons": 20}),
    ("preferences.rounds", 0, "initial_comparisons to 500", {"initial_comparisons": 50}),
    ("preferences.answer_spread", -0.5, "0 or more", {"answer_seconds": 1.0}),
    ("reward_model.use_state", False, "at least one", {"use_action": False}),
]
"""And those that can't work with others."""


@pytest.mark.parametrize(("setting", "value", "remedy", "others"), WRONG)
def test_a_value_that_cannot_work_is_named_with_the_setting_and_the_remedy(
    setting: str, value: Any, remedy: str, others: dict[str, Any]
) -> None:
    group, _, name = setting.partition(".")
    with pytest.raises(SettingError) as error:
        GROUPS[group](**{name: value}, **others)
    assert str(error.value).startswith(f"{setting} is {value!r}; ")
    assert remedy in str(error.value)


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({}, 250),
        ({"comparisons": 20}, 10),
        ({"comparisons": 1}, 1),
        ({"comparisons": 20, "rounds": 0}, 20),
        ({"initial_comparisons": 0.1}, 50),
        ({"comparisons": 3, "initial_comparisons": 0.1}, 1),
    ],
)
def test_the_first_comparisons_follow_as_a_share(given: dict[str, Any], first: int) -> None:
    settings = PreferenceSettings(**given)
    assert settings.first_comparisons == settings.resolved().initial_comparisons == first
    assert dataclasses.replace(PreferenceSettings(initial_comparisons=50), comparisons=60).first_comparisons == 50


def test_the_first_fit_lasts_a_number_of_updates_or_of_passes_over_the_answers() -> None:
    assert RewardModelSettings(initial_updates=70).first_updates(50) == 70
    assert RewardModelSettings(initial_updates=70, batch_size=32).first_updates(50, least_epochs=100) == 157
    in_passes = RewardModelSettings(batch_size=32, initial_epochs=200)  # `imitation`'s initial_epoch_multiplier
    assert (in_passes.first_updates(64), in_passes.first_updates(50)) == (400, 313)
    assert in_passes.first_updates(64, least_epochs=1000) == 400


def test_more_questions_than_anybody_means_are_refused_and_many_are_not() -> None:
    Experiment(preferences=PreferenceSettings(comparisons=20_000)).check_questions()
    many = Experiment(preferences=PreferenceSettings(comparisons=1_000_000))
    with pytest.raises(
        SettingError,
        match=r"preferences\.comparisons is 1000000; total.*=400000 yields about 16000 fragments of 25 .*125 times: lower it",
    ):
        many.check_questions()
    many.check_questions(999_990)  # only ten are to be asked
    with pytest.raises(SettingError, match=r"1000000; of which 100 are answered; total_env_steps.*compared 124 times"):
        many.check_questions(100)


def test_the_agent_decides_which_settings_an_experiment_goes_by() -> None:
    sac = SACSettings(rollout_length=30, num_envs=3, gamma=0.9)
    experiment = Experiment(agent="sac", sac=sac)
    assert experiment.agent_settings is sac
    assert experiment.resolved_fragments(1000).length == 30  # at most a rollout
    assert experiment.with_agent_settings(num_env_runners=2).sac.iteration_env_steps == 180
    assert experiment.with_agent_settings(num_env_runners=2).ppo == experiment.ppo
    old = {name: value for name, value in to_json(experiment).items() if name not in ("agent", "sac")}
    assert from_json(Experiment, old) == Experiment()  # a run folder from before there were two agents
    with pytest.raises(SettingError, match=r"agent is 'td3'; it must be one of ppo, sac"):
        Experiment(agent="td3")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"fragments.length is 31; it must be at most sac\.rollout_length=30"):
        dataclasses.replace(experiment, fragments=FragmentSettings(length=31))


@pytest.mark.parametrize("seed", [-1, 2**31, "x"])
def test_a_seed_that_some_generator_would_not_take_is_refused(seed: int) -> None:
    with pytest.raises(SettingError, match=r"^seed is "):
        Experiment(seed=seed)


@pytest.mark.parametrize(
    "content", ["", '{"environment": "Pend', "[1]", '{"name": "left-pad"}', '{"ppo": {"epochs": "ten"}}']
)
def test_a_file_that_holds_no_settings_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(SettingError, match=r"Can't read settings from .*config\.json"):
        load_experiment(tmp_path / "config.json")


def test_a_budget_too_small_for_the_first_clips_and_one_iteration_says_how_much_they_take() -> None:
    fragments = FragmentSettings(length=25, initial_env_steps=2_000)
    needed = 2_000 + PPOSettings().iteration_env_steps
    Experiment(total_env_steps=needed, fragments=fragments)
    with pytest.raises(SettingError, match=rf"(?s)^total_env_steps is {needed - 1}; .*need {needed} steps"):
        Experiment(total_env_steps=needed - 1, fragments=fragments)


@pytest.mark.parametrize(
    ("horizon", "length", "initial"),
    [(None, 25, 2_000), (50, 10, 2_000), (200, 10, 2_000), (500, 25, 5_000), (999, 49, 9_990)],
)
def test_auto_is_chosen_from_the_horizon_and_given_numbers_stay(horizon: int | None, length: int, initial: int) -> None:
    chosen = Experiment().resolved_fragments(horizon)
    assert (chosen.length, chosen.initial_env_steps, chosen.start_share, chosen.varied) == (length, initial, 0.5, True)
    assert chosen.resolved(horizon=7, total_env_steps=1) == chosen
    given = FragmentSettings(length=15, initial_env_steps=700)
    kept = Experiment(fragments=given).resolved_fragments(horizon)
    assert (kept.length, kept.initial_env_steps, kept.start_share, kept.varied) == (15, 700, 0.0, False)


def test_the_share_of_exploration_is_spread_over_the_rounds() -> None:
    fragments = FragmentSettings(length=10, initial_env_steps=1_000, exploration_env_steps=0.1)
    of = Experiment(total_env_steps=50_000, fragments=fragments, preferences=PreferenceSettings(rounds=20))
    assert of.resolved_fragments(200).exploration_env_steps == 250  # 20 of them are a tenth of 50,000
    assert from_json(Experiment, to_json(of)) == of
    one_round = PreferenceSettings(rounds=0, initial_comparisons=500)
    assert dataclasses.replace(of, preferences=one_round).resolved_fragments(200).exploration_env_steps == 0
    with pytest.raises(SettingError, match=r"exploration in preferences\.rounds=20 .*exploration_env_steps=2475"):
        dataclasses.replace(of, fragments=dataclasses.replace(fragments, exploration_env_steps=0.99))
    told = parse_arguments(Experiment, "train", ["--fragments.exploration-env-steps", "0.2"])
    assert told.fragments.exploration_env_steps == 0.2
    assert parse_arguments(Experiment, "train", ["--fragments.exploration-env-steps", "20"]).fragments == (
        FragmentSettings(exploration_env_steps=20)
    )


def test_auto_fits_into_short_episodes_rollouts_and_budgets() -> None:
    assert FragmentSettings().resolved(horizon=8, total_env_steps=100_000).length == 8
    assert FragmentSettings().resolved(horizon=999, total_env_steps=100_000, rollout=20).length == 20
    short = FragmentSettings().resolved(horizon=200, total_env_steps=1_000)
    assert (short.length, short.initial_env_steps) == (10, 100)
    assert FragmentSettings(initial_env_steps=30).resolved(horizon=999, total_env_steps=1_000).length == 15


def _other(kind: type[Any], name: str, value: Any) -> Any:
    """A value of the setting ``name`` that is valid and not ``value``."""
    choices = typing.get_args(typing.get_type_hints(kind)[name])
    if value == "auto" and {int, bool} & set(choices):
        return 7 if int in choices else False
    if isinstance(value, str):
        if int in choices or float in choices:
            return 1_000 if int in choices else 0.5
        return next((choice for choice in choices if choice != value), f"other {value}")
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (*value, 7) if Ellipsis in choices else tuple(2 * each for each in value)
    if value is None:
        return 7 if int in choices else 0.25
    if isinstance(value, float):
        return 0.25 if value <= 1 else value + 1
    return value + 1


NEEDS: dict[str, dict[str, Any]] = {
    "human_share": {"mode": "asynchronous"},
    "annotators": {"teacher": "population"},
    "answer_spread": {"answer_seconds": 1.0},
}
"""Other settings that a setting makes sense with."""


@pytest.mark.parametrize("group", GROUPS)
def test_every_setting_survives_json(group: str) -> None:
    kind = GROUPS[group]
    for field in dataclasses.fields(kind):
        needs = NEEDS.get(field.name, {})
        changed = kind(**needs, **{field.name: _other(kind, field.name, getattr(kind(), field.name))})
        assert changed != kind()
        assert from_json(kind, json.loads(json.dumps(to_json(changed)))) == changed


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("annotators", (), "at least one name"),
        ("annotators", ("ada", "ada"), "each only once"),
        ("annotators", (" ada",), "printable"),
        ("annotators", (1,), "a text"),
        ("hosts", (1,), "a text"),
        ("instructions", 5, "a text"),
        ("language", None, "a text"),
        ("port", 70_000, "between 0 and 65535"),
        ("lease_seconds", 1.0, "5 or more"),
        ("overlap_share", 1.5, "between 0 and 1"),
        ("catch_share", 0.6, "between 0 and 0.5"),
    ],
)
def test_wrong_settings_of_the_page_are_refused(setting: str, value: Any, remedy: str) -> None:
    with pytest.raises(SettingError, match=f"labelling.{setting} is .*{remedy}"):
        LabellingSettings(**{setting: value})


@pytest.mark.parametrize("group", [*GROUPS, "labelling", ""])
def test_true_is_no_number_and_a_word_is_not_true(group: str) -> None:
    """JSON has both: "false" in quotes would switch a setting on."""
    kind = {**GROUPS, "labelling": LabellingSettings, "": Experiment}[group]
    for name, of in typing.get_type_hints(kind).items():
        setting, default = f"{group}.{name}".lstrip("."), getattr(kind(), name)
        if of is bool:
            for word in ("false", 1, None):
                with pytest.raises(SettingError, match=f"{setting} is {word!r}; it must be true or false"):
                    kind(**{name: word})
        elif {int, float, 1} & {of, *typing.get_args(of)}:
            wrong = (True, *default[1:]) if isinstance(default, tuple) else True
            with pytest.raises(
                SettingError, match=rf"{setting} is True; it must be (a .*number|one of (auto, 1, 3|0, 1))"
            ):
                kind(**{name: wrong})


def test_one_value_may_be_given_where_a_setting_takes_several() -> None:
    assert PPOSettings(hidden=64).hidden == (64,)  # type: ignore[arg-type]
    assert RewardModelSettings(methods="surf").methods == ("surf",)  # type: ignore[arg-type]
    page = LabellingSettings(annotators="ada", hosts="lab.example")  # type: ignore[arg-type]
    assert (page.annotators, page.hosts) == (("ada",), ("lab.example",))
    with pytest.raises(SettingError, match=r"reward_model\.l2_interval is \(1\.1,\); it must be two numbers"):
        RewardModelSettings(l2_interval=1.1)  # type: ignore[arg-type]
    for huge in (10**400, -(10**400), 2**63, 1e30):
        with pytest.raises(SettingError, match=r"ppo\.num_envs is 'about -?1e\d+'; it must be at most 2\*\*63 - 1"):
            PPOSettings(num_envs=huge)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"ppo\.learning_rate is 'about 1e400'; it must be a finite number"):
        PPOSettings(learning_rate=10**400)
    with pytest.raises(SettingError, match=r"ppo\.num_envs is \(4,\); it must be a whole number"):
        PPOSettings(num_envs=(4,))  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"^reward_model\.hidden is 0; .*1 or more"):
        RewardModelSettings(hidden=(8, 0))


def test_who_is_asked() -> None:
    assert PreferenceSettings(teacher="human").people_share == 1.0
    assert PreferenceSettings(mode="asynchronous", human_share=0.3).people_share == 0.3
    assert not PreferenceSettings(teacher="human").without_questions().asks_people
    with pytest.raises(SettingError, match=r"human_share is 0.3; .*needs preferences.mode=asynchronous"):
        PreferenceSettings(human_share=0.3)


def test_an_experiment_survives_a_file(tmp_path: Path) -> None:
    experiment = Experiment(
        seed=3,
        preferences=PreferenceSettings(teacher="stochastic", rationality=float("inf")),
        ppo=PPOSettings(hidden=(16, 8), final_learning_rate=1e-5),
    )
    save_experiment(experiment, tmp_path / "experiment.json")
    assert load_experiment(tmp_path / "experiment.json") == experiment


def test_a_variant_has_other_values_and_is_checked() -> None:
    changed = Experiment().changed(seed=3, ppo={"epochs": 3}, labelling=LabellingSettings(port=0))
    assert changed == Experiment(seed=3, ppo=PPOSettings(epochs=3), labelling=LabellingSettings(port=0))
    with pytest.raises(SettingError, match=r"ppo\.gamma is 2; it must be above 0 and at most 1"):
        changed.changed(ppo={"gamma": 2})


def test_a_file_may_lack_settings_but_not_have_unknown_or_wrong_ones() -> None:
    assert from_json(Experiment, {"ppo": {"epochs": 3}}) == Experiment(ppo=PPOSettings(epochs=3))
    with pytest.raises(SettingError, match=r"fragments\.pool is 0"):
        from_json(Experiment, {"fragments": {"pool": 0}})
    with pytest.raises(SettingError, match=r"fragments has no setting size; it has length, start_share, pool"):
        from_json(FragmentSettings, {"length": 3, "size": 3})
    with pytest.raises(SettingError, match=r"ppo has no setting gama; did you mean gamma\?"):
        from_json(Experiment, {"ppo": {"gama": 1}})
    with pytest.raises(SettingError, match=r"Experiment has no setting nonsense; it has environment"):
        from_json(Experiment, {"nonsense": {}})


def test_without_questions_nothing_is_asked_and_all_else_stays() -> None:
    settings = PreferenceSettings(mode="asynchronous", minimum_comparisons=5, held_out_share=0.3).without_questions()
    assert (settings.comparisons, settings.initial_comparisons, settings.rounds) == (0, 0, 0)
    assert settings.first_fit_comparisons == 0
    assert (settings.mode, settings.held_out_share) == ("asynchronous", 0.3)


WRITTEN = {"7": 7, "100_000": 100_000, "2e4": 20_000, "1E+3": 1000, "2.50e2": 250, "-3e1": -30}


@pytest.mark.parametrize(("text", "number"), [*WRITTEN.items(), ("9.007199254740993e15", 2**53 + 1)])
def test_whole_numbers_as_people_write_them(text: str, number: int) -> None:
    assert whole_number(text) == number


NOT_WHOLE = ("", "1.5", "3.0", "1e-3", "2.55e1", "e5", "1e5x", "inf", "nan", "auto")
TOO_LARGE = ("1e400", "1e19", str(2**63), "-1e30", "9" * 5000)  # no array holds them


@pytest.mark.parametrize("text", [*NOT_WHOLE, *TOO_LARGE])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number" if text in NOT_WHOLE else "whole number"):
        whole_number(text)
    assert whole_number(str(LARGEST)) == 2**63 - 1


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.integers(0, 30))
def test_the_value_is_that_of_decimal_arithmetic(mantissa: Decimal, exponent: int) -> None:
    text = f"{mantissa:f}e{exponent}"
    with localcontext(prec=500):  # the default, 28 digits, rounds
        exact = Decimal(f"{mantissa:f}").scaleb(exponent)
        whole = exact == exact.to_integral_value()
    if whole and abs(exact) <= LARGEST:
        assert whole_number(text) == int(exact)
