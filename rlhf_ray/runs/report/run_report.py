"""Pages: the report of a run folder, ``report.html`` and its twin ``report.json``, and a store's latest comparisons."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.report.steps import fragments, health, learning, outcome, scores, values
from rlhf_ray.runs.report.subject import Run, is_number, part, read_run
from rlhf_ray.store import PreferenceStore
from rlhf_ray.study.page import Screen, render, write_page
from rlhf_ray.study.run import run_here
from rlhf_ray.study.section import Picture, Section, figure

STEPS = {
    "outcome": outcome.section,
    "learning": learning.section,
    "health": health.section,
    "scores": scores.section,
    "fragments": fragments.section,
    "doubts": fragments.doubts,
    "values": values.section,
}
"""The steps, in the order of the page."""
LARGEST_FILM = 8_000_000
"""Bytes above which a film is not on the page."""


def write_report(run: Path) -> Path:
    """Write ``report.html`` and ``report.json`` into the run folder ``run``. The run may be unfinished or still running.

    The page lists missing and unreadable files. Nothing else in the folder changes.

    Returns:
        The path of the page.

    Raises:
        ValueError: the folder does not exist or is not a run folder.
    """
    folder = RunFolder(run)
    if not any(path.exists() for path in (folder.config, folder.run, folder.metrics, folder.result)):
        raise ValueError(
            f"{run} is not a run folder: it has none of config.json, run.json, metrics.jsonl and result.json. "
            "Give the folder that the training wrote."
        )
    subject = read_run(folder)
    sections = run_here(subject, STEPS)
    return write_page(folder.path, _about(subject), sections, _screen(folder, subject, sections))


def _screen(folder: RunFolder, run: Run, sections: tuple[Section, ...]) -> Screen:
    """Return the first screen: the outcome's figures, the learning curve and a film."""
    returns = [picture for section in sections for picture in section.pictures if picture.name == "returns"]
    pictures = [*returns, *newest_film(folder)]
    steps, budget = run.number("env_steps"), run.settings.get("total_env_steps")
    of = f" of {figure(budget)}" if is_number(budget) else ""
    taken = "" if steps is None else f", {figure(int(steps))}{of} environment steps"
    began = run.about.get("started") or "not recorded"
    under = f"seed {run.named('seed')} · {outcome.state(run)}{taken} · started {began} · folder {run.name}"
    heading = str(run.named("environment") or "unknown")
    return Screen("run report", heading, under, sections[0].checks, pictures=pictures)


def newest_film(folder: RunFolder) -> list[Picture]:
    """Return the newest film in a run folder (`rlhf-ray evaluate RUN --video RUN/film.webp`), in a list that may be empty."""
    files = [path for path in folder.path.glob("*.webp") if path.stat().st_size <= LARGEST_FILM]
    newest = max(files, key=lambda path: path.stat().st_mtime, default=None)
    return [] if newest is None else [Picture("film", newest.read_bytes(), f"The policy's film {newest.name}.")]


def _about(run: Run) -> dict[str, object]:
    """Return where the run's numbers come from."""
    origin = {name: run.about.get(name) or "not recorded" for name in ("started", "command")}
    versions, machine = part(run.about, "versions"), part(run.about, "machine")
    return {
        "environment": str(run.named("environment") or "unknown"),
        "seed": str(run.named("seed")),
        "folder": run.name,
        **origin,
        **{str(name): str(value) for name, value in versions.items()},
        **{f"machine: {name}": str(value) for name, value in machine.items()},
    }


def write_store_page(store: PreferenceStore, out: Path, count: int) -> int:
    """Write the page ``out``: the latest ``count`` comparisons, as films or plots, and their answers.

    Returns:
        The number of comparisons on the page.

    Raises:
        SettingError: the store has no comparisons.
    """
    snapshot = store.snapshot()
    if not len(snapshot):
        raise SettingError(f"{store.path} has no comparisons to show; collect some first.")
    first, path = max(0, len(snapshot) - count), str(store.path)
    shown = snapshot.gather(slice(first, None))
    _, pictures = fragments.show_pairs(shown, None, np.arange(len(shown))[::-1], first + 1)
    under = f"The latest {len(pictures)} of {len(snapshot)} comparisons, the newest first."
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"store": path, "comparisons": len(snapshot), "shown": len(pictures)}
    write_text(out, render(about, [], Screen("stored comparisons", path, under, pictures=pictures)))
    return len(pictures)
