"""Dynamics: planted rules are found again, each in its own behaviour."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.agent_calibrations import planted
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.steps import dynamics
from rlhf_ray.interpret.agent.world_model.simulate import simulate

RULES = planted.matrices(0)


@pytest.fixture(scope="module")
def found():
    series = planted.series(RULES, 0)
    real = np.ones(series.labels.shape, bool)
    return series, real, dynamics.pairs(series.scores, real, series.labels)


def test_planted_rules_are_recovered_per_behaviour(found):
    """Upstream computed every cluster's matrix on the first samples of the whole set."""
    _, _, pairs = found
    assert sorted(pairs) == [0, 1, 2, 3]
    observed = {name: dynamics.lagged(each, permutations=60) for name, each in pairs.items()}
    for name, each in observed.items():
        assert each.rows == len(pairs[name].before)  # samples, not components
        every = np.corrcoef(pairs[name].after, pairs[name].before, rowvar=False)
        k = len(each.correlation)
        np.testing.assert_allclose(each.correlation, every[:k, k:], atol=1e-9)
        assert np.corrcoef(each.regression.ravel(), RULES[name].ravel())[0, 1] >= 0.95
        agreed = dynamics.agreement(RULES[name], each.regression)
        assert agreed.signs is not None
        assert agreed.signs >= 0.95
        strong = np.abs(RULES[name]) > 0.2
        assert each.significant[strong].mean() > 0.9
        assert each.significant[RULES[name] == 0].mean() < 0.2
        other = RULES[(name + 1) % 4]
        assert np.corrcoef(each.regression.ravel(), other.ravel())[0, 1] < 0.5


def test_two_matrices_of_noise_do_not_agree():
    rng = np.random.default_rng(1)
    drawn = [dynamics.agreement(*rng.normal(size=(2, 5, 5)), seed=at).p for at in range(20)]
    assert np.mean(np.array(drawn) < 0.05) <= 0.2


def test_jacobians_of_a_linear_memory_are_its_rules(found):
    series, real, _ = found
    agent = planted.LinearMemory(RULES)
    basis = directions.fit("pca", series.scores.reshape(-1, planted.SIZE), planted.SIZE)

    def jacobians(rows, steps):
        return dynamics.step_jacobians(
            agent, basis, planted.seen(series.labels[rows, steps], RULES), series.scores[rows, steps]
        )

    scores = basis.encode(series.scores.reshape(-1, planted.SIZE)).reshape(series.scores.shape)
    every = dynamics.dynamics(scores, real, series.labels, {"memory": jacobians}, most=20, permutations=50)
    assert len(every) == 4
    for each in every:
        planted_here = basis.filters @ RULES[each.behaviour] @ basis.patterns.T
        np.testing.assert_allclose(each.jacobians["memory"], planted_here, atol=1e-5)
        assert each.agreements["memory"].signs is not None
        assert each.agreements["memory"].signs >= 0.95
        assert each.agreements["memory"].r > 0.95
        assert each.agreements["memory"].p < 0.05


class _Loop:
    """A world whose next observation adds ``[0, 0.5, 0, 0, 0]`` times the weight of action 1."""

    size, context, digest, agent = 2, 1, "w", "a"

    def begin(self, observations, actions):
        return torch.zeros(len(observations), 2)

    def next(self, state, actions):
        return actions

    def observe(self, state):
        which = torch.eye(4)[0].expand(len(state), -1)
        return torch.cat([which, 0.5 * state[:, 1:2] * torch.eye(5)[1]], 1)

    def reward(self, state):
        return state[:, 0] * 0

    def end(self, state):
        return state[:, 0] * 0


def test_jacobians_through_the_world_add_the_path_of_actions():
    agent = planted.LinearMemory(RULES)
    basis = directions.fit("pca", np.random.default_rng(0).normal(size=(100, 5)), 5)
    memory = torch.as_tensor(np.random.default_rng(1).normal(size=(3, 5)), dtype=torch.float32)
    context = torch.zeros(3, 1, 9), torch.zeros(3, 0, 2), memory
    world = _Loop()
    alone = dynamics.world_jacobians(world, agent, basis, context, 2, through_actions=False)
    assert alone == pytest.approx(
        np.broadcast_to(basis.filters @ RULES[0] @ RULES[0] @ basis.patterns.T, alone.shape), abs=1e-4
    )
    whole = dynamics.world_jacobians(world, agent, basis, context, 2)
    run = simulate(world, agent, *context[:2], memory, 0)
    # The straight-through gradient of action 1's weight by the first unit is 1 - its probability.
    slope = 1.0 - run.logits[:, 0].softmax(-1)[:, 1].detach().numpy()
    added = np.einsum("n,i,j->nij", 0.5 * slope, np.eye(5)[1], RULES[0][0])
    np.testing.assert_allclose(whole - alone, basis.filters @ added @ basis.patterns.T, atol=1e-4)


