"""How many comparisons are asked for, when, about which pairs, and who answers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any, Literal

from rlhf_ray.settings.checks import name_parts, require, require_choices

ScheduleName = Literal["constant", "hyperbolic", "inverse_quadratic"]


@dataclass(frozen=True)
class PreferenceSettings:
    """How many comparisons are asked for, when, about which pairs, and who answers."""

    mode: Literal["synchronous", "asynchronous"] = "synchronous"
    """synchronous: collect, ask, fit and learn one after the other; the same seed gives the same run. asynchronous: each goes at
    its own pace, and PPO waits for none of them."""
    comparisons: int = 200
    """Comparisons in all: the label budget. Met exactly; in the asynchronous mode a slow teacher may leave some unanswered.
    0 where the reward model is fitted already and nothing is asked (see `without_questions`)."""
    initial_comparisons: int | Literal["auto"] = "auto"
    """Comparisons among these that are asked about the random policy's fragments, before training. auto: a quarter of them, as in
    Christiano et al. 2017."""
    rounds: int = 24
    """Labelling rounds after the first, spread evenly over the training; each ends with a fit of the reward model."""
    schedule: ScheduleName = "constant"
    """How the comparisons are spread over the rounds: constant, hyperbolic (∝ 1/(1+t)) or inverse_quadratic (∝ 1/(1+t²))."""
    steepness: float = 1.0
    """With the last two: s in 1/(1+st) and 1/(1+(st)²), t from 0 to 1. The larger, the more of the comparisons come early."""
    selection: str = "random"
    """Which pairs to ask about: random ones; disagreement, those the ensemble disagrees about most; or module:Name for a selection
    of your own (`rlhf_ray.queries.selection.Selection`)."""
    oversampling: int = 10
    """Unless selection=random: candidate pairs drawn for each pair asked about."""
    teacher: str = "oracle"
    """Who answers: oracle (always right); stochastic (right with a probability that grows with the difference); human, people
    at the labelling page; or module:Name for a teacher of your own (`rlhf_ray.teachers.Teacher`)."""
    gatherer: str = "scripted"
    """How answers other than people's are got: scripted, by asking the teacher; or module:Name for a gatherer of your own
    (`rlhf_ray.queries.gatherers.Gatherer`), such as a labelling service."""
    human_share: float = 0.0
    """With a scripted teacher in the asynchronous mode: share of the questions (0 to 1) that people are asked instead."""
    rationality: float = 1.0
    """With teacher=stochastic: β, per unit of true return; 0 answers at random."""
    answer_seconds: float = 0.0
    """Seconds the scripted teacher takes for each answer, to try out what a slow teacher does."""
    held_out_share: float = 0.1
    """Share of the comparisons (0 to below 1) kept out of the fits, to measure accuracy on. Decided by a hash of their ids."""
    allow_variable_horizon: bool = False
    """Allow episodes of varying length. When an episode ends tells about the reward, and so can leak it (see the `imitation`
    documentation, "variable horizon"); with this you accept that."""
    minimum_comparisons: int | None = None
    """Asynchronous: comparisons that are answered before the first fit and PPO's first step; initial_comparisons unless given."""
    max_open_questions: int = 50
    """Asynchronous: pairs asked about and not yet answered, at most. Where the teacher is slower than the schedule, pairs chosen
    later are about what the agent does by then."""
    max_reward_age: int | None = None
    """Asynchronous: environment steps PPO takes on one version of the reward model, at most, while a newer one is to come
    (a fit is due and there are labels for it); then it waits for that. None: it never waits."""

    def __post_init__(self) -> None:
        require_choices(self, "preferences")
        name_parts(self, "teacher", "gatherer", "selection")
        require(
            self.comparisons >= 0,
            "preferences.comparisons",
            self.comparisons,
            "set it to 1 or more, or to 0 with a reward model that is fitted already",
        )
        least = min(1, self.comparisons)
        first = self.first_comparisons
        require(
            isinstance(first, int) and least <= first <= self.comparisons,
            "preferences.initial_comparisons",
            self.initial_comparisons,
            f"it must be between {least} and preferences.comparisons={self.comparisons}, or auto for a quarter of them",
        )
        require(self.rounds >= 0, "preferences.rounds", self.rounds, "it must be 0 or more")
        if self.rounds == 0:
            require(
                first == self.comparisons,
                "preferences.rounds",
                0,
                f"only the first round asks then: set preferences.initial_comparisons to {self.comparisons}, or rounds to 1 up",
            )
        require(
            0 <= self.human_share <= 1, "preferences.human_share", self.human_share, "it is a share between 0 and 1"
        )
        require(
            self.human_share == 0 or self.mode == "asynchronous",
            "preferences.human_share",
            self.human_share,
            "people and a scripted teacher are asked side by side in preferences.mode=asynchronous only",
        )
        require(self.steepness > 0, "preferences.steepness", self.steepness, "it must be above 0")
        require(self.oversampling >= 1, "preferences.oversampling", self.oversampling, "it must be 1 or more")
        require(self.rationality >= 0, "preferences.rationality", self.rationality, "it must be 0 or more")
        require(self.answer_seconds >= 0, "preferences.answer_seconds", self.answer_seconds, "it must be 0 or more")
        require(
            least <= self.first_fit_comparisons <= self.comparisons,
            "preferences.minimum_comparisons",
            self.minimum_comparisons,
            f"it must be between {least} and preferences.comparisons={self.comparisons}",
        )
        require(
            self.max_open_questions >= 1,
            "preferences.max_open_questions",
            self.max_open_questions,
            "it must be 1 or more",
        )
        require(
            self.max_reward_age is None or self.max_reward_age >= 1,
            "preferences.max_reward_age",
            self.max_reward_age,
            "it must be 1 or more, or None for no limit",
        )
        require(
            0 <= self.held_out_share < 1,
            "preferences.held_out_share",
            self.held_out_share,
            "it must be at least 0 and below 1",
        )

    @property
    def first_comparisons(self) -> int:
        """`initial_comparisons` as a number."""
        if self.initial_comparisons != "auto":
            return self.initial_comparisons
        return self.comparisons if self.rounds == 0 else min(self.comparisons, max(1, round(self.comparisons / 4)))

    def resolved(self) -> PreferenceSettings:
        """The same with numbers in place of auto."""
        return replace(self, initial_comparisons=self.first_comparisons)

    @property
    def asks_people(self) -> bool:
        """Whether people are asked at all."""
        return self.people_share > 0

    @property
    def people_share(self) -> float:
        """The share of the questions that people are asked."""
        if self.comparisons == 0:
            return 0.0
        return 1.0 if self.teacher == "human" else self.human_share

    @property
    def first_fit_comparisons(self) -> int:
        """Asynchronous: comparisons answered before the first fit."""
        return self.first_comparisons if self.minimum_comparisons is None else self.minimum_comparisons

    def without_questions(self) -> PreferenceSettings:
        """These settings for a training on a reward model that is fitted already: nobody is asked anything."""
        return dataclasses.replace(self, **NO_QUESTIONS)


NO_QUESTIONS: dict[str, Any] = {"comparisons": 0, "initial_comparisons": 0, "rounds": 0, "minimum_comparisons": None}
"""What `PreferenceSettings.without_questions` sets."""
