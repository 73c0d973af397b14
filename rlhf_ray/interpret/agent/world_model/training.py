"""Trains a world model on windows of a recording. A stopped training resumes bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes, action_inputs
from rlhf_ray.agents.recorded import Windows
from rlhf_ray.data.atomic import whole_file
from rlhf_ray.interpret.agent.world_model.model import RecurrentWorld, WorldShape
from rlhf_ray.policies.actions import gumbel_noise

CHECKPOINT = "training.safetensors"
OBSERVED = 512
"""Windows that the observations' mean and deviation, and the largest reward, are taken from."""


@dataclass(frozen=True)
class WorldTraining:
    """How a world model is trained.

    Simulations read latents that the prior predicts, so training does, too; else long predictions drift. In the first half of the
    batches these are single steps, and only the memory reads them: encoder and decoder have to find each other first. In the second
    half observations, rewards and ends are decoded from them as well, and a quarter of the windows has runs from a random step to
    the end.
    """

    batches: int = 3000  # number of gradient steps
    windows: int = 16  # windows per batch
    length: int = 16  # observations per window
    learning_rate: float = 1e-3  # peak of Adam's; it warms up and, in the second half, falls to 0
    # weight of the share of the observations' variance that the decoder leaves unexplained, in nats
    observed: float = 75.0
    # to_prior, to_posterior: weight of the KL divergence, as far as it trains the prior and the posterior (KL balance)
    to_prior: float = 0.5
    to_posterior: float = 0.1
    free_nats: float = 0.3  # KL divergence of a step that costs nothing
    outcomes: float = 5.0  # weight of the cross-entropies of reward and end
    clip: float = 100.0  # norm that gradients are clipped to
    seed: int = 0  # seeds weights, windows and latents
    save_every: int = 100  # batches between checkpoints


@dataclass(frozen=True)
class WorldTrainingProgress:
    """How far a training is."""

    # batch, batches: gradient steps made, and in total
    batch: int
    batches: int
    unexplained: float  # share of the observations' variance that reconstructions leave unexplained
    divergence: float  # KL divergence from prior to posterior per step, in nats: how badly the latents are predicted
    # reward, end: cross-entropies of the two heads
    reward: float
    end: float


def train_world(
    agent: Agent,
    windows: Windows,
    settings: WorldTraining,
    *,
    shape: WorldShape | None = None,
    unfinished: Path | str | None = None,
    device: torch.device | str = "cpu",
    watch: Callable[[WorldTrainingProgress], None] = lambda progress: None,
) -> RecurrentWorld:
    """Train a world model on ``windows`` of ``settings.length`` observations of the training split; return it frozen, on the CPU.

    Args:
        agent: whose recording it is. Only its spaces and digest are read.
        windows: the windows.
        settings: see `WorldTraining`.
        shape: the model's size; default: by the observations.
        unfinished: folder for checkpoints; a training with the same settings that was stopped goes on from the newest.
        device: where to train, for example ``cuda``.
        watch: called every 50 batches.
    """
    shape = shape or WorldShape.for_space(agent.observation_space)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        world = RecurrentWorld(agent.observation_space, agent.action_space, shape, agent.digest)
    _look(world, windows, settings)
    world.to(device)
    adam = torch.optim.Adam(world.parameters(), lr=settings.learning_rate, fused=True)
    checkpoint = Path(unfinished) / CHECKPOINT if unfinished is not None else None
    about = json.dumps(
        {"settings": asdict(settings), "shape": asdict(shape), "agent": agent.digest, "windows": len(windows)}
    )
    first = _restore(checkpoint, about, world, adam) if checkpoint is not None else 0
    for number in range(first, settings.batches):
        rng = np.random.default_rng([settings.seed, 2, number])  # of its own, so that a resumed training draws the same
        drawn = windows[rng.integers(len(windows), size=settings.windows)]
        batch = read(drawn, agent.action_space, device)
        noise, predicted = _draws(world, settings, number, device)
        losses = _losses(world, batch, noise, predicted, settings, in_states=2 * number >= settings.batches)
        for group in adam.param_groups:
            group["lr"] = settings.learning_rate * _rate(number, settings.batches)
        adam.zero_grad(set_to_none=True)
        losses[0].backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(world.parameters(), settings.clip)
        adam.step()
        if (number + 1) % 50 == 0 or number + 1 == settings.batches:
            watch(WorldTrainingProgress(number + 1, settings.batches, *losses[1].tolist()))
        if checkpoint is not None and (number + 1) % settings.save_every == 0 and number + 1 < settings.batches:
            _keep(checkpoint, about, number + 1, world, adam)
    return world.cpu().eval().requires_grad_(False)


