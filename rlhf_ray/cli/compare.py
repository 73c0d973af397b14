"""`rlhf-ray compare`: several runs in one table and one picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.plain import plain


@dataclass(frozen=True)
class Compare:
    """Compare runs: outcome, labels, the settings that differ, and the learning curves in one picture.

    Runs may be unfinished, still training, or somebody else's: nothing that they name is imported.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """The run folders."""
    out: Path = Path("comparison.html")
    """File for the page with table and curves."""
    json: bool = False
    """Print one JSON object for each run, with its curve, instead of text; write no page."""


def run(words: Sequence[str]) -> None:
    """Run the command.

    Raises:
        SettingError: a path is not a run folder, or ``--out`` can't be written.
    """
    command: Compare = parse_arguments(Compare, "rlhf-ray compare", words)
    if not command.runs:
        raise SettingError("compare needs runs; give their folders: `rlhf-ray compare runs/A runs/B`.")
    if command.out.suffix != ".html":
        raise SettingError(f"--out is {command.out}; its name must end in .html.")
    from rlhf_ray.runs.report.compare import compare, write_comparison

    runs = compare(command.runs)
    if command.json:
        print(*(json.dumps(plain(each)) for each in runs), sep="\n")
        return
    _print(runs)
    try:
        write_comparison(runs, command.out)
    except OSError as error:
        raise SettingError(f"--out is {command.out}, which can't be written ({error.strerror}).") from error
    print(f"curves: {command.out}")


def _print(runs: Sequence[dict[str, Any]]) -> None:
    """Print a table that fits in 80 characters however many settings differ."""
    from rich.console import Console
    from rich.table import Table

    from rlhf_ray.runs.report.compare import CAPTION, accuracy, measured
    from rlhf_ray.study.section import figure

    table = Table(caption=CAPTION, show_lines=True)
    for name in ("run", "true return", "labels", "settings that differ"):
        table.add_column(name, overflow="fold")
    for run in runs:
        table.add_row(
            f"{run['run']}\n{run['environment']}, seed {run['seed']}\n{run['state']}",
            f"{figure(measured(run))}\nin training {figure(run['training_return'])}\nrandom {figure(run['random_return_mean'])}",
            f"{figure(run['comparisons'])}\naccuracy {figure(accuracy(run))}\n{figure(run['env_steps'])} env steps",
            "\n".join(f"{name} {figure(value)}" for name, value in run["settings"].items()),
        )
    Console().print(table)
