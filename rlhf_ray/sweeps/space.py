"""Search spaces: the settings that a sweep varies, by their command line names, with a sampler each."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from ray import tune
from ray.tune.search.sample import Categorical, Domain, Float, Integer, LogUniform

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.nearest import did_you_mean
from rlhf_ray.data.plain import plain
from rlhf_ray.data.whole import whole_number
from rlhf_ray.queries.parts import check_parts
from rlhf_ray.settings import Experiment, checks, from_json, to_json
from rlhf_ray.sweeps.grid import Listed

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
    "ppo.num_env_runners",
    "ppo.num_learners",
    "ppo.gpus_per_learner",
    "sac.num_env_runners",
    "sac.num_learners",
    "sac.gpus_per_learner",
    "preferences.mode",
    "reward_model.gpus",
)
"""Settings that decide a trial's resources, which Tune requests once, at the trial's start."""


def apply(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """Return ``experiment`` with the settings in ``values``, by name.

    Raises:
        SettingError: there is no such setting, or a value is invalid.
    """
    settings = to_json(experiment)
    for name, value in plain(dict(values)).items():
        if name not in kinds():
            near = did_you_mean(name, kinds()) or f"choose from {', '.join(sorted(kinds()))}."
            raise SettingError(
                f"There is no setting {name!r} to vary; {near} `rlhf-ray train PRESET --help` explains them."
            )
        group, _, field = name.rpartition(".")
        (settings[group] if group else settings)[field] = value
    try:
        return from_json(Experiment, settings)
    except TypeError as error:  # for example a string in place of a number
        raise SettingError(f"{', '.join(f'{name}={value!r}' for name, value in values.items())}: {error}") from error


def kinds() -> dict[str, Any]:
    """Return the type of every setting that can vary, by name. All trials of a sweep have the same agent."""
    hints = {name: kind for name, kind in get_type_hints(Experiment).items() if name != "agent"}
    found = {}
    for name, kind in hints.items():
        fields = getattr(kind, "__dataclass_fields__", None)
        if fields is None:
            found[name] = kind
        else:
            found |= {f"{name}.{field}": of for field, of in get_type_hints(kind).items()}
    return found


FORMS = "NAME=A,B,C (each of these values), NAME=choice:A,B,C (drawn from them), NAME=LOW..HIGH (a range) or NAME=LOW..HIGH:log"
"""The forms of a word of ``--vary``."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

_RANGE = re.compile(
    rf"(?P<kind>[a-z_]*)[:(=\[\s]*(?P<low>{_NUMBER})\s*(?:\.{{2,}}|,|:|-|\bto\b|;)+\s*(?P<high>{_NUMBER})(?P<rest>.*)",
    re.IGNORECASE,
)
"""What may be meant as a range: two numbers, maybe after the name of a distribution."""

_SAMPLERS = (
    "uniform",
    "loguniform",
    "quniform",
    "qloguniform",
    "randint",
    "lograndint",
    "qrandint",
    "randn",
    "normal",
    "range",
    "log",
)
"""Names of distributions, of Tune and others, that people write before a range."""


def parse(words: Sequence[str], experiment: Experiment) -> Space:
    """Parse the words of ``--vary``, in one of the forms `FORMS`.

    Args:
        words: the words.
        experiment: the experiment to vary, for checks.

    Returns:
        The search space.

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
    name, equals, text = word.partition("=")
    name, text = name.removeprefix("--").replace("-", "_"), text.strip()
    kind = _kind_of(word, name, text if equals else "")
    numbers, whole = _takes(kind, int, float), _takes(kind, int) and not _takes(kind, float)
    sampler, colon, of_choice = text.partition(":")
    if colon and sampler == "choice":
        return name, tune.choice(_values(word, of_choice, numbers))
    named = re.match(r"[a-z_]+(?=[:(=\[])", text)
    if ".." in text and not named and numbers:
        return name, _range(word, name, text, whole)
    if named and (numbers or named[0] in (*_SAMPLERS, "choice", "grid", "grid_search")):
        raise SettingError(_advice(word, name, text))
    return name, Listed(_listed(word, name, text, kind))


def _kind_of(word: str, name: str, text: str) -> Any:
    """Return the type of the setting that a word varies."""
    kind = kinds().get(name)
    if kind is not None and text:
        return kind
    if near := did_you_mean(name, kinds()) if kind is None else "":
        raise SettingError(f"--vary is {word!r}, but there is no setting {name!r}; {near}")
    what = f"there is no setting {name!r}" if text else "the values are missing"
    raise SettingError(
        f"--vary is {word!r}, but {what}: write {FORMS}, with the name of a setting from `rlhf-ray train PRESET --help`, as "
        "ppo.learning_rate."
    )


def _listed(word: str, name: str, text: str, kind: Any) -> list[Any]:
    """Return the values in ``A,B,C`` that a setting takes."""
    numbers, whole = _takes(kind, int, float), _takes(kind, int) and not _takes(kind, float)
    values = _values(word, text, numbers)
    if whole:  # 1e5
        values = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    if whole and any(isinstance(value, float) for value in values):
        raise SettingError(
            f"--vary is {word!r}, but {name} takes whole numbers: write {name}=1,2,3 or {name}=1..3, for example."
        )
    if numbers and not all(_is_number(value, kind, whole) for value in values):
        raise SettingError(_advice(word, name, text))
    if repeated := [value for i, value in enumerate(values) if value in values[:i]]:
        raise SettingError(f"--vary is {word!r}, which has {repeated[0]} twice: give each value once.")
    return values


def _takes(kind: Any, *types: type) -> bool:
    """Return whether a setting's type is one of ``types``, or a union with one of them."""
    return get_origin(kind) is not tuple and any(one in types for one in (kind, *get_args(kind)))


