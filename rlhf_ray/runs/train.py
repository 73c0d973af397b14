"""Training runs: from an experiment to a run folder."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from actors.announced import Announcement, announced
from actors.cluster import start_ray as start_ray  # where callers look for it
from actors.ray_internals import LOGGER, hush_ray
from rlhf_ray.data.checkpoints import all_checkpoints, last_checkpoint, save_checkpoint
from rlhf_ray.measure.true_return import TrueReturn, evaluate
from rlhf_ray.rllib.env_runner import NoFaults
from rlhf_ray.rllib.metrics import PREFERENCES, flat_metrics
from rlhf_ray.rllib.ppo import PreferencePPO, PreferencePPOConfig
from rlhf_ray.rllib.reference import train_reference
from rlhf_ray.rllib.saved_policy import load_policy
from rlhf_ray.runs.folder import MetricsWriter, RunFolder, read_metrics
from rlhf_ray.runs.health import Health
from rlhf_ray.runs.interruption import Interrupted, Interruption, interruptible
from rlhf_ray.runs.new_run import sources
from rlhf_ray.runs.report.run_report import write_report
from rlhf_ray.runs.report.verdict import Verdict, share_of_the_way, verdicts
from rlhf_ray.runs.trackers import Tracker, TrackerName
from rlhf_ray.settings import Experiment
from rlhf_ray.store import PreferenceStore

EVALUATED_WITHIN = 2.0
"""Seconds for the evaluation of a run that was stopped. Whoever stopped it waits, and may kill it after ten."""

Observer = Callable[[dict[str, Any]], None]
"""Is shown the metrics of each iteration."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to; see `rlhf_ray.runs.folder` for the file it is written to."""

    environment: str
    seed: int
    env_steps: int
    comparisons: int
    held_out_accuracy: float | None
    random: TrueReturn | None
    trained: TrueReturn | None
    """None where the run was stopped and there was no time to evaluate, or nothing to."""
    reference: TrueReturn | None
    normalised: float | None
    """(trained - random) / (reference - random), the mean true returns; None where that would say nothing (see `verdicts`)."""
    train_seconds: float
    interrupted: bool
    training_return: float | None = None
    """The last mean true return in training, where the policy acts at random around what it thinks best."""
    verdicts: list[Verdict] = field(default_factory=list)
    """What the numbers alone could hide."""


