import gymnasium
import numpy as np
import pytest
from matplotlib.axes import Axes

from rlhf_ray.envs import make_env
from rlhf_ray.envs.gridworld import GridStates
from rlhf_ray.envs.ground_truth import ground_truth
from rlhf_ray.interpret.reward.steps import heatmap as section
from rlhf_ray.interpret.reward.steps.heatmap import draw, move_values, moves, triangle
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward, RewardFunction, TableReward
from tests.interpret.contexts import run_step, steps_of, why_not

STAY, UP, RIGHT, DOWN, LEFT = range(5)


def _states(name: str) -> GridStates:
    states: GridStates = make_env(f"rlhf_ray/{name}-v0").unwrapped.grid_states()
    return states


def _subject(reward: RewardFunction, environment: str | None) -> Subject:
    return Subject(reward, steps_of(np.zeros(0)), environment=environment)


def test_each_move_has_the_reward_of_where_it_leads() -> None:
    """States and next states are numbered alike: entering (0, 3) of a 4 x 4 maze is moving right at (0, 2) or up at (1, 3)."""
    table = np.zeros((16, 5, 16))
    table[:, :, 0 * 4 + 3] = 1.0
    states = _states("EmptyMaze4")
    found = move_values(TableReward(table), states, "")
    paid = np.argwhere(found.values == 1.0)
    worth = {(int(states.rows[state]), int(states.columns[state]), action) for state, action in paid}
    assert worth == {(0, 2, RIGHT), (1, 3, UP), (0, 3, STAY)}
    assert np.isnan(found.values).sum() == 16  # the moves against the edge
    assert np.isnan(found.values[0, [UP, LEFT]]).all()
    assert not np.isnan(found.values[:, STAY]).any()


def test_key_mazes_and_levels_are_layers() -> None:
    states = _states("KeyMaze6")
    found = move_values(ground_truth("rlhf_ray/KeyMaze6-v0"), states, "")
    assert states.layers == ("without key", "with key")
    at_goal = (states.rows == 4) & (states.columns == 4)
    assert np.nanmax(found.values[at_goal & (states.layer == 0)]) == 0.0
    assert np.nanmin(found.values[at_goal & (states.layer == 1)]) == 1.0
    taken = states.next_states[(states.rows == 0) & (states.columns == 1) & (states.layer == 0)][0, DOWN]
    assert states.layer[taken] == 1  # entering the key's cell leads to the other layer
    assert _states("CoinFlip").layers == ["goal at (1, 1)", "goal at (9, 9)"]
    assert len(_states("RandomGoal").layers) == 3
    assert _states("Key").layers == ["without key", "with key"]


def test_any_reward_on_observations_is_evaluated_on_them() -> None:
    states = _states("CoinFlip")
    space = make_env("rlhf_ray/CoinFlip-v0").observation_space
    absence = CallableReward(lambda o, a, p, d: 1.0 - (p == 3).sum(1), space, gymnasium.spaces.Discrete(4))
    learned = move_values(absence, states, "")
    true = move_values(ground_truth("rlhf_ray/CoinFlip-v0"), states, "")
    assert np.array_equal(learned.values, true.values, equal_nan=True)  # which is why it has no test error
    assert np.nansum(true.values) == 4
    assert np.isnan(true.values[states.terminal]).all()


def test_table_has_every_valid_move_in_every_panel() -> None:
    states = _states("EmptyMaze4")
    truths = (ground_truth("rlhf_ray/EmptyMaze4-v0", shaping=shaping) for shaping in ("none", "dense"))
    table = moves([move_values(truth, states, "") for truth in truths])
    assert len(table) == 16 * 5 - 16
    right = next(row for row in table if row[1:4] == [2, 1, "right"])  # into the goal at (2, 2)
    assert right[4:] == [0.0, 1.0]
    leave = next(row for row in table if row[1:4] == [2, 2, "up"])
    assert leave[4] == 1.0
    assert leave[5] == pytest.approx(1.0 - 0.99)


