"""Starting points of a training: fitted rewards, policies, behavioural cloning; loaded, and checked against the environment."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.core.columns import Columns
from safetensors.numpy import load_file
from torch import Tensor

from rlhf_ray.agents.saved import SavedPolicy
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.checkpoints import last_checkpoint
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.recordings import load_demonstrations
from rlhf_ray.data.seeds import number_of, sequence
from rlhf_ray.optim import Adam
from rlhf_ray.policies.actions import to_policy_actions
from rlhf_ray.policies.encoders import TakesVectors
from rlhf_ray.policies.sb3 import is_sb3, sb3_weights
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib.checkpoint_parts import POLICY, load_policy
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID
from rlhf_ray.rllib.policy import built
from rlhf_ray.settings import RewardModelSettings

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


def fitted_reward(path: Path | str) -> RewardEnsemble:
    """Load the reward model from a folder: its own, a run's or a checkpoint's.

    Raises:
        SettingError: there is none.
    """
    if Path(path).is_file():
        raise SettingError(
            f"{path} is a file, but training uses a reward model's folder (reward.json). Use a network that imitation saved as "
            "reward_model.network, or examine it with `rlhf-ray interpret reward`."
        )
    inside = Path(path) / REWARD_MODULE_ID
    try:
        return RewardEnsemble.load(inside if (inside / "reward.json").exists() else path)
    except SettingError:
        raise
    except Exception as error:  # a damaged file raises almost anything
        if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):
            raise SettingError(str(error)) from error
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SettingError(f"{path} can't be read as a reward model ({message}): it is damaged.") from error


def check_reward(
    reward: RewardEnsemble,
    observation_space: gym.spaces.Box,
    action_space: gym.Space[Any],
    settings: RewardModelSettings,
    where: str,
) -> None:
    """Check that a reward model fits the environment's spaces and the settings.

    Raises:
        SettingError: it doesn't.
    """
    if (reward.observation_space, reward.action_space) != (observation_space, action_space):
        raise SettingError(
            f"The reward model in {where} is for observations {reward.observation_space} and actions {reward.action_space}; the "
            f"environment has {observation_space} and {action_space}. Use the environment it was fitted for, or fit it again with "
            "--environment."
        )
    if reward.settings != settings:
        raise SettingError(
            f"The reward model in {where} is already fitted, but reward_model has other settings than it was fitted with: set none."
        )


def policy_weights(
    path: Path | str,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
) -> dict[str, Array]:
    """Load a policy's weights.

    Args:
        path: a run's folder, for its newest checkpoint; an RLlib checkpoint; a ``.safetensors`` file; or a ``model.zip`` of
            Stable-Baselines3, or the folder that `imitation` saved one in.
        observation_space: the environment's observation space, for SB3's.
        action_space: the environment's action space, for SB3's.

    Raises:
        SettingError: there is no policy at ``path``.
    """
    path = Path(path)
    if is_sb3(path / "model.zip"):
        path = path / "model.zip"
    if is_sb3(path):
        if observation_space is None or action_space is None:
            raise SettingError(f"{path} is a model of Stable-Baselines3, which needs the environment's spaces.")
        return sb3_weights(path, observation_space, action_space)
    if path.is_file() and path.suffix == ".safetensors":
        return load_file(path)
    if (saved := SavedPolicy.load(path / POLICY)) is not None:  # in a run's folder or in a checkpoint
        return dict(saved.weights)
    checkpoint = last_checkpoint(path / "checkpoints") or path  # a run's folder, or a checkpoint itself
    try:
        state: Mapping[str, Any] = load_policy(checkpoint).module.get_state()
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(
            f"{path} is neither a run's folder, nor a checkpoint with a policy, nor a model of Stable-Baselines3."
        ) from error
    return {name: np.asarray(value) for name, value in state.items()}


def first_weights(
    start: AlgorithmConfig,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    say: Callable[[str], None] = lambda what: None,
) -> dict[str, Array] | None:
    """The weights that the policy of ``start`` starts with, after behavioural cloning; None if it starts from scratch.

    Raises:
        SettingError: a policy or demonstrations can't be loaded.
    """
    spaces = observation_space, action_space
    weights = None if start.policy_from is None else policy_weights(start.policy_from, *spaces)
    if start.demonstrations_from is None:
        return None if weights is None else _whole(weights)
    demonstrations = load_demonstrations(start.demonstrations_from).checked(
        *spaces, start.demonstrations_from, own=True
    )
    seed = start.settings().seed
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = built(start.policy_module_spec(), *spaces)
    if weights is not None:
        policy.set_state(weights)
    say(f"pretraining the policy on {len(demonstrations)} demonstrated steps")
    report = clone(policy, demonstrations, epochs=start.cloning_epochs, **start.cloning(), seed=seed)
    say(f"mean log-likelihood of the demonstrated actions: {report.before:.2f} before, {report.after:.2f} after")
    return _whole(policy.get_state())


def fresh_weights(
    start: AlgorithmConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> dict[str, Array]:
    """Return weights for the policy of ``start`` to start anew with: `first_weights`, or newly drawn ones."""
    spaces = observation_space, action_space
    if (given := first_weights(start, *spaces)) is not None:
        return given
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number_of(sequence(start.settings().seed, "fresh policy")))
        return _whole(built(start.policy_module_spec(), *spaces).get_state())


def _whole(weights: Mapping[str, Any]) -> dict[str, Array]:
    # safetensors needs contiguous arrays; numpy's own function for that gives scalars an axis.
    return {name: np.array(value, order="C") for name, value in weights.items()}


def check_policy(weights: Mapping[str, Array], expected: Mapping[str, Any], where: str, agent: str) -> None:
    """Check that ``weights`` have the names and shapes of ``expected``, the weights of ``agent``'s policy.

    Raises:
        SettingError: a weight is missing, unknown or of another shape; names the first such weight.
    """
    # Policies of before the statistics of formal bounds act as they did; see `TakesVectors`.
    weights = {name: value for name, value in expected.items() if "formal.seen." in name} | dict(weights)
    normalises, does = (any("statistics." in name for name in state) for state in (weights, expected))
    if normalises != does:
        raise SettingError(
            f"The policy in {where} {'normalises' if normalises else 'does not normalise'} its observations, but "
            f"{agent}.normalize_observations is {does}: set it to {normalises}."
        )
    shapes, wanted = ({name: np.shape(value) for name, value in state.items()} for state in (weights, expected))
    for name in sorted([*wanted, *shapes], key=lambda name: "statistics." in name):
        if shapes.get(name) != wanted.get(name):
            has, needs = (
                f"has the shape {state[name]}" if name in state else "does not exist" for state in (shapes, wanted)
            )
            raise SettingError(
                f"The policy in {where} doesn't fit: its {name} {has}, but with this environment, agent={agent} and its networks "
                f"({agent}.hidden and others) it {needs}. Use the environment, agent and settings that it was trained with."
            )


LEAST_LOG_STD = math.log(0.2)
"""Lower bound of a continuous policy's log standard deviation, for actions scaled to [-1, 1]. Demonstrations that never vary would
drive it to zero and leave PPO no exploration."""

EPOCHS, LEAST_STEPS = 50, 1500
"""Default passes, and the minimum number of gradient steps. On Pendulum, 50 passes over 20 episodes (1,600 steps) gave a policy as
good as the recorded one; over 5 episodes (400 steps) they were too few."""

CHUNK = 4096
"""Steps per forward pass without gradients."""


@dataclass(frozen=True)
class CloningReport:
    """Report of a cloning run.

    Attributes:
        steps: number of demonstrated steps.
        before: mean log-likelihood of a demonstrated action before the fit.
        after: the same after the fit.
        gradient_steps: number of gradient steps.
    """

    steps: int
    before: float
    after: float
    gradient_steps: int


def clone(
    module: Any,
    demonstrations: Demonstrations,
    *,
    epochs: int | None = None,
    minibatch_size: int = 128,
    learning_rate: float = 1e-3,
    seed: int = 0,
) -> CloningReport:
    """Fit a policy to demonstrations by maximum likelihood of their actions (with Adam). Doesn't train the value function.

    Args:
        module: the policy, an `ActorCritic` or another torch RLModule without memory; modified in place.
        demonstrations: from the module's environment (`Demonstrations.check`).
        epochs: passes over all steps; by default `EPOCHS`, or more to reach `LEAST_STEPS`.
        minibatch_size: steps per gradient step.
        learning_rate: Adam's learning rate.
        seed: seeds the order of steps.

    Returns:
        The report.

    Raises:
        SettingError: the policy has a memory.
    """
    if module.is_stateful():
        raise SettingError("Policies with memory can't start from demonstrations: set ppo.memory to none.")
    observations = torch.as_tensor(demonstrations.observations.astype(module.observation_space.dtype, copy=False))
    actions = torch.as_tensor(to_policy_actions(demonstrations.actions, module.action_space))
    if isinstance(network := getattr(module, "network", None), TakesVectors):
        network.observe(observations.float())
    generator = torch.Generator().manual_seed(seed)
    optimizer = Adam(module.parameters(), lr=learning_rate)

    def log_likelihood(index: Tensor) -> Tensor:
        inputs = module.forward_train({Columns.OBS: observations[index]})[Columns.ACTION_DIST_INPUTS]
        likelihood: Tensor = module.get_train_action_dist_cls().from_logits(inputs).logp(actions[index])
        return likelihood

    def mean() -> float:
        with torch.no_grad():
            parts = [log_likelihood(part) for part in torch.split(torch.arange(len(actions)), CHUNK)]
            return float(torch.cat(parts).mean())

    if epochs is None:
        epochs = max(EPOCHS, math.ceil(LEAST_STEPS / math.ceil(len(actions) / minibatch_size)))
    before, taken = mean(), 0
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(actions), generator=generator), minibatch_size):
            optimizer.zero_grad(set_to_none=True)
            (-log_likelihood(batch).mean()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            taken += 1
            for name, parameter in module.named_parameters():
                if name.rpartition(".")[2] == "log_std":
                    parameter.data.clamp_(min=LEAST_LOG_STD)
    return CloningReport(len(actions), before, mean(), taken)
