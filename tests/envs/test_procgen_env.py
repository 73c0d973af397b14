from dataclasses import dataclass, field

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList
from numpy.typing import NDArray

pytest.importorskip("procgen")
from procgen import ProcgenGym3Env
from procgen.env import DISTRIBUTION_MODE_DICT, ENV_NAMES, EXPLORATION_LEVEL_SEEDS

from rlhf_ray.envs import make_env, make_vector_env
from rlhf_ray.envs.procgen import GAMES, ProcgenVectorEnv, modes_of
from rlhf_ray.envs.procgen_state import without_time_limit

STAY, RIGHT, RIGHT_AND_UP = 4, 7, 8


@dataclass
class Episode:
    level: int
    observations: list[NDArray[np.uint8]]
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    level_complete: bool = False


def _roll(envs: ProcgenVectorEnv, seed: int, actions: NDArray[np.int64]) -> list[list[Episode]]:
    """The finished episodes of each sub-environment, taken apart as next-step autoreset says."""
    observations, infos = envs.reset(seed=seed)
    running = [Episode(int(infos["level_seed"][i]), [observations[i].copy()]) for i in range(envs.num_envs)]
    finished: list[list[Episode]] = [[] for _ in running]
    ended = np.zeros(envs.num_envs, np.bool_)
    for batch in actions:
        observations[:] = 77  # What was returned is the caller's to write into.
        observations, rewards, terminations, truncations, infos = envs.step(batch)
        assert not (terminations & truncations).any()
        for i, episode in enumerate(running):
            if ended[i]:
                assert (rewards[i], terminations[i], truncations[i]) == (0, False, False)
                assert infos["_level_seed"][i]
                running[i] = Episode(int(infos["level_seed"][i]), [observations[i].copy()])
                continue
            episode.observations.append(observations[i].copy())
            episode.actions.append(int(batch[i]))
            episode.rewards.append(float(rewards[i]))
            if terminations[i] or truncations[i]:
                assert infos["_level_seed"][i]
                assert infos["_prev_level_complete"][i]
                assert infos["level_seed"][i] == episode.level
                episode.terminated, episode.truncated = bool(terminations[i]), bool(truncations[i])
                episode.level_complete = bool(infos["prev_level_complete"][i])
                finished[i].append(episode)
            else:
                assert not infos or not infos["_level_seed"][i]
        ended = terminations | truncations
    return finished


def _assert_like_untouched_procgen(game: str, mode: str, episode: Episode, cut: bool = False) -> None:
    """Plays the episode's actions in a procgen of one game that nothing of ours has touched; a cut one goes on there."""
    level = {} if mode == "exploration" else {"start_level": episode.level, "num_levels": 1}
    reference = ProcgenGym3Env(num=1, env_name=game, distribution_mode=mode, num_threads=0, **level)
    _, observation, _ = reference.observe()
    assert np.array_equal(observation["rgb"][0], episode.observations[0])
    last = len(episode.actions) - 1
    for step, action in enumerate(episode.actions):
        reference.act(np.array([action]))
        reward, observation, first = reference.observe()
        assert reward[0] == episode.rewards[step]
        assert first[0] == (step == last and not cut)
        if step < last or cut:
            assert np.array_equal(observation["rgb"][0], episode.observations[step + 1])
        elif episode.terminated:
            assert np.array_equal(episode.observations[-2], episode.observations[-1])
    assert cut or reference.get_info()[0]["prev_level_complete"] == episode.level_complete
    reference.close()


def _random_actions(steps: int, num_envs: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(15, size=(steps, num_envs))


@pytest.mark.parametrize("name", ["starpilot-easy", "bigfish-hard", "chaser-extreme", "bossfight-easy"])
def test_terminated_episodes_are_procgens_own(name: str) -> None:
    game, mode = name.split("-")
    episodes = _roll(ProcgenVectorEnv(game, mode, num_envs=5), 1, _random_actions(500, 5))
    assert min(len(of_one) for of_one in episodes) >= 2
    for of_one in episodes:
        for episode in of_one:
            assert episode.terminated
            _assert_like_untouched_procgen(game, mode, episode)


def test_solved_levels_are_procgens_own() -> None:
    actions = np.where(np.random.default_rng(0).random((600, 4)) < 0.6, RIGHT, RIGHT_AND_UP)
    episodes = [one for of_one in _roll(ProcgenVectorEnv("coinrun", "easy", num_envs=4), 2, actions) for one in of_one]
    solved = [episode for episode in episodes if episode.level_complete]
    assert len(solved) >= 3
    assert len(solved) < len([episode for episode in episodes if episode.terminated])
    for episode in episodes:
        assert episode.level_complete == (episode.rewards[-1] == 10)
        assert sum(episode.rewards[:-1]) == 0
        _assert_like_untouched_procgen("coinrun", "easy", episode)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "limit"), [("leaper-easy", 500), ("coinrun-exploration", 1000), ("jumper-memory", 2000)]
)
def test_procgens_time_limit_truncates(name: str, limit: int) -> None:
    game, mode = name.split("-")
    envs = ProcgenVectorEnv(game, mode, num_envs=2)
    for of_one in _roll(envs, 0, np.full((2 * limit + 2, 2), STAY)):
        assert [(len(episode.actions), episode.truncated) for episode in of_one] == [(limit, True)] * 2
        for episode in of_one:
            _assert_like_untouched_procgen(game, mode, episode)


