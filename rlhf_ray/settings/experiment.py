"""One experiment: the environment, the step budget and the settings of every part; read from and written to JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings.agents import AgentSettings, PPOSettings, SACSettings
from rlhf_ray.settings.checks import BelowOne, Bounds, Count, check_values, require, require_known
from rlhf_ray.settings.fragments import FragmentSettings, ResolvedFragments
from rlhf_ray.settings.machine import MachineSettings
from rlhf_ray.settings.preferences import LabellingSettings, PreferenceSettings
from rlhf_ray.settings.reward_model import RewardModelSettings

_S = TypeVar("_S")

AgentName = Literal["ppo", "sac"]  # each has its group of settings below, and an entry in `rlhf_ray.rllib.choice`

PARTS = {
    "preferences": ("teacher", "annotators", "gatherer", "selection", "schedule"),
    "reward_model": ("network", "loss", "methods"),
}
"""Settings that name a part: a built-in one, or your own as ``module:Name``."""

COMPARISONS_PER_CLIP = 10
"""Maximum number of comparisons per fragment that fits into the step budget. Published experiments use 0.1 or less; a far larger
number is a typo that would cost days of labelling."""


@dataclass(frozen=True)
class Experiment:
    """One experiment: the environment, the step budget and the settings of every part."""

    environment: str = "Pendulum-v1"
    """Environment to train on: a gymnasium id ("module:Id-v0" imports the module first; "fixed/Id-v0" extends every episode to the
    time limit); rlhf_ray/CartPoleFixed-v0, HopperFixed-v0, MovingDot-v0 or Pong-v0; an Atari game such as ALE/Breakout-v5; a
    Procgen game as procgen/GAME-easy; or one of EnvPool's, such as envpool/WalkerWalk-v1 or envpool/MetaWorld/DoorOpen-v3."""
    agent: AgentName = "ppo"
    """The algorithm that trains the agent: ppo or sac, each with its group of settings. sac reuses past experience and needs fewer
    environment steps; it takes vector observations, and Discrete or bounded Box actions."""
    total_env_steps: int = 400_000
    """Total environment steps, including those of the random policy and of exploration. Never exceeded."""
    seed: Annotated[int, Bounds(0, 2**31 - 1)] = 0
    """Random seed. In synchronous mode, the same seed and settings give the same run."""
    checkpoint_every: Count = 20
    """Training iterations between checkpoints. Each checkpoint cuts off the current episodes and reseeds all random generators, so
    that a resumed run continues exactly like an uninterrupted one."""
    reward_mix: BelowOne = 0.0
    """Share of the environment's own reward in what the agent learns from: (1 - reward_mix) times the learned reward, which has
    standard deviation 1 per step, plus reward_mix times the environment's, in its own unit. 0: the learned reward alone."""
    fragments: FragmentSettings = field(default_factory=FragmentSettings)
    preferences: PreferenceSettings = field(default_factory=PreferenceSettings)
    reward_model: RewardModelSettings = field(default_factory=RewardModelSettings)
    ppo: PPOSettings = field(default_factory=PPOSettings)
    sac: SACSettings = field(default_factory=SACSettings)
    labelling: LabellingSettings = field(default_factory=LabellingSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)

    def __post_init__(self) -> None:
        check_values(self)
        fragments = self.resolved_fragments()
        require(
            self.agent_settings.rollout_length >= fragments.length,
            "fragments.length",
            fragments.length,
            f"it must be at most {self.agent}.rollout_length={self.agent_settings.rollout_length}, because fragments are cut from "
            "rollouts: shorten the fragments or lengthen the rollouts",
        )
        needed, what = env_steps_needed(fragments, self.preferences, self.agent_settings.iteration_env_steps)
        require(self.total_env_steps >= needed, "total_env_steps", self.total_env_steps, what)

    def check_questions(self, answered: int = 0) -> None:
        """Check that the run can ask about its comparisons, of which ``answered`` have an answer before it starts.

        Raises:
            SettingError: there are far too many for the fragments that its environment steps yield.
        """
        length = self.resolved_fragments().length
        clips = max(1, self.total_env_steps // length)
        asked = max(0, self.preferences.comparisons - answered)
        stored = f"of which {answered} are answered; " if answered else ""
        require(
            asked <= COMPARISONS_PER_CLIP * clips,
            "preferences.comparisons",
            self.preferences.comparisons,
            f"{stored}total_env_steps={self.total_env_steps} yields about {clips} fragments of {length} steps, so each would be "
            f"compared {2 * asked // clips} times: lower it (hundreds are usual) or raise total_env_steps",
        )

    @property
    def agent_settings(self) -> AgentSettings:
        """The settings of the experiment's agent."""
        settings: AgentSettings = getattr(self, self.agent)
        return settings

    def changed(self, **changes: Any) -> Experiment:
        """This experiment with other values, those of a group as a dictionary: ``changed(seed=1, ppo={"gamma": 0.9})``."""
        for name, value in changes.items():
            if isinstance(value, dict):
                changes[name] = dataclasses.replace(getattr(self, name), **value)
        return dataclasses.replace(self, **changes)

    def with_agent_settings(self, **changes: Any) -> Experiment:
        """This experiment with other settings of its agent."""
        return self.changed(**{self.agent: changes})

    def own_names(self) -> list[str]:
        """The names ``module:Name`` of the user's own parts and environment."""
        environment = [self.environment] if ":" in self.environment else []
        return environment + [name for group in PARTS for name in own_parts(group, getattr(self, group))]

    def resolved_fragments(self, horizon: int | None = None, *, images: bool = False) -> ResolvedFragments:
        """`FragmentSettings.resolved` for this experiment; an estimate while the environment's ``horizon`` is unknown."""
        rollout, rounds = self.agent_settings.rollout_length, self.preferences.rounds
        steps = self.total_env_steps
        return self.fragments.resolved(
            horizon=horizon, total_env_steps=steps, rollout=rollout, rounds=rounds, images=images
        )


def own_parts(group: str, settings: PreferenceSettings | RewardModelSettings) -> list[str]:
    """The names ``module:Name`` of the user's own parts in one group of `PARTS`."""
    values = [getattr(settings, name) for name in PARTS[group]]
    parts = [part for value in values for part in ((value,) if isinstance(value, str) else value)]
    # As in my_parts:Mine+k_center, and the annotator my_parts:Mine=2@30.
    joined = (name for part in parts for name in re.split("[=@]", part)[0].split("+"))
    return [name for name in joined if ":" in name]


def env_steps_needed(
    fragments: ResolvedFragments, preferences: PreferenceSettings, iteration: int, *, films: bool | None = None
) -> tuple[int, str]:
    """The minimum environment steps of a run with one ``iteration`` of the agent, and a text that says what they are for.

    Args:
        fragments: fragment settings.
        preferences: preference settings.
        iteration: environment steps of an iteration.
        films: whether fragments are filmed for the gatherer; None: if people answer. A gatherer of your own may want films too.
    """
    films = preferences.asks_people if films is None else films
    rounds = preferences.rounds
    pretraining = preferences.pretraining_iterations(iteration) * iteration
    between = rounds * fragments.between_rounds_env_steps(films)
    needed = pretraining + fragments.initial_env_steps + between + iteration
    viewers, explored = "people" if preferences.asks_people else "the gatherer", fragments.exploration_env_steps
    in_rounds = f"in preferences.rounds={rounds}"
    parts = {
        f"pretraining (preferences.pretraining_env_steps={preferences.pretraining_env_steps})": pretraining,
        f"first fragments (fragments.initial_env_steps={fragments.initial_env_steps})": True,
        f"exploration {in_rounds} (fragments.exploration_env_steps={explored})": explored,
        f"filming for {viewers} {in_rounds} (fragments.film_env_steps={fragments.filmed_env_steps})": films,
    }
    listed = ", ".join(part for part, there in parts.items() if there)
    return (
        needed,
        f"{listed} and one iteration of the agent ({iteration}) need {needed} steps: raise it to {needed} or more, or lower those; "
        "`rlhf-ray train … --fast` tries anything out in seconds",
    )


def to_json(settings: Any) -> dict[str, Any]:
    """Convert a settings object to plain JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings)))
    return plain


def from_json(kind: type[_S], values: dict[str, Any]) -> _S:
    """The inverse of `to_json`. An unknown setting raises a `SettingError` with the nearest ones."""
    if not isinstance(values, dict):
        raise SettingError(f"{kind.__name__} is {values!r}; it must be an object of settings and their values.")
    groups = _GROUPS if kind is Experiment else {}
    inside = [f"{group}.{name}" for group, part in groups.items() for name in part.__dataclass_fields__]
    own_name = next((group for group, part in _GROUPS.items() if part is kind), kind.__name__)
    require_known(values, [f.name for f in dataclasses.fields(kind)], own_name, inside)  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        value = from_json(groups[name], value) if name in groups else value
        arguments[name] = tuple(value) if isinstance(value, list) else value
    return kind(**arguments)


_GROUPS: dict[str, Any] = {
    name: kind for name, kind in get_type_hints(Experiment).items() if dataclasses.is_dataclass(kind)
}


def save_experiment(experiment: Experiment, path: Path) -> None:
    """Write ``experiment`` to ``path`` as JSON."""
    path.write_text(json.dumps(to_json(experiment), indent=2) + "\n")


def load_experiment(path: Path) -> Experiment:
    """Read the experiment that `save_experiment` wrote.

    Raises:
        SettingError: the file is missing, damaged or not an experiment; the message names it.
    """
    try:
        return from_json(Experiment, json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        if isinstance(error, json.JSONDecodeError):
            why = f"truncated or not JSON: {why}"
        raise SettingError(
            f"Can't read settings from {path} ({why}). Give a run's config.json or a sweep's best.json, or restore this "
            "file from a backup."
        ) from error
