import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.steps import examples as section
from rlhf_ray.interpret.reward.steps.examples import QUANTILES, checksums, examples, true_rewards
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward
from tests.interpret.contexts import run_step

SPACE = gym.spaces.Box(-9, 9, (4,))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    states = rng.integers(0, 6, (200, 4)).astype(np.float32)  # many equal rewards
    rest = (np.zeros(200, bool), -states[:, 0].astype(float), np.arange(200) // 20, np.arange(200) % 20)
    return Transitions(states, rng.integers(0, 3, 200), states, *rest)


REWARD = CallableReward(lambda o, a, p, d: o[:, 0] + o[:, 1], SPACE, gym.spaces.Discrete(3))


def test_examples_equal_brute_force(data):
    values = [float(state[0] + state[1]) for state in data.observations]
    content = checksums(data).tolist()
    up = sorted(range(200), key=lambda i: (values[i], content[i]))
    down = sorted(range(200), key=lambda i: (-values[i], content[i]))
    found = {each.kind: each for each in examples(REWARD, data, count=5)}
    indices = {kind: each.indices.tolist() for kind, each in found.items()}
    assert indices["highest"] == down[:5]
    assert indices["lowest"] == up[:5]
    assert found["highest"].equal.tolist() == [values.count(values[i]) for i in down[:5]]
    assert [indices[f"quantile {q:g}"] for q in QUANTILES] == [[up[round(q * 199)]] for q in QUANTILES]
    for action in range(3):
        assert indices[f"highest with action {action}"] == [i for i in down if data.actions[i] == action][:5]
        assert indices[f"lowest with action {action}"] == [i for i in up if data.actions[i] == action][:5]


def test_the_order_of_the_data_chooses_nothing(data):
    """Of 10 equal steps at the top, 5 are truly worth 1 and 5 nothing: on average a half, in any order."""
    tied = CallableReward(lambda o, a, p, d: 1.0 * (a == 2), SPACE, gym.spaces.Discrete(3))
    data = data.with_(actions=np.where(np.arange(200) < 10, 2, 0), rewards=(np.arange(200) < 5) * 1.0)
    shuffled = data[np.random.default_rng(1).permutation(200)]
    both = [[each.observations[one.indices].tolist() for one in examples(tied, each)] for each in (data, shuffled)]
    assert both[0] == both[1]
    found = true_rewards(tied, data)
    assert found == true_rewards(tied, shuffled)
    assert (found.highest, found.of_highest, found.lowest, found.of_lowest) == (0.5, 10, 0.0, 190)


def test_the_report_shows_indices_and_both_rewards_and_warns_if_they_disagree(data):
    found = run_step(section, Subject(REWARD, data, regions=regions_of(SPACE, names=["a", "b", "c", "d"])))
    table = found.tables[0]
    first = dict(zip(table.columns, table.rows[0], strict=True))
    index = first["index"]
    assert (first["true reward"], first["reward"]) == (-data.observations[index, 0], data.observations[index, :2].sum())
    assert first["next d"] == data.next_observations[index, 3]
    assert "that it values most have a true reward of" in found.statements[0].text


def test_pictures_of_images_and_grids_and_unknown_truth(data):
    unknown = data.with_(rewards=np.full(200, np.nan))
    grid = run_step(section, Subject(REWARD, unknown, regions=regions_of(SPACE, (2, 2))))
    assert grid.pictures[0].image.startswith(b"\x89PNG")
    assert not grid.statements
