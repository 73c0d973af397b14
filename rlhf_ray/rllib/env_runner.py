"""Env runners: RLlib's, plus reports of environment faults and random streams; and one that samples arrays. Environments by name.

RLlib's spends most of its time on episode objects and connectors. Everything that sees or changes episodes needs it, which
`rlhf_ray.rllib.ppo` then takes: callbacks of episodes, other RLModules, memory.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList
from ray import tune
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.module_to_env import NormalizeAndClipActions
from ray.rllib.core.columns import Columns
from ray.rllib.env.env_runner import ENV_STEP_FAILURE
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils.metrics import ENV_STEP_TIMER, RLMODULE_INFERENCE_TIMER

from rlhf_ray import envs
from rlhf_ray.actors.cluster import was_restarted
from rlhf_ray.actors.executor import OwnStreams
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.defaults import making, stepping, take_own_defaults
from rlhf_ray.data.errors import Fault
from rlhf_ray.data.failures import cause
from rlhf_ray.data.seeds import number_of
from rlhf_ray.data.spaces import choices_of, fitted
from rlhf_ray.data.system import usable_cores, within_bound
from rlhf_ray.data.vector_rollout import Infos, VectorRollout
from rlhf_ray.envs.classic_control import ArrayVectorEnv
from rlhf_ray.envs.envpool import EnvPoolVectorEnv
from rlhf_ray.envs.observations import copied
from rlhf_ray.policies.actions import ToEnvActions, gumbel_noise, log_probability, to_env_actions
from rlhf_ray.policies.network import outputs_of
from rlhf_ray.rllib.rllib_internals import begin_runner, env_creator, failed_step, tell
from rlhf_ray.settings import Experiment


def register_environment(config: Any, name: str) -> None:
    """Register a name that `rlhf_ray.envs.make_env` accepts with RLlib, unless it is registered already."""
    if env_creator(name) is None:
        tune.register_env(name, envs.EnvCreator(name))
    if _is_ours(name) and gym.VectorizeMode(config.gym_env_vectorize_mode) is gym.VectorizeMode.SYNC:
        config.env_runners(gym_env_vectorize_mode="vector_entry_point")


def env_threads(experiment: Experiment) -> dict[str, Any]:
    """Return the options of the environment by which its copies step in threads or processes, as the agent's settings say."""
    agent, name = experiment.agent_settings, experiment.environment
    if isinstance(agent.env_threads, int):
        threads = within_bound(agent.env_threads)
        return envs.thread_options(name, threads, threads if _is_ours(name) else 1)
    return envs.thread_options(name, max(1, usable_cores() // max(1, agent.num_env_runners)))


def _is_ours(name: str) -> bool:
    """Return whether a name of RLlib's is made by `rlhf_ray.envs`, which takes its options, and not by a creator of the user's."""
    return isinstance(env_creator(name), envs.EnvCreator)


_SEED_EACH = SyncVectorEnv, AsyncVectorEnv, ArrayVectorEnv, EnvPoolVectorEnv
"""Vector environments whose `reset` takes a list with each copy's seed. Gymnasium promises only that it takes one number."""


def seeds_of_copies(env: Any, seeds: np.random.SeedSequence) -> int | Sequence[int]:
    """Return what to seed a vector environment's reset with: each copy's own seed, or one number if it takes no list.

    Each call returns other seeds, so environments that are made again don't replay their episodes.
    """
    numbers = [number_of(seed) for seed in seeds.spawn(env.num_envs)]
    return numbers if isinstance(env.unwrapped, _SEED_EACH) else numbers[0]


class InfosByCopy(Sequence[dict[str, Any]]):
    """A step's infos as RLlib wants them, one dict per copy; made of gymnasium's ``arrays`` when first asked for."""

    def __init__(self, arrays: Mapping[str, Any], of_copies: Callable[[Any], list[dict[str, Any]]], copies: int):
        self.arrays, self._of_copies, self._copies = arrays, of_copies, copies
        self._made: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return self._copies

    def __getitem__(self, copy: Any) -> Any:
        if self._made is None:
            self._made = self._of_copies(self.arrays)
        return self._made[copy]


class LazyInfos(DictInfoToList):
    """What RLlib wraps its environments in, but lazy: arrays of steps need no dict for each copy."""

    def _convert_info_to_list(self, vector_infos: Any) -> Any:
        return InfosByCopy(vector_infos, super()._convert_info_to_list, self.num_envs)


class EnvRunner(SingleAgentEnvRunner):  # type: ignore[misc]
    """RLlib's env runner. Reports faults under its config's ``faults`` (see `raise_fault`).

    Every environment of every env runner has a random stream of its own. RLlib seeds copy ``k`` of env runner ``r`` with
    ``seed + r + k``, so that copies of different env runners, and of runs with adjacent seeds, would play the same episodes.
    """

    copies: np.random.SeedSequence
    """Seeds of the environments to come; set by `begin_runner`."""
    of_environment: OwnStreams
    """The process's global generators as the environment sees them: what it draws or seeds leaves the agent's alone."""
    env: Any
    _unsaid: list[bool]
    """Successes of episodes that ended before the environment said anything about success: no more than are averaged."""

    def __init__(self, *arguments: Any, config: Any, **keywords: Any):
        keywords["config"] = config
        if keywords.get("worker_index"):  # a process of its own, which may have imported a user's modules
            take_own_defaults()
        self.of_environment = OwnStreams(None if config.seed is None else np.random.SeedSequence(config.seed))
        try:
            super().__init__(*arguments, **keywords)
        except Exception as error:  # RLlib continues without it and fails later for another reason
            if isinstance(fault := cause(error), Fault) and ray.is_initialized():
                tell(keywords["config"].faults, fault)
            raise
        # Only an RLModule of the user's own may draw from Python's generator.
        acts = None if self.module is None else type(self.module.unwrapped()).__module__
        self.of_environment.python = not (acts or "rlhf_ray").startswith(("rlhf_ray", "ray.rllib"))
        if self.config.seed is not None:
            # The predecessor of a restarted env runner has used the streams of this seed.
            begin_runner(self, self.config.seed, unused=bool(self.worker_index) and was_restarted())

    def make_env(self) -> None:
        with self.of_environment, making:
            super().make_env()
        if type(self.env) is DictInfoToList:
            self.env.__class__ = LazyInfos  # not another wrapper: this one, thrown away, would close the copies

    def _try_env_reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Reset the environments (called by RLlib). With a ``seed``, each copy gets a new stream of its own."""
        seeds_given = None if seed is None else seeds_of_copies(self.env, self.copies)
        self._infos, self._unsaid, self._ended_before = Infos(self.env.num_envs, str(self.config.env)), [], False
        with self.of_environment, making:
            observations, infos = super()._try_env_reset(seed=seeds_given, options=options)
        return copy.deepcopy(observations), infos

    def _try_env_step(self, actions: Any) -> Any:
        """Step the environments (called by RLlib)."""
        with self.of_environment:
            return self.stepped(actions)

    def stepped(self, actions: Any) -> Any:
        """Step the environments, inside ``of_environment``. They get and give copies: some change or reuse arrays."""
        space, given = self.env.single_action_space, copied(actions)
        if isinstance(given, list):
            given = [fitted(action, space) for action in given]
        elif given.dtype != space.dtype:
            given = fitted(given, space)
        with stepping:
            stepped = self._step_env(given)
        if stepped is ENV_STEP_FAILURE:
            return stepped
        if isinstance(stepped[4], InfosByCopy):
            arrays, ended = stepped[4].arrays, stepped[2] | stepped[3]
            if arrays or self._ended_before or ended.any():  # else there is nothing to follow
                self._log_infos(arrays, ended)
            self._ended_before = bool(ended.any())
        return copied(stepped[0]), *stepped[1:]

    def _step_env(self, actions: Any) -> Any:
        return super()._try_env_step(actions)

    def _log_infos(self, infos: Mapping[str, Any], ended: Any) -> None:
        """Log which episodes succeeded and, whenever some end, the means of what the environment says."""
        succeeded = self._infos.see(infos, ended)
        if not ended.any():
            return
        window = max(1, -(-self.config.metrics_num_episodes_for_smoothing // max(1, self.config.num_env_runners)))
        self._unsaid += succeeded.tolist()
        if self._infos.known:
            for success in self._unsaid:
                self.metrics.log_value("success_rate", float(success), window=window)
            self._unsaid.clear()
        del self._unsaid[:-window]
        for name, mean in self._infos.means().items():
            self.metrics.log_value(f"info_mean/{name}", mean, window=window)

    def apply(self, func: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """See RLlib. After an exception, RLlib sleeps for a minute and restarts this process; hence faults are reported first."""
        fault: Fault | None = None

        def watched(*arguments: Any, **keywords: Any) -> Any:
            nonlocal fault
            try:
                return func(*arguments, **keywords)
            except Exception as error:
                if not isinstance(found := cause(error), Fault):
                    raise
                fault = found

        result = super().apply(watched, *arguments, **keywords)
        if fault is not None:
            tell(self.config.faults, fault)
            raise fault
        return result


class EnvActionsConnector(ConnectorV2):  # type: ignore[misc]
    """Gives the environment the actions of `to_env_actions`, in place of RLlib's `NormalizeAndClipActions`.

    RLlib's leaves all components of an action as they are where one has no bounds.
    """

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        batch[Columns.ACTIONS_FOR_ENV] = copy.deepcopy(batch[Columns.ACTIONS])
        space = self.action_space
        self.foreach_batch_item_change_in_place(
            batch=batch,
            column=Columns.ACTIONS_FOR_ENV,
            func=lambda action, *_: to_env_actions(action, space) if isinstance(space, gym.spaces.Box) else action,
        )
        return batch


class GivesEnvActions:
    """A mixin to put before an RLlib `AlgorithmConfig`, so that its env runners convert actions by `EnvActionsConnector`."""

    def build_module_to_env_connector(self, env: Any = None, spaces: Any = None) -> Any:
        pipeline = super().build_module_to_env_connector(env, spaces)  # type: ignore[misc]
        pipeline.insert_before(NormalizeAndClipActions, EnvActionsConnector())
        pipeline.remove(NormalizeAndClipActions)
        return pipeline


NOISE_ROWS = 256
"""Steps whose noise is drawn at once."""


class ArrayEnvRunner(EnvRunner):
    """An env runner whose `sample` returns a `VectorRollout`, in a list of its own, for each rollout of a number of steps."""

    _needs_initial_reset: bool
    _seen: Array
    """The newest observation of each copy."""
    _ended: BoolArray
    """Whether each copy's episode has ended, so that its next step is a reset."""
    _lengths: IntArray
    """Steps of each copy's episode so far; of one that has ended, all."""
    _returns: FloatArray
    """True return of each copy's episode so far."""
    _begun: FloatArray
    """Time at which each copy's episode began."""

    def _sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> Any:
        """Sample steps (called by RLlib). A number of whole episodes, or random actions, come as RLlib's episodes."""
        if num_timesteps is None or random_actions or self.config.in_evaluation:
            episodes = super()._sample(
                num_timesteps=num_timesteps,
                num_episodes=num_episodes,
                explore=explore,
                random_actions=random_actions,
                force_reset=force_reset or not self.config.in_evaluation,
            )
            self._needs_initial_reset |= not self.config.in_evaluation  # episodes of one kind don't go on in the other
            return episodes
        with self.of_environment as generator:
            return [self._rollout(num_timesteps, generator if explore else None, force_reset)]

    def _rollout(self, wanted: int, generator: torch.Generator | None, reset: bool) -> VectorRollout:
        """Sample steps, with noise of ``generator``; None: without exploration."""
        policy = outputs_of(self.module.unwrapped().network)
        space = self.env.single_action_space
        acting, for_env = _Draws(choices_of(space), generator), ToEnvActions(space)
        if reset or self._needs_initial_reset:
            self._begin()
        while True:
            starts = self._lengths.copy()
            observations, actions, outputs, results, reals, clock = [self._seen], [], [], [], [], [time.perf_counter()]
            inference, counted = 0.0, 0
            while counted < wanted:
                logits = policy(self._seen)
                action = acting(logits)
                inference += time.perf_counter() - clock[-1]
                stepped: Any = self.stepped(for_env(action))
                if stepped is ENV_STEP_FAILURE:
                    break
                self._seen, reward, terminated, truncated, _ = stepped
                real = ~self._ended
                observations.append(self._seen)
                actions.append(action)
                outputs.append(logits)
                results.append((np.array(reward, np.float64), np.array(terminated), np.array(truncated)))
                reals.append(real)
                clock.append(time.perf_counter())
                self._lengths = (self._lengths + 1) * real
                self._ended = terminated | truncated
                counted += int(np.count_nonzero(real))
            else:
                break
            self._begin()
        rewards, terminateds, truncateds = (np.array(column) for column in zip(*results, strict=True))
        taken = np.array(actions)
        with torch.inference_mode():
            likelihoods = log_probability(torch.as_tensor(np.array(outputs)), torch.as_tensor(taken), space).numpy()
        rollout = VectorRollout(
            np.array(observations),
            taken,
            likelihoods,
            rewards,
            terminateds,
            truncateds,
            np.array(reals),
            starts,
            self._weights_seq_no,
            self.worker_index,
        )
        self.metrics.log_value(RLMODULE_INFERENCE_TIMER, inference / len(actions))
        self.metrics.log_value(ENV_STEP_TIMER, (clock[-1] - clock[0] - inference) / len(actions))
        self._log_env_steps(metric=self._metrics_num_try_env_step, num_steps=len(actions))
        self._log_episodes(rollout, np.array(clock))
        return rollout

    def _step_env(self, actions: Any) -> Any:
        """Step the environments as RLlib does, whose metrics of a step take as long as some environments."""
        try:
            return self.env.step(actions)
        except Exception as error:
            return failed_step(self, error)

    def _begin(self) -> None:
        """Start new episodes in all copies."""
        seed = self._seed if self._needs_initial_reset else None
        self._seen, _ = self._try_env_reset(seed=seed, options=None)
        self._ended = np.zeros(self.num_envs, bool)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._returns, self._begun = np.zeros(self.num_envs), np.full(self.num_envs, time.perf_counter())
        self._needs_initial_reset = False

    def _log_episodes(self, rollout: VectorRollout, clock: Any) -> None:
        """Log the number of steps, and what RLlib logs of each episode that has ended."""
        ended = 0
        for number, rows in rollout.pieces():
            if rows.start:  # a new episode
                self._returns[number], self._begun[number] = 0.0, clock[rows.start]
            self._returns[number] += rollout.rewards[rows, number].sum()
            last = rows.stop - 1
            if rollout.ended[last, number]:
                ended += 1
                before = int(rollout.starts[number]) if rows.start == 0 else 0
                length = before + rows.stop - rows.start
                self._log_episode_metrics(length, float(self._returns[number]), clock[last + 1] - self._begun[number])
                self._returns[number], self._begun[number] = 0.0, clock[last + 1]
        self._log_env_steps(metric=self._metrics_num_env_steps_sampled, num_steps=len(rollout))
        self._increase_sampled_metrics(len(rollout), ended)


class _Draws:
    """Draws actions from a policy's outputs for Box, Discrete and MultiDiscrete; takes the likeliest without a generator."""

    def __init__(self, choices: tuple[int, ...], generator: torch.Generator | None):
        self.choices, self.generator = choices, generator
        self.splits = np.cumsum(choices)[:-1].astype(int)
        self.noise: Iterator[Any] = iter(())

    def _noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Any:
        if (noise := next(self.noise, None)) is None:
            rows = (NOISE_ROWS, *shape)
            drawn = gumbel_noise(rows, generator) if self.choices else torch.randn(rows, generator=generator)
            self.noise = iter(drawn.numpy())
            noise = next(self.noise)
        return noise

    def __call__(self, outputs: Any) -> Any:
        if not self.choices:
            size = outputs.shape[1] // 2
            mean, log_std = outputs[:, :size], outputs[:, size:]
            return mean if self.generator is None else mean + np.exp(log_std) * self._noise(mean.shape, self.generator)
        if self.generator is not None:
            outputs = outputs + self._noise(outputs.shape, self.generator)
        if len(self.choices) == 1:
            return outputs.argmax(1)
        return np.stack([part.argmax(1) for part in np.split(outputs, self.splits, 1)], 1)
