import contextlib
import json

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.rollout import rollout
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs import make_env
from rlhf_ray.envs.gridworld import AGENT, GOAL, OBJECTS
from rlhf_ray.interpret.effects import edits
from rlhf_ray.interpret.effects.edits import Add, Duplicate, Fill, Move, Remove, SetTo, check, edited
from rlhf_ray.interpret.reward.counterfactuals import Counterfactual, evaluate, evaluate_folder, read_edits
from rlhf_ray.interpret.reward.steps import counterfactuals as section
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward
from tests.interpret.contexts import run_step, steps_of, why_not

NAME = "rlhf_ray/CoinFlip-v0"
ENV = make_env(NAME).unwrapped


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    runs = [rollout(ENV, lambda seen: ENV.expert(rng), steps=60, seed=seed) for seed in range(40)]
    return Transitions.of_trajectories([run.trajectory for run in runs])


absence = CallableReward(lambda o, a, p, d: 1.0 - (p == GOAL).sum(1), ENV.observation_space, ENV.action_space)


def apply(steps, *changes):
    return edited(steps, changes, np.random.default_rng(0))[0]


def test_edits_of_grids_change_objects_and_nothing_else(data):
    steps = data[data.rewards == 0]
    assert not (apply(steps, Remove(GOAL)).observations == GOAL).any()
    assert (apply(steps, Remove(GOAL, when="next_state")).observations == steps.observations).all()
    added = apply(steps, Add(GOAL, count=2))
    new = (added.observations == GOAL) & (steps.observations != GOAL)
    assert (new.sum(1) == 2).all()
    assert (new == ((added.next_observations == GOAL) & (steps.next_observations != GOAL))).all()  # same places in both
    assert (steps.observations[new] == 0).all()
    moved = apply(steps, Move(AGENT, to=60))
    assert (np.argwhere(moved.next_observations == AGENT)[:, 1] == 60).all()
    somewhere = apply(steps, Move(AGENT))
    assert ((somewhere.observations == AGENT).sum(1) == 1).all()
    assert ((somewhere.observations == AGENT) != (steps.observations == AGENT)).any(1).all()
    swapped = apply(steps, edits.Swap(AGENT, GOAL))
    assert ((swapped.observations == AGENT) == (steps.observations == GOAL)).all()
    none_left = apply(steps, Remove(GOAL))
    assert (apply(none_left, Duplicate(GOAL)).observations == none_left.observations).all()
    assert ((apply(steps, Duplicate(GOAL)).observations == GOAL).sum(1) == 2).all()


def test_edits_of_images_and_vectors():
    images = np.random.default_rng(0).integers(0, 255, (3, 16, 16, 2)).astype(np.uint8)
    steps = steps_of(images)
    filled = apply(steps, Fill((0, 4), (2, 5), (7.0, 9.0), when="state"))
    assert (filled.observations[:, 0:4, 2:5] == (7, 9)).all()
    assert (filled.observations[:, 4:] == images[:, 4:]).all()
    assert (filled.next_observations == images).all()
    copied = apply(steps, edits.Copy((0, 4), (0, 4), (14, 3))).observations
    assert (copied[:, 14:, 3:7] == images[:, :2, :4]).all()
    blurred = apply(steps, edits.Blur((4, 12), (4, 12))).observations
    assert blurred[:, 6:10, 6:10].std() < 0.5 * images[:, 6:10, 6:10].std()
    assert (blurred[:, :4] == images[:, :4]).all()
    vectors = np.arange(9, dtype=np.float32).reshape(3, 3)
    steps = steps_of(vectors)
    assert (apply(steps, SetTo(1, 5.0)).next_observations[:, 1] == 5).all()
    exchanged = apply(steps, edits.Exchange(2)).observations
    assert sorted(exchanged[:, 2]) == sorted(vectors[:, 2])
    assert (exchanged[:, :2] == vectors[:, :2]).all()


