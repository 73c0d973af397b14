"""What the commands that run a study share: checks, the progress bar, a pool of processes, what is printed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings.checks import require

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

    from rlhf_ray.runs.progress import Counting
    from rlhf_ray.study import Screen, Section, Study, Table
    from rlhf_ray.study.run import Say, Submit

WORKERS = 2
"""Steps that run at the same time."""


def check_amounts(effort: float, seed: int) -> None:
    """Check the options that all studies have."""
    require(0 < effort <= 100, "--effort", effort, "it must be above 0 and at most 100")
    require(seed >= 0, "--seed", seed, "it must be 0 or larger")


def writable(out: Path, option: str = "--out") -> Path:
    """Return the folder ``out`` that ``option`` names, which must be one that can be written to."""
    there = next(place for place in (out, *out.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise SettingError(
            f"{option} is {out}, but {there} is not a folder that can be written to; give another folder."
        )
    return out


def own_steps(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that are ``module:Name`` of a user's own step."""
    return tuple(name for name in names if ":" in name)


def run_shown(study: Study[Any], names: Sequence[str], *, processes: bool) -> tuple[Section, ...]:
    """Run a study behind a progress bar.

    Args:
        study: the study.
        names: the steps to run; empty: all.
        processes: whether its subject can be sent to other processes.
    """
    import torch

    from rlhf_ray.runs.progress import Counting
    from rlhf_ray.study import run_study

    torch.set_num_threads(1)
    chosen = names or None
    try:
        with Counting("steps", len(study.steps(chosen))) as bar:
            shown = _Shown(bar)
            with _pool(shown.says) if processes else _here(shown.says) as submit:
                return run_study(study, chosen, submit=submit, finished=shown.finished)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; finished steps are kept, and the same command continues") from None


def print_screen(screen: Screen, files: Mapping[str, Path]) -> None:
    """Print the first screen, and where the files are (those that exist)."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    heading, *lines = screen.text.splitlines()
    console.print(heading, style="bold")
    for line in lines:
        console.print(f"  {line}")
    for name, path in files.items():
        if path.exists():
            console.print(f"{name}: {path}")


def print_section(section: Section) -> None:
    """Print a section's tables, checks and notes."""
    for table in section.tables:
        print_table(table)
    for line in [*(check.text for check in section.checks), *section.notes]:
        print(line)


def print_table(table: Table) -> None:
    """Print a table; where there is no terminal, 120 characters wide."""
    from rich.console import Console
    from rich.table import Table as Shown

    from rlhf_ray.study.section import figure

    shown = Shown(title=table.caption, title_justify="left")
    for number, head in enumerate(table.columns):
        shown.add_column(head, justify="right" if number else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(figure(value) for value in row))
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(shown)


class _Shown:
    """What the bar shows: how many steps are finished, and what the running ones are doing."""

    def __init__(self, bar: Counting):
        self._bar, self._done = bar, 0
        self._doing: dict[str, str] = {}
        self._over: set[str] = set()

    def says(self, name: str, text: str) -> None:
        """A step is doing something."""
        if name not in self._over:  # words of a finished step can come late
            self._doing[name] = text
            self._show()

    def finished(self, name: str, kept: bool) -> None:
        """A step is finished."""
        self._over.add(name)
        self._doing.pop(name, None)
        self._done += 1
        self._show()

    def _show(self) -> None:
        self._bar.show(self._done, "; ".join(dict(self._doing).values()))


@contextlib.contextmanager
def _here(says: Say) -> Iterator[None]:
    """Run steps in this process."""
    from rlhf_ray.study.run import listen

    listen(says)
    try:
        yield None
    finally:
        listen(lambda name, text: None)


@contextlib.contextmanager
def _pool(says: Say) -> Iterator[Submit]:
    """Run steps in processes of a pool; stop them at once when the block is interrupted."""
    spawn = get_context("spawn")
    queue: SimpleQueue[tuple[str, str] | None] = spawn.SimpleQueue()
    listener = Thread(target=_listen, args=(queue, says), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(WORKERS, spawn, _start_worker, (queue,))
    try:
        yield pool.submit
    except BaseException:
        for process in active_children():
            process.terminate()  # the queue may stay locked: don't wait for the listener
        raise
    else:
        queue.put(None)
        listener.join()
    finally:
        pool.shutdown(cancel_futures=True)


def _listen(queue: SimpleQueue[tuple[str, str] | None], says: Say) -> None:
    while (item := queue.get()) is not None:
        says(*item)


def _start_worker(queue: SimpleQueue[tuple[str, str] | None]) -> None:
    """Prepare a process of the pool. The command stops it: Ctrl-C reaches all processes of a terminal."""
    import torch

    from rlhf_ray.study.run import listen

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    listen(lambda name, text: queue.put((name, text)))
