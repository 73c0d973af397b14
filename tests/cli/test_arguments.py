"""What is wrong with a value on the command line is one line; first comparisons follow the budget."""

import contextlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlhf_ray import __version__, cli, tune_configs
from rlhf_ray.cli import presets
from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.store import ACTIONS
from rlhf_ray.cli.train import Train, _experiment
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import make_run_folder
from rlhf_ray.settings import Experiment, PPOSettings, PreferenceSettings, from_json

WRONG = {
    "train pendulum --seed -1": "seed is -1; it must be",
    "tune pendulum --resume /nowhere": "/nowhere is not a sweep's folder",
    "train pendulum --resume x": "--resume comes after pendulum, .*`rlhf-ray train --resume RUN`",
    "train pendulum --preferences.comparisons 1000000": "preferences.comparisons is 1000000;",
    "train pendulum --fragments.length 0": "fragments.length is 0;",
    "tune pendulum --seed -1": "",
    "trian pendulum": r"'trian' is no command; did you mean train\?",
    "train": "train needs a preset; ",
    "train pendulum --sac.gamma 0.9": "sac.gamma is 0.9, but the agent is ppo: ",
    "train pendulum --preferences.mistake 0.3": "preferences.mistake is 0.3, but the teacher is oracle, who does not use it: ",
    "train pendulum --teacher machine --machine.model m": "preferences.teacher is machine, but machine.url is not set: ",
    "train pendulum --teacher machine --machine.url h": "machine.url is 'h'; it must begin with http://",
    "train pendulum --machine.model m": "machine.model is 'm', but the teacher is oracle: ",
    "train pendulum --teacher machine --preferences.gatherer a:B": "preferences.gatherer is 'a:B'; with ",
    "train pendulum --preferences.teacher machine+human --machine.url http://h --machine.model m": "preferences.mode is 'sync",
    "train pendulum --ppo.learning-rate inf": "ppo.learning_rate is inf; it must be a finite",
    "train pendulum --seed abc": "Error parsing --seed: 'abc' is not a whole number.",
    "train pendulum --seed --cores 1": "Missing value for argument '--seed'.",
    "train pendulum --cores 1.5": r"Error parsing --cores: no type matching {None}\|INT",
    "train pendulum --agent dqn": "invalid choice 'dqn' for argument '--agent'. Expected one of",
    "train pendulum --ppo.hidden 8 x": "Error parsing --ppo.hidden: ",
    "train pendulum --sed 3": "Unrecognized options: --sed, 3. Perhaps you meant --seed INT.",
    "train pendulum --teacher population --preferences.annotators oracle soft@0": (
        "preferences.annotators is 'soft@0'; write a teacher's name, "
    ),
    "train pendulum --preferences.annotators oracle --teacher=soft": (
        r"preferences.annotators is \('oracle',\); they answer with preferences.teacher=population, but it is 'soft'"
    ),
    "label x.npz --store x --preferences.annotators oracle@0 --teacher=population": (
        "preferences.annotators is 'oracle@0'; write a teacher's name, "
    ),
    "evaluate": "Missing from rlhf-ray evaluate: RUN The run folder, or one of its checkpoints.",
    "evaluate /nowhere": "/nowhere is not a run folder",
    "train pendulm": r"'pendulm' is not a preset; did you mean pendulum\?",
    "train fixed/CartPol-v1": "There is no environment 'CartPol-v1'.",
    "train pendulum --environment Pendulum-v9": ".*Pendulum-v9.*Pendulum-v1",
    "train pendulum --fragments.length 300": "fragments.length is 300.*200",
    "train pendulum --preferences.comparisons 0": "preferences.comparisons is 0",
    "train pendulum --environment FrozenLake-v1": r".*FrozenLake-v1.*Discrete\(16\)",
    "train pendulum --reward-model.network cnn": "reward_model.network is 'cnn'",
    "train pendulum --ppo.network impala": "ppo.network is 'impala'",
    "train pendulum --total-env-steps 100": ".*total_env_steps.*100",
    "train CartPole-v1 --fast": ".*preferences.allow_variable_horizon",
    "tune nothing": "'nothing' is .*pendulum",
    "tune --trials 3 pendulum": "--trials is given before a preset; .*rlhf-ray tune PRESET --trials",
}


