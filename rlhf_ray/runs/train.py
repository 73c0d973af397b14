"""Training runs: from an experiment to a run folder."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rlhf_ray.actors.announced import Announcement, announced
from rlhf_ray.actors.cluster import start_ray as start_ray  # where callers look for it
from rlhf_ray.actors.ray_internals import LOGGER, hush_ray
from rlhf_ray.data.checkpoints import all_checkpoints, last_checkpoint, save_checkpoint
from rlhf_ray.measure.true_return import TrueReturn, evaluate
from rlhf_ray.rllib.env_runner import NoFaults
from rlhf_ray.rllib.metrics import PREFERENCES, flat_metrics
from rlhf_ray.rllib.ppo import PreferencePPO, PreferencePPOConfig
from rlhf_ray.rllib.reference import train_reference
from rlhf_ray.rllib.saved_policy import load_policy
from rlhf_ray.runs.callbacks import Callback, Callbacks, Latest, TrainingRun
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.health import Alarms
from rlhf_ray.runs.interruption import Interrupted, Interruption, interruptible
from rlhf_ray.runs.metrics_files import MetricsFile, TensorBoard, carry_on
from rlhf_ray.runs.new_run import sources
from rlhf_ray.runs.outcome import Outcome
from rlhf_ray.runs.report.reporting import Reporting
from rlhf_ray.runs.report.verdict import share_of_the_way, verdicts
from rlhf_ray.settings import Experiment
from rlhf_ray.store import PreferenceStore

EVALUATED_WITHIN = 2.0
"""Seconds for the evaluation of a run that was stopped. Whoever stopped it waits, and may kill it after ten."""


def quiet() -> None:
    """Silence what RLlib says of itself to everybody: notes on its own past interfaces. Errors still show."""
    for name in ("ray.rllib", "ray._common.deprecation"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("ray.rllib", "ray.rllib.utils.actor_manager", "ray.rllib.env.env_runner_group", LOGGER):
        logging.getLogger(name).addFilter(NoFaults())
    warnings.filterwarnings("ignore", message=".*Overriding environment rllib-single-agent-env-v0.*")


class Announcing(Callback):
    """Tells the announcement what the run does, how far it is, and where its labelling page is."""

    def __init__(self, announcement: Announcement):
        self._announcement = announcement
        self._stage = "starting"

    def on_stage(self, stage: str) -> None:
        """Tell what the run does."""
        self._stage = stage
        self._announcement.tell(stage)

    def on_links(self, links: dict[str, str]) -> None:
        """Tell where the page is, and no more: whoever has a link labels in its owner's name."""
        self._announcement.tell(self._stage, pages=sorted({link.partition("#")[0] for link in links.values()}))

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Tell how far the run is."""
        self._announcement.tell(env_steps=metrics["env_steps"], labels=metrics["comparisons"])


def train(
    experiment: Experiment,
    folder: RunFolder,
    *,
    resume: bool = False,
    reference: bool = False,
    evaluation_episodes: int = 20,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train on ``experiment`` and leave a whole run folder behind, also when interrupted by Ctrl-C.

    The iteration that is interrupted is left off: what it has sampled is lost, its labels are kept.

    Args:
        experiment: the settings.
        folder: a new run folder, or with ``resume`` that of the run to go on with.
        resume: go on from the folder's newest whole checkpoint; from the beginning where there is none.
        reference: also train PPO with the same settings and as many steps on the true reward.
        evaluation_episodes: episodes that each agent is evaluated on.
        callbacks: are told how the run is; see `Callback`.

    Raises:
        CallbackError: a callback raised. The run stopped with a checkpoint, unless it was over.
    """
    totals = {"total_env_steps": experiment.total_env_steps, "total_labels": experiment.preferences.comparisons}
    with (
        interruptible() as interrupted,
        announced(folder.path, environment=experiment.environment, **totals) as announcement,
    ):
        latest = Latest()
        files = (MetricsFile(), TensorBoard(), Announcing(announcement), Reporting())
        told = Callbacks([Alarms(), *callbacks, latest, *files])
        outcome = None
        try:
            finished, seconds = _train(experiment, folder, resume, interrupted, told, latest)
            told.check(f" The run stopped with a checkpoint; `rlhf-ray train --resume {folder.path}` continues.")
            random, trained = _evaluate(experiment, folder, interrupted, told, evaluation_episodes)
            best = None
            if reference and not interrupted():
                told.on_stage("training on the true reward, to compare with")
                with contextlib.suppress(Interrupted), interrupted.at_once():
                    best = _true_return(experiment, train_reference(experiment).best, evaluation_episodes)
            whole = finished and trained is not None and (best is not None or not reference)  # or it can be resumed
            outcome = _outcome(experiment, folder, latest, seconds, random, trained, best, interrupted=not whole)
            folder.finish(asdict(outcome), interrupted=not whole)
        finally:
            told.on_end(outcome)
        told.check()
        return outcome


