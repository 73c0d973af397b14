import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.comparison import _flat, compare
from rlhf_ray.interpret.reward.exchange import ExchangePairs, StepPart, levelled, moments, split_at, stack
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.shortcuts import find
from rlhf_ray.interpret.reward.steps import shortcuts as section
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.summaries import summaries
from rlhf_ray.reward.functions import CallableReward, TableReward
from tests.interpret.contexts import run_step

VECTORS, ACTIONS = gym.spaces.Box(-9, 9, (4,)), gym.spaces.Discrete(3)
IMAGES = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)


def steps(observations, following, truth=None, length=20, terminated=None):
    n = len(observations)
    number = np.arange(n) % length
    return Transitions(
        observations,
        np.random.default_rng(9).integers(0, 3, n),
        following,
        number == length - 1 if terminated is None else terminated,
        np.full(n, np.nan) if truth is None else np.asarray(truth, float),
        np.arange(n) // length,
        number,
    )


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(0)
    states, after = rng.normal(size=(2, 600, 4)).astype(np.float32)
    return steps(states, after, states[:, 0])


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    states, after = rng.integers(0, 40, (2, 240, 16, 16, 3)).astype(np.uint8)
    hit = rng.random(240) < 0.25
    after[hit, 14, 3, 1] = 250
    after[hit, 5:8, 5:8] = 200
    return steps(states, after, hit)


def vector_reward(function):
    return CallableReward(function, VECTORS, ACTIONS)


def told(reward, data, **options):
    regions = regions_of(reward.observation_space)
    return run_step(section, Subject(reward, data, regions=regions, effort=0.2, **options))


def said(reward, data):
    subject = Subject(reward, data, regions=regions_of(reward.observation_space), effort=0.2)
    return " ".join(each.text for each in section.statements(section.measure(subject)))


def test_the_only_feature_that_counts_is_the_sole_cause_and_the_others_are_ignored(vectors):
    reward = vector_reward(lambda o, a, p, d: p[:, 2] ** 3)
    found = find(reward, vectors, regions_of(VECTORS), np.random.default_rng(0), pairs=300)
    (cause,) = found.causes
    assert (cause.name, cause.when, cause.effect.sole) == ("feature 2", "in the next state", True)
    assert cause.curve is not None
    assert cause.curve.direction == "up"
    assert {"the state", "the action", "feature 0", "feature 1", "feature 3"} <= set(found.ignored)
    assert "the next state" not in found.ignored


def test_effects_equal_brute_force(vectors):
    reward = vector_reward(lambda o, a, p, d: 2 * o[:, 0] + o[:, 1] * p[:, 3])
    pairs = ExchangePairs(reward, vectors, 300, np.random.default_rng(0))
    effect = pairs.effect(StepPart("", state=np.array([True, False, False, False])))
    own, donor = pairs.own, pairs.donor
    values = reward.of(vectors)
    chances = levelled([values, vectors.rewards])  # each pair counts as often as it occurs
    weights = 1 / (chances[pairs.indices] * chances[pairs.donor_indices])
    total = np.average((pairs.donor_rewards - pairs.rewards) ** 2, weights=weights)
    change = 2 * (donor.observations[:, 0] - own.observations[:, 0])
    others = (
        donor.observations[:, 1] * donor.next_observations[:, 3] - own.observations[:, 1] * own.next_observations[:, 3]
    )
    assert effect.moves == pytest.approx(
        np.sqrt(np.average(change.astype(float) ** 2, weights=weights) / total), rel=1e-5
    )
    assert effect.rest == pytest.approx(
        np.sqrt(np.average(others.astype(float) ** 2, weights=weights) / total), rel=1e-5
    )
    assert effect.interval[0] < effect.moves < effect.interval[1]
    assert (own.episodes != donor.episodes).mean() > 0.99


@pytest.mark.slow
def test_features_that_only_count_together_are_found(vectors):
    text = said(vector_reward(lambda o, a, p, d: np.sign(o[:, 1] * o[:, 3])), vectors)
    assert "Feature 1 and feature 3 act together" in text


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_the_share_of_an_interaction_is_that_of_the_variance(factor):
    rng = np.random.default_rng(0)
    observations = rng.choice([-1.0, 1.0], (2000, 2))  # four rewards, as frequent: pairs are drawn from each alike
    data = steps(observations, observations)
    reward = CallableReward(
        lambda o, a, p, d: o[:, 0] + factor * o[:, 0] * o[:, 1], gym.spaces.Box(-9, 9, (2,)), ACTIONS
    )
    found = find(reward, data, regions_of(gym.spaces.Box(-9, 9, (2,))), rng, pairs=2000)
    [pair] = found.together
    assert pair.share.value == pytest.approx(factor**2 / (1 + factor**2), abs=0.05)
    assert pair.share.low <= factor**2 / (1 + factor**2) <= pair.share.high


