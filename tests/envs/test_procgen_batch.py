"""Procgen as a batch: levels by seed as procgen draws them, exact states, and edits that change what they say."""

import numpy as np
import pytest

from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import make_batch, make_env
from rlhf_ray.envs.procgen_batch import ProcgenBatch
from rlhf_ray.envs.procgen_state import GameState
from tests.envs.test_gym_batch import check_states

pytest.importorskip("procgen")

LEVELS = [3, 14, 15, 92, 65, 35]
RIGHT, RIGHT_UP = 7, 8


@pytest.fixture(scope="module")
def hard() -> ProcgenBatch:
    return ProcgenBatch("procgen/coinrun-hard", len(LEVELS))


def at_30(batch: ProcgenBatch) -> list[bytes]:
    """States after 30 steps to the right, partly jumping."""
    rng = np.random.default_rng(1)
    batch.reset(LEVELS)
    for _ in range(30):
        batch.step(np.where(rng.random(len(LEVELS)) < 0.7, RIGHT_UP, RIGHT))
    return batch.states()


def test_an_episode_is_that_of_procgens_own_level(hard: ProcgenBatch) -> None:
    """The same frames and rewards as an environment that has only this level, and a copy that ended stands still."""
    levels = LEVELS[:2]
    envs = [make_env("procgen/coinrun-hard", start_level=level, num_levels=1) for level in levels]
    actions = np.random.default_rng(0).choice([RIGHT, RIGHT_UP, 0], size=(120, len(LEVELS)))
    seen = hard.reset(LEVELS)
    for i, env in enumerate(envs):
        np.testing.assert_array_equal(env.reset(seed=0)[0], seen[i])
    over = np.zeros(len(levels), bool)
    for t in range(120):
        step = hard.step(actions[t])
        for i in np.flatnonzero(~over):
            frame, reward, terminated, truncated, _ = envs[i].step(actions[t, i])
            np.testing.assert_array_equal(frame, step.observations[i])
            assert (reward, terminated, truncated) == (step.rewards[i], step.terminated[i], step.truncated[i])
            over[i] = terminated
    assert over.any()
    assert all(step.causes[i] in ("saw", "enemy", "lava", "coin") for i in np.flatnonzero(over))
    again = hard.step(actions[0])
    np.testing.assert_array_equal(again.observations[:2][over], step.observations[:2][over])
    assert not again.rewards[:2][over].any()


@pytest.mark.parametrize("name", ["procgen/coinrun-easy", "procgen/starpilot-hard", "procgen/jumper-memory"])
def test_restored_states_repeat_everything(name: str) -> None:
    batch = check_states(name, before=20, after=30)
    assert batch.describe()["agent_x"].shape == (3,)
    if "coinrun" not in name:
        assert batch.masks() == {}
        with pytest.raises(SettingError, match="has no edit 'remove_saws'; of procgen's games, coinrun has edits"):
            batch.edit("remove_saws")
    batch.close()


def test_an_edit_changes_the_image_where_the_object_is_and_nowhere_else(hard: ProcgenBatch) -> None:
    states = at_30(hard)
    before, masks = hard.restore(states), hard.masks()
    ahead = hard.describe()
    for name, kind in (
        ("remove_saws", "saw"),
        ("remove_enemies", "enemy"),
        ("remove_crates", "crate"),
        ("remove_coin", "coin"),
    ):
        hard.restore(states)
        changed = (hard.edit(name) != before).any(-1)
        assert (changed.any((1, 2)) == masks[kind].any((1, 2))).all()
        near = np.pad(masks[kind], ((0, 0), (1, 1), (1, 1)))
        grown = near[:, :-2, 1:-1] | near[:, 2:, 1:-1] | near[:, 1:-1, :-2] | near[:, 1:-1, 2:] | masks[kind]
        if kind != "enemy":  # an enemy's trail goes beyond it
            assert not (changed & ~grown).any()
        assert not hard.masks()[kind].any()
    hard.restore(states)
    only = np.arange(len(LEVELS)) == int(np.flatnonzero(ahead["saw_distance"] < 9)[0])
    changed = (hard.edit("remove_saw", only) != before).any((1, 2, 3))
    np.testing.assert_array_equal(changed, only)
    hard.restore(states)
    hard.edit("add_saw")
    assert (hard.masks()["saw"].sum((1, 2)) > masks["saw"].sum((1, 2))).sum() >= 3
    hard.restore(states)
    hard.edit("move_coin")
    moved = hard.describe()["coin_distance"] < ahead["coin_distance"]
    assert moved.sum() >= 4
    with pytest.raises(SettingError, match="has no edit 'remove_moon'; choose from remove_saw"):
        hard.edit("remove_moon")


def test_edited_levels_are_played_on(hard: ProcgenBatch) -> None:
    """Whoever runs into a saw doesn't without saws, and nobody wins without a coin; unedited, all goes on as before."""
    states = at_30(hard)
    ends: dict[str, list[str]] = {}
    for name in (None, "remove_saws", "add_saw", "remove_coin"):
        hard.restore(states)
        if name is not None:
            hard.edit(name)
        for _ in range(40):
            step = hard.step(np.full(len(LEVELS), RIGHT))
        ends[name or "nothing"] = list(step.causes)
    assert ends["nothing"].count("saw") >= 1
    assert ends["nothing"].count("coin") >= 2
    assert "saw" not in ends["remove_saws"]
    assert ends["add_saw"].count("saw") > ends["nothing"].count("saw")
    assert "coin" not in ends["remove_coin"]
    for i, end in enumerate(ends["nothing"]):
        if end == "coin":
            assert ends["remove_saws"][i] == "coin"


def test_a_level_that_cannot_be_chosen_is_one_line() -> None:
    for options in (
        {"name": "procgen/coinrun-exploration"},
        {"name": "procgen/coinrun-easy", "use_sequential_levels": True},
    ):
        with pytest.raises(SettingError, match="can't play a given level"):
            make_batch(n=1, **options)
    batch = make_batch("procgen/maze-easy", 1)
    with pytest.raises(SettingError, match="level -1 of procgen/maze-easy"):
        batch.reset([-1])
    batch.reset([0])
    with pytest.raises(SettingError, match="they must be from 0 to 14"):
        batch.step(np.array([-1]))
    batch.close()
    with pytest.raises(RuntimeError, match=r"doesn't have the layout of version 0\.10"):
        GameState.parse(b"\0" * 300)


def test_a_time_limit_truncates_with_the_true_last_frame() -> None:
    batch = ProcgenBatch("procgen/maze-easy", 1, max_episode_steps=3)
    batch.reset([1])
    for _ in range(3):
        step = batch.step(np.array([4]))
    assert (step.truncated.all(), step.terminated.any(), list(step.causes)) == (True, False, ["timeout"])
    saved = batch.states()
    batch.step(np.array([4]))
    assert batch.states() == saved  # it stands still
    batch.close()
