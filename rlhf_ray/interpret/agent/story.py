"""The causal story of a behaviour: object or concept, direction, action, with the strength of each link and a verdict.

A link is measured from moments of held-out episodes on: what the agent does, and what it does from the same moment on with the
direction taken away (its score held halfway between the classes) or moved (held at the other class's mean). Effects are compared
with the gap that the concept makes by itself: how much more often the agent behaves so where the concept holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlhf_ray.interpret.agent.effects import Change
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study.figures import fields_of

Verdict = Literal[
    "necessary", "sufficient", "both", "contributes", "jointly", "acts", "decodable only", "spurious", "not settled", "not read off"
]  # fmt: skip

READ = 0.8
"""AUC from which on a concept is read off a direction: well above chance, and below what single units reach by accident."""
HALF = 0.5
"""Share of the concept's gap that an intervention must close to be called necessary or sufficient: more than all else together."""
SUCCESS = 0.3
"""Share of the return that must be lost where the behaviour itself is only partly abolished. Guessing a cue of two costs a half."""
NONE = 0.1
"""An effect is absent if its interval stays within this (one action in ten, a tenth of the return) and is not clear of chance; of a
rare behaviour within half of its share: a tenth could be all of it."""
SLOPE = 0.5
"""Log-odds per standard deviation of the score from which on a gradient says that a direction drives an action: odds of 5 to 3."""

Origin = Literal["memory", "sight", "either"]


def origin(recalled: MeanEstimate | None) -> Origin:
    """Return where a concept comes from that a memory holds: from before the step, or from what is seen at the step.

    Args:
        recalled: see `rlhf_ray.interpret.agent.recall.recalled`.
    """
    if recalled is None or recalled.low is None or recalled.high is None or recalled.low <= HALF <= recalled.high:
        return "either"
    return "memory" if recalled.mean > HALF else "sight"


@dataclass(frozen=True)
class Link:
    """An effect on the behaviour's frequency, beside the same on random directions.

    Attributes:
        change: of the frequency.
        random: change with each random direction.
        matched: whether random directions are a control: they are moved as far, or take a comparable share of the variance.
    """

    change: MeanEstimate
    random: Sequence[float] = ()
    matched: bool = True

    @property
    def random_most(self) -> float:
        """The largest change with a random direction."""
        return max(map(abs, self.random), default=0.0)

    @property
    def stands_out(self) -> bool:
        """Whether its interval is clear of 0, and of the largest change with a random direction that is a control."""
        return self.matched and self.change.beyond(self.random_most)

    def scaled(self, factor: float) -> Link:
        """Return the link in other units; ``factor`` is positive."""
        return Link(self.change.scaled(factor), [factor * each for each in self.random], self.matched)

    def absent(self, within: float) -> bool:
        """Return whether the interval stays within a bound, and holds 0 unless random directions do as much."""
        low, high = self.change.low, self.change.high
        return low is not None and high is not None and max(-low, high) <= within and not self.stands_out


@dataclass(frozen=True)
class EditedLevel:
    """What the level's edit that moves a direction's score most does.

    Attributes:
        edit: its name.
        score: change of the score, in distances between the concept's classes.
        action: change of the behaviour, towards the concept.
    """

    edit: str
    score: MeanEstimate
    action: MeanEstimate

    @property
    def silent(self) -> bool:
        """Whether the memory doesn't follow: its score stays where it is, within `NONE` of the distance."""
        low, high = self.score.low, self.score.high
        return low is not None and high is not None and max(-low, high) <= NONE

    @property
    def acts(self) -> bool:
        """Whether what the agent does changes, by more than `NONE`."""
        return self.action.beyond(NONE)


@dataclass(frozen=True)
class Joint:
    """What a concept does to a behaviour together with another concept, and not alone, as in an exclusive or.

    Attributes:
        partner: the other concept.
        gap: how much larger the concept's gap is where the partner holds than where it does not.
        moved: the same difference, of the changes when the direction is moved to the concept's other class.
    """

    partner: str
    gap: MeanEstimate
    moved: Link

    def bears_out(self, least: float) -> bool:
        """Return whether moving the direction makes half of a difference clear of ``least``, and random directions don't."""
        return self.gap.beyond(least) and self.moved.stands_out and self.moved.change.mean / self.gap.mean >= HALF