def _shapes(axes: Axes) -> dict[tuple[float, float], float]:
    """Value by middle (x, y) of each coloured shape; invalid ones are NaN."""
    found = {}
    for shapes in axes.collections:
        values = shapes.get_array()
        for i, path in enumerate(shapes.get_paths()):
            x, y = path.vertices[:-1].mean(0)
            found[round(float(x), 3), round(float(y), 3)] = np.nan if values is None else float(values[i])
    return found


def test_shapes_and_colours_are_where_the_moves_are() -> None:
    """A cell's triangles lie at its sides and its circle in the middle; its middle is x = column, y = row."""
    table = np.zeros((16, 5, 16))
    table[2 * 4 + 1, RIGHT], table[2 * 4 + 1, LEFT], table[2 * 4 + 1, STAY] = 1.0, -1.0, 0.5
    panel = move_values(TableReward(table), _states("EmptyMaze4"), "worth")
    axes, bar = draw([panel], [0]).axes
    shapes, third = _shapes(axes), round(1 / 3, 3)
    assert len(shapes) == 16 * 5
    coloured = {at: value for at, value in shapes.items() if value and not np.isnan(value)}
    assert coloured == pytest.approx({(1 + third, 2.0): 1.0, (1 - third, 2.0): -1.0, (1.0, 2.0): 0.5})
    against_the_edge = {(float(i), edge) for i in range(4) for edge in (-third, 3 + third)}
    against_the_edge |= {place[::-1] for place in against_the_edge}
    assert {at for at, value in shapes.items() if np.isnan(value)} == against_the_edge
    assert axes.get_ylim() == (3.5, -0.5)  # row 0 at the top
    assert axes.get_title() == "worth"
    assert [text.get_text() for text in axes.texts] == ["G"]
    assert bar.get_ylabel() == "reward"
    assert triangle((0, 1)).tolist() == [[0.5, -0.5], [0.5, 0.5], [0.0, 0.0]]


def test_a_factor_and_a_constant_do_not_show() -> None:
    states = _states("KeyMaze6")
    table = np.random.default_rng(0).normal(size=(72, 5, 72))
    panels = [move_values(TableReward(each), states, "reward") for each in (table, 5.0 + 0.1 * table)]
    axes = [each for each in draw(panels, [0, 1]).axes if each.get_title()]
    assert [each.get_title() for each in axes] == ["reward, without key"] * 2 + ["reward, with key"] * 2
    first, second = (each.collections[1] for each in axes[:2])
    colours = [each.cmap(each.norm(each.get_array())) for each in (first, second)]
    assert np.abs(colours[0] - colours[1]).max() < 0.01
    constant = draw([move_values(TableReward(0 * table), states, "")], [0]).axes[0].collections[1]
    assert np.isfinite(constant.norm(constant.get_array())).all()


def test_section_on_vectors_tables_and_constants() -> None:
    space = make_env("rlhf_ray/CoinFlip-v0").observation_space
    actions = gymnasium.spaces.Discrete(4)
    right = CallableReward(lambda _, action, *__: 1.0 * (np.asarray(action) == 1), space, actions)
    subject = _subject(right, "rlhf_ray/CoinFlip-v0")
    assert why_not(section, subject) is None
    found = run_step(section, subject)
    assert [row[-2] for row in found.tables[0].rows[:5]] == [1.0] * 5
    assert found.values["correlation"] < 0.3
    assert len(found.values["moves"]) == 572
    true = run_step(section, _subject(ground_truth("rlhf_ray/EmptyMaze4-v0"), "rlhf_ray/EmptyMaze4-v0"))
    assert true.values["correlation"] == pytest.approx(1.0)
    zero = run_step(section, _subject(TableReward(np.zeros(16), actions=5), "rlhf_ray/EmptyMaze4-v0"))
    assert zero.values["correlation"] is None


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (None, "environment is unknown"),
        ("CartPole-v1", "CartPole-v1 is no grid world"),
        ("Nothing-v0", "Nothing-v0 is no grid world"),
        ("rlhf_ray/CoinFlip-v0", "takes other observations than rlhf_ray/CoinFlip-v0 gives"),
    ],
)
def test_section_says_where_it_makes_no_sense(environment: str | None, says: str) -> None:
    assert says in str(why_not(section, _subject(TableReward(np.zeros(16), actions=5), environment)))
