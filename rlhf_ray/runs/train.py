"""Train an experiment into a run folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rlhf_ray.actors.cluster import join_cluster
from rlhf_ray.actors.cluster import start_ray as start_ray  # re-exported for callers
from rlhf_ray.actors.ray_internals import hush_ray
from rlhf_ray.agents.true_return import TrueReturn, evaluate
from rlhf_ray.data.checkpoints import all_checkpoints, save_checkpoint
from rlhf_ray.data.errors import FaultyEnvironmentError, PartError
from rlhf_ray.data.failures import cause
from rlhf_ray.data.metrics import Metric, declare
from rlhf_ray.envs.registry import reward_threshold
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.predictor import reward_of_steps
from rlhf_ray.rllib.algorithm import LearnsFromPreferences
from rlhf_ray.rllib.checkpoint_parts import load_policy
from rlhf_ray.rllib.choice import preference_config, reference_config
from rlhf_ray.rllib.metrics import PREFERENCES, flat_metrics
from rlhf_ray.rllib.reference import train_reference
from rlhf_ray.runs.answer_alarms import has
from rlhf_ray.runs.callbacks import Callback, Callbacks, Latest, Pausing, TrainingRun
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.health import Alarms
from rlhf_ray.runs.interruption import Interrupted, Interruption, interruptible
from rlhf_ray.runs.metrics_files import CSVFile, MetricsFile, TensorBoard, carry_on
from rlhf_ray.runs.new_run import sources
from rlhf_ray.runs.outcome import Outcome, checks_of, share_of_the_way
from rlhf_ray.runs.policies import keep_policy
from rlhf_ray.runs.probe import Probing
from rlhf_ray.settings import Experiment
from rlhf_ray.store import PreferenceStore

declare("run", Metric("seconds", "Training time so far, without interruptions.", "s"))

EVALUATED_WITHIN = 2.0
"""Seconds for the evaluation of a stopped run. The user is waiting, and a job runner may kill the process after ten."""


def train(
    folder: RunFolder,
    experiment: Experiment | None = None,
    *,
    resume: bool = False,
    reference: bool = False,
    evaluation_episodes: int = 20,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train the experiment of a run folder and complete the folder, even if interrupted by Ctrl-C.

    An interrupted iteration is discarded: its samples are lost, its labels are kept.

    Args:
        folder: a new run folder; with ``resume``, the folder of the run to resume.
        experiment: the settings; None: the folder's.
        resume: continue from the folder's newest complete checkpoint, or from the start if there is none.
        reference: also train the agent on the true reward, with the same settings and number of steps.
        evaluation_episodes: number of episodes to evaluate each agent on.
        callbacks: callbacks to call; see `Callback`.

    Returns:
        The outcome, as written to ``result.json``.

    Raises:
        CallbackError: a callback raised. The run has stopped and can be resumed, unless it was complete.
        LockedError: another process writes to the folder.
    """
    experiment = experiment or folder.experiment()
    join_cluster()  # before `interruptible`, because Ray sets its own handler of SIGTERM when it connects
    with folder.writing(), interruptible() as interrupted:
        latest = Latest()
        files = (MetricsFile(), CSVFile(), TensorBoard(), Reporting())
        observers = Callbacks([Pausing(), Probing(), Alarms(), *callbacks, latest, *files])
        outcome = None
        try:
            finished, seconds = _train(experiment, folder, resume, interrupted, observers, latest)
            observers.check(
                f" The run has stopped; correct the callback, then resume it with `rlhf-ray train --resume {folder.path}`."
            )
            random, trained = _evaluate(experiment, folder, interrupted, observers, evaluation_episodes)
            best = None
            if reference and not interrupted():
                observers.on_stage("training the reference on the true reward")
                with contextlib.suppress(Interrupted), interrupted.at_once():
                    act = train_reference(experiment, reference_config).best
                    best = evaluate(experiment.environment, act, episodes=evaluation_episodes, seed=experiment.seed)
            # Otherwise it can be resumed.
            whole = finished and trained is not None and (best is not None or not reference)
            last, store, rows = latest.values, folder.preferences, reversed(folder.rows())
            outcome = Outcome(
                environment=experiment.environment,
                seed=experiment.seed,
                env_steps=last.get("env_steps", 0),
                comparisons=len(PreferenceStore(store)) if store.exists() else 0,
                held_out_accuracy=last.get("held_out_accuracy"),
                held_out_decided=last.get("held_out_decided"),
                random=random,
                trained=trained,
                reference=best,
                train_seconds=seconds,
                interrupted=not whole,
                training_return=last.get("true_return_mean"),
                best_fragments=next((row["best_fragments"] for row in rows if has(row, "best_fragments")), None),
                skipped=last.get("skipped", 0),
                reward_threshold=reward_threshold(experiment.environment),
            )
            numbers = asdict(outcome)
            outcome = replace(outcome, normalised=share_of_the_way(numbers), checks=checks_of(numbers))
            folder.finish(asdict(outcome), interrupted=not whole)
        finally:
            observers.on_end(outcome)
        observers.check()
        return outcome


