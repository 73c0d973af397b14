"""Tests of reward distances: exact tables, sampled, and the tabular MDPs they rest on."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure import distances
from rlhf_ray.measure.distances import TabularMDP
from rlhf_ray.reward import sampled_distances
from rlhf_ray.reward.functions import CallableReward, TableReward
from tests.measure import exact
from tests.measure.exact import random_mdp

EXACT = {"epic": distances.epic, "dard": exact.dard, "starc": exact.starc}
SAMPLED = {"epic": sampled_distances.epic, "dard": sampled_distances.dard, "starc": sampled_distances.starc}


def shaping(mdp: TabularMDP, gamma: float, rng: np.random.Generator, scale: float = 1.0) -> np.ndarray:
    """The rewards of a random potential, 0 in terminal states."""
    potential = np.where(mdp.terminal, 0, scale * rng.normal(size=mdp.states))
    return gamma * potential[None, None, :] - potential[:, None, None]


def recorded(mdp: TabularMDP, count: int, rng: np.random.Generator, product: bool) -> Transitions:
    """Steps of one-step episodes from uniform states and actions; next states uniform too, or the MDP's."""
    states = rng.choice(np.flatnonzero(~mdp.terminal), count)
    actions = rng.integers(mdp.actions, size=count)
    if product:
        nexts = rng.integers(mdp.states, size=count)
    else:
        chances = mdp.transitions[states, actions].cumsum(1)
        nexts = (rng.random(count)[:, None] < chances).argmax(1)
    zeros = np.zeros(count)
    return Transitions(states, actions, nexts, mdp.terminal[nexts], zeros, np.arange(count), zeros.astype(np.int64))


