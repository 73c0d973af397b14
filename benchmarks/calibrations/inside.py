"""What is inside a reward: feature visualisation (V1), planted factors (N1), probes (L1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.calibrations import Row
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs.planted import SIDE, PlantedImage
from rlhf_ray.interpret.directions.stability import match
from rlhf_ray.interpret.reward import factors
from rlhf_ray.interpret.reward.layer_probes import probe_layer
from rlhf_ray.interpret.reward.layers import layers_of
from rlhf_ray.interpret.reward.manifold import Manifold, frames_of, total_variation
from rlhf_ray.interpret.reward.visualisation import Objective, VisualisationSettings, optimise
from rlhf_ray.reward.functions import RewardFunction, TorchReward
from rlhf_ray.reward.functions.function import reinitialise


class ThreeConvolutions(TorchReward):
    """Three convolutions over the next state, the reward's planted cause."""

    def __init__(self, name: str = "planted"):
        layers = []
        for inputs, outputs, stride in ((3, 16, 1), (16, 32, 2), (32, 32, 2)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.ReLU()]
        super().__init__(nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 16, 1)))
        self.name = name
        self.observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(5)
        self.inputs = frozenset(("next_state",))

    def member_tensor(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """Compute the reward, ``[1, n]``."""
        return self.module(next_observations.permute(0, 3, 1, 2) / 255.0).T

    def fresh(self, seed: int) -> RewardFunction:
        """Return new weights."""
        untrained = ThreeConvolutions(f"{self.name}, untrained")
        reinitialise(untrained.module, seed)
        return untrained


def planted(count: int, seed: int, length: int = 25) -> Transitions:
    """Record ``count`` steps of `PlantedImage`, half of the actions random: reward 1 where the coin touches the agent."""
    env, rng = PlantedImage(), np.random.default_rng(seed)
    parts: dict[str, list[Any]] = {name: [] for name in ("before", "action", "after", "reward", "episode", "step")}
    states: list[dict[str, float]] = []
    for episode in range(count // length):
        frame, _ = env.reset(seed=seed * 10_000 + episode)
        for step in range(length):
            action = env.expert(rng) if rng.random() < 0.5 else int(rng.integers(5))
            after, reward, *_ = env.step(action)
            for name, value in zip(parts, (frame, action, after, reward, episode, step), strict=True):
                parts[name].append(value)
            states.append(env.describe())
            frame = after
    before, actions, afters, rewards, episodes, steps = (np.array(of) for of in parts.values())
    columns = {f"state.{name}": np.array([each[name] for each in states]) for name in states[0]}
    ended = np.zeros(len(rewards), bool)
    return Transitions(before, actions, afters, ended, rewards.astype(np.float64), episodes, steps, columns)


def fit(steps: Transitions, seed: int, updates: int = 300) -> ThreeConvolutions:
    """Regress the true reward."""
    reward = ThreeConvolutions()
    reinitialise(reward.module, seed)
    reward.module.requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(reward.module.parameters(), 2e-3)
    images, truth = torch.as_tensor(steps.next_observations), torch.as_tensor(steps.rewards).float()
    touching, apart = torch.nonzero(truth > 0)[:, 0], torch.nonzero(truth <= 0)[:, 0]
    for _ in range(updates):  # half of each batch are touches, which are rare
        at = torch.cat([of[torch.randint(len(of), (32,), generator=generator)] for of in (touching, apart)])
        given = reward.module(images[at].permute(0, 3, 1, 2) / 255.0)[:, 0]
        loss = ((given - truth[at]) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    reward.module.requires_grad_(False)
    return reward


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure V1, N1 and L1 for each of ``seeds``."""
    found = []
    for seed in seeds:
        train, test = planted(2000, seed), planted(1000, 1000 + seed)
        reward = fit(train, seed)
        found += [*_visualisation(reward, test, seed), _factors(seed), *_probes(reward, test, seed)]
    return found


def _visualisation(reward: ThreeConvolutions, data: Transitions, seed: int) -> list[Row]:
    manifold = Manifold(data, ("next_state",), seed)
    settings = VisualisationSettings(steps=100)
    regularised = optimise(reward, data, seed, Objective(), 4, settings, manifold)
    free = optimise(reward, data, seed, Objective(), 4, settings.unregularised(), manifold)
    prior = optimise(reward, data, seed, Objective(), 4, replace(settings, parametrisation="prior"), manifold)
    figures = {
        "lowest reward": float(regularised.rewards.min()),
        "data's highest": float(reward.of(data).max()),
        "total variation": float(np.max([total_variation(of) for of in frames_of(regularised.steps, ("next_state",))])),
        "data's total variation": float(total_variation(data.next_observations).mean()),
    }
    rounded = {name: round(value, 4) for name, value in figures.items()}
    passed = (
        figures["lowest reward"] > figures["data's highest"]
        and figures["total variation"] <= figures["data's total variation"]
    )
    flagged, real = float(np.mean(free.off)), manifold.held_out_off
    return [
        Row("V1", f"regularised inputs, seed {seed}", rounded, "reward > data's highest, variation <= data's", passed),
        Row(
            "V1",
            f"off the manifold, seed {seed}",
            {
                "not regularised": flagged,
                "held-out data": round(real, 3),
                "with a prior": float(np.mean(prior.off)),
                "prior's highest reward": round(float(prior.rewards.max()), 3),
            },
            "not regularised: all; held-out data < 0.1",
            flagged == 1.0 and real < 0.1,
        ),
    ]


def planted_factors(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return activations ``[64, 8, 6, 6]`` made of three directions, and the directions ``[3, 8]``."""
    rng = np.random.default_rng(seed)
    directions = np.zeros((3, 8))
    for at, channels in enumerate(((0, 1, 2), (3, 4), (5, 6, 7))):
        directions[at, list(channels)] = rng.uniform(0.5, 1.5, len(channels))
    weights = rng.exponential(size=(64, 3, 6, 6)) * (rng.random((64, 3, 6, 6)) < 0.4)
    return np.einsum("nkhw,kc->nchw", weights, directions), directions


def _factors(seed: int) -> Row:
    values, directions = planted_factors(seed)
    cosines = match(directions, factors.fit(values, 3, seed).directions)
    return Row(
        "N1",
        f"planted NMF directions, seed {seed}",
        round(float(cosines.min()), 4),
        "> 0.98",
        bool(cosines.min() > 0.98),
    )


def _probes(reward: ThreeConvolutions, data: Transitions, seed: int) -> list[Row]:
    layers = layers_of(reward)
    distance = data.columns["state.distance"]
    # The third convolution sees 9 pixels: two blocks of 3 that are at most 6 apart. Farther ones look alike to it.
    near = {"up to 6 pixels": np.minimum(distance, 6.0), "any": distance}
    found = []
    for name in ("3", "5"):
        one, any_distance = probe_layer(reward, data, layers[name], near, "linear", seed)
        figures = {"trained": one.trained, "untrained": one.untrained or 0.0, "shuffled": one.shuffled}
        figures |= {"any distance": any_distance.trained, "any distance, untrained": any_distance.untrained or 0.0}
        rounded = {key: round(value, 3) for key, value in figures.items()}
        passed = (one.gain or 0.0) > 0.3 and one.shuffled <= 0.05
        what = f"distance of agent and coin up to 6 pixels, layer {name}, seed {seed}"
        found.append(Row("L1", what, rounded, "trained - untrained > 0.3, shuffled <= 0.05", passed))
    return found
