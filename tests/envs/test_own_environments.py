"""Environments of ours, Atari, ``fixed/ID`` and seals. What holds for all: test_conformance.py."""

import itertools
import math
import sys
import warnings
from typing import Any

import gymnasium
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.envs import check_spaces, make_env, make_vector_env
from rlhf_ray.envs.fixed_horizon import FixedHorizon
from rlhf_ray.envs.moving_dot import MovingDot
from tests.envs.worlds import Gives

CARTPOLE, ACROBOT, DOT = (f"rlhf_ray/{name}-v0" for name in ("CartPoleFixed", "AcrobotFixed", "MovingDot"))


@pytest.mark.parametrize("policy", ["random", "left"])
def test_same_as_cartpole_until_the_first_fall(policy: str) -> None:
    rng = np.random.default_rng(0)
    ours, theirs = make_env(CARTPOLE), gymnasium.make("CartPole-v1")
    for seed in range(20):
        our_observation, _ = ours.reset(seed=seed)
        their_observation, _ = theirs.reset(seed=seed)
        terminated = False
        while not terminated:
            assert np.array_equal(our_observation, their_observation)
            action = int(rng.integers(2)) if policy == "random" else 0
            our_observation, our_reward, our_terminated, _, _ = ours.step(action)
            their_observation, _, terminated, truncated, _ = theirs.step(action)
            assert (truncated, our_terminated) == (False, False)
            assert our_reward == (0.0 if terminated else 1.0)
        assert np.array_equal(our_observation, their_observation)


def test_cartpole_goes_on_after_a_fall_without_a_warning() -> None:
    env = make_env(CARTPOLE)
    env.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(500):
            observation, reward, *_ = env.step(0)
            assert reward == float(abs(observation[0]) <= 2.4 and abs(observation[2]) <= np.deg2rad(12))
    env.unwrapped.metadata["mark"] = 1
    assert "mark" not in gymnasium.make("CartPole-v1").metadata


def test_the_cart_never_leaves_the_picture() -> None:
    pytest.importorskip("pygame")
    env = make_env(CARTPOLE, render_mode="rgb_array")
    env.reset(seed=0)
    inner = env.unwrapped
    for x, off_track in ((0.0, 0.0), (-1.4, 0.0), (2.6, 0.25), (-3.8, 0.5), (5.0, 0.75), (300.5, 1.0)):
        for angle in (np.pi / 2, -np.pi / 2):  # the pole points to either side
            before = inner.state = np.array([x, 0.0, angle, 0.0])
            frame = env.render()
            assert inner.state is before
            black = (frame[311:314] == 0).all(axis=(0, 2))  # the cart, under pole and track
            assert black.sum() == pytest.approx(50, abs=2), x
            brown = (frame[..., 0] > frame[..., 2] + 40).any(axis=0)
            assert brown.sum() >= 110, x  # the whole pole, but for what the axle hides
            grey = (frame[5, :, 0] < 255).mean()
            assert grey == pytest.approx(off_track, abs=0.01), x
    env.close()


def test_acrobots_physics_for_five_hundred_steps_and_the_height_of_its_tip() -> None:
    ours, theirs = make_env(ACROBOT), gymnasium.make("Acrobot-v1").unwrapped
    goals = 0
    our_observation, _ = ours.reset(seed=0)
    their_observation, _ = theirs.reset(seed=0)
    for _ in range(500):
        assert np.array_equal(our_observation, their_observation)
        action = 2 if our_observation[5] >= 0 else 0  # the torque always adds energy
        our_observation, reward, *_ = ours.step(action)
        their_observation, _, at_goal, _, _ = theirs.step(action)
        upper, lower = theirs.state[:2]  # type: ignore[attr-defined]
        assert reward == pytest.approx(-math.cos(upper) - math.cos(upper + lower), abs=1e-5)
        assert (reward > 1) == at_goal
        goals += at_goal
    assert goals  # the episodes continued
    truth = ours.unwrapped.ground_truth()  # type: ignore[attr-defined]
    down, up, folded = [1, 0, 1, 0, 0, 0], [-1, 0, 1, 0, 0, 0], [-1, 0, -1, 0, 0, 0]
    after = np.array([down, up, folded], np.float32)
    assert truth.members(after[::-1], np.zeros(3), after, np.zeros(3))[0].tolist() == [-2, 2, 0]


