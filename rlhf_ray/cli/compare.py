"""`rlhf-ray compare`: several runs in one table and one picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.studies import print_table
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.metrics import plain


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
    """Run the command."""
    command: Compare = parse_arguments(Compare, "rlhf-ray compare", words)
    if not command.runs:
        raise SettingError("compare needs runs; give their folders: `rlhf-ray compare runs/A runs/B`.")
    if command.out.suffix != ".html":
        raise SettingError(f"--out is {command.out}; its name must end in .html.")
    from rlhf_ray.runs.report.compare import compare, table_of, write_comparison

    runs = compare(command.runs)
    if command.json:
        print(*(json.dumps(plain(each)) for each in runs), sep="\n")
        return
    print_table(table_of(runs))
    try:
        write_comparison(runs, command.out)
    except OSError as error:
        raise SettingError(f"--out is {command.out}, which can't be written ({error.strerror}).") from error
    print(f"curves: {command.out}")
