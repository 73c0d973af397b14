"""Tests of EnvPool's environments: like gymnasium's where both exist, seeds, episodes, spaces and images."""

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rlhf_ray.rllib.env_runner
from rlhf_ray.agents.true_return import evaluate
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.envs import check_spaces, make_env, make_vector_env, thread_options
from rlhf_ray.envs.envpool import EnvPoolEnv, EnvPoolVectorEnv
from rlhf_ray.rllib.env_runner import env_threads, seeds_of_copies
from rlhf_ray.settings import Experiment, PPOSettings, SACSettings
from tests.command_line import run_python

# Not imported here: it must be after OpenGL.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="EnvPool is not installed")


STATES: dict[str, Callable[[Array], Any]] = {
    "HalfCheetah-v5": lambda seen: (np.append(0.0, seen[:8]), seen[8:]),  # where along the floor doesn't matter
    "Hopper-v5": lambda seen: (np.append(0.0, seen[:5]), seen[5:]),
    "Swimmer-v5": lambda seen: (np.append([0.0, 0.0], seen[:3]), seen[3:]),
    "Reacher-v5": lambda seen: (
        np.array([*np.arctan2(seen[2:4], seen[:2]), *seen[4:6]]),
        np.array([*seen[6:8], 0.0, 0.0]),
    ),
    "InvertedPendulum-v5": lambda seen: (seen[:2], seen[2:]),
    "CartPole-v1": np.array,
    "Pendulum-v1": lambda seen: np.array([np.arctan2(seen[1], seen[0]), seen[2]]),
    "Acrobot-v1": lambda seen: np.array([np.arctan2(seen[1], seen[0]), np.arctan2(seen[3], seen[2]), *seen[4:]]),
    "MountainCar-v0": np.array,
    "MountainCarContinuous-v0": np.array,
}
"""The state of gymnasium's environment that an observation is of."""


@pytest.mark.parametrize("name", STATES)
def test_each_step_of_an_episode_is_the_one_that_gymnasium_takes_from_there(name: str) -> None:
    """From the same state each time, so that chaos has no time; both end episodes at the same time."""
    robot = name.endswith("-v5")
    if robot:
        pytest.importorskip("mujoco")
    theirs, ours = gym.make(name), make_env(f"envpool/{name}")
    assert ours.action_space == theirs.action_space
    assert robot or ours.observation_space == theirs.observation_space
    assert ours.spec.max_episode_steps == theirs.spec.max_episode_steps
    seen, _ = ours.reset(seed=1)
    theirs.reset(seed=1)
    ours.action_space.seed(1)
    ends, apart, steps = [False, False], 0.0, 0
    inner: Any = theirs.unwrapped
    while not any(ends):
        # A push against the pole's fall keeps CartPole up to its time limit.
        action = int(seen[2] + seen[3] > 0) if name.startswith("CartPole") else ours.action_space.sample()
        state = STATES[name](seen.astype(np.float64))
        if robot:
            inner.set_state(*state)
        else:
            inner.state = state
        fast = name.startswith("Pendulum") and _speed(seen, action) > 8
        seen, reward, *ends, _ = ours.step(action)
        expected, value, *their_ends, _ = theirs.step(action)
        if not fast:  # EnvPool moves the angle with the speed before its limit of 8, gymnasium with the limited one
            apart = max(apart, float(np.abs(seen - expected).max()))
        apart, steps = max(apart, abs(reward - float(value))), steps + 1
        assert ends == their_ends, steps
    assert apart < (1e-3 if robot else 1e-5)
    assert ends[0] == (name in ("Hopper-v5", "InvertedPendulum-v5"))
    assert ends[0] or steps == ours.spec.max_episode_steps


def _speed(seen: Array, action: Array) -> float:
    """Pendulum's speed after a step, without a limit."""
    return abs(float(seen[2] + 0.75 * seen[1] + 0.15 * action[0]))


@pytest.mark.parametrize("name", ["envpool/CartPole-v1", "envpool/WalkerWalk-v1", "envpool/MetaWorld/DoorOpen-v3"])
def test_a_copy_plays_what_the_environment_alone_plays_with_its_seed(name: str) -> None:
    alone, together = make_env(name), make_vector_env(name, 3)
    assert together.single_observation_space == alone.observation_space
    check_spaces(alone.observation_space, alone.action_space, name)
    first, _ = together.reset(seed=[5, 6, 7])  # type: ignore[arg-type]
    again, _ = make_vector_env(name, 3).reset(seed=5)
    np.testing.assert_array_equal(first, again)
    seen, _ = alone.reset(seed=6)
    np.testing.assert_array_equal(first[1], seen)
    assert not np.array_equal(first[0], first[1])
    alone.action_space.seed(0)
    for _ in range(10):
        action = alone.action_space.sample()
        after = together.step(np.stack([action] * 3))
        mine = alone.step(action)
        np.testing.assert_array_equal(after[0][1], mine[0])
        assert after[1][1] == pytest.approx(mine[1])
        if mine[2]:
            break


