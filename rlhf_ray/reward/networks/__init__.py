"""Reward networks: from fragments to the reward of each step, for all ensemble members at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.registry import Registry
from rlhf_ray.reward.networks.cnn import CNN, POOLED, PUBLISHED, PooledCNN
from rlhf_ray.reward.networks.mixed import MixedMLP as MixedMLP
from rlhf_ray.reward.networks.mlp import MLP as MLP
from rlhf_ray.reward.networks.mlp import PerActionMLP
from rlhf_ray.reward.networks.mlp import observe as observe  # where callers look for them
from rlhf_ray.reward.networks.outputs import OUTPUTS, ShapedNetwork
from rlhf_ray.reward.networks.sequences import SequenceNetwork
from rlhf_ray.reward.networks.sequences import reads_history as reads_history
from rlhf_ray.reward.unmoved import steps_at_once
from rlhf_ray.settings import RewardModelSettings


class RewardNetwork(Protocol):
    """All ensemble members as one `torch.nn.Module`. Its outputs are on the likelihood's scale; the ensemble normalises them.

    The constructor of a custom network may take ``observation_space``, ``action_space`` and ``settings`` (the
    `RewardModelSettings`, with ``ensemble_size``), or any subset. For a network of one member and one step, write a
    `StepNetwork` instead.

    Two optional members: ``reads_history = True`` if a step's reward also depends on the fragment's steps before it, and
    ``observe(inputs)``, which a fit calls with the inputs of all comparisons before its first gradient step, for statistics kept in
    buffers.
    """

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Compute the inputs of `forward`, once per fragment. Must not depend on the weights.

        Args:
            observations: ``[n, length + 1, *observation_shape]``, as the environment returns them.
            actions: ``[n, length, *action_shape]``, as given to the environment.
            terminated: ``[n]`` bool: whether a fragment's last step terminated the episode.

        Returns:
            Tensors by name, each with first axis ``n``.
        """
        ...

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Compute the reward of each step for each member.

        Args:
            inputs: from `encode`.

        Returns:
            ``[members, n, length]`` float32.
        """
        ...


class StepNetwork(Protocol):
    """One member: a `torch.nn.Module` that sees single steps. Its constructor takes the same arguments as a `RewardNetwork`'s."""

    def forward(self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor) -> Tensor:
        """Compute the reward of each step of a batch.

        Args:
            observations: ``[batch, *observation_shape]``, as the environment returns them: images are uint8.
            actions: ``[batch, *action_shape]``, as given to the environment.
            next_observations: ``[batch, *observation_shape]``.
            terminated: ``[batch]`` bool.

        Returns:
            ``[batch]`` float32.
        """
        ...


