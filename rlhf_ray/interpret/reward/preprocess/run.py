"""Preprocess a reward: choose potential and solver, certify, and write everything into a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
from scipy import sparse

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.atomic import whole_folder, write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.strays import is_empty
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.preprocess import certificate, pictures
from rlhf_ray.interpret.reward.preprocess.certificate import Certificate
from rlhf_ray.interpret.reward.preprocess.descent import descend
from rlhf_ray.interpret.reward.preprocess.exact import Solution, solve
from rlhf_ray.interpret.reward.preprocess.options import Options, PotentialKind
from rlhf_ray.interpret.reward.preprocess.problem import Problem
from rlhf_ray.measure.mdp import TabularMDP
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.functions.potentials import LinearPotential, Potential, TabularPotential, features_of
from rlhf_ray.reward.functions.shaped import ShapedReward

MOST_FEATURES = 64
"""Most features of a linear potential; images have more, and get an MLP."""


@dataclass(frozen=True)
class Preprocessed:
    """A preprocessed reward.

    Attributes:
        reward: the new reward.
        certificate: what is known about it.
        problem: the steps that it was made for.
    """

    reward: ShapedReward
    certificate: Certificate
    problem: Problem


def preprocess(
    reward: RewardFunction,
    data: Transitions | TabularMDP,
    options: Options | None = None,
    *,
    observations: Array | None = None,
    features: Callable[[Array], Array] | None = None,
) -> Preprocessed:
    """Turn ``reward`` into an equivalent one that is easier to read.

    Args:
        reward: any reward function.
        data: recorded steps, or an MDP, all of whose steps then count, and in which optimal actions are compared.
        options: see `Options`.
        observations: ``[states, *observation_shape]``: the observation of each of the MDP's states. None: its number.
        features: features of a linear potential, ``observations -> [n, k]``; for a critic, its value function: the best multiple
            of it is used. None: the observation.

    Raises:
        SettingError: the potential doesn't suit the observations, or there are no steps.
    """
    options = options or Options()
    mdp = data if isinstance(data, TabularMDP) else None
    if isinstance(data, TabularMDP):
        seen = np.arange(data.states) if observations is None else observations
        problem = Problem.of_mdp(data, seen)
    else:
        problem = Problem.of_steps(data, np.random.default_rng([options.seed, 1]))
    if not len(problem.steps):
        raise SettingError("There are no steps to preprocess the reward on; record some.")
    given = reward.of(problem.steps)
    if not np.isfinite(given).all():
        raise SettingError(f"The reward {reward.name!r} returned NaN or infinite rewards; they must be finite.")
    kind = _kind(options.potential, reward, mdp is not None, features)
    shift = not problem.steps.terminated.any() if options.shift is None else options.shift
    potential, constant, solver = _solve(kind, reward, given, problem, options, shift, mdp, observations, features)
    if shift and options.objective.startswith("smooth"):  # free in a smooth objective: rewards get mean 0
        constant += float(problem.weights @ ShapedReward(reward, potential, options.gamma, constant).of(problem.steps))
    new = ShapedReward(
        reward, potential, options.gamma, constant, f"{reward.name}, {options.objective.replace('_', ' ')}"
    )
    return Preprocessed(new, _certify(reward, new, given, problem, options, solver, mdp, observations), problem)


@dataclass(frozen=True)
class _Solver:
    name: str
    status: str
    solution: Solution | None
    record: list[tuple[int, float]]


def _kind(asked: PotentialKind, reward: RewardFunction, has_mdp: bool, features: object) -> str:
    space = reward.observation_space
    table = has_mdp or isinstance(space, gym.spaces.Discrete)
    if asked == "auto":
        if features is not None:
            return "linear"
        if table:
            return "tabular"
        return "mlp" if is_image(space) or int(np.prod(space.shape or ())) > MOST_FEATURES else "linear"
    if asked == "tabular" and not table:
        raise SettingError(f"potential is 'tabular', and observations of {space} are not states; use linear or mlp.")
    if asked != "tabular" and isinstance(space, gym.spaces.Discrete) and features is None:
        raise SettingError(f"potential is {asked!r}, and observations are numbers of states; use tabular.")
    return asked


def _solve(
    kind: str,
    reward: RewardFunction,
    given: FloatArray,
    problem: Problem,
    options: Options,
    shift: bool,
    mdp: TabularMDP | None,
    observations: Array | None,
    features: Callable[[Array], Array] | None,
) -> tuple[Potential, float, _Solver]:
    steps, onward = problem.steps, options.gamma * ~problem.steps.terminated
    if kind == "tabular":
        space = reward.observation_space
        states = mdp.states if mdp is not None else int(space.n)  # type: ignore[attr-defined]
        empty = TabularPotential(np.zeros(states), observations)
        rows = np.arange(len(steps))
        before, after = (empty.states(of) for of in (steps.observations, steps.next_observations))
        shape = (len(steps), states)
        effects = sparse.csr_array((onward, (rows, after)), shape) - sparse.csr_array(
            (np.ones(len(rows)), (rows, before)), shape
        )
        solution = solve(given, sparse.csr_array(effects), problem, options.objective)
        values, constant = solution.parameters, 0.0
        if shift and options.gamma < 1:  # a constant potential is a constant reward: say so
            constant = (1 - options.gamma) * float(np.median(values))
            values = values - np.median(values)
        solver = _Solver("linear programme", solution.status, solution, [])
        return TabularPotential(values, observations), constant, solver
    start: tuple[FloatArray, float] | None = None
    width = int(np.prod(steps.observations.shape[1:]))
    if kind == "linear" or width <= MOST_FEATURES:
        before, after = (features_of(of, features) for of in (steps.observations, steps.next_observations))
        columns = [onward[:, None] * after - before, -np.ones((len(steps), int(shift)))]
        objective = options.objective
        if kind == "mlp":  # a start only
            objective = "sparse_l1" if objective.startswith("sparse") else "smooth_l1"
        solution = solve(given, sparse.csr_array(np.concatenate(columns, 1)), problem, objective)
        start = solution.parameters[: before.shape[1]], float(solution.parameters[before.shape[1] :].sum())
        if kind == "linear":
            solver = _Solver("linear programme", solution.status, solution, [])
            return LinearPotential(start[0], features), start[1], solver
    found = descend(
        given,
        problem,
        options.objective,
        options.gamma,
        shift=shift,
        start=start,
        hidden=options.hidden,
        steps=options.steps,
        seed=options.seed,
    )
    status = (
        f"Adam, {options.steps} steps: "
        f"{'converged' if found.converged else 'not converged, more steps may help'}; no bound on the best possible is known"
    )
    return found.potential, found.shift, _Solver("Adam", status, None, found.record)


def _certify(
    reward: RewardFunction,
    new: ShapedReward,
    given: FloatArray,
    problem: Problem,
    options: Options,
    solver: _Solver,
    mdp: TabularMDP | None,
    observations: Array | None,
) -> Certificate:
    made = new.of(problem.steps)
    losses = problem.loss(given, options.objective), problem.loss(made, options.objective)
    figures = certificate.make(options.objective, losses, (given, made), problem.weights)
    warnings: list[str] = []
    distance, unchanged = None, None
    if mdp is not None:
        seen = np.arange(mdp.states) if observations is None else observations
        distance, unchanged, warnings = certificate.in_mdp(reward, new, mdp, seen)
        warnings += certificate.gamma_warnings(options.gamma, mdp.gamma, new.potential)
    if problem.steps.terminated.any() and new.shift:
        warnings.append(
            f"Episodes end, and {new.shift:.3g} was subtracted from each step: this changes how much longer episodes pay. "
            "Leave shift out."
        )
    bound = solver.solution.lower_bound if solver.solution is not None else None
    return Certificate(
        **figures,
        lower_bound=bound,
        gap=None if bound is None else losses[1] - bound,
        dual_residual=0.0 if solver.solution is None else solver.solution.dual_residual,
        solver=solver.name,
        status=solver.status,
        equivalence_residual=certificate.equivalence_residual(reward, new, problem.steps),
        epic=distance,
        optimal_actions_unchanged=unchanged,
        gamma=options.gamma,
        shift=new.shift,
        warnings=warnings,
        record=solver.record,
    )


def write(found: Preprocessed, folder: Path | str, base_path: Path | str | None = None) -> None:
    """Write the new reward (``reward/``), ``certificate.json`` and pictures of before and after into ``folder``.

    Args:
        found: what `preprocess` returned.
        folder: the folder; an earlier one is replaced.
        base_path: where the original reward is saved, if it is neither an ensemble of ours nor a table.

    Raises:
        SettingError: ``folder`` holds something else, or the reward can't be saved.
    """
    folder = Path(folder)
    if folder.exists() and not is_empty(folder) and not (folder / "certificate.json").exists():
        raise SettingError(f"{folder} exists and holds no preprocessed reward; give another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(folder) as new:
        found.reward.save(new / "reward", base_path)
        write_text(new / "certificate.json", json.dumps(found.certificate.to_json(), indent=2) + "\n")
        for name, image in pictures.before_and_after(found.reward, found.problem).items():
            (new / f"{name}.png").write_bytes(image)
