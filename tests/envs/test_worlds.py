"""The worlds of examples/worlds: levels, states, edits, and the rules of each."""

import gymnasium
import numpy as np
import pytest

from examples.worlds import WORLDS as FILES
from examples.worlds import CueRunBatch
from examples.worlds.planted import AGENT_COLOUR, COIN_COLOUR, DISTRACTOR_COLOURS
from examples.worlds.runner import BEHIND, STANDING
from examples.worlds.score_shortcut import ScoreShortcut
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import make_batch, make_env, make_vector_env
from tests.envs.worlds import world

WORLDS = [f"rlhf_ray/{name}-v0" for name in FILES]
MINIRUN, CUERUN, BOUNCE = WORLDS
worlds = pytest.mark.parametrize("name", WORLDS)


def _play(batch, levels, steps, seed):
    """Random actions, one row of a fixed table for each copy."""
    batch.reset(levels)
    table = np.random.default_rng(seed).integers(batch.action_space.n, size=(steps, len(levels)))
    return [batch.step(actions) for actions in table], table


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


def test_a_module_s_batch_is_found_by_its_name() -> None:
    batch = make_batch(f"examples.worlds:{CUERUN}", 2)
    assert type(batch) is CueRunBatch
    assert batch.n == 2


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


@worlds
def test_the_single_environment_is_a_gymnasium_environment(name):
    env = make_env(name)
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
def test_the_vector_environment_resets_on_the_next_step(name):
    envs = make_vector_env(name, 8, max_episode_steps=9)
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


def test_bad_input_is_refused_in_one_line():
    with pytest.raises(SettingError, match="number of copies"):
        make_batch(WORLDS[0], 0)
    with pytest.raises(SettingError, match="max_episode_steps of"):
        make_batch(WORLDS[0], 1, max_episode_steps=0)
    batch = make_batch(WORLDS[0], 2)
    with pytest.raises(SettingError, match="1 levels are given for 2 copies"):
        batch.reset([1])
    with pytest.raises(SettingError, match="levels are seeds, at least 0"):
        batch.reset([1, -1])
    for actions in ([0], [0, 5], [-1, 0]):
        with pytest.raises(ValueError, match=r"must be 2 integers in 0\.\.4"):
            batch.step(np.array(actions))


LEFT, RIGHT, NOOP, JUMP, JUMP_RIGHT = range(5)


def _level(n=1, *, saws=(), pits=(), coin=20, x=6):
    """Copies of one level, drawn by hand."""
    batch = make_batch(MINIRUN, n)
    state = batch.state
    state["saw"], state["pit"], state["coin"], state["x"] = False, False, coin, x
    state["saw"][:, list(saws)] = state["pit"][:, list(pits)] = True
    return batch


def _go(batch, *actions):
    for action in actions:
        step = batch.step(np.full(batch.n, action))
    return step


def test_the_two_frames_at_the_top_of_a_jump_look_alike_and_so_do_rising_and_falling():
    batch = _level(saws=[9], pits=[4])
    frames = [_go(batch, action).observations[0] for action in (JUMP, NOOP, NOOP, NOOP, NOOP)]
    np.testing.assert_array_equal(frames[1], frames[2])
    np.testing.assert_array_equal(frames[0], frames[3])
    assert (frames[0] != frames[1]).any()
    assert (frames[4] != frames[3]).any()


@pytest.mark.parametrize(
    ("level", "actions", "cause", "reward"),
    [
        ({"saws": [7]}, [RIGHT], "saw", 0),
        ({"pits": [7]}, [RIGHT], "pit", 0),
        ({"pits": [7, 8]}, [JUMP_RIGHT, RIGHT, RIGHT, RIGHT, RIGHT], "", 0),
        ({"saws": [11]}, [JUMP_RIGHT, RIGHT, RIGHT, RIGHT, RIGHT], "saw", 0),
        ({"saws": [11]}, [JUMP_RIGHT, RIGHT, RIGHT, RIGHT, NOOP], "", 0),
        ({"coin": 7}, [RIGHT], "coin", 10),
        ({"coin": 8}, [JUMP_RIGHT, JUMP_RIGHT], "coin", 10),
        ({}, [NOOP] * 60, "timeout", 0),
    ],
)
def test_what_ends_an_episode(level, actions, cause, reward):
    batch = _level(**level)
    step = _go(batch, *actions)
    assert (list(step.causes), step.rewards.tolist()) == ([cause], [reward])
    assert bool(step.truncated[0]) == (cause == "timeout")
    assert bool(step.terminated[0]) == (cause in ("saw", "pit", "coin"))


def test_describe_agrees_with_the_picture():
    batch = make_batch(MINIRUN, 200)
    batch.reset(range(200))
    rng = np.random.default_rng(0)
    for _ in range(10):
        about, masks = batch.describe(), batch.masks()
        near = slice(2 * (BEHIND + 1), 2 * (BEHIND + 4))
        going = np.array([not cause for cause in batch.ended_by()])
        for kind in ("saw", "pit"):
            np.testing.assert_array_equal(about[f"{kind}_ahead"][going], masks[kind][:, :, near].any((1, 2))[going])
        shown = masks["coin"].any((1, 2))
        np.testing.assert_array_equal(about["coin_visible"][going], shown[going])
        column = masks["coin"].any(1).argmax(1) // 2 - BEHIND
        np.testing.assert_array_equal(about["coin_distance"][going & shown], column[going & shown])
        row = masks["agent"].any(2).argmax(1) // 2
        np.testing.assert_array_equal(about["height"][going], (STANDING - row)[going])
        batch.step(batch.expert(rng))


