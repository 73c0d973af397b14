"""Atari's games, Pong as the paper has it, and the hopper that goes on after a fall."""

import itertools
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.envs import make_env

STAY, RIGHT, LEFT = 0, 2, 3


def play(env: Any, actions: Any, seed: int) -> tuple[list[Any], list[float]]:
    observation, _ = env.reset(seed=seed)
    seen, rewards = [observation], []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(int(action))
        assert not terminated
        seen.append(observation)
        rewards.append(reward)
        if truncated:
            break
    return seen, rewards


@pytest.fixture
def pong() -> Any:
    pytest.importorskip("ale_py")
    env = make_env("rlhf_ray/Pong-v0", render_mode="rgb_array")
    yield env
    env.close()  # type: ignore[no-untyped-call]


@pytest.mark.slow
def test_an_episode_is_2000_steps_of_small_grey_images_over_several_games(pong: Any) -> None:
    assert is_image(pong.observation_space)
    seen, rewards = play(pong, np.full(3000, STAY), seed=0)
    assert len(rewards) == 2000
    assert set(rewards) == {0.0, -1.0}
    assert sum(rewards) < -21  # a game is lost with 21 points, and the next one began
    assert all(pong.observation_space.contains(observation) for observation in seen[:10])
    for before, after in itertools.pairwise(seen[:50]):
        np.testing.assert_array_equal(before[..., 1:], after[..., :-1])


def test_the_score_cannot_be_read(pong: Any) -> None:
    seen, _ = play(pong, np.full(600, STAY), seed=0)
    assert max(int(observation[:8].max()) for observation in seen) == 0
    assert seen[-1][8:].max() > 0
    assert pong.render()[:22].max() == 0
    assert pong.render().shape == (210, 160, 3)


def test_a_seed_says_it_all_and_another_says_something_else(pong: Any) -> None:
    actions = np.random.default_rng(0).integers(6, size=200)
    first, again, other = (play(pong, actions, seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_actions_move_the_paddle(pong: Any) -> None:
    up, down = (play(pong, np.full(30, action), seed=0)[0][-1][..., -1] for action in (RIGHT, LEFT))
    assert not np.array_equal(up[:, 70:], down[:, 70:])


def test_pong_has_no_sticky_actions_and_other_games_what_their_id_says(pong: Any) -> None:
    sticky = [env.unwrapped.ale.getFloat("repeat_action_probability") for env in (pong, make_env("ALE/Pong-v5"))]
    assert sticky == [0.0, 0.25]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "actions"), [("ALE/Breakout-v5", 4), pytest.param("ALE/MsPacman-v5", 9, marks=pytest.mark.soak)]
)
def test_any_game_is_preprocessed_and_the_next_one_begins_in_the_same_episode(name: str, actions: int) -> None:
    pytest.importorskip("ale_py")
    env = make_env(name, render_mode="rgb_array")
    assert (env.observation_space.shape, env.observation_space.dtype) == ((84, 84, 4), np.uint8)
    assert isinstance(env.action_space, gymnasium.spaces.Discrete)
    assert env.action_space.n == actions
    assert env.spec.max_episode_steps == 2000
    rng = np.random.default_rng(0)
    observation, info = env.reset(seed=0)
    frames, points, games, ended = info["episode_frame_number"], 0.0, 1, False
    assert 1 <= frames <= 30  # of doing nothing
    steps = 0
    while not ended:
        observation, reward, terminated, ended, info = env.step(int(rng.integers(actions)))
        assert not terminated
        games += info["lives"] == 0
        points, steps = points + float(reward), steps + 1
        if steps == 1:
            assert info["episode_frame_number"] == frames + 4
    assert (steps, games > 1, points > 0) == (2000, True, True)
    assert env.observation_space.contains(observation)
    screen: Any = env.render()
    assert (screen.shape, screen.dtype) == ((210, 160, 3), np.uint8)
    assert env.metadata["render_fps"] == 15
    env.close()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", ["rlhf_ray/Pong-v0", "ALE/Breakout-v5"])
@pytest.mark.parametrize("module", ["ale_py", "cv2"])
def test_what_is_missing_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, name: str, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"^{name} needs ale-py and OpenCV: pip install 'rlhf-ray\[atari\]'.$"):
        make_env(name)


def test_another_game_is_refused_with_the_nearest_and_fixed_with_a_reason() -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(ValueError, match=r"no environment 'ALE/Brekout-v5'. The closest names are ALE/Breakout-v5"):
        make_env("ALE/Brekout-v5")
    with pytest.raises(ValueError, match="already have a fixed length"):
        make_env("fixed/ALE/Breakout-v5")


def test_enduros_dashboard_cannot_be_read() -> None:
    pytest.importorskip("ale_py")
    env = make_env("rlhf_ray/Enduro-v0", render_mode="rgb_array")
    plain = make_env("ALE/Enduro-v5", render_mode="rgb_array", repeat_action_probability=0.0)
    ours, theirs = (play(each, np.full(60, 1), seed=0)[0][-1] for each in (env, plain))
    assert theirs[64:].max() > 0
    assert ours[64:].max() == 0
    assert np.array_equal(ours[:64], theirs[:64])  # the road is all there
    assert env.render()[160:].max() == 0  # type: ignore[index]


def test_any_part_of_any_game_can_be_blacked_out() -> None:
    pytest.importorskip("ale_py")
    blanked, plain = (make_env("ALE/Breakout-v5", **options) for options in ({"blanked": [(0, 17, 40, 160)]}, {}))
    hidden, seen = (env.reset(seed=0)[0] for env in (blanked, plain))
    changed = np.argwhere((hidden != seen).any(-1))
    assert (changed[:, 0].max() < 7, changed[:, 1].min() >= 21) == (True, True)  # 84 of 210 rows, 84 of 160 columns
    assert hidden[:7, 21:].max() == 0
    with pytest.raises(SettingError, match=r"blanked is \(0, 0, 0, 160\); it must be \(top, bottom, left, right\)"):
        make_env("ALE/Breakout-v5", blanked=[(0, 0, 0, 160)])


@pytest.mark.parametrize("robot", ["Hopper", "Walker2d", pytest.param("Humanoid", marks=pytest.mark.soak)])
def test_a_fallen_robot_goes_on_and_earns_nothing_for_standing(robot: str) -> None:
    pytest.importorskip("mujoco")
    env: Any = make_env(f"rlhf_ray/{robot}Fixed-v0")
    env.reset(seed=0)
    steps = [env.step(env.action_space.high) for _ in range(1000)]
    assert [ends for _, _, *ends, _ in steps] == [[False, False]] * 999 + [[False, True]]
    assert steps[0][4]["reward_survive"] > 0 == steps[-1][4]["reward_survive"]
