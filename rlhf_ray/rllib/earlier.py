"""Checkpoints of versions before 0.2, whose ring kept its state in RLlib's pickle: made into what the ring reads now."""

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
    """Write what `Ring.load` reads into ``folder``.

    Labels, reward model, optimiser and clips are the same. What is drawn from here on is not: fragments have other ids, since
    these no longer depend on rewards, so that the run does not repeat bit for bit what the earlier version would have done.

    Args:
        old: the ring's state in the checkpoint.
        checkpoint: its folder, with the labels.
        folder: a new one.
    """
    logger.warning(
        "%s is of an earlier version. Training goes on from it, and does not repeat it bit for bit.", checkpoint
    )
    (folder / STATE).mkdir(parents=True)
    if "reward" in old:  # a fixed reward, which has no labels
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
        # Of the synchronous ring.
        "answered": old["answered"],
        "round_number": old.get("round_number", -1),
        "adopted": 0,
        # Of the asynchronous one.
        "fits": old.get("fits", 0),
        "published_at": old.get("published_at", 0),
        "reported": list(old.get("reported", (0, 0))),
        "open": _open(old),
    }
    write_nested(state, folder / STATE)
    _write_pool(old["fragmenter"], folder / STATE)


def _fitted(labels: PreferenceStore, trainer: Mapping[str, Any] | None, last: int) -> int:
    """The number of the last event before the first one that the reward model was not fitted to."""
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
    """The open questions, of a scripted gatherer and of the page where there are both."""
    by_people: dict[bool, list[dict[str, Any]]] = {}
    for asking in old.get("questions", ()):
        pairs = {name: value for name, value in asking["pairs"].items() if name != "films"}
        by_people.setdefault(asking["people"], []).append({"number": asking["number"], "pairs": pairs})
    if not by_people:
        return []
    return [by_people.get(people, []) for people in sorted(by_people)]


def _write_pool(old: Mapping[str, Any], folder: Path) -> None:
    """The pool of fragments, as `ClipPool.save` writes it."""
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