def _is_number(value: Any, kind: Any, whole: bool) -> bool:
    """Return whether a setting of numbers takes the value: a number, or another value of its type, such as None or "auto"."""
    if value is None or isinstance(value, str):
        return value in _others(kind)
    return isinstance(value, int if whole else int | float)


def _others(kind: Any) -> list[Any]:
    return [None if one is type(None) else one for part in (kind, *get_args(kind)) for one in (part, *get_args(part))]


def _range(word: str, name: str, text: str, whole: bool) -> Domain:
    bounds, colon, scale = text.partition(":")
    low, _, high = bounds.partition("..")
    try:
        ends = (whole_number(low), whole_number(high)) if whole else (float(low), float(high))
        if (scale or colon) not in ("", "log") or ends[0] >= ends[1] or (scale and ends[0] <= 0):
            raise ValueError
    except ValueError:
        meant = _RANGE.fullmatch(text)
        if meant is not None and (scale or colon) != "log" and not whole and float(meant["low"]) < float(meant["high"]):
            raise SettingError(_advice(word, name, text)) from None
        raise SettingError(
            f"--vary is {word!r}; write {name}=LOW..HIGH or {name}=LOW..HIGH:log with two {'whole ' if whole else ''}numbers, LOW "
            "below HIGH, and both above 0 on a logarithmic scale."
        ) from None
    if whole:  # Tune excludes the upper end
        return (tune.lograndint if scale else tune.randint)(ends[0], ends[1] + 1)
    return (tune.loguniform if scale else tune.uniform)(*ends)


def _advice(word: str, name: str, text: str) -> str:
    """Say how a word in the syntax of other tools is written here."""
    sampler = re.split(r"[:(=\[]", text, maxsplit=1)[0].strip()
    if text.startswith("[") and text.endswith("]"):
        return f"--vary is {word!r}; write {name}={text[1:-1]} to try each of these values."
    if sampler in ("choice", "grid", "grid_search"):
        values = text[len(sampler) :].strip(":=()[] ")
        drawn = f", or {name}=choice:{values} to draw from them" if values else ""
        return f"--vary is {word!r}; write {name}={values or 'A,B'} to try each of these values{drawn}."
    found = _RANGE.fullmatch(text)
    if found is not None and float(found["low"]) < float(found["high"]):
        log = ":log" if "log" in found["kind"].lower() or "log" in found["rest"].lower() else ""
        ends, scale = f"{found['low']}..{found['high']}", " on a logarithmic scale" if log else ""
        both = f"{found['low']},{found['high']}"
        return f"--vary is {word!r}; write {name}={ends}{log} for a range{scale}, or {name}={both} for two values."
    return f"--vary is {word!r}; write {FORMS.replace('NAME', name)}."


def _values(word: str, text: str, numbers: bool) -> list[Any]:
    """Parse the values in ``A,B,C``: JSON numbers, booleans, null and lists, or words."""
    try:
        values: list[Any] = json.loads(f"[{text}]")
    except ValueError:
        values = [_value(one.strip(), numbers) for one in text.split(",")]
    if "" in values or not values:
        raise SettingError(f"--vary is {word!r}, which has an empty value: remove a comma.")
    return values


def _value(text: str, numbers: bool) -> Any:
    """Parse a value that is no JSON: Python's numbers, True, False and None, or a word."""
    known = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in known:
        return known[text.lower()]
    if numbers:
        with contextlib.suppress(ValueError):  # .5 and 1e-3
            return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
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
