"""The help of every command: its own options, in lines that fit, and options that the command line takes."""

import contextlib
import dataclasses
import importlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from rlhf_ray import __version__, cli
from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.convert import Convert
from rlhf_ray.cli.fit import Fit
from rlhf_ray.cli.help import help_text
from rlhf_ray.cli.options import options
from rlhf_ray.cli.store import ACTIONS, Merge
from rlhf_ray.cli.train import Train
from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import Experiment, PPOSettings, PreferenceSettings, from_json

PAGES = [
    [], *([name] for name in cli.COMMANDS), *(["interpret", name] for name in ("reward", "agent", "preprocess")),
    *(["store", name] for name in ACTIONS), ["fit", "--from-rewards", "DATA"], ["train", "pendulum"], ["tune", "pendulum_sac"],
]  # fmt: skip


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with contextlib.suppress(SystemExit):
        cli.main([*words, "--help"])
    said = capsys.readouterr()
    assert not said.err
    return said.out


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
@pytest.mark.parametrize("columns", ["60", "80"])
def test_every_help_fits_and_says_whose_it_is(
    words: list[str], columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = shown(words, capsys)
    named = [word for word in words if word.islower() and not word.startswith("-")]
    assert text.startswith(f"usage: {' '.join(['rlhf-ray', *named])}")
    assert all(len(line) <= int(columns) or len(line.split()) == 1 for line in text.splitlines())
    assert "(default: )" not in text
    assert not re.search(r"\bSTR\b|\{None\}", text)


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["train"], ["--reference", "--total-env-steps", "--preferences.comparisons", "--ppo.gamma"]),
        (["tune"], ["--vary", "--trials", "--ppo.gamma"]),
        (["train", "--resume"], ["--reference"]),
        (["fit"], ["--held-out-share", "--reward-model.hidden"]),
        (["fit", "--from-rewards"], ["--supervised.epochs"]),
        (["label"], ["--store", "--labelling.port"]),
        (["interpret", "preprocess"], ["--options.potential"]),
        (["submit"], ["--working-dir"]),
    ],
)
def test_a_commands_help_needs_nothing_else_and_lists_its_options(
    words: list[str], own: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(words, capsys)
    assert all(f"\n  {option}" in text for option in own)


def test_a_presets_help_has_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    lines = " ".join(shown(["train", "pendulum"], capsys).split())
    assert re.search(r"--total-env-steps INT [^()]*\(default: 100000\)", lines)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--version"])
    assert capsys.readouterr().out == f"rlhf-ray {__version__}\n"


def kinds() -> Iterator[Any]:
    for file in ("train", "tune", "evaluate", "compare", "record", "convert", "label", "links", "pause", "fit", "fit_rewards",
                 "interpret", "interpret_agent", "preprocess", "cluster", "doctor", "store"):  # fmt: skip
        for kind in vars(importlib.import_module(f"rlhf_ray.cli.{file}")).values():
            if dataclasses.is_dataclass(kind) and kind.__module__ == f"rlhf_ray.cli.{file}" and kind.__name__[0] != "_":
                yield kind


LEAST = {"InterpretReward": ["--model", "1", "--data", "1"], "Preprocess": ["--data", "1"]}
"""Options without which a command has nothing to do."""


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_option_of_the_help_parses_and_is_explained(kind: Any) -> None:
    there = options(kind)
    assert not [option.name for option in there if not option.said]
    needed = [
        word for option in there if option.required for word in (*([] if option.positional else [option.name]), "1")
    ] + LEAST.get(kind.__name__, [])
    usual = parse_arguments(kind, "program", needed)
    words = list(needed)
    for option in there:
        if option.negative:
            words.append(option.name if option.default else option.negative)
        elif option.given_default:
            words += [option.name, *(option.default if isinstance(option.default, tuple) else [option.given_default])]
    assert parse_arguments(kind, "program", list(map(str, words))) == usual


def test_forms_and_defaults() -> None:
    lines = help_text(Merge, options(Merge), "rlhf-ray store merge", None, 80).splitlines()
    assert lines[0] == "usage: rlhf-ray store merge PATH OTHERS …"
    assert "[--to recording|demonstrations|imitation|minari]" in help_text(Convert, options(Convert), "c", None, 100)
    forms = {option.name: (option.form, option.given_default) for option in options(Fit)}
    assert forms["--updates"] == ("--updates INT|None", "None")
    assert forms["--reward-model.hidden"] == ("--reward-model.hidden INT …", "64 64")
    assert forms["--reward-model.bootstrap"][0] == "--reward-model.bootstrap, --reward-model.no-bootstrap"


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
    with pytest.raises(SettingError, match=r"--total-env-steps is '2\.5e0'; it must be a whole number"):
        parse_arguments(Train, "rlhf-ray train", ["--total-env-steps", "2.5e0"])


def test_whole_numbers_from_files_and_python_may_be_floats() -> None:
    given = from_json(Experiment, {"total_env_steps": 1e5, "ppo": {"hidden": [32.0, 32], "num_envs": 4.0}})
    assert given == Experiment(total_env_steps=100_000, ppo=PPOSettings(hidden=(32, 32), num_envs=4))
    assert all(isinstance(units, int) for units in (given.total_env_steps, given.ppo.num_envs, *given.ppo.hidden))
    assert PreferenceSettings(comparisons=2e2, initial_comparisons=0.25).initial_comparisons == 0.25  # type: ignore[arg-type]
    for value in (100.5, "1e5"):
        with pytest.raises(SettingError, match=rf"total_env_steps is {value!r}; it must be a whole number"):
            Experiment(total_env_steps=value)  # type: ignore[arg-type]
