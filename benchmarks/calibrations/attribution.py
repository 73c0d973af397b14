"""Attribution: planted image reward (S1), pointing game (S2), completeness (S3), intervention against gradient (C3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import gymnasium as gym
import numpy as np
from torch import Tensor, nn

from benchmarks.calibrations import Row
from benchmarks.calibrations.causes import coin_flip_model
from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs import make_env
from rlhf_ray.envs.planted import BLOCK, DISTRACTOR_COLOURS, SIDE, coin_touched
from rlhf_ray.interpret.attribution import contributions, make_methods
from rlhf_ray.interpret.attribution.gradients import IntegratedGradients
from rlhf_ray.interpret.reward.question import RewardQuestion
from rlhf_ray.interpret.effects.regions import Regions, regions_of
from rlhf_ray.interpret.reward.steps import attribution
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import EnsembleReward, RewardFunction
from rlhf_ray.reward.supervised import fit_to_rewards
from rlhf_ray.settings import RewardModelSettings, SupervisedSettings
from tests.interpret.contexts import run_step

POSITIVES = 60
"""Steps of the pointing game."""
NOISE, PICTURES, EPOCHS = 100, 8000, 8
UNTRAINED = 5
"""Untrained networks of the pointing game. A single one may like one colour best, by chance the coin's."""
DISTRACTORS = len(DISTRACTOR_COLOURS)
"""Of each picture, one of each colour."""
PLACES = np.stack(np.indices((SIDE - BLOCK + 1,) * 2).reshape(2, -1), 1)
"""``[n, 2]``: where a block can be."""
POINTING = ("saliency", "input_x_gradient", "integrated_gradients", "occlusion_typical")
SEES_NEXT = RewardModelSettings(
    network="benchmarks.calibrations.attribution:ThreeConvolutions",
    use_state=False,
    use_action=False,
    use_next_state=True,
    ensemble_size=1,
    bootstrap=False,
)