def _train(
    experiment: Experiment,
    folder: RunFolder,
    resume: bool,
    interrupted: Interruption,
    told: Callbacks,
    latest: Latest,
) -> tuple[bool, float]:
    """Train until the budget is spent, ``interrupted``, or a callback fails. Whether the budget is spent, and seconds so far."""
    config = PreferencePPOConfig.from_experiment(experiment).preferences(store=folder.preferences)
    config.labelling(sessions=folder.labelling).start_from(**sources(folder))
    with interrupted.at_once():
        algorithm: PreferencePPO = config.build_algo()

    def stopped() -> bool:
        return interrupted() or told.failure is not None

    try:
        if resume:
            go_on(algorithm, folder)
        else:
            folder.note_labels(PreferenceStore(folder.preferences).tally().last if config.labels_from else 0)
        told.on_start(TrainingRun(experiment, folder, algorithm))
        if algorithm.ring.people is not None:
            told.on_links(algorithm.ring.people.page.links)
            algorithm.ring.people.page.on_links = told.on_links
        algorithm.ring.say = told.on_stage
        started = time.perf_counter() - latest.values.get("seconds", 0.0)
        ready = _begin(algorithm, interrupted, stopped)
        if ready:
            told.on_stage("training")
        algorithm.iterating = interrupted.at_once
        while ready and not algorithm.finished and not stopped():
            try:
                result = algorithm.train()
            except Interrupted:
                break
            told.on_metrics(flat_metrics(result) | {"seconds": time.perf_counter() - started})
            if algorithm.training_iteration % experiment.checkpoint_every == 0:
                with carry_on("checkpoint"):
                    save(algorithm, folder)
        finished = algorithm.finished
        if stopped():
            told.on_stage("stopping")
            hush_ray()
            algorithm.leave_off()
        save(algorithm, folder)
        if algorithm.ring.version:
            algorithm.reward_model().save(folder.reward_model)
    finally:
        algorithm.stop()
        with contextlib.suppress(OSError):
            Path(algorithm.logdir).rmdir()  # RLlib's own folder under ~/ray_results, which stayed empty
    return finished, time.perf_counter() - started


def _begin(algorithm: PreferencePPO, interrupted: Interruption, stopped: Callable[[], bool]) -> bool:
    """Gather the first clips and fit to the first labels, which take their time: nothing is lost by leaving off."""
    try:
        with interrupted.at_once():
            return algorithm.begin(stopped)
    except Interrupted:
        return False


def _evaluate(
    experiment: Experiment, folder: RunFolder, interrupted: Interruption, told: Callbacks, episodes: int
) -> tuple[TrueReturn | None, TrueReturn | None]:
    """The true returns of random actions and of the trained agent; None where there was no time, or nothing to evaluate."""
    told.on_stage("evaluating")
    if all_checkpoints(folder.checkpoints):
        with contextlib.suppress(Interrupted), interrupted.at_once(within=EVALUATED_WITHIN):
            random = _true_return(experiment, None, episodes)
            return random, _true_return(experiment, load_policy(folder.checkpoint()).best, episodes)
    return None, None


def _true_return(experiment: Experiment, act: Any, episodes: int) -> TrueReturn:
    return evaluate(experiment.environment, act, episodes=episodes, seed=experiment.seed)


def _outcome(
    experiment: Experiment,
    folder: RunFolder,
    latest: Latest,
    seconds: float,
    random: TrueReturn | None,
    trained: TrueReturn | None,
    reference: TrueReturn | None,
    *,
    interrupted: bool,
) -> Outcome:
    """What the run came to."""
    outcome = Outcome(
        environment=experiment.environment,
        seed=experiment.seed,
        env_steps=latest.values.get("env_steps", 0),
        comparisons=len(PreferenceStore(folder.preferences)) if folder.preferences.exists() else 0,
        held_out_accuracy=latest.values.get("held_out_accuracy"),
        random=random,
        trained=trained,
        reference=reference,
        normalised=None,
        train_seconds=seconds,
        interrupted=interrupted,
        training_return=latest.values.get("true_return_mean"),
    )
    numbers = asdict(outcome)
    return replace(outcome, normalised=share_of_the_way(numbers), verdicts=verdicts(numbers))


def save(algorithm: PreferencePPO, folder: RunFolder) -> None:
    """Save a checkpoint into the run folder. The preference store in it has checksums of its own."""
    save_checkpoint(folder.checkpoints, algorithm.training_iteration, algorithm.save_to_path, unlisted=PREFERENCES)


def go_on(algorithm: PreferencePPO, folder: RunFolder) -> None:
    """Bring ``algorithm`` to where the run in ``folder`` was at its newest whole checkpoint, and the folder with it."""
    checkpoint = last_checkpoint(folder.checkpoints)
    if checkpoint is not None:
        algorithm.restore_from_path(str(checkpoint))
    elif any(folder.checkpoints.glob("[0-9]*")):
        folder.checkpoint()  # says which files are damaged
    else:
        algorithm.ring.begun_after = folder.labels_before()
    folder.go_back_to(algorithm.training_iteration)
