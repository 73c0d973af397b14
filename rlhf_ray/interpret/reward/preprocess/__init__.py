"""Preprocessing: turn a reward into an equivalent one that is easier to read (Jenner and Gleave 2022).

`preprocess` adds potential shaping, and a constant where episodes never terminate, so that the reward becomes sparse or smooth.
Optimal policies stay the same: see the `Certificate`.
"""

from rlhf_ray.interpret.reward.preprocess.certificate import Certificate
from rlhf_ray.interpret.reward.preprocess.descent import distil
from rlhf_ray.interpret.reward.preprocess.options import OBJECTIVES, Objective, Options
from rlhf_ray.interpret.reward.preprocess.problem import Problem
from rlhf_ray.interpret.reward.preprocess.run import Preprocessed, preprocess, write
from rlhf_ray.reward.functions.potentials import LinearPotential, MLPPotential, Potential, TabularPotential
from rlhf_ray.reward.functions.shaped import ShapedReward

__all__ = [
    "OBJECTIVES",
    "Certificate",
    "LinearPotential",
    "MLPPotential",
    "Objective",
    "Options",
    "Potential",
    "Preprocessed",
    "Problem",
    "ShapedReward",
    "TabularPotential",
    "distil",
    "preprocess",
    "write",
]
