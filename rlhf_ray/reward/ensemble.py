"""The reward ensemble: networks, normalisers and a version number, saved and sent as one."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf_ray.data import consent
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.spaces import space_from_json, space_to_json
from rlhf_ray.optim import in_parallel
from rlhf_ray.reward.likelihood import discounts
from rlhf_ray.reward.networks import is_built_in, make_network, observe, reads_history
from rlhf_ray.reward.networks.cnn import steps_that_fit, takes_averages
from rlhf_ray.reward.unmoved import unmoved
from rlhf_ray.settings import RewardModelSettings, from_json, own_parts, to_json

FORMAT = "rlhf_ray.reward/2"
MOST_STEPS = 4096
"""Most steps of a forward pass without gradients: bounds its memory."""

_P = TypeVar("_P")
_R = TypeVar("_R")


def device_for(settings: RewardModelSettings) -> torch.device:
    """Return the device to fit on.

    Raises:
        SettingError: ``settings.gpus`` is above 0 and torch sees no GPU.
    """
    if settings.gpus and not torch.cuda.is_available():
        raise SettingError(
            f"reward_model.gpus is {settings.gpus:g}, but torch {torch.__version__} sees no GPU on {platform.node()}: set it to 0 "
            "to fit on the CPU, or install torch's CUDA build on a machine with a GPU."
        )
    return torch.device("cuda" if settings.gpus else "cpu")


class RewardEnsemble(nn.Module):
    """An ensemble of reward networks.

    Each member's output is normalised to mean 0 and standard deviation 1 over the steps it was fitted on (Christiano et al.
    2017, section 2.2.1). The reward is the mean over members, plus ``deviation_weight`` times their standard deviation.

    Predictions never draw a dropout mask or use a batch's own statistics; only `training` switches them on.

    Load a saved reward model in three lines::

        from rlhf_ray.reward import RewardEnsemble
        reward = RewardEnsemble.load("runs/pendulum/reward_model")
        rewards = reward.predict(observations, actions, next_observations, terminated)

    Args:
        action_space: the environment's action space: Box, Discrete, MultiDiscrete or MultiBinary.

    Attributes:
        reward_mean: ``[members]`` float32: mean of each member's raw reward.
        reward_std: ``[members]`` float32: standard deviation of each member's raw reward.
        version: scalar int64: number of fits; 0 before the first one.
        deviation_weight: scalar float32: see `combine`. Starts as `RewardModelSettings.deviation_weight`.
        window: scalar int64: most steps that a step's reward depends on, itself included: the length of the fitted fragments if the
            network reads history, otherwise 1.
        label_noise: scalar float32: the mean share of random answers that the last fit found; 0 before the first.
        reads_history: whether the network reads the steps before.
    """

    def __init__(self, observation_space: gym.spaces.Box, action_space: gym.Space[Any], settings: RewardModelSettings):
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.settings = settings
        self.networks = make_network(observation_space, action_space, settings)
        for name in own_parts("reward_model", settings):
            consent.allow(consent.module_of(name))  # its code runs here already
        self.reward_mean: Tensor = nn.Buffer(torch.zeros(settings.ensemble_size))
        self.reward_std: Tensor = nn.Buffer(torch.ones(settings.ensemble_size))
        self.version: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.deviation_weight: Tensor = nn.Buffer(torch.tensor(float(settings.deviation_weight)))
        self.window: Tensor = nn.Buffer(torch.ones((), dtype=torch.int64))
        self.label_noise: Tensor = nn.Buffer(torch.zeros(()))
        self.reads_history = reads_history(self.networks)
        self._that_fit = steps_that_fit(self.networks)
        self.eval()

    @property
    def at_once(self) -> int:
        """Steps of one forward pass without gradients: on a CPU, no more images than fit a core's cache."""
        if self._that_fit is None or next(self.networks.parameters()).is_cuda:
            return MOST_STEPS
        return min(MOST_STEPS, self._that_fit)

    def over_parts(self, work: Callable[[_P], _R], parts: Sequence[_P]) -> Iterable[_R]:
        """Return ``work`` of each part, in their order.

        Several cores compute one each, if the parts are images for our networks on a CPU. Other passes take so little time that
        threads gain nothing, or may draw random numbers or change the networks.
        """
        images = self._that_fit is not None and is_built_in(self.settings)
        if not images or self.settings.dropout or next(self.networks.parameters()).is_cuda:
            return map(work, parts)
        return map(work, parts) if takes_averages(self.networks) else in_parallel(work, parts)

    def combine(self, members: Tensor) -> Tensor:
        """Combine normalised rewards ``[members, …]`` to the reward ``[…]``: mean plus ``deviation_weight`` times deviation."""
        mean = members.mean(0)
        weight = float(self.deviation_weight)
        return mean + weight * members.std(0, correction=0) if weight else mean

    @contextlib.contextmanager
    def training_mode(self, generator: torch.Generator) -> Iterator[None]:
        """Dropout and batch normalisation as in a fit, within this context.

        ``generator`` seeds the dropout masks, also those of a network of the user's own, so that a fit repeats. Without dropout,
        nothing is drawn from it.
        """
        self.networks.train()
        try:
            if not self.settings.dropout and is_built_in(self.settings):
                yield
                return
            devices = {parameter.device for parameter in self.networks.parameters() if parameter.is_cuda}
            with torch.random.fork_rng(devices=devices):
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
                yield
        finally:
            self.networks.eval()

    def observe(self, inputs: dict[str, Tensor], length: int) -> None:
        """Update what the networks know of their inputs (`encode` of all comparisons). A fit calls it before its first step."""
        with torch.no_grad():
            observe(self.networks, inputs)
        if self.reads_history:
            self.window.fill_(length)

    def normalise_outputs(self, rewards: Tensor) -> None:
        """Set the normalisers so that the raw rewards ``[members, …]`` of all compared steps get mean 0 and deviation 1."""
        if not self.settings.normalize_outputs:
            return
        rewards = rewards.flatten(1)
        self.reward_mean.copy_(rewards.mean(1))
        self.reward_std.copy_(rewards.std(1).clamp_min(1e-6))

    def member_rewards(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """Compute normalised rewards ``[members, batch]`` float32, without gradients, from the arguments of `predict` as tensors.

        Raises:
            SettingError: the network reads the steps before: use `episode_rewards`.
        """
        return self.normalised(self.raw_rewards(observations, actions, next_observations, terminated))

    def normalised(self, raw: Tensor) -> Tensor:
        """Normalise raw rewards ``[members, …]``."""
        shape = (-1, *[1] * (raw.dim() - 1))
        return (raw - self.reward_mean.view(shape)) / self.reward_std.view(shape)

    def episode_rewards(self, observations: Tensor, actions: Tensor, terminated: bool) -> Tensor:
        """Compute the normalised reward of each of ``n`` consecutive steps of one episode for each member, without gradients.

        If the network reads history, the reward of a step is the last one of the fragment that ends with it: the step and at most
        ``window - 1`` steps before it, as many as are given. So it depends on nothing after the step, on no other episode, and not
        on where a rollout was cut, if enough steps before are given.

        Args:
            observations: ``[n + 1, *observation_shape]``.
            actions: ``[n, *action_shape]``, as given to the environment.
            terminated: whether the last step terminated the episode.

        Returns:
            ``[members, n]`` float32.
        """
        if not self.reads_history:
            ended = torch.zeros(len(actions), dtype=torch.bool, device=observations.device)
            ended[-1:] = terminated
            return self.member_rewards(observations[:-1], actions, observations[1:], ended)
        with torch.no_grad(), self._predicting():
            raw = last_of_windows(self.networks, observations, actions, terminated, int(self.window), self.at_once)
        return self.normalised(raw)

    @contextlib.contextmanager
    def _predicting(self) -> Iterator[None]:
        """Evaluation mode, also if somebody (RLlib, a fit) has switched the networks to training. No state of theirs moves."""
        was = self.networks.training
        self.networks.eval()
        try:
            with contextlib.nullcontext() if is_built_in(self.settings) else unmoved(self.networks):
                yield
        finally:
            self.networks.train(was)

    def check_steps(self, what: str) -> None:
        """Raise a `SettingError` if the network reads the steps before, so that ``what`` (single steps) has no reward."""
        if self.reads_history:
            raise SettingError(
                f"reward_model.network is {self.settings.network!r}, which reads the steps before, but {what} single steps: use a "
                "network that judges each step by itself, such as 'auto'."
            )

    def raw_rewards(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """Compute the rewards on the likelihood's scale, as `member_rewards` but not normalised."""
        self.check_steps("this asks for the rewards of")

        def rewards(start: int) -> Tensor:
            part = slice(start, start + self.at_once)
            frames = torch.stack([observations[part], next_observations[part]], 1)
            inputs = self.networks.encode(frames, actions[part].unsqueeze(1).clone(), terminated[part].clone())
            return torch.as_tensor(self.networks(inputs).squeeze(-1))

        with torch.no_grad(), self._predicting():
            return torch.cat(list(self.over_parts(rewards, range(0, len(observations), self.at_once))), 1)

    def predict(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute the reward of ``n`` steps, ``[n]`` float32: `combine` of `member_rewards`.

        Args:
            observations: ``[n, *observation_shape]``.
            actions: ``[n, *action_shape]``, as given to the environment.
            next_observations: ``[n, *observation_shape]``.
            terminated: ``[n]`` bool.
        """
        arguments = [torch.as_tensor(np.asarray(a)) for a in (observations, actions, next_observations, terminated)]
        return self.combine(self.member_rewards(*arguments)).numpy()

    def fragment_returns(self, fragments: Fragments) -> FloatArray:
        """Compute the return of each fragment for each member, ``[members, n]`` float32, on the likelihood's scale.

        Returns are discounted with `RewardModelSettings.discount` and not normalised: the difference of two is the log odds
        that a member assigns to the pair.
        """
        n, length = fragments.rewards.shape
        at_once = max(1, self.at_once // length)

        def rewards(start: int) -> Tensor:
            return torch.as_tensor(self.networks(self.encode(fragments[start : start + at_once])))

        with torch.no_grad(), self._predicting():
            parts = list(self.over_parts(rewards, range(0, n, at_once)))
        return (torch.cat(parts, 1) @ discounts(length, self.settings.discount)).numpy()

    def encode(self, fragments: Fragments) -> dict[str, Tensor]:
        """Compute the networks' inputs for ``fragments`` (`RewardNetwork.encode`), on the CPU."""
        arrays = (fragments.observations, fragments.actions, fragments.terminated)
        encoded: dict[str, Tensor] = self.networks.encode(*(torch.as_tensor(np.array(array)) for array in arrays))
        return encoded

    def state(self) -> dict[str, Array]:
        """Return weights, normalisers and version as numpy arrays (copies): one complete version."""
        return {name: value.detach().cpu().numpy().copy() for name, value in self.state_dict().items()}

    def load_state(self, state: dict[str, Array]) -> None:
        """Restore what `state` returned."""
        self.load_state_dict({name: torch.as_tensor(np.array(value)) for name, value in state.items()})

    def save(self, directory: Path | str) -> None:
        """Write ``reward.safetensors`` and ``reward.json`` to ``directory``, which is created if missing."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: value.contiguous() for name, value in self.state_dict().items()}, directory / "reward.safetensors"
        )
        description = {
            "format": FORMAT,
            "version": int(self.version),
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "settings": to_json(self.settings),
        }
        (directory / "reward.json").write_text(json.dumps(description, indent=2) + "\n")

    @staticmethod
    def load(directory: Path | str) -> RewardEnsemble:
        """Load the reward model saved in ``directory``.

        Raises:
            ValueError: the folder holds no reward model.
            SettingError: its format is another version's, or it names a part of a module whose import was not allowed
                (`rlhf_ray.data.consent`).
        """
        directory = Path(directory)
        try:
            description = json.loads((directory / "reward.json").read_text())
        except FileNotFoundError as error:
            raise ValueError(f"{directory} holds no reward model: it has no reward.json.") from error
        if description["format"] != FORMAT:
            raise SettingError(
                f"{directory} has format {description['format']!r}; this version reads {FORMAT!r}: use the version that wrote it."
            )
        observation_space = space_from_json(description["observation_space"])
        assert isinstance(observation_space, gym.spaces.Box)  # networks accept no other space
        settings = from_json(RewardModelSettings, description["settings"])
        consent.check(own_parts("reward_model", settings), directory / "reward.json")
        with torch.random.fork_rng(devices=[]):  # the weights drawn here are replaced at once
            ensemble = RewardEnsemble(observation_space, space_from_json(description["action_space"]), settings)
        ensemble.load_state_dict(load_file(directory / "reward.safetensors"))
        return ensemble


def last_of_windows(
    networks: Any, observations: Tensor, actions: Tensor, terminated: bool, window: int, most_steps: int
) -> Tensor:
    """Compute the raw reward of each step of an episode, ``[members, n]``: the last one of the fragment that ends with it.

    Windows slide by one step: every step but the first ones has a whole window, as long as the fragments of a fit. That costs
    ``window`` times the work of a pass over the episode. The first steps, which have fewer before them, are one pass over the first
    window, because the network is causal. A forward pass has at most ``most_steps``.
    """
    n = len(actions)
    first = min(window, n)
    ends = torch.zeros(1, dtype=torch.bool, device=observations.device)
    ends[0] = terminated and first == n
    parts = [networks(networks.encode(observations[None, : first + 1], actions[None, :first], ends)).squeeze(1)]
    steps = torch.arange(window, device=observations.device)
    at_once = max(1, most_steps // window)
    for start in range(1, n - window + 1, at_once):
        begin = torch.arange(start, min(start + at_once, n - window + 1), device=observations.device)
        rows = begin[:, None] + steps
        frames = torch.cat([observations[rows], observations[rows[:, -1:] + 1]], 1)
        ends = (rows[:, -1] == n - 1) & terminated
        parts.append(networks(networks.encode(frames, actions[rows], ends))[..., -1])
    return torch.cat(parts, 1)
