"""Grids and mazes: their rules, and their rewards with every shaping, beside MountainCar's."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import make_env
from rlhf_ray.envs.gridworld import AGENT, GOAL, KEY, WALL, distance_left
from rlhf_ray.envs.ground_truth import ground_truth
from rlhf_ray.measure.distances import TabularMDP, epic
from rlhf_ray.reward.functions.shaped import shaped
from tests.envs.worlds import GRIDS, SHAPINGS, objects, reward_table, world


@pytest.mark.parametrize("name", GRIDS)
def test_the_expert_goes_to_a_goal_by_a_shortest_path_and_is_paid_there(name: str) -> None:
    env: Any = make_env(f"rlhf_ray/{name}-v0")
    model, rng = ground_truth(f"rlhf_ray/{name}-v0"), np.random.default_rng(1)
    for seed in range(1 if name == "NoGoal" else 4):
        before, _ = env.reset(seed=seed)
        shortest, steps, ended = env.unwrapped.describe()["distance"], 0, False
        while not ended:
            action = env.unwrapped.expert(rng)
            after, reward, terminated, truncated, _ = env.step(action)
            assert reward == float(terminated) == model(before[None], [action], after[None], [terminated])[0]
            before, steps, ended = after, steps + 1, terminated or truncated
        assert truncated == (name == "NoGoal")
        assert name in ("NoGoal", "Key") or steps == shortest


def test_a_key_is_needed_and_goes_when_it_is_taken() -> None:
    env = world("Key", size=3)
    env.reset(seed=0)
    env._agent = (3, 2)
    seen, reward, terminated, *_ = env.step(1)
    assert (reward, terminated) == (0.0, False)  # at the goal without the key
    assert KEY in seen
    assert GOAL not in seen  # the agent hides it
    env.step(0)
    seen, *_ = env.step(0)
    assert env.describe()["has_key"] == 1.0
    assert KEY not in seen
    env.step(2)
    _, reward, terminated, *_ = env.step(2)
    assert (reward, terminated) == (1.0, True)


def test_walls_stop_the_agent_and_rooms_are_connected() -> None:
    env = world("Walls")
    seen, _ = env.reset(seed=0)
    grid = seen.reshape(env.grid)
    assert (grid[[0, -1]] == WALL).all()
    assert (grid[:, [0, -1]] == WALL).all()
    assert (grid[5, 1:-1] == WALL).sum() == 7
    env._agent = (4, 1)
    assert objects(env, env.step(2)[0])["agent"] == [(4, 1)]
    probabilities, _, initial, terminal = env.mdp_tables()
    reached = initial > 0
    for _ in range(40):
        reached = reached | (reached @ probabilities.sum(1) > 0)
    assert reached.all()
    assert terminal.sum() == 1


def test_levels_are_edited_by_position() -> None:
    env = world("CoinFlip")
    seen = env.observe(agent=(2, 3), goals=[(1, 1), (9, 9)], walls=[(5, 5)], keys=[(4, 4)])
    assert objects(env, seen) == {"agent": [(2, 3)], "goal": [(1, 1), (9, 9)], "wall": [(5, 5)], "key": [(4, 4)]}
    assert objects(env, env.observe(agent=(9, 9), goals=[(9, 9)])) == {
        "agent": [(9, 9)],
        "goal": [],
        "wall": [],
        "key": [],
    }
    assert (env.observe() == AGENT).sum() == 0
    with pytest.raises(ValueError, match=r"The position \(11, 1\) is outside the grid of 11 x 11 cells"):
        env.observe(agent=(11, 1))


def test_the_true_reward_of_levels_that_never_occur() -> None:
    env, model = world("CoinFlip"), ground_truth("rlhf_ray/CoinFlip-v0")
    both, corner, none = [(1, 1), (9, 9)], (9, 8), []

    def reward(goals: list[tuple[int, int]], to: tuple[int, int], left: list[tuple[int, int]]) -> float:
        step = env.observe(corner, goals)[None], env.observe(to, left)[None]
        return float(model(step[0], np.array([1]), step[1], np.array([False]))[0])

    assert reward(both, (9, 9), both) == 1.0  # one of two goals
    assert reward(both, (9, 7), both) == 0.0
    assert reward(none, (9, 9), none) == 0.0
    assert reward([(9, 9)], (9, 7), none) == 0.0  # the goal vanishes
    assert reward([(1, 1)], (9, 9), [(1, 1)]) == 0.0  # a corner without a goal


def test_distance_goes_by_the_key_to_the_nearest_goal() -> None:
    env = world("CoinFlip")
    seen = np.stack(
        [
            env.observe((5, 5), [(1, 1), (9, 8)]),
            env.observe((5, 5), [(1, 1)], keys=[(9, 9)]),
            env.observe((5, 5)),
            env.observe(None, [(1, 1)]),
        ]
    )
    assert distance_left(seen, env.grid).tolist() == [7.0, 8.0 + 16.0, 0.0, 0.0]


def test_levels_of_ones_own() -> None:
    env = world("FixedGoal", goals=[[(3, 4)], [(5, 5), (6, 6)]], size=7)
    check_env(env, skip_render_check=True)
    seen = {tuple(objects(env, env.reset(seed=seed)[0])["goal"]) for seed in range(20)}
    assert seen == {((3, 4),), ((5, 5), (6, 6))}
    assert env.mdp_tables()[3].sum() == 3
    assert env.grid_states().layers == ["goal at (3, 4)", "goal at (5, 5), (6, 6)"]
    for goals in ([[(0, 1)]], [], [[(1, 7)]]):
        with pytest.raises(Exception, match=r"goals of GridWorld is \[.*it must be a list of levels"):
            world("Key", goals=goals, size=7)


def test_options_and_tables_that_do_not_exist() -> None:
    with pytest.raises(SettingError, match="too many for a table"):
        world("RandomGoal").mdp_tables()
    for options, said in (
        ({"size": 2}, "size of GridWorld is 2; it must be at least 3"),
        ({"goals": "three"}, "goals of GridWorld is 'three'; it must be one of 'fixed', 'coin'"),
        ({"shaping": "sparse"}, "shaping of GridWorld is 'sparse'; it must be one of 'none', 'dense'"),
    ):
        with pytest.raises(Exception, match=said):
            world("FixedGoal", **options)


def test_the_formula_of_shaping_in_numbers_arrays_and_tensors() -> None:
    reward, before, after = np.array([1.0, 2.0]), np.array([10.0, 20.0]), np.array([30.0, 40.0])
    ends = np.array([False, True])
    expected = [1.0 - 0.5 + 0.9 * 30.0 - 10.0, 2.0 - 0.5 - 20.0]  # the potential of a terminal state is 0
    assert shaped(reward, before, after, ends, 0.9, 0.5).tolist() == expected
    assert shaped(2.0, 20.0, 40.0, True, 0.9, 0.5) == expected[1]
    tensors = [torch.tensor(each) for each in (reward, before, after, ends)]
    assert shaped(*tensors, 0.9, 0.5).tolist() == expected
    tensors[1].requires_grad_()
    shaped(*tensors[:3], tensors[3].float(), 0.9).sum().backward()
    assert tensors[1].grad is not None
    assert tensors[1].grad.tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("name", ["EmptyMaze4", "EmptyMaze10", "KeyMaze6"])
@pytest.mark.parametrize("reward", ["goal", "path"])
def test_each_shaping_of_a_maze_is_equivalent_to_its_reward_and_its_steps_pay_it(name: str, reward: str) -> None:
    truth = ground_truth(f"rlhf_ray/{name}-v0", reward=reward).table
    for shaping in SHAPINGS:
        env = world(name, reward=reward, shaping=shaping)
        probabilities, table, initial, terminal = env.mdp_tables()
        assert np.array_equal(table, env.ground_truth().table)
        assert (shaping == "none") == np.array_equal(table, truth)
        paid = np.zeros_like(table)
        for state in range(env.states):
            for action in range(5):
                env._state = state
                after, paid_now, *_ = env.step(action)
                paid[state, action, after] = paid_now
        assert np.array_equal(paid[probabilities > 0], table[probabilities > 0])
        assert epic(table, truth, TabularMDP(probabilities, initial, 0.99, terminal)) < 1e-6


@pytest.mark.parametrize("name", ["FixedGoal", "CoinFlip", "TwoGoals", "Key", "Walls"])
def test_each_shaping_of_a_grid_is_equivalent_with_terminal_states(name: str) -> None:
    _, truth, _, terminal = world(name, size=5).mdp_tables()
    for shaping in SHAPINGS[1:]:
        env = world(name, size=5, shaping=shaping)
        probabilities, table, initial, _ = env.mdp_tables()
        assert epic(table, truth, TabularMDP(probabilities, initial, 0.99, terminal)) < 1e-6
        observations = env.state_observations()
        model = reward_table(env.ground_truth(), observations, 4, terminal)
        assert np.allclose(model[~terminal], table[~terminal], atol=1e-12)
        rng, seen = np.random.default_rng(0), {one.tobytes(): i for i, one in enumerate(observations)}
        before, _ = env.reset(seed=0)
        paid = []
        for _ in range(200):
            action = int(rng.integers(4)) if rng.random() < 0.5 else env.expert(rng)
            after, reward, terminated, *_ = env.step(action)
            step = seen[before.tobytes()], action, seen[after.tobytes()]
            assert probabilities[step] == 1.0
            paid.append(reward - table[step])
            before = env.reset()[0] if terminated else after
        assert np.abs(paid).max() < 1e-12


def test_the_last_step_has_no_next_potential() -> None:
    env = world("FixedGoal", shaping="dense", gamma=0.9)
    env.reset(seed=0)
    env._agent = (9, 8)
    env._seen = env._observation()
    assert env.step(1)[1] == 1.0 - -1.0  # 1 + 0 - Phi(s), and Phi(s) is minus one step
    env._agent = (9, 7)
    env._seen = env._observation()
    assert env.step(1)[1] == 0.9 * -1.0 - -2.0


@pytest.mark.parametrize("shaping", SHAPINGS)
def test_mountain_car_pays_its_model_and_swings_up(shaping: str) -> None:
    env, truth = world("MountainCar", shaping=shaping), ground_truth("rlhf_ray/MountainCar-v0")
    model, rng = ground_truth("rlhf_ray/MountainCar-v0", shaping=shaping), np.random.default_rng(0)
    before, _ = env.reset(seed=0)
    steps = []
    for _ in range(200):
        after, reward, terminated, *_ = env.step(env.expert(rng))
        assert not terminated
        assert reward == model(before[None], [0], after[None], [False])[0]
        steps.append((before, after, reward))
        before = after
    assert after[0] > 0.5
    if shaping == "dense":
        before, after, reward = steps[40]
        assert reward == pytest.approx(-1 + 100 * (0.99 * float(after[0]) - float(before[0])))
    states = np.stack([step[0] for step in steps[::5]])
    one, other = (reward_table(each, states, 3, np.zeros(len(states), bool)) for each in (model, truth))
    same = np.full(len(states), 1 / len(states))
    assert epic(one, other, TabularMDP(np.broadcast_to(same, one.shape), same, 0.99)) < 1e-6
    observations = torch.tensor(states, requires_grad=True)
    ends = torch.zeros(len(states))
    gradients = model.forward(observations, torch.zeros(len(states), 3), torch.tensor(states), ends)
    gradients.sum().backward()
    assert observations.grad is not None
    expected = {"none": 0.0, "dense": -100.0, "antidense": 100.0}
    if shaping in expected:
        assert torch.allclose(observations.grad, torch.tensor([expected[shaping], 0.0]).expand(len(states), 2))


def test_other_environments_say_that_they_have_no_model() -> None:
    with pytest.raises(SettingError, match="'Acrobot-v1' has no ground-truth model"):
        ground_truth("Acrobot-v1")
