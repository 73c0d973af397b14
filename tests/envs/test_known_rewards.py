import numpy as np
import pytest
import torch

from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.ground_truth import ground_truth
from rlhf_ray.measure.distances import TabularMDP, epic
from rlhf_ray.reward.functions.shaped import shaped
from tests.envs.worlds import SHAPINGS, reward_table, world


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
