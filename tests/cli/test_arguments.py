"""What is wrong with a value on the command line is one line; first comparisons follow the budget."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlhf_ray import cli, tune_configs
from rlhf_ray.cli import presets
from rlhf_ray.cli import store as commands
from rlhf_ray.cli.train import Train, _experiment
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import make_run_folder


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["train", "pendulum", "--seed", "-1"], "rlhf-ray: seed is -1; it must be"),
        (
            ["train", "pendulum", "--preferences.comparisons", "1000000"],
            "rlhf-ray: preferences.comparisons is 1000000;",
        ),
        (["train", "pendulum", "--fragments.length", "0"], "rlhf-ray: fragments.length is 0;"),
        (["tune", "pendulum", "--seed", "-1"], "rlhf-ray: "),
        (["trian", "pendulum"], "rlhf-ray: 'trian' is no command; did you mean train?"),
        (["train"], "rlhf-ray: train needs a preset; "),
        (["train", "pendulum", "--sac.gamma", "0.9"], "rlhf-ray: sac.gamma is 0.9, but the agent is ppo: "),
        (
            ["train", "pendulum", "--ppo.learning-rate", "inf"],
            "rlhf-ray: ppo.learning_rate is inf; it must be a finite",
        ),
        (["train", "pendulum", "--seed", "abc"], "rlhf-ray: Error parsing --seed: 'abc' is not a whole number."),
        (["train", "pendulum", "--seed", "--cores", "1"], "rlhf-ray: Missing value for argument '--seed'."),
        (["train", "pendulum", "--cores", "1.5"], "rlhf-ray: Error parsing --cores: no type matching {None}|INT"),
        (
            ["train", "pendulum", "--agent", "dqn"],
            "rlhf-ray: invalid choice 'dqn' for argument '--agent'. Expected one of",
        ),
        (["train", "pendulum", "--ppo.hidden", "8", "x"], "rlhf-ray: Error parsing --ppo.hidden: "),
        (
            ["train", "pendulum", "--sed", "3"],
            "rlhf-ray: Unrecognized options: --sed, 3. Perhaps you meant --seed INT.",
        ),
        (
            ["train", "pendulum", "--teacher", "population", "--preferences.annotators", "oracle", "soft@0"],
            "rlhf-ray: preferences.annotators is 'soft@0'; write a teacher's name, ",
        ),
        (
            ["train", "pendulum", "--preferences.annotators", "oracle", "--teacher=soft"],
            "rlhf-ray: preferences.annotators is ('oracle',); they answer with preferences.teacher=population, but it is 'soft'",
        ),
        (
            ["label", "x.npz", "--store", "x", "--preferences.annotators", "oracle@0", "--teacher=population"],
            "rlhf-ray: preferences.annotators is 'oracle@0'; write a teacher's name, ",
        ),
        (["evaluate"], "rlhf-ray: Missing from rlhf-ray evaluate: RUN The run folder, or one of its checkpoints."),
        (["evaluate", "/nowhere"], "rlhf-ray: /nowhere is not a run folder"),
        (["train", "pendulm"], "rlhf-ray: 'pendulm' is not a preset; did you mean pendulum?"),
        (["train", "fixed/CartPol-v1"], "rlhf-ray: There is no environment 'CartPol-v1'."),
        (["train", "pendulum", "--environment", "Pendulum-v9"], "rlhf-ray: .*Pendulum-v9.*Pendulum-v1"),
        (["train", "pendulum", "--fragments.length", "300"], "rlhf-ray: fragments.length is 300.*200"),
        (["train", "pendulum", "--preferences.comparisons", "0"], "rlhf-ray: preferences.comparisons is 0"),
        (["train", "pendulum", "--environment", "FrozenLake-v1"], r"rlhf-ray: .*FrozenLake-v1.*Discrete\(16\)"),
        (["train", "pendulum", "--reward-model.network", "cnn"], "rlhf-ray: reward_model.network is 'cnn'"),
        (["train", "pendulum", "--ppo.network", "impala"], "rlhf-ray: ppo.network is 'impala'"),
        (["train", "pendulum", "--total-env-steps", "100"], "rlhf-ray: .*total_env_steps.*100"),
        (["train", "CartPole-v1", "--fast"], "rlhf-ray: .*preferences.allow_variable_horizon"),
        (["tune", "nothing"], "rlhf-ray: 'nothing' is .*pendulum"),
        (
            ["tune", "--trials", "3", "pendulum"],
            "rlhf-ray: --trials is given before a preset; .*rlhf-ray tune PRESET --trials",
        ),
    ],
)
def test_a_value_that_cannot_work_is_one_line_and_leaves_nothing_behind(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = ["--run-dir", str(tmp_path / "run")] if words[0] == "train" and len(words) > 1 else []
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, *run])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.err.startswith(line) or re.match(line, said.err), said.err
    assert said.err.count("\n") == 1
    assert "rlhf-ray: " not in said.out
    assert not (tmp_path / "run").exists()


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(SettingError, match="--nonsense"):
        commands.run(["info", "somewhere", "--nonsense"])


@pytest.mark.parametrize("name", ["pendulum", "moving_dot", "pendulum_people", "pong"])
def test_first_comparisons_follow_a_presets_budget(name: str) -> None:
    preset = tune_configs.load(name).experiment
    share = preset.preferences.first_comparisons / preset.preferences.comparisons
    assert preset.changed(preferences={"comparisons": 20}).preferences.first_comparisons == round(20 * share)


@pytest.mark.parametrize(("name", "teacher"), [("pendulum", "human"), ("pendulum_people", None)])
@pytest.mark.parametrize(("waits", "mode"), [(True, "synchronous"), (False, "asynchronous")])
def test_people_are_waited_for_if_asked_to(name: str, teacher: str | None, waits: bool, mode: str) -> None:
    preset = tune_configs.load(name).experiment
    preferences = _experiment(Train(**vars(preset), teacher=teacher, wait_for_labels=waits)).preferences
    assert (preferences.teacher, preferences.mode) == ("human", mode)


@pytest.mark.parametrize("name", ["my.module:Own-v0", "ALE/Pong-v5", "procgen/coinrun-easy", "../other/best.json"])
def test_a_run_folder_of_any_name_has_no_colon_and_is_one_folder(name: str) -> None:
    with presets.new_folder(None, name, 3) as folder:
        assert folder.parent.name == "runs"
        assert ":" not in folder.name
        assert "seed3" in folder.name
        assert folder.is_dir()
    assert not folder.exists()  # nothing was written


def test_runs_that_start_in_the_same_second_get_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: make_run_folder("pendulum", 0), range(8)))
    first = min(folders, key=lambda folder: len(folder.name))
    assert {folder.name for folder in folders} == {first.name, *(f"{first.name}-{n}" for n in range(2, 9))}
