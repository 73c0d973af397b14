"""Preprocessing and distances: equivalent rewards are made sparse again, and distances are what theory says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.calibrations import Row
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs import make_env
from rlhf_ray.interpret.reward.incentive import TrialWorld, in_tables
from rlhf_ray.interpret.reward.preprocess import Options, preprocess
from rlhf_ray.interpret.reward.tabular import tables_of
from rlhf_ray.measure import distances
from rlhf_ray.measure.mdp import TabularMDP, random_mdp
from rlhf_ray.reward import sampled_distances
from rlhf_ray.reward.functions import TableReward

GAMMA = 0.99
SHAPINGS = ("none", "dense", "antidense", "random")


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure P1 to P4, M1 and the incentive test."""
    found = [row for size in (4, 10) for shaping in SHAPINGS for row in _maze(size, shaping)]
    found.append(_sparse_log())
    for seed in seeds:
        found += [_mountain_car(seed), *_random_mdp(seed)]
    return [*found, *_incentive()]


def _maze(size: int, shaping: str) -> list[Row]:
    env = make_env(f"rlhf_ray/EmptyMaze{size}-v0", shaping=shaping)
    tables = tables_of(env, GAMMA)
    assert tables is not None
    found = preprocess(TableReward(tables.reward), tables.mdp, Options(gamma=GAMMA))
    proof, what = found.certificate, f"EmptyMaze {size}, {shaping} shaping"
    goal, steps = (size - 2) * size + size - 2, found.problem.steps
    left = steps[np.abs(found.reward.of(steps)) > 1e-6]
    at_goal = int(((left.observations == goal) | (left.next_observations == goal)).sum())
    assert proof.epic is not None
    assert proof.gap is not None
    return [
        Row(
            "P1",
            f"sparse L1 of {what}: mean size, non-zero steps, those at the goal, gap",
            {"l1": proof.mean_size_after, "nonzero": len(left), "at_goal": at_goal, "gap": proof.gap},
            f"at most {1.01 / size**2:.4g}; 5; 5; below 1e-9",
            proof.mean_size_after <= 1.01 / size**2 and len(left) == at_goal == 5 and abs(proof.gap) < 1e-9,
        ),
        Row(
            "P2",
            f"EPIC distance of before and after, and optimal actions unchanged (1), {what}",
            {"epic": proof.epic, "unchanged": float(proof.optimal_actions_unchanged is True)},
            "< 1e-6; 1",
            proof.epic < 1e-6 and proof.optimal_actions_unchanged is True,
        ),
    ]


def _sparse_log() -> Row:
    tables = tables_of(make_env("rlhf_ray/EmptyMaze10-v0", shaping="dense"), GAMMA)
    assert tables is not None
    proof = preprocess(TableReward(tables.reward), tables.mdp, Options("sparse_log", gamma=GAMMA)).certificate
    value = proof.mean_size_after
    return Row("P3", "sparse log of EmptyMaze 10, dense shaping: mean size", value, "at most 0.011", value <= 0.011)


def _mountain_car(seed: int) -> Row:
    env = make_env("rlhf_ray/MountainCar-v0", shaping="dense")
    data = _steps(env, 4000, seed)
    found = preprocess(env.unwrapped.ground_truth(), data, Options(gamma=GAMMA))  # type: ignore[attr-defined]
    truth = make_env("rlhf_ray/MountainCar-v0").unwrapped.ground_truth().of(data)  # type: ignore[attr-defined]
    weight = float(found.reward.potential.weights[0])  # type: ignore[attr-defined]
    correlation = float(np.corrcoef(found.reward.of(data), truth)[0, 1])
    return Row(
        "P4",
        f"MountainCar, dense shaping, linear potential, seed {seed}: weight of the position, correlation with the truth",
        {"weight": weight, "correlation": correlation},
        "within 0.1 of -100; > 0.999",
        abs(weight + 100) < 0.1 and correlation > 0.999,
    )


