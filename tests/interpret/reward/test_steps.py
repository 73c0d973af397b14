"""Steps of a report about a reward: trajectories and events, examples, and factors of layers, on data whose content is known."""

import io

import gymnasium as gym
import numpy as np
import pytest
import torch
from PIL import Image

from rlhf_ray.interpret.directions.stability import match
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.layers import fit_factors, found_again, hidden_layers, layers_of
from rlhf_ray.interpret.reward.steps import by_time as by_time
from rlhf_ray.interpret.reward.steps import examples as examples_step
from rlhf_ray.interpret.reward.steps import inside
from rlhf_ray.interpret.reward.steps.by_time import events
from rlhf_ray.interpret.reward.steps.examples import AROUND, QUANTILES, checksums, examples, films, misjudged
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward, TableReward
from tests.interpret.contexts import ensemble_of, run_step, steps_of, why_not

NUMBER = gym.spaces.Box(-10, 10, (1,), np.float32)


def episodes(rng, count=6, length=60, rewards=None, **columns):
    n = count * length
    ends = np.arange(n) % length == length - 1
    seen = rng.normal(size=(n, 1)).astype(np.float32)
    return steps_of(seen, rewards=rewards, ends=ends, length=length, columns=columns)


def test_events():
    rng = np.random.default_rng(0)
    rewards = np.zeros(360)
    rewards[::50] = 1.0
    level = np.repeat(np.arange(36.0), 10)
    data = episodes(
        rng, rewards=rewards, **{"state.level": level, "state.noise": rng.normal(size=360), "policy": level}
    )
    found = events(data)
    assert set(found) == {"terminated", "true reward", "state.level"}
    assert np.flatnonzero(found["state.level"])[:2].tolist() == [9, 19]  # the transitions to 10 and 20
    assert not found["state.level"][59]  # no next state is recorded of an episode's last step


def test_a_late_reward_correlates_at_its_lag_and_is_drawn_the_same_twice():
    data = episodes(np.random.default_rng(0))
    true = np.roll(data.next_observations[:, 0], -2).astype(np.float64)  # what a step shows was paid two steps before
    data = data.with_(rewards=true)
    reward = CallableReward(lambda o, a, n, d: n[:, 0], NUMBER, gym.spaces.Discrete(2))
    found = run_step(by_time, Subject(reward, data))
    lags = found.values["lags"]
    assert lags["+2"]["mean"] == pytest.approx(1.0)
    assert max(abs(lags[f"{lag:+d}"]["mean"]) for lag in range(-5, 6) if lag != 2) < 0.25
    assert found.pictures[0].image == run_step(by_time, Subject(reward, data)).pictures[0].image


def test_the_reward_at_an_event_is_its_difference_in_deviations():
    data = episodes(np.random.default_rng(0), rewards=np.zeros(360))
    reward = CallableReward(lambda o, a, n, d: 3.0 * d, NUMBER, gym.spaces.Discrete(2))
    steps, estimate = run_step(by_time, Subject(reward, data)).values["events"]["terminated"]
    assert steps == 6
    assert estimate["mean"] == pytest.approx(1 / np.sqrt(1 / 60 * 59 / 60))


def test_a_constant_reward_and_single_steps():
    reward = CallableReward(lambda o, a, n, d: np.zeros(len(o)), NUMBER, gym.spaces.Discrete(2))
    subject = Subject(reward, episodes(np.random.default_rng(0)))
    assert run_step(by_time, subject).skipped == "The reward is the same at every step."
    single = Subject(reward, episodes(np.random.default_rng(0), 20, 1))
    assert why_not(by_time, single) == "The data are single steps, not episodes."


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
    found = run_step(examples_step, Subject(REWARD, data, regions=regions_of(SPACE, names=["a", "b", "c", "d"])))
    table = found.tables[0]
    first = dict(zip(table.columns, table.rows[0], strict=True))
    index = first["index"]
    assert (first["true reward"], first["reward"]) == (-data.observations[index, 0], data.observations[index, :2].sum())
    assert first["next d"] == data.next_observations[index, 3]


def test_pictures_of_images_and_grids_and_unknown_truth(data):
    unknown = data.with_(rewards=np.full(200, np.nan))
    grid = run_step(examples_step, Subject(REWARD, unknown, regions=regions_of(SPACE, (2, 2))))
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


VECTOR, ACTIONS = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(3)
IMAGE = gym.spaces.Box(0, 255, (20, 24, 2), np.uint8)


