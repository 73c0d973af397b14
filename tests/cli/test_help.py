"""The help of every command, which tyro prints, and whole numbers with an exponent."""

import contextlib

import pytest

from rlhf_ray import __version__, cli, tune_configs
from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.store import ACTIONS
from rlhf_ray.cli.train import Train
from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import Experiment, PPOSettings, PreferenceSettings, from_json


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with contextlib.suppress(SystemExit):
        cli.main([*words, "--help"])
    said = capsys.readouterr()
    assert not said.err
    return said.out


OWN = {
    "train": [
        ", ".join(tune_configs.names()),
        "--reference",
        "--total-env-steps",
        "--preferences.comparisons",
        "--ppo.gamma",
    ],
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
    assert (given.total_env_steps, given.preferences.comparisons, given.preferences.initial_comparisons) == (
        30000,
        20,
        10,
    )
    assert isinstance(given.total_env_steps, int)
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
