"""Attribution: how much each element of each input contributes to what a function computes, with checks whether to believe it.

The function is a reward or what an agent computes: a `Question`. A method is a class of one file: name it in `METHODS`. In a
notebook::

    question = RewardQuestion(reward, data, regions_of(reward.observation_space))
    maps = METHODS.make("integrated_gradients").attribute(question, data[:6])
    maps["next_state"]  # [6, *observation_shape], in units of the reward
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from rlhf_ray.data.identity import identify
from rlhf_ray.data.registry import Registry, names_of
from rlhf_ray.interpret.attribution.gradients import TITLES, GradCAM, IntegratedGradients, Slope, SmoothGrad
from rlhf_ray.interpret.attribution.interventions import Occlusion, Perturbation, spread
from rlhf_ray.interpret.attribution.question import Maps, Method, Question, attribute, contributions
from rlhf_ray.study.run import code_of

__all__ = [
    "METHODS",
    "Maps",
    "Method",
    "Question",
    "attribute",
    "contributions",
    "known_methods",
    "make_methods",
    "methods_key",
    "spread",
]

METHODS: Registry[Method] = Registry(
    "--methods",
    Method,
    {
        **{name: partial(Slope, name) for name in TITLES},
        "integrated_gradients": IntegratedGradients,
        "smoothgrad": SmoothGrad,
        "grad_cam": GradCAM,
        **{f"occlusion_{fill}": partial(Occlusion, fill) for fill in ("typical", "donor", "blur", "inpaint")},
        "perturbation": Perturbation,
    },
)
"""All methods by name, and ``module:Name`` of a user's own."""


def make_methods(names: Iterable[str]) -> dict[str, Method]:
    """Make methods, by their names in tables.

    Raises:
        SettingError: there is no such method, or a user's own lacks something.
    """
    methods = [METHODS.make(name) for name in names]
    return {method.name: method for method in methods}


def known_methods(methods: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of methods, given by name, as classes or as objects.

    Raises:
        SettingError: one of them is unknown, or lacks something.
    """
    names: tuple[str, ...] = names_of(tuple(methods))
    make_methods(names)
    return names


def methods_key(names: Sequence[str]) -> str:
    """Identify methods and their code, for the key of a step that uses them."""
    custom = {name: METHODS.find(name) for name in names if name not in METHODS.parts}
    code = (code_of(method if isinstance(method, type) else type(method)) for method in custom.values())
    return " ".join([*names, *code, identify(*custom.values())])
