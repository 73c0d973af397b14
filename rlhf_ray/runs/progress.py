"""A run's terminal output: progress bars during training, a table at the end."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from rlhf_ray.agents.true_return import episodes_of, success_of
from rlhf_ray.data.metrics import in_order, pairs_skipped, share_of
from rlhf_ray.data.system import core_bound, usable_cores
from rlhf_ray.labelling.sessions import invitation
from rlhf_ray.labelling.waiting import PeopleWait, spoken
from rlhf_ray.measure.error_rates import newest_rates
from rlhf_ray.queries.schedule import gathered
from rlhf_ray.runs.callbacks import Callback, TrainingRun
from rlhf_ray.settings import Experiment

if TYPE_CHECKING:
    from rlhf_ray.runs.outcome import Outcome


class _Console(Console):
    """Goes quiet when the reader closes the pipe (`| head`), and stops the run like Ctrl-C, with a checkpoint."""

    def on_broken_pipe(self) -> None:
        """Called by rich."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        signal.raise_signal(signal.SIGINT)


def _bars_on(console: Console, **options: Any) -> Bars:
    """Bars of counts with notes, which show nothing without a terminal."""
    note = TextColumn("{task.fields[note]}")
    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), note, TimeElapsedColumn())
    return Bars(*columns, console=console, disable=not console.is_terminal, **options)


class Counting:
    """A context manager that shows a bar up to ``total``, and clears it; without a terminal, a line every few seconds on stderr."""

    LINE_EVERY = 10.0
    """Seconds between lines when there is no bar."""

    def __init__(self, what: str, total: int):
        self._what, self._total = what, total
        self.console = _Console(stderr=not sys.stdout.isatty())  # what is piped is the outcome alone
        self._bar = _bars_on(self.console, transient=True)
        self._task = self._bar.add_task(what, total=total, note="")
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, done: int, note: str = "", *, of: int | None = None, line: bool = True) -> None:
        """Show how much is done, ``of`` how much if that has changed; ``line``: also without a terminal."""
        self._total = of or self._total
        self._bar.update(self._task, completed=min(done, self._total), total=self._total, note=note)
        if line and not self.console.is_terminal and time.monotonic() - self._last_line > self.LINE_EVERY:
            self._last_line = time.monotonic()
            self.say(f"{self._what} {done}/{self._total} {note}")

    def say(self, line: str) -> None:
        """Print a line, with rich's markup."""
        self.console.print(line, highlight=False, soft_wrap=True)


class Waits:
    """Shows waits for people where there are no bars: a line at the beginning, then one a minute; and an alarm if nobody answers.

    Args:
        say: prints a line, with rich's markup.
        folder: what to give to `rlhf-ray links`.
    """

    LINE_EVERY = 60.0
    """Seconds between lines."""

    def __init__(self, say: Callable[[str], None], folder: Path | str):
        self._say, self._folder = say, folder
        self._last_line = -math.inf
        self._waited = -1.0
        self.alarmed = False
        """Whether the alarm of this silence was shown."""

    def show(self, wait: PeopleWait, *, lines: bool = True) -> None:
        """Show the state of a wait; ``lines``: also while nothing is wrong."""
        if lines and (wait.seconds < self._waited or time.monotonic() - self._last_line >= self.LINE_EVERY):
            self._last_line = time.monotonic()
            self._say(f"{wait} …")
        self._waited = wait.seconds
        if wait.alarm is not None and not self.alarmed:
            self._say(
                f"[bold yellow]alarm[/] nobody_answers: {wait.alarm} Send the annotators their links (`rlhf-ray links "
                f"{self._folder}`) and check that they can reach the page; or stop with Ctrl-C and continue later."
            )
        self.alarmed = wait.alarm is not None


