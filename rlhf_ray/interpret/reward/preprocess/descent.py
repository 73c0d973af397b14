"""A neural potential, by gradient descent. Unlike `exact`, it proves nothing; its record shows whether it converged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.interpret.reward.preprocess.options import Objective
from rlhf_ray.interpret.reward.preprocess.problem import Problem
from rlhf_ray.reward.functions.potentials import MLPPotential, Potential, shaped

RECORDS = 20
"""How often the objective on all steps is measured."""
BATCH = 1024
"""Terms of the objective per gradient step."""
CONVERGED = 0.01
"""The objective has converged if the last quarter of the steps lowered it by less than this share."""


@dataclass(frozen=True)
class Descent:
    """How a descent went.

    Attributes:
        potential: the best potential that was measured.
        shift: its constant.
        record: (gradient steps, objective on all steps).
        converged: whether the last quarter changed little.
    """

    potential: MLPPotential
    shift: float
    record: list[tuple[int, float]]
    converged: bool


def descend(
    given: FloatArray,
    problem: Problem,
    objective: Objective,
    gamma: float,
    *,
    shift: bool,
    start: tuple[FloatArray, float] | None = None,
    hidden: Sequence[int] = (64,),
    steps: int = 1000,
    learning_rate: float = 3e-3,
    seed: int = 0,
) -> Descent:
    """Fit an `MLPPotential` with Adam, the learning rate falling to 0.

    Adam moves each weight by at most about the learning rate per step, so a potential of a hundred times the reward's size is out
    of its reach from zero. Hence the potential starts as the best linear one, and the MLP learns what is left.

    Args:
        given: ``[n]``: rewards without shaping.
        problem: the steps.
        objective: what to minimise.
        gamma: discount of the shaping.
        shift: whether a constant is free.
        start: weights ``[features]`` and constant of the best linear potential.
        hidden: units of each hidden layer.
        steps: gradient steps.
        learning_rate: Adam's, at the start.
        seed: draws weights and batches.
    """
    rng = np.random.default_rng(seed)
    data = problem.steps
    potential = _new(data.observations, hidden, max(float(given.std()), 1e-6), seed)
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
    optimiser = torch.optim.Adam(trained, learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, max(1, steps))
    terms = len(data) if objective.startswith("sparse") else len(problem.pairs)
    weights = problem.weights if objective.startswith("sparse") else problem.pair_weights

    def rewards(rows: Array) -> torch.Tensor:
        at = torch.as_tensor(rows)
        shapings = (potential.tensor(before[at]), potential.tensor(after[at]))
        made: torch.Tensor = shaped(base[at], *shapings, ended[at], gamma, constant * potential.scale)
        return made

    def measured() -> float:
        with torch.no_grad():
            made = [
                rewards(rows).double().numpy() for rows in np.array_split(np.arange(len(data)), len(data) // 4096 + 1)
            ]
        return problem.loss(np.concatenate(made), objective)

    record = [(0, measured())]
    best, best_shift = potential.state()[1], float(constant.detach())
    for step in range(1, steps + 1 if terms else 1):
        chosen = np.arange(terms) if terms <= BATCH else rng.choice(terms, BATCH, p=weights)
        if objective.startswith("sparse"):
            values = rewards(chosen)
        else:
            values = rewards(problem.pairs[chosen, 0]) - rewards(problem.pairs[chosen, 1])
        sizes = problem.sizes(values, objective)
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
    earlier = [loss for step, loss in record if step <= 0.75 * steps]
    converged = min(earlier) - min(loss for _, loss in record) <= CONVERGED * max(min(earlier), 1e-12)
    return Descent(potential, best_shift * potential.scale, record, converged)


def distil(
    potential: Potential, observations: Array, hidden: Sequence[int] = (64,), steps: int = 1000, seed: int = 0
) -> MLPPotential:
    """Fit an MLP potential, which can be saved, to the values of another one on ``observations``.

    Shaping with it is exact, whatever the fit: every potential gives an equivalent reward.
    """
    wanted = potential(observations)
    centre, scale = float(wanted.mean()), max(float(wanted.std()), 1e-6)
    fitted = _new(observations, hidden, scale, seed)
    inputs = torch.as_tensor(np.array(observations, np.float32))
    targets = torch.as_tensor((wanted - centre) / scale, dtype=torch.float32)
    optimiser = torch.optim.Adam(fitted.module.parameters(), 3e-3)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        at = torch.as_tensor(rng.choice(len(inputs), min(256, len(inputs)), replace=False))
        loss = nn.functional.mse_loss(fitted.tensor(inputs[at]) / scale, targets[at])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    module: Any = fitted.module
    with torch.no_grad():
        module.mlp[-1].bias += centre / scale
    module.requires_grad_(False)
    return fitted


def _new(observations: Array, hidden: Sequence[int], scale: float, seed: int) -> MLPPotential:
    flat = np.asarray(observations, np.float64).reshape(len(observations), -1)
    std = flat.std(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MLPPotential(flat.mean(0), np.where(std > 1e-9, std, 1.0), hidden, scale)
