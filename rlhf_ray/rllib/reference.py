"""Agents on the true reward: the reference, with an experiment's settings and number of environment steps; and experts, to record.

The expert's PPO trains as the published Procgen agents; its SAC as the reference.

Cobbe et al. 2020 ("Leveraging Procedural Generation", appendix D) and the train-procgen code. RLlib 2.60's PPO follows them in:
epochs and minibatches, generalised advantage estimation, advantages normalised over the whole batch, the clipped ratio, the entropy
bonus, the global gradient norm, and the linear decay of the learning rate. `ExpertPPOConfig` adds what RLlib lacks: rewards divided
by the running deviation of the discounted return (`ReturnScaled`), the clipped value loss, and Adam's epsilon of 1e-5.

Not as published:

* Advantages are divided by no less than their recent deviation (`rlhf_ray.rllib.advantages`), for all agents alike.
* Levels are unlimited unless the environment limits them; published "hard" runs use 500 or 100,000 levels.
* Every run starts new episodes at the iterations that are checkpointed, so that a resumed one is bit for bit the uninterrupted one.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from rlhf_ray.actors.ray_internals import hush_ray
from rlhf_ray.data.vector_rollout import VectorRollout
from rlhf_ray.rllib.env_runner import ArrayEnvRunner, EnvRunner, GivesEnvActions, env_threads, register_environment
from rlhf_ray.rllib.learned_reward import RewardConnector
from rlhf_ray.rllib.learner import PPOLearner
from rlhf_ray.rllib.policy import CollectorPolicy, policy_spec
from rlhf_ray.rllib.ppo import apply_ppo
from rlhf_ray.rllib.rllib_internals import (
    forget_env_runners,
    in_temporary_folder,
    learner_pipeline,
    local_learner,
    raise_fault,
)
from rlhf_ray.rllib.sac import ReplaySACConfig
from rlhf_ray.rllib.sac_learner import ReferenceSACLearner
from rlhf_ray.settings import Experiment


class ReferencePPOConfig(GivesEnvActions, PPOConfig):  # type: ignore[misc]
    """RLlib's PPO on the true reward, otherwise set up like `PreferencePPOConfig`.

    The true reward is normalised to mean 0 and standard deviation 1, like the learned one: otherwise the same learning rates and
    gradient limits would not suit it.
    """

    @classmethod
    def from_experiment(cls, experiment: Experiment) -> ReferencePPOConfig:
        config = cls()
        _apply(config, experiment)
        apply_ppo(config, experiment.ppo, experiment.total_env_steps)
        if experiment.ppo.memory == "none" and experiment.ppo.num_learners <= 1:
            config.env_runner_cls = ArrayEnvRunner
        config.rl_module(rl_module_spec=policy_spec(experiment.ppo))
        return config

    def get_default_learner_class(self) -> type:
        return PPOLearner

    def build_learner_connector(self, input_observation_space: Any, input_action_space: Any, device: Any = None) -> Any:
        pipeline = super().build_learner_connector(input_observation_space, input_action_space, device)
        pipeline.append(NormalisedReward())
        return pipeline


class ReferenceSACConfig(GivesEnvActions, ReplaySACConfig):
    """SAC on the true reward, normalised for the same reason, otherwise set up like `PreferenceSACConfig`."""

    @classmethod
    def from_experiment(cls, experiment: Experiment) -> ReferenceSACConfig:
        config = cls()
        _apply(config, experiment)
        config.apply(experiment.sac)
        return config

    def get_default_learner_class(self) -> type:
        return ReferenceSACLearner


def _apply(config: Any, experiment: Experiment) -> None:
    """Apply the settings that don't depend on the agent."""
    config.env_runner_cls, config.faults = EnvRunner, f"reference-{uuid.uuid4().hex[:12]}"
    register_environment(config, experiment.environment)
    config.environment(experiment.environment, env_config=env_threads(experiment))
    config.debugging(seed=experiment.seed, log_level="ERROR", log_sys_usage=False)


class NormalisedReward(RewardConnector):
    """Normalises the true rewards to mean 0 and standard deviation 1 over all steps so far."""

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self._count, self._sum, self._squares = 0.0, 0.0, 0.0

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        columns = batch[DEFAULT_MODULE_ID]
        rewards, real = columns[Columns.REWARDS], columns[Columns.LOSS_MASK]
        steps = rewards[real].double()
        self._count += len(steps)
        self._sum += float(steps.sum())
        self._squares += float((steps**2).sum())
        mean = self._sum / self._count
        std = max(self._squares / self._count - mean**2, 1e-8) ** 0.5
        columns[Columns.REWARDS] = torch.where(real, (rewards - mean) / std, 0.0).float()
        return batch


