"""Rings whose teacher is a machine, alone or with people."""

import dataclasses
import hashlib
import io
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.queries.machine import NAME, Kept
from rlhf_ray.runs.report.steps.outcome import contradicted
from rlhf_ray.settings import MachineSettings
from tests.actors.rings import DRAWN, FILMED, PEOPLE_S, at, links, people_ring, replaced, ring_in
from tests.labelling.person import Person
from tests.made_up import labels_in, some_comparisons, wait_for
from tests.queries.machines import chat, serving


def further_right(body: Any, pngs: list[bytes], unsure: int = 0) -> Any:
    """Prefers the walk that is further right in the last frame it sees; so many of 256 pairs it can't tell."""
    if hashlib.sha256(b"".join(sorted(pngs))).digest()[0] < unsure:
        return 200, {}, chat('{"better": "neither"}')
    first, second = (np.asarray(Image.open(io.BytesIO(png)).convert("L"))[:, -60:].mean(0).argmin() for png in pngs)
    return 200, {}, chat(json.dumps({"better": "A" if first > second else "B" if second > first else "neither"}))


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_the_reward_is_fitted_to_what_the_machine_sees(tmp_path: Path, mode: Any) -> None:
    preferences = replaced(PEOPLE_S, teacher="machine", mode=mode)
    with serving(further_right) as served:
        machine = MachineSettings(url=served.url, model="m", frames=2)
        with ring_in(tmp_path, preferences, fragments=FILMED, make_env=DRAWN, machine=machine) as ring:
            assert ring.begin(200) is not None
            ring.advance(at(1.0, 1000))
            if mode == "asynchronous":
                ring.settle()
            assert ring.version > 1
        text = served.bodies[0]["messages"][0]["content"][0]["text"]
    assert "Further right is better." in text
    stored = labels_in(tmp_path / "store")
    assert set(stored.annotators) == {NAME}
    ends = [side.observations[:, -1, 2] for side in (stored.pairs.left, stored.pairs.right)]
    assert ((ends[0] > ends[1]) == (stored.preferences == 1)).all()
    kept = Kept(tmp_path / "machine.jsonl")
    assert kept.requests == len(served.bodies) >= 2 * len(stored)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_people_answer_what_the_machine_cannot_tell_and_check_it(tmp_path: Path) -> None:
    def half(body: Any, pngs: list[bytes]) -> Any:
        return further_right(body, pngs, unsure=128)

    preferences = replaced(PEOPLE_S, teacher="machine+human", comparisons=24, initial_comparisons=12)
    with serving(half) as served:
        machine = MachineSettings(url=served.url, model="m", frames=2, people=8, checks=0.3)
        with people_ring(tmp_path, preferences, machine=machine) as ring:
            person, stopped = Person(links(ring)["ada"], tmp_path / "store"), threading.Event()
            thread = person.start(stopped.is_set)
            assert ring.begin(200) is not None
            ring.advance(at(1.0, 1000))
            wait_for(lambda: ring.answered >= 24)
            wait_for(lambda: ring.actors.open == 0)
            stopped.set()
            thread.join(30)
            assert ring.answered == 24
    stored = labels_in(tmp_path / "store")
    who = Counter(stored.annotators)
    kept = Kept(tmp_path / "machine.jsonl")
    assert 1 <= who["ada"] <= len(kept.referred) == 8
    assert set(who) == {NAME, "ada"}
    of_people = {name for name, by in zip(stored.pairs.ids, stored.annotators, strict=True) if by == "ada"}
    assert of_people <= kept.referred  # they are asked about nothing else
    assert any(count == 2 for count in Counter(stored.pairs.ids).values())  # a check


def test_the_answers_that_people_contradict_are_counted() -> None:
    pairs = some_comparisons(5).pairs
    both = dataclasses.replace(pairs[np.array([0, 1, 2, 3, 4, 0, 1, 2, 3])])
    said = np.array([1, 0, 1, 0.5, 1, 1, 1, 0.5, 0], np.float32)
    stored = Comparisons(both, said, (NAME,) * 5 + ("ada",) * 4)
    assert contradicted(stored) == ([pairs.ids[1]], 2)
