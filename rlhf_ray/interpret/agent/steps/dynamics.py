"""How components drive each other from step to step, behaviour by behaviour: observed, and by the agent's own gradients.

All matrices are ``[to, from]``: row i, column j says how component i later depends on component j now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes, moments_of
from rlhf_ray.agents.play import values_at
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.steps.behaviours import behaviour_labels
from rlhf_ray.interpret.agent.steps.world_model import world_of
from rlhf_ray.interpret.agent.subject import AgentContext, nothing_inside, recorded
from rlhf_ray.interpret.agent.world_model.simulate import World, simulate
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.measure.statistics import discoveries, pearson
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.plots import matrices
from rlhf_ray.study.section import Picture, Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "dynamics", "How components drive each other"

COMPONENTS, FITTED = 8, 3000
"""Few components, so that a regression within a behaviour has steps enough; steps that they are fitted to."""
STEPS, FEWEST = 120, 20
"""Steps of each behaviour that Jacobians are averaged over."""
LAGS = (1, 2)
"""From two steps on, what the agent does changes what it sees."""
SHOWN = 4
PERMUTATIONS = 200
PER_COMPONENT = 5
"""Steps per component that a behaviour needs."""
RATE = 0.05
"""False discovery rate."""
STRONG = 0.2
"""Size from which on an entry's sign counts."""

CAPTION = """\
How the scores of {components} independent components, fitted for this section alone, follow from those steps before, \
within each behaviour. Entries: of a regression (false discovery rate {rate:.0%}). The rest: whether the mean \
Jacobian, through the agent's memory alone or through the world model too, agrees with the regression: signs where \
that is above {strong}, correlation r of all entries, and p against exchanged components."""
PICTURE = "Rows: components one step later. Columns: components now. Red: more now, more later; blue: less."

Jacobian = Callable[[IntArray, IntArray], FloatArray]
"""Returns Jacobians ``[n, k, k]`` at steps of episodes, given the numbers of both, ``[n]``."""


def run(context: AgentContext) -> Section:
    """Compare lagged regression and Jacobians within each behaviour."""
    subject, episodes = context.subject, recorded(context)
    values = values_at(subject.agent, episodes)[episodes.real].astype(np.float64)
    chosen = np.sort(context.rng(NAME).permutation(len(values))[:FITTED])
    basis = directions.fit("ica", values[chosen], COMPONENTS, subject.seed)
    scores = np.zeros((*episodes.real.shape, len(basis)))
    scores[episodes.real] = basis.encode(values)
    labels = behaviour_labels(context, episodes)
    world = world_of(context) if subject.agent.memory_size else None
    steps = max(FEWEST, round(STEPS * min(1.0, subject.effort)))
    by_lag: dict[int, list[Dynamics]] = {}
    for lag in LAGS:
        context.say(f"dynamics over {lag} steps")
        jacobians = _jacobians_over(subject.agent, episodes, basis, world, lag)
        by_lag[lag] = dynamics(scores, episodes.real, labels, jacobians, lag, steps, seed=subject.seed)
    arrays: dict[str, Any] = {
        f"{lag}/B{one.behaviour}/{name}": matrix
        for lag, behaving in by_lag.items()
        for one in behaving
        for name, matrix in one.matrices.items()
    }
    np.savez(context.out / "dynamics.npz", names=np.array(list(basis.names), np.str_), **arrays)
    figures = [
        {
            "steps": lag,
            "behaviour": f"B{one.behaviour}",
            "pairs": one.observed.rows,
            "significant": float(one.observed.significant.mean()) if one.observed.significant.size else 0.0,
            "agreements": one.agreements,
        }
        for lag, behaving in by_lag.items()
        for one in behaving
    ]
    rows = [row for one in figures for row in _rows(one)]
    caption = CAPTION.format(components=len(basis), rate=RATE, strong=STRONG)
    columns = ["steps", "behaviour", "pairs", "entries that differ from 0", "Jacobian", "same sign", "r", "p"]
    shown = {f"B{one.behaviour}": one.matrices for one in by_lag[LAGS[0]][:SHOWN]}
    names = [str(component) for component in range(len(basis))]
    pictures = [Picture("dynamics", matrices(shown, names), PICTURE)] if shown else []
    tables = [Table(columns, rows, caption)]
    return Section(NAME, TITLE, (), (), tables, pictures, (), {"behaviours": values_of(figures)})