def _losses(
    world: RecurrentWorld,
    batch: Read,
    noise: Tensor,
    predicted: Tensor,
    settings: WorldTraining,
    in_states: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return the loss, and its parts: unexplained variance, KL divergence, cross-entropies of reward and end."""
    unrolled = world.unroll(batch.observations, batch.actions, noise, predicted, in_states)
    seen, made = batch.real.float(), batch.real[:, 1:].float()
    steps, count = seen.sum().clamp_min(1.0), made.sum().clamp_min(1.0)

    wanted = world.normalised(batch.observations).flatten(2)
    decoded = world.decode(unrolled.states.flatten(0, 1)).reshape(wanted.shape)
    unexplained = ((decoded - wanted).square().mean(-1) * seen).sum() / steps

    prior, posterior = unrolled.prior, unrolled.posterior[:, 1:]
    fixed = posterior.detach()
    to_prior = (fixed.exp() * (fixed - prior)).flatten(2).sum(-1)
    to_posterior = (posterior.exp() * (posterior - prior.detach())).flatten(2).sum(-1)
    free = settings.free_nats
    divergence = settings.to_prior * to_prior.clamp_min(free) + settings.to_posterior * to_posterior.clamp_min(free)

    rewards, ends = world.outcomes(unrolled.states[:, 1:].flatten(0, 1))
    targets = world.reward_targets(batch.rewards)
    reward = -(targets * rewards.view_as(targets).log_softmax(-1)).sum(-1)
    end = functional.binary_cross_entropy_with_logits(ends.view_as(batch.ends), batch.ends, reduction="none")

    parts = torch.stack([(part * made).sum() / count for part in (divergence, reward, end)])
    told = torch.stack([unexplained, (to_prior * made).sum() / count, *parts[1:]]).detach()
    return settings.observed * unexplained + parts[0] + settings.outcomes * (parts[1] + parts[2]), told


def _look(world: RecurrentWorld, windows: Windows, settings: WorldTraining) -> None:
    """Set the model's units by what the windows hold."""
    rng = np.random.default_rng([settings.seed, 1])
    some = read(windows[rng.integers(len(windows), size=OBSERVED)], world.action_space)
    seen = some.observations[some.real].float()
    axes = tuple(range(seen.ndim)) if world.image else (0,)
    world.middle.copy_(seen.mean(axes))
    # The deviation around the mean frame: what the decoder has to explain.
    deviation = seen.var(0, unbiased=False).mean().sqrt() if world.image else seen.std(0, unbiased=False)
    world.scale.copy_(torch.where(deviation > 1e-4 * (1.0 + world.middle.abs()), deviation, 1.0))
    largest = float(some.rewards[some.real[:, 1:]].abs().max()) if some.real[:, 1:].any() else 0.0
    # Evenly spaced after a symmetric logarithm, so that rewards of any size have their bins.
    bins = torch.linspace(-1.0, 1.0, len(world.reward_bins)) * np.log1p(max(largest, 1e-3) * 1.05)
    world.reward_bins.copy_(bins.sign() * torch.expm1(bins.abs()))


def _draws(
    world: RecurrentWorld, settings: WorldTraining, number: int, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Draw the latents' noise and which steps are predicted: see `RecurrentWorld.unroll`."""
    generator = torch.Generator().manual_seed(int(np.random.default_rng([settings.seed, 3, number]).integers(2**62)))
    steps = settings.windows, settings.length
    noise = gumbel_noise((*steps, world.cells, world.shape.groups, world.shape.classes), generator)
    # One at a time: the prior reads what was seen the step before.
    predicted = torch.rand(steps, generator=generator) < 0.5
    for t in range(1, settings.length):
        predicted[:, t] &= ~predicted[:, t - 1]
    if 2 * number >= settings.batches:
        some = settings.windows // 4
        first = torch.randint(1, 2 * settings.length, (some, 1), generator=generator)
        predicted[:some] = torch.arange(settings.length) >= first
    return noise.to(device), predicted.to(device)


def _rate(number: int, batches: int) -> float:
    """Return the share of the learning rate: it warms up over 100 batches, and falls in the second half."""
    return min(1.0, (number + 1) / 100.0, 2.0 * (1.0 - number / batches))


def _keep(path: Path, about: str, done: int, world: RecurrentWorld, adam: torch.optim.Adam) -> None:
    tensors = {f"world.{name}": value for name, value in world.state_dict().items()}
    for number, state in adam.state_dict()["state"].items():
        tensors |= {f"adam.{number}.{name}": value for name, value in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with whole_file(path) as sink:
        sink.write(save(tensors, {"about": about, "done": str(done)}))


def _restore(path: Path, about: str, world: RecurrentWorld, adam: torch.optim.Adam) -> int:
    """Load the checkpoint, if it is one of this training; return the number of batches that it has made."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError):  # without a checkpoint, training starts anew
        return 0
    if metadata.get("about") != about:
        return 0
    world.load_state_dict({name[6:]: value for name, value in tensors.items() if name.startswith("world.")})
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("adam."):
            _, number, part = name.split(".")
            states.setdefault(int(number), {})[part] = value
    adam.load_state_dict({**adam.state_dict(), "state": states})
    return int(metadata["done"])


@dataclass(frozen=True)
class Read:
    """Windows as a world model reads them."""

    observations: Tensor  # ``[n, L, …]``
    actions: Tensor  # ``[n, L - 1, actions]``: one-hot, or policy actions
    # rewards, ends: of the step that led to each observation but the first, ``[n, L - 1]``
    rewards: Tensor
    ends: Tensor
    real: Tensor  # which observations are no padding, ``[n, L]``


def read(windows: Episodes, action_space: gym.Space[Any], device: torch.device | str = "cpu") -> Read:
    """Convert windows to tensors."""
    n, length = windows.observations.shape[:2]
    times = np.arange(length)
    ends = windows.terminated[:, None] & (times[:-1] == windows.lengths[:, None] - 1)
    tensors = (
        torch.as_tensor(np.ascontiguousarray(windows.observations)),
        as_policy_actions(windows.actions, action_space),
        torch.as_tensor(windows.rewards, dtype=torch.float32),
        torch.as_tensor(ends.reshape(n, length - 1), dtype=torch.float32),
        torch.as_tensor(times <= windows.lengths[:, None]),
    )
    return Read(*(tensor.to(device) for tensor in tensors))


def as_policy_actions(actions: Any, space: gym.Space[Any]) -> Tensor:
    """Return `action_inputs` as a tensor, float32."""
    return torch.as_tensor(np.asarray(action_inputs(np.asarray(actions), space), np.float32))