@settings(max_examples=25)
@given(
    st.integers(0, 10_000),
    st.integers(2, 7),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.5, 0.99]),
    st.integers(0, 1),
    st.floats(0.01, 100),
)
def test_shaping_and_scale_cost_nothing_and_negation_everything(
    seed: int, states: int, actions: int, gamma: float, terminals: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    mdp = random_mdp(states, actions, gamma, rng, terminals)
    reward = rng.normal(size=(states, actions, states))
    same = scale * reward + shaping(mdp, gamma, rng, 10.0)
    for name, distance in EXACT.items():
        constant = name == "starc" and np.abs(exact.advantages(reward, mdp)).max() < 1e-9  # one action, one step
        assert distance(reward, same, mdp) < 1e-6, name
        assert distance(reward, -same, mdp) == pytest.approx(0.0 if constant else 1.0, abs=1e-6), name


def _pearson_in_loops(first: np.ndarray, second: np.ndarray, weights: np.ndarray) -> float:
    """The Pearson distance of two tables, from sums over their entries."""
    steps = [(weights[at], first[at], second[at]) for at in np.ndindex(*weights.shape)]
    total = sum(w for w, _, _ in steps)
    means = [sum(w * x for w, x, _ in steps) / total, sum(w * y for w, _, y in steps) / total]
    product = sum(w * (x - means[0]) * (y - means[1]) for w, x, y in steps)
    squares = [sum(w * (x - means[0]) ** 2 for w, x, _ in steps), sum(w * (y - means[1]) ** 2 for w, _, y in steps)]
    return math.sqrt((1 - product / math.sqrt(squares[0] * squares[1])) / 2)


def _epic_in_loops(reward: np.ndarray, mdp: TabularMDP) -> np.ndarray:
    """R(s,a,s') + E[γ R(s',A,S') - R(s,A,S') - γ R(S,A,S')] (Gleave et al. 2021, definition 4.1), S, A and S' uniform."""
    n, k = mdp.states, mdp.actions

    def mean(state: int) -> float:
        return sum(reward[state, action, after] for action in range(k) for after in range(n)) / (k * n)

    of_all = sum(mean(state) for state in range(n)) / n
    found = np.zeros((n, k, n))
    for s, a, t in np.ndindex(n, k, n):
        found[s, a, t] = reward[s, a, t] + mdp.gamma * mean(t) - mean(s) - mdp.gamma * of_all
    return found


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_tables_distance_is_that_of_the_papers_formula_in_plain_loops(deterministic: bool) -> None:
    rng = np.random.default_rng(3)
    mdp = random_mdp(4, 3, 0.8, rng)
    if deterministic:
        mdp = TabularMDP(np.eye(4)[rng.integers(4, size=(4, 3))], mdp.initial, 0.8)
    first, noise = rng.normal(size=(2, 4, 3, 4))
    everywhere = np.ones((4, 3, 4))
    for second in (first + 0.5 * noise, noise, -0.2 * first + noise):
        both = [_epic_in_loops(of, mdp) for of in (first, second)]
        assert distances.epic(first, second, mdp) == pytest.approx(_pearson_in_loops(*both, everywhere), abs=1e-9)


def test_shaping_with_another_gamma_or_a_wiped_goal_row_is_seen() -> None:
    rng = np.random.default_rng(0)
    mdp = random_mdp(20, 4, 0.99, rng)
    reward = np.zeros((20, 4, 20))
    reward[3] = 1.0
    potential = rng.normal(size=20)
    state_only = (
        reward + (0.99 - 1) * potential[:, None, None] * 50
    )  # gamma times the potential of the state, not the next one
    wiped = reward + 0.99 * potential[None, None, :] - potential[:, None, None]
    wiped[3] = 1.0
    for wrong in (state_only, wiped, reward + shaping(mdp, 0.9, rng)):
        assert distances.epic(reward, wrong, mdp) > 0.02


@pytest.mark.parametrize("terminals", [0, 2])
def test_constant_rewards_have_defined_distances(terminals: int) -> None:
    rng = np.random.default_rng(1)
    mdp = random_mdp(8, 2, 0.9, rng, terminals)
    pure, reward = shaping(mdp, 0.9, rng, 30.0), rng.normal(size=(8, 2, 8))
    zero = np.zeros(1)
    assert distances.epic(zero, pure, mdp) == exact.dard(zero, pure, mdp) == exact.starc(zero, pure, mdp) == 0
    assert distances.epic(pure, reward, mdp) == exact.dard(zero, reward, mdp) == pytest.approx(0.5**0.5)
    assert exact.starc(pure, reward, mdp) == pytest.approx(0.5)
    # A constant is shaping only where no episode ends.
    assert (distances.epic(reward, reward + 3, mdp) < 1e-6) == (terminals == 0)
    data = recorded(mdp, 300, rng, product=True)
    functions = [TableReward(np.broadcast_to(of, reward.shape)) for of in (zero, pure, reward)]
    for at, first in enumerate(functions):
        for second in functions[at:]:
            for name, found in sampled_distances.all_distances(first, second, data, 0.9).items():
                assert np.isfinite([found.value, found.low, found.high]).all(), name


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_intervals_hold_the_exact_distance(name: str) -> None:
    inside = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        mdp = random_mdp(6, 2, 0.9, rng, terminals=1)
        first, noise = rng.normal(size=(2, 6, 2, 6))
        data = recorded(mdp, 2000, np.random.default_rng(seed + 9), product=name == "epic")
        shaped = 3 * first + shaping(mdp, 0.9, rng, 5.0)
        for second in (first + 0.5 * noise, noise, shaped):
            found = SAMPLED[name](TableReward(first), TableReward(second), data, 0.9, np.random.default_rng(seed))
            exact = EXACT[name](first, second, mdp)
            inside.append(found.low - 1e-6 <= exact <= found.high + 1e-6)
        assert found.value < 1e-6  # shaping cancels at any number of samples
    assert sum(inside) >= len(inside) - 1


def test_sampled_dard_has_one_action_for_both_steps() -> None:
    """With another action from s to S' than from s' to S'', it would be off by 0.07 or more here."""
    for seed in (0, 5):
        rng = np.random.default_rng(seed)
        mdp = TabularMDP(np.eye(6)[rng.integers(6, size=(6, 2))], np.full(6, 1 / 6), 0.9)
        first, noise = rng.normal(size=(2, 6, 2, 6))
        second = first + 0.5 * noise
        data = recorded(mdp, 600, rng, product=False)
        found = sampled_distances.dard(TableReward(first), TableReward(second), data, 0.9, rng, neighbours=12)
        assert found.value == pytest.approx(exact.dard(first, second, mdp), abs=0.02)


def test_terminated_steps_have_no_next_potential_and_vectors_work() -> None:
    rng = np.random.default_rng(0)
    n = 400
    before, after, actions = rng.normal(size=(n, 2)), rng.normal(size=(n, 2)), rng.normal(size=(n, 1))
    ended = rng.random(n) < 0.2
    steps = Transitions(before, actions, after, ended, np.zeros(n), np.arange(n) // 10, np.arange(n) % 10)
    space, choice = gym.spaces.Box(-5, 5, (2,)), gym.spaces.Box(-5, 5, (1,))
    plain = CallableReward(lambda o, a, s, d: o[:, 0] * a[:, 0] + s[:, 1], space, choice)

    def shaped(o, a, s, d):
        return 2 * plain(o, a, s, d) + 0.9 * ~d * s[:, 0] ** 2 - o[:, 0] ** 2

    def forgetful(o, a, s, d):
        return 2 * plain(o, a, s, d) + 0.9 * s[:, 0] ** 2 - o[:, 0] ** 2

    for measure in (sampled_distances.epic, sampled_distances.dard):
        values = [
            measure(plain, CallableReward(of, space, choice), steps, 0.9, rng).value for of in (shaped, forgetful)
        ]
        assert values[0] < 1e-6 < 0.005 < values[1]


def test_correlations_have_intervals() -> None:
    rng = np.random.default_rng(0)
    mdp = random_mdp(6, 2, 0.9, rng)
    data = recorded(mdp, 500, rng, product=True)
    reward = rng.normal(size=(6, 2, 6))
    cubed = sampled_distances.correlation(TableReward(reward), TableReward(reward**3), data, ranks=True)
    assert cubed.value == pytest.approx(1)
    noisy = TableReward(reward + rng.normal(size=reward.shape))
    linear = sampled_distances.correlation(TableReward(reward), noisy, data)
    assert linear.low < linear.value < linear.high
    assert 0.4 < linear.value < 0.95


def test_mdp_solves_a_corridor_and_terminal_states_are_worth_nothing() -> None:
    transitions = np.zeros((4, 2, 4))
    for state in range(4):
        transitions[state, 0, max(0, state - 1)] = transitions[state, 1, min(3, state + 1)] = 1
    mdp = TabularMDP(transitions, np.eye(4)[0], 0.5, np.arange(4) == 3)
    reward = np.zeros((4, 2, 4))
    reward[2, 1, 3], reward[3] = 1.0, 100.0  # the reward after the end doesn't count
    assert mdp.optimal_values(reward)[:, 1] == pytest.approx([0.25, 0.5, 1.0, 0])
    policy = mdp.optimal_policy(reward)
    assert mdp.policy_return(reward, policy) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="add up to 1"):
        TabularMDP(transitions * 0.5, np.eye(4)[0], 0.5)


@pytest.mark.parametrize("dimensions", [1, 5, 40])
@pytest.mark.parametrize("count", [4, 25, 90, 150, 420])
def test_starc_of_a_negation_is_1_or_refused(dimensions: int, count: int) -> None:
    rng = np.random.default_rng(0)
    space, actions = gym.spaces.Box(-1, 1, (dimensions,), np.float32), gym.spaces.Discrete(2)
    seen = rng.uniform(-1, 1, (count + 1, dimensions)).astype(np.float32)
    at = np.arange(count)
    nothing = np.zeros(count)
    steps = Transitions(seen[:-1], rng.integers(2, size=count), seen[1:], nothing > 0, nothing, at // 15, at % 15)
    made = [
        CallableReward(lambda o, a, n, d, s=sign: s * (np.cos(4 * o[:, 0]) + n[:, -1] * (a == 0)), space, actions)
        for sign in (1.0, -1.0)
    ]
    far = sampled_distances.starc(*made, steps, 0.95, np.random.default_rng(1))
    same = sampled_distances.starc(made[0], made[0], steps, 0.95, np.random.default_rng(1))
    if count < sampled_distances.STEPS_PER_VALUE * (dimensions + 1):
        assert "steps are needed" in far.refused
        assert np.isnan(far.value)
        return
    assert (far.value, far.low, far.high) == pytest.approx((1.0, 1.0, 1.0), abs=1e-6)
    assert same.value == pytest.approx(0.0, abs=1e-6)


def test_starc_is_refused_where_the_own_values_explain_any_reward() -> None:
    """In a linear world without choice, any linear reward is a difference of its own values; shaping is one anywhere."""
    rng = np.random.default_rng(0)
    space = gym.spaces.Box(-9, 9, (3,), np.float32)
    before = rng.normal(size=(200, 3))
    after = before @ rng.normal(size=(3, 3)) / 3
    at = np.arange(200)
    steps = Transitions(before, np.zeros(200, int), after, at < 0, np.zeros(200), at // 10, at % 10)

    def made(function: Any) -> CallableReward:
        return CallableReward(function, space, gym.spaces.Discrete(2))

    truth, negation = made(lambda o, a, n, d: o[:, 0]), made(lambda o, a, n, d: -o[:, 0])
    shaping_only, zero = made(lambda o, a, n, d: 0.9 * n[:, 1] - o[:, 1]), made(lambda o, a, n, d: 0 * o[:, 0])
    found = sampled_distances.starc(truth, negation, steps, 0.9, rng)
    assert (found.text(), "one action" in found.refused) == ("–", True)
    assert sampled_distances.starc(shaping_only, zero, steps, 0.9, rng).value == 0


@pytest.mark.parametrize("gamma", [0.9, 0.99, 1.0])
@pytest.mark.parametrize("over", [False, True])
def test_starc_knows_a_constant_and_shaping_by_construction(gamma: float, over: bool) -> None:
    """Observations that never repeat, and potentials that the fitted values can't follow: 0 to each other, 1/2 to anything else."""
    rng = np.random.default_rng(0)
    space, choice = gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(2)
    seen, actions, at = rng.normal(size=(401, 2)).astype(np.float32), rng.integers(2, size=400), np.arange(400)
    steps = Transitions(seen[:-1], actions, seen[1:], over & (at % 40 == 39), at * 0.0, at // 40, at % 40)

    def made(function: Any) -> CallableReward:
        return CallableReward(lambda o, a, n, d: np.float32(function(o, a, n, d)), space, choice)

    def potential(of: Any) -> Any:
        return np.sign(np.sin(9 * of[:, 0])) + of[:, 1] ** 2

    shaping = made(lambda o, a, n, d: gamma * np.where(d, 0, potential(n)) - potential(o))
    zero, one = made(lambda o, a, n, d: 0 * o[:, 0]), made(lambda o, a, n, d: 1 + 0 * o[:, 0])
    three, reward = made(lambda o, a, n, d: -3 + 0 * o[:, 0]), made(lambda o, a, n, d: a * n[:, 0])
    trivial = [shaping, zero] if over else [shaping, zero, one, three]  # a constant counts where episodes end

    def distance(first: CallableReward, second: CallableReward) -> tuple[float, float, float]:
        found = sampled_distances.starc(first, second, steps, gamma, np.random.default_rng(1))
        return found.value, found.low, found.high

    assert all(distance(first, second) == (0, 0, 0) for first in trivial for second in trivial)
    for first in trivial:
        assert distance(first, reward) == pytest.approx((0.5, 0.5, 0.5)) == distance(reward, first)
    assert distance(reward, reward)[0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("episodes", [1, 2])
@pytest.mark.filterwarnings("error")
def test_one_or_two_episodes_have_no_interval_but_exact_distances(episodes: int) -> None:
    rng = np.random.default_rng(0)
    mdp = random_mdp(6, 2, 0.9, rng)
    data = recorded(mdp, 400, rng, product=True)
    data = data.with_(episodes=np.arange(400) * episodes // 400)
    reward, noise = rng.normal(size=(2, 6, 2, 6))
    first, other = TableReward(reward), TableReward(reward + noise)
    for name, found in sampled_distances.all_distances(first, other, data, 0.9).items():
        assert np.isnan([found.low, found.high]).all(), name
        assert "too few episodes: no interval" in str(found)
    for name, found in sampled_distances.all_distances(first, TableReward(2 * reward), data, 0.9).items():
        exact = float(name in ("pearson", "spearman"))
        assert (found.low, found.high) == pytest.approx((exact, exact), abs=1e-6), name


@pytest.mark.slow
def test_the_published_epic_knows_no_ends_of_episodes() -> None:
    rng = np.random.default_rng(3)
    mdp = random_mdp(6, 2, 0.9, rng, terminals=2)
    truth, potential = rng.normal(size=(6, 2, 6)), 5 * rng.normal(size=6)  # also of the terminal states
    data = recorded(mdp, 1000, rng, product=False)
    assert data.terminated.any()

    def both(second: Any) -> tuple[float, float]:
        values = sampled_distances.all_distances(TableReward(truth), TableReward(second), data, 0.9)
        return values["epic_published"].value, values["epic"].value

    for same in (truth + 3, 2 * truth, truth + 0.9 * potential[None, None, :] - potential[:, None, None]):
        assert both(same)[0] < 1e-6
    assert both(truth + 3)[1] > 0.2  # it pays for staying alive
    assert both(-truth)[0] == pytest.approx(1.0)
    alive = dataclasses.replace(data, terminated=np.zeros(len(data), bool))
    values = sampled_distances.all_distances(TableReward(truth), TableReward(rng.normal(size=(6, 2, 6))), alive, 0.9)
    assert values["epic_published"] == values["epic"]
