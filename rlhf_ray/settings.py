"""Every setting of an experiment, in one place: what it means, its unit, its default.

The command line and its help are made from these classes, and so are `PreferencePPOConfig`'s setters.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from rlhf_ray.schedules import ScheduleName
from rlhf_ray.teachers import TeacherName

Activation = Literal["relu", "leaky_relu", "tanh"]
PolicyNetwork = Literal["auto", "mlp", "nature", "impala"]
RewardNetworkName = Literal["auto", "mlp", "cnn"]

_S = TypeVar("_S")


class SettingError(ValueError):
    """A setting has a value that cannot work. The message names the setting, the value and the remedy."""


def _require(condition: bool, setting: str, value: object, rule: str) -> None:
    if not condition:
        raise SettingError(f"{setting} is {value!r}; {rule}.")


def _require_layers(hidden: tuple[int, ...], setting: str) -> None:
    valid = len(hidden) >= 1 and all(units >= 1 for units in hidden)
    _require(valid, setting, hidden, "name at least one hidden layer, each of 1 or more units")


def _require_choices(settings: object, group: str) -> None:
    """Check each field of ``settings`` whose type is a `Literal`."""
    for name, kind in get_type_hints(type(settings)).items():
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        if choices and getattr(settings, name) not in choices:
            raise SettingError(
                f"{group}.{name} is {getattr(settings, name)!r}; it must be one of {', '.join(choices)}."
            )


@dataclass(frozen=True)
class FragmentSettings:
    """How clips are cut from what the agent does."""

    length: int = 25
    """Steps per fragment. Must fit into an episode and into a rollout (ppo.rollout_length)."""
    start_share: float = 0.0
    """Share of the fragments asked about (0 to 1) that are the beginnings of episodes; the rest begin anywhere. Beginnings are
    few, so that each is asked about more often, against others."""
    pool: int = 400
    """Fragments kept to choose pairs from: those of the newest rollouts replace the oldest."""
    initial_env_steps: int = 2_000
    """Environment steps taken with random actions to make the first fragments. They count towards total_env_steps."""
    exploration_env_steps: int = 0
    """Environment steps taken before each later round by the policy with random actions mixed in, to have clips of what it does
    not do by itself. They count towards total_env_steps."""
    random_action_share: float = 0.3
    """In those steps, the share (0 to 1) at which a random action replaces the policy's."""
    film_env_steps: int = 200
    """Where people are asked: environment steps that the newest policy takes before a later round to be filmed; in asynchronous
    mode, before those rounds only when people have use for new films. What is not an image itself is rendered there and nowhere
    else. They count towards total_env_steps."""

    def __post_init__(self) -> None:
        _require(self.length >= 1, "fragments.length", self.length, "a fragment has at least 1 step")
        _require(0 <= self.start_share <= 1, "fragments.start_share", self.start_share, "it is a share between 0 and 1")
        _require(self.pool >= 2, "fragments.pool", self.pool, "a pair needs at least 2 fragments")
        _require(
            self.initial_env_steps >= 2 * self.length,
            "fragments.initial_env_steps",
            self.initial_env_steps,
            f"the first pair needs two fragments of fragments.length={self.length} steps, so set it to at least {2 * self.length}",
        )
        _require(
            self.exploration_env_steps >= 0,
            "fragments.exploration_env_steps",
            self.exploration_env_steps,
            "it must be 0 or more",
        )
        _require(self.film_env_steps >= 1, "fragments.film_env_steps", self.film_env_steps, "it must be 1 or more")
        _require(
            0 <= self.random_action_share <= 1,
            "fragments.random_action_share",
            self.random_action_share,
            "it is a share between 0 and 1",
        )

    def between_rounds_env_steps(self, people: bool) -> int:
        """Environment steps before each later round that are not PPO's: exploration, and filming where ``people`` are asked."""
        return self.exploration_env_steps + (self.filmed_env_steps if people else 0)

    @property
    def filmed_env_steps(self) -> int:
        """Environment steps before each later round that are filmed for people: two clips at least."""
        return max(self.film_env_steps, 2 * self.length)


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
    selection: Literal["random", "disagreement"] = "random"
    """Which pairs to ask about: random ones, or those the ensemble disagrees about most."""
    oversampling: int = 10
    """With selection=disagreement: candidate pairs drawn for each pair asked about."""
    teacher: Literal[TeacherName, "human"] = "oracle"
    """Who answers: oracle (always right), stochastic (right with a probability that grows with the difference), or human: people
    at the labelling page."""
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
        _require_choices(self, "preferences")
        _require(
            self.comparisons >= 0,
            "preferences.comparisons",
            self.comparisons,
            "set it to 1 or more, or to 0 with a reward model that is fitted already",
        )
        least = min(1, self.comparisons)
        first = self.first_comparisons
        _require(
            isinstance(first, int) and least <= first <= self.comparisons,
            "preferences.initial_comparisons",
            self.initial_comparisons,
            f"it must be between {least} and preferences.comparisons={self.comparisons}, or auto for a quarter of them",
        )
        _require(self.rounds >= 0, "preferences.rounds", self.rounds, "it must be 0 or more")
        if self.rounds == 0:
            _require(
                first == self.comparisons,
                "preferences.rounds",
                0,
                f"only the first round asks then: set preferences.initial_comparisons to {self.comparisons}, or rounds to 1 up",
            )
        _require(
            0 <= self.human_share <= 1, "preferences.human_share", self.human_share, "it is a share between 0 and 1"
        )
        _require(
            self.human_share == 0 or self.mode == "asynchronous",
            "preferences.human_share",
            self.human_share,
            "people and a scripted teacher are asked side by side in preferences.mode=asynchronous only",
        )
        _require(self.steepness > 0, "preferences.steepness", self.steepness, "it must be above 0")
        _require(self.oversampling >= 1, "preferences.oversampling", self.oversampling, "it must be 1 or more")
        _require(self.rationality >= 0, "preferences.rationality", self.rationality, "it must be 0 or more")
        _require(self.answer_seconds >= 0, "preferences.answer_seconds", self.answer_seconds, "it must be 0 or more")
        _require(
            least <= self.first_fit_comparisons <= self.comparisons,
            "preferences.minimum_comparisons",
            self.minimum_comparisons,
            f"it must be between {least} and preferences.comparisons={self.comparisons}",
        )
        _require(
            self.max_open_questions >= 1,
            "preferences.max_open_questions",
            self.max_open_questions,
            "it must be 1 or more",
        )
        _require(
            self.max_reward_age is None or self.max_reward_age >= 1,
            "preferences.max_reward_age",
            self.max_reward_age,
            "it must be 1 or more, or None for no limit",
        )
        _require(
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


@dataclass(frozen=True)
class RewardModelSettings:
    """The reward networks and how they are fitted to the comparisons."""

    network: RewardNetworkName = "auto"
    """mlp, cnn, or auto: cnn for images and mlp for vectors."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer (for a cnn: of those after the convolutions)."""
    activation: Activation = "leaky_relu"
    """Activation of the hidden layers."""
    use_state: bool = True
    """Whether the reward sees the observation before the step."""
    use_action: bool = True
    """Whether it sees the action."""
    use_next_state: bool = False
    """Whether it sees the observation after the step."""
    use_done: bool = False
    """Whether it sees that the step ended the episode."""
    ensemble_size: int = 3
    """Networks in the ensemble. The reward is the mean of their normalised outputs."""
    bootstrap: bool = True
    """Whether each member weighs the comparisons by its own Poisson(1) draw (a bootstrap), so that they differ."""
    learning_rate: float = 3e-3
    """Learning rate of AdamW."""
    weight_decay: float = 1e-2
    """Weight decay of AdamW."""
    batch_size: int = 32
    """Comparisons per gradient step."""
    initial_updates: int = 200
    """Gradient steps of the first fit."""
    updates: int = 30
    """Gradient steps of each later fit, which starts from the fitted networks and sees all comparisons so far."""
    window: int | None = None
    """Newest comparisons that a fit sees (first in, first out; all stay in the store); None: all."""
    label_noise: float | None = None
    """Share of answers (0 to below 1) assumed to be given at random. None: 0.1 where people are asked while it trains
    (Christiano et al. 2017, section 2.2.3), else 0."""
    annotator_errors: bool = False
    """Whether to estimate how often each annotator answers the opposite, after each fit, and to use that in place of label_noise:
    for several people of whom some are less careful. Needs some hundred answers to tell them apart."""
    discount: float = 1.0
    """Discount of rewards within a fragment, per step, in the likelihood (1: none)."""
    gpus: float = 0.0
    """GPUs of the reward trainer: 1 for one of its own, a share (as 0.5, with ppo.gpus_per_learner 0.5) to use one with a learner,
    0 to fit on the CPU, which is faster for small networks on vectors."""

    def __post_init__(self) -> None:
        _require_choices(self, "reward_model")
        _require_layers(self.hidden, "reward_model.hidden")
        _require(
            self.use_state or self.use_action or self.use_next_state or self.use_done,
            "reward_model.use_state",
            False,
            "the reward needs at least one input: set one of use_state, use_action, use_next_state, use_done",
        )
        for name in ("ensemble_size", "batch_size", "initial_updates", "updates"):
            value = getattr(self, name)
            _require(value >= 1, f"reward_model.{name}", value, "it must be 1 or more")
        _require(
            self.window is None or self.window >= 1,
            "reward_model.window",
            self.window,
            "it must be 1 or more, or None for all comparisons",
        )
        _require(self.learning_rate > 0, "reward_model.learning_rate", self.learning_rate, "it must be above 0")
        _require(self.weight_decay >= 0, "reward_model.weight_decay", self.weight_decay, "it must be 0 or more")
        noise = self.label_noise
        valid = noise is None or 0 <= noise < 1
        _require(valid, "reward_model.label_noise", noise, "it must be at least 0 and below 1, or None for the default")
        _require(
            not (self.annotator_errors and self.label_noise),
            "reward_model.label_noise",
            self.label_noise,
            "reward_model.annotator_errors takes its place: leave out one of them",
        )
        _require(0 < self.discount <= 1, "reward_model.discount", self.discount, "it must be above 0 and at most 1")
        _require(
            0 <= self.gpus <= 1, "reward_model.gpus", self.gpus, "it must be between 0 and 1: the trainer uses one GPU"
        )

    def for_people(self) -> RewardModelSettings:
        """The same with the noise that answers of people are assumed to have, where none is set."""
        if self.label_noise is not None or self.annotator_errors:
            return self
        return replace(self, label_noise=PEOPLES_NOISE)


PEOPLES_NOISE = 0.1
"""What `RewardModelSettings.label_noise` is for people unless it is set."""


@dataclass(frozen=True)
class PPOSettings:
    """Proximal policy optimisation (RLlib's), on the learned reward."""

    network: PolicyNetwork = "auto"
    """mlp, nature (the DQN paper's CNN), impala (the residual CNN), or auto: nature for images and mlp for vectors."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer of the mlp."""
    num_envs: int = 16
    """Environment copies each runner steps together."""
    num_env_runners: int = 0
    """Ray actors that collect rollouts, spread over the cluster; 0 collects in the run's own process."""
    num_learners: int = 0
    """Ray actors that learn together, each from its share of every minibatch; 0 learns in the run's own process."""
    gpus_per_learner: float = 0.0
    """GPUs of each learner, or of the run's own process where that learns; a share below 1 leaves the rest to others."""
    rollout_length: int = 128
    """Steps of each environment copy per iteration."""
    minibatch_size: int = 256
    """Steps per gradient step."""
    epochs: int = 10
    """Passes over each iteration's steps."""
    learning_rate: float = 1e-3
    """Learning rate of Adam at the start."""
    final_learning_rate: float | None = None
    """Learning rate at total_env_steps, reached linearly; None keeps the first."""
    gamma: float = 0.99
    """Discount of rewards, per step."""
    gae_lambda: float = 0.95
    """λ of generalised advantage estimation."""
    clip: float = 0.2
    """Clipping range of the probability ratio."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this global norm."""
    initial_log_std: float = 0.0
    """For continuous actions: log standard deviation of the policy at the start (actions are scaled to [-1, 1])."""

    def __post_init__(self) -> None:
        _require_choices(self, "ppo")
        _require_layers(self.hidden, "ppo.hidden")
        _require(0 < self.gamma <= 1, "ppo.gamma", self.gamma, "it must be above 0 and at most 1")
        _require(0 <= self.gae_lambda <= 1, "ppo.gae_lambda", self.gae_lambda, "it must be between 0 and 1")
        _require(self.clip > 0, "ppo.clip", self.clip, "it must be above 0")
        for name in ("num_envs", "rollout_length", "minibatch_size", "epochs"):
            value = getattr(self, name)
            _require(value >= 1, f"ppo.{name}", value, "it must be 1 or more")
        for name in ("num_env_runners", "num_learners", "gpus_per_learner"):
            _require(getattr(self, name) >= 0, f"ppo.{name}", getattr(self, name), "it must be 0 or more")
        for name, value in (("minibatch_size", self.minibatch_size), ("rollout_length", self.iteration_env_steps)):
            _require(
                value % max(1, self.num_learners) == 0,
                f"ppo.{name}",
                getattr(self, name),
                f"ppo.num_learners={self.num_learners} learners cannot share {value} steps evenly: make it a multiple",
            )
        _require(self.learning_rate > 0, "ppo.learning_rate", self.learning_rate, "it must be above 0")
        _require(
            self.minibatch_size <= self.iteration_env_steps,
            "ppo.minibatch_size",
            self.minibatch_size,
            f"an iteration has only {self.iteration_env_steps} steps (rollout_length * num_envs * runners)",
        )

    @property
    def iteration_env_steps(self) -> int:
        """Environment steps per iteration, over all runners and environment copies."""
        return self.rollout_length * self.num_envs * max(1, self.num_env_runners)


@dataclass(frozen=True)
class LabellingSettings:
    """The page where people compare clips."""

    annotators: tuple[str, ...] = ("me",)
    """Who labels: each name gets a link of its own. The first one may also weigh what the others say."""
    instructions: str = "Which clip shows better behaviour?"
    """What the page asks."""
    host: str = "127.0.0.1"
    """Address the page's server listens at. Anything but this machine's own is reached by others in its network."""
    port: int = 8765
    """Its port; the next free one where it is taken, and 0 takes any."""
    hosts: tuple[str, ...] = ()
    """Further names (without port) that browsers may call the server by: of a proxy before it, say."""
    lease_seconds: float = 120.0
    """Seconds that a question is kept for whoever was shown it; the page asks for more while somebody looks at it."""
    overlap_share: float = 0.1
    """Share of the questions (0 to 1) that two people are asked, where there are two, to see whether they agree."""
    catch_share: float = 0.03
    """Share of what is shown (0 to 0.5) that are catch pairs, which check the person and train nothing: a clip beside itself, an
    earlier pair the other way round, and clips of very different true return, where it is known."""

    def __post_init__(self) -> None:
        names = self.annotators
        valid = len(names) >= 1 and len(set(names)) == len(names)
        _require(valid, "labelling.annotators", names, "name at least one person, and each once")
        for name in names:
            fits = 1 <= len(name) <= 40 and name.isprintable() and name == name.strip()
            _require(fits, "labelling.annotators", name, "a name has 1 to 40 printable characters")
        _require(0 <= self.port <= 65535, "labelling.port", self.port, "a port is between 0 and 65535")
        _require(self.lease_seconds >= 5, "labelling.lease_seconds", self.lease_seconds, "it must be 5 seconds or more")
        _require(
            0 <= self.overlap_share <= 1, "labelling.overlap_share", self.overlap_share, "it is a share between 0 and 1"
        )
        _require(
            0 <= self.catch_share <= 0.5, "labelling.catch_share", self.catch_share, "it is a share between 0 and 0.5"
        )


COMPARISONS_PER_CLIP = 10
"""Comparisons, at most, for each clip that fits into a training's steps. Published ones are at 0.1 and less; far beyond, it is a
slip of the keyboard that would take days of somebody's answers."""


@dataclass(frozen=True)
class Experiment:
    """One experiment: an environment, a budget, and the settings of every part."""

    environment: str = "Pendulum-v1"
    """A gymnasium id ("module:Id-v0" imports the module first), rlhf_ray/CartPoleFixed-v0, HopperFixed-v0, MovingDot-v0 or Pong-v0,
    or procgen/GAME-easy and the like."""
    total_env_steps: int = 100_000
    """Environment steps in all, those of the random policy and of exploratory clips included. Never exceeded."""
    seed: int = 0
    """Seed of everything random. The same seed and settings give the same run."""
    checkpoint_every: int = 20
    """Iterations between checkpoints. At each, the episodes under way are cut short and all generators are seeded anew, so that a
    run continued from there goes on as one that never stopped."""
    fragments: FragmentSettings = field(default_factory=FragmentSettings)
    preferences: PreferenceSettings = field(default_factory=PreferenceSettings)
    reward_model: RewardModelSettings = field(default_factory=RewardModelSettings)
    ppo: PPOSettings = field(default_factory=PPOSettings)
    labelling: LabellingSettings = field(default_factory=LabellingSettings)

    def __post_init__(self) -> None:
        seeds = isinstance(self.seed, int) and 0 <= self.seed < 2**31
        _require(seeds, "seed", self.seed, "it must be a whole number from 0 to 2147483647")
        _require(isinstance(self.environment, str), "environment", self.environment, "it must be a name")
        _require(self.checkpoint_every >= 1, "checkpoint_every", self.checkpoint_every, "it must be 1 or more")
        _require(
            self.ppo.rollout_length >= self.fragments.length,
            "fragments.length",
            self.fragments.length,
            f"fragments are cut from rollouts of ppo.rollout_length={self.ppo.rollout_length} steps: "
            "shorten the fragments or lengthen the rollouts",
        )
        clips = self.total_env_steps // self.fragments.length
        _require(
            self.preferences.comparisons <= COMPARISONS_PER_CLIP * max(1, clips),
            "preferences.comparisons",
            self.preferences.comparisons,
            f"total_env_steps={self.total_env_steps} make about {clips} clips of {self.fragments.length} steps, and each would be "
            f"asked about {2 * self.preferences.comparisons // max(1, clips)} times: ask for fewer (hundreds are usual) or raise "
            "total_env_steps",
        )
        exploration = self.preferences.rounds * self.fragments.between_rounds_env_steps(self.preferences.asks_people)
        needed = self.fragments.initial_env_steps + exploration + self.ppo.iteration_env_steps
        _require(
            self.total_env_steps >= needed,
            "total_env_steps",
            self.total_env_steps,
            f"the first fragments (fragments.initial_env_steps={self.fragments.initial_env_steps}), exploration "
            f"({exploration}) and one iteration of PPO ({self.ppo.iteration_env_steps}) take {needed}",
        )


def to_json(settings: Any) -> dict[str, Any]:
    """Any of the settings above as plain JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings)))
    return plain


def from_json(kind: type[_S], values: dict[str, Any]) -> _S:
    """The inverse of `to_json`. A name that ``kind`` does not have is a `SettingError` that lists those it has."""
    if not isinstance(values, dict):
        raise SettingError(f"{kind.__name__} is {values!r}; it must be an object of settings and their values.")
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise SettingError(f"{kind.__name__} has no setting {', '.join(unknown)}; it has {', '.join(known)}.")
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        nested = _GROUPS.get(name) if kind is Experiment else None
        if nested is not None:
            value = from_json(nested, value)
        arguments[name] = tuple(value) if isinstance(value, list) else value
    return kind(**arguments)


_GROUPS: dict[str, type] = {
    "fragments": FragmentSettings,
    "preferences": PreferenceSettings,
    "reward_model": RewardModelSettings,
    "ppo": PPOSettings,
    "labelling": LabellingSettings,
}


def save_experiment(experiment: Experiment, path: Path) -> None:
    """Write ``experiment`` to ``path`` as JSON."""
    path.write_text(json.dumps(to_json(experiment), indent=2) + "\n")


def load_experiment(path: Path) -> Experiment:
    """The experiment that `save_experiment` wrote.

    Raises:
        SettingError: it is missing, damaged, or something else's; names the file.
    """
    try:
        return from_json(Experiment, json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, json.JSONDecodeError):
            why = f"it is cut off or no JSON: {why}"
        raise SettingError(
            f"{path} cannot be read as settings ({why}). Name a run's config.json or a sweep's best.json, or bring this "
            "one back from a copy."
        ) from error