@pytest.mark.parametrize(("name", "steps"), [("envpool/WalkerWalk-v1", 1000), ("envpool/MetaWorld/DoorOpen-v3", 500)])
def test_the_step_that_starts_an_episode_has_no_reward(name: str, steps: int) -> None:
    env = make_vector_env(name, 1)
    env.reset(seed=0)
    still = np.zeros((1, *env.single_action_space.shape), np.float32)  # type: ignore[misc]
    last = None
    for step in range(steps):
        last, _, terminated, truncated, _ = env.step(still)
        assert (terminated[0], truncated[0]) == (False, step == steps - 1)
    first, reward, _, truncated, _ = env.step(still)
    # EnvPool itself returns 0.024 for the walker here, and 0.56 for the door.
    assert (reward[0], truncated[0]) == (0.0, False)
    assert not np.array_equal(first, last)  # the episode's last observation was its own


def test_parts_come_in_the_order_of_their_names_without_formal_bounds() -> None:
    import envpool

    env = make_env("envpool/WalkerWalk-v1")
    raw = envpool.make("WalkerWalk-v1", env_type="gymnasium", num_envs=1, seed=[3])
    parts, _ = raw.reset()
    wanted = np.concatenate([np.ravel(parts[name]) for name in ("height", "orientations", "velocity")])
    np.testing.assert_allclose(env.reset(seed=3)[0], wanted, rtol=1e-6)
    assert env.observation_space.dtype == np.float32
    assert np.isinf(env.observation_space.low).all()  # type: ignore[attr-defined]
    assert env.spec.max_episode_steps == 1000


def test_each_copy_has_a_seed_of_its_own() -> None:
    env = make_vector_env("envpool/CartPole-v1", 4)
    seeds = seeds_of_copies(env, np.random.SeedSequence(0))
    assert len(set(seeds)) == 4  # type: ignore[arg-type]
    starts, _ = env.reset(seed=seeds)  # type: ignore[arg-type]
    assert len(np.unique(starts, axis=0)) == 4


def test_meta_world_s_success_is_evaluated() -> None:
    result = evaluate("envpool/MetaWorld/Reach-v3", None, episodes=2, seed=0)
    assert result.success_rate in (0.0, 0.5, 1.0)
    assert evaluate("envpool/Pendulum-v1", None, episodes=2, seed=0).success_rate is None


@pytest.mark.parametrize("name", ["WalkerWalk-v1", "EnvPool/walkerwalk-v1", "envpool:WalkerWalk-v1"])
def test_its_task_without_its_prefix_is_recognised(name: str) -> None:
    with pytest.raises(ValueError, match="but EnvPool has envpool/WalkerWalk-v1"):
        make_env(name)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("walker_walk", "envpool/WalkerWalk-v1"),
        ("door-open-v2", "envpool/MetaWorld/DoorOpen-v3"),
        ("metaworld/hammer", "envpool/MetaWorld/Hammer-v3"),
        ("half_cheetah", "envpool/HalfCheetah-v5"),
        ("CartPole", "envpool/CartPole-v1"),
    ],
)
def test_a_task_that_it_lacks_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(SettingError, match=rf"no environment 'envpool/{name}'.* closest names are {nearest}"):
        make_env(f"envpool/{name}")


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("Jumanji/RubiksCube-v0", gym.spaces.MultiDiscrete([6, 1, 3])),
        ("Jumanji/SearchAndRescue-v0", gym.spaces.Box(-1, 1, (4,), np.float32)),
    ],
)
def test_actions_of_other_spaces_reach_it_as_its_own(name: str, space: gym.Space[Any]) -> None:
    import envpool

    env = make_vector_env(f"envpool/{name}", 3)
    raw = envpool.make(name, env_type="gymnasium", num_envs=3, seed=[4, 5, 6])
    assert env.single_action_space == space
    env.reset(seed=4)
    raw.reset()
    env.action_space.seed(0)
    for _ in range(10):
        actions = env.action_space.sample()
        expected = raw.step(actions.reshape(3, *raw.action_space.shape).astype(raw.action_space.dtype))
        np.testing.assert_allclose(env.step(actions)[1], expected[1])


