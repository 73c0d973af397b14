import io

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.steps import examples as section
from rlhf_ray.interpret.reward.steps.examples import AROUND, QUANTILES, checksums, examples, films, misjudged
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward
from tests.interpret.contexts import run_step, steps_of

SPACE = gym.spaces.Box(-9, 9, (4,))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    states = rng.integers(0, 6, (200, 4)).astype(np.float32)  # many equal rewards
    return steps_of(states, actions=rng.integers(0, 3, 200), rewards=-states[:, 0].astype(float), length=20)


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
    tied = CallableReward(lambda o, a, p, d: 1.0 * (a == 2), SPACE, gym.spaces.Discrete(3))
    data = data.with_(actions=np.where(np.arange(200) < 10, 2, 0), rewards=(np.arange(200) < 5) * 1.0)
    shuffled = data[np.random.default_rng(1).permutation(200)]
    both = [[each.observations[one.indices].tolist() for one in examples(tied, each)] for each in (data, shuffled)]
    assert both[0] == both[1]


def test_the_report_shows_indices_and_both_rewards(data):
    found = run_step(section, Subject(REWARD, data, regions=regions_of(SPACE, names=["a", "b", "c", "d"])))
    table = found.tables[0]
    first = dict(zip(table.columns, table.rows[0], strict=True))
    index = first["index"]
    assert (first["true reward"], first["reward"]) == (-data.observations[index, 0], data.observations[index, :2].sum())
    assert first["next d"] == data.next_observations[index, 3]


def test_pictures_of_images_and_grids_and_unknown_truth(data):
    unknown = data.with_(rewards=np.full(200, np.nan))
    grid = run_step(section, Subject(REWARD, unknown, regions=regions_of(SPACE, (2, 2))))
    assert grid.pictures[0].image.startswith(b"\x89PNG")


def test_misjudged_steps_are_those_whose_places_differ_most(data):
    true = np.arange(200.0)
    given = true.copy()
    given[[3, 190]] = given[[190, 3]]
    data = data.with_(observations=given[:, None].repeat(4, 1).astype(np.float32), rewards=true)
    reward = CallableReward(lambda o, a, p, d: o[:, 0], SPACE, gym.spaces.Discrete(3))
    over, under = misjudged(reward, data)
    assert (over.kind, over.indices.tolist()) == ("overvalued", [3])
    assert (under.kind, under.indices.tolist()) == ("undervalued", [190])
    assert misjudged(reward, data.with_(rewards=given)) == []
    assert misjudged(reward, data.with_(rewards=np.full(200, np.nan))) == []


def test_films_show_the_steps_around_and_stay_within_the_episode():
    frames = np.arange(60, dtype=np.uint8)[:, None, None, None] * np.ones((1, 16, 16, 3), np.uint8)
    data = steps_of(frames, frames + 1, length=20)
    film = Image.open(io.BytesIO(films([np.array([30, 21]), np.array([45])], data)))
    assert film.n_frames == 2 * AROUND + 1
    shown = []
    for at in range(film.n_frames):
        film.seek(at)
        picture = np.asarray(film.convert("RGB"))
        half, side = picture.shape[0] // 2, picture.shape[1] // 2
        shown.append([picture[y, x, 0] for y in (5, half + 5) for x in (5, side + 5)])
    assert np.transpose(shown).tolist() == [
        [step + 1 for step in range(22, 39)],
        [max(step, 20) + 1 for step in range(13, 30)],
        [max(step, 40) + 1 for step in range(37, 54)],
        [0] * film.n_frames,
    ]
