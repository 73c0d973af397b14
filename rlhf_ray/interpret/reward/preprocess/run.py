"""Preprocess a reward: choose potential and solver, certify, draw, and write everything into a folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from scipy import sparse

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.atomic import whole_folder, write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.strays import is_empty
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.preprocess.certificate import Certificate, equivalence_residual, in_mdp
from rlhf_ray.interpret.reward.preprocess.problem import Objective, Options, PotentialKind, Problem
from rlhf_ray.interpret.reward.preprocess.solvers import Solved, descend, solve
from rlhf_ray.measure.distances import TabularMDP
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.functions.shaped import LinearPotential, ShapedReward, TabularPotential
from rlhf_ray.study.curves import CurvePanel, draw_curves

MOST_FEATURES = 64
"""Most features of a linear potential; images have more, and get an MLP."""
ZERO = 1e-6
"""Rewards below this count as 0, relative to the largest reward before preprocessing."""


@dataclass(frozen=True)
class Preprocessed:
    """A preprocessed reward, what is known about it, and the steps that it was made for."""

    reward: ShapedReward
    certificate: Certificate
    problem: Problem


def preprocess(
    reward: RewardFunction,
    data: Transitions | TabularMDP,
    options: Options | None = None,
    *,
    observations: Array | None = None,
) -> Preprocessed:
    """Turn ``reward`` into an equivalent one that is easier to read.

    Args:
        reward: any reward function.
        data: recorded steps, or an MDP, all of whose steps then count, and in which optimal actions are compared.
        options: see `Options`.
        observations: ``[states, *observation_shape]``: the observation of each of the MDP's states. None: its number.

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
    shift = not problem.steps.terminated.any() if options.shift is None else options.shift
    kind = _kind(options.potential, reward, mdp is not None)
    if kind == "tabular":
        states = mdp.states if mdp is not None else int(reward.observation_space.n)  # type: ignore[attr-defined]
        solved = _in_table(states, observations, given, problem, options, shift)
    else:
        solved = _in_features(kind, given, problem, options, shift)
    potential, constant = solved.potential, solved.constant
    if shift and options.objective.startswith("smooth"):  # free in a smooth objective: rewards get mean 0
        constant += float(problem.weights @ ShapedReward(reward, potential, options.gamma, constant).of(problem.steps))
    name = f"{reward.name}, {options.objective.replace('_', ' ')}"
    new = ShapedReward(reward, potential, options.gamma, constant, name)
    distance, unchanged, warnings = None, None, list[str]()
    if mdp is not None:
        distance, unchanged, warnings = in_mdp(reward, new, mdp, seen)
        if options.gamma != mdp.gamma:
            warnings.append(
                f"The shaping uses gamma {options.gamma:g} and the agent {mdp.gamma:g}: the new reward is not equivalent for this "
                f"agent, and the {potential.kind} potential changes what it prefers. Use gamma {mdp.gamma:g}."
            )
    if problem.steps.terminated.any() and new.shift:
        warnings.append(
            f"Episodes end, and {new.shift:.3g} was subtracted from each step: this changes how much longer episodes pay. "
            "Leave shift out."
        )
    made = new.of(problem.steps)
    before, after = problem.loss(given, options.objective), problem.loss(made, options.objective)
    certificate = Certificate(
        **sizes_of(problem.weights, given, made),
        objective=options.objective,
        before=before,
        after=after,
        lower_bound=solved.lower_bound,
        gap=None if solved.lower_bound is None else after - solved.lower_bound,
        dual_residual=solved.dual_residual,
        solver="Adam" if solved.record else "linear programme",
        status=solved.status,
        equivalence_residual=equivalence_residual(reward, new, problem.steps),
        epic=distance,
        optimal_actions_unchanged=unchanged,
        gamma=options.gamma,
        shift=new.shift,
        warnings=warnings,
        record=solved.record,
    )
    return Preprocessed(new, certificate, problem)


def sizes_of(weights: FloatArray, before: FloatArray, after: FloatArray) -> dict[str, Any]:
    """Return a certificate's figures about the rewards on the steps, by attribute."""
    # The range: beside a large constant, which is shaping, everything else would count as 0.
    scale = float(np.ptp(before) if len(before) else 0.0) or float(np.abs(before).max(initial=0.0))
    found = {}
    for when, rewards in (("before", before), ("after", after)):
        found[f"mean_size_{when}"] = float(weights @ np.abs(rewards))
        found[f"nonzero_{when}"] = float(weights @ (np.abs(rewards) > ZERO * max(scale, 1e-300)))
    return found