def train_reference(experiment: Experiment, make_config: Callable[[Experiment], Any]) -> CollectorPolicy:
    """Train the reference of ``experiment``, whose configuration ``make_config`` makes, and return its policy.

    It trains in this process, for whole iterations, and so may use up to one iteration less than the step budget.
    """
    alone = experiment.with_agent_settings(num_learners=0)
    with in_temporary_folder():
        algorithm = make_config(alone).build_algo()
    try:
        for _ in range(experiment.total_env_steps // experiment.agent_settings.iteration_env_steps):
            algorithm.train()
            raise_fault(algorithm.config.faults)
        module = local_learner(algorithm.learner_group).module[DEFAULT_MODULE_ID].unwrapped().cpu()
        return CollectorPolicy(module)
    except KeyboardInterrupt:
        hush_ray()
        forget_env_runners(algorithm.env_runner_group)  # otherwise `stop` waits for their rollouts
        raise
    finally:
        algorithm.stop()
        with contextlib.suppress(OSError):
            Path(algorithm.logdir).rmdir()


CLIP = 10.0
"""Largest absolute value of a scaled reward, as in the published code."""
STATISTICS = "return_statistics"
"""Key of `ReturnScaled`'s statistics in a learner's state."""


class ExpertPPOConfig(ReferencePPOConfig):
    """RLlib's PPO on the true reward with the published normalisation of rewards and Adam's epsilon."""

    def get_default_learner_class(self) -> type:
        return ExpertLearner

    def build_learner_connector(self, input_observation_space: Any, input_action_space: Any, device: Any = None) -> Any:
        pipeline = PPOConfig.build_learner_connector(self, input_observation_space, input_action_space, device)
        pipeline.append(ReturnScaled(gamma=self.gamma))
        return pipeline


class ExpertLearner(PPOLearner):
    """RLlib's PPO learner with Adam's epsilon and the clipped value loss of the published code.

    Its state has the statistics of `ReturnScaled`; RLlib's omits those of connectors.
    """

    adam_epsilon = 1e-5
    clips_values = True

    def get_state(self, components: Any = None, **keywords: Any) -> dict[str, Any]:
        """Return RLlib's state and the statistics; without these if only ``components`` are asked for."""
        state: dict[str, Any] = super().get_state(components, **keywords)
        if components is None:
            state[STATISTICS] = self._scaled.get_state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if STATISTICS in state:
            self._scaled.set_state(state[STATISTICS])

    @property
    def _scaled(self) -> ReturnScaled:
        return next(connector for connector in learner_pipeline(self).connectors if isinstance(connector, ReturnScaled))


class ReturnScaled(RewardConnector):
    """Divides rewards by the running standard deviation of the discounted return, and clips them to ±10.

    As ``VecNormalize`` of baselines, except that the statistics include the whole batch before it is scaled, not only earlier
    steps.
    """

    def __init__(self, *arguments: Any, gamma: float, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.gamma = gamma
        self._returns: dict[str, float] = {}
        """The discounted return so far of each unfinished episode."""
        self._count, self._mean, self._squares = 0.0, 0.0, 0.0

    def __call__(self, *, batch: dict[str, Any], episodes: list[Any], **kwargs: Any) -> dict[str, Any]:
        columns = batch[DEFAULT_MODULE_ID]
        rewards, real = columns[Columns.REWARDS], columns[Columns.LOSS_MASK]
        rows = rewards[real].cpu().numpy()  # without padding
        of_arrays = bool(episodes) and isinstance(episodes[0], VectorRollout)
        # A rollout of an env runner may be missing in this batch. Ids of episodes that don't come again would only pile up.
        unfinished = dict(self._returns) if of_arrays else {}
        for name, goes_on, values, ended in (_of_rollouts if of_arrays else _of_episodes)(rows, episodes):
            before = unfinished if of_arrays else self._returns
            ret, returns = before.get(name, 0.0) if goes_on else 0.0, np.empty(len(values))
            for i, reward in enumerate(values.tolist()):
                returns[i] = ret = self.gamma * ret + reward
            self._add(returns)
            unfinished.pop(name, None)
            if not ended:
                unfinished[name] = ret
        self._returns = unfinished
        std = max(self._squares / max(self._count, 1.0), 1e-8) ** 0.5
        columns[Columns.REWARDS] = torch.where(real, (rewards / std).clamp(-CLIP, CLIP), 0.0).float()
        return batch

    def get_state(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        return {"count": self._count, "mean": self._mean, "squares": self._squares, "returns": dict(self._returns)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._count, self._mean, self._squares = state["count"], state["mean"], state["squares"]
        self._returns = dict(state["returns"])

    def _add(self, values: Any) -> None:
        if not len(values):
            return
        delta, total = float(values.mean()) - self._mean, self._count + len(values)
        self._squares += float(((values - values.mean()) ** 2).sum()) + delta**2 * self._count * len(values) / total
        self._mean += delta * len(values) / total
        self._count = total


def _of_episodes(rows: Any, episodes: list[Any]) -> Iterator[tuple[str, bool, Any, bool]]:
    """Yield each episode's name, whether it may go on from an earlier batch, its rewards, and whether it won't go on."""
    end = 0
    for episode in episodes:
        name = episode.id_.rpartition("_")[0]  # RLlib has numbered the pieces of episodes
        begin, end = end, end + len(episode) - 1  # and added one masked step to each
        # RLlib has made each piece truncated that is not terminated; a truncated episode's id won't return.
        yield name, True, rows[begin:end], episode.is_terminated


def _of_rollouts(rows: Any, rollouts: list[VectorRollout]) -> Iterator[tuple[str, bool, Any, bool]]:
    """Yield the same of rollouts that are arrays."""
    end = 0
    for rollout in rollouts:
        begin, end = end, end + len(rollout)
        rewards = np.zeros(rollout.real.shape, rows.dtype)
        rewards[rollout.real] = rows[begin:end]
        for copy, steps in rollout.pieces():
            goes_on = steps.start == 0 and bool(rollout.starts[copy])
            yield f"{rollout.source}/{copy}", goes_on, rewards[steps, copy], bool(rollout.ended[steps.stop - 1, copy])
