"""Settings of the comparisons: how many, when, which pairs, who answers; and of the labelling page."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

from rlhf_ray.settings.checks import (
    BelowOne,
    Bounds,
    Count,
    Discount,
    Natural,
    NonNegative,
    Positive,
    Share,
    changeable,
    check_values,
    name_parts,
    require,
    whole_number,
)

Channels = Literal["auto", 1, 3]
Zoom = Count | Literal["auto"]

_ENTRY = re.compile(r"(?P<teacher>[^=@]+)(=(?P<share>[^=@]+))?(@(?P<after>[^=@]+))?")


class AnnotatorEntry(NamedTuple):
    """One annotator of a population, as a setting names it: ``oracle``, ``oracle=2``, ``oracle@30``, ``oracle=2@30``.

    Attributes:
        teacher: the teacher's name.
        share: relative share of the questions, above 0.
        after: number of answers after which the annotator leaves; None for never.
    """

    teacher: str
    share: float = 1.0
    after: int | None = None


def read_annotator(text: str) -> AnnotatorEntry:
    """Read one entry of `PreferenceSettings.annotators`.

    Raises:
        SettingError: it is none, or its teacher can't be in a population.
    """
    entry, match = AnnotatorEntry("", 0.0), _ENTRY.fullmatch(text)
    if match is not None:
        with contextlib.suppress(ValueError):
            after = None if match["after"] is None else whole_number(match["after"])
            entry = AnnotatorEntry(match["teacher"], float(match["share"] or 1.0), after)
    forms = "write a teacher's name, with =SHARE (above 0) for another share than 1, and @ANSWERS (1 or more) to leave after them"
    valid = 0 < entry.share < math.inf and (entry.after is None or entry.after >= 1)
    require(valid, "preferences.annotators", text, f"{forms}, as in oracle=2@30")
    single = (
        "a population is of single scripted annotators: name these, and set preferences.human_share to ask people too"
    )
    require(entry.teacher not in ("population", "human"), "preferences.annotators", text, single)
    return entry


@dataclass(frozen=True)
class PreferenceSettings:
    """Comparisons: how many, when, which pairs, and who answers."""

    mode: Literal["synchronous", "asynchronous"] = "synchronous"
    """synchronous: collect, ask, fit and learn in turn; the same seed gives the same run. asynchronous: all run concurrently, and
    the agent never waits for labels or fits (but see max_reward_age)."""
    comparisons: Natural = 500
    """Total number of comparisons: the label budget. Used up exactly, except that in asynchronous mode a slow teacher may leave
    some unanswered. 0: train on a given reward model without asking (`rlhf-ray train --reward-from`)."""
    initial_comparisons: int | float | Literal["auto"] = "auto"
    """How many of the comparisons are asked before training, about fragments of the random policy: a number, or a share of them
    such as 0.1. auto: half, because an early correct reward decides the outcome (Christiano et al. 2017 ask a quarter)."""
    rounds: Natural = 24
    """Number of labelling rounds after the first, spread evenly over training. Each ends with a reward model fit."""
    until: Annotated[float, Bounds(0, 1, above=True)] = 1.0
    """Share (0 < x ≤ 1) of the training in which all comparisons are asked and all rounds are held. Then the reward model rests,
    and the agent learns on a reward that stays, PPO anew (fresh_policy). B-Pref and RIME ask for a fifth to a half of the
    training."""
    pretraining_env_steps: Natural = 0
    """Environment steps before the first labels, rounded up to iterations, in which the agent learns to visit states unlike recent
    ones (PEBBLE). The first fragments then show this agent and random actions in equal parts. Count towards total_env_steps. Needs
    observations that are vectors."""
    schedule: str = "hyperbolic"
    """Distribution of the comparisons over the rounds: constant; hyperbolic (∝ 1/(1+st), with s the steepness and t from 0 to 1);
    inverse_quadratic (∝ 1/(1+(st)²)); increasing (∝ 1/(1+s(1-t)), asks later); or module:Name for your own function, which takes t
    and returns the relative rate (`rlhf_ray.queries.schedule`)."""
    steepness: Positive = 6.0
    """s in the schedules. Larger values ask earlier, or with increasing later."""
    halving_env_steps: Count | None = None
    """In place of steepness: environment steps after which the rate of hyperbolic and inverse_quadratic has halved, such as 2000000
    for the rate ∝ 2e6/(T+2e6) of Christiano et al. 2017 after T steps. With increasing: steps before the end. None: steepness."""
    selection: str = changeable("random")
    """How to choose the pairs to compare: random; answerable (half of them: the ensemble disagrees most, and people can tell them
    apart; the other half: random); disagreement, disagreement_logits or disagreement_labels (the ensemble disagrees
    most, in probabilities, logits or answers); entropy (the answer is hardest to predict); information_gain (the answer tells most
    about the ensemble); k_center (unlike each other and earlier pairs); near_on_policy (mostly recent behaviour); or module:Name
    for your own selection (`rlhf_ray.queries.selection.Selection`). Joined by +, as in disagreement+k_center, each but the last
    keeps the better half of the candidates."""
    oversampling: Count = changeable(10)
    """Candidate pairs drawn per selected pair. Not used with selection=random."""
    teacher: str = "oracle"
    """Who answers: oracle (always prefers the higher true return); stochastic (Boltzmann-rational in the true return); mistake,
    skip, equal or myopic (B-Pref's); soft (answers stochastic's probability); several of these joined by +, as in
    stochastic+mistake; human_like (skips and errs as people do where returns are close); systematic (judges close pairs by a wrong
    feature); inverted (the opposite of oracle); guessing (at random); population (annotators, or six who err differently); human
    (people at the labelling page); machine (a vision-language model looks at the clips: the settings machine); machine+human
    (people get what the machine can't tell); or module:Name for your own teacher (`rlhf_ray.teachers.Teacher`)."""
    annotators: tuple[str, ...] = ()
    """With teacher=population: its annotators, each a teacher's name, as in oracle oracle=2 inverted human_like@30: with =SHARE for
    another relative share of the questions than 1, and @ANSWERS for one who leaves after that many answers. The second oracle is
    called oracle_2 in the store. None: six built-in annotators who err in six ways."""
    gatherer: str = "scripted"
    """How answers are gathered, except people's: scripted (asks the teacher), or module:Name for your own gatherer
    (`rlhf_ray.queries.gatherers.Gatherer`), such as a labelling service or a model that looks at films."""
    human_share: Share = 0.0
    """Fraction (0 to 1) of questions put to people instead of the scripted teacher. Asynchronous mode only."""
    rationality: NonNegative = 1.0
    """With teacher=stochastic, soft or population: inverse temperature β, per unit of true return. 0 answers at random."""
    mistake: Share = 0.1
    """With teacher=mistake: probability (0 to 1) of the opposite answer."""
    skip: Share = 0.1
    """With teacher=skip: share (0 to 1) of the recent mean return that one of the two fragments must exceed; other pairs are
    skipped."""
    equal: NonNegative = 0.1
    """With teacher=equal: fragments are equally good if their returns differ by less than this share (0 or more) of the recent mean
    return."""
    myopia: Discount = 0.9
    """With teacher=myopic: weight (0 < x ≤ 1) of each step relative to the next one, so that late steps count most."""
    teacher_discount: Discount = 1.0
    """Discount factor per step (0 < x ≤ 1) of the returns that a scripted teacher compares: early steps count most. Not used by
    human_like, systematic and the six built-in annotators of population."""
    skips_count: bool = False
    """Whether a skipped pair ("can't tell") uses up one comparison of the budget. If not, another pair is asked in its place."""
    answer_seconds: NonNegative = 0.0
    """Seconds the scripted teacher takes per answer, on average, to simulate a slow teacher."""
    answer_spread: NonNegative = 0.0
    """With answer_seconds: standard deviation (0 or more) of the logarithm of the seconds per answer, which are log-normal. 0: each
    answer takes the same time."""
    held_out_share: BelowOne = 0.1
    """Fraction (0 ≤ x < 1) of comparisons held out from fits to measure held-out accuracy. Chosen by a hash of their ids."""
    allow_variable_horizon: bool = False
    """Allow episodes of varying length. The end of an episode can leak information about the reward (see "variable horizon" in the
    `imitation` documentation), so this is off by default."""
    minimum_comparisons: int | None = None
    """Asynchronous: number of answers before the first fit and the agent's first step. None: initial_comparisons."""
    max_open_questions: Count = 50
    """Asynchronous: maximum number of unanswered questions. If the teacher is slower than the schedule, this keeps questions about
    recent behaviour."""
    max_reward_age: Count | None = None
    """Asynchronous: maximum environment steps taken on one version of the reward model while a newer one is due (a fit is
    scheduled and has labels); then the agent waits for it. None: it never waits."""

    def with_comparisons(self, comparisons: int | None) -> PreferenceSettings:
        """Return these settings with another label budget (None: as they are); a number of initial comparisons scales with it."""
        if comparisons is None:
            return self
        initial = self.initial_comparisons
        if isinstance(initial, int):
            initial = min(comparisons, max(1, round(initial * comparisons / max(1, self.comparisons))))
        return replace(self, comparisons=comparisons, initial_comparisons=initial)

    def __post_init__(self) -> None:
        name_parts(self, "teacher", "gatherer", "selection", "schedule", "annotators")
        check_values(self, "preferences", infinite=("rationality",))
        _ = self.annotator_entries  # refuses what is none
        least = min(1, self.comparisons)
        share = isinstance(self.initial_comparisons, float)
        first = 0 if share and not 0 < self.initial_comparisons <= 1 else self.first_comparisons  # type: ignore[operator]
        between = f"it must be between {least} and preferences.comparisons={self.comparisons}"
        rules = {
            "annotators": (
                not self.annotators or self.teacher == "population",
                f"they answer with preferences.teacher=population, but it is {self.teacher!r}: set it, or remove them",
            ),
            "initial_comparisons": (
                isinstance(first, int) and least <= first <= self.comparisons,
                f"{between}, or auto for half, or a share of them, above 0 and up to 1.0",
            ),
            "rounds": (
                self.rounds > 0 or first == self.comparisons,
                f"then only the first round asks: set preferences.initial_comparisons to {self.comparisons}, or raise rounds",
            ),
            "human_share": (
                self.human_share == 0 or self.mode == "asynchronous",
                "mixing people and a scripted teacher needs preferences.mode=asynchronous",
            ),
            "gatherer": (
                self.gatherer == "scripted" or not self.asks_machine,
                f"with preferences.teacher={self.teacher}, the machine answers: leave it out, or name another teacher",
            ),
            "pretraining_env_steps": (
                self.pretraining_env_steps == 0 or self.comparisons > 0,
                "with a given reward model there is nothing to wait for: set it to 0",
            ),
            "answer_spread": (
                self.answer_spread == 0 or self.answer_seconds > 0,
                "it spreads preferences.answer_seconds, which is 0: set that to seconds above 0",
            ),
            "minimum_comparisons": (least <= self.first_fit_comparisons <= self.comparisons, between),
        }
        for name, (holds, rule) in rules.items():
            require(holds, f"preferences.{name}", getattr(self, name), rule)

    @property
    def first_comparisons(self) -> int:
        """`initial_comparisons` as a number."""
        initial = self.initial_comparisons
        if isinstance(initial, float):
            return min(self.comparisons, max(1, round(initial * self.comparisons)))
        if initial != "auto":
            return initial
        return self.comparisons if self.rounds == 0 else min(self.comparisons, max(1, round(self.comparisons / 2)))

    @property
    def annotator_entries(self) -> tuple[AnnotatorEntry, ...]:
        """`annotators`, read.

        Raises:
            SettingError: one is no annotator of a population.
        """
        return tuple(read_annotator(entry) for entry in self.annotators)

    def steepness_over(self, env_steps: int | None) -> float:
        """The steepness of the schedule in a training of ``env_steps`` environment steps (None: unknown).

        Raises:
            SettingError: the schedule is in steps, and the training's are unknown.
        """
        if self.halving_env_steps is None:
            return self.steepness
        require(env_steps is not None, "preferences.halving_env_steps", self.halving_env_steps, "set total_env_steps")
        return (env_steps or 0) / self.halving_env_steps

    def resolved(self) -> PreferenceSettings:
        """These settings with numbers in place of auto."""
        return replace(self, initial_comparisons=self.first_comparisons)

    def pretraining_iterations(self, env_steps: int) -> int:
        """Iterations of ``env_steps`` steps before the first labels."""
        return -(-self.pretraining_env_steps // env_steps)

    @property
    def asks_people(self) -> bool:
        """Whether people answer any questions."""
        return self.people_share > 0 or (self.teacher == "machine+human" and self.comparisons > 0)

    @property
    def asks_machine(self) -> bool:
        """Whether a machine looks at clips in a teacher's place."""
        return self.teacher in ("machine", "machine+human")

    @property
    def gatherer_in_use(self) -> str:
        """The name of the gatherer that gets the questions which people don't get first."""
        return "rlhf_ray.queries.machine:MachineGatherer" if self.asks_machine else self.gatherer

    @property
    def people_share(self) -> float:
        """Fraction of questions put to people."""
        if self.comparisons == 0:
            return 0.0
        return 1.0 if self.teacher == "human" else self.human_share

    @property
    def first_fit_comparisons(self) -> int:
        """Asynchronous: number of answers before the first fit."""
        return self.first_comparisons if self.minimum_comparisons is None else self.minimum_comparisons

    def without_questions(self) -> PreferenceSettings:
        """These settings for training on a given reward model, without questions."""
        return dataclasses.replace(self, **NO_QUESTIONS)


NO_QUESTIONS: dict[str, Any] = {
    "comparisons": 0,
    "initial_comparisons": 0,
    "rounds": 0,
    "minimum_comparisons": None,
    "pretraining_env_steps": 0,
}
"""The values that `PreferenceSettings.without_questions` sets."""


@dataclass(frozen=True)
class LabellingSettings:
    """The labelling page, where annotators compare clips in a browser."""

    annotators: tuple[str, ...] = ("me",)
    """Names of the annotators; each gets a personal link. The first is the owner: sees everyone's statistics and sets weights."""
    instructions: str = "Which clip shows better behaviour?"
    """Instructions shown above the clips: what annotators should prefer."""
    language: str = "en"
    """Language of the page: en, de, or a JSON file of its texts in yours. The instructions and the title stay as they are."""
    host: str = "127.0.0.1"
    """Address the page's server binds to. With any other than 127.0.0.1, other machines on the network can reach the page."""
    port: Annotated[int, Bounds(0, 65535)] = 8765
    """Port of the page's server. If it is in use, the next free port is used; 0 picks any free port."""
    hosts: tuple[str, ...] = ()
    """Additional host names (without port) under which browsers reach the page, such as a proxy's."""
    lease_seconds: Annotated[float, Bounds(5)] = 120.0
    """Seconds that a pair is reserved for the annotator who sees it. A visible page renews this."""
    overlap_share: Share = 0.1
    """Fraction (0 to 1) of questions that two annotators answer, to measure agreement. Needs two annotators."""
    catch_share: Annotated[float, Bounds(0, 0.5)] = 0.03
    """Fraction (0 to 0.5) of shown pairs that are catch pairs, which check the annotator and are not used for training: a clip
    beside itself, or a pair they have already answered with its sides swapped."""
    channels: Channels = "auto"
    """Channels of an image observation that people see, the last ones: 1 (grey) or 3 (colour). auto: 3 if their number is a
    multiple of 3, else 1. Set 1 if observations are stacks of 3 or 6 grey frames."""
    zoom: Zoom = "auto"
    """Factor (a whole number, 1 or more) by which the page enlarges image observations, without smoothing. auto: the largest one
    with which two clips fit into the window, which is the limit of any other too."""

    def __post_init__(self) -> None:
        check_values(self, "labelling")
        names = self.annotators
        valid = len(names) >= 1 and len(set(names)) == len(names)
        require(valid, "labelling.annotators", names, "give at least one name, each only once")
        for name in names:
            fits = 1 <= len(name) <= 40 and name.isprintable() and name == name.strip()
            require(fits, "labelling.annotators", name, "a name has 1 to 40 printable characters")