@pytest.mark.parametrize(
    ("edit", "field", "before", "after"),
    [
        ("remove_saw", "saw", [5, 9, 11], [5, 11]),
        ("remove_pit", "pit", [4, 7, 8, 10], [4, 10]),
        ("remove_saw", "saw", [5, 6, 12], [5, 6, 12]),
        ("remove_pit", "pit", [12, 13], [12, 13]),
    ],
)
def test_removing_takes_the_nearest_in_view_and_nothing_else(edit, field, before, after):
    batch = _level(**{f"{field}s": before})
    old = batch.state.copy()
    seen = batch.masks()[field].copy()
    frames = [batch.observe(), batch.edit(edit)]
    assert np.flatnonzero(batch.state[field][0]).tolist() == after
    for name in batch.state.dtype.names:
        if name != field:
            np.testing.assert_array_equal(batch.state[name], old[name])
    assert not (frames[0] != frames[1]).any(-1)[~seen].any()


def _twins(n=64):
    """The same levels twice, the second time with the other cue."""
    one, two = make_batch(CUERUN, n), make_batch(CUERUN, n)
    one.reset(range(n))
    two.reset(range(n))
    two.edit("flip_cue")
    return one, two


def test_after_two_steps_nothing_shows_the_cue():
    one, two = _twins()
    rng = np.random.default_rng(0)
    for step in range(12):
        same = (one.observe() == two.observe()).all((1, 2, 3))
        going = (one.state["end"] == 0) & (two.state["end"] == 0)
        assert same[going].all() if step >= 2 else not same.any()
        assert (one.describe()["cue_visible"] == (step < 2)).all()
        actions = rng.integers(3, size=64)
        one.step(actions)
        two.step(actions)
    assert going.any()


def test_the_cue_decides_which_way_through_a_gate_is_right():
    for red in (False, True):
        batch = make_batch(CUERUN, 4)
        batch.state["red"], batch.state["gates"] = red, False
        batch.state["gates"][:2, 5], batch.state["gates"][2:, [4, 9]] = True, True
        batch.state["x"] = 3
        first = batch.step(np.array([1, 2, 1, 2]))
        second = batch.step(np.full(4, 1))
        assert list(first.causes) == (["", "", "first_gate", ""] if red else ["", "", "", "first_gate"])
        assert list(second.causes)[:2] == (["first_gate", ""] if red else ["", "first_gate"])


def test_edits_do_what_they_say_and_nothing_else():
    batch = make_batch(CUERUN, 64)
    batch.reset(range(64))
    old, frames, masks = batch.state.copy(), batch.observe(), batch.masks()
    flipped = batch.edit("flip_cue")
    cue = masks["red"] | masks["blue"]
    assert (batch.state["red"] != old["red"]).all()
    np.testing.assert_array_equal((flipped != frames).any(-1), cue)
    np.testing.assert_array_equal(batch.edit("flip_cue"), frames)
    assert batch.state.tobytes() == old.tobytes()
    hidden = batch.edit("hide_cue")
    assert not (batch.masks()["red"] | batch.masks()["blue"]).any()
    assert not (hidden != frames).any(-1)[~cue].any()
    np.testing.assert_array_equal(batch.describe()["cue"], old["red"])
    batch.step(np.zeros(64, int))
    assert not (batch.masks()["red"] | batch.masks()["blue"]).any()


def test_the_enemy_bounces_and_is_back_after_14_steps():
    batch = make_batch(BOUNCE, 64)
    batch.reset(range(64))
    first, places = batch.state["enemy"].copy(), []
    for _ in range(14):
        batch.step(np.zeros(64, int))
        places.append(batch.state["enemy"].copy())
    np.testing.assert_array_equal(places[-1], first)
    moves = np.abs(np.diff(places, axis=0))
    assert (moves == 1).all()


def test_a_taken_coin_reappears_at_the_point_opposite_and_the_enemy_costs():
    batch = make_batch(BOUNCE, 2)
    batch.state["agent"], batch.state["coin"] = (3, 3), (3, 4)
    batch.state["enemy"], batch.state["velocity"] = (2, 3), (1, 1)
    step = batch.step(np.array([2, 3]))
    assert step.rewards.tolist() == [0, 0]  # coin and enemy at once; neither
    assert batch.state["coin"].tolist() == [[4, 3], [3, 4]]
    batch.edit("remove_enemy", np.array([True, False]))
    assert batch.masks()["enemy"].any((1, 2)).tolist() == [False, True]
    assert np.isnan(batch.describe()["enemy_row"]).tolist() == [True, False]
    batch.edit("move_coin")
    assert batch.state["coin"].tolist() == [[3, 4], [4, 3]]
    batch.state["enemy"], batch.state["velocity"], batch.state["agent"] = (0, 0), (1, 1), (1, 1)
    assert batch.step(np.zeros(2, int)).rewards.tolist() == [0, -1]


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
