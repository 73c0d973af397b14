"""Attribution: how much each element of each input contributes to a reward, with the checks that tell whether to believe it.

A method is a file of this folder with ``METHODS``; name the file in `_FILES`. In a notebook::

    from rlhf_ray.interpret.reward.attribution import METHODS, Background
    background = Background(reward, data, regions_of(reward.observation_space))
    maps = METHODS["integrated_gradients"](background, data[:6])
    maps["next_state"]  # [6, *observation_shape], in units of the reward
"""

from __future__ import annotations

import importlib

from rlhf_ray.interpret.reward.attribution.background import FIELDS, INPUT_WORDS, Background, Maps
from rlhf_ray.interpret.reward.attribution.interventions import Effects, input_effects, part_effects
from rlhf_ray.interpret.reward.attribution.method import Method

_FILES = ("gradients", "gradcam", "occlusion", "perturbation")

METHODS: dict[str, Method] = {
    method.name: method for file in _FILES for method in importlib.import_module(f"{__name__}.{file}").METHODS
}
"""All methods by name."""

__all__ = [
    "FIELDS",
    "INPUT_WORDS",
    "METHODS",
    "Background",
    "Effects",
    "Maps",
    "Method",
    "input_effects",
    "part_effects",
]
