"""One progress bar for a command with a known number of parts; lines if the output is not a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Bar:
    """A progress bar.

    Args:
        name: what is counted.
        total: how many there are.
    """

    def __init__(self, name: str, total: int):
        self._console = Console()
        columns = (
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bar = Progress(
            *columns, TimeElapsedColumn(), console=self._console, disable=not self._console.is_terminal
        )
        self._task = self._bar.add_task(name, total=total, note="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def done(self, note: str) -> None:
        """Count one part, and say which."""
        self._bar.update(self._task, advance=1, note=note)
        if self._bar.disable:
            self._console.print(note, highlight=False, markup=False)
