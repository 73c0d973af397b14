"""EnvRunner: RLlib's env runner, plus reports of environment faults; environments by name; a random stream for each of them."""

from __future__ import annotations

import copy
import json
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList
from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.module_to_env import NormalizeAndClipActions
from ray.rllib.core.columns import Columns
from ray.rllib.env.env_runner import ENV_STEP_FAILURE
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from rlhf_ray import envs
from rlhf_ray.actors.cluster import was_restarted
from rlhf_ray.actors.executor import OwnStreams
from rlhf_ray.data.defaults import making, stepping, take_own_defaults
from rlhf_ray.data.errors import Fault, FaultyEnvironmentError, LostFragmentsError, PartError
from rlhf_ray.data.failures import cause, debugging
from rlhf_ray.data.seeds import number_of, sequence
from rlhf_ray.data.spaces import fitted
from rlhf_ray.data.system import usable_cores, within_bound
from rlhf_ray.data.vector_rollout import Infos
from rlhf_ray.envs.classic_control import ArrayVectorEnv
from rlhf_ray.envs.envpool import EnvPoolVectorEnv
from rlhf_ray.policies.actions import to_env_actions
from rlhf_ray.rllib.rllib_internals import (
    begin_episodes,
    env_creator,
    learner_index,
    seeded_without_compiler,
    tell_cluster,
    told_cluster,
)
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


def reset_and_reseed(algorithm: Algorithm, seed: int, iteration: int) -> None:
    """Start new episodes in all environments, and give all processes the random streams of ``iteration``.

    RLlib's checkpoints contain neither environments nor generators. An algorithm that does this at regular iterations can resume
    there: a restored run and an uninterrupted one give the same result.
    """
    for group in (algorithm.env_runner_group, algorithm.eval_env_runner_group):
        if group is not None:
            group.foreach_env_runner(lambda runner: begin_runner(runner, seed, iteration), local_env_runner=True)
    seed_learners(algorithm, seed, iteration)
    seed_process(sequence(seed, "algorithm", iteration))


def begin_runner(runner: Any, seed: int, iteration: int = 0, *, unused: bool = False) -> None:
    """Start new episodes in an env runner, with its random streams of ``iteration``; ``unused``: with ones that no seed gives."""
    process = "evaluation" if runner.config.in_evaluation else "env runners"
    number = runner.worker_index or 0
    seeds = np.random.SeedSequence() if unused else sequence(seed, process, iteration, number)
    of_process, copies, of_environment = seeds.spawn(3)
    if number:  # 0 is in the algorithm's process, which has a stream already
        seed_process(of_process)
    begin_episodes(runner, copies, of_environment)


def seed_learners(algorithm: Algorithm, seed: int, iteration: int = 0) -> None:
    """Give each learner with a process of its own the random stream of ``iteration``. RLlib gives all of them the same."""
    if algorithm.learner_group.is_remote:
        algorithm.learner_group.foreach_learner(
            lambda learner: seed_process(sequence(seed, "learners", iteration, learner_index(learner)))
        )


def seed_process(seeds: np.random.SeedSequence) -> None:
    """Seed all global generators of this process."""
    number = number_of(seeds)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def seeds_of_copies(env: Any, seeds: np.random.SeedSequence) -> int | Sequence[int]:
    """Return what to seed a vector environment's reset with: each copy's own seed, or one number if it takes no list.

    Each call returns other seeds, so environments that are made again don't replay their episodes.
    """
    numbers = [number_of(seed) for seed in seeds.spawn(env.num_envs)]
    return numbers if isinstance(env.unwrapped, _SEED_EACH) else numbers[0]


FAULTS = {kind.__name__: kind for kind in (FaultyEnvironmentError, LostFragmentsError, PartError)}
"""Faults that env runners report, by name."""


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
        with seeded_without_compiler():
            try:
                super().__init__(*arguments, **keywords)
            except Exception as error:  # RLlib continues without it and fails later for another reason
                if isinstance(fault := cause(error), Fault) and ray.is_initialized():
                    tell(keywords["config"].faults, fault)
                raise
        self.of_environment.python = self._draws_python()
        if self.config.seed is not None:
            # The predecessor of a restarted env runner has used the streams of this seed.
            begin_runner(self, self.config.seed, unused=bool(self.worker_index) and was_restarted())

    def _draws_python(self) -> bool:
        """Return whether an RLModule of the user's own acts. Only that may draw from Python's generator."""
        module = None if self.module is None else type(self.module.unwrapped()).__module__
        return not (module or "rlhf_ray").startswith(("rlhf_ray", "ray.rllib"))

    def make_env(self) -> None:
        """See RLlib."""
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
        space, given = self.env.single_action_space, copy.deepcopy(actions)
        if isinstance(given, list):
            given = [fitted(action, space) for action in given]
        elif given.dtype != space.dtype:
            given = fitted(given, space)
        with stepping:
            stepped = super()._try_env_step(given)
        if stepped is ENV_STEP_FAILURE:
            return stepped
        if isinstance(stepped[4], InfosByCopy):
            arrays, ended = stepped[4].arrays, stepped[2] | stepped[3]
            if arrays or self._ended_before or ended.any():  # else there is nothing to follow
                self._log_infos(arrays, ended)
            self._ended_before = bool(ended.any())
        return copy.deepcopy(stepped[0]), *stepped[1:]

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


def tell(faults: str, fault: Fault) -> None:
    """Report a fault under ``faults``."""
    tell_cluster(faults, json.dumps([type(fault).__name__, str(fault)]))


def raise_fault(faults: str) -> None:
    """Raise the fault that an env runner reported under ``faults``, if any.

    Raises:
        FaultyEnvironmentError: the environment has a fault.
        LostFragmentsError: fragments were lost.
    """
    if (fault := told_cluster(faults)) is not None:
        kind, text = json.loads(fault)
        raise FAULTS[kind](text)


class NoFaults(logging.Filter):
    """Drops the tracebacks that RLlib logs for an environment's fault. The fault is raised as a one-line error anyway."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        error = (record.exc_info and record.exc_info[1]) or record.msg
        of_fault = isinstance(error, BaseException) and isinstance(cause(error), Fault)
        return debugging() or not (of_fault or any(name in record.getMessage() for name in FAULTS))


class ToEnvActions(ConnectorV2):  # type: ignore[misc]
    """Gives the environment the actions of `to_env_actions`, in place of RLlib's `NormalizeAndClipActions`.

    RLlib's leaves all components of an action as they are where one has no bounds.
    """

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        """Add the environment's actions to the policy's."""
        batch[Columns.ACTIONS_FOR_ENV] = copy.deepcopy(batch[Columns.ACTIONS])
        space = self.action_space
        self.foreach_batch_item_change_in_place(
            batch=batch,
            column=Columns.ACTIONS_FOR_ENV,
            func=lambda action, *_: to_env_actions(action, space) if isinstance(space, gym.spaces.Box) else action,
        )
        return batch


class GivesEnvActions:
    """A mixin to put before an RLlib `AlgorithmConfig`, so that its env runners convert actions by `ToEnvActions`."""

    def build_module_to_env_connector(self, env: Any = None, spaces: Any = None) -> Any:
        """Build RLlib's pipeline, with our conversion of actions."""
        pipeline = super().build_module_to_env_connector(env, spaces)  # type: ignore[misc]
        pipeline.insert_before(NormalizeAndClipActions, ToEnvActions())
        pipeline.remove(NormalizeAndClipActions)
        return pipeline
