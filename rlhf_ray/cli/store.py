"""`rlhf-ray store`: look into a preference store, check it, join it with others, and take data in and out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
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
class Info:
    """Say what is in a preference store."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL, or a run's folder."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True)
class Verify:
    """Read everything in a preference store and check it. Ends with code 1 if something is wrong."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL, or a run's folder."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True)
class Compact:
    """Join the small files of a preference store into larger ones."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL, or a run's folder."""


@dataclass(frozen=True)
class Export:
    """Write everything in a preference store into one file."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL, or a run's folder."""
    out: tyro.conf.Positional[Path]
    """The file: .parquet (with the clips), .csv or .jsonl."""
    overwrite: bool = False
    """Replace the file if it is there already."""


@dataclass(frozen=True)
class Weigh:
    """Decide what each answer of an annotator counts, from the next fit on. Nothing is deleted."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL, or a run's folder."""
    annotator: tyro.conf.Positional[str]
    """Whose answers."""
    weight: tyro.conf.Positional[float]
    """1 is the rule, 0 leaves them out."""


@dataclass(frozen=True)
class Merge:
    """Add what other preference stores hold and this one lacks."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL; made if it is not there."""
    others: tyro.conf.Positional[tuple[str, ...]]
    """The stores to add."""


@dataclass(frozen=True)
class Undo:
    """Take back what the latest merge brought; or, where clips of several shapes were mixed, those that came later."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL, or a run's folder."""


@dataclass(frozen=True)
class Import:
    """Add the preferences in a file: an exported .parquet, or what imitation or drlhp saved (nothing in it is run)."""

    path: tyro.conf.Positional[str]
    """The store's folder or URL; made if it is not there."""
    file: tyro.conf.Positional[Path]
    """The file."""


def run(words: list[str]) -> None:
    """Run one of the actions.

    Raises:
        SettingError: a path is wrong, or reading or writing failed.
    """
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if words else 2)
    actions: dict[str, tuple[Any, Callable[[Any], None]]] = {
        "info": (Info, _info),
        "verify": (Verify, _verify),
        "compact": (Compact, _compact),
        "export": (Export, _export),
        "weigh": (Weigh, _weigh),
        "merge": (Merge, _merge),
        "undo": (Undo, _undo),
        "import": (Import, _import),
    }
    if words[0] not in actions:
        raise SettingError(f"there is no action {words[0]!r}.\n{USAGE}")
    kind, action = actions[words[0]]
    command = parse_arguments(kind, f"rlhf-ray store {words[0]}", words[1:])
    try:
        action(command)
    except (ValueError, OSError) as error:
        raise SettingError(str(error)) from error


def _open(path: str) -> PreferenceStore:
    return PreferenceStore(store_of(path), create=False)


def _info(command: Info) -> None:
    about = _open(command.path).describe()
    if command.json:
        print(json.dumps(about))
        return
    print(f"{command.path}: {about['format']}")
    names = (
        "comparisons",
        "ties",
        "lost",
        "events",
        "kinds",
        "annotators",
        "weights",
        "answered",
        "clips",
        "clip_shapes",
    )
    for name in names:
        print(f"  {name:12} {_readable(about[name])}")
    for merge in about["merges"]:
        print(f"  {'merged':12} {merge['comparisons']} comparisons from {merge['source']}, {merge['time']}")
    for folder, count in about["files"].items():
        print(f"  {folder:12} {count} files, {about['bytes'].get(folder, 0) / 1e6:.2f} MB")


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items()) or "none"
    return " to ".join(value) or "none" if isinstance(value, list) else str(value)


def _verify(command: Verify) -> None:
    found = _open(command.path).verify()
    if command.json:
        print(json.dumps(asdict(found)))
    else:
        for problem in found.problems:
            print(problem)
        state = f"{len(found.problems)} problems" if found.problems else "sound"
        print(f"{command.path}: {state}; {found.comparisons} comparisons, {found.events} events, {found.clips} clips")
    if found.problems:
        sys.exit(1)


def _compact(command: Compact) -> None:
    store = _open(command.path)
    before = store.describe()["files"]
    store.compact()
    after = store.describe()["files"]
    print(
        f"{command.path}: " + ", ".join(f"{before[name]} -> {after[name]} {name} files" for name in ("labels", "clips"))
    )


def _export(command: Export) -> None:
    if command.out.exists() and not command.overwrite:
        raise SettingError(f"{command.out} is there already: name another file, or add --overwrite to replace it.")
    count = exchange.export(_open(command.path), command.out)
    print(f"{command.out}: {count} events")


def _weigh(command: Weigh) -> None:
    store = _open(command.path)
    there = store.describe()["annotators"]
    if command.annotator not in there:
        raise SettingError(
            f"{command.path} holds no answers of {command.annotator!r}; it holds those of {', '.join(there) or 'nobody'}."
        )
    store.weigh(command.annotator, command.weight)
    print(
        f"{command.path}: each of the {there[command.annotator]} answers of {command.annotator} counts {command.weight:g}"
    )


def _merge(command: Merge) -> None:
    # All of them, before anything is made or written.
    there = open_files(store_of(command.path)).exists("store.json")
    paths = [*([command.path] if there else []), *command.others]
    check_one_kind({path: _open(path).kinds() for path in paths})
    store = PreferenceStore(store_of(command.path))
    for other in command.others:
        print(f"{command.path}: {store.import_from(store_of(other))} new comparisons from {other}")


def _undo(command: Undo) -> None:
    print(f"{command.path}: took back {_open(command.path).undo()}")


def _import(command: Import) -> None:
    if not command.file.is_file():
        raise SettingError(f"{command.file} is no file.")
    count = exchange.import_file(PreferenceStore(store_of(command.path)), command.file)
    print(f"{command.path}: {count} new comparisons from {command.file}")