class PerStep(nn.Module):
    """A `RewardNetwork` made of one `StepNetwork` per member, evaluated one after the other, each on its own copy of the steps."""

    def __init__(self, networks: Iterable[nn.Module], observation_space: gym.Space[Any]):
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.images_at_once = steps_at_once(observation_space)

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return all three unchanged."""
        return {"observations": observations, "actions": actions, "terminated": terminated}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        observations, actions = inputs["observations"], inputs["actions"]
        n, length = actions.shape[:2]
        terminated = torch.zeros(n, length, dtype=torch.bool, device=actions.device)
        terminated[:, -1] = inputs["terminated"]
        steps = (observations[:, :-1], actions, observations[:, 1:], terminated)
        flat = [step.flatten(0, 1) for step in steps]
        return torch.stack([network(*(step.clone() for step in flat)).view(n, length) for network in self.networks])


class RewardNetStep(nn.Module):
    """A `StepNetwork` around a ``RewardNet``: any class of imitation's, which is not imported, or a subclass of a user's.

    Observations and actions go through the network's own ``preprocess``: images are scaled to [0, 1], discrete actions become
    one-hot. As in imitation's ``PreferenceModel``, the reward is ``forward``; wrappers that change ``predict_processed`` alone
    (``NormalizedRewardNet``) have no effect, because `rlhf_ray.reward.RewardEnsemble` normalises each member itself. Layers that
    keep running statistics (``RunningNorm``, ``EMANorm``) learn them during fits and not during predictions.
    """

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net: Any = net
        space = net.action_space
        self.start = int(space.start) if isinstance(space, gym.spaces.Discrete) else 0

    def forward(self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor) -> Tensor:
        """Return rewards ``[batch]`` float32."""
        if self.start:  # imitation's one-hot actions begin at 0
            actions = actions - self.start
        fitting = self.training and torch.is_grad_enabled()
        if self.net.training != fitting:
            self.net.train(fitting)
        rewards: Tensor = self.net(*self.net.preprocess(observations, actions, next_observations, terminated))
        return rewards


def is_reward_net(network: nn.Module) -> bool:
    """Return whether ``network`` is a ``RewardNet`` of imitation."""
    return hasattr(network, "predict_processed") and hasattr(network, "preprocess")


def members_of(net: nn.Module, settings: RewardModelSettings) -> list[nn.Module] | None:
    """Return the members of a ``RewardEnsemble``, alone or inside an ``AddSTDRewardWrapper``; None if ``net`` is none.

    Raises:
        SettingError: the settings have another ensemble size, or another weight of the deviation.
    """
    inner, alpha = net, 0.0  # type: Any, float
    while hasattr(inner, "base"):
        alpha = alpha or float(getattr(inner, "default_alpha", 0.0))
        inner = inner.base
    if not hasattr(inner, "predict_processed_all"):
        return None
    members = list(inner.members)
    if len(members) != settings.ensemble_size:
        raise SettingError(
            f"reward_model.network is {settings.network!r}, an ensemble of {len(members)}, but reward_model.ensemble_size is "
            f"{settings.ensemble_size}: set it to {len(members)}."
        )
    weight = float(settings.deviation_weight)
    ours = alpha * math.sqrt(len(members) / (len(members) - 1))  # imitation divides the variance by n - 1
    if not math.isclose(ours, weight, rel_tol=1e-3):
        raise SettingError(
            f"reward_model.network is {settings.network!r}, which adds {alpha:g} standard deviations, but "
            f"reward_model.deviation_weight is {weight:g}: set it to {ours:.4g}, since imitation divides the variance by one less."
        )
    return members


class AnyNetwork(Protocol):
    """A `StepNetwork`, or a `RewardNetwork` if it has ``encode``."""

    forward: Callable[..., Tensor]


def _auto(
    observation_space: gym.spaces.Box, action_space: gym.Space[Any], settings: RewardModelSettings
) -> RewardNetwork:
    judged = settings.bootstrap and settings.ensemble_size > 1 and settings.output == "reward"
    network = CNN if is_image(observation_space) else MixedMLP if judged else MLP
    return network(observation_space, action_space, settings)


def _shaped(
    observation_space: gym.spaces.Box, action_space: gym.Space[Any], settings: RewardModelSettings
) -> RewardNetwork:
    network = CNN if is_image(observation_space) else MLP
    return ShapedNetwork(lambda of: network(observation_space, action_space, of), settings)


NETWORKS: Registry[Any] = Registry(
    "reward_model.network",
    AnyNetwork,
    {
        "auto": _auto,
        "mlp": MLP,
        "mixed": MixedMLP,
        "cnn": CNN,
        **dict.fromkeys(PUBLISHED, CNN),
        **dict.fromkeys(("pooled_cnn", *POOLED), PooledCNN),
        "per_action": PerActionMLP,
        **dict.fromkeys(("gru", "transformer"), SequenceNetwork),
        "shaped": _shaped,
    },
)
"""Built-in networks by name."""


def make_network(observation_space: gym.spaces.Box, action_space: gym.Space[Any], settings: RewardModelSettings) -> Any:
    """Build the `RewardNetwork`, a `torch.nn.Module`, that ``settings.network`` names, with ``settings.output``.

    Raises:
        SettingError: no network has this name, it doesn't fit the spaces, or it doesn't behave like a reward network.
    """
    return OUTPUTS[settings.output](lambda: _inner_network(observation_space, action_space, settings))


def _inner_network(
    observation_space: gym.spaces.Box, action_space: gym.Space[Any], settings: RewardModelSettings
) -> Any:
    name = settings.network
    make = partial(
        NETWORKS.make, name, observation_space=observation_space, action_space=action_space, settings=settings
    )
    first = make()
    if name in NETWORKS.parts or ":" not in name:
        return first
    if not isinstance(first, nn.Module):
        raise SettingError(
            f"reward_model.network is {name!r}, which returns {first!r}: it must return a torch.nn.Module."
        )
    network: Any = first
    if not hasattr(first, "encode"):
        if getattr(first, "reads_history", False):
            raise SettingError(
                f"reward_model.network is {name!r}, which has reads_history = True but no encode(): a network of single steps sees "
                "no others."
            )
        members = members_of(first, settings) if is_reward_net(first) else None
        if members is None:
            members = [first, *(make() for _ in range(settings.ensemble_size - 1))]
        steps = (RewardNetStep(member) if is_reward_net(member) else member for member in members)
        network = PerStep(steps, observation_space)
    _try_out(network, observation_space, action_space, settings)
    return network


def is_built_in(settings: RewardModelSettings) -> bool:
    """Return whether the network is one of ours: it uses the inputs that the settings enable, and takes one-hot actions."""
    return settings.network in NETWORKS.parts


def _try_out(
    network: Any, observation_space: gym.spaces.Box, action_space: gym.Space[Any], settings: RewardModelSettings
) -> None:
    """Check a custom network on random fragments."""
    n, length = 2, 3
    observations = torch.as_tensor(_some((n, length + 1), observation_space))
    actions = torch.as_tensor(_some((n, length), action_space))
    whole = (observations, actions, torch.zeros(n, dtype=torch.bool))
    wanted = (settings.ensemble_size, n, length)
    name = f"reward_model.network is {settings.network!r}"
    network.eval()  # layers that keep running statistics don't count these
    try:
        inputs = network.encode(*(value.clone() for value in whole))
        rewards = network(dict(inputs))
    except Exception as error:
        raise SettingError(
            f"{name}, and a trial call with observations {observation_space} and actions {action_space} raised "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else error!r}. See rlhf_ray.reward.networks for "
            "its inputs."
        ) from error
    if not isinstance(rewards, Tensor) or tuple(rewards.shape) != wanted:
        shape = tuple(rewards.shape) if isinstance(rewards, Tensor) else type(rewards).__name__
        raise SettingError(
            f"{name}, and for {n} fragments of {length} steps it returned {shape}: it must return the reward of each step for each "
            f"member, {wanted} (a StepNetwork: [batch])."
        )
    if not bool(torch.isfinite(rewards).all()):
        raise SettingError(f"{name}, and in a trial call it returned NaN or infinite rewards: return finite ones.")
    if not rewards.requires_grad:
        raise SettingError(
            f"{name}, and its rewards depend on no parameter: give it parameters, and don't detach its output, or there is nothing "
            "to fit."
        )
    if any(isinstance(value, Tensor) and value.requires_grad for value in inputs.values()):
        raise SettingError(f"{name}, whose encode() depends on parameters: it runs once, so use them in forward().")
    if not isinstance(network, PerStep):
        _check_history(network, whole, rewards.detach(), name)
    network.train()


def _check_history(network: Any, whole: tuple[Tensor, Tensor, Tensor], rewards: Tensor, name: str) -> None:
    """Check that a step's reward depends on no later step, and only with ``reads_history`` on earlier ones."""
    observations, actions, terminated = whole
    with torch.no_grad():
        if reads_history(network):
            seen, done = observations.clone(), actions.clone()
            seen[:, -1], done[:, -1] = seen[:, 0], done[:, 0]
            again = network(network.encode(seen, done, terminated))
            if not _alike(again[..., :-1], rewards[..., :-1]):
                raise SettingError(f"{name}, and the reward of a step depends on a later one: look back only.")
            return
        for step in range(actions.shape[1]):
            try:
                alone = observations[:, step : step + 2], actions[:, step : step + 1], terminated
                again = network(network.encode(*(value.clone() for value in alone)))
                same = _alike(again[..., 0], rewards[..., step])
            except Exception as error:
                message = str(error).splitlines()[0] if str(error) else repr(error)
                raise SettingError(
                    f"{name}, and for fragments of one step, as in the agent's training, it raised {type(error).__name__}: "
                    f"{message}. Set reads_history = True if it needs the steps before."
                ) from error
            if not same:
                raise SettingError(
                    f"{name}, and the reward of a step depends on others of its fragment: set reads_history = True if it depends "
                    "on those before."
                )


def _alike(first: Tensor, second: Tensor) -> bool:
    return bool(torch.allclose(first, second, rtol=1e-3, atol=1e-4))


def _some(shape: tuple[int, int], space: gym.Space[Any]) -> Any:
    """Return different elements of a space, ``[*shape, *space.shape]``; the same ones each time."""
    rng = np.random.default_rng(0)
    whole = (*shape, *(space.shape or ()))
    if isinstance(space, gym.spaces.Box):
        low, high = np.maximum(space.low, -1.0), np.minimum(space.high, 255.0 if space.dtype == np.uint8 else 1.0)
        low, high = np.minimum(low, space.high), np.maximum(high, space.low)
        return rng.uniform(low, np.maximum(low, high), whole).astype(space.dtype)
    most = np.asarray(space.n if isinstance(space, gym.spaces.Discrete) else getattr(space, "nvec", 2))
    first = np.asarray(getattr(space, "start", 0))
    return (first + rng.integers(0, most, whole)).astype(space.dtype)