def test_episodes_get_one_length_where_there_is_a_limit() -> None:
    env, plain = make_env("fixed/envpool/CartPole-v1"), make_env("envpool/CartPole-v1")
    env.reset(seed=0)
    plain.reset(seed=0)
    ours = [env.step(0) for _ in range(500)]
    alone = [plain.step(0)]
    while not alone[-1][2]:
        alone.append(plain.step(0))
    assert sum(step[1] for step in ours) == len(alone)
    np.testing.assert_array_equal(ours[-1][0], alone[-1][0])
    assert [step[3] for step in ours] == [False] * 499 + [True]
    for name in ("BabyAI-GoToRedBall-v0", "Catch-v0"):  # EnvPool says 0 and 2147483647
        with pytest.raises(ValueError, match=f"{name} has no time limit"):
            make_env(f"fixed/envpool/{name}")


def test_what_can_t_be_used_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match=r"^envpool/Go9x9-v1 is for 2 players"):
        make_env("envpool/Go9x9-v1")
    with pytest.raises(SettingError, match=r"^EnvPool can't make envpool/CartPole-v1 with .*'wind': 3"):
        make_env("envpool/CartPole-v1", wind=3)
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r"^envpool/CartPole-v1 needs EnvPool: pip install 'rlhf-ray\[envpool\]'"):
        make_env("envpool/CartPole-v1")


def test_options_go_to_a_registered_id_whose_copies_step_together() -> None:
    kind = f"{EnvPoolEnv.__module__}:EnvPool"
    gym.register(
        "ReachSeen-v0",
        f"{kind}Env",
        vector_entry_point=f"{kind}VectorEnv",
        max_episode_steps=500,
        kwargs={"name": "envpool/MetaWorld/Reach-v3", "partially_observable": False},
    )
    alone, together = make_env("ReachSeen-v0"), make_vector_env("ReachSeen-v0", 2)
    assert isinstance(together.unwrapped, EnvPoolVectorEnv)
    assert thread_options("ReachSeen-v0", 2) == {"num_threads": 2}
    seen = together.reset(seed=3)[0]
    np.testing.assert_array_equal(seen[0], alone.reset(seed=3)[0])
    hidden = make_env("envpool/MetaWorld/Reach-v3").reset(seed=3)[0]
    assert (seen[0, 36:39] != 0).any()
    assert (hidden[36:39] == 0).all()


def test_what_envpool_can_t_draw_is_told_in_a_line() -> None:
    env = make_env("envpool/Catch-v0", render_mode="rgb_array")
    env.reset(seed=0)
    with pytest.raises(
        FaultyEnvironmentError, match=r"^EnvPool can't draw envpool/Catch-v0: render not implemented[^\n]*$"
    ):
        env.render()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["envpool/CartPole-v1", "envpool/HalfCheetah-v5"])
def test_it_is_drawn(name: str) -> None:
    code = f"""
import numpy as np
from rlhf_ray.envs import make_env
from rlhf_ray.labelling.camera import Camera, camera_options, without_a_screen
env = without_a_screen(lambda: make_env({name!r}, **camera_options(make_env({name!r}))))
env.reset(seed=0)
frame = Camera(env).frame(None)
print(frame.dtype, frame.shape, len(np.unique(frame)) > 5)
"""
    # In a process of its own: without OpenGL, MuJoCo would end this one.
    shown = run_python(code).stdout
    assert shown.startswith("uint8 (256, 256, 3) True" if "Cheetah" in name else "uint8 ("), shown


def test_threads_change_no_step() -> None:
    played = []
    for threads in (1, 3):
        env = make_vector_env("envpool/HalfCheetah-v5", 3, **thread_options("envpool/HalfCheetah-v5", threads))
        env.reset(seed=3)
        rng = np.random.default_rng(0)
        played.append([env.step(rng.uniform(-1, 1, (3, 6)).astype(np.float32))[:2] for _ in range(50)])
        env.close()  # type: ignore[no-untyped-call]
    for ours, others in zip(*played, strict=True):
        np.testing.assert_array_equal(ours[0], others[0])
        np.testing.assert_array_equal(ours[1], others[1])


@pytest.mark.parametrize(
    ("settings", "cores", "threads"),
    [({}, 8, 8), ({"num_env_runners": 3}, 8, 2), ({"num_env_runners": 3}, 2, 1), ({"env_threads": 5}, 2, 5)],
)
def test_threads_are_the_cores_shared_among_env_runners(settings, cores, threads, monkeypatch):
    monkeypatch.setattr(rlhf_ray.rllib.env_runner, "usable_cores", lambda: cores)
    for agent, group in (("ppo", PPOSettings), ("sac", SACSettings)):
        experiment = Experiment(environment="envpool/WalkerWalk-v1", agent=agent, **{agent: group(**settings)})  # type: ignore[arg-type]
        assert env_threads(experiment) == {"num_threads": threads}
    assert env_threads(Experiment(environment="Pendulum-v1")) == {}
