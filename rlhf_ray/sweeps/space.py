"""Search spaces: the settings that a sweep varies, by their command line names, with a sampler each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

from ray import tune
from ray.tune.search.sample import Categorical, Domain, Float, Integer, LogUniform

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.nearest import did_you_mean
from rlhf_ray.data.plain import plain
from rlhf_ray.data.whole import whole_number
from rlhf_ray.queries.parts import check_parts
from rlhf_ray.settings import Experiment, from_json, to_json

Space = dict[str, Any]
"""Maps names of settings (``ppo.gamma``, ``seed``) to Tune's samplers."""

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
        "sac.updates_per_env_step",
        "sac.batch_size",
        "sac.actor_learning_rate",
        "sac.critic_learning_rate",
        "sac.alpha_learning_rate",
        "sac.target_entropy",
        "sac.tau",
        "sac.gamma",
        "reward_model.learning_rate",
        "reward_model.weight_decay",
        "reward_model.batch_size",
        "reward_model.updates",
        "reward_model.label_noise",
    }
)
"""Settings that may change during a training, as in population-based training: a new value takes effect at the next iteration or
fit. Checkpoints fix all others (networks, fragments, budgets)."""

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


def parse(words: Sequence[str], experiment: Experiment) -> Space:
    """Parse the words of ``--vary``.

    ``NAME=A,B,C`` is a choice, ``NAME=LOW..HIGH`` a range, and ``NAME=LOW..HIGH:log`` a range on a logarithmic scale.

    Args:
        words: the words.
        experiment: the experiment to vary, for checks.

    Returns:
        The search space.

    Raises:
        SettingError: a word has another form, or a value is invalid.
    """
    space = dict(_parse(word) for word in words)
    check(space, experiment)
    return space


def _parse(word: str) -> tuple[str, Domain]:
    name, equals, text = word.partition("=")
    name = name.removeprefix("--").replace("-", "_")
    kind = kinds().get(name)
    if not equals or not text or kind is None:
        what = f"there is no setting {name!r}" if equals and text else "the values are missing"
        if near := did_you_mean(name, kinds()) if kind is None else "":
            raise SettingError(f"--vary is {word!r}, but there is no setting {name!r}; {near}")
        raise SettingError(
            f"--vary is {word!r}, but {what}: write NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C, with the name of a setting "
            "from `rlhf-ray train PRESET --help`, such as ppo.learning_rate."
        )
    if ".." not in text:
        return name, tune.choice(_values(text))
    bounds, _, scale = text.partition(":")
    low, _, high = bounds.partition("..")
    whole = int in (kind, *get_args(kind))
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
        return name, (tune.lograndint if scale else tune.randint)(ends[0], ends[1] + 1)
    return name, (tune.loguniform if scale else tune.uniform)(*ends)


def _values(text: str) -> list[Any]:
    """Parse the values in ``A,B,C``: JSON numbers, booleans, null and lists, or words."""
    try:
        values: list[Any] = json.loads(f"[{text}]")
    except ValueError:
        values = [word.strip() for word in text.split(",")]
    return values


def check(space: Space, experiment: Experiment) -> None:
    """Check that each value of a choice, and each end of a range, works on its own.

    Raises:
        SettingError: one doesn't, or nothing varies.
    """
    if not space:
        raise SettingError("Nothing varies: name at least one setting with --vary NAME=LOW..HIGH or NAME=A,B,C.")
    for name, domain in space.items():
        for value in extremes(domain):
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
    """Describe a sampler as JSON values: ``values`` of a choice, or ``low``, ``high`` and ``log`` of a range.

    Returns a description (from a resumed sweep) unchanged.
    """
    if isinstance(domain, dict):
        return domain
    if isinstance(domain, Categorical):
        return {"values": list(domain.categories)}
    if isinstance(domain, Float | Integer):
        low, high = extremes(domain)
        return {"low": low, "high": high, "log": isinstance(domain.get_sampler(), LogUniform)}
    return {}