def test_a_box_of_pixels_is_exchanged_as_it_is_named():
    """Of 2 x 2 patches, the corner of a 3 x 3 lamp has a patch of its own, which moves the reward by a ninth."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 40, (240, 16, 16, 1)).astype(np.uint8)
    images[:, :3, :3] += rng.integers(0, 200, (240, 1, 1, 1)).astype(np.uint8)
    space = gym.spaces.Box(0, 255, (16, 16, 1), np.uint8)
    reward = CallableReward(lambda o, a, p, d: p[:, :3, :3, 0].mean((1, 2)), space, ACTIONS)
    found = find(reward, steps(images, images), regions_of(space), np.random.default_rng(0), pairs=60)
    (cause,) = found.causes
    assert cause.name == "rows 0-2, columns 0-2"
    assert (cause.effect.moves, cause.effect.rest) == (pytest.approx(1.0), pytest.approx(0.0))
    np.testing.assert_array_equal(np.argwhere(cause.mask)[[0, -1]], [[0, 0, 0], [2, 2, 0]])
    assert cause.mask.sum() == 9


def test_a_number_that_decides_the_reward_tells_all_of_it(vectors):
    reward = vector_reward(lambda o, a, p, d: 1 - np.abs(p[:, 1]))
    [summary] = summaries(reward.of(vectors), vectors, regions_of(VECTORS))
    assert summary.name == "feature 1 in the next state"
    assert summary.tells == pytest.approx(1.0, abs=0.003)
    assert summary.tells_truth == pytest.approx(0.0, abs=0.03)


def test_strata_tell_of_all_their_steps(vectors):
    reward = vector_reward(lambda o, a, p, d: o[:, 0] + 3.0 * (a == 1) + 3.0 * (o[:, 1] > 0.5))
    beside = compare(reward, vectors, regions_of(gym.spaces.Box(-9, 9, (4,))))
    for stratum in beside.strata:
        assert stratum.given == pytest.approx(reward.of(vectors)[stratum.chosen].mean())
        if stratum.condition == "the action is 1":
            np.testing.assert_array_equal(stratum.chosen, vectors.actions == 1)
    assert beside.strata


def test_summaries_are_of_what_the_reward_reads(vectors):
    """The next state shows the feature as well, and it comes first."""
    later = vectors.next_observations.copy()
    later[:, 0] = vectors.observations[:, 0] + 0.001
    data = vectors.with_(next_observations=later)
    reward = vector_reward(lambda o, a, p, d: o[:, 0])
    names = {
        ignored: [each.name for each in summaries(reward.of(data), data, regions_of(VECTORS), None, ignored)]
        for ignored in ((), ("the next state",))
    }
    assert names == {
        (): ["feature 0 in the next state", "feature 0 in the state"],
        ("the next state",): ["feature 0 in the state"],
    }
    found = find(reward, data, regions_of(VECTORS), np.random.default_rng(0), pairs=100)
    assert [each.name for each in found.summaries] == ["feature 0 in the state"]


def test_a_reward_that_hardly_ever_follows_the_truth_does_not_saturate():
    """It pays at one step in twenty; one that is cut off at the middle of the true reward's range saturates there."""
    truth = np.random.default_rng(0).normal(size=2000)
    seldom = np.where(np.arange(2000) % 20 == 19, truth, 0.0)
    assert _flat(seldom, truth, np.arange(2000) // 20) is None
    assert _flat(truth, truth, np.arange(2000) // 20) is None
    centre = (truth.min() + truth.max()) / 2
    assert _flat(np.minimum(truth, centre), truth, np.arange(2000) // 20) in (0.5, 0.6)


def test_cues_that_can_stand_in_for_one_another_are_found():
    grid = gym.spaces.Box(0, 1, (9,))
    lit = (np.random.default_rng(0).random(400) < 0.4).astype(np.float32)
    cells = np.random.default_rng(1).integers(0, 2, (400, 9)).astype(np.float32)
    cells[:, [0, 4, 8]] = lit[:, None]  # the median of three equal cells: no cell alone changes it
    reward = CallableReward(lambda o, a, p, d: np.median(p[:, [0, 4, 8]], 1), grid, ACTIONS)
    data = steps(cells, cells)
    found = find(reward, data, regions_of(grid, (3, 3)), np.random.default_rng(0), pairs=200)
    assert found.regions.max() == 0
    named = {i for cause in found.causes for i in cause.regions}
    assert named <= {0, 4, 8}
    assert len(named) == 2


@pytest.mark.slow
def test_a_pixel_in_one_channel_is_named_with_its_moment_and_called_a_possible_shortcut(images):
    reward = CallableReward(lambda o, a, p, d: (p[:, 14, 3, 1] > 100) * 1.0, IMAGES, ACTIONS)
    text = said(reward, images)
    assert "rows 14-14, columns 3-3, channel 1 in the next state" in text
    assert "is the sole cause" in text
    assert "may be a shortcut" in text


def test_the_background_colour_is_named(images):
    colours = np.where(images.rewards[:, None] > 0, (0, 90, 0), (90, 0, 0)).astype(np.uint8)
    painted = np.broadcast_to(colours[:, None, None], (240, 16, 16, 3)).copy()
    painted[:, 2:5, 2:5] = images.next_observations[:, 2:5, 2:5]
    reward = CallableReward(lambda o, a, p, d: (np.median(p[..., 1], (1, 2)) > 50) * 1.0, IMAGES, ACTIONS)
    assert "background colour decides" in said(reward, steps(painted, painted, images.rewards))


def test_the_frame_of_a_stack_is_named():
    rng = np.random.default_rng(0)
    walk = rng.normal(size=(403, 2)).astype(np.float32)
    stacks = np.concatenate([walk[i : i + 400] for i in range(3)], 1)  # three frames, the newest last
    following = np.concatenate([walk[i : i + 400] for i in range(1, 4)], 1)
    space = gym.spaces.Box(-9, 9, (6,))
    data = steps(stacks, following)
    assert stack(data) is not None
    assert len(stack(data)) == 3
    reward = CallableReward(lambda o, a, p, d: o[:, 2], space, ACTIONS)
    assert [each.offset for each in moments(data, reward)] == [1, 0, -1, -2]
    found = find(reward, data, regions_of(space), np.random.default_rng(0), pairs=200)
    assert found.frames == 3
    assert [cause.when for cause in found.causes] == ["in the frame 1 step before the state"]
    newest_first = steps(stacks[:, [4, 5, 2, 3, 0, 1]], following[:, [4, 5, 2, 3, 0, 1]])
    assert [int(np.flatnonzero(mask)[0]) for mask in stack(newest_first)] == [4, 2, 0]
    assert stack(steps(walk[:400], walk[1:401])) is None


def rare(o, a, p, d):
    return np.where((o[:, 1] > 1.3) & (a == 1), 8, o[:, 0])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (rare, ["feature 1 in the state is at least", "action is 1"]),
        (lambda o, a, p, d: o[:, 0] + 5 * d, ["the step terminates the episode", "too much"]),
        (lambda o, a, p, d: np.minimum(o[:, 0], 0), ["saturates"]),
        (lambda o, a, p, d: -o[:, 0], ["the wrong way round"]),
        (lambda o, a, p, d: o[:, 0] + o[:, 3], ["Exchanging feature 3 moves", "the true reward, as fitted, by 0.3 %: a shortcut"]),
        (lambda o, a, p, d: a * 1.0, ["depends on the action alone"]),
        (lambda o, a, p, d: np.full(len(o), 0.3), ["it tells no step from another, and pays for staying"]),
    ],
)  # fmt: skip
def test_where_the_reward_differs_from_the_true_one_is_said(vectors, function, words):
    text = said(vector_reward(function), vectors)
    assert all(word in text for word in words), text


@pytest.mark.slow
def test_the_true_reward_itself_has_no_warnings(vectors):
    found = told(vector_reward(lambda o, a, p, d: o[:, 0]), vectors)
    assert [each.text for each in found.statements if each.kind == "warning"] == []
    assert all(check.passed for check in found.checks)


def test_tables_have_whole_inputs_only():
    rng = np.random.default_rng(0)
    data = steps(rng.integers(0, 5, 200), rng.integers(0, 5, 200), rng.random(200))
    found = run_step(section, Subject(TableReward(np.arange(5.0), actions=3), data, effort=0.2))
    assert any("depends on the next state alone" in each.text for each in found.statements)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(vectors):
    reward = vector_reward(lambda o, a, p, d: o[:, 0] + 0.1 * p[:, 1])
    first, second = (told(reward, vectors[:200], seed=3) for _ in range(2))
    assert first == second


def test_parts_exchange_exactly_what_they_say(vectors):
    own, donor = vectors[:10], vectors[10:20]
    mask = np.array([True, False, False, True])
    after = StepPart("", state=mask, action=True).exchange(own, donor)
    np.testing.assert_array_equal(after.observations[:, mask], donor.observations[:, mask])
    np.testing.assert_array_equal(after.observations[:, ~mask], own.observations[:, ~mask])
    np.testing.assert_array_equal(after.next_observations, own.next_observations)
    np.testing.assert_array_equal(after.actions, donor.actions)
    np.testing.assert_array_equal(after.terminated, own.terminated)


def test_levels_and_labels():
    rare = np.zeros(1000)
    rare[:5] = 1
    chances = levelled([rare, rare])
    assert chances[:5].sum() == pytest.approx((0.005 + 2 * 0.5) / 3)  # half of two parts in three
    assert split_at(rare)[:5].all()
    assert not split_at(rare)[5:].any()


def test_figures_are_of_steps_as_they_occur_with_their_intervals_over_episodes() -> None:
    rng, n = np.random.default_rng(0), 4000
    episodes = np.repeat(np.arange(40), 100)
    rare = (rng.random(n) < 0.02) * 3.0  # drawn far more often than it occurs
    own = np.repeat(rng.normal(0, 1, 40), 100)  # one value in each episode
    observations = np.stack([rare, own, rng.normal(0, 1, n), np.zeros(n)], 1)
    reward = CallableReward(lambda o, a, s, d: o[:, 0] + o[:, 1] + 0.5 * o[:, 2], VECTORS, ACTIONS)
    moments = np.tile(np.arange(100), 40)
    data = Transitions(
        observations, np.zeros(n, int), observations, np.zeros(n, bool), np.full(n, np.nan), episodes, moments
    )
    pairs = ExchangePairs(reward, data, 1000, rng)
    parts = np.array([observations[:, 0], observations[:, 1], 0.5 * observations[:, 2]])
    # In closed form, for independent pairs: each part's standard deviation over that of the whole.
    wanted = parts.std(1) / parts.sum(0).std()
    drawn = [np.flatnonzero(rng.multinomial(40, np.full(40, 1 / 40))) for _ in range(300)]
    rows = [np.isin(episodes, few) for few in drawn]
    ratios = np.array([parts[:, chosen].std(1) / parts[:, chosen].sum(0).std() for chosen in rows])
    for i, right in enumerate(wanted):
        effect = pairs.effect(StepPart(str(i), np.arange(4) == i, np.arange(4) == i))
        assert effect.moves == pytest.approx(right, abs=0.08)
        assert effect.interval[0] < right < effect.interval[1]
        assert np.diff(effect.interval)[0] > 0.8 * np.diff(np.quantile(ratios[:, i], [0.025, 0.975]))[0]


@pytest.mark.slow
def test_a_reward_of_terminal_steps_only_looks_at_the_termination(vectors):
    rng, n = np.random.default_rng(0), len(vectors)
    data = vectors.with_(terminated=rng.random(n) < 0.1)
    reward = vector_reward(lambda o, a, p, d: 4 * d * o[:, 0])
    figures = section.measure(Subject(reward, data, effort=1.0))
    [effect] = [each for each in figures.found.inputs if each.part.done]
    # By hand, for independent steps with mean 0: 2 p (1 - p) of 2 p.
    assert effect.moves == pytest.approx(np.sqrt(1 - 0.1), abs=0.06)
    change = figures.found.done_change  # on average, 4 times the mean of feature 0
    assert change.value == pytest.approx(4 * data.observations[:, 0].mean() / reward.of(data).std(), rel=1e-3)
    assert "shortcuts.decided_at_the_end" in {each.key for each in section.statements(figures)}
    without = section.measure(Subject(vector_reward(lambda o, a, p, d: o[:, 0]), data, effort=1.0))
    assert "shortcuts.decided_at_the_end" not in {each.key for each in section.statements(without)}


def test_curves_are_means_over_steps_as_they_occur() -> None:
    rng, n = np.random.default_rng(1), 4000
    observations = np.stack([rng.normal(0, 1, n), rng.exponential(1, n) ** 2, np.zeros(n), np.zeros(n)], 1)
    reward = CallableReward(
        lambda o, a, s, d: o[:, 0] - o[:, 1], VECTORS, ACTIONS
    )  # few steps get much less than the others
    none = np.full(n, np.nan)
    data = Transitions(
        observations, np.zeros(n, int), observations, np.zeros(n, bool), none, np.arange(n) // 100, np.arange(n) % 100
    )
    found = find(reward, data, regions_of(VECTORS), rng, pairs=3000)
    [curve] = [cause.curve for cause in found.causes if cause.name == "feature 0"]
    assert curve is not None
    for content, given in zip(curve.content, curve.rewards, strict=True):
        low, high = map(float, content.split(" to "))
        inside = (observations[:, 0] >= low) & (observations[:, 0] <= high)
        # In closed form: the content's own mean, less the mean of the other feature, as the two are independent.
        assert given == pytest.approx(observations[inside, 0].mean() - observations[:, 1].mean(), abs=0.35)
