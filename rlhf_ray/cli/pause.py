"""`rlhf-ray pause`: pause a run's collecting of comparisons, while it keeps training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.runs.folder import RunFolder


@dataclass(frozen=True)
class Pause:
    """Pause collecting alone: from the next iteration on, a run asks no questions and takes no steps for clips of its own.

    Training continues with the answers so far. The labels that fall due meanwhile are asked for after the pause, about the
    agent's newest behaviour; those of a pause that lasts to the end are not asked for. The first labels are always collected.
    """

    run: tyro.conf.Positional[Path]
    """The run folder."""
    end: bool = False
    """End the pause."""


def run(words: Sequence[str]) -> None:
    """Run the command.

    Raises:
        SettingError: it is not a run folder.
    """
    command: Pause = parse_arguments(Pause, "rlhf-ray pause", words)
    folder = RunFolder.open(command.run)
    if command.end:
        folder.paused.unlink(missing_ok=True)
        print(f"{folder.path}: collects comparisons again, from the next iteration on")
        return
    folder.paused.touch()
    print(
        f"{folder.path}: collects no comparisons from the next iteration on; end this with "
        f"`rlhf-ray pause {folder.path} --end`"
    )
