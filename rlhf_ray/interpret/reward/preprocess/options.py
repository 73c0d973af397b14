"""How to preprocess a reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from rlhf_ray.data.errors import SettingError

Objective: TypeAlias = Literal["sparse_l1", "sparse_log", "smooth_l1", "smooth_log"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
PotentialKind: TypeAlias = Literal["auto", "tabular", "linear", "mlp"]


@dataclass(frozen=True)
class Options:
    """How to preprocess a reward."""

    objective: Objective = "sparse_l1"
    """What to minimise: sparse_l1 or sparse_log (rewards that are 0 on most steps), smooth_l1 or smooth_log (rewards that change
    little from step to step)."""
    potential: PotentialKind = "auto"
    """Potential: tabular, linear or mlp. auto: tabular for numbered states, linear for vectors, mlp for images."""
    gamma: float = 0.99
    """Discount of the shaping; that of the agent."""
    shift: bool | None = None
    """Whether a constant may be subtracted. It changes what is optimal if episodes can end. None: only if no step terminates."""
    hidden: tuple[int, ...] = (64,)
    """Units in each hidden layer of an mlp potential."""
    steps: int = 1000
    """Gradient steps for an mlp potential."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise SettingError(f"objective is {self.objective!r}; it must be one of {', '.join(OBJECTIVES)}.")
        if self.potential not in ("auto", "tabular", "linear", "mlp"):
            raise SettingError(f"potential is {self.potential!r}; it must be auto, tabular, linear or mlp.")
        if not 0 <= self.gamma <= 1:
            raise SettingError(f"gamma is {self.gamma}; it must be from 0 to 1.")
        if self.steps < 1:
            raise SettingError(f"steps is {self.steps}; it must be 1 or more.")
