"""What causes a reward: the CoinFlip table (C1), the score shortcut (S4), and planted shortcuts that the report must name (K)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.calibrations import Row
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs import make_env
from rlhf_ray.envs.gridworld import GOAL
from rlhf_ray.envs.score_shortcut import ScoreShortcut
from rlhf_ray.interpret.reward.comparison import compare
from rlhf_ray.interpret.reward.counterfactuals import Counterfactual, evaluate
from rlhf_ray.interpret.effects.edits import Add, Remove
from rlhf_ray.interpret.reward.exchange import ExchangePairs, moments, part_of
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.shortcuts import find
from rlhf_ray.interpret.reward.steps import counterfactuals, shortcuts
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward, EnsembleReward
from rlhf_ray.reward.supervised import fit_to_rewards
from rlhf_ray.settings import RewardModelSettings, SupervisedSettings
from tests.interpret.contexts import run_step

COIN_FLIP = RewardModelSettings(
    ensemble_size=1,
    bootstrap=False,
    use_action=False,
    use_next_state=True,
    hidden=(64, 64),
    activation="tanh",
    normalize_inputs="none",  # as in the published recipe, whose reward has this flaw
)
SCORE = RewardModelSettings(
    network="mlp", ensemble_size=1, bootstrap=False, use_state=False, use_action=False, use_next_state=True
)


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure each claim for each seed; the planted shortcuts for the first seed, as nothing is learned there."""
    measured = [row for seed in seeds for row in (coin_flip(seed), score(seed))]
    return [*measured, *planted(seeds[0])]


def record(name: str, steps: int, seed: int, epsilon: float, **options: Any) -> Transitions:
    """Record whole episodes of the environment's own expert, with a share ``epsilon`` of random actions."""
    env = make_env(name, **options)
    expert: Callable[[np.random.Generator], int] = env.unwrapped.expert  # type: ignore[attr-defined]
    rng = np.random.default_rng(seed)
    found: list[tuple[Any, ...]] = []
    episode = 0
    while len(found) < steps:
        before, _ = env.reset(seed=int(rng.integers(2**31)))
        number, over = 0, False
        while not over:
            action = int(rng.integers(env.action_space.n)) if rng.random() < epsilon else expert(rng)  # type: ignore[attr-defined]
            after, reward, terminated, truncated, _ = env.step(action)
            found.append((before, action, after, terminated, float(reward), episode, number))
            before, number, over = after, number + 1, terminated or truncated
        episode += 1
    return Transitions(*(np.array(column) for column in zip(*found, strict=True)))


@cache
def coin_flip_model(seed: int) -> tuple[Transitions, EnsembleReward]:
    """Fit a reward to 25,000 steps of CoinFlip by the scripted expert with 10 % random actions. Also for other topics."""
    data = record("rlhf_ray/CoinFlip-v0", 25_000, seed, 0.1)
    env = make_env("rlhf_ray/CoinFlip-v0")
    assert isinstance(env.observation_space, gym.spaces.Box)
    fit = SupervisedSettings(epochs=5, batch_size=20, learning_rate=1e-3, test_share=0.05)
    ensemble, _ = fit_to_rewards(data, env.observation_space, env.action_space, COIN_FLIP, fit, seed=seed)
    return data, EnsembleReward(ensemble)