def _steps(env, count: int, seed: int) -> Transitions:  # type: ignore[no-untyped-def]
    """Steps of the scripted policy, a fifth of the actions random."""
    rng = np.random.default_rng(seed)
    taken: list[tuple[object, ...]] = []
    episode = 0
    while len(taken) < count:
        before, _ = env.reset(seed=int(rng.integers(2**31)))
        ended, step = False, 0
        while not ended and len(taken) < count:
            action = env.unwrapped.expert(rng) if rng.random() < 0.8 else int(rng.integers(3))
            after, reward, terminated, truncated, _ = env.step(action)
            taken.append((before, action, after, terminated, reward, episode, step))
            before, ended, step = after, terminated or truncated, step + 1
        episode += 1
    return Transitions(*(np.array(of) for of in zip(*taken, strict=True)))


def _random_mdp(seed: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    mdp = random_mdp(20, 4, GAMMA, rng)
    reward, independent, noise, other = rng.normal(size=(4, 20, 4, 20))
    potential = rng.normal(size=20)
    others = {
        "3 R + shaping": (3 * reward + _shaping(potential, GAMMA), (0, 1e-6), (0, 1e-6)),
        "-R": (-reward, (1 - 1e-6, 1 + 1e-6), (1 - 1e-6, 1 + 1e-6)),
        "an independent reward": (independent, (0.6, 0.8), (0.6, 0.9)),
        "redistribution over next states": (
            reward + other - np.einsum("sat,sat->sa", mdp.transitions, other)[:, :, None],
            (0.3, 1),
            (0, 1e-6),
        ),
        "noise 0.1": (reward + 0.1 * noise, (0.03, 0.08), (0.02, 0.1)),
        "shaping with gamma 0.9": (reward + _shaping(potential, 0.9), (0.01, 0.2), (0.01, 0.2)),
    }
    found = []
    for what, (second, epic_bound, starc_bound) in others.items():
        values = {name: getattr(distances, name)(reward, second, mdp) for name in ("epic", "dard", "starc")}
        sampled = sampled_distances.epic(
            TableReward(reward), TableReward(second), _uniform_steps(mdp, 3000, rng), GAMMA, rng
        )
        inside = sampled.low - 1e-6 <= values["epic"] <= sampled.high + 1e-6
        found.append(
            Row(
                "M1",
                f"distances of R from {what}, random MDP (20 x 4), seed {seed}; sampled EPIC {sampled}",
                values | {"exact_in_interval": float(inside)},
                f"EPIC {epic_bound[0]:g} to {epic_bound[1]:g}, STARC {starc_bound[0]:g} to {starc_bound[1]:g}",
                epic_bound[0] <= values["epic"] <= epic_bound[1]
                and starc_bound[0] <= values["starc"] <= starc_bound[1]
                and abs(sampled.value - values["epic"]) < max(1e-6, 1.5 * (sampled.high - sampled.low)),
            )
        )
    return found


def _shaping(potential: np.ndarray, gamma: float) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(gamma * potential[None, None, :] - potential[:, None, None])


def _uniform_steps(mdp: TabularMDP, count: int, rng: np.random.Generator) -> Transitions:
    states, nexts = rng.integers(mdp.states, size=(2, count))
    zeros = np.zeros(count, np.int64)
    actions = rng.integers(mdp.actions, size=count)
    return Transitions(states, actions, nexts, zeros.astype(bool), zeros * 1.0, np.arange(count), zeros)


def _incentive() -> list[Row]:
    world = TrialWorld("rlhf_ray/FixedGoal-v0")
    tables = tables_of(make_env(world.name), GAMMA)
    assert tables is not None
    corner = np.where(np.arange(tables.mdp.states) == 3, 1.0, 0.0) + 0 * tables.reward
    planted = {"same": 2 * tables.reward, "level": tables.reward + 0.5, "ranking": corner}
    found = []
    for wanted, learned in planted.items():
        finding = in_tables(learned, tables, world).finding
        found.append(Row("I1", f"incentive test of a planted {wanted!r}", finding, wanted, finding == wanted))
    return found
