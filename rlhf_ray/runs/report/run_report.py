"""The run report, a study of the files in the run folder: ``report.html`` and its twin ``report.json``."""

from __future__ import annotations

from pathlib import Path

from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.report.steps import STEPS
from rlhf_ray.runs.report.subject import Run, part, read_run
from rlhf_ray.study.page import Look, write_page
from rlhf_ray.study.run import run_here
from rlhf_ray.study.verdict import reconcile

LOOK = Look(Path(__file__).parent / "run.html", "rlhf_ray.run_report/1")


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
    sections = run_here(STEPS, subject)
    return write_page(LOOK, folder.path, _about(subject), reconcile(sections, ("outcome",)), sections)


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
