"""Search spaces: the settings that a sweep varies, by their names on the command line, and what each is drawn from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

from ray import tune
from ray.tune.search.sample import Categorical, Domain, Float, Integer, LogUniform

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.plain import plain
from rlhf_ray.queries.parts import check_parts
from rlhf_ray.settings import Experiment, from_json, to_json

Space = dict[str, Any]
"""Names of settings (``ppo.gamma``, ``seed``), each with one of Tune's samplers."""

CHANGEABLE = frozenset(
    {
        "fragments.start_share",
        "preferences.selection",
        "preferences.oversampling",
        "ppo.learning_rate",
        "ppo.final_learning_rate",
        "ppo.gamma",
        "ppo.gae_lambda",
        "ppo.clip",
        "ppo.entropy_coefficient",
        "ppo.value_coefficient",
        "ppo.max_grad_norm",
        "ppo.minibatch_size",
        "ppo.epochs",
        "reward_model.learning_rate",
        "reward_model.weight_decay",
        "reward_model.batch_size",
        "reward_model.updates",
        "reward_model.label_noise",
    }
)
"""Settings that a training may change on its way, as population-based training does: a new value takes effect with the next
iteration or fit. All others are part of what a checkpoint holds (networks, clips, budgets)."""

PLACED = (
    "ppo.num_env_runners",
    "ppo.num_learners",
    "ppo.gpus_per_learner",
    "preferences.mode",
    "reward_model.gpus",
)
"""Settings that decide what a trial needs on the cluster, which Tune asks for once, when the trial begins."""


def apply(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """``experiment`` with the settings that ``values`` names.

    Raises:
        SettingError: there is no such setting, or a value cannot work.
    """
    settings = to_json(experiment)
    for name, value in plain(dict(values)).items():
        if name not in kinds():
            raise SettingError(
                f"There is no setting {name!r} to vary; there are {', '.join(sorted(kinds()))}. `rlhf-ray train PRESET --help` "
                "explains each."
            )
        group, _, field = name.rpartition(".")
        (settings[group] if group else settings)[field] = value
    try:
        return from_json(Experiment, settings)
    except TypeError as error:  # a text where a number belongs
        raise SettingError(f"{', '.join(f'{name}={value!r}' for name, value in values.items())}: {error}") from error


def kinds() -> dict[str, Any]:
    """Every setting that can be varied, by its name, with its type."""
    hints = get_type_hints(Experiment)
    found = {}
    for name, kind in hints.items():
        fields = getattr(kind, "__dataclass_fields__", None)
        if fields is None:
            found[name] = kind
        else:
            found |= {f"{name}.{field}": of for field, of in get_type_hints(kind).items()}
    return found


def parse(words: Sequence[str], experiment: Experiment) -> Space:
    """What ``--vary`` names.

    ``NAME=A,B,C`` is a choice of values, ``NAME=LOW..HIGH`` a range, and ``NAME=LOW..HIGH:log`` a range on a logarithmic scale.

    Raises:
        SettingError: a word is none of these, or a value cannot work.
    """
    space = dict(_parse(word) for word in words)
    check(space, experiment)
    return space


def _parse(word: str) -> tuple[str, Domain]:
    name, equals, text = word.partition("=")
    name = name.removeprefix("--").replace("-", "_")
    kind = kinds().get(name)
    if not equals or not text or kind is None:
        what = f"there is no setting {name!r}" if equals and text else "nothing is said of what to draw it from"
        raise SettingError(
            f"--vary is {word!r}, and {what}: write NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C, where NAME is a setting as "
            "in `rlhf-ray train PRESET --help`, such as ppo.learning_rate."
        )
    if ".." not in text:
        return name, tune.choice(_values(text))
    bounds, _, scale = text.partition(":")
    low, _, high = bounds.partition("..")
    whole = int in (kind, *get_args(kind))
    try:
        ends = (int(low), int(high)) if whole else (float(low), float(high))
        if scale not in ("", "log") or ends[0] >= ends[1] or (scale and ends[0] <= 0):
            raise ValueError
    except ValueError:
        raise SettingError(
            f"--vary is {word!r}; write {name}=LOW..HIGH or {name}=LOW..HIGH:log with two {'whole ' if whole else ''}numbers, the "
            "lower first, and above 0 where the scale is logarithmic."
        ) from None
    if whole:  # Tune leaves out the upper end
        return name, (tune.lograndint if scale else tune.randint)(ends[0], ends[1] + 1)
    return name, (tune.loguniform if scale else tune.uniform)(*ends)


def _values(text: str) -> list[Any]:
    """The values in ``A,B,C``: numbers, true, false, null and lists as JSON has them, and words."""
    try:
        values: list[Any] = json.loads(f"[{text}]")
    except ValueError:
        values = [word.strip() for word in text.split(",")]
    return values


def check(space: Space, experiment: Experiment) -> None:
    """Check that each value of a choice, and each end of a range, works by itself.

    Raises:
        SettingError: one does not, or nothing varies.
    """
    if not space:
        raise SettingError("Nothing is varied: name at least one setting with --vary NAME=LOW..HIGH or NAME=A,B,C.")
    for name, domain in space.items():
        for value in extremes(domain):
            changed = apply(experiment, {name: value})
            check_parts(changed.preferences, changed.reward_model)


def extremes(domain: Any) -> list[Any]:
    """The values of a choice, or the ends of a range; none of what is neither."""
    if isinstance(domain, Categorical):
        return list(domain.categories)
    if isinstance(domain, Float):
        return [domain.lower, domain.upper]
    if isinstance(domain, Integer):
        return [domain.lower, domain.upper - 1]
    if isinstance(domain, dict):  # in the words of `describe`
        return list(domain.get("values", [domain[end] for end in ("low", "high") if end in domain]))
    return []


def describe(domain: Any) -> dict[str, Any]:
    """A sampler in plain words and numbers: ``values`` of a choice, or ``low``, ``high`` and whether the scale is ``log``.

    What is in these words already, as that of a sweep that is gone on with, stays as it is.
    """
    if isinstance(domain, dict):
        return domain
    if isinstance(domain, Categorical):
        return {"values": list(domain.categories)}
    if isinstance(domain, Float | Integer):
        low, high = extremes(domain)
        return {"low": low, "high": high, "log": isinstance(domain.get_sampler(), LogUniform)}
    return {}
