"""All uses of RLlib beyond its public interface. tests/rllib/test_rllib_internals.py checks those that could fail silently."""

from __future__ import annotations

import contextlib
import csv
import json
import logging
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.rllib.algorithms import algorithm
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.columns import Columns
from ray.rllib.env import env_runner_group
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils.debug import deterministic
from ray.rllib.utils.metrics import (
    ALL_MODULES,
    DIFF_NUM_GRAD_UPDATES_VS_SAMPLER_POLICY,
    MODULE_TRAIN_BATCH_SIZE_MEAN,
    NUM_ENV_STEPS_TRAINED,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
    NUM_MODULE_STEPS_TRAINED,
    NUM_MODULE_STEPS_TRAINED_LIFETIME,
    WEIGHTS_SEQ_NO,
)
from ray.rllib.utils.torch_utils import set_torch_seed
from ray.tune.logger import CSVLoggerCallback
from ray.tune.registry import ENV_CREATOR, _global_registry
from ray.tune.result import EXPR_PROGRESS_FILE
from ray.tune.trainable import trainable
from ray.tune.utils import flatten_dict
from ray.util.debug import log_once

from rlhf_ray.data.errors import Fault, FaultyEnvironmentError, LostFragmentsError, PartError
from rlhf_ray.data.failures import cause, debugging
from rlhf_ray.data.seeds import number_of, sequence

NAMESPACE = b"rlhf_ray"
"""Namespace in the cluster's key-value store."""


def env_creator(name: str) -> Any:
    """Return the creator registered with `ray.tune.register_env` under this name; None if there is none."""
    return _global_registry.get(ENV_CREATOR, name) if _global_registry.contains(ENV_CREATOR, name) else None


@contextlib.contextmanager
def in_temporary_folder() -> Iterator[None]:
    """Context manager: algorithms built inside have their folder in the temporary one, and not in ~/ray_results."""
    before, trainable.DEFAULT_STORAGE_PATH = trainable.DEFAULT_STORAGE_PATH, tempfile.gettempdir()
    try:
        yield
    finally:
        trainable.DEFAULT_STORAGE_PATH = before


def skip_notes(algorithm_name: str = "") -> None:
    """Keep RLlib from logging its notes on interfaces of its past, which no user of ours can act on: it logs each once."""
    for note in (f"{algorithm_name}_on_new_api_stack", "RLModule(config=[RLModuleConfig object])"):
        log_once(note)


FAULTS = {kind.__name__: kind for kind in (FaultyEnvironmentError, LostFragmentsError, PartError)}
"""Faults that env runners report, by name."""


def tell(faults: str, fault: Fault) -> None:
    """Report a fault under ``faults``, in the cluster's key-value store."""
    said = json.dumps([type(fault).__name__, str(fault)])
    _internal_kv_put(faults.encode(), said.encode(), namespace=NAMESPACE)


def raise_fault(faults: str) -> None:
    """Raise the fault that an env runner reported under ``faults``, if any.

    Raises:
        FaultyEnvironmentError: the environment has a fault.
        LostFragmentsError: fragments were lost.
    """
    said = _internal_kv_get(faults.encode(), namespace=NAMESPACE) if ray.is_initialized() else None
    if said is not None:
        _internal_kv_del(faults.encode(), namespace=NAMESPACE)
        kind, text = json.loads(said)
        raise FAULTS[kind](text)