def _corner(frame: NDArray[np.uint8]) -> tuple[int, int]:
    """The dot's upper left pixel; checks on the way that the frame is one dot and nothing else."""
    rows, columns, _ = np.nonzero(frame)
    top, left = int(rows.min()), int(columns.min())
    expected = np.zeros((64, 64, 3), np.uint8)
    expected[top : top + 4, left : left + 4] = 255
    assert np.array_equal(frame, expected)
    return top, left


@pytest.mark.parametrize(("action", "move"), [(0, (0, 0)), (1, (-2, 0)), (2, (0, 2)), (3, (2, 0)), (4, (0, -2))])
def test_actions_move_the_dot_and_edges_stop_it(action: int, move: tuple[int, int]) -> None:
    env = make_env(DOT, render_mode="rgb_array")
    row, column = _corner(env.reset(seed=1)[0])
    for _ in range(60):
        frame, reward, *_ = env.step(action)
        row, column = (min(max(a + b, 0), 60) for a, b in zip((row, column), move, strict=True))
        assert _corner(frame) == (row, column)
        assert np.array_equal(env.render(), frame)
        assert reward == pytest.approx(-math.hypot(row + 2 - 32, column + 2 - 32) / 32)


def test_the_dot_starts_anywhere_and_can_reach_the_middle() -> None:
    env = make_env(DOT).unwrapped
    starts = np.array([_corner(env.reset()[0]) for _ in range(2000)])
    assert (starts.min(), starts.max()) == (0, 60)
    # Standard deviation of a uniform start is 17.9 pixels: 5 standard errors of the mean of 2000 are 2.
    assert np.abs(starts.mean(axis=0) - 30).max() < 2.0
    row, column = _corner(env.reset(seed=2)[0])
    for _ in range(60):
        action = 3 if row < 30 else 1 if row > 30 else 2 if column < 30 else 4 if column > 30 else 0
        frame, reward, *_ = env.step(action)
        row, column = _corner(frame)
    assert reward == 0.0
    with pytest.raises(ValueError, match="human"):
        MovingDot(render_mode="human")


def test_torques_beyond_the_largest_count_as_the_largest() -> None:
    envs = make_vector_env("Pendulum-v1", 2)
    ends = []
    for torque in (2.0, 50.0):
        envs.reset(seed=0)
        ends.append(envs.step(np.full((2, 1), torque, np.float32)))
    np.testing.assert_array_equal(ends[0][0], ends[1][0])
    np.testing.assert_array_equal(ends[0][1], ends[1][1])


def test_actions_that_are_no_numbers_are_the_policy_s_fault() -> None:
    envs = make_vector_env("Pendulum-v1", 3)
    envs.reset(seed=0)
    with pytest.raises(FaultyEnvironmentError, match=r"the policy acts with .*nan.* Lower the learning rate"):
        envs.step(np.array([[0.0], [np.nan], [1.0]], np.float32))


def test_steps_need_a_reset_first() -> None:
    envs: Any = make_vector_env("Pendulum-v1", 2)
    with pytest.raises(ResetNeeded):
        envs.unwrapped.step(np.zeros((2, 1), np.float32))


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


def test_after_its_end_an_episode_stands_still_until_the_time_limit() -> None:
    env, plain = make_env("fixed/CartPole-v1"), make_env("CartPole-v1")
    for seed in (0, 1):
        observation, _ = env.reset(seed=seed)
        plain.reset(seed=seed)
        over, total, steps = False, 0.0, 0
        while True:
            seen, reward, terminated, truncated, _ = env.step(1)
            steps, total = steps + 1, total + reward
            assert not terminated
            if over:
                assert (reward, (seen == observation).all()) == (0.0, True)
            else:
                observation, same, over, _, _ = plain.step(1)
                assert (reward, (seen == observation).all()) == (same, True)
            if truncated:
                break
        assert (steps, over) == (500, True)
        assert total < 15
    assert env.spec.max_episode_steps == 500