def _train(
    experiment: Experiment,
    folder: RunFolder,
    resume: bool,
    interrupted: Interruption,
    observers: Callbacks,
    latest: Latest,
) -> tuple[bool, float]:
    """Train until the budget is spent, a stop is requested, or a callback fails; returns (budget is spent, seconds so far)."""
    checkpoint = folder.checkpoint() if resume and all_checkpoints(folder.checkpoints) else None
    # Labels from before the run; None if it did not get that far.
    before = folder.about().get("labels_until") if resume and checkpoint is None else None
    config = preference_config(experiment).preferences(run_dir=folder.path, begun_after=before)
    config.labelling(sessions=folder.labelling).start_from(**sources(folder))
    with interrupted.at_once():
        algorithm: LearnsFromPreferences = config.algo_class(
            config, ring_callbacks=observers, iterating=interrupted.at_once
        )

    def stopped() -> bool:
        return interrupted() or observers.failure is not None

    try:
        if checkpoint is not None:
            algorithm.restore_from_path(str(checkpoint))
        if resume:
            folder.go_back_to(algorithm.training_iteration)
        else:
            folder.note_labels(PreferenceStore(folder.preferences).tally().last if config.labels_from else 0)
        observers.on_start(TrainingRun(experiment, folder, algorithm))
        if algorithm.links:
            observers.on_links(algorithm.links)
        started = time.perf_counter() - latest.values.get("seconds", 0.0)
        with _resumable(algorithm, folder):
            begun = False
            # The first fragments and the first fit take a while; an interrupt loses nothing.
            with contextlib.suppress(Interrupted), interrupted.at_once():
                begun = not stopped() and algorithm.begin(stopped)
            if begun:
                observers.on_stage("training")
            with contextlib.suppress(Interrupted):
                while begun and not algorithm.finished and not stopped():
                    metrics = flat_metrics(algorithm.train())
                    observers.on_metrics(metrics | {"seconds": time.perf_counter() - started})
                    if algorithm.training_iteration % experiment.checkpoint_every == 0:
                        with carry_on("checkpoint"):
                            save(algorithm, folder)
        finished = algorithm.finished
        if finished and algorithm.ring.people is not None:
            observers.on_stage("telling the open labelling pages")
            algorithm.farewell(stopped)
        if stopped():
            observers.on_stage("stopping")
            hush_ray()
            algorithm.stop_now()
        # Stopped before its first iteration, a run starts anew, bit for bit. People's first clips are worth keeping.
        if algorithm.training_iteration or algorithm.ring.people is not None:
            save(algorithm, folder)
        if algorithm.ring.version:
            algorithm.reward_model().save(folder.reward_model)
    finally:
        close(algorithm)
    return finished, time.perf_counter() - started


@contextlib.contextmanager
def _resumable(algorithm: LearnsFromPreferences, folder: RunFolder) -> Iterator[None]:
    """If a part of the user's own or the environment fails inside, say how to continue.

    In asynchronous mode it fails beside the agent's training, which is whole: save it, with the questions that are open.
    """
    try:
        yield
    except Exception as error:
        failure = cause(error)
        if isinstance(failure, FaultyEnvironmentError):
            raise FaultyEnvironmentError(
                f"{failure} `rlhf-ray train --resume {folder.path}` continues the run."
            ) from error
        if not isinstance(failure, PartError):
            raise
        what = "Mend it and continue"
        if algorithm.training_iteration and algorithm.config.checked.experiment.preferences.mode == "asynchronous":
            with contextlib.suppress(Exception):  # the first error counts
                save(algorithm, folder)
                what = f"The run is saved at iteration {algorithm.training_iteration}: mend it and continue"
        raise PartError(f"{failure} {what} with `rlhf-ray train --resume {folder.path}`.") from error


def _evaluate(
    experiment: Experiment, folder: RunFolder, interrupted: Interruption, observers: Callbacks, episodes: int
) -> tuple[TrueReturn | None, TrueReturn | None]:
    """The true returns of random actions and of the trained agent; None without time or a policy to evaluate."""
    observers.on_stage("evaluating")
    if all_checkpoints(folder.checkpoints):
        with contextlib.suppress(Interrupted), interrupted.at_once(within=EVALUATED_WITHIN):
            env, seed = experiment.environment, experiment.seed
            random = evaluate(env, None, episodes=episodes, seed=seed)
            act = load_policy(folder.checkpoint()).best
            fitted = (folder.reward_model / "reward.json").exists()  # else stopped before the first fit
            reward = reward_of_steps(RewardEnsemble.load(folder.reward_model)) if fitted else None
            return random, evaluate(env, act, episodes=episodes, seed=seed, reward=reward)
    return None, None


class Reporting(Callback):
    """Writes the report into the run folder if the run has an outcome."""

    def on_start(self, run: TrainingRun) -> None:
        """Remember the folder."""
        self._path = run.folder.path

    def on_end(self, outcome: Outcome | None) -> None:
        """Write the report."""
        if outcome is not None:
            from rlhf_ray.runs.report.run_report import write_report  # imports matplotlib, which training doesn't need

            write_report(self._path)


def close(algorithm: Any) -> None:
    """Stop an algorithm, and remove its own folder if that is empty."""
    algorithm.stop()
    with contextlib.suppress(OSError):
        Path(algorithm.logdir).rmdir()


def save(algorithm: Any, folder: RunFolder) -> None:
    """Save a checkpoint into the run folder, and a copy of its policy beside the reward model.

    The checkpoint's manifest omits the preference store, which has its own checksums.
    """
    iteration, write = algorithm.training_iteration, algorithm.save_to_path
    keep_policy(folder, save_checkpoint(folder.checkpoints, iteration, write, unlisted=PREFERENCES))
