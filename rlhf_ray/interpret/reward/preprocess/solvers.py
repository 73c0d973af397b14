"""Solvers of a `Problem`: the best tabular or linear potential, and a neural one.

Linear programmes (HiGHS) come with a bound on how far from optimal they are. Gradient descent proves nothing; its record shows
whether it converged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import linprog
from torch import nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.reward.preprocess.problem import Objective, Options, Problem
from rlhf_ray.reward.functions.shaped import MLPPotential, Potential, shaped

REWEIGHTINGS = 5
"""Most linear programmes from each start for a log objective."""
NO_SIZE = 1e-12
"""A smaller effect of the parameters on the objective counts as none."""
RECORDS = 20
"""How often the objective on all steps is measured."""
BATCH = 1024
"""Terms of the objective per gradient step."""
LEARNING_RATE = 3e-3
CONVERGED = 0.01
"""The objective has converged if the last quarter of the steps lowered it by less than this share."""


@dataclass(frozen=True)
class Solved:
    """A potential, the constant, and what the solver says of them: see `Certificate`."""

    potential: Potential
    constant: float
    lower_bound: float | None
    dual_residual: float
    status: str
    record: list[tuple[int, float]] = field(default_factory=list)


def solve(
    given: FloatArray, effects: sparse.csr_array, problem: Problem, objective: Objective
) -> tuple[FloatArray, float | None, float, str]:
    """Minimise the objective of the rewards ``given`` ``[n]`` ``+ effects`` ``[n, k]`` ``@ parameters`` ``[k]``.

    The log objectives are concave in the size of each reward. Each of their programmes minimises the tangent at the last
    solution, which lowers the objective until it is stationary (majorise and minimise); the better of two starts counts.

    Returns:
        The parameters; a lower bound, by the dual programme, None for the log objectives, which are not convex; how far the dual
        solution is from feasible (the bound holds up to this times the parameters' sizes); what the solver said.

    Raises:
        SettingError: the solver failed.
    """
    rows, weights = problem.terms(effects, objective)
    values, _ = problem.terms(given, objective)
    if not len(values) or abs(rows).max() < NO_SIZE:
        return np.zeros(effects.shape[1]), float(weights @ np.abs(values)), 0.0, "nothing to choose"
    parameters, bound, residual, status = _least_absolute(values, rows, weights)
    if objective.endswith("l1"):
        return parameters, bound, residual, status
    best, lowest = parameters, np.inf
    for start in (parameters, np.zeros_like(parameters)):
        current, previous = start, np.inf
        for _ in range(REWEIGHTINGS):
            sizes = np.abs(values + rows @ current)
            loss = float(weights @ np.log1p(sizes))
            if loss < lowest:
                best, lowest = current, loss
            if loss > previous - 1e-4 * abs(previous):
                break
            previous = loss
            current, _, residual, status = _least_absolute(values, rows, weights / (1 + sizes))
    return best, None, residual, status


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


def descend(
    given: FloatArray, problem: Problem, options: Options, shift: bool, start: tuple[FloatArray, float] | None = None
) -> Solved:
    """Fit an `MLPPotential` with Adam, the learning rate falling to 0.

    Adam moves each weight by at most about the learning rate per step, so a potential of a hundred times the reward's size is out
    of its reach from zero. Hence the potential starts as the best linear one, and the MLP learns what is left.

    ``given`` ``[n]`` are the rewards without shaping, ``shift`` tells whether a constant is free, and ``start`` are the weights
    ``[features]`` and the constant of the best linear potential.
    """
    rng, data, objective, steps = np.random.default_rng(options.seed), problem.steps, options.objective, options.steps
    flat = np.asarray(data.observations, np.float64).reshape(len(data), -1)
    std = flat.std(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        scale = max(float(given.std()), 1e-6)
        potential = MLPPotential(flat.mean(0), np.where(std > 1e-9, std, 1.0), options.hidden, scale)
    module: Any = potential.module
    constant = nn.Parameter(torch.zeros(()))
    if start is not None:
        with torch.no_grad():
            module.linear.weight.copy_(torch.as_tensor(start[0], dtype=torch.float32) * module.std)
            module.linear.bias.fill_(float(start[0] @ module.mean.double().numpy()))
            constant.fill_(start[1] / potential.scale)
    before, after = (torch.as_tensor(np.array(of, np.float32)) for of in (data.observations, data.next_observations))
    ended, base = torch.as_tensor(data.terminated).float(), torch.as_tensor(given, dtype=torch.float32)
    # Start included, the linear part is not trained: a change of it in 32 bits would move the whole reward.
    trained = [*module.mlp.parameters(), *([constant] if shift else [])]
    if start is None:
        trained += list(module.linear.parameters())
    optimiser = torch.optim.Adam(trained, LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, max(1, steps))
    weights = problem.weights if objective.startswith("sparse") else problem.pair_weights
    terms = len(weights)

    def rewards(rows: Array) -> torch.Tensor:
        at = torch.as_tensor(rows)
        shapings = (potential.tensor(before[at]), potential.tensor(after[at]))
        made: torch.Tensor = shaped(base[at], *shapings, ended[at], options.gamma, constant * potential.scale)
        return made

    def measured() -> float:
        with torch.no_grad():
            split = np.array_split(np.arange(len(data)), len(data) // 4096 + 1)
            made = [rewards(rows).double().numpy() for rows in split]
        return problem.loss(np.concatenate(made), objective)

    record = [(0, measured())]
    best, best_shift = potential.state()[1], float(constant.detach())
    for step in range(1, steps + 1 if terms else 1):
        chosen = np.arange(terms) if terms <= BATCH else rng.choice(terms, BATCH, p=weights)
        if objective.startswith("sparse"):
            values = rewards(chosen)
        else:
            values = rewards(problem.pairs[chosen, 0]) - rewards(problem.pairs[chosen, 1])
        sizes = torch.log1p(values.abs()) if objective.endswith("log") else values.abs()
        loss = sizes.mean() if terms > BATCH else (torch.as_tensor(weights[chosen], dtype=torch.float32) * sizes).sum()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(trained, 10.0)
        optimiser.step()
        schedule.step()
        if step % max(1, steps // RECORDS) == 0 or step == steps:
            record.append((step, measured()))
            if record[-1][1] < min(loss for _, loss in record[:-1]):
                best, best_shift = potential.state()[1], float(constant.detach())
    module.requires_grad_(False)
    module.load_state_dict({name: torch.as_tensor(value) for name, value in best.items()})
    earlier = min(loss for step, loss in record if step <= 0.75 * steps)
    converged = earlier - min(loss for _, loss in record) <= CONVERGED * max(earlier, 1e-12)
    said = "converged" if converged else "not converged, more steps may help"
    status = f"Adam, {steps} steps: {said}; no bound on the best possible is known"
    return Solved(potential, best_shift * potential.scale, None, 0.0, status, record)
