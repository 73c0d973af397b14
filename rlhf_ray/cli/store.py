"""`rlhf-ray store`: inspect, check, merge, import and export preference stores."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from rlhf_ray.cli import overview
from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.lock import Lock
from rlhf_ray.data.registry import did_you_mean
from rlhf_ray.measure.agreement import AnnotatorAgreement
from rlhf_ray.store import exchange
from rlhf_ray.store.answers import Presses
from rlhf_ray.store.files import open_files, store_of
from rlhf_ray.store.merges import check_one_family
from rlhf_ray.store.store import PreferenceStore


@dataclass(frozen=True)
class _Action:
    """Base of all actions."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL, or a run folder."""

    def _open(self) -> PreferenceStore:
        return PreferenceStore(store_of(self.path), create=False)

    def _run(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Info(_Action):
    """Summarize a preference store."""

    json: bool = False
    """Print one JSON object."""

    def _run(self) -> None:
        about = self._open().describe()
        if self.json:
            print(json.dumps(about))
            return
        print(f"{self.path}: {about['format']}")
        for name in _SHOWN:
            print(f"  {name:12} {_readable(about[name])}")
        for name, sides in about["chosen"].items():
            presses = Presses(**sides)
            print(f"  {'chosen':12} {name}: {presses}, as shown{_odd(presses)}")
        if (agreed := AnnotatorAgreement(**about["agreement"])).units:
            print(f"  {'agreement':12} {agreed}")
        for merge in about["merges"]:
            print(f"  {'merged':12} {merge['comparisons']} comparisons from {merge['source']}, {merge['time']}")
        for folder, count in about["files"].items():
            print(f"  {folder:12} {count} files, {about['bytes'].get(folder, 0) / 1e6:.2f} MB")


def _odd(presses: Presses) -> str:
    """What is wrong with someone's answers, if anything."""
    if presses.one_sided:
        return f" (!) nearly always {presses.one_sided}, although sides are random"
    return " (!) nearly always equal" if presses.mostly_equal else ""


_SHOWN = ("comparisons", "ties", "lost", "events", "kinds", "annotators", "weights", "answered", "clips", "clip_shapes")


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items()) or "none"
    return " to ".join(value) or "none" if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Verify(_Action):
    """Read and check everything in a preference store. Exits with code 1 if there is a problem."""

    json: bool = False
    """Print one JSON object."""

    def _run(self) -> None:
        found = self._open().verify()
        if self.json:
            print(json.dumps(asdict(found)))
        else:
            for problem in found.problems:
                print(problem)
            state = f"{len(found.problems)} problems" if found.problems else "sound"
            print(
                f"{self.path}: {state}; {found.comparisons} comparisons, {found.events} events, {found.fragments} fragments"
            )
        if found.problems:
            sys.exit(1)


@dataclass(frozen=True)
class Compact(_Action):
    """Join the small files of a preference store into larger ones."""

    def _run(self) -> None:
        store = self._open()
        before = store.describe()["files"]
        store.compact()
        after = store.describe()["files"]
        print(f"{self.path}: " + ", ".join(f"{before[of]} -> {after[of]} {of} files" for of in ("labels", "clips")))


def _check_new(out: Path, overwrite: bool) -> None:
    if out.exists() and not overwrite:
        raise SettingError(f"{out} already exists; give another file, or add --overwrite to replace it.")


@dataclass(frozen=True)
class Export(_Action):
    """Write everything in a preference store to one file, or its comparisons to imitation's."""

    out: tyro.conf.Positional[Path]
    """The output. .parquet (with the fragments), .csv, .jsonl: all events. .pkl: the active comparisons, as imitation's
    PreferenceDataset.load opens them."""
    overwrite: bool = False
    """Replace an existing file."""

    def _run(self) -> None:
        _check_new(self.out, self.overwrite)
        with Lock(self.out):
            count = exchange.export(self._open(), self.out)
        print(f"{self.out}: {count} {'comparisons' if self.out.suffix == '.pkl' else 'events'}")


