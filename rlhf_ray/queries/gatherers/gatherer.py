"""What a gatherer is: it gets pairs answered and commits the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import Fragments

DESERTED = "All annotators have left: nothing more is asked, and the labels so far are all."
"""What is said when a gatherer is ``deserted``."""

Commit = Callable[[Comparisons], None]
"""Stores answers durably before it returns. Idempotent: storing the same answers again changes nothing."""

Skip = Callable[[Pairs, Sequence[str]], None]
"""Stores durably that annotators (one name per pair) skipped these pairs: nobody is asked about them again. Idempotent."""


FramesOf = Callable[[Fragments], list[Array]]
"""Returns what people would see of each fragment: its frames, ``[length + 1, height, width, 3]`` uint8."""


class Gatherer(Protocol):
    """Gets pairs answered. Runs in its own actor; `ask` may block its thread for as long as answers take.

    The constructor of a custom gatherer may take ``commit``, which stores `Comparisons` durably; ``skip``, which stores that pairs
    were skipped; ``settings``, the `PreferenceSettings`; and ``seed``, the run's seed; or any subset.

    If the class has ``wants_films = True``, fragments are filmed as for people, and the constructor may also take ``films``, a
    `FramesOf`: ``films(pairs.left)`` returns the frames of the left fragments. So a vision model can be a teacher.
    """

    def ask(self, number: int, pairs: Pairs) -> None:
        """Get the pairs answered and commit the answers. Return when no more answers are expected.

        Args:
            number: number of this batch of pairs. After a crash, the same pairs come again with the same number. It never stands
                for other pairs; in a resumed run, numbers go on from a higher one.
            pairs: the pairs to ask about, in this order.
        """
        ...
