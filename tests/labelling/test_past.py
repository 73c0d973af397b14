"""What a restarted page knows of its past."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rlhf_ray.data.fragments import Fragments
from rlhf_ray.labelling.collect import LocalStore
from rlhf_ray.labelling.past import Past
from rlhf_ray.labelling.questions import QuestionQueue
from rlhf_ray.settings import LabellingSettings
from rlhf_ray.store import Event, PreferenceStore
from tests.labelling.office import pairs_of


def test_answers_that_are_later_than_a_clock_that_was_set_back_are_not_of_this_minute(tmp_path: Path) -> None:
    pairs = pairs_of(3)
    store, now = PreferenceStore(tmp_path / "store"), datetime.now(UTC)
    sides = zip(pairs.left.ids(), pairs.right.ids(), (-30, 3600, 86400), strict=True)
    store.record(
        [
            Event(f"{i}", "label", "ada", left, right, 1.0, t_answered=now + timedelta(seconds=later))
            for i, (left, right, later) in enumerate(sides)
        ],
        Fragments.concatenate([pairs.left, pairs.right]),
    )
    queue = QuestionQueue(LabellingSettings())
    asyncio.run(Past(LocalStore(store), queue).recall())
    assert (queue.total("ada"), queue.per_minute("ada")) == (3, 1)