@pytest.mark.parametrize("noise", ["normal", "exponential", "standard_t"])
@pytest.mark.parametrize("lag", [1, 3])
def test_pure_noise_makes_few_discoveries(noise, lag):
    """Also with slow changes of their own, skewed or heavy tails, and a component that never varies."""
    found = []
    for seed in range(6):
        rng = np.random.default_rng([seed, 7])
        drawn = rng.normal(size=(30, 30, 4)) if noise == "normal" else getattr(rng, noise)(3.0, size=(30, 30, 4))
        if seed % 2:
            for t in range(1, 30):
                drawn[:, t] += 0.9 * drawn[:, t - 1]
        drawn[..., 3] = 5.0
        (pairs,) = dynamics.pairs(drawn, np.ones((30, 30), bool), np.zeros((30, 30), int), lag).values()
        observed = dynamics.lagged(pairs, 60, seed)
        assert np.isfinite([observed.p, observed.regression, observed.correlation]).all()
        assert not observed.significant[3].any()
        found.append(observed.significant[~np.eye(4, dtype=bool)].mean())
    assert np.mean(found) <= 0.05


def test_rules_over_three_steps_and_of_rare_behaviours_are_recovered():
    """Noise is skewed, and one behaviour has a tenth of the steps of the other."""
    rng = np.random.default_rng(3)
    rules = np.array(
        [[[0.6, 0.0, 0.0], [0.5, 0.3, 0.0], [0.0, 0.0, 0.5]], [[0.5, -0.6, 0.0], [0.0, 0.4, 0.0], [0.0, 0.5, 0.3]]]
    )
    rare = rng.random(150) < 0.1
    scores = np.zeros((150, 40, 3))
    for t in range(1, 40):
        noise = rng.exponential(size=(150, 3)) - 1.0
        scores[:, t] = np.einsum("nij,nj->ni", rules[rare.astype(int)], scores[:, t - 1]) + noise
    labels = np.repeat(rare.astype(int)[:, None], 40, 1)
    for lag in (1, 3):
        for name, pairs in dynamics.pairs(scores, np.ones(labels.shape, bool), labels, lag).items():
            assert len(pairs.before) == (40 - lag) * int((rare == name).sum())
            wanted = np.linalg.matrix_power(rules[name], lag)
            observed = dynamics.lagged(pairs, 60)
            assert np.corrcoef(observed.regression.ravel(), wanted.ravel())[0, 1] > 0.95
            np.testing.assert_allclose(observed.regression, wanted, atol=0.15)


def test_a_common_driver_correlates_and_its_jacobian_says_no():
    """What the agent sees reaches unit 0 at once and unit 1 a step later: neither drives the other."""

    class Driven(planted.LinearMemory):
        def step(self, observations, memory, *, edits={}, keep=()):  # noqa: B006
            return planted.AgentStep(
                observations[:, :2].float(), observations[:, 0].float(), observations[:, :2].float()
            )

    rng = np.random.default_rng(0)
    signal = rng.normal(size=(40, 31))
    scores = np.stack([signal[:, 1:], signal[:, :-1]], 2)
    agent = Driven(np.zeros((1, 2, 2)))
    basis = directions.fit("pca", scores.reshape(-1, 2), 2)
    own = basis.encode(scores.reshape(-1, 2)).reshape(scores.shape)

    def jacobians(rows, steps):
        return dynamics.step_jacobians(agent, basis, scores[rows, steps], np.zeros((len(rows), 2)))

    (found,) = dynamics.dynamics(own, np.ones((40, 30), bool), np.zeros((40, 30), int), {"memory": jacobians}, most=20)
    assert found.observed.significant.any()
    np.testing.assert_array_equal(found.jacobians["memory"], 0.0)
    assert found.agreements["memory"].signs == 0.0
    assert found.agreements["memory"].p > 0.5