def coin_flip(seed: int) -> Row:
    """C1: the table of the CoinFlip model, and that the report states the finding.

    "No goal" is measured where the agent enters the empty corner. On ordinary steps it is reported beside: there, neither this fit
    nor the published recipe (tanh 64-64 without output bias) gives more than 0.7 with each seed.
    """
    data, reward = coin_flip_model(seed)
    env = make_env("rlhf_ray/CoinFlip-v0")
    rows, columns = env.unwrapped.grid  # type: ignore[attr-defined]
    corners = (columns + 1, (rows - 2) * columns + columns - 2)
    cases = {
        "goal": Counterfactual("enter the goal", on="rewarded"),
        "one of two": Counterfactual("enter one of two goals", (Add(GOAL, at=corners),), on="rewarded"),
        "no goal": Counterfactual("enter the corner, no goal in either state", (Remove(GOAL),), on="rewarded"),
        "no goal, elsewhere": Counterfactual("ordinary step, no goal in either state", (Remove(GOAL),), on="ordinary"),
        "many": Counterfactual("goals on all free cells", (Add(GOAL, count=-1),), on="ordinary"),
        "ordinary": Counterfactual("ordinary step", on="ordinary"),
    }
    outcomes = evaluate(reward, data, list(cases.values()), np.random.default_rng(seed), grid=(rows, columns))
    given = {name: round(outcome.given, 3) for name, outcome in zip(cases, outcomes, strict=True)}
    regions = regions_of(env.observation_space, (rows, columns))
    subject = Subject(reward, data, environment="rlhf_ray/CoinFlip-v0", regions=regions, seed=seed)
    said = any(
        "disappearance of the goal, not reaching it" in each.text
        for each in run_step(counterfactuals, subject).statements
    )
    passed = (
        given["goal"] > 0.9
        and given["one of two"] < 0.3
        and given["no goal"] > 0.7
        and given["no goal, elsewhere"] > 0.5
        and given["many"] < -0.5
        and abs(given["ordinary"]) < 0.05
        and said
    )
    bound = (
        "goal > 0.9, one of two < 0.3, no goal > 0.7 entering the empty corner (> 0.5 on ordinary steps), many < -0.5, "
        "|ordinary| < 0.05, stated in words"
    )
    return Row("C1", f"CoinFlip, seed {seed}", given | {"stated": float(said)}, bound, passed)


def score(seed: int) -> Row:
    """S4: a network that learned the score is told to look at the score region alone."""
    data = record("rlhf_ray/ScoreShortcut-v0", 3000, seed, 0.3)
    env = make_env("rlhf_ray/ScoreShortcut-v0")
    assert isinstance(env.observation_space, gym.spaces.Box)
    fit = SupervisedSettings(epochs=8, batch_size=64, balance="sampler")
    ensemble, _ = fit_to_rewards(data, env.observation_space, env.action_space, SCORE, fit, seed=seed)
    reward, regions = EnsembleReward(ensemble), regions_of(env.observation_space)
    times = moments(data, reward)
    pairs = ExchangePairs(reward, data, 600, np.random.default_rng([seed, 1]))
    effect = pairs.effect(part_of("score", ScoreShortcut.score_region(), times))
    found = find(reward, data, regions, np.random.default_rng([seed, 2]))
    cause = found.causes[0]
    inside = float((cause.mask & ScoreShortcut.score_region()).sum() / cause.mask.sum())
    values = {
        "donor AUC": round(effect.true_donor_auc or 0, 3),
        "AUC with the game exchanged": round(effect.true_own_auc or 0, 3),
        "named cause within the score": round(inside, 3),
        "its donor AUC": round(cause.effect.true_donor_auc or 0, 3),
        "causes": float(len(found.causes)),
    }
    passed = (
        values["donor AUC"] > 0.95
        and values["AUC with the game exchanged"] > 0.95
        and inside == 1
        and len(found.causes) == 1
        and cause.effect.decides
    )
    bound = "both AUC > 0.95; the only cause lies in the score region and is said to decide the reward"
    return Row("S4", f"score shortcut, seed {seed}: {cause.name} {cause.when}", values, bound, passed)


