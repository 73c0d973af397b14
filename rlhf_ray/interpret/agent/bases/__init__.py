"""Bases: one file per kind of decomposition, all with the interface of `Basis`."""

from rlhf_ray.interpret.agent.bases.basis import Basis

__all__ = ["Basis"]
