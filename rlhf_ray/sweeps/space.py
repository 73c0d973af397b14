"""Search spaces: the settings that a sweep varies, by their command line names, with a sampler each; and grids of listed values."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from ray import tune
from ray.tune.search.sample import Categorical, Domain, Float, Integer, LogUniform

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.metrics import plain
from rlhf_ray.data.registry import did_you_mean
from rlhf_ray.queries.parts import check_parts
from rlhf_ray.settings import AgentName, Experiment, checks, from_json, to_json
from rlhf_ray.settings.checks import whole_number

Space = dict[str, Any]
"""Maps names of settings (``ppo.gamma``, ``seed``) to Tune's samplers."""

CHANGEABLE = frozenset(
    f"{group.name}.{field.name}"
    for group in fields(Experiment)
    for field in getattr(get_type_hints(Experiment)[group.name], "__dataclass_fields__", {}).values()
    if field.metadata.get(checks.CHANGEABLE)
)
"""Settings that may change during a training; see `rlhf_ray.settings.checks.changeable`."""

PLACED = (
    *(f"{of}.{name}" for of in get_args(AgentName) for name in ("num_env_runners", "num_learners", "gpus_per_learner")),
    *("preferences.mode", "reward_model.gpus"),
)
"""Settings that decide a trial's resources, which Tune requests once, at the trial's start."""