def test_a_truncated_episode_ends_in_its_true_last_frame() -> None:
    envs = ProcgenVectorEnv("starpilot", "easy", num_envs=3, max_episode_steps=11)
    for of_one in _roll(envs, 0, _random_actions(60, 3)):
        cut = [episode for episode in of_one if episode.truncated]
        assert cut
        for episode in cut:
            assert len(episode.actions) == 11
            _assert_like_untouched_procgen("starpilot", "easy", episode, cut=True)


def test_a_seed_makes_everything_reproducible() -> None:
    actions = _random_actions(200, 3)
    envs = ProcgenVectorEnv("starpilot", "easy", num_envs=3)
    first, again, other = (_roll(envs, seed, actions) for seed in (7, 7, 8))
    alone = _roll(ProcgenVectorEnv("starpilot", "easy", num_envs=1), 7, actions[:, :1])
    for ours, theirs in ((first, again), (first[:1], alone)):
        for of_one, same in zip(ours, theirs, strict=True):
            assert len(of_one) == len(same) > 0
            for episode, copy in zip(of_one, same, strict=True):
                assert (episode.level, episode.rewards) == (copy.level, copy.rewards)
                assert np.array_equal(np.stack(episode.observations), np.stack(copy.observations))
    assert first[0][0].level != other[0][0].level


def test_reset_without_seed_goes_on_to_other_levels() -> None:
    envs = ProcgenVectorEnv("maze", "easy", num_envs=4)
    levels = [tuple(envs.reset(seed=0)[1]["level_seed"]), *(tuple(envs.reset()[1]["level_seed"]) for _ in range(3))]
    assert len(set(levels)) == 4
    _, _, _, truncations, _ = envs.step(np.full(4, STAY))
    assert not truncations.any()


def test_levels_are_those_asked_for() -> None:
    envs = ProcgenVectorEnv("maze", "easy", num_envs=8, start_level=40, num_levels=3, max_episode_steps=1)
    levels = set(envs.reset(seed=0)[1]["level_seed"].tolist())
    for step in range(20):
        infos = envs.step(np.full(8, STAY))[4]
        assert infos["_level_seed"].all()
        assert ("_prev_level_complete" in infos) == (step % 2 == 0)
        levels |= set(infos["level_seed"].tolist())
    assert levels == {40, 41, 42}


def test_sequential_levels_go_on_within_the_episode() -> None:
    actions = np.where(np.random.default_rng(0).random((1500, 4)) < 0.6, RIGHT, RIGHT_AND_UP)
    envs = ProcgenVectorEnv("coinrun", "easy", num_envs=4, use_sequential_levels=True)
    envs.reset(seed=2)
    solved = 0
    for batch in actions:
        _, rewards, terminations, _, infos = envs.step(batch)
        solved += int((rewards == 10).sum())
        assert not terminations[rewards == 10].any()
        if "_prev_level_complete" in infos:
            assert not infos["prev_level_complete"].any()
    assert solved >= 3


def test_vector_interface() -> None:
    envs = make_vector_env("procgen/coinrun-hard", 3, num_levels=10)
    assert isinstance(envs, ProcgenVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    listing = DictInfoToList(envs)  # RLlib wraps every vector environment in it.
    observations, infos = listing.reset(seed=0)
    assert [set(info) for info in infos] == [{"level_seed"}] * 3
    assert observations in envs.observation_space
    assert envs.single_observation_space.shape == (64, 64, 3)
    observations, rewards, terminations, truncations, _ = envs.step(envs.action_space.sample())
    assert observations in envs.observation_space
    assert rewards.shape == terminations.shape == truncations.shape == (3,)
    assert terminations.dtype == truncations.dtype == np.bool_
    envs.close()
    envs.close()
    for use in (lambda: envs.step(np.zeros(3, np.int64)), envs.reset):
        with pytest.raises(ResetNeeded):
            use()


@pytest.mark.parametrize("actions", [[0, 1], [0, 1, 15], [0, -1, 2], [[0, 1, 2]]])
def test_wrong_actions(actions: list[int]) -> None:
    envs = ProcgenVectorEnv("coinrun", "easy", num_envs=3)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"3 integers in 0\.\.14"):
        envs.step(np.array(actions))