@pytest.mark.parametrize(("command", "line"), WRONG.items())
def test_a_value_that_cannot_work_is_one_line_and_leaves_nothing_behind(
    command: str, line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = command.split()
    run = ["--run-dir", str(tmp_path / "run")] if words[0] == "train" and len(words) > 1 else []
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, *run])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert re.match(f"rlhf-ray: {line}", said.err), said.err
    assert said.err.count("\n") == 1
    assert "rlhf-ray: " not in said.out
    assert not (tmp_path / "run").exists()


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


@pytest.mark.parametrize("teacher", ["machine", "machine+human"])
def test_training_does_not_wait_for_a_machine(teacher: str) -> None:
    command = Train(**vars(Experiment(preferences=PreferenceSettings(teacher=teacher))), teacher=teacher)
    assert _experiment(command).preferences.mode == "asynchronous"


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


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with contextlib.suppress(SystemExit):
        cli.main([*words, "--help"])
    said = capsys.readouterr()
    assert not said.err
    return said.out


OWN: dict[str, list[str]] = {
    "train": [", ".join(tune_configs.names()), "--reference", "--total-env-steps", "--preferences.comparisons"],
    "tune": ["--vary", "--trials", "--ppo.gamma"],
    "train --resume": ["--reference"],
    "fit": ["--held-out-share", "--reward-model.hidden"],
    "fit --from-rewards": ["--supervised.epochs"],
    "label": ["--store", "--labelling.port"],
    "interpret preprocess": ["--options.potential"],
    "submit": ["--working-dir"],
    "": list(cli.COMMANDS),
    "train pendulum": [
        "(default: 100000)",
        "(default: Pendulum-v1)",
        "Fraction (0 ≤ x < 1) of answers assumed to be random",
    ],
    **{f"store {action}": [] for action in ACTIONS},
}
"""What the help of a command has to name."""


@pytest.mark.parametrize("command", [*OWN, *(name for name in cli.COMMANDS if name not in OWN)])
def test_a_commands_help_needs_nothing_else_and_says_whose_it_is(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(command.split(), capsys)
    named = [word for word in command.split() if not word.startswith("-")]
    assert text.startswith(f"usage: {' '.join(['rlhf-ray', *named])}")
    text = " ".join(text.replace("│", " ").split())
    assert not [option for option in OWN.get(command, ()) if option not in text]


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--version"])
    assert capsys.readouterr().out == f"rlhf-ray {__version__}\n"


@pytest.mark.parametrize("number", ["3e4", "30_000", "30000", "3.0e4"])
def test_whole_numbers_may_have_an_exponent(number: str) -> None:
    words = ["--total-env-steps", number, "--preferences.comparisons=2e1", "--preferences.initial-comparisons", "1e1"]
    given = parse_arguments(Train, "rlhf-ray train", words)
    assert (given.total_env_steps, type(given.total_env_steps)) == (30000, int)
    assert (given.preferences.comparisons, given.preferences.initial_comparisons) == (20, 10)
    share = parse_arguments(Train, "rlhf-ray train", ["--preferences.initial-comparisons", "1e-1"])
    assert share.preferences.initial_comparisons == 0.1
    with pytest.raises(SettingError, match=r"--total-env-steps: '2\.5e0' is not a whole number"):
        parse_arguments(Train, "rlhf-ray train", ["--total-env-steps", "2.5e0"])


def test_whole_numbers_from_files_and_python_may_be_floats() -> None:
    given = from_json(Experiment, {"total_env_steps": 1e5, "ppo": {"hidden": [32.0, 32], "num_envs": 4.0}})
    assert given == Experiment(total_env_steps=100_000, ppo=PPOSettings(hidden=(32, 32), num_envs=4))
    assert all(isinstance(units, int) for units in (given.total_env_steps, given.ppo.num_envs, *given.ppo.hidden))
    assert PreferenceSettings(comparisons=2e2, initial_comparisons=0.25).initial_comparisons == 0.25  # type: ignore[arg-type]
    for value in (100.5, "1e5"):
        with pytest.raises(SettingError, match=rf"total_env_steps is {value!r}; it must be a whole number"):
            Experiment(total_env_steps=value)  # type: ignore[arg-type]