class NoFaults(logging.Filter):
    """Drops the tracebacks that RLlib logs for an environment's fault. The fault is raised as a one-line error anyway."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        error = (record.exc_info and record.exc_info[1]) or record.msg
        of_fault = isinstance(error, BaseException) and isinstance(cause(error), Fault)
        return debugging() or not (of_fault or any(name in record.getMessage() for name in FAULTS))


def env_runner_calls(group: EnvRunnerGroup, tag: str) -> dict[Any, int]:
    """Return the pending calls of `foreach_env_runner_async` with this tag, with their env runners.

    RLlib's public interface can only wait for all of them.
    """
    calls: dict[Any, tuple[str, int]] = group._worker_manager._in_flight_req_to_actor_id
    return {call: runner for call, (call_tag, runner) in calls.items() if call_tag == tag}


def forget_env_runners(group: EnvRunnerGroup) -> None:
    """Stop all remote env runners at once, even if busy."""
    group._worker_manager.clear()


def begin_episodes(runner: Any, seeds: np.random.SeedSequence, of_environment: np.random.SeedSequence) -> None:
    """Make an env runner start new episodes. Ours take each copy's seed from ``seeds`` (``copies``), RLlib's count from one.

    With ours, ``of_environment`` seeds the global generators as the environment sees them.
    """
    runner.copies = seeds
    if (streams := getattr(runner, "of_environment", None)) is not None:
        streams.seed(of_environment)
    runner._seed = number_of(seeds)
    runner._needs_initial_reset = True


def failed_step(runner: Any, error: Exception) -> Any:
    """Let an env runner of RLlib handle an exception of its environment's step. Returns what its own step returns then."""

    def fail(actions: Any) -> Any:
        raise error

    env = runner.env
    env.step = fail
    try:
        return SingleAgentEnvRunner._try_env_step(runner, None)
    finally:
        del env.step


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
            lambda learner: seed_process(sequence(seed, "learners", iteration, int(learner._learner_index)))
        )


def seed_process(seeds: np.random.SeedSequence) -> None:
    """Seed all global generators of this process."""
    number = number_of(seeds)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def local_learner(group: Any) -> Any:
    """Return the learner of a group without remote learners."""
    return group._learner


def learner_pipeline(learner: Any) -> Any:
    """Return a learner's pipeline of connectors."""
    return learner._learner_connector


def count_update(learner: Any) -> None:
    """Count an update of the weights, as RLlib's own `Learner.update` does. Rollouts carry the number; env runners compare it."""
    learner._weights_seq_no += 1


def train_batch(learner: Any, episodes: list[Any]) -> Any:
    """Return the train batch that a learner's connectors make of episodes: columns of each module."""
    return learner._learner_connector(
        rl_module=learner.module, batch={}, episodes=episodes, shared_data={}, metrics=learner.metrics
    )


def log_trained_steps(learner: Any, module_id: str, columns: Any, *, minibatches: int, size: int) -> None:
    """Log what RLlib logs for each minibatch, once for all of an update."""
    log, trained = learner.metrics.log_value, minibatches * size
    log((module_id, WEIGHTS_SEQ_NO), learner._weights_seq_no, window=1)
    log((module_id, MODULE_TRAIN_BATCH_SIZE_MEAN), size, reduce="mean")
    for key in (module_id, ALL_MODULES):
        throughput = {} if key == module_id else {"with_throughput": True}
        log((key, NUM_MODULE_STEPS_TRAINED), trained, reduce="sum", **throughput)
        log((key, NUM_MODULE_STEPS_TRAINED_LIFETIME), trained, reduce="lifetime_sum", with_throughput=True)
    log((ALL_MODULES, NUM_ENV_STEPS_TRAINED), trained, reduce="sum", with_throughput=True)
    log((ALL_MODULES, NUM_ENV_STEPS_TRAINED_LIFETIME), trained, reduce="lifetime_sum", with_throughput=True)
    if WEIGHTS_SEQ_NO in columns:
        behind = (learner._weights_seq_no - columns[WEIGHTS_SEQ_NO][columns[Columns.LOSS_MASK]]).float().mean()
        log((module_id, DIFF_NUM_GRAD_UPDATES_VS_SAMPLER_POLICY), behind, window=1)
    learner._metrics_all_modules_num_env_steps_trained.inc(value=trained)
    learner._metrics_all_modules_num_module_steps_trained.inc(value=trained)


def use_own_learning_rates(learner: Any, timestep: int) -> None:
    """Set the learner's optimisers to the learning rates of its own configuration at ``timestep``."""
    for optimizer, schedule in learner._optimizer_lr_schedules.items():
        learner._set_optimizer_lr(optimizer, lr=schedule.update(timestep=timestep))