@dataclass(frozen=True)
class CausalChain:
    """A concept, its direction, and a behaviour.

    Attributes:
        concept, behaviour: names.
        auc: how well the direction's score tells the concept's classes apart on other levels.
        auc_random: the largest AUC of random directions.
        shares: frequency of the behaviour where the concept doesn't hold, and where it does.
        gradient: mean change of the behaviour's log-odds with a standard deviation of the score.
        gradient_random: the same of each random direction.
        removed: taking the direction away where the concept holds.
        moved: setting the score to its mean where the concept holds, at moments where it doesn't.
        back: the opposite.
        control: the largest change by moving as far along the direction that the action depends on most, or by another concept's
            direction: shows what the test can see.
        inert: whether no memory of another moment moves the action: then nothing in it does.
        recalled: see `rlhf_ray.interpret.agent.recall.recalled`; None without memory.
        yes_no: whether the concept is yes or no; else a number, whose classes lie below and above its median.
        success: change of the return with the direction taken away throughout, as a share of the return.
        edited: the same concept changed in the level itself, if an edit does that.
        returns: the true return with and without the directions, throughout.
        settles: whether nothing reads the concept once its directions are taken away: else an absent effect means nothing.
        gap_estimate: how much more often the agent behaves so where the concept holds, with its interval; None: not measured.
        differs: how far the behaviour's frequency moves, up or down, when the score is moved to the other class: effects that
            cancel out are in no mean.
        own_part: whether its directions are only those of the part of the concept that others don't tell.
        value: how far the agent's value moves, up or down, when the score is moved to the other class, in its standard deviations.
        joint: the concept with which it acts together, where it makes no difference alone; None: there is none.
    """

    concept: str
    behaviour: str
    auc: float
    auc_random: float
    shares: tuple[float, float]
    gradient: float
    gradient_random: Sequence[float]
    removed: Link
    moved: Link
    back: Link
    control: MeanEstimate
    yes_no: bool = True
    success: Link | None = None
    edited: EditedLevel | None = None
    returns: Change | None = None
    settles: bool = True
    gap_estimate: MeanEstimate | None = None
    differs: Link | None = None
    joint: Joint | None = None
    inert: bool = False
    recalled: MeanEstimate | None = None
    value: Link | None = None
    own_part: bool = False

    @property
    def values(self) -> bool:
        """Whether the value depends on it: as with no random direction, and by more than a tenth of what it varies by."""
        return self.value is not None and self.value.stands_out and self.value.change.beyond(NONE)

    @property
    def origin(self) -> Origin:
        """Where the concept comes from."""
        return "sight" if self.inert else origin(self.recalled)

    @property
    def negligible(self) -> float:
        """Up to which size an effect on the behaviour's share counts as none: `NONE`, or half of the share, if that is less."""
        return min(NONE, HALF * max(self.shares))

    @property
    def has_gap(self) -> bool:
        """Whether the behaviour differs between the classes, by more than nothing and clear of chance: something to explain."""
        return abs(self.gap) > self.negligible and (self.gap_estimate is None or not self.gap_estimate.holds_zero)

    @property
    def gap(self) -> float:
        """How much more often the agent behaves so where the concept holds."""
        return self.shares[1] - self.shares[0]

    @property
    def slopes(self) -> bool:
        """Whether the gradient says that the direction drives the behaviour: steep, and steeper than for most random directions."""
        random = float(np.median(np.abs(self.gradient_random))) if len(self.gradient_random) else 0.0
        return abs(self.gradient) >= max(SLOPE, random)

    def closes(self, link: Link, towards: float) -> float:
        """Return the share of the gap that a link closes; ``towards`` is the sign of the change that closes it."""
        return towards * link.change.mean / self.gap if abs(self.gap) > 1e-9 else 0.0

    @property
    def necessary(self) -> bool:
        """Whether the behaviour, or what it is for, fails without the direction.

        Where the return fails as with no random direction, the behaviour has to end as well, but random directions, moved as far as
        no memory ever was, may end it too. Without a difference between the classes, nothing is necessary for it.
        """
        if not self.has_gap:
            return False
        if any(link.stands_out for link in self.ending):
            return True
        lost = self.success is not None and self.success.stands_out and self.success.change.mean <= -SUCCESS
        return lost and bool(self.ending or [link for link in self.closing if link is not self.moved])

    @property
    def closing(self) -> list[Link]:
        """The interventions that stand out, and change the behaviour in the sense in which the classes differ."""
        links = ((self.removed, -1.0), (self.back, -1.0), (self.moved, 1.0))
        return [link for link, towards in links if link.stands_out and self.closes(link, towards) > 0.0]

    @property
    def ending(self) -> list[Link]:
        """The interventions that take the direction away and end the behaviour: they clearly close at least half of the gap."""
        links = (self.removed, self.back)
        return [link for link in links if not link.change.holds_zero and self.closes(link, -1.0) >= HALF]

    @property
    def sufficient(self) -> bool:
        """Whether the direction alone brings the behaviour about where it is absent."""
        return self.has_gap and self.moved.stands_out and self.closes(self.moved, 1.0) >= HALF

    @property
    def without_effect(self) -> bool:
        """Whether no intervention has any, although the test would have seen one."""
        still = all(link.absent(self.negligible) for link in self.acts) and (
            self.success is None or self.success.absent(NONE)
        )
        return still and not self.control.holds_zero

    @property
    def without_power(self) -> bool:
        """Whether nothing moves the action, not even the control: then an absent effect means nothing."""
        return not self.inert and self.control.holds_zero and all(link.change.holds_zero for link in self.links)

    @property
    def acts(self) -> list[Link]:
        """The interventions on what the agent does: they say that it acts on the direction, also where its classes don't differ."""
        return [self.removed, self.moved, self.back, *([self.differs] if self.differs is not None else [])]

    @property
    def links(self) -> list[Link]:
        """All interventions."""
        return [self.removed, self.moved, self.back, *([self.success] if self.success is not None else [])]

    @property
    def largest(self) -> float:
        """The largest effect of an intervention."""
        return max(abs(link.change.mean) for link in self.links)

    @property
    def verdict(self) -> Verdict:
        """What follows from all that."""
        if self.auc < READ:
            return "not read off"
        if self.necessary or self.sufficient:
            return "both" if self.necessary and self.sufficient else "necessary" if self.necessary else "sufficient"
        if self.joint is not None and self.joint.bears_out(self.negligible):
            return "jointly"
        if self.inert and not any(link.random and link.stands_out for link in self.acts):
            return "decodable only"
        if self.without_effect and self.settles:
            return "spurious" if self.slopes else "decodable only"
        if self.has_gap and self.closing:
            return "contributes"
        return "acts" if any(link.random and link.stands_out for link in self.acts) else "not settled"

    def to_json(self) -> dict[str, Any]:
        """Return all figures and the verdict."""
        return fields_of(self) | {"gap": self.gap, "verdict": self.verdict}