BOX, THREE = gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(3, start=1)


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Dict(a=BOX, b=gym.spaces.Tuple((THREE, gym.spaces.Dict(c=BOX)))),
        gym.spaces.Tuple((BOX, THREE)),
        THREE,
        gym.spaces.MultiBinary(4),
        gym.spaces.MultiDiscrete([2, 5]),
        gym.spaces.Text(3),
        BOX,
    ],
    ids=str,
)
def test_the_last_observation_of_any_space_is_repeated_as_it_was(space: gym.Space[Any]) -> None:
    def sampled(step: int) -> Any:
        if not step:
            space.seed(0)
        return space.sample()

    env = TimeLimit(FixedHorizon(Gives(space, sampled, last=3)), 8)
    env.reset()
    steps = [env.step(0) for _ in range(8)]
    last = repr(steps[2][0])
    assert repr(steps[1][0]) != last
    for seen, *_ in steps[3:]:
        assert repr(seen) == last
        assert space.contains(seen)
        if isinstance(seen, np.ndarray):
            seen[:] = 0  # what a user does to one leaves the others as they are


def test_a_reward_in_an_array_of_one_is_a_number_as_without_the_prefix() -> None:
    class Pays(CartPoleEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *others = super().step(action)
            return observation, np.array([reward]), *others

    pays: Any = Pays
    gym.register("tests/Pays-v0", pays, max_episode_steps=5)
    for name in ("tests/Pays-v0", "fixed/tests/Pays-v0"):
        env = make_env(name)
        env.reset(seed=0)
        reward = env.step(0)[1]
        assert (type(reward), reward) == (float, 1.0)


def test_several_copies_begin_anew_together() -> None:
    env = make_vector_env("fixed/CartPole-v1", 2)
    env.reset(seed=0)
    for _ in range(499):
        *_, truncated, _ = env.step(np.array([1, 0]))
        assert not truncated.any()
    assert env.step(np.array([1, 0]))[3].all()


def test_what_has_no_time_limit_and_what_is_of_a_module_is_refused() -> None:
    with pytest.raises(ValueError, match="without a module"):
        make_env("fixed/some_module:CartPole-v1")
    with pytest.raises(ValueError, match="no environment 'CartPol-v1'"):
        make_env("fixed/CartPol-v1")


def test_imitations_absorbing_wrapper_does_the_same_with_the_last_observation() -> None:
    util = pytest.importorskip("seals.util")
    theirs, ours = util.AbsorbAfterDoneWrapper(make_env("CartPole-v1")), make_env("fixed/CartPole-v1")
    same, seen = theirs.reset(seed=3)[0], ours.reset(seed=3)[0]
    for _ in range(100):
        assert np.array_equal(seen, same)
        same, their_reward, *_ = theirs.step(1)
        seen, reward, *_ = ours.step(1)
        assert reward == their_reward


ROBOTS = [
    "Hopper",
    "Swimmer",
    *(pytest.param(name, marks=pytest.mark.soak) for name in ("Ant", "HalfCheetah", "Humanoid", "Walker2d")),
]


@pytest.mark.parametrize(("name", "steps"), [("seals/CartPole-v0", 500), ("seals/MountainCar-v0", 200)])
def test_seals_classic_control_has_episodes_of_one_length(name: str, steps: int) -> None:
    pytest.importorskip("seals")
    env = make_env(name)
    check_spaces(env.observation_space, env.action_space, name)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(steps)]
    assert ends == [(False, False)] * (steps - 1) + [(False, True)]


@pytest.mark.parametrize("robot", ROBOTS)
def test_seals_robots_are_made_by_their_ids(robot: str) -> None:
    pytest.importorskip("seals")
    pytest.importorskip("mujoco")
    env = make_env(f"seals/{robot}-v1")
    check_spaces(env.observation_space, env.action_space, robot)
    assert env.spec.max_episode_steps == 1000
    seen, _ = env.reset(seed=0)
    assert np.array_equal(seen[: env.unwrapped.model.nq], env.unwrapped.data.qpos)  # type: ignore[attr-defined]
    ends = [env.step(env.action_space.high)[2] for _ in range(100)]  # type: ignore[attr-defined]
    assert not any(ends)  # not even after a fall


def test_without_seals_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seals", None)
    with pytest.raises(ImportError, match=r"^seals/CartPole-v0 needs seals: pip install seals"):
        make_env("seals/CartPole-v0")