def _kind(asked: PotentialKind, reward: RewardFunction, has_mdp: bool) -> str:
    space = reward.observation_space
    discrete = isinstance(space, gym.spaces.Discrete)
    if asked == "auto":
        if has_mdp or discrete:
            return "tabular"
        return "mlp" if is_image(space) or int(np.prod(space.shape or ())) > MOST_FEATURES else "linear"
    if asked == "tabular" and not (has_mdp or discrete):
        raise SettingError(f"potential is 'tabular', and observations of {space} are not states; use linear or mlp.")
    if asked != "tabular" and discrete:
        raise SettingError(f"potential is {asked!r}, and observations are numbers of states; use tabular.")
    return asked


def _in_table(
    states: int, observations: Array | None, given: FloatArray, problem: Problem, options: Options, shift: bool
) -> Solved:
    steps, empty = problem.steps, TabularPotential(np.zeros(states), observations)
    rows, shape = np.arange(len(steps)), (len(steps), states)
    before, after = (empty.states(of) for of in (steps.observations, steps.next_observations))
    effects = sparse.csr_array((options.gamma * ~steps.terminated, (rows, after)), shape)
    effects = effects - sparse.csr_array((np.ones(len(rows)), (rows, before)), shape)
    values, bound, residual, status = solve(given, sparse.csr_array(effects), problem, options.objective)
    constant = 0.0
    if shift and options.gamma < 1:  # a constant potential is a constant reward: say so
        constant = (1 - options.gamma) * float(np.median(values))
        values = values - np.median(values)
    return Solved(TabularPotential(values, observations), constant, bound, residual, status)


def _in_features(kind: str, given: FloatArray, problem: Problem, options: Options, shift: bool) -> Solved:
    steps = problem.steps
    start: tuple[FloatArray, float] | None = None
    width = int(np.prod(steps.observations.shape[1:]))
    if kind == "linear" or width <= MOST_FEATURES:
        both = (steps.observations, steps.next_observations)
        before, after = (np.asarray(of, np.float64).reshape(len(of), -1) for of in both)
        onward = options.gamma * ~steps.terminated
        columns = [onward[:, None] * after - before, -np.ones((len(steps), int(shift)))]
        objective: Objective = options.objective
        if kind == "mlp":  # a start only
            objective = "sparse_l1" if objective.startswith("sparse") else "smooth_l1"
        found, bound, residual, status = solve(given, sparse.csr_array(np.concatenate(columns, 1)), problem, objective)
        start = found[:width], float(found[width:].sum())
        if kind == "linear":
            return Solved(LinearPotential(start[0]), start[1], bound, residual, status)
    return descend(given, problem, options, shift, start)


def write(found: Preprocessed, folder: Path | str, base_path: Path | str | None = None) -> None:
    """Write the new reward (``reward/``), ``certificate.json`` and pictures into ``folder``, in place of earlier ones.

    ``base_path``: where the original reward is saved, if it is neither an ensemble of ours nor a table.

    Raises:
        SettingError: ``folder`` holds something else, or the reward can't be saved.
    """
    folder = Path(folder)
    if folder.exists() and not is_empty(folder) and not (folder / "certificate.json").exists():
        raise SettingError(f"{folder} exists and holds no preprocessed reward; give another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(folder) as new:
        found.reward.save(new / "reward", base_path)
        write_text(new / "certificate.json", json.dumps(asdict(found.certificate), indent=2) + "\n")
        for name, image in before_and_after(found.reward, found.problem).items():
            (new / f"{name}.svg").write_bytes(image)


def before_and_after(reward: ShapedReward, problem: Problem) -> dict[str, bytes]:
    """Draw how sparse the reward is, and it along an episode if there is one of several steps: PNG by name."""
    steps = problem.steps
    before, after = reward.base.of(steps), reward.of(steps)
    share = 100 * (np.arange(len(before)) + 1) / len(before)
    sizes = {
        name: np.stack([share, np.sort(np.abs(of))[::-1]], 1) for name, of in (("before", before), ("after", after))
    }
    found = {"sizes": draw_curves([CurvePanel("|reward|", sizes)], "steps, the largest reward first (%)", (700, 300))}
    names, counts = np.unique(steps.episodes, return_counts=True)
    if counts.max() > 2:
        returns = [np.abs(before[steps.episodes == name]).sum() for name in names]
        at = np.flatnonzero(steps.episodes == names[int(np.argsort(returns)[len(names) // 2])])
        at = at[np.argsort(steps.steps[at])]
        panels = [
            CurvePanel(name, {name: np.stack([steps.steps[at], of[at]], 1)}, {"": 0.0}, first=number)
            for number, (name, of) in enumerate((("before", before), ("after", after)))
        ]
        found["episode"] = draw_curves(panels, "step of the episode", (700, 180))
    return found