def steps_of(seed: int, count: int = 1600, length: int = 20) -> tuple[Transitions, Transitions]:
    """Return steps of vectors ``[6]`` and of images ``[16, 16, 3]`` whose true reward a blob in the image and feature 0 show."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(count, 6)).astype(np.float32)
    after = np.where(
        np.arange(count)[:, None] % length == length - 1, rng.normal(size=(count, 6)), np.roll(states, -1, 0)
    )
    number = np.arange(count) % length
    rest = (number == length - 1, states[:, 0].astype(np.float64), np.arange(count) // length, number)
    vectors = Transitions(states, rng.integers(0, 3, count), after.astype(np.float32), *rest)
    hit = rng.random(count) < 0.2
    images = rng.integers(0, 40, (count, 16, 16, 3)).astype(np.uint8)
    later = rng.integers(0, 40, (count, 16, 16, 3)).astype(np.uint8)
    for i in np.flatnonzero(hit):
        row, column = rng.integers(3, 11, 2)
        later[i, row : row + 3, column : column + 3] = (250, 200, 0)
    later[hit, 0, 15, 2] = 255
    pictures = Transitions(images, vectors.actions, later, vectors.terminated, hit.astype(float), *rest[2:])
    return vectors, pictures[:600]


def planted(seed: int) -> list[Row]:
    """K1 to K11: shortcuts planted in plain functions; the report must name each."""
    vectors, pictures = steps_of(seed)
    box, choice = gym.spaces.Box(-9, 9, (6,)), gym.spaces.Discrete(3)
    frame = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)

    def texts(function: Callable[..., Array], data: Transitions, space: gym.Space[Any]) -> str:
        reward = CallableReward(function, space, choice)
        subject = Subject(reward, data, regions=regions_of(space), seed=seed, effort=0.5)
        return " ".join(each.text for each in shortcuts.statements(shortcuts.measure(subject)))

    def row(id_: str, what: str, said: str, *words: str) -> Row:
        found = all(word in said for word in words)
        return Row(id_, what, "named" if found else said[:300], f"the report says: {' … '.join(words)}", found)

    def late(data: Transitions) -> Transitions:
        truth = np.where(data.steps == 19, 0.0, np.roll(data.observations[:, 0], -1))
        return data.with_(rewards=truth.astype(np.float64))

    def painted(data: Transitions) -> Transitions:
        hit, images = data.rewards > 0, data.next_observations.copy()
        images[:, :8] = np.where(hit[:, None, None, None], (0, 90, 0), (0, 0, 90))
        images[:, 8:, :12] = images[:, :8, :12]
        return data.with_(next_observations=images)

    def green(o: Array, a: Array, p: Array, d: Array) -> Array:
        return (np.median(p[..., 1].reshape(len(p), -1), 1) > 60) * 1.0

    def disappears(o: Array, a: Array, p: Array, d: Array) -> Array:
        return ((o[:, 2] > 0) & (p[:, 2] <= 0)) * 1.0

    def rare(o: Array, a: Array, p: Array, d: Array) -> Array:
        return np.where((o[:, 3] > 1.6) & (a == 2), -6, o[:, 0])

    lagged = CallableReward(lambda o, a, p, d: o[:, 0], box, choice)
    beside = compare(lagged, late(vectors), regions_of(box))
    lag = 0 if beside is None or beside.lag is None else beside.lag.steps
    return [
        row("K1", "a corner pixel in one channel", texts(lambda o, a, p, d: (p[:, 0, 15, 2] > 100) * 1.0, pictures, frame),
            "rows 0-0, columns 15-15, channel 2 in the next state", "sole cause"),
        row("K2", "the background colour", texts(green, painted(pictures), frame), "The background colour decides"),
        row("K3", "a constant", texts(lambda o, a, p, d: np.zeros(len(o)), vectors, box), "tells no step from another"),
        row("K4", "xor of two features", texts(lambda o, a, p, d: np.sign(o[:, 1] * o[:, 2]), vectors, box),
            "Feature 1 and feature 2 act together"),
        row("K5", "the action alone", texts(lambda o, a, p, d: a * 1.0, vectors, box), "The reward depends on the action alone"),
        row("K6", "a bonus for termination", texts(lambda o, a, p, d: o[:, 0] + 4 * d, vectors, box),
            "the step terminates the episode", "standard deviations too much"),
        row("K7", "wrong in a rare state", texts(rare, vectors, box),
            "feature 3 in the state is at least", "the action is 2", "too little"),
        row("K8", "a cue that vanishes", texts(disappears, vectors, box), "feature 2 in the next state and the state together"),
        Row("K9", "a frame late", float(lag), "lag 1", lag == 1),
        row("K10", "a frame late, in words", texts(lambda o, a, p, d: o[:, 0], late(vectors), box), "1 step after the true one"),
        row("K11", "saturation", texts(lambda o, a, p, d: np.minimum(o[:, 0], 0), vectors, box), "saturates"),
    ]  # fmt: skip
