"""What a run shows in the terminal: bars while it goes on, a table at the end."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from rlhf_ray.labelling.links import invitation
from rlhf_ray.queries.schedule import gathered
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment


class TrueReturnLike(Protocol):
    """A measured return."""

    true_return_mean: float
    true_return_std: float
    episodes: int


class _Console(Console):
    """Says nothing any more once whoever read it has gone, as `head` does: the run is stopped as by Ctrl-C, and not lost."""

    def on_broken_pipe(self) -> None:
        """Called by rich."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        signal.raise_signal(signal.SIGINT)


class Progress:
    """Bars for environment steps, labels and reward fits, with the true return beside the learned one.

    Where the output is no terminal (a log file, say), a line every few seconds instead.
    """

    LINE_EVERY = 10.0
    """Seconds between lines where there are no bars."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.console = _Console()
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._fits = 0
        self._chosen_told = False
        self._known: dict[str, float] = {}
        """The last known value of what not every iteration tells."""
        self._last_line = -self.LINE_EVERY

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._bars = Bars(
                TextColumn("{task.description:<12}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                console=self.console,
            )
            preferences = self.experiment.preferences
            totals = {"env steps": self.experiment.total_env_steps}
            if preferences.comparisons:
                totals |= {
                    "labels": preferences.comparisons,
                    "reward fits": min(preferences.rounds, self._iterations()) + 1,
                }
            self._tasks = {name: self._bars.add_task(name, total=total, note="") for name, total in totals.items()}
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, what: str) -> None:
        """What is being done now."""
        if self._bars is not None:
            self._bars.update(self._tasks["env steps"], note=what)
        else:
            self.console.print(f"{what} …", highlight=False)

    def invite(self, links: dict[str, str], folder: Path) -> None:
        """Where each person labels in the run in ``folder``."""
        for line in invitation(links, folder):
            self.console.print(line, style="bold green", markup=False, highlight=False, soft_wrap=True)

    def show(self, metrics: dict[str, Any]) -> None:
        """The metrics of one iteration, and the alarms it raises."""
        for alarm in metrics["raised"]:
            self.console.print(
                f"[bold yellow]alarm[/] {alarm['name']} (iteration {metrics['iteration']}): {alarm['message']} "
                f"{alarm['remedy']}",
                highlight=False,
                soft_wrap=True,
            )
        if not self._chosen_told:
            self._chosen_told = True
            self._tell_choices(metrics)
        asks = self.experiment.preferences.comparisons > 0  # else the reward model is fitted already
        self._fits = metrics["reward_version"]
        for name in ("true_return_mean", "learned_return_mean", "held_out_accuracy"):
            value = metrics.get(name)
            if value is not None and math.isfinite(value):
                self._known[name] = value
        true, learned, accuracy = map(self._known.get, ("true_return_mean", "learned_return_mean", "held_out_accuracy"))
        returns = f"true return {_number(true)}, learned {_number(learned)}"
        note = "" if accuracy is None else f"held-out accuracy {accuracy:.2f}"
        if self._bars is not None:
            self._bars.update(self._tasks["env steps"], completed=metrics["env_steps"], note=returns)
            if asks:
                self._bars.update(self._tasks["labels"], completed=metrics["comparisons"])
                self._bars.update(self._tasks["reward fits"], completed=self._fits)
            if asks and note:
                self._bars.update(self._tasks["reward fits"], note=note)
        elif time.monotonic() - self._last_line > self.LINE_EVERY:
            self._last_line = time.monotonic()
            labels = (
                f"labels {metrics['comparisons']}/{self.experiment.preferences.comparisons}, reward fits {self._fits}, "
            )
            self.console.print(
                f"env steps {metrics['env_steps']}/{self.experiment.total_env_steps}, {labels if asks else ''}{returns}"
                + (f", {note}" if note else ""),
                highlight=False,
                soft_wrap=True,
            )

    def _tell_choices(self, metrics: dict[str, Any]) -> None:
        """What was chosen where the settings are auto, and what was done about ties."""
        fragments = self.experiment.fragments
        if "auto" in (fragments.length, fragments.initial_env_steps) and "fragments_length" in metrics:
            self.console.print(
                f"clips of {metrics['fragments_length']} steps, the first from {metrics['first_clips_env_steps']} random steps",
                highlight=False,
                soft_wrap=True,
            )
        if said := gathered(metrics):
            self.console.print(said, highlight=False, soft_wrap=True)

    def summarise(self, outcome: Any, folder: RunFolder) -> None:
        """The table at the end, and where everything lies."""
        table = Table(title=f"{outcome.environment}, seed {outcome.seed}", title_justify="left")
        table.add_column("agent")
        table.add_column("true return", justify="right")
        table.add_column("episodes", justify="right")
        agents: list[tuple[str, TrueReturnLike | None]] = [
            ("random", outcome.random),
            ("trained on the learned reward", outcome.trained),
            ("trained on the true reward", outcome.reference),
        ]
        for name, value in agents:
            if value is not None:
                table.add_row(name, f"{value.true_return_mean:.1f} ± {value.true_return_std:.1f}", str(value.episodes))
        if table.row_count:
            self.console.print(table)
        for verdict in outcome.verdicts:
            self.console.print(f"[bold yellow]{verdict.message}[/]", highlight=False, soft_wrap=True)
        budget = self.experiment.preferences.comparisons
        unspent = budget - outcome.comparisons if self.experiment.resolved_fragments().varied else 0
        if unspent > 0 and not outcome.interrupted:
            self.console.print(
                f"{unspent} of {budget} labels were not spent: nearly all answers were ties.",
                highlight=False,
                soft_wrap=True,
            )
        parts = [
            f"{outcome.comparisons} labels",
            f"{outcome.env_steps} environment steps",
            f"{outcome.train_seconds:.0f} s",
        ]
        if outcome.held_out_accuracy is not None:
            parts.insert(1, f"held-out accuracy {outcome.held_out_accuracy:.2f}")
        if outcome.normalised is not None:
            parts.insert(0, f"{outcome.normalised:.2f} of the way from random to the true reward's agent")
        if outcome.interrupted:
            parts.append("stopped early")
        self.console.print(", ".join(parts), highlight=False, soft_wrap=True)
        self.console.print(f"report: {folder.report}", highlight=False, soft_wrap=True)

    def _iterations(self) -> int:
        return (self.experiment.total_env_steps - self.experiment.resolved_fragments().initial_env_steps) // (
            self.experiment.ppo.iteration_env_steps
        ) - 1


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
