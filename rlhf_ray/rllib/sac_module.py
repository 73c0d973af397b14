"""SoftActorCritic: a `SoftActorCriticNetwork` as an RLModule."""

from __future__ import annotations

from typing import Any

from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import (
    TorchCategorical,
    TorchDeterministic,
    TorchSquashedGaussian,
)
from ray.rllib.core.rl_module.apis import InferenceOnlyAPI, ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor

from rlhf_ray.policies.soft_actor_critic import SoftActorCriticNetwork

TRAINING_ONLY = ("critics", "targets", "log_alpha")
"""Parts of the network that don't choose actions."""


class SquashedGaussian(TorchSquashedGaussian):  # type: ignore[misc]
    """RLlib's tanh of a Gaussian. RLlib 2.60's deterministic version omits the tanh."""

    def to_deterministic(self) -> TorchDeterministic:
        """Return tanh of the mean."""
        return TorchDeterministic(loc=self._squash(self.loc))


class SoftActorCritic(TorchRLModule, InferenceOnlyAPI, ValueFunctionAPI):  # type: ignore[misc]
    """The agent of SAC. Env runners have only its actor.

    ``model_config`` holds the arguments ``hidden``, ``initial_alpha`` and ``normalize_observations`` of `SoftActorCriticNetwork`.
    """

    def setup(self) -> None:
        self.network = SoftActorCriticNetwork(
            self.observation_space,
            self.action_space,
            tuple(self.model_config["hidden"]),
            self.model_config["initial_alpha"],
            self.model_config.get("normalize_observations", False),
        )
        if self.inference_only:  # RLlib would delete parts of parts from the wrong object
            for part in TRAINING_ONLY:
                delattr(self.network, part)

    def get_non_inference_attributes(self) -> list[str]:
        return [f"network.{part}" for part in TRAINING_ONLY]

    def get_inference_action_dist_cls(self) -> type:
        return TorchCategorical if self.network.discrete else SquashedGaussian

    get_exploration_action_dist_cls = get_train_action_dist_cls = get_inference_action_dist_cls

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """Compute the soft value of each observation, ``[batch]``; for Box actions, with one sampled action each."""
        network, observations = self.network, batch[Columns.OBS]
        acted, logs = network.act(observations)
        values = network.values(network.critics, observations, acted)
        return network.expected(values, acted, logs, network.log_alpha.exp())

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.network.distribution(batch[Columns.OBS])}


def sac_spec(hidden: tuple[int, ...], initial_alpha: float, normalize_observations: bool = False) -> RLModuleSpec:
    """Return the RLlib spec of a `SoftActorCritic`; RLlib fills in the spaces."""
    return RLModuleSpec(
        module_class=SoftActorCritic,
        model_config={
            "hidden": list(hidden),
            "initial_alpha": initial_alpha,
            "normalize_observations": normalize_observations,
        },
    )
