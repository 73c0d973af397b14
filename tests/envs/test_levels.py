"""The worlds made for asking: what holds for each of them."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from examples.worlds.levels import uniform
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import make_batch, make_env, make_vector_env, steps_together

WORLDS = ("rlhf_ray/MiniRun-v0", "rlhf_ray/CueRun-v0", "rlhf_ray/StaticBounce-v0")
worlds = pytest.mark.parametrize("name", WORLDS)


def _play(batch, levels, steps, seed):
    """Random actions, one row of a fixed table for each copy."""
    batch.reset(levels)
    table = np.random.default_rng(seed).integers(batch.action_space.n, size=(steps, len(levels)))
    return [batch.step(actions) for actions in table], table


@worlds
def test_a_restored_copy_repeats_everything_wherever_it_is_in_the_batch(name):
    batch, other = make_batch(name, 32), make_batch(name, 32)
    _play(batch, range(100, 132), 7, seed=0)  # some have ended, some are in the air
    assert len(set(batch.state["step"].tolist())) > (1 if batch.causes else 0)
    states, order = batch.states(), np.random.default_rng(1).permutation(32)
    other.restore([states[i] for i in order])
    np.testing.assert_array_equal(other.observe(), batch.observe()[order])
    for actions in np.random.default_rng(2).integers(batch.action_space.n, size=(60, 32)):
        one, two = batch.step(actions), other.step(actions[order])
        np.testing.assert_array_equal(two.observations, one.observations[order])
        np.testing.assert_array_equal(two.rewards, one.rewards[order])
        np.testing.assert_array_equal(two.terminated, one.terminated[order])
        np.testing.assert_array_equal(two.truncated, one.truncated[order])
        assert list(two.causes) == [one.causes[i] for i in order]
    assert other.states() == [batch.states()[i] for i in order]


@worlds
def test_a_level_is_the_same_alone_and_in_any_batch(name):
    many, _ = make_batch(name, 9), None
    steps, table = _play(many, range(40, 49), 30, seed=3)
    for row in (0, 5):
        alone = make_batch(name, 1)
        first = alone.reset([40 + row])
        np.testing.assert_array_equal(first[0], make_env(name).reset(seed=40 + row)[0])
        for step, actions in zip(steps, table, strict=True):
            np.testing.assert_array_equal(alone.step(actions[[row]]).observations[0], step.observations[row])


@worlds
def test_masks_say_what_each_pixel_shows(name):
    batch, rng, seen = make_batch(name, 16), np.random.default_rng(4), set()
    batch.reset(range(16))
    for _ in range(12):
        frames, masks = batch.observe(), batch.masks()
        assert (sum(mask.astype(int) for mask in masks.values()) == 1).all()
        for kind, colours in batch.kinds.items():
            palette = np.unique(np.reshape(colours, (-1, 3)), axis=0)
            pixels = frames[masks[kind]]
            assert (pixels[:, None] == palette[None]).all(2).any(1).all(), kind
            seen |= {kind} if len(pixels) else set()
        assert (masks["agent"].sum((1, 2)) == 4).all()
        batch.step(batch.expert(rng))
    assert seen == set(batch.kinds)


@worlds
def test_an_ended_copy_stands_still(name):
    batch = make_batch(name, 16)
    _play(batch, range(16), 60, seed=5)
    before, frames = batch.states(), batch.observe()
    last = batch.step(np.zeros(16, int))
    assert (last.terminated | last.truncated).all()
    assert not last.rewards.any()
    assert batch.states() == before
    np.testing.assert_array_equal(last.observations, frames)
    for edit in batch.edits:
        batch.edit(edit)
    assert batch.states() == before


@worlds
def test_the_scripted_player_wins(name):
    batch, rng = make_batch(name, 16), np.random.default_rng(6)
    batch.reset(range(16))
    total = sum(batch.step(batch.expert(rng)).rewards for _ in range(60))
    assert (total == 10).all() if batch.causes else total.mean() > 5


@worlds
def test_edits_touch_only_their_rows(name):
    batch, rows = make_batch(name, 8), np.arange(8) % 2 == 0
    for edit, does in batch.edits.items():
        assert does.endswith(".")
        batch.reset(range(8))
        before = batch.states()
        batch.edit(edit, rows)
        changed = [state != old for state, old in zip(batch.states(), before, strict=True)]
        assert not any(np.array(changed)[~rows]), edit
    with pytest.raises(SettingError, match="has no edit 'fly'; choose from"):
        batch.edit("fly")


@worlds
def test_foreign_states_are_refused_in_one_line(name):
    batch = make_batch(name, 1)
    other = make_batch(WORLDS[(WORLDS.index(name) + 1) % 3], 1)
    longer = make_batch(name, 1, max_episode_steps=99)
    for foreign in (other.states()[0], longer.states()[0], b"", batch.states()[0] + b"\0"):
        with pytest.raises(SettingError, match="A state is of") as raised:
            batch.restore([foreign])
        assert "\n" not in str(raised.value)
    with pytest.raises(SettingError, match="2 states are given for 1 copies"):
        batch.restore(batch.states() * 2)
    header = batch.states()[0].partition(b"\n")[0].decode().split(" ", 2)
    assert (header[0], header[1], json.loads(header[2])["max_episode_steps"]) == (name, "1", batch.max_episode_steps)


@worlds
def test_the_single_environment_is_a_gymnasium_environment(name):
    env = make_env(name)
    check_env(env.unwrapped, skip_render_check=True)
    assert gymnasium.make(name, render_mode="rgb_array").render_mode == "rgb_array"
    env.reset(seed=3)
    world = env.unwrapped
    state, mask = world.get_state(), world.masks()
    assert {values.shape for values in mask.values()} == {(16, 16)}
    assert all(isinstance(value, float) for value in world.describe().values())
    rng, total, ended = np.random.default_rng(0), 0.0, False
    frames = []
    while not ended:
        frame, reward, terminated, truncated, info = env.step(world.expert(rng))
        frames.append(frame)
        total, ended = total + reward, terminated or truncated
    assert total > 0
    assert info["level_seed"] == 3
    assert info["cause"] in (*world.batch.causes, "timeout")
    world.set_state(state)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(np.stack([env.step(world.expert(rng))[0] for _ in frames]), np.stack(frames))


@worlds
def test_pictures_are_large_enough_for_people(name):
    env = make_env(name, render_mode="rgb_array")
    frame, _ = env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (256, 256, 3)
    np.testing.assert_array_equal(picture[8::16, 8::16], frame)


@worlds
def test_the_vector_environment_resets_on_the_next_step(name):
    assert steps_together(name)
    envs = make_vector_env(name, 8, max_episode_steps=9)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observations, infos = envs.reset(seed=50)
    assert infos["level_seed"].tolist() == list(range(50, 58))
    rng, before, ends = np.random.default_rng(0), np.zeros(8, bool), 0
    for _ in range(60):
        shown = observations
        observations, rewards, terminated, truncated, infos = envs.step(rng.integers(2, size=8))
        ended = terminated | truncated
        assert not rewards[before].any()
        assert not ended[before].any()
        if before.any():
            assert infos["_level_seed"][before].all()
            first = make_batch(name, int(before.sum()), max_episode_steps=9).reset(infos["level_seed"][before].tolist())
            np.testing.assert_array_equal(observations[before], first)
        if ended.any():
            assert all(bool(cause) == end for cause, end in zip(infos["cause"], ended, strict=True))
            assert infos["_cause"].tolist() == ended.tolist()
        assert shown is not observations
        before, ends = ended, ends + int(ended.sum())
    assert ends > 20


@worlds
def test_sub_environments_play_the_same_levels_in_any_number(name):
    def levels(num_envs):
        envs = make_vector_env(name, num_envs, max_episode_steps=3)
        seeds = [envs.reset(seed=9)[1]["level_seed"]]
        for _ in range(16):
            *_, infos = envs.step(np.zeros(num_envs, int))
            seeds.append(infos.get("level_seed", np.zeros(num_envs)))
        return np.stack(seeds)

    np.testing.assert_array_equal(levels(5)[:, :2], levels(2))


def test_bad_input_is_refused_in_one_line():
    with pytest.raises(SettingError, match="number of copies"):
        make_batch(WORLDS[0], 0)
    with pytest.raises(SettingError, match="max_episode_steps of"):
        make_batch(WORLDS[0], 1, max_episode_steps=0)
    with pytest.raises(SettingError, match="render_mode of"):
        make_vector_env(WORLDS[0], 2, render_mode="human")
    batch = make_batch(WORLDS[0], 2)
    with pytest.raises(SettingError, match="1 levels are given for 2 copies"):
        batch.reset([1])
    with pytest.raises(SettingError, match="levels are seeds, at least 0"):
        batch.reset([1, -1])
    for actions in ([0], [0, 5], [-1, 0]):
        with pytest.raises(ValueError, match=r"must be 2 integers in 0\.\.4"):
            batch.step(np.array(actions))


def test_uniform_numbers_are_uniform_and_independent_of_neighbouring_seeds():
    drawn = uniform(np.arange(20_000), 4)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.histogram(drawn[:, 2], 20, (0, 1))[0]
    assert abs(counts - 1000).max() < 150
    assert abs(np.corrcoef(np.c_[drawn[:-1], drawn[1:]].T) - np.eye(8)).max() < 0.03
