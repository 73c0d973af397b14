"""RecurrentWorld: a recurrent state-space model in the manner of DreamerV3 (Hafner et al. 2023), for images and vectors."""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional

from rlhf_ray.agents.agent import Agent, digest_of
from rlhf_ray.agents.episodes import action_size
from rlhf_ray.data.atomic import whole_file, write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.recordings import Recording
from rlhf_ray.data.spaces import space_from_json, space_to_json

FORMAT = "rlhf_ray.world_model/2"


@dataclass(frozen=True)
class WorldShape:
    """The size of a world model."""

    memory: int = 32  # units of each cell's memory
    # groups, classes: the latent of a cell is ``groups`` variables of ``classes`` values each
    groups: int = 2
    classes: int = 16
    channels: int = 64  # units of hidden layers of each cell
    shared: int = 128  # units of the hidden layer that all cells share
    context: int = 3  # observations that a simulation starts from
    bins: int = 21  # bins of the reward head
    unimix: float = 0.01  # share of the uniform distribution in the latent's probabilities

    @classmethod
    def for_space(cls, space: gym.Space[Any]) -> WorldShape:
        """Return the default size for observations of ``space``: a vector is one cell, which is larger."""
        return cls() if is_image(space) else cls(memory=192, groups=12, classes=12, channels=256, shared=0)


@dataclass(frozen=True)
class Unrolled:
    """What a world model computes along ``n`` windows of ``L`` observations."""

    # prior, posterior: logarithms of the latent's probabilities, without and with the observation, ``[n, L, groups, classes]``
    prior: Tensor
    posterior: Tensor
    states: Tensor  # ``[n, L, size]``, with latents of the posterior