class Labelled(Counting):
    """The terminal of `rlhf-ray label`: a bar, or lines; and what the command waits for at the end."""

    def __init__(self, store: Path | str, wanted: int):
        super().__init__("labels", wanted)
        self._waits = Waits(self.say, store)
        self._ending = False

    def __enter__(self) -> Self:
        return self  # the bar starts with the first wait: links are printed before

    def on_wait(self, wait: PeopleWait) -> None:
        """Show the progress."""
        self._bar.start()
        self.show(wait.answered, f"last answer {spoken(wait.quiet)} ago" if wait.quiet >= 60 else "", line=False)
        self._waits.show(wait, lines=not self.console.is_terminal)

    def on_end(self, pages: int) -> None:
        """Say what the command waits for."""
        if not self._ending:
            self._ending = True
            what = "1 open page shows" if pages == 1 else f"{pages} open pages show"
            self.say(f"all labels are in; waiting up to a minute until {what} it (Ctrl-C: end now)")


class ProgressBars(Callback):
    """Progress bars for environment steps, labels and reward fits, with the true and the learned return.

    If the output is not a terminal (a log file, for example), prints a line every few seconds instead.
    """

    LINE_EVERY = 10.0
    """Seconds between lines when there are no bars."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.console = _Console()
        self._bars = _bars_on(self.console)
        self._totals = {"env steps": experiment.total_env_steps}
        if labels := experiment.preferences.comparisons:  # otherwise the reward model is given
            first = experiment.resolved_fragments().initial_env_steps
            iterations = (experiment.total_env_steps - first) // experiment.agent_settings.iteration_env_steps - 1
            self._totals |= {
                "labels": labels,
                "reward fits": min(experiment.preferences.rounds, int(iterations * experiment.preferences.until)) + 1,
            }
        self._tasks = {name: self._bars.add_task(name, total=total, note="") for name, total in self._totals.items()}
        self._chosen_told = self._nobody_told = False
        self._known: dict[str, str] = {}
        """Last known values of metrics that not every iteration has, formatted."""
        self._wrong = ""
        """How many answers look wrong, by the last fit that tells."""
        self._last_line = -self.LINE_EVERY

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def on_start(self, run: TrainingRun) -> None:
        """Remember the folder, and what a resumed run knows of wrong answers; say how many cores a run in one process uses."""
        self._folder = run.folder
        if not run.algorithm.config.needs_ray:
            self._say(_said_of(usable_cores(), core_bound()))
        self._learn_of_wrong(run.folder.rows())
        self._waits = Waits(self._say, run.folder.path)

    def on_stage(self, stage: str) -> None:
        """Show the stage."""
        self._bars.update(self._tasks["env steps"], note=stage)
        if self._bars.disable:
            self.console.print(f"{stage} …", highlight=False)

    def on_links(self, links: dict[str, str]) -> None:
        """Show the annotators' links."""
        for line in invitation(links, self._folder.path):
            self.console.print(line, style="bold green", markup=False, highlight=False, soft_wrap=True)

    def on_wait(self, wait: PeopleWait) -> None:
        """Show how many people have answered."""
        self._bars.update(self._tasks["env steps"], note=str(wait))
        self._waits.show(wait, lines=self._bars.disable)
        self._nobody_told |= self._waits.alarmed

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Show the metrics of one iteration, and the alarms it raises."""
        told, self._nobody_told = self._nobody_told, False
        for alarm in metrics["raised"]:
            if alarm["name"] == "nobody_answers" and told:
                continue  # shown during the wait
            self._say(
                f"[bold yellow]alarm[/] {alarm['name']} (iteration {metrics['iteration']}): {alarm['message']} "
                f"{alarm['remedy']}"
            )
        if not self._chosen_told:
            self._chosen_told = True
            self._tell_choices(metrics)
        for metric in in_order():
            value = metrics.get(metric.name)
            if metric.bar and value is not None and math.isfinite(value):
                self._known[metric.name] = f"{metric.label} {metric.text(value, metrics.get(metric.among))}"
        self._learn_of_wrong([metrics])
        done = {"env steps": "env_steps", "labels": "comparisons", "reward fits": "reward_version"}
        counts, notes = [], []
        for bar, total in self._totals.items():
            count = metrics[done[bar]]
            of_bar = [self._known[of.name] for of in in_order() if of.bar == bar and of.name in self._known]
            of_bar += [self._wrong] if bar == "reward fits" and self._wrong else []
            self._bars.update(self._tasks[bar], completed=count, note=", ".join(of_bar))
            counts.append(f"{bar} {count}" + ("" if bar == "reward fits" else f"/{total}"))
            notes += of_bar
        if self._bars.disable and time.monotonic() - self._last_line > self.LINE_EVERY:
            self._last_line = time.monotonic()
            self._say(", ".join(counts + notes))

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)

    def _learn_of_wrong(self, rows: Sequence[dict[str, Any]]) -> None:
        if (wrong := newest_rates(rows)[0]) is not None:
            self._wrong = wrong.sentence()

    def _tell_choices(self, metrics: dict[str, Any]) -> None:
        """Print the values chosen for auto settings, and how ties were handled."""
        fragments = self.experiment.fragments
        if "auto" in (fragments.length, fragments.initial_env_steps) and "fragments_length" in metrics:
            length, steps = metrics["fragments_length"], metrics["first_fragments_env_steps"]
            self._say(f"fragments of {length} steps, the first from {steps} random steps")
        if said := gathered(metrics):
            self._say(said)

    def on_end(self, outcome: Outcome | None) -> None:
        """Remove the bars, and print the outcome and the path of the report."""
        self._bars.stop()
        if outcome is None:
            return
        table = _table_of(outcome)
        if table.row_count:
            self.console.print(table)
        if outcome.trained is None:
            self._say(f"not evaluated; run `rlhf-ray evaluate {self._folder.path}`")
        for check in outcome.checks:
            if not check.passed:
                self.console.print(check.text, style="bold yellow", markup=False, highlight=False, soft_wrap=True)
        budget = self.experiment.preferences.comparisons
        unspent = budget - outcome.comparisons if self.experiment.resolved_fragments().varied else 0
        if unspent > 0 and not outcome.interrupted:
            ties = not self.experiment.preferences.asks_machine
            why = (
                "nearly all answers were ties" if ties else "the machine had not answered more when the training ended"
            )
            self._say(f"{unspent} of {budget} labels were not used, because {why}.")
        way, accuracy = outcome.normalised, outcome.held_out_accuracy
        parts = [
            "" if way is None else f"normalised return {way:.2f} (0 random, 1 trained on the true reward)",
            f"{outcome.comparisons} labels" + (f" ({pairs_skipped(outcome.skipped)})" if outcome.skipped else ""),
            "" if accuracy is None else f"held-out accuracy {share_of(accuracy, outcome.held_out_decided)}",
            self._wrong,
            f"{outcome.env_steps} environment steps",
            f"{outcome.train_seconds:.0f} s",
            "stopped early" if outcome.interrupted else "",
        ]
        self._say(", ".join(filter(None, parts)))
        self._say(f"report: {self._folder.report}")
        if outcome.interrupted:
            self._say(f"to continue: rlhf-ray train --resume {self._folder.path}")


def _table_of(outcome: Outcome) -> Table:
    """Return a table of the agents' true returns."""
    agents = [
        ("random", outcome.random),
        ("trained on the learned reward", outcome.trained),
        ("trained on the true reward", outcome.reference),
    ]
    table = Table("agent", title=f"{outcome.environment}, seed {outcome.seed}", title_justify="left")
    succeeds = any(value is not None and value.success_rate is not None for _, value in agents)
    for column in ("true return", "episodes", *(["success"] if succeeds else [])):
        table.add_column(column, justify="right")
    for name, value in agents:
        if value is not None:
            means = f"{value.true_return_mean:.1f} ± {value.true_return_std:.1f}"
            table.add_row(name, means, *[text for text in (episodes_of(value), success_of(value.success_rate)) if text])
    return table


def _said_of(cores: int, bound: int | None) -> str:
    """What a run in one process says of the cores it may use; ``bound`` is what ``--cores`` allows."""
    uses = "uses 1 core" if cores == 1 else f"uses up to {cores} cores"
    if bound is None:
        return uses if cores == 1 else f"{uses}; --cores N bounds them"
    return uses if bound == cores else f"{uses}: --cores is {bound}, and this process may use no more than {cores}"
