"""The best tabular or linear potential, by linear programmes (HiGHS), with a bound on how far from optimal it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.reward.preprocess.problem import Objective, Problem

REWEIGHTINGS = 20
"""Most linear programmes for a log objective."""
NO_SIZE = 1e-12
"""A smaller effect of the parameters on the objective counts as none."""


@dataclass(frozen=True)
class Solution:
    """Parameters that minimise an objective.

    Attributes:
        parameters: ``[k]``.
        lower_bound: no parameters reach less, by the dual programme; None for the log objectives, which are not convex.
        dual_residual: how far the dual solution is from feasible; the bound holds up to this times the parameters' sizes.
        programmes: number of linear programmes solved.
        status: what the solver said.
    """

    parameters: FloatArray
    lower_bound: float | None
    dual_residual: float
    programmes: int
    status: str


def solve(given: FloatArray, effects: sparse.csr_array, problem: Problem, objective: Objective) -> Solution:
    """Minimise the objective of the rewards ``given + effects @ parameters``.

    The log objectives are concave in the size of each reward. Each of their programmes minimises the tangent at the last solution,
    which lowers the objective until it is stationary (majorise and minimise); the better of two starts counts.

    Args:
        given: ``[n]``: rewards without shaping.
        effects: ``[n, k]``: effect of each parameter on each reward.
        problem: the steps.
        objective: what to minimise.

    Raises:
        SettingError: the solver failed.
    """
    rows, weights = problem.terms(effects, objective)
    values, _ = problem.terms(given, objective)
    if not len(values) or abs(rows).max() < NO_SIZE:
        return Solution(np.zeros(effects.shape[1]), float(weights @ np.abs(values)), 0.0, 0, "nothing to choose")
    parameters, bound, residual, status = _least_absolute(values, rows, weights)
    if objective.endswith("l1"):
        return Solution(parameters, bound, residual, 1, status)
    best, lowest, programmes = parameters, np.inf, 1
    for start in (parameters, np.zeros_like(parameters)):
        current, previous = start, np.inf
        for _ in range(REWEIGHTINGS):
            sizes = np.abs(values + rows @ current)
            loss = float(weights @ np.log1p(sizes))
            if loss < lowest:
                best, lowest = current, loss
            if loss > previous - 1e-9 * max(1.0, abs(previous)):
                break
            previous = loss
            current, _, residual, status = _least_absolute(values, rows, weights / (1 + sizes))
            programmes += 1
    return Solution(best, None, residual, programmes, status)


def _least_absolute(
    values: FloatArray, rows: sparse.csr_array, weights: FloatArray
) -> tuple[FloatArray, float, float, str]:
    """Minimise ``weights @ |values + rows @ x|``: x, a lower bound, the bound's residual, the solver's status."""
    n, k = rows.shape
    scale = max(float(np.abs(values).max()), NO_SIZE)
    columns = np.asarray(abs(rows).max(axis=0).todense()).reshape(-1)
    columns = np.where(columns > NO_SIZE, columns, 1)
    scaled = sparse.csr_array(rows @ sparse.diags_array(1 / columns))
    relative = weights / weights.max()
    identity = sparse.identity(n, format="csr")
    found = linprog(
        np.concatenate([np.zeros(k), relative, relative]),
        A_eq=sparse.hstack([scaled, -identity, identity], format="csr"),
        b_eq=-values / scale,
        bounds=np.array([(-np.inf, np.inf)] * k + [(0, np.inf)] * (2 * n)),
        method="highs",
    )
    if found.x is None:
        raise SettingError(f"The linear programme failed ({found.message}); choose another potential or fewer steps.")
    dual = np.clip(found.eqlin.marginals, -relative, relative)
    bound = float(-(values / scale) @ dual) * scale * float(weights.max())
    return found.x[:k] * scale / columns, bound, float(np.abs(scaled.T @ dual).max()), str(found.message).split(" (")[0]
