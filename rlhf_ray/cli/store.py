"""`rlhf-ray store`: look into a preference store, check it, join it with others, and take data in and out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.data.errors import SettingError
from rlhf_ray.store import exchange
from rlhf_ray.store.files import open_files, store_of
from rlhf_ray.store.merges import check_one_kind
from rlhf_ray.store.store import PreferenceStore

USAGE = """usage: rlhf-ray store ACTION PATH …

  rlhf-ray store info PATH [--json]       what is in it
  rlhf-ray store verify PATH [--json]     read everything and check it; ends with code 1 if something is wrong
  rlhf-ray store compact PATH             join small files into larger ones
  rlhf-ray store export PATH OUT          everything in one file: .parquet (with clips), .csv or .jsonl
  rlhf-ray store weigh PATH WHO WEIGHT    what each answer of an annotator counts: 1 is the rule, 0 leaves them out
  rlhf-ray store merge PATH OTHER …       add what other stores hold
  rlhf-ray store undo PATH                take back what the latest merge brought
  rlhf-ray store import PATH FILE         add an exported .parquet, imitation's or drlhp's saved preferences

PATH is a store's folder or URL (s3://bucket/folder), or a run's folder. merge and import make a store where there is none."""


@dataclass(frozen=True)
class _Action:
    """What all actions have in common."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL, or a run's folder."""

    def _open(self) -> PreferenceStore:
        return PreferenceStore(store_of(self.path), create=False)

    def _run(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Info(_Action):
    """Say what is in a preference store."""

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
        for merge in about["merges"]:
            print(f"  {'merged':12} {merge['comparisons']} comparisons from {merge['source']}, {merge['time']}")
        for folder, count in about["files"].items():
            print(f"  {folder:12} {count} files, {about['bytes'].get(folder, 0) / 1e6:.2f} MB")


_SHOWN = ("comparisons", "ties", "lost", "events", "kinds", "annotators", "weights", "answered", "clips", "clip_shapes")


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items()) or "none"
    return " to ".join(value) or "none" if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Verify(_Action):
    """Read everything in a preference store and check it. Ends with code 1 if something is wrong."""

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
            print(f"{self.path}: {state}; {found.comparisons} comparisons, {found.events} events, {found.clips} clips")
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


@dataclass(frozen=True)
class Export(_Action):
    """Write everything in a preference store into one file."""

    out: tyro.conf.Positional[Path]
    """The file: .parquet (with the clips), .csv or .jsonl."""
    overwrite: bool = False
    """Replace the file if it is there already."""

    def _run(self) -> None:
        if self.out.exists() and not self.overwrite:
            raise SettingError(f"{self.out} is there already: name another file, or add --overwrite to replace it.")
        print(f"{self.out}: {exchange.export(self._open(), self.out)} events")


@dataclass(frozen=True)
class Weigh(_Action):
    """Decide what each answer of an annotator counts, from the next fit on. Nothing is deleted."""

    annotator: tyro.conf.Positional[str]
    """Whose answers."""
    weight: tyro.conf.Positional[float]
    """1 is the rule, 0 leaves them out."""

    def _run(self) -> None:
        store = self._open()
        there = store.describe()["annotators"]
        if self.annotator not in there:
            raise SettingError(
                f"{self.path} holds no answers of {self.annotator!r}; it holds those of {', '.join(there) or 'nobody'}."
            )
        store.weigh(self.annotator, self.weight)
        print(f"{self.path}: each of the {there[self.annotator]} answers of {self.annotator} counts {self.weight:g}")


@dataclass(frozen=True)
class Merge(_Action):
    """Add what other preference stores hold and this one lacks."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL; made if it is not there."""
    others: tyro.conf.Positional[tuple[str, ...]]
    """The stores to add."""

    def _run(self) -> None:
        # All of them, before anything is made or written.
        there = open_files(store_of(self.path)).exists("store.json")
        paths = [*([self.path] if there else []), *self.others]
        check_one_kind({path: _Action(path)._open().kinds() for path in paths})
        store = PreferenceStore(store_of(self.path))
        for other in self.others:
            print(f"{self.path}: {store.import_from(store_of(other))} new comparisons from {other}")


@dataclass(frozen=True)
class Undo(_Action):
    """Take back what the latest merge brought; or, where clips of several shapes were mixed, those that came later."""

    def _run(self) -> None:
        print(f"{self.path}: took back {self._open().undo()}")


@dataclass(frozen=True)
class Import(_Action):
    """Add the preferences in a file: an exported .parquet, or what imitation or drlhp saved (nothing in it is run)."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL; made if it is not there."""
    file: tyro.conf.Positional[Path]
    """The file."""

    def _run(self) -> None:
        if not self.file.is_file():
            raise SettingError(f"{self.file} is no file.")
        count = exchange.import_file(PreferenceStore(store_of(self.path)), self.file)
        print(f"{self.path}: {count} new comparisons from {self.file}")


ACTIONS = {kind.__name__.lower(): kind for kind in (Info, Verify, Compact, Export, Weigh, Merge, Undo, Import)}


def run(words: list[str]) -> None:
    """Run one of the actions.

    Raises:
        SettingError: a path is wrong, or reading or writing failed.
    """
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if words else 2)
    if words[0] not in ACTIONS:
        raise SettingError(f"there is no action {words[0]!r}.\n{USAGE}")
    command: _Action = parse_arguments(ACTIONS[words[0]], f"rlhf-ray store {words[0]}", words[1:])
    try:
        command._run()
    except (ValueError, OSError) as error:
        raise SettingError(str(error)) from error