@dataclass(frozen=True)
class Show(_Action):
    """Write a page that replays the latest answered pairs of a preference store, with their answers."""

    out: tyro.conf.Positional[Path]
    """The page: an .html file that needs no server and no network."""
    comparisons: int = 20
    """Number of comparisons, the latest ones."""
    overwrite: bool = False
    """Replace an existing file."""

    def _run(self) -> None:
        if self.comparisons < 1:
            raise SettingError(f"--comparisons is {self.comparisons}; it must be 1 or more.")
        if self.out.suffix != ".html":
            raise SettingError(f"{self.out} must end in .html.")
        _check_new(self.out, self.overwrite)
        from rlhf_ray.runs.report.run_report import write_store_page

        print(f"{self.out}: {write_store_page(self._open(), self.out, self.comparisons)} comparisons")


@dataclass(frozen=True)
class Weigh(_Action):
    """Set the weight of an annotator's labels, from the next fit on. Nothing is deleted."""

    annotator: tyro.conf.Positional[str]
    """Name of the annotator."""
    weight: tyro.conf.Positional[float]
    """Weight of each label: 1 is the default, 0 excludes them."""

    def _run(self) -> None:
        store = self._open()
        there = store.describe()["annotators"]
        if self.annotator not in there:
            raise SettingError(f"{self.path} has no annotator {self.annotator!r}; it has {', '.join(there) or 'none'}.")
        store.weigh(self.annotator, self.weight)
        print(f"{self.path}: the {there[self.annotator]} labels of {self.annotator} now have weight {self.weight:g}")


@dataclass(frozen=True)
class Merge(_Action):
    """Add the contents of other preference stores that this one lacks."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL; created if it does not exist."""
    others: tyro.conf.Positional[tuple[str, ...]]
    """The stores to add."""

    def _run(self) -> None:
        # Check all of them before creating or writing anything.
        there = open_files(store_of(self.path)).exists("store.json")
        paths = [*([self.path] if there else []), *self.others]
        check_one_family({path: _Action(path)._open().families() for path in paths})
        store = PreferenceStore(store_of(self.path))
        for other in self.others:
            print(f"{self.path}: {store.import_from(store_of(other))} new comparisons from {other}")


@dataclass(frozen=True)
class Undo(_Action):
    """Undo the latest merge."""

    def _run(self) -> None:
        print(f"{self.path}: removed {self._open().undo()}")


@dataclass(frozen=True)
class Import(_Action):
    """Add preferences from a file: an exported .parquet, or one saved by imitation or drlhp. No code in the file is executed."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL; created if it does not exist."""
    file: tyro.conf.Positional[Path]
    """The input file."""

    def _run(self) -> None:
        if not self.file.is_file():
            raise SettingError(f"{self.file} is not a file.")
        count = exchange.import_file(store_of(self.path), self.file)
        print(f"{self.path}: {count} new comparisons from {self.file}")


ACTIONS: dict[str, type[_Action]] = {
    kind.__name__.lower(): kind for kind in (Info, Verify, Compact, Export, Show, Weigh, Merge, Undo, Import)
}


def run(words: list[str]) -> None:
    """Run one of the actions."""
    if not words or words[0] in ("-h", "--help"):
        rows = {name: " ".join((kind.__doc__ or "").partition("\n\n")[0].split()) for name, kind in ACTIONS.items()}
        text = (
            "PATH is a store's folder or URL (s3://bucket/folder), or a run folder. merge and import create the store."
        )
        print(overview("rlhf-ray store ACTION PATH …", rows, text))
        sys.exit(0 if words else 2)
    if words[0] not in ACTIONS:
        meant = did_you_mean(words[0], ACTIONS) or f"give one of {', '.join(ACTIONS)}."
        raise SettingError(
            f"{words[0]!r} is no action of `rlhf-ray store`; {meant} `rlhf-ray store --help` describes them."
        )
    command: _Action = parse_arguments(ACTIONS[words[0]], f"rlhf-ray store {words[0]}", words[1:])
    try:
        command._run()
    except (ValueError, OSError) as error:
        raise SettingError(str(error)) from error