class ThreeConvolutions(nn.Module):
    """Three convolutions over the next state."""

    def __init__(self, observation_space: gym.spaces.Box) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((observation_space.shape[2], 16, 1), (16, 32, 2), (32, 32, 2)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, 1))

    def forward(self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor) -> Tensor:
        """Return rewards ``[n]``."""
        rewards: Tensor = self.layers(next_observations.permute(0, 3, 1, 2).float() / 255.0).squeeze(1)
        return rewards


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure every claim for each seed."""
    return [row for seed in seeds for row in (*_planted(seed), _coin_flip(seed))]


def _planted(seed: int) -> list[Row]:
    train, reward = planted(seed)
    test = pictures(400, seed + 1000)
    positive = test.rewards > 0
    scores = reward.of(test)
    auc = float((scores[positive][:, None] > scores[~positive][None]).mean())
    steps = test[np.random.default_rng(seed).permutation(np.flatnonzero(positive))[:POSITIVES]]
    regions = regions_of(reward.observation_space)
    question = RewardQuestion(reward, train.sample(512, np.random.default_rng(seed)), regions, seed)
    strangers = [question.about(reward.fresh(seed + 1 + i)) for i in range(UNTRAINED)]  # type: ignore[arg-type]
    objects = where(steps, regions)
    hits, untrained, masses = {}, {}, {}
    for name, method in make_methods(POINTING).items():
        maps = contributions(method, question, steps)["next_state"]
        hits[name], masses[name] = pointing(maps, objects)
        of_each = [pointing(contributions(method, each, steps)["next_state"], objects)[0] for each in strangers]
        untrained[name] = float(np.mean(of_each))
    errors = {
        points: float(question.gap(steps, IntegratedGradients(points, most=points).attribute(question, steps)).max())
        for points in (8, 32, 128)
    }
    chance = float(objects.mean())
    return [
        Row("S1", f"planted image reward, seed {seed}: AUC", auc, "> 0.98", auc > 0.98),
        Row(
            "S2",
            f"pointing game among {DISTRACTORS} equally bright distractors, seed {seed}: hits of the trained network "
            f"(by chance {chance:.2f})",
            hits,
            "each >= 0.9",
            min(hits.values()) >= 0.9,
        ),
        Row(
            "S2",
            f"pointing game, seed {seed}: hits of untrained networks, mean of {UNTRAINED}",
            untrained,
            "each <= 0.4",
            max(untrained.values()) <= 0.4,
        ),
        Row(
            "S2",
            f"pointing game, seed {seed}: mass of occlusion on the objects",
            masses["occlusion_typical"],
            ">= 0.8",
            masses["occlusion_typical"] >= 0.8,
        ),
        Row(
            "S3",
            f"integrated gradients, seed {seed}: largest gap by points",
            {str(points): error for points, error in errors.items()},
            "< 0.05 with 32 points, and decreasing",
            errors[32] < 0.05 and errors[128] < errors[32] < errors[8],
        ),
    ]


def _coin_flip(seed: int) -> Row:
    subject = coin_flip(seed)
    section = run_step(attribution, subject)
    found = section.values["gradient_against_intervention"]
    warned = any(each.kind == "warning" and "gradient" in each.text for each in section.statements)
    passed = warned and found["ablation"] >= 0.4 and found["ablation"] >= 10 * found["gradient"]
    return Row(
        "C3",
        f"CoinFlip, seed {seed}: share of the most important cell in interventions and in the gradient; the report warns",
        found,
        "ablation >= 0.4 and >= 10 x gradient, with a warning",
        bool(passed),
    )


@cache
def planted(seed: int) -> tuple[Transitions, RewardFunction]:
    """Fit a reward to the planted image."""
    env, steps = make_env("rlhf_ray/PlantedImage-v0"), pictures(PICTURES, seed)
    settings = SupervisedSettings(epochs=EPOCHS, learning_rate=2e-3, test_share=0.05)
    ensemble, _ = fit_to_rewards(steps, env.observation_space, env.action_space, SEES_NEXT, settings, seed=seed)
    reward = EnsembleReward(ensemble)
    reward.inputs = frozenset(("next_state",))
    return steps, reward


def coin_flip(seed: int) -> Subject:
    """Return the reward fitted to CoinFlip."""
    steps, reward = coin_flip_model(seed)
    env = make_env("rlhf_ray/CoinFlip-v0")
    return Subject(reward, steps, seed=seed, regions=regions_of(env.observation_space, env.unwrapped.grid))


def pictures(count: int, seed: int) -> Transitions:
    """Draw steps of the planted image: half of them have a coin that touches the agent.

    Six distractors, as large and as bright as agent and coin, stand beside them on grey noise: an untrained network cannot know
    which blocks matter.
    """
    env = make_env("rlhf_ray/PlantedImage-v0")
    rng, most = np.random.default_rng(seed), SIDE - BLOCK
    images = np.zeros((count, SIDE, SIDE, 3), np.uint8)
    for image in images:
        agent = rng.integers(0, most + 1, 2)
        coin = rng.integers(0, most + 1, 2)
        if rng.random() < 0.5:
            side = rng.permutation([rng.choice([-BLOCK, BLOCK]), rng.integers(-BLOCK, BLOCK + 1)])
            coin = np.where((agent + side < 0) | (agent + side > most), agent - side, agent + side)
        while np.abs(coin - agent).max() < BLOCK or not ((coin >= 0) & (coin <= most)).all():
            coin = rng.integers(0, most + 1, 2)
        taken = [agent, coin]
        for _ in range(DISTRACTORS):
            free = PLACES[np.abs(PLACES[:, None] - np.stack(taken)).max(2).min(1) >= BLOCK]
            taken.append(free[rng.integers(len(free))])
        colours = rng.permutation(DISTRACTOR_COLOURS)[:DISTRACTORS]
        others = list(zip(map(tuple, taken[2:]), colours, strict=True))
        image[:] = env.unwrapped.observe(tuple(agent), tuple(coin), distractors=others)
    noise = rng.integers(0, NOISE, (count, SIDE, SIDE, 1), np.uint8)
    images = np.where(images.any(-1, keepdims=True), images, noise)
    rewards, episodes = coin_touched(images, None, images), np.arange(count) // 20
    zeros = np.zeros(count, np.int64)
    return Transitions(images, zeros, images, zeros.astype(bool), rewards, episodes, np.arange(count) % 20)


def where(steps: Transitions, regions: Regions) -> BoolArray:
    """Return the pixels of the patches that agent and coin touch after each step, ``[n, height, width]``."""
    images = steps.next_observations
    agent = (images[..., 2] > 200) & (images[..., 0] < 100)
    coin = (images[..., 0] > 200) & (images[..., 2] < 50)
    objects = (agent | coin).reshape(len(steps), -1)
    masks = regions.masks[..., 0].reshape(len(regions), -1)
    touched = objects @ masks.T
    return (touched @ masks).reshape(len(steps), SIDE, SIDE)


def pointing(maps: FloatArray, objects: BoolArray) -> tuple[float, float]:
    """Return how often a map's largest pixel lies on the objects, and the share of its absolute values there."""
    size = np.abs(maps.sum(-1)).reshape(len(maps), -1)
    on = objects.reshape(len(maps), -1)
    hits = on[np.arange(len(maps)), size.argmax(1)].mean()
    return float(hits), float(((size * on).sum(1) / np.maximum(size.sum(1), 1e-12)).mean())


if __name__ == "__main__":
    for row in rows((0, 1, 2)):
        print(row)
