"""Tests of preprocessing: exact solutions, certificates, neural potentials, saving."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs import make_env
from rlhf_ray.interpret.reward.preprocess.certificate import equivalence_residual, tables_of
from rlhf_ray.interpret.reward.preprocess.problem import Options, Problem
from rlhf_ray.interpret.reward.preprocess.run import preprocess, sizes_of, write
from rlhf_ray.interpret.reward.steps import preprocess as section
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward, TableReward
from rlhf_ray.reward.functions.shaped import MLPPotential, ShapedReward, TabularPotential
from tests.interpret.contexts import ensemble_of, run_step, steps_of, why_not

SPACE, CHOICES = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(3)


def walk(count: int = 600, length: int = 30, seed: int = 0, ends: bool = False) -> Transitions:
    """Smooth random walks of two features."""
    rng = np.random.default_rng(seed)
    paths = np.cumsum(0.1 * rng.normal(size=(count // length, length + 1, 2)), 1).astype(np.float32)
    ended = np.tile(np.arange(length) == length - 1, count // length) & ends
    before, after = paths[:, :-1].reshape(-1, 2), paths[:, 1:].reshape(-1, 2)
    return steps_of(before, after, actions=rng.integers(3, size=count), ends=ended, length=length)


def event(o, a, s, d):
    """A sparse reward."""
    return 1.0 * (s[:, 0] > 0.5)


def hidden(o, a, s, d):
    """The sparse reward under a large linear potential."""
    return event(o, a, s, d) + 50 * (0.99 * ~d * s[:, 0].astype(float) - o[:, 0])


@pytest.mark.parametrize("shape", ["dense", "random"])
def test_a_maze_reward_becomes_as_sparse_as_the_truth(shape: str) -> None:
    env = make_env("rlhf_ray/EmptyMaze4-v0", shaping=shape)
    tables = tables_of(env, 0.99)
    for objective in ("sparse_l1", "sparse_log", "smooth_l1"):
        found = preprocess(env.unwrapped.ground_truth(), tables.mdp, Options(objective))
        proof = found.certificate
        assert proof.equivalent
        assert proof.optimal_actions_unchanged
        assert proof.epic < 1e-6
        assert proof.after <= proof.before
        if objective.startswith("sparse"):
            rewards, goal = found.reward.of(found.problem.steps), 2 * 4 + 2
            seen = found.problem.steps[np.abs(rewards) > 1e-6]
            assert proof.mean_size_after <= 1.01 / 16
            assert len(seen) == 5
            assert ((seen.observations == goal) | (seen.next_observations == goal)).all()
        if objective.endswith("l1"):
            assert abs(proof.gap) < 1e-9
            assert proof.dual_residual < 1e-9


def test_terminal_states_keep_their_potential_and_optimal_actions_stay() -> None:
    tables = tables_of(make_env("rlhf_ray/FixedGoal-v0", shaping="dense", size=4), 0.99)
    found = preprocess(TableReward(tables.reward), tables.mdp)
    assert found.certificate.optimal_actions_unchanged
    assert found.certificate.epic < 1e-6
    assert found.reward.shift == 0  # a constant would change what is optimal
    forced = preprocess(TableReward(tables.reward + 0.5), tables.mdp, Options(shift=True))
    assert forced.certificate.equivalent is True or forced.certificate.warnings


def test_another_gamma_is_reported() -> None:
    env = make_env("rlhf_ray/EmptyMaze4-v0", shaping="dense")
    tables = tables_of(env, 0.99)
    proof = preprocess(env.unwrapped.ground_truth(), tables.mdp, Options(gamma=0.9)).certificate
    assert proof.epic > 0.01
    assert any("gamma 0.9 " in warning and "0.99" in warning for warning in proof.warnings)


def test_a_large_constant_hides_no_step_that_is_not_zero() -> None:
    """The constant is shaping; what is left beside it counts as before."""
    weights, rewards = np.full(4, 0.25), np.array([0.0, 1.0, 0.0, -2.0])
    found = sizes_of(weights, 1e8 + rewards, rewards)
    assert (found["nonzero_before"], found["nonzero_after"]) == (1.0, 0.5)
    assert sizes_of(weights, np.full(4, 3.0), rewards)["nonzero_before"] == 1.0


def test_a_linear_potential_is_recovered_from_data_and_the_order_of_rows_does_not_matter() -> None:
    data = walk()
    reward = CallableReward(hidden, SPACE, CHOICES)
    found = preprocess(reward, data, Options(gamma=0.99))
    assert found.reward.potential.weights == pytest.approx([-50, 0], abs=1e-6)
    assert found.reward.of(data) == pytest.approx(event(None, None, data.next_observations, None), abs=1e-5)
    assert found.certificate.equivalence_residual < 1e-12
    mixed = data[np.random.default_rng(1).permutation(len(data))]
    for objective in ("smooth_l1", "smooth_log"):
        losses = [Problem.of_steps(of, np.random.default_rng(0)).loss(reward.of(of), objective) for of in (data, mixed)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)
        assert len(Problem.of_steps(mixed, np.random.default_rng(0)).pairs) == 600 - 20  # no pair across episodes


def test_a_wrong_shaping_fails_its_certificate() -> None:
    data = walk(ends=True)
    base = CallableReward(event, SPACE, CHOICES)
    found = preprocess(base, data)
    assert found.certificate.equivalent
    found.reward.base = CallableReward(lambda o, a, s, d: event(o, a, s, d) + 0.1 * s[:, 1], SPACE, CHOICES)
    assert equivalence_residual(base, found.reward, data) > 1e-3


def test_a_neural_potential_goes_further_than_a_linear_one_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    data = walk(150)

    def curved(o, a, s, d):
        return 50 * (0.99 * s[:, 0].astype(float) - o[:, 0]) + 2 * (0.99 * np.sin(3 * s[:, 1]) - np.sin(3 * o[:, 1]))

    reward = CallableReward(curved, SPACE, CHOICES)
    linear = preprocess(reward, data, Options(potential="linear")).certificate
    found = preprocess(reward, data, Options(potential="mlp", steps=100))
    proof = found.certificate
    assert proof.after < 0.8 * linear.after < 0.2 * proof.before
    assert proof.gap is None
    assert "no bound" in proof.status
    assert proof.record[0][1] == pytest.approx(linear.after, rel=1e-3)  # it starts from the linear one
    assert proof.equivalent


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_shaped_ensemble_is_saved_loaded_and_has_gradients(tmp_path: Path, kind: str) -> None:
    torch.set_num_threads(1)
    data = walk(90)
    found = preprocess(
        ensemble_of(SPACE, CHOICES, hidden=(8,), use_next_state=False), data, Options(potential=kind, steps=5)
    )
    write(found, tmp_path / "out")
    again = ShapedReward.of_folder(tmp_path / "out" / "reward")
    assert np.array_equal(again.members_of(data), found.reward.members_of(data))
    assert again.forward(*again.tensors(data)).detach().numpy() == pytest.approx(again.of(data), abs=1e-4)
    proof = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert proof["objective"] == "sparse_l1"
    assert (tmp_path / "out" / "sizes.svg").read_bytes().startswith(b"<svg")
    assert not [of for of in (tmp_path / "out").rglob("*") if of.suffix in (".pkl", ".pt")]
    (tmp_path / "out" / "reward" / "reward.json").write_text("{")
    with pytest.raises(SettingError, match="broken"):
        ShapedReward.of_folder(tmp_path / "out" / "reward")
    with pytest.raises(SettingError, match="another folder"):
        write(found, tmp_path)


def test_tables_are_saved_and_python_rewards_say_how(tmp_path: Path) -> None:
    table = TableReward(np.arange(12.0).reshape(3, 4))
    shaped = ShapedReward(table, TabularPotential([1.0, 2.0, 3.0]), 0.9, 0.5)
    shaped.save(tmp_path / "a")
    again = ShapedReward.of_folder(tmp_path / "a")
    at = np.array([2]), np.array([1]), np.array([0])
    assert again(*at, np.array([False])) == pytest.approx(9 - 0.5 + 0.9 * 1 - 3)
    assert again(*at, np.array([True])) == pytest.approx(9 - 0.5 - 3)
    plain = ShapedReward(CallableReward(event, SPACE, CHOICES), MLPPotential(np.zeros(2), np.ones(2)), 0.9)
    with pytest.raises(SettingError, match="base_path"):
        plain.save(tmp_path / "b")
    plain.save(tmp_path / "b", "elsewhere")
    with pytest.raises(SettingError, match="elsewhere"):
        ShapedReward.of_folder(tmp_path / "b")
    assert ShapedReward.of_folder(tmp_path / "b", plain.base).gamma == 0.9


def test_the_section_shows_before_and_after_and_survives_a_constant_reward() -> None:
    data = walk()
    subject = Subject(CallableReward(hidden, SPACE, CHOICES), data, effort=0.3)
    assert why_not(section, subject) is None
    found = run_step(section, subject)
    assert all(check.passed for check in found.checks)
    assert {of.name for of in found.pictures} == {"sizes", "episode"}
    json.dumps(found.values)
    constant = CallableReward(lambda o, a, s, d: np.full(len(d), 2.0), SPACE, CHOICES)
    flat = run_step(section, dataclasses.replace(subject, reward=constant))
    assert "NaN" not in json.dumps(flat.values)