def test_single_env_is_a_gymnasium_env() -> None:
    env = make_env("procgen/bigfish-easy", max_episode_steps=40)
    check_env(env, skip_render_check=True)
    _, info = env.reset(seed=3)
    levels = {info["level_seed"]}
    for _ in range(5):
        terminated = truncated = False
        while not (terminated or truncated):
            _, reward, terminated, truncated, info = env.step(STAY)
            assert isinstance(reward, float)
        assert set(info) == {"level_seed", "prev_level_complete"}
        assert info["level_seed"] in levels
        with pytest.raises(ResetNeeded):
            env.step(STAY)
        levels.add(env.reset()[1]["level_seed"])
    assert len(levels) == 6
    env.close()
    env.close()


def test_single_and_vector_env_play_the_same() -> None:
    env, envs = make_env("procgen/starpilot-easy"), make_vector_env("procgen/starpilot-easy", 1)
    frame, _ = env.reset(seed=5)
    assert np.array_equal(frame, envs.reset(seed=5)[0][0])
    ends = 0
    for (action,) in _random_actions(300, 1):
        frame, reward, terminated, truncated, _ = env.step(action)
        frames, rewards, terminations, truncations, _ = envs.step(np.array([action]))
        assert np.array_equal(frame, frames[0])
        assert (reward, terminated, truncated) == (rewards[0], terminations[0], truncations[0])
        if terminated or truncated:
            ends += 1
            assert np.array_equal(env.reset()[0], envs.step(np.array([action]))[0][0])
    assert ends >= 2


def test_render_gives_large_frames_of_the_same_moment() -> None:
    env = make_env("procgen/starpilot-easy", render_mode="rgb_array")
    env.reset(seed=0)
    terminated = False
    while not terminated:
        previous = env.render()
        observation, _, terminated, _, _ = env.step(STAY)
        frame = env.render()
        assert frame.shape == (512, 512, 3)
        small = frame.reshape(64, 8, 64, 8, 3).mean(axis=(1, 3))
        assert np.abs(small - observation).mean() < 8
    assert np.array_equal(frame, previous)
    assert make_env("procgen/starpilot-easy").render() is None


def test_games_and_modes_are_procgens() -> None:
    assert list(GAMES) == ENV_NAMES
    assert {mode for game in GAMES for mode in modes_of(game)} == set(DISTRIBUTION_MODE_DICT)
    assert {game for game in GAMES if "exploration" in modes_of(game)} == set(EXPLORATION_LEVEL_SEEDS)


@pytest.mark.parametrize("name", [f"{game}-{mode}" for game in GAMES for mode in modes_of(game)])
def test_every_game_starts_and_keeps_its_limit_lifted(name: str) -> None:
    game, mode = name.split("-")
    envs = ProcgenVectorEnv(game, mode, num_envs=1, max_episode_steps=1)
    envs.reset(seed=0)
    for _ in range(4):
        envs.step(np.array([STAY]))
    assert without_time_limit(envs._native.get_state(), game)[0] == 2**30
    envs.close()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"game": "pong"}, "bigfish, bossfight"),
        ({"distribution_mode": "memory"}, "coinrun has easy, hard, exploration"),
        ({"start_level": 5}, "Set num_levels above 0"),
        ({"start_level": -1, "num_levels": 1}, "negative"),
        ({"start_level": 2**31 - 1, "num_levels": 1}, r"2\*\*31"),
        ({"distribution_mode": "exploration", "num_levels": 1}, "Leave both at 0"),
        ({"num_envs": 0}, "num_envs=0"),
        ({"max_episode_steps": 0}, "max_episode_steps=0"),
        ({"render_mode": "human"}, "rgb_array"),
        ({"background": False}, "procgen has no option background.*use_backgrounds"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ProcgenVectorEnv(**{"game": "coinrun", **settings})


def test_partial_resets_are_refused() -> None:
    envs = ProcgenVectorEnv("coinrun", "easy", num_envs=2)
    with pytest.raises(ValueError, match="reset_mask"):
        envs.reset(options={"reset_mask": np.array([True, False])})


@pytest.mark.parametrize("state", [b"", b"\x00" * 8, b"\x01" + b"\x00" * 200, b"\x00" * 400])
def test_an_unknown_layout_of_the_state_is_told(state: bytes) -> None:
    with pytest.raises(RuntimeError, match=r"procgen-mirror==0\.10\.7"):
        without_time_limit([state], "coinrun")