def apply(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """Return ``experiment`` with the settings in ``values``, by name.

    Raises:
        SettingError: there is no such setting, or a value is invalid.
    """
    settings, known = to_json(experiment), kinds()
    for name, value in plain(dict(values)).items():
        if name not in known:
            near = did_you_mean(name, known) or f"choose from {', '.join(sorted(known))}."
            raise SettingError(
                f"There is no setting {name!r} to vary; {near} `rlhf-ray train PRESET --help` explains them."
            )
        group, _, field = name.rpartition(".")
        (settings[group] if group else settings)[field] = value
    return from_json(Experiment, settings)


def kinds() -> dict[str, Any]:
    """Return the type of every setting that can vary, by name. All trials of a sweep have the same agent."""
    found: dict[str, Any] = {}
    for name, kind in get_type_hints(Experiment).items():
        of = get_type_hints(kind) if is_dataclass(kind) else {}
        found |= {f"{name}.{field}": hint for field, hint in of.items()} or {name: kind}
    del found["agent"]
    return found


FORMS = "NAME=A,B,C (each of these values), NAME=choice:A,B,C (drawn from them), NAME=LOW..HIGH (a range) or NAME=LOW..HIGH:log"
"""The forms of a word of ``--vary``."""


class Listed(Categorical):  # type: ignore[misc]
    """Values that are each tried. `tune.choice` draws them at random. Searchers and schedulers choose from both freely."""


def parse(words: Sequence[str], experiment: Experiment) -> Space:
    """Parse the words of ``--vary``, in one of the forms `FORMS`, to the search space of an experiment.

    Raises:
        SettingError: a word has another form, a value is invalid, or a setting is named twice.
    """
    space: Space = {}
    for word in words:
        name, domain = _parse(word)
        if name in space:
            raise SettingError(f"--vary is {word!r}, but {name} is varied already: give all its values in one word.")
        space[name] = domain
    check(space, experiment)
    return space


def _parse(word: str) -> tuple[str, Domain]:
    name, _, text = word.partition("=")
    name, text = name.removeprefix("--").replace("-", "_"), text.strip()
    kind = kinds().get(name)
    if kind is None:
        near = did_you_mean(name, kinds()) or f"write {FORMS}, as in ppo.learning_rate=1e-4..1e-2:log."
        raise SettingError(f"--vary is {word!r}, but there is no setting {name!r}; {near}")
    floats, numbers = _takes(kind, float), _takes(kind, int, float)
    low, dots, rest = text.partition("..")
    if dots and numbers:
        return name, _range(word, name, low, *rest.partition(":")[::2], whole=not floats)
    choice = text.removeprefix("choice:")
    try:
        values: list[Any] = json.loads(f"[{choice}]")
    except ValueError:
        values = [_value(one.strip(), numbers) for one in choice.split(",")]
    if "" in values or not values:
        raise SettingError(f"--vary is {word!r}, which has an empty value: write {FORMS.replace('NAME', name)}.")
    return name, Listed(values) if choice == text else tune.choice(values)


def _takes(kind: Any, *types: type) -> bool:
    """Return whether a setting's type is one of ``types``, or a union with one of them."""
    return get_origin(kind) is not tuple and any(one in types for one in (kind, *get_args(kind)))


def _range(word: str, name: str, low: str, high: str, scale: str, *, whole: bool) -> Domain:
    try:
        ends = (whole_number(low), whole_number(high)) if whole else (float(low), float(high))
        if scale not in ("", "log") or ends[0] >= ends[1] or (scale and ends[0] <= 0):
            raise ValueError
    except ValueError:
        raise SettingError(
            f"--vary is {word!r}; write {name}=LOW..HIGH or {name}=LOW..HIGH:log with two {'whole ' if whole else ''}numbers, LOW "
            "below HIGH, and both above 0 on a logarithmic scale."
        ) from None
    if whole:  # Tune excludes the upper end
        return (tune.lograndint if scale else tune.randint)(ends[0], ends[1] + 1)
    return (tune.loguniform if scale else tune.uniform)(*ends)


def _value(text: str, numbers: bool) -> Any:
    """Parse a value that is no JSON: Python's numbers, True, False and None, or a word."""
    known = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in known:
        return known[text.lower()]
    if numbers:
        with contextlib.suppress(ValueError):  # .5 and 1e-3
            return float(text)
    return text.strip("'\"")


def check(space: Space, experiment: Experiment) -> None:
    """Check that each value of a choice, and each end of a range, works on its own.

    Raises:
        SettingError: one doesn't, or nothing varies.
    """
    if not space:
        raise SettingError(f"Nothing varies: name at least one setting with --vary, as {FORMS}.")
    for name, domain in space.items():
        for value in extremes(domain):
            if get_origin(kinds().get(name)) is tuple and not isinstance(value, list | tuple):
                raise SettingError(
                    f"{name}={value!r}: its values are lists; write {name}=[64,64],[256,256], for example."
                )
            changed = apply(experiment, {name: value})
            changed.check_questions()
            check_parts(changed.preferences, changed.reward_model)


def extremes(domain: Any) -> list[Any]:
    """Return the values of a choice or the ends of a range; an empty list for anything else."""
    if isinstance(domain, Categorical):
        return list(domain.categories)
    if isinstance(domain, Float):
        return [domain.lower, domain.upper]
    if isinstance(domain, Integer):
        return [domain.lower, domain.upper - 1]
    if isinstance(domain, dict):  # from `describe`
        return list(domain.get("values", [domain[end] for end in ("low", "high") if end in domain]))
    return []


def describe(domain: Any) -> dict[str, Any]:
    """Describe a sampler as JSON values: ``values`` of a choice (``each`` if each is tried), or ``low``, ``high``, ``log``.

    Returns a description (from a resumed sweep) unchanged.
    """
    if isinstance(domain, dict):
        return domain
    if isinstance(domain, Categorical):
        return {"values": list(domain.categories)} | ({"each": True} if isinstance(domain, Listed) else {})
    if isinstance(domain, Float | Integer):
        low, high = extremes(domain)
        return {"low": low, "high": high, "log": isinstance(domain.get_sampler(), LogUniform)}
    return {}


def combinations(space: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all combinations of the listed values in ``space``; an empty one without any."""
    listed = {name: domain.categories for name, domain in space.items() if isinstance(domain, Listed)}
    return [dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values())]


def count(space: Mapping[str, Any], trials: int | None) -> int:
    """Return how many trials to run if ``trials`` were asked for; None: one of each combination, at least 4 if others are drawn."""
    grid = len(combinations(space))
    if any(not isinstance(domain, Listed) for domain in space.values()):
        return max(4, grid) if trials is None else trials
    return grid if trials is None else min(trials, grid)


def points(space: Mapping[str, Any], trials: int, seed: int) -> list[dict[str, Any]]:
    """Return the listed values of each trial: all combinations in turn, or a random part of them if there are more than trials."""
    grid = combinations(space)
    if grid == [{}]:
        return []
    if trials < len(grid):
        return random.Random(seed).sample(grid, trials)
    return [grid[trial % len(grid)] for trial in range(trials)]


def plan_in_words(space: Mapping[str, Any], trials: int, repeat: int, search: str) -> str:
    """Say in one line what a sweep runs."""
    grid = combinations(space)
    drawn = [name for name in space if name not in grid[0]]
    parts = [f"{min(trials, len(grid))} of {len(grid)} combinations of {' and '.join(grid[0])}"] if grid[0] else []
    parts += [f"{', '.join(drawn)} drawn at random"] if drawn else []
    how = f": {', '.join(parts)}" if search == "random" else f", whose settings {search} chooses"
    seeds = f"; each with {repeat} seeds" if repeat > 1 else ""
    return f"{trials} trial{'' if trials == 1 else 's'}{how}{seeds}"
