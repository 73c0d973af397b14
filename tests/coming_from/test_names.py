"""The pages for those who come from imitation and drlhp: our names exist, and all of imitation's classes and options are there."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
import re
import typing
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from rlhf_ray import cli, tune_configs
from rlhf_ray.cli.store import ACTIONS
from rlhf_ray.cli.train import Train
from rlhf_ray.cli.tune import Tune
from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import Experiment
from rlhf_ray.settings.experiment import PARTS
from rlhf_ray.settings.start import Start
from tests.coming_from.pages import DOCS, IMITATION, PAGES, ROWS, spans

REGISTRIES = {
    "preferences.teacher": "rlhf_ray.teachers:TEACHERS",
    "preferences.gatherer": "rlhf_ray.queries.parts:GATHERERS",
    "preferences.selection": "rlhf_ray.queries.selection:SELECTIONS",
    "reward_model.network": "rlhf_ray.reward.networks:NETWORKS",
    "reward_model.loss": "rlhf_ray.reward.likelihood:LOSSES",
}
"""Where the values of a setting are, besides module:Name."""

MODULES = (
    "rlhf_ray.reward",
    "rlhf_ray.store",
    "rlhf_ray.wrappers",
    "rlhf_ray.rllib",
    "rlhf_ray.data.comparisons",
    "rlhf_ray.reward.functions.reward_net",
)
"""Where pages' plain names of classes and functions are."""

OF_IMITATION = (
    "algorithms.preference_comparisons",
    "rewards.reward_nets",
    "rewards.reward_wrapper",
    "rewards.reward_function",
    "rewards.serialize",
    "regularization.regularizers",
    "regularization.updaters",
    "policies.exploration_wrapper",
    "policies.replay_buffer_wrapper",
    "data.serialize",
    "data.wrappers",
    "util.networks",
)
HELPERS = frozenset({"cnn_transpose"})
"""Functions that nobody outside calls."""


def options() -> set[str]:
    fields = itertools.chain.from_iterable(map(dataclasses.fields, (Train, Start, Tune)))
    return {f"--{field.name.replace('_', '-')}" for field in fields} | {"--debug", "--resume", "--search optuna"}


def setting_exists(name: str, value: str) -> bool:
    of: Any = Experiment()
    *groups, last = name.split(".")
    for group in groups:
        of = getattr(of, group, None)
    if not dataclasses.is_dataclass(of) or last not in {field.name for field in dataclasses.fields(of)}:
        return False
    if not value:
        return True
    if name in REGISTRIES:
        module, _, registry = REGISTRIES[name].partition(":")
        parts = getattr(importlib.import_module(module), registry)
        return value == "module:Name" or value in (*parts.parts, *parts.others) or parts.find(value) is not None
    if value == "module:Name":
        return last in PARTS.get(".".join(groups), ())
    try:
        dataclasses.replace(of, **{last: value})
    except SettingError:
        return False
    kinds = typing.get_args(typing.get_type_hints(type(of))[last])
    return not kinds or value in kinds


def found(name: str) -> Any:
    """The class, function, method or parameter of ours that ``name`` stands for; None if there is none."""
    name, _, parameter = name.rstrip(")").partition("(")
    if name.startswith("rlhf_ray."):
        module, _, name = name.rpartition(".")
        places = [importlib.import_module(module)]
    else:
        optional = [] if importlib.util.find_spec("imitation") else ["rlhf_ray.reward.functions.reward_net"]
        places = [importlib.import_module(module) for module in MODULES if module not in optional]
    for place in places:
        of: Any = place
        for part in name.split("."):
            of = getattr(of, part, None)
        if of is not None and (not parameter or parameter in inspect.signature(of).parameters):
            return of
    return None


def exists(name: str) -> bool:
    words = name.split()
    if words[0] == "rlhf-ray":
        known = {"store": ACTIONS, "train": tune_configs.names()}.get(words[1], ())
        rest = [word for word in words[2:] if not word.startswith("--") and not word.isupper()]
        given = [word for word in words[2:] if word.startswith("--")]
        return words[1] in cli.COMMANDS and all(word in known for word in rest) and all(map(exists, given))
    if name.startswith("--"):
        setting = words[0].removeprefix("--").replace(".no-", ".").replace("-", "_")
        return name in options() or ("." in setting and setting_exists(setting, ""))
    setting, _, value = name.partition("=")
    if re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)?", setting) and setting_exists(setting, value):
        return True
    return "=" not in name and found(name) is not None