class RecurrentWorld(nn.Module):
    """A `rlhf_ray.interpret.agent.world_model.simulate.World` that is learned.

    The state consists of cells, a coarse grid over an image; vectors have one. Each cell has a recurrent memory (GRU) and a latent
    of categorical variables, one-hot. The memory reads the latents around it and, through a layer that all cells share, the whole
    latent and the action of the step before. From the memory the prior predicts the latent; the posterior reads it from the
    observation alone, so that all steps of a window are encoded and decoded at once. What is learned about one cell holds for all,
    which makes training several times faster than with one memory for the whole image. Observation, reward and end are decoded
    from memory and latents.

    Simulations carry the latents' probabilities (mean field), not draws: what can't be known, such as what scrolls into view, is
    predicted as its mean, and gradients are exact. Training has such steps, too: see `unroll`.

    Attributes:
        shape: its size.
        size: length of the state vector: the cells' memory, then their latents.
        context: number of observations that it starts from.
        agent: digest of the agent whose recording it was trained on.
        about: what else is known about its making, JSON values: recording, environment, settings, …
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], shape: WorldShape, agent: str):
        super().__init__()
        assert observation_space.shape is not None
        self.observation_space, self.action_space = observation_space, action_space
        self.shape, self.agent, self.context = shape, agent, shape.context
        self.about: dict[str, Any] = {}
        self.image = is_image(observation_space)
        self.actions = action_size(action_space)
        seen, channels = observation_space.shape, shape.channels
        self.grid = _grids(seen[0], seen[1])[0][-1] if self.image else (1, 1)
        self.cells = self.grid[0] * self.grid[1]
        latent = shape.groups * shape.classes
        self.size = self.cells * (shape.memory + latent)
        self.middle: Tensor = nn.Buffer(torch.zeros(() if self.image else seen))
        self.scale: Tensor = nn.Buffer(torch.ones(() if self.image else seen))
        self.reward_bins: Tensor = nn.Buffer(torch.linspace(-1.0, 1.0, shape.bins))
        self.encoder: nn.Module
        self.decoder: nn.Module
        if self.image:
            self.encoder = ImageEncoder(seen, channels, latent)
            self.decoder = ImageDecoder(seen, channels, latent + shape.memory)
            self.near = nn.Linear(latent, channels // 2, bias=False)
            self.around = nn.Linear(9 * (channels // 2), channels, bias=False)
            self.summary = layer(self.cells * latent + self.actions, shape.shared)
            self.from_summary = nn.Linear(shape.shared, self.cells * channels)
        else:
            self.encoder = of_vectors(math.prod(seen), channels, (1, latent))
            self.decoder = of_vectors(latent + shape.memory, channels, seen)
            self.from_summary = nn.Linear(latent + self.actions, channels)
        self.mixed = nn.Sequential(nn.LayerNorm(channels), nn.SiLU())
        self.cell = nn.GRUCell(channels, shape.memory)
        self.first = nn.Parameter(torch.zeros(shape.memory))
        self.prior = nn.Sequential(layer(channels + shape.memory, channels), nn.Linear(channels, latent))
        self.outcome = layer(latent + shape.memory, channels)
        self.rewarder, self.ender = nn.Linear(channels, shape.bins), nn.Linear(channels, 1)
        for head in (self.rewarder, self.ender):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    @property
    def digest(self) -> str:
        """Hash of weights and settings, 16 hex digits."""
        return digest_of(self.state_dict(), self._identity())

    def save(self, folder: Path | str) -> None:
        """Write ``world.json`` and ``world.safetensors`` to ``folder``, which is created if missing."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        with whole_file(path / "world.safetensors") as sink:
            sink.write(save({name: value.cpu().contiguous() for name, value in self.state_dict().items()}))
        about = {**self._identity(), "digest": self.digest}
        write_text(path / "world.json", json.dumps(about, indent=1))

    def _identity(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "agent": self.agent,
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "shape": asdict(self.shape),
            "latent_gradient": "softmax",
            "about": self.about,
        }

    def unroll(
        self,
        observations: Tensor,
        actions: Tensor,
        noise: Tensor | None = None,
        predicted: Tensor | None = None,
        in_states: bool = False,
    ) -> Unrolled:
        """Read windows.

        Args:
            observations: ``[n, L, …]`` in the environment's units.
            actions: between them, ``[n, L - 1, actions]``.
            noise: Gumbel noise ``[n, L, cells, groups, classes]`` to draw latents with; None takes their probabilities.
            predicted: bool ``[n, L]``: steps whose latents the memory reads as the prior predicts them, as in a simulation.
            in_states: whether the states of these steps have the prior's probabilities, too, and gradients pass through them.
        """
        n, length = observations.shape[:2]
        encoded = self.encoder(self.normalised(observations).flatten(0, 1)).unflatten(0, (n, length))
        posterior = self._log_probabilities(encoded)
        latents = _latents(posterior, noise)  # [n, L, cells, latent]
        memory, now = self.first.expand(n, self.cells, -1), latents[:, 0]
        memories, priors, read = [memory], [], [now]
        for t in range(1, length):
            memory, prior = self._remember(memory, now, actions[:, t - 1])
            now = latents[:, t]
            if predicted is not None:
                expected = prior.exp().flatten(-2)
                now = torch.where(predicted[:, t, None, None], expected if in_states else expected.detach(), now)
            memories.append(memory)
            priors.append(prior)
            read.append(now)
        in_state = torch.stack(read, 1) if in_states else latents
        states = torch.cat([torch.stack(memories, 1).flatten(2), in_state.flatten(2)], -1)
        return Unrolled(torch.stack(priors, 1) if priors else posterior[:, 1:], posterior, states)

    def _remember(self, memory: Tensor, latents: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the memory ``[n, cells, memory]`` after a step, and the prior from it."""
        inputs = self._mixed(latents, actions.to(latents.dtype))
        after = self.cell(inputs.flatten(0, 1), memory.flatten(0, 1)).view(memory.shape)
        return after, self._log_probabilities(self.prior(torch.cat([inputs, after], -1)))

    def begin(self, observations: Tensor, actions: Tensor) -> Tensor:
        return self.unroll(observations, actions).states[:, -1]

    def next(self, state: Tensor, actions: Tensor) -> Tensor:
        memory, prior = self._remember(*self._parts(state), actions)
        return torch.cat([memory.flatten(1), prior.exp().flatten(1)], -1)

    def observe(self, state: Tensor) -> Tensor:
        return self.decode(state) * self.scale + self.middle

    def reward(self, state: Tensor) -> Tensor:
        return self.outcomes(state)[0].softmax(-1) @ self.reward_bins

    def end(self, state: Tensor) -> Tensor:
        return self.outcomes(state)[1]

    def outcomes(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the reward's bins ``[n, bins]`` and of the end ``[n]``."""
        cells = self.outcome(torch.cat(self._parts(states), -1))
        pooled = cells.amax(1)  # what happens in one cell is enough
        return self.rewarder(pooled), self.ender(pooled).squeeze(-1)

    def decode(self, states: Tensor) -> Tensor:
        """Return normalised observations ``[n, …]``."""
        decoded: Tensor = self.decoder(torch.cat(self._parts(states), -1))
        return decoded

    def normalised(self, observations: Tensor) -> Tensor:
        """Return observations with mean 0 and deviation about 1, as encoder and decoder see them."""
        return (observations.float() - self.middle) / self.scale

    def reward_targets(self, rewards: Tensor) -> Tensor:
        """Return rewards as weights of the two nearest bins, ``[…, bins]``."""
        bins = self.reward_bins
        upper = torch.bucketize(rewards.clamp(bins[0], bins[-1]), bins).clamp(1, len(bins) - 1)
        share = ((rewards - bins[upper - 1]) / (bins[upper] - bins[upper - 1])).clamp(0.0, 1.0)[..., None]
        return functional.one_hot(upper, len(bins)) * share + functional.one_hot(upper - 1, len(bins)) * (1.0 - share)

    def _parts(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return memory ``[n, cells, memory]`` and latents ``[n, cells, latent]``."""
        n, memory = len(states), self.cells * self.shape.memory
        return states[:, :memory].reshape(n, self.cells, -1), states[:, memory:].reshape(n, self.cells, -1)

    def _mixed(self, latents: Tensor, actions: Tensor) -> Tensor:
        """Return what the memory of each cell reads, ``[n, cells, channels]``."""
        everything = torch.cat([latents.flatten(1), actions], -1)
        if not self.image:
            mixed: Tensor = self.mixed(self.from_summary(everything))[:, None]
            return mixed
        near = self.near(latents).unflatten(1, self.grid)
        padded = functional.pad(near, (0, 0, 1, 1, 1, 1))
        rows, columns = self.grid
        nine = [padded[:, i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
        around = torch.cat(nine, -1).flatten(1, 2)
        shared = self.from_summary(self.summary(everything)).unflatten(1, (self.cells, -1))
        together: Tensor = self.mixed(self.around(around) + shared)
        return together

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        """Return logarithms of the probabilities ``[…, groups, classes]`` of logits ``[…, latent]``."""
        probabilities = logits.reshape(*logits.shape[:-1], self.shape.groups, self.shape.classes).softmax(-1)
        return torch.log((1.0 - self.shape.unimix) * probabilities + self.shape.unimix / self.shape.classes)


def load_world(folder: Path | str, *, agent: Agent | None = None) -> RecurrentWorld:
    """Load a world model that `RecurrentWorld.save` wrote, frozen; ``agent``: the one that it has to be made for.

    Raises:
        SettingError: there is none, it is damaged, or it was made for another agent.
    """
    path = Path(folder)
    try:
        kept = json.loads((path / "world.json").read_text())
        if kept["format"] != FORMAT:
            raise ValueError(f"its format is {kept['format']!r}, not {FORMAT!r}")
        spaces = space_from_json(kept["observation_space"]), space_from_json(kept["action_space"])
        world = RecurrentWorld(*spaces, WorldShape(**kept["shape"]), kept["agent"])
        world.load_state_dict(load_file(path / "world.safetensors"))
        world.about = kept["about"]
        digest = kept["digest"]
    except FileNotFoundError:
        raise SettingError(f"{folder} holds no world model (world.json, world.safetensors); train one.") from None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise SettingError(f"The world model in {folder} can't be read ({error}): train it again.") from error
    if world.digest != digest:
        raise SettingError(
            f"The world model in {folder} is damaged: its weights are not those of world.json; train it again."
        )
    if agent is not None and agent.digest != world.agent:
        raise SettingError(
            f"The world model in {folder} is of the agent {world.agent}, not of {agent.name} ({agent.digest}): train one on a "
            "recording of this agent."
        )
    return world.eval().requires_grad_(False)


def recording_digest(folder: Path | str) -> str:
    """Return the hash of a recording's manifest: what was recorded, and its chunks."""
    recording = Recording(folder)
    kept = json.dumps([recording.about, recording.chunks], sort_keys=True)
    return hashlib.sha256(kept.encode()).hexdigest()[:16]


def _latents(logarithms: Tensor, noise: Tensor | None = None) -> Tensor:
    """Return latents ``[…, groups * classes]``: drawn, one-hot, with the gradient of the probabilities; or the probabilities."""
    soft = logarithms.exp()
    if noise is None:
        return soft.flatten(-2)
    chosen = (logarithms + noise).argmax(-1)
    return (functional.one_hot(chosen, soft.shape[-1]).to(soft.dtype) + (soft - soft.detach())).flatten(-2)


PATCH = 4
"""Side of the patches of the first stage."""
COARSE = 4
"""Each further stage halves the grid of patches, while its shorter side is longer than this."""


class ImageEncoder(nn.Module):
    """Normalised images ``[n, height, width, channels]`` to ``[n, cells, outputs]``: all cells are encoded alike."""

    def __init__(self, shape: tuple[int, ...], channels: int, outputs: int):
        super().__init__()
        grids, self.pad = _grids(shape[0], shape[1])
        widths = [shape[2], *(channels * min(2**stage, 2) for stage in range(len(grids)))]
        self.sides = [PATCH, *([2] * (len(grids) - 1))]
        sized = zip(self.sides, widths, widths[1:], strict=False)
        self.stages = nn.ModuleList(layer(side * side * before, after) for side, before, after in sized)
        self.out = nn.Sequential(layer(widths[-1], widths[-1]), nn.Linear(widths[-1], outputs))

    def forward(self, images: Tensor) -> Tensor:
        grid = nn.functional.pad(images, self.pad) if any(self.pad) else images
        for side, stage in zip(self.sides, self.stages, strict=True):
            n, height, width, _ = grid.shape
            patches = grid.reshape(n, height // side, side, width // side, side, -1).transpose(2, 3)
            grid = stage(patches.flatten(3))
        encoded: Tensor = self.out(grid).flatten(1, 2)
        return encoded


class ImageDecoder(nn.Module):
    """Cells ``[n, cells, inputs]`` to normalised images ``[n, height, width, channels]``."""

    def __init__(self, shape: tuple[int, ...], channels: int, inputs: int):
        super().__init__()
        self.shape = shape
        grids, _ = _grids(shape[0], shape[1])
        widths = [*(channels * min(2**stage, 2) for stage in reversed(range(len(grids)))), shape[2]]
        self.sides = [*([2] * (len(grids) - 1)), PATCH]
        self.grid = grids[-1]
        self.start = nn.Linear(inputs, widths[0], bias=False)
        self.place = nn.Parameter(torch.zeros(math.prod(self.grid), widths[0]))
        self.middle = nn.Sequential(nn.LayerNorm(widths[0]), nn.SiLU(), layer(widths[0], widths[0]))
        sized = zip(self.sides, widths, widths[1:], strict=False)
        self.stages = nn.ModuleList(nn.Linear(before, side * side * after) for side, before, after in sized)

    def forward(self, cells: Tensor) -> Tensor:
        flat: Tensor = self.middle(self.start(cells) + self.place)
        grid = flat.view(-1, *self.grid, flat.shape[-1])
        for number, (side, stage) in enumerate(zip(self.sides, self.stages, strict=True)):
            patches = stage(nn.functional.silu(grid) if number else grid)
            patches = patches.unflatten(3, (side, side, -1))  # [n, rows, columns, side, side, channels]
            grid = patches.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return grid[:, : self.shape[0], : self.shape[1]]


def of_vectors(inputs: int, hidden: int, outputs: tuple[int, ...]) -> nn.Sequential:
    """Normalised vectors to one cell, or one cell to vectors: ``inputs`` numbers, of any shape, to ``[n, *outputs]``."""
    layers = nn.Sequential(layer(inputs, hidden), layer(hidden, hidden), nn.Linear(hidden, math.prod(outputs)))
    return nn.Sequential(OrderedDict(flat=nn.Flatten(), layers=layers, shaped=nn.Unflatten(1, outputs)))


def layer(inputs: int, outputs: int) -> nn.Sequential:
    """Build a hidden layer: linear, normalised, SiLU."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.SiLU())


def _grids(height: int, width: int) -> tuple[list[tuple[int, int]], tuple[int, int, int, int, int, int]]:
    """Return rows and columns of patches after each stage, and how to pad ``[…, height, width, channels]`` for that."""
    halvings = max(0, math.ceil(math.log2(min(height, width) / (PATCH * COARSE))))
    side = PATCH * 2**halvings
    rows, columns = math.ceil(height / side), math.ceil(width / side)
    grids = [(rows * 2**left, columns * 2**left) for left in reversed(range(halvings + 1))]
    return grids, (0, 0, 0, columns * side - width, 0, rows * side - height)