def _jacobians_over(
    agent: Agent, episodes: Episodes, basis: Directions, world: World | None, lag: int
) -> Mapping[str, Jacobian]:
    """Return the Jacobians that there are for a lag. The score at step t is that of the memory after its observation."""
    jacobians: dict[str, Jacobian] = {}
    if agent.memory_size and lag == 1:
        jacobians["memory"] = lambda rows, steps: step_jacobians(
            agent, basis, episodes.observations[rows, steps + 1], episodes.memory[rows, steps + 1]
        )
    if world is not None:

        def through(rows: IntArray, steps: IntArray, through_actions: bool) -> FloatArray:
            moments = moments_of(agent, episodes, rows, steps + 1, context=world.context)
            given = moments.observations, moments.actions, moments.memory
            return world_jacobians(world, agent, basis, given, lag, through_actions)

        jacobians["world"] = partial(through, through_actions=True)
        if lag > 1:
            jacobians["world, actions cut"] = partial(through, through_actions=False)
    return jacobians


def _rows(one: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    about = [one["steps"], one["behaviour"], one["pairs"], f"{one['significant']:.0%}"]
    for name, agreed in one["agreements"].items():
        signs = "" if agreed.signs is None else f"{agreed.signs:.0%} of {agreed.entries}"
        yield [*about, name, signs, f"{agreed.r:.2f}", f"{agreed.p:.3f}"]
    if not one["agreements"]:
        yield [*about, "none", "", "", ""]


@dataclass(frozen=True)
class LaggedPairs:
    """Scores of a behaviour's steps, those of the same episodes some steps later, ``[n, k]`` each, and the episodes ``[n]``."""

    before: FloatArray
    after: FloatArray
    episodes: IntArray


def pairs(scores: FloatArray, real: BoolArray, labels: IntArray, lag: int = 1) -> dict[int, LaggedPairs]:
    """Return the pairs of each behaviour, ``lag`` steps apart: from its own steps, and no others. Arguments: see `dynamics`."""
    begun = labels[:, : real.shape[1] - lag]
    kept = real[:, lag:] & real[:, : real.shape[1] - lag] & (begun >= 0)
    found = {}
    for name in np.unique(begun[kept]):
        rows, steps = np.nonzero(kept & (begun == name))
        found[int(name)] = LaggedPairs(scores[rows, steps], scores[rows, steps + lag], rows)
    return found


@dataclass(frozen=True)
class Lagged:
    """How scores depend on those before, in one behaviour."""

    rows: int  # pairs of steps
    correlation: FloatArray  # ``[k, k]``, over the behaviour's pairs
    regression: FloatArray  # ``[k, k]``: change of score i for 1 of score j, the other scores held
    p: FloatArray  # of the regression, ``[k, k]``, against the pairing of each step with one at another time
    significant: BoolArray  # which entries are, at a false discovery rate of 5 % (Benjamini and Hochberg 1995)


def lagged(found: LaggedPairs, permutations: int = PERMUTATIONS, seed: int = 0) -> Lagged:
    """Correlate and regress scores on those before.

    The null shifts the later scores in time, around the end, so that each series keeps its own slow changes. Its spread gives the
    p-values, as of a normal distribution: counts alone can't be below one in the number of permutations.
    """
    before, after = found.before - found.before.mean(0), found.after - found.after.mean(0)
    spread = before.std(0), after.std(0)
    varies = np.outer(spread[1] > 1e-9, spread[0] > 1e-9)
    scale = np.outer(np.maximum(spread[1], 1e-12), np.maximum(spread[0], 1e-12))
    correlation = np.where(varies, after.T @ before / max(len(before), 1) / scale, 0.0)
    gram = before.T @ before
    solve = np.linalg.pinv(gram + 1e-9 * max(float(np.trace(gram)), 1e-12) * np.eye(len(gram))) @ before.T
    regression = np.where(varies, (solve @ after).T, 0.0)
    rng, n, p = np.random.default_rng([seed, 0xD7]), len(before), np.ones_like(regression)
    if n >= 4 and permutations >= 2:
        least = max(1, n // 10)
        null = np.stack(
            [(solve @ np.roll(after, int(rng.integers(least, n - least + 1)), 0)).T for _ in range(permutations)]
        )
        z = (regression - null.mean(0)) / np.maximum(null.std(0), 1e-12)
        p = np.where(varies, 2.0 * norm.sf(np.abs(z)), 1.0)
    return Lagged(n, correlation, regression, p, discoveries(p, RATE))


def step_jacobians(agent: Agent, basis: Directions, observations: Array, memory: Array) -> FloatArray:
    """Return how the scores after a step depend on those before it, through the agent's memory alone: ``[n, k, k]``.

    ``observations`` ``[n, …]`` are those of the step, ``memory`` ``[n, memory_size]`` is that before it.
    """
    start = torch.as_tensor(np.asarray(memory, np.float32)).requires_grad_()
    after = agent.step(torch.as_tensor(np.asarray(observations)), start).memory

    def gradient(target: Tensor) -> Tensor:
        if not target.requires_grad:  # the agent only remembers what it sees now
            return torch.zeros_like(start)
        (found,) = torch.autograd.grad(target.sum(), start, retain_graph=True, allow_unused=True)
        return torch.zeros_like(start) if found is None else found

    return _jacobians(basis, after, gradient)


def world_jacobians(
    world: World, agent: Agent, basis: Directions, context: Sequence[Tensor], steps: int, through_actions: bool = True
) -> FloatArray:
    """Return how scores depend on those ``steps`` steps before, through the agent's memory and the world model: ``[n, k, k]``.

    From two steps on, an action that the memory changes changes what the agent sees; ``through_actions=False`` leaves that out.
    The context is ``observations``, ``actions`` and ``memory``: see `simulate`.
    """
    observations, actions, memory = context
    start = memory.clone().requires_grad_()
    run = simulate(world, agent, observations, actions, start, steps, through_actions=through_actions)
    return _jacobians(basis, run.memory[:, steps], lambda target: run.gradients(target)["memory"][:, 0])


def _jacobians(basis: Directions, after: Tensor, gradient: Callable[[Tensor], Tensor]) -> FloatArray:
    filters = torch.as_tensor(basis.filters, dtype=after.dtype)
    rows = [basis.gradient(gradient(after @ each).detach().double().numpy()) for each in filters]
    return np.stack(rows, 1) if rows else np.zeros((len(after), 0, 0))


@dataclass(frozen=True)
class GradientAgreement:
    """Whether two matrices say the same."""

    # share of the strong entries (size above `STRONG` in the first) with the same sign; None without one
    signs: float | None
    entries: int  # how many there are
    r: float  # correlation of all entries
    p: float  # of ``r``, against the same matrices with components exchanged (Mantel 1967)


def agreement(
    first: FloatArray, second: FloatArray, permutations: int = PERMUTATIONS, seed: int = 0
) -> GradientAgreement:
    """Compare two matrices ``[k, k]`` in sign and magnitude."""
    chosen = np.abs(first) > STRONG
    signs = float((np.sign(first) == np.sign(second))[chosen].mean()) if chosen.any() else None
    r = pearson(first, second, 0.0)
    rng = np.random.default_rng([seed, 0xA6])
    orders = [rng.permutation(len(first)) for _ in range(permutations)]
    null = [pearson(first, second[np.ix_(order, order)], 0.0) for order in orders]
    p = (1 + sum(abs(each) >= abs(r) for each in null)) / (1 + permutations)
    return GradientAgreement(signs, int(chosen.sum()), r, p)


@dataclass(frozen=True)
class Dynamics:
    """The dynamics of one behaviour."""

    behaviour: int  # its number
    observed: Lagged  # by lagged correlation and regression
    # mean Jacobians ``[k, k]``: "memory" through the agent's memory alone; with a world model "world" and, without the path
    # through actions, "world, actions cut"
    jacobians: dict[str, FloatArray]
    agreements: dict[str, GradientAgreement]  # of each Jacobian with the regression

    @property
    def matrices(self) -> dict[str, FloatArray]:
        """What is drawn and kept, ``[k, k]`` by name."""
        observed = {"correlation": self.observed.correlation, "regression": self.observed.regression}
        return observed | {f"Jacobian, {name}": matrix for name, matrix in self.jacobians.items()}


def dynamics(
    scores: FloatArray,
    real: BoolArray,
    labels: IntArray,
    jacobians: Mapping[str, Jacobian],
    lag: int = 1,
    most: int = 200,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> list[Dynamics]:
    """Look at each behaviour with enough steps.

    ``scores`` ``[episodes, T, k]``, which steps are ``real``, and ``labels``, the behaviour of each, below 0 for none,
    ``[episodes, T]``. ``lag`` steps lie between before and after, in the same episode; ``jacobians`` by name are for that lag,
    and computed at ``most`` steps of each behaviour.
    """
    left = real.sum(1)[:, None] - np.arange(real.shape[1])[None]  # steps of the episode, this one included
    found = []
    for name, each in pairs(scores, real, labels, lag).items():
        if len(each.before) < max(10, PER_COMPONENT * scores.shape[2]):
            continue
        observed = lagged(each, permutations, seed)
        rows, steps = np.nonzero((labels == name) & real & (left > lag))
        rng = np.random.default_rng([seed, name, 0xDA])
        some = np.sort(rng.choice(len(rows), most, replace=False)) if len(rows) > most else np.arange(len(rows))
        means = {key: function(rows[some], steps[some]).mean(0) for key, function in jacobians.items()}
        agreed = {key: agreement(observed.regression, mean, permutations, seed) for key, mean in means.items()}
        found.append(Dynamics(name, observed, means, agreed))
    return found


STEP = Step(NAME, TITLE, run, ("recording", "world_model", "bases", "behaviours"), nothing_inside)