def quiet() -> None:
    """Silence what RLlib says of itself to everybody: notes on its own past interfaces. Errors still show."""
    for name in ("ray.rllib", "ray._common.deprecation"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("ray.rllib", "ray.rllib.utils.actor_manager", "ray.rllib.env.env_runner_group", LOGGER):
        logging.getLogger(name).addFilter(NoFaults())
    warnings.filterwarnings("ignore", message=".*Overriding environment rllib-single-agent-env-v0.*")


def train(
    experiment: Experiment,
    folder: RunFolder,
    *,
    resume: bool = False,
    reference: bool = False,
    evaluation_episodes: int = 20,
    observe: Observer = lambda metrics: None,
    say: Callable[[str], None] = lambda what: None,
    invite: Callable[[dict[str, str]], None] = lambda links: None,
    tracker: TrackerName = "none",
) -> Outcome:
    """Train on ``experiment`` and leave a whole run folder behind, also when interrupted by Ctrl-C.

    The iteration that is interrupted is left off: what it has sampled is lost, its labels are kept.

    Args:
        experiment: the settings.
        folder: a new run folder, or with ``resume`` that of the run to go on with.
        resume: go on from the folder's newest whole checkpoint; from the beginning where there is none.
        reference: also train PPO with the same settings and as many steps on the true reward.
        evaluation_episodes: episodes that each agent is evaluated on.
        observe: is shown the metrics of each iteration.
        say: is told what is being done.
        invite: is told each person's link to the labelling page, where people are asked.
        tracker: where the metrics go besides.
    """
    totals = {"total_env_steps": experiment.total_env_steps, "total_labels": experiment.preferences.comparisons}
    with (
        interruptible() as interrupted,
        announced(folder.path, environment=experiment.environment, **totals) as announcement,
    ):
        tracking = Tracker(tracker, folder)

        def look(metrics: dict[str, Any]) -> None:
            tracking.log(metrics)
            observe(metrics)

        try:
            progress = _train(experiment, folder, resume, interrupted, look, say, invite, announcement)
        finally:
            tracking.close()

        def true_return(act: Any) -> TrueReturn:
            return evaluate(experiment.environment, act, episodes=evaluation_episodes, seed=experiment.seed)

        say("evaluating")
        announcement.tell("evaluating")
        random = learned = best = None
        if all_checkpoints(folder.checkpoints):
            with contextlib.suppress(Interrupted), interrupted.at_once(within=EVALUATED_WITHIN):
                at_random = true_return(None)
                random, learned = at_random, true_return(load_policy(folder.checkpoint()).best)
        if learned is None:
            say(f"not evaluated; `rlhf-ray evaluate {folder.path}` does")
        if reference and not interrupted():
            say("training on the true reward, to compare with")
            announcement.tell("training the reference")
            with contextlib.suppress(Interrupted), interrupted.at_once():
                best = true_return(train_reference(experiment).best)
        if learned is None or (reference and best is None):
            progress |= {"interrupted": True}  # so that it can be resumed
        outcome = Outcome(
            environment=experiment.environment,
            seed=experiment.seed,
            random=random,
            trained=learned,
            reference=best,
            normalised=None,
            **progress,
        )
        numbers = asdict(outcome)
        outcome = replace(outcome, normalised=share_of_the_way(numbers), verdicts=verdicts(numbers))
        folder.finish(asdict(outcome), interrupted=outcome.interrupted)
        write_report(folder.path)
        return outcome


def _train(
    experiment: Experiment,
    folder: RunFolder,
    resume: bool,
    interrupted: Interruption,
    observe: Observer,
    say: Callable[[str], None],
    invite: Callable[[dict[str, str]], None],
    announcement: Announcement,
) -> dict[str, Any]:
    """Train until the budget is spent or ``interrupted``, and write metrics, checkpoints and reward model."""
    config = PreferencePPOConfig.from_experiment(experiment).preferences(store=folder.preferences)
    config.labelling(sessions=folder.labelling).start_from(**sources(folder))
    with interrupted.at_once():
        health = Health(config.check_environment().action_space)
        algorithm: PreferencePPO = config.build_algo()
    try:

        def show_links(links: dict[str, str], state: str = "training") -> None:
            # Whoever has a link labels in that person's name: others are told where the page is, and no more.
            announcement.tell(state, pages=sorted({link.partition("#")[0] for link in links.values()}))
            invite(links)

        if algorithm.ring.people is not None:
            page = algorithm.ring.people.page
            show_links(page.links, "starting")
            page.on_links = show_links
        if resume:
            go_on(algorithm, folder)
        metrics = folder.last_metrics()
        writer = MetricsWriter(folder)
        started = time.perf_counter() - metrics.get("seconds", 0.0)
        rows = read_metrics(folder.metrics)
        accuracies = [row.get("held_out_accuracy") for row in rows]
        returns = [row.get("true_return_mean") for row in rows]
        for row in rows:
            health.watch(row)
        announcement.tell("training")
        algorithm.ring.say = say
        try:
            with (
                interrupted.at_once()
            ):  # gathering clips and fitting take their time, and nothing is lost by leaving off
                ready = algorithm.begin(interrupted)
        except Interrupted:
            ready = False
        algorithm.iterating = interrupted.at_once
        while ready and not algorithm.finished and not interrupted():
            try:
                result = algorithm.train()
            except Interrupted:
                break
            metrics = flat_metrics(result) | {"seconds": time.perf_counter() - started}
            accuracies.append(metrics.get("held_out_accuracy"))
            returns.append(metrics["true_return_mean"])
            raised = [asdict(alarm) for alarm in health.watch(metrics)]
            metrics |= {"alarms": health.active, "raised": raised}
            with going_on("metrics"):
                writer.write(metrics)
            announcement.tell(env_steps=metrics["env_steps"], labels=metrics["comparisons"])
            observe(metrics)
            if algorithm.training_iteration % experiment.checkpoint_every == 0:
                with going_on("checkpoint"):
                    save(algorithm, folder)
        finished = algorithm.finished
        if interrupted():
            say("stopping")
            hush_ray()
            algorithm.leave_off()
        save(algorithm, folder)
        if algorithm.ring.version:
            algorithm.reward_model().save(folder.reward_model)
    finally:
        algorithm.stop()
        with contextlib.suppress(OSError):
            Path(algorithm.logdir).rmdir()  # RLlib's own folder under ~/ray_results, which stayed empty
    return {
        "env_steps": metrics.get("env_steps", 0),
        "comparisons": len(PreferenceStore(folder.preferences)) if folder.preferences.exists() else 0,
        "held_out_accuracy": next((accuracy for accuracy in reversed(accuracies) if accuracy is not None), None),
        "training_return": next((value for value in reversed(returns) if value is not None), None),
        "train_seconds": time.perf_counter() - started,
        "interrupted": not finished,
    }


def save(algorithm: PreferencePPO, folder: RunFolder) -> None:
    """Save a checkpoint into the run folder. The preference store in it has checksums of its own."""
    save_checkpoint(folder.checkpoints, algorithm.training_iteration, algorithm.save_to_path, unlisted=PREFERENCES)


@contextlib.contextmanager
def going_on(what: str) -> Iterator[None]:
    """Within it, a disk that takes nothing is said and is no reason to stop: training may outlast it."""
    try:
        yield
    except OSError as error:
        logging.getLogger(__name__).error("The %s could not be written: %s", what, error)


def go_on(algorithm: PreferencePPO, folder: RunFolder) -> None:
    """Bring ``algorithm`` to where the run in ``folder`` was at its newest whole checkpoint, and the folder with it."""
    checkpoint = last_checkpoint(folder.checkpoints)
    if checkpoint is not None:
        algorithm.restore_from_path(str(checkpoint))
    elif any(folder.checkpoints.glob("[0-9]*")):
        folder.checkpoint()  # says which files are damaged
    folder.go_back_to(algorithm.training_iteration)