def test_expected_and_given_rewards(data):
    cases = [
        Counterfactual("as it is", on="rewarded"),
        Counterfactual("one of two", (Add(GOAL, at=(12, 108)),), on="rewarded"),
        Counterfactual("gone", (Remove(GOAL, when="next_state"),), "unchanged", on="ordinary"),
        Counterfactual("no such object", (Remove(9.0),), 0),
    ]
    outcomes = evaluate(absence, data, cases, np.random.default_rng(0), grid=ENV.grid, truth=ENV.ground_truth())
    assert [(o.expected, o.given) for o in outcomes[:3]] == [(1, 1), (1, 0), (0, 1)]
    assert (outcomes[3].steps, outcomes[3].expected) == (0, None)


def test_cases_are_read_from_json(tmp_path, data):
    path = tmp_path / "edits.json"
    case = {"name": "gone", "edits": [{"edit": "remove", "object": "goal", "when": "next_state"}], "expected": 0}
    path.write_text(json.dumps([case, {"edits": [{"edit": "add", "object": 3, "at": [12, 108]}], "on": "ordinary"}]))
    cases = read_edits(path, OBJECTS)
    assert cases[0] == Counterfactual("gone", (Remove(3.0, when="next_state"),), 0)
    assert cases[1].edits == (Add(3.0, at=(12, 108)),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be a list of cases"),
        ('[{"edits": [{"edit": ["x"]}]}]', 'each edit needs "edit"'),
        (
            '[{"edits": [{"edit": "setto", "feature": Infinity, "value": 1}]}]',
            "feature: Input should be a valid integer",
        ),
        ('[{"edits": [{"edit": "setto", "feature": NaN, "value": 1}]}]', "feature: Input should be a valid integer"),
        ('[{"edits": [{"edit": "explode"}]}]', "one of add, blur"),
        ('[{"edits": [{"edit": "remove"}]}]', "object: Field required"),
        ('[{"edits": [{"edit": "remove", "object": "gaol"}]}]', "'gaol'; it must be one of wall, agent, goal, key"),
        ('[{"edits": [{"edit": "remove", "object": 3, "when": "later"}]}]', "when: Input should be 'both'"),
        ('[{"edits": [{"edit": "fill", "rows": [1], "columns": [0, 1], "value": 0}]}]', "rows.1: Field required"),
        ('[{"edits": [{"edit": "add", "object": 3, "colour": 1}]}]', "colour: Unexpected keyword argument"),
        ('[{"edits": [], "expected": "high"}]', "expected: Input should be 'unchanged'"),
        ('[{"edits": [], "on": "fridays"}]', "on: Input should be 'all'"),
        ("[3]", "a case must be an object"),
    ],
)
def test_wrong_cases_get_one_line(tmp_path, text, words):
    path = tmp_path / "edits.json"
    path.write_text(text)
    with pytest.raises(SettingError) as error:
        read_edits(path, OBJECTS)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_edits_that_do_not_fit_get_one_line(data):
    for edit, words in ((SetTo(0, 1.0), "which is for vectors"), (Add(3.0, at=(500,)), "from 0 to 120")):
        with pytest.raises(SettingError, match=words):
            evaluate(absence, data, [Counterfactual("wrong", (edit,))], np.random.default_rng(0), grid=ENV.grid)


@pytest.mark.parametrize(
    ("value", "dtype", "held"),
    [(255, "u1", 1), (256, "u1", 0), (-1, "u1", 0), (0.7, "u1", 0), (1.5, "i4", 0), (1.5, "f4", 1), (1e39, "f4", 0)],
)
def test_values_that_the_observations_cannot_hold_get_one_line(value, dtype, held):
    for edit, shape in ((Fill((0, 1), (0, 1), (value,)), (4, 4, 3)), (SetTo(0, value), (4,))):
        expected = contextlib.nullcontext() if held else pytest.raises(SettingError, match="which can't hold it")
        with expected:
            check([edit], shape, np.dtype(dtype), None, "case")


