import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from examples.worlds.planted import AGENT_COLOUR, COIN_COLOUR, DISTRACTOR_COLOURS, PlantedImage
from examples.worlds.score_shortcut import ScoreShortcut
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import check_spaces
from tests.envs.worlds import IMAGES, world


@pytest.mark.parametrize("name", IMAGES)
def test_env_checker_and_steps_that_pay_the_model(name: str) -> None:
    env, again = world(name), world(name)
    check_env(env)
    check_spaces(env.observation_space, env.action_space, name)
    env.action_space.seed(0)
    before, _ = env.reset(seed=4)
    assert np.array_equal(before, again.reset(seed=4)[0])
    model = env.ground_truth()
    for _ in range(30):
        action = env.action_space.sample()
        after, reward, *_ = env.step(action)
        assert np.array_equal(after, again.step(action)[0])
        assert reward == model(before[None], np.array([action]), after[None], np.array([False]))[0]
        before = after


def test_distances_are_read_from_the_image() -> None:
    env = world("DotsAndDistances")
    env.reset(seed=0)
    for _ in range(20):
        _, reward, *_ = env.step(0)
        said = env.describe()
        assert reward == pytest.approx(said["distances"].mean(), abs=1e-12)
        assert reward == pytest.approx(float(said["mean_distance"]), abs=1e-12)
    one, two, three = ([(20, 20), (20, 50)], [(40, 10), (50, 10)], [(30, 60)])
    model = env.ground_truth()
    images = np.stack([env.observe([one, two, three]), env.observe([one, two, []]), env.observe([])])
    rewards = model(images, np.zeros(3, int), images, np.zeros(3, bool))
    assert rewards == pytest.approx([40 / 3 / 64, 40 / 3 / 64, 0.0], abs=1e-12)  # one circle has no distance
    near = world("DotsAndDistances", reward="near")
    near.reset(seed=0)
    assert 0 < sum(near.step(0)[1] for _ in range(600)) < 20


@pytest.mark.parametrize("name", ["PlantedImage", "ScoreShortcut"])
def test_reward_is_contact_and_a_new_coin_appears(name: str) -> None:
    env, rng = world(name), np.random.default_rng(0)
    env.reset(seed=0)
    touched, rewards = False, []
    for _ in range(300):
        _, reward, *_ = env.step(env.expert(rng))
        assert reward == (env.describe()["distance"] <= 3)
        assert not (touched and reward)
        touched = bool(reward)
        rewards.append(reward)
    assert 20 < sum(rewards) < 100
    model = env.ground_truth()
    images = np.stack(
        [
            env.observe((5, 5), (8, 8)),
            env.observe((5, 5), (9, 8)),
            env.observe((5, 5)),
            env.observe(None, (5, 5), (5, 8)),
        ]
    )
    assert model(images, np.zeros(4, int), images, np.zeros(4, bool)).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_distractors_are_as_bright_and_change_no_reward() -> None:
    env, plain = world("PlantedImage", distractors=6), world("PlantedImage")
    rng, seen = np.random.default_rng(0), set()
    for seed in range(40):
        after, _ = env.reset(seed=seed)
        for _ in range(5):
            after, reward, *_ = env.step(env.expert(rng))
            assert reward == (env.describe()["distance"] <= 3)
        seen |= {tuple(map(int, colour)) for colour in after.reshape(-1, 3)}
    others = seen - {tuple(map(int, of)) for of in plain.observe((0, 0), (5, 5), (9, 9)).reshape(-1, 3)}
    assert others == set(DISTRACTOR_COLOURS)
    assert {sum(colour) for colour in others} == {sum(AGENT_COLOUR), sum(COIN_COLOUR)}
    with pytest.raises(SettingError, match="distractors of PlantedImage is -1"):
        PlantedImage(distractors=-1)


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_the_score_lights_up_so_many_steps_after_the_contact(lag: int) -> None:
    env, rng = ScoreShortcut(lag=lag), np.random.default_rng(0)
    shortcut = ScoreShortcut(lag=lag, reward="score").ground_truth()
    env.reset(seed=0)
    rewards, lit, scores = [], [], []
    for _ in range(200):
        after, reward, *_ = env.step(env.expert(rng))
        rewards.append(reward)
        lit.append(shortcut(after[None], np.zeros(1, int), after[None], np.zeros(1, bool))[0])
        scores.append(env.describe()["score"])
    assert sum(lit) > 10
    assert rewards[: len(rewards) - lag] == lit[lag:]
    assert not any(lit[:lag])
    moved = [a != b for a, b in zip(scores[1:], scores, strict=False)]
    assert moved == [bool(each) for each in lit[1:]]
    assert ScoreShortcut.score_region()[:2].all()
    assert not ScoreShortcut.score_region()[2:].any()