def claimed(page: str) -> Iterator[tuple[str, str]]:
    """The names of ours on a page, each with its line: all in the tables' cells for them; elsewhere, those that look like ours."""
    groups = "|".join(field.name for field in dataclasses.fields(Experiment))
    for row in ROWS:
        for cell in row.ours[:-1] if len(row.ours) > 1 else row.ours:
            if row.page == page and not cell.startswith("see "):
                yield from ((name, str(row)) for name in spans(cell))
    text = re.sub(r"(?s)```.*?```", "", (DOCS / page).read_text())
    for line in text.splitlines():
        later = line.split("|", 2)[-1] if line.startswith("|") else line
        yield from ((name, line) for name in spans(later) if re.match(rf"--[a-z]|rlhf-ray |({groups})\.", name))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_ours_exists(page: str) -> None:
    missing = [f"{where}: {name}" for name, where in claimed(page) if not exists(name)]
    assert not missing, "\n".join(missing)
    assert sum(1 for row in ROWS if row.page == page) > 40


def test_every_row_says_something() -> None:
    for row in ROWS:
        assert row.theirs or row.heading == "Workflows", row
        assert row.ours[0], row
        if row.ours[0] == "–":
            assert row.ours[-1] not in ("", "–"), f"{row}: why not?"


@pytest.mark.parametrize(
    "name",
    [
        *("reward_model.label_noises", "preferences.selection=disagreeable", "preferences.mode=slow", "--labels-from"),
        *(
            "rlhf-ray train pendulums",
            "rlhf-ray train --resumed RUN",
            "RewardEnsemble.predicts",
            "HumanPreferencesEnv(fits)",
        ),
    ],
)
def test_the_check_finds_wrong_names(name: str) -> None:
    try:
        wrong = not exists(name)
    except SettingError:
        wrong = True
    assert wrong


def under() -> dict[str, set[str]]:
    """The names in the first cells under each name in a heading, and under "" those that every class has."""
    names = defaultdict(set)
    for row in ROWS:
        if row.page == IMITATION:
            for name in spans(row.heading) or ([""] if row.heading == "In every class" else [row.heading]):
                names[name].update(row.theirs)
    return names


@pytest.mark.parametrize("module", OF_IMITATION)
def test_every_class_and_option_of_imitation_has_a_row(module: str) -> None:
    pytest.importorskip("imitation", reason="the extra 'imitation'")
    theirs, names, missing = importlib.import_module(f"imitation.{module}"), under(), []
    everywhere = names[""]
    rows_have = set().union(*names.values())
    for name, of in vars(theirs).items():
        if name.startswith("_") or getattr(of, "__module__", None) != theirs.__name__ or name in HELPERS:
            continue
        if not (inspect.isclass(of) or inspect.isfunction(of)):
            continue
        if name not in rows_have:
            missing.append(name)
        if inspect.isclass(of):
            there = names.get(name, set()) | everywhere
            missing += [
                f"{name}({option})"
                for option in list(inspect.signature(of.__init__).parameters)[1:]
                if option not in there
            ]
        elif name in names:
            there = names[name] | everywhere
            missing += [
                f"{name}({o})"
                for o in inspect.signature(of).parameters
                if o not in there | {"batch", "reward_model", "m", "mode"}
            ]
    assert not missing, missing


@pytest.mark.slow
def test_every_option_of_imitations_script_has_a_row() -> None:
    pytest.importorskip("sacred", reason="the extra 'imitation'")
    script = importlib.import_module("imitation.scripts.config.train_preference_comparisons")
    experiment, names, missing = script.train_preference_comparisons_ex, under(), []
    there = names["train_preference_comparisons"]
    for of, prefix in [(experiment, ""), *((each, f"{each.path}.") for each in experiment.ingredients)]:
        here = there if not prefix else names[of.path]
        keys = [
            *itertools.chain.from_iterable(config() for config in of.configurations if not config.args),
            *of.named_configs,
        ]
        missing += [f"{prefix}{key}" for key in keys if key != "seed" and f"{prefix}{key}" not in here]
    assert not missing, missing
    assert len(there) > 30
