"""Train an expert: an agent on the true reward, in a run folder whose policy can be evaluated, recorded and resumed."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, LEARNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME

from rlhf_ray.actors.cluster import join_cluster, start_ray
from rlhf_ray.actors.ray_internals import hush_ray
from rlhf_ray.agents.true_return import evaluate
from rlhf_ray.data.atomic import append
from rlhf_ray.data.checkpoints import last_checkpoint, save_checkpoint
from rlhf_ray.data.metrics import plain
from rlhf_ray.rllib.checkpoint_parts import check_pickles, complete, load_policy
from rlhf_ray.rllib.choice import expert_config
from rlhf_ray.rllib.metrics import PREFERENCES
from rlhf_ray.rllib.rllib_internals import forget_env_runners, in_temporary_folder, raise_fault, reset_and_reseed
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.interruption import Interrupted, interruptible
from rlhf_ray.runs.outcome import Outcome
from rlhf_ray.runs.train import close
from rlhf_ray.settings import Experiment


def train_expert(
    folder: RunFolder,
    experiment: Experiment,
    *,
    resume: bool = False,
    evaluation_episodes: int = 20,
    watch: Callable[[dict[str, Any]], None] = lambda metrics: None,
) -> Outcome:
    """Train the agent on the true reward with the experiment's settings of it, for whole iterations within its step budget.

    Writes ``metrics.jsonl``, checkpoints and ``result.json``. See `rlhf_ray.rllib.reference` for what it takes from the published
    agents, and what not.

    ``folder`` is a new run folder; with ``resume``, that of a run, which continues from its newest complete checkpoint. Settings of
    fragments, preferences and reward model are not used. ``reference`` of the outcome is the expert's true return.
    """
    config = expert_config(experiment)
    join_cluster()
    if others := config.num_env_runners + config.num_learners:
        start_ray(cpus=1 + others)
    with folder.writing(), interruptible() as interrupted:
        with interrupted.at_once(), in_temporary_folder():
            algorithm = config.build_algo()
        try:
            if resume and (checkpoint := last_checkpoint(folder.checkpoints)) is not None:
                check_pickles(checkpoint)
                algorithm.restore_from_path(str(checkpoint))
                reset_and_reseed(algorithm, experiment.seed, algorithm.training_iteration)
            folder.go_back_to(algorithm.training_iteration)
            started = time.perf_counter() - folder.last_metrics().get("seconds", 0.0)
            iterations = experiment.total_env_steps // experiment.agent_settings.iteration_env_steps
            while algorithm.training_iteration < iterations and not interrupted():
                done = algorithm.training_iteration
                try:
                    with interrupted.at_once():
                        if done and done % experiment.checkpoint_every == 0:
                            reset_and_reseed(algorithm, experiment.seed, done)
                        result = algorithm.train()
                except Interrupted:
                    hush_ray()
                    forget_env_runners(algorithm.env_runner_group)  # otherwise `stop` waits for their rollouts
                    break
                raise_fault(algorithm.config.faults)
                metrics = _metrics(result) | {"seconds": time.perf_counter() - started}
                append(folder.metrics, (json.dumps(metrics) + "\n").encode())
                watch(metrics)
                if algorithm.training_iteration % experiment.checkpoint_every == 0:
                    _save(algorithm, folder)
            whole = algorithm.training_iteration >= iterations
            _save(algorithm, folder)
        finally:
            close(algorithm)
        random = trained = None
        with contextlib.suppress(Interrupted), interrupted.at_once():
            if whole:
                test = partial(evaluate, experiment.environment, episodes=evaluation_episodes, seed=experiment.seed)
                random, trained = test(None), test(load_policy(folder.checkpoint()).best)
    last = folder.last_metrics()
    outcome = Outcome(
        environment=experiment.environment,
        seed=experiment.seed,
        env_steps=last.get("env_steps", 0),
        comparisons=0,
        random=random,
        reference=trained,
        train_seconds=last.get("seconds", 0.0),
        interrupted=trained is None,
        training_return=last.get("true_return_mean"),
    )
    folder.finish(asdict(outcome), interrupted=outcome.interrupted)
    return outcome


def _save(algorithm: Any, folder: RunFolder) -> None:
    """Save a checkpoint into the run folder."""

    def write(path: Path) -> None:
        algorithm.save_to_path(path)
        complete(path)

    save_checkpoint(folder.checkpoints, algorithm.training_iteration, write, unlisted=PREFERENCES)


def _metrics(result: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of one iteration, with the names that other runs use."""
    runners, learner = result[ENV_RUNNER_RESULTS], result[LEARNER_RESULTS][DEFAULT_MODULE_ID]
    found: dict[str, Any] = plain(
        {
            "iteration": result["training_iteration"],
            "env_steps": int(runners[NUM_ENV_STEPS_SAMPLED_LIFETIME]),
            "true_return_mean": runners.get("episode_return_mean"),
            "episode_length_mean": runners.get("episode_len_mean"),
            "success_rate": runners.get("success_rate"),
            "policy_entropy": learner.get("entropy"),
            "value_explained_variance": learner.get("vf_explained_var"),
        }
    )
    return found