def forget_steps(learner: Any) -> None:
    """Let a learner's optimisers forget their steps: the weights are new."""
    for optimizer in learner._named_optimizers.values():
        getattr(optimizer, "restart", optimizer.state.clear)()


def module_spec(config: Any) -> Any:
    """Return the ``rl_module_spec`` passed to `AlgorithmConfig.rl_module`; None if there is none."""
    return config._rl_module_spec


def model_config(config: Any) -> Any:
    """Return the ``model_config`` passed to `AlgorithmConfig.rl_module`."""
    return config._model_config


def model_config_of(spec: Any) -> dict[str, Any]:
    """Return the ``model_config`` of an `RLModuleSpec` as a dict."""
    config: dict[str, Any] = spec._get_model_config()
    return config


class _SpreadGroup(EnvRunnerGroup):  # type: ignore[misc]
    """An `EnvRunnerGroup` that spreads its actors over nodes. RLlib has no setting for that without placement groups."""

    @property
    def _remote_args(self) -> dict[str, Any]:
        return self._arguments

    @_remote_args.setter
    def _remote_args(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments | {"scheduling_strategy": "SPREAD"}


class _RayIfRunning:
    """Ray for RLlib's group of env runners, which puts its configuration into the object store even if it has no actors.

    That would start Ray. And if it has some, Ray prints that they can't restart once such an argument is lost: they get a copy.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)

    def put(self, value: Any) -> Any:
        return ray.put(value) if ray.is_initialized() and not isinstance(value, AlgorithmConfig) else value


env_runner_group.ray = _RayIfRunning()


def _seed_torch(seed: int | None = None) -> None:
    """Seed torch as RLlib does, and leave its deterministic algorithms as they are, as RLlib does if torch has CUDA.

    One thread computes the same without them. To set them imports torch's compiler, which takes longer than to import torch.
    """
    module: Any = torch
    before, module.use_deterministic_algorithms = torch.use_deterministic_algorithms, lambda mode: None
    try:
        set_torch_seed(seed)
    finally:
        module.use_deterministic_algorithms = before


deterministic.set_torch_seed = _seed_torch


def _log_row(self: Any, iteration: int, trial: Any, result: dict[str, Any]) -> None:
    """Write a result to the trial's progress.csv, as one table whatever the results hold (called by Tune).

    Tune's own method writes the columns of a session's first result. In a restored session, these are others, in another order,
    below the header of the first session.
    """
    if trial not in self._trial_files:
        self._setup_trial(trial)
    values = flatten_dict({name: value for name, value in result.items() if name != "config"}, delimiter="/")
    writer, file = self._trial_csv[trial], self._trial_files[trial]
    if writer is None or not values.keys() <= set(writer.fieldnames):
        with Path(trial.local_path, EXPR_PROGRESS_FILE).open(newline="") as before:
            header, *rows = list(csv.reader(before)) or [[]]
        file.truncate(0)
        writer = csv.DictWriter(file, list(dict.fromkeys((*header, *values))))
        writer.writeheader()
        # Shorter rows were cut by a kill.
        writer.writerows(dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header))
        self._trial_csv[trial] = writer
    writer.writerow(values)
    file.flush()


CSVLoggerCallback.log_trial_result = _log_row


@contextlib.contextmanager
def spread_env_runners() -> Iterator[None]:
    """Context manager: algorithms that are set up inside spread their env runners over the cluster.

    By default, Ray first fills half of the caller's node, which also runs the learner and the ring's actors. Has no effect in a
    Tune trial, whose placement group has a bundle for each actor.
    """
    if not ray.is_initialized() or ray.util.get_current_placement_group() is not None:
        yield
        return
    before: Callable[..., Any] = algorithm.EnvRunnerGroup
    algorithm.EnvRunnerGroup = _SpreadGroup
    try:
        yield
    finally:
        algorithm.EnvRunnerGroup = before
