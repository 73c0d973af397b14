"""Spending: how many of the labels that are due are asked for, so that none go to clips that answers cannot tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

TIES = 0.8
"""Share of the answers above which nearly all are ties. Up to 0.67 was seen in runs that learned."""

PROBE = 10
"""Answers that are looked at before more are asked for."""

GATHERINGS = 2
"""Times that more first clips are gathered, at most, since nearly all answers were ties."""

TRICKLE = 2
"""Labels asked for in each later round while nearly all answers are ties, to see whether they still are."""


def gathered(row: Mapping[str, Any]) -> str | None:
    """What was done about ties before training, told from the metrics of an iteration; None where nothing was."""
    times = row.get("first_clips_gathered") or 1
    if times == 1:
        return None
    return (
        f"Nearly all of the first answers were ties, so more first clips were gathered ({times} times, "
        f"{row['first_clips_env_steps']} environment steps in all) before more was asked."
    )


def held_back(row: Mapping[str, Any]) -> str | None:
    """What is being done about ties, told from the metrics of an iteration; None where nothing has to be."""
    held, answers, ties = (row.get(name) or 0 for name in ("labels_held_back", "newest_answers", "newest_ties"))
    if not held or ties <= TIES * answers:
        return None
    return f"{ties} of the newest {answers} answers are ties: {held} labels are held back, {TRICKLE} are asked in each round."


class Spending:
    """Watches the ties among the answers.

    Args:
        comparisons: the label budget.
        watches: whether it does so at all; else whatever is due is asked for.
    """

    def __init__(self, comparisons: int, watches: bool):
        self.comparisons, self.watches = comparisons, watches
        self.gatherings = 0
        """Times that more first clips were gathered."""
        self.held_back = 0
        """Labels that are due and were not asked for when it was decided last."""
        self._looks: list[tuple[int, int]] = []
        """Answers and ties among them, of each time that it was told of some."""

    def look(self, answers: int, ties: int) -> None:
        """Take in that there are so many new answers, and so many ties among them."""
        if self.watches and answers:
            self._looks.append((answers, ties))

    @property
    def newest(self) -> tuple[int, int]:
        """The newest answers, `PROBE` of them or somewhat more, and the ties among them."""
        answers = ties = 0
        for new, tied in reversed(self._looks):
            if answers >= PROBE:
                break
            answers, ties = answers + new, ties + tied
        return answers, ties

    @property
    def tied(self) -> bool:
        """Whether nearly all of the newest answers are ties."""
        answers, ties = self.newest
        return answers >= PROBE and ties > TIES * answers

    @property
    def wants_clips(self) -> bool:
        """Whether more first clips should be gathered."""
        return self.tied and self.gatherings < GATHERINGS

    def gathered(self) -> None:
        """More first clips were gathered: what was answered about the earlier ones tells nothing of these."""
        self.gatherings += 1
        self._looks = []

    def grant(self, due: int, answered: int, rounds_left: int | None) -> int:
        """How many labels to ask for now.

        Args:
            due: labels due by now, in all, by the schedule.
            answered: labels answered so far.
            rounds_left: labelling rounds still to come, this one included; None before training.
        """
        missing = max(0, due - answered)
        if not self.watches:
            return missing
        if rounds_left is None:
            granted = 0 if self.tied else min(missing, PROBE) if not self._looks else missing
        elif self.tied:
            granted = min(missing, TRICKLE)
        elif self.held_back:  # what was held back is spread over the rounds to come
            granted = min(missing, math.ceil((self.comparisons - answered) / max(1, rounds_left)))
        else:
            granted = missing
        self.held_back = missing - granted
        return granted

    def report(self) -> dict[str, int]:
        """For the metrics, where it watches: labels held back, times that more first clips were gathered, ties of the newest."""
        if not self.watches:
            return {}
        answers, ties = self.newest
        told = {"labels_held_back": self.held_back, "first_clips_gathered": 1 + self.gatherings}
        return told | {"newest_answers": answers, "newest_ties": ties}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"gatherings": self.gatherings, "held_back": self.held_back, "looks": list(self._looks)}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.gatherings, self.held_back = state["gatherings"], state["held_back"]
        self._looks = [(answers, ties) for answers, ties in state["looks"]]
