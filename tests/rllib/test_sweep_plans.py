"""What a sweep is told to do: search spaces, searchers and schedulers that go together, room for trials."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray import tune

from rlhf_ray import tune_configs
from rlhf_ray.data.places import JOB
from rlhf_ray.settings import Experiment, PreferenceSettings, SettingError, to_json
from rlhf_ray.sweeps.running import PLAN, Announcer, Plan, placements, read_plan, room
from rlhf_ray.sweeps.space import CHANGEABLE, apply, check, describe, kinds, parse
from rlhf_ray.sweeps.strategies import check_strategies, mutations, scheduler, searcher, within
from rlhf_ray.sweeps.trial import MEASUREMENTS, REFUSAL, TRIAL, TRIALS, settings_of


def test_settings_are_set_by_name() -> None:
    changed = apply(Experiment(), {"ppo.gamma": 0.9, "seed": 7, "ppo.hidden": [8, 8], "reward_model.use_action": False})
    assert (changed.ppo.gamma, changed.seed, changed.ppo.hidden, changed.reward_model.use_action) == (
        0.9,
        7,
        (8, 8),
        False,
    )
    assert apply(changed, {"ppo.gamma": 0.99, "seed": 0, "ppo.hidden": [64, 64], "reward_model.use_action": True}) == (
        Experiment()
    )


def test_what_is_varied_can_be_named_on_the_command_line() -> None:
    space = parse(
        [
            "ppo.gamma=0.95..0.99",
            "--ppo.learning-rate=1e-4..1e-2:log",  # as it is written for `rlhf-ray train`
            "ppo.epochs=2..4",
            "ppo.hidden=[32,32],[64,64]",
            "preferences.selection=random,disagreement",
            "reward_model.bootstrap=true,false",
        ],
        Experiment(),
    )
    assert {name: describe(domain) for name, domain in space.items()} == {
        "ppo.gamma": {"low": 0.95, "high": 0.99, "log": False},
        "ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
        "ppo.epochs": {"low": 2, "high": 4, "log": False},
        "ppo.hidden": {"values": [[32, 32], [64, 64]], "each": True},
        "preferences.selection": {"values": ["random", "disagreement"], "each": True},
        "reward_model.bootstrap": {"values": [True, False], "each": True},
    }
    assert {space["ppo.epochs"].sample() for _ in range(100)} == {2, 3, 4}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ppo.gamma", "empty value"),
        ("ppo.gama=1,2", "there is no setting 'ppo.gama'"),
        ("ppo.gamma=0.9..", "two numbers, LOW below HIGH"),
        ("ppo.gamma=0.99..0.9", "LOW below HIGH"),
        ("ppo.epochs=1.5..3", "whole numbers"),
        ("ppo.learning_rate=0..1:log", "above 0"),
        ("ppo.learning_rate=0.1..1:exp", "write ppo.learning_rate=LOW..HIGH"),
        ("ppo.gamma=0.9,1.5", "ppo.gamma is 1.5"),
        ("ppo.gamma=0.9..1.5", "ppo.gamma is 1.5"),
        ("preferences.selection=random,clever", "preferences.selection is 'clever'"),
    ],
)
def test_what_cannot_be_varied_is_said(word: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse([word], Experiment())


@pytest.mark.slow
@pytest.mark.parametrize("name", tune_configs.names())
def test_the_search_space_of_every_preset_works(name: str) -> None:
    module = tune_configs.load(name)
    space = tune_configs.search_space(name)
    check(space, module.experiment)
    for _ in range(20):
        apply(module.experiment, {name: domain.sample() for name, domain in space.items()})
    Plan(module.experiment, space, name=name).check()


def test_what_population_based_training_may_change_are_settings() -> None:
    assert set(kinds()) >= CHANGEABLE


GAMMA = {"ppo.gamma": tune.uniform(0.9, 0.99)}
BLIND = Experiment(preferences=PreferenceSettings(held_out_share=0.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("optuna", "pbt", GAMMA, 4, None), "remove --search"),
        (("random", "pbt", GAMMA, 4, 2), "compares all 4 trials"),
        (("random", "pb2", GAMMA, 1, None), "at least 2"),
        (("random", "pbt", {**GAMMA, "ppo.num_env_runners": tune.choice([0, 1])}, 4, None), "ppo.num_env_runners"),
        (("random", "pbt", {"fragments.length": tune.choice([5, 10])}, 4, None), "none that may change"),
        (("random", "pb2", {"ppo.gamma": tune.choice([0.9, 0.99])}, 4, None), "a range of at least one"),
    ],
)
def test_what_does_not_go_together_is_said(arguments: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_strategies(*arguments)


def test_population_based_training_changes_what_may_change_and_keeps_it_in_its_range() -> None:
    space = {
        **GAMMA,
        "ppo.epochs": tune.randint(2, 9),
        "ppo.clip": tune.choice([0.1, 0.2]),
        "fragments.length": tune.choice([5, 10]),
    }
    assert set(mutations(space, "pbt")) == {"ppo.gamma", "ppo.epochs", "ppo.clip"}
    assert mutations(space, "pbt")["ppo.clip"] == [0.1, 0.2]
    assert mutations(space, "pb2") == {"ppo.gamma": [0.9, 0.99], "ppo.epochs": [2, 8]}
    bounds = {"ppo.gamma": (0.9, 0.99), "ppo.epochs": (2, 8)}
    explore = scheduler("pbt", space, 1000)._custom_explore_fn
    assert (explore.func, explore.args) == (within, (bounds,))
    assert within(bounds, {"ppo.gamma": 1.1, "ppo.epochs": 1, "ppo.clip": 0.1, TRIAL: 3}) == {
        "ppo.gamma": 0.99,
        "ppo.epochs": 2,
        "ppo.clip": 0.1,
        TRIAL: 3,
    }


def test_asha_stops_who_does_worse_than_others_at_a_fifth_of_the_steps() -> None:
    asha = scheduler("asha", GAMMA, 1000)
    asha.set_search_properties("objective", "max")

    class Trial:
        def __init__(self, name: str):
            self.trial_id = name

    decisions = {}
    for i, objective in enumerate((5.0, 1.0, 9.0)):
        trial = Trial(str(i))
        asha.on_trial_add(None, trial)
        early = asha.on_trial_result(None, trial, {"env_steps": 199, "objective": objective})
        decisions[objective] = early, asha.on_trial_result(None, trial, {"env_steps": 200, "objective": objective})
    assert decisions == {5.0: ("CONTINUE", "CONTINUE"), 1.0: ("CONTINUE", "STOP"), 9.0: ("CONTINUE", "CONTINUE")}


def test_the_same_seed_draws_the_same_settings() -> None:
    space = tune_configs.search_space("pendulum")
    draws = []
    for _ in range(2):
        generator = searcher("random", 3, 0)
        generator.add_configurations({"e": {"run": "PPO", "config": {**space, TRIAL: _common()}, "num_samples": 3}})
        draws.append([{k: v for k, v in generator.next_trial().config.items() if k != TRIAL} for _ in range(3)])
    assert draws[0] == draws[1]
    assert draws[0][0] != draws[0][1]


def test_repeated_draws_differ_in_their_seed_alone() -> None:
    space = {"ppo.gamma": tune.uniform(0.9, 0.99), "seed": tune.grid_search([5, 6, 7])}
    generator = searcher("random", 3, 0, repeat=3)
    generator.add_configurations({"e": {"run": "PPO", "config": {**space, TRIAL: _common()}, "num_samples": 2}})
    drawn = [settings_of(generator.next_trial().config) for _ in range(6)]
    assert sorted(each["seed"] for each in drawn) == [5, 5, 6, 6, 7, 7]
    for gamma in {each["ppo.gamma"] for each in drawn}:
        assert sorted(each["seed"] for each in drawn if each["ppo.gamma"] == gamma) == [5, 6, 7]


@pytest.mark.slow
@pytest.mark.parametrize("search", ["optuna", "gp", "qmc"])
def test_searchers_learn_from_the_mean_of_repeated_trials(search: Any) -> None:
    """The objective is best at gamma 0.95; noise of the seeds is larger than differences, and has mean 0."""
    pytest.importorskip("optuna")
    chosen = searcher(search, 0, 0, repeat=2)
    chosen.set_search_properties("objective", "max", {"ppo.gamma": tune.uniform(0.9, 0.99)})
    common, gammas = _common(seed=40), []
    for number in range(30):
        pair = [chosen.suggest(f"{number}-{seed}") for seed in range(2)]
        settings = [settings_of({**config, TRIAL: common}) for config in pair]
        assert [each["seed"] for each in settings] == [40, 41]
        assert settings[0]["ppo.gamma"] == settings[1]["ppo.gamma"]
        gammas.append(settings[0]["ppo.gamma"])
        for seed, noise in enumerate((1.0, -1.0)):
            objective = -100 * (gammas[-1] - 0.95) ** 2 + noise
            chosen.on_trial_complete(f"{number}-{seed}", {"objective": objective})
    late = [abs(gamma - 0.95) for gamma in gammas[20:]]
    assert sum(late) / len(late) < {"optuna": 0.02, "gp": 0.01, "qmc": 0.03}[search]
    assert len(set(gammas)) > 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 0}, "trials is 0"),
        ({"concurrent": 0}, "concurrent is 0"),
        ({"seeds": -1}, "seeds is -1"),
        ({"space": {}}, "Nothing varies"),
        ({"metric": "likelihood", "experiment": BLIND}, "held_out_share is 0"),
        ({"repeat": 0}, "repeat is 0"),
        ({"repeat": 2, "schedule": "asha"}, "--repeat is 2 and --schedule is asha"),
        ({"repeat": 2, "space": {"seed": tune.choice([1, 2])}}, "varies seed"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Plan(**{"experiment": Experiment(), "space": GAMMA, **changes}).check()


def _common(**changes: Any) -> dict[str, Any]:
    return {"experiment": to_json(Experiment(**changes)), "metric": "return", "episodes": 2, "seed": 0}


@pytest.mark.parametrize(
    ("bundles", "nodes", "count"),
    [
        ([{"CPU": 1.0}, {"CPU": 1.0}], [{"CPU": 4.0}], 2),
        ([{"CPU": 1.0}, {"CPU": 1.0}], [{"CPU": 3.0}, {"CPU": 1.0}], 2),
        ([{"CPU": 2.0}], [{"CPU": 1.0}, {"CPU": 1.0}], 0),
        ([{"CPU": 1.0, "GPU": 0.5}], [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0}], 2),
        ([{"CPU": 0.1}] * 3, [{"CPU": 0.3}], 1),
        ([{"CPU": 1.0}], [], 0),
    ],
)
def test_room_is_counted_bundle_by_bundle(bundles: list[Any], nodes: list[Any], count: int) -> None:
    assert room(bundles, nodes) == count


def test_a_trial_asks_for_what_its_training_and_its_ring_take() -> None:
    for runners, cpus in ((0, [1]), (2, [1, 1, 1, 1])):  # alone, a trial has its ring in its own process
        experiment = apply(Experiment(), {"ppo.num_env_runners": runners})
        request = TRIALS["ppo"].default_resource_request({TRIAL: {**_common(), "experiment": to_json(experiment)}})
        assert [bundle["CPU"] for bundle in request.bundles] == cpus
    assert MEASUREMENTS >= 5  # schedulers look so often


def test_what_trials_need_is_asked_of_every_end_that_decides_it() -> None:
    space = {"ppo.num_env_runners": tune.randint(1, 5), "ppo.gamma": tune.uniform(0.9, 0.99)}
    space |= {"reward_model.gpus": tune.choice([0.0, 0.5, 1.0])}
    wanted = [(runners, gpus) for runners in (1, 4) for gpus in (0.0, 0.5, 1.0)]
    assert [tuple(settings.values()) for settings in placements(space)] == wanted
    assert placements({name: describe(domain) for name, domain in space.items()}) == placements(space)
    assert placements({}) == placements({"ppo.gamma": tune.uniform(0.9, 0.99)}) == [{}]


IMPOSSIBLE = {"ppo.num_envs": 1, "ppo.minibatch_size": 999}


@pytest.mark.usefixtures("ray_session")
def test_a_trial_whose_settings_cannot_work_together_says_so_and_ends(tmp_path: Path) -> None:
    config = {TRIAL: _common(), **IMPOSSIBLE}
    assert TRIALS["ppo"].default_resource_request(config).bundles == [{"CPU": 1.0}]
    trial = TRIALS["ppo"](config)
    result = trial.train()
    assert result["done"]
    assert "ppo.minibatch_size is 999" in result[REFUSAL]
    assert result["settings"] == IMPOSSIBLE
    trial.save(str(tmp_path))
    assert "999" in (tmp_path / REFUSAL).read_text()
    trial.stop()


def test_a_trial_s_measurement_leaves_the_training_s_draws_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*_: Any, **__: Any) -> Any:  # as an environment that seeds in its constructor
        torch.manual_seed(0)
        return SimpleNamespace(true_return_mean=7.0)

    monkeypatch.setattr("rlhf_ray.sweeps.trial.evaluate", evaluate)
    policy = SimpleNamespace(best=None)
    trial: Any = SimpleNamespace(
        finished=True, _plan=_common(), config=SimpleNamespace(env="E"), _policy=lambda: lambda: policy
    )
    before = torch.get_rng_state()
    assert TRIALS["ppo"]._measure(trial, {}) == 7.0
    assert torch.equal(torch.get_rng_state(), before)


def test_a_plan_that_is_read_again_says_the_same(tmp_path: Path) -> None:
    plan = Plan(Experiment(seed=3), tune_configs.search_space("pendulum"), trials=7, schedule="asha", name="p")
    (tmp_path / PLAN).write_text(json.dumps(plan.to_json()))
    again = read_plan(tmp_path)
    assert again.to_json() == plan.to_json()
    assert (again.experiment, again.trials, again.schedule) == (plan.experiment, 7, "asha")


def test_people_are_told_where_they_label_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trial:
        trial_id, path = "t1", str(tmp_path)
        finished = False

        def __str__(self) -> str:
            return "trial_t1"

        def is_finished(self) -> bool:
            return self.finished

    said: list[str] = []
    announcer, trial = Announcer(said.append), Trial()
    announcer.on_step_end(0, [trial])
    for link in ("http://127.0.0.1:1/#a", "http://127.0.0.1:2/#a"):  # begun again, its page is another one
        (tmp_path / "links.json").write_text(json.dumps({"ann": link}))
        for _ in range(3):
            announcer.on_step_end(0, [trial])
    assert said == [f"trial_t1: ann labels at http://127.0.0.1:{port}/#a" for port in (1, 2)]
    monkeypatch.setenv(JOB, "{}")  # everyone with the cluster's token reads what a job prints
    Announcer(said.append).on_step_end(0, [trial])
    assert said[2:] == [f"trial_t1: annotators' links are in {tmp_path}/links.json"]


def test_what_a_sweep_says_things_with_can_be_pickled_where_ray_has_replaced_print(monkeypatch):
    printed = print
    monkeypatch.setattr("builtins.print", lambda *words, **options: printed(*words, **options))
    assert ray.cloudpickle.dumps(Announcer())