def planted_factors(seed):
    """Activations ``[64, 8, 6, 6]`` made of three directions, and the directions ``[3, 8]``."""
    rng = np.random.default_rng(seed)
    directions = np.zeros((3, 8))
    for at, channels in enumerate(((0, 1, 2), (3, 4), (5, 6, 7))):
        directions[at, list(channels)] = rng.uniform(0.5, 1.5, len(channels))
    weights = rng.exponential(size=(64, 3, 6, 6)) * (rng.random((64, 3, 6, 6)) < 0.4)
    return np.einsum("nkhw,kc->nchw", weights, directions), directions


def ensemble(space=VECTOR, **changes):
    return ensemble_of(space, ACTIONS, hidden=(12, 12), **changes)


def data_of(space=VECTOR, n=120):
    space.seed(0)
    before, after = (np.stack([space.sample() for _ in range(n)]) for _ in range(2))
    return steps_of(before, after, actions=np.random.default_rng(0).integers(0, 3, n))


def test_layers_put_the_batch_first_and_join_members():
    reward, data = ensemble(IMAGE), data_of(IMAGE, 6)
    layers = layers_of(reward)
    first = layers["networks.convolutions.1.0"]
    assert first.shape == (16, 4, 5)
    stacked = layers["networks.head.layers.0"]
    assert stacked.shape == (24,)  # 12 units of each of 2 members
    alone = stacked.activations(reward, data[2:3])
    assert np.allclose(alone, stacked.activations(reward, data)[2:3], atol=1e-5)
    assert all(layer.channels > 2 for layer in hidden_layers(reward))  # the output is none of them
    assert layers_of(TableReward(np.zeros((3, 2)))) == {}


def test_factors_never_mix_channels_with_positions():
    values, directions = planted_factors(0)
    for transposed in (values, np.ascontiguousarray(values.transpose(0, 1, 3, 2))):
        made = fit_factors(transposed, 3, 0)
        assert match(directions, made.directions).min() > 0.98
    mixed = values.reshape(64, 6, 6, 8).transpose(0, 3, 1, 2)  # reshape without moving the axis, the defect
    assert match(directions, fit_factors(mixed, 3, 0).directions).max() < 0.9
    made = fit_factors(values, 3, 0)
    weights = made.encode(values)
    assert weights.shape == (64, 3, 6, 6)
    again = np.einsum("nkhw,kc->nchw", weights, made.components)
    assert np.abs(again - values).max() < 0.05 * values.max()
    assert found_again(values, made, [1]).min() > 0.98


def test_signed_factors_are_inverted():
    rng = np.random.default_rng(1)
    directions = np.array([[1.0, 0, 0, -1], [0, 1, -1, 0]])
    values = np.einsum("nkh,kc->nch", rng.exponential(size=(50, 2, 3)), directions)
    signed = fit_factors(values, 2, 0, signed=True)
    assert match(directions, signed.directions).min() > 0.98
    again = np.moveaxis(signed.encode(values), 1, -1) @ np.subtract(*np.split(signed.components, 2, axis=1))
    assert np.abs(np.moveaxis(again, -1, 1) - values).max() < 0.05
    with pytest.raises(ValueError, match="0 or more"):
        fit_factors(values, 2)


def test_attributions_are_those_of_the_layer():
    """Gradient x activation of a layer that is followed by linear layers alone adds up to the reward without biases."""
    reward, data = ensemble(ensemble_size=1), data_of()
    layer = layers_of(reward)["networks.head.layers.3"]  # the last activation
    last = reward.module.networks.head.layers[4]
    sums = layer.attributions(reward, data).sum(1) + float(last.bias)
    assert np.allclose(sums, reward.of(data), atol=1e-5)


def test_the_section_takes_what_has_layers():
    data = data_of(n=60)
    section = run_step(inside, Subject(ensemble(), data, effort=0.1))
    assert len(section.tables[0].rows) == 10
    plain = CallableReward(lambda o, a, n, d: o[:, 0], VECTOR, ACTIONS)
    assert why_not(inside, Subject(plain, data)) == "No layers are known that compute this reward."

    constant = ensemble()
    with torch.no_grad():
        for weight in constant.module.parameters():
            weight.zero_()
    section = run_step(inside, Subject(constant, data, effort=0.1))
    assert np.isfinite([check.value for check in section.checks]).all()
