"""Conversion of checkpoints from before version 0.2, whose ring stored its state in RLlib's pickle."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.actors.ring import LABELS, STATE
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.nested import write_nested
from rlhf_ray.store import PreferenceStore
from rlhf_ray.store.clips import Rows

logger = logging.getLogger(__name__)


def convert(old: Mapping[str, Any], checkpoint: Path, folder: Path) -> None:
    """Convert an old ring state to the files that `Ring.load` reads.

    Labels, reward model, optimiser and fragments are preserved. Random draws are not: fragment ids no longer depend on rewards,
    so the run doesn't continue bit for bit as in the earlier version.

    Args:
        old: the ring's state in the checkpoint.
        checkpoint: the checkpoint's folder, with the labels.
        folder: a new folder to write to.
    """
    logger.warning("%s is from an earlier version. Training continues from it, but not bit for bit.", checkpoint)
    (folder / STATE).mkdir(parents=True)
    if "reward" in old:  # a fixed reward has no labels
        write_nested({"reward": old["reward"]}, folder / STATE)
        return
    labels = PreferenceStore(checkpoint / LABELS, create=False)
    labels.copy_to(folder / LABELS)
    tally = labels.tally()
    spending = old.get("spending", {"gatherings": 0, "held_back": 0, "looks": []})
    held = bool(spending["held_back"])
    state = {
        "asked": old.get("asked", old.get("round_number", -1) + 1 + old.get("extra", 0)),
        "version": old["version"],
        "read": _fitted(labels, old["trainer"], tally.last),
        "trainer": old["trainer"],
        "env_steps": old["env_steps"],
        "schedule": {
            "gatherings": spending["gatherings"],
            "held_back": spending["held_back"],
            "looks": [list(look) for look in spending["looks"]],
            "seen": [tally.held, tally.ties],
            "granted": tally.held if held else None,
            "granted_in": None,
        },
        # Synchronous mode.
        "answered": old["answered"],
        "round_number": old.get("round_number", -1),
        "adopted": 0,
        # Asynchronous mode.
        "fits": old.get("fits", 0),
        "published_at": old.get("published_at", 0),
        "reported": list(old.get("reported", (0, 0))),
        "open": _open(old),
    }
    write_nested(state, folder / STATE)
    _write_pool(old["fragmenter"], folder / STATE)


def _fitted(labels: PreferenceStore, trainer: Mapping[str, Any] | None, last: int) -> int:
    """Return the sequence number of the last event before the first one that the reward model was not fitted to."""
    if trainer is None:
        return 0
    fitted = {tuple(key) for key in trainer["keys"]}
    events = labels.events().select(["sequence", "kind", "pair_id", "annotator"]).to_pylist()
    new = [
        event["sequence"]
        for event in events
        if event["kind"] in ("label", "supersede") and (event["pair_id"], event["annotator"]) not in fitted
    ]
    return min(new) - 1 if new else last


def _open(old: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the open questions: the scripted gatherer's, and the page's if both exist."""
    by_people: dict[bool, list[dict[str, Any]]] = {}
    for asking in old.get("questions", ()):
        pairs = {name: value for name, value in asking["pairs"].items() if name != "films"}
        by_people.setdefault(asking["people"], []).append({"number": asking["number"], "pairs": pairs})
    if not by_people:
        return []
    return [by_people.get(people, []) for people in sorted(by_people)]


def _write_pool(old: Mapping[str, Any], folder: Path) -> None:
    """Write the fragment pool in the format of `FragmentPool.save`."""
    clips = {key: Fragments(**arrays) for key, arrays in sorted(old["clips"].items())}
    about: dict[str, Any] = {
        "clips": [[*key, len(fragments)] for key, fragments in clips.items()],
        "too_short": [[*key, int(count)] for key, count in old["too_short"].items()],
        "episode_lengths": sorted(int(length) for length in old["episode_lengths"]),
        "asked": [[int(number), pairs] for number, pairs in old["asked"].items()],
        "file": None,
    }
    if clips:
        fragments = Fragments.concatenate(list(clips.values()))
        fragments = Fragments(**{name: np.array(array) for name, array in vars(fragments).items()})
        rows = Rows(fragments.ids(), fragments)
        about["file"] = f"pool-{rows.content()}.arrow"
        with (folder / about["file"]).open("wb") as sink:
            rows.write(sink)
    (folder / "pool.json").write_text(json.dumps(about) + "\n")