def test_folders_of_pictures(tmp_path):
    space = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    reward = CallableReward(lambda o, a, p, d: p[:, 0, 0, 0] - o[:, 0, 0, 0] + a, space, gym.spaces.Discrete(2))
    for path, red in (("same/a.png", 9), ("same/b.png", 7), ("moved/1/obs.png", 1), ("moved/1/next_obs.png", 5)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), red, np.uint8)).save(tmp_path / path)
    rows = evaluate_folder(reward, tmp_path)
    expected = [("moved", "0", 4, 0, 1), ("moved", "1", 5, 0, 1), ("same", "0", 0, 0, 2), ("same", "1", 1, 0, 2)]
    assert rows == expected
    Image.fromarray(np.zeros((8, 16, 3), np.uint8)).save(tmp_path / "same" / "c.png")
    with pytest.raises(SettingError, match=r"c\.png is 8 x 16; the reward takes 16 x 16"):
        evaluate_folder(reward, tmp_path)
    (tmp_path / "same" / "c.png").write_bytes(b"no picture")
    with pytest.raises(SettingError, match="as PNG"):
        evaluate_folder(reward, tmp_path)
    (tmp_path / "moved" / "1" / "obs.png").unlink()
    with pytest.raises(SettingError, match=r"obs\.png is missing"):
        evaluate_folder(reward, tmp_path)


COIN = np.full((16, 16, 3), 40, np.uint8)
COIN[4:8, 4:8] = (255, 220, 0)
ALPHA = np.full((16, 16), 255, np.uint8)
HOLE = ALPHA.copy()
HOLE[4:8, 4:8] = 128


def of_palette():
    picture = Image.fromarray(COIN).convert("P", palette=Image.Palette.ADAPTIVE)
    return picture, picture.getpixel((5, 5))


@pytest.mark.parametrize(
    ("picture", "options", "channels", "says"),
    [
        (Image.fromarray(COIN), {}, 3, None),
        (Image.fromarray(np.dstack([COIN, ALPHA])), {}, 3, None),
        (of_palette()[0], {}, 3, None),
        (Image.fromarray(COIN[..., 0]), {}, 1, None),
        (Image.merge("RGB", (Image.fromarray(COIN[..., 0]),) * 3), {}, 1, None),
        (Image.fromarray(np.dstack([COIN, HOLE])), {}, 3, "16 transparent pixels"),
        (of_palette()[0], {"transparency": of_palette()[1]}, 3, "16 transparent pixels"),
        (Image.fromarray(COIN), {"transparency": (255, 220, 0)}, 3, "16 transparent pixels"),
        (Image.merge("LA", (Image.fromarray(COIN[..., 0]), Image.fromarray(HOLE))), {}, 1, "16 transparent pixels"),
        (Image.fromarray(COIN), {}, 1, "has 3 channels of uint8; the reward takes 1"),
        (Image.fromarray(COIN[..., 0].astype(np.uint16)), {}, 1, "more than 8 bits"),
    ],
)
def test_a_picture_is_what_is_seen_or_refused(tmp_path, picture, options, channels, says):
    reward = CallableReward(
        lambda o, a, n, d: n[:, 4:8, 4:8, 0].mean((1, 2)),
        gym.spaces.Box(0, 255, (16, 16, channels), np.uint8),
        gym.spaces.Discrete(1),
    )
    (tmp_path / "coin").mkdir()
    picture.save(tmp_path / "coin" / "1.PNG", format="PNG", **options)
    if says is None:
        assert evaluate_folder(reward, tmp_path)[0][2] == 255
    else:
        with pytest.raises(SettingError, match=says):
            evaluate_folder(reward, tmp_path)


def test_pictures_are_only_for_rewards_of_bytes(tmp_path):
    (tmp_path / "coin").mkdir()
    Image.fromarray(COIN).save(tmp_path / "coin" / "1.png")
    spaces = gym.spaces.Box(0, 1, (16, 16, 3), np.float32), gym.spaces.Discrete(1)
    with pytest.raises(SettingError, match="pictures hold whole numbers from 0 to 255"):
        evaluate_folder(CallableReward(lambda o, a, n, d: n.mean((1, 2, 3)), *spaces), tmp_path)


def test_the_section_shows_each_case_beside_what_is_expected(tmp_path, data):
    path = tmp_path / "edits.json"
    edit = {"edit": "remove", "object": "goal", "when": "next_state"}
    path.write_text(json.dumps([{"name": "gone", "edits": [edit], "on": "ordinary"}]))
    found = run_step(section, Subject(absence, data, environment=NAME, edits=path))
    assert found.tables[0].rows[0][0] == "gone"
    assert found.tables[0].rows[0][2:5] == (0.0, 0.0, 1.0)  # the true reward; the reward before; after
    assert why_not(section, Subject(absence, data)) is not None
