"""One experiment: an environment, a budget, and the settings of every part; read from JSON and written to it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings.checks import require
from rlhf_ray.settings.fragments import FragmentSettings, ResolvedFragments
from rlhf_ray.settings.labelling import LabellingSettings
from rlhf_ray.settings.ppo import PPOSettings
from rlhf_ray.settings.preferences import PreferenceSettings
from rlhf_ray.settings.reward_model import RewardModelSettings

_S = TypeVar("_S")

PARTS = {"preferences": ("teacher", "gatherer", "selection"), "reward_model": ("network", "loss")}
"""Settings that name a part: one in the box, or a user's own as ``module:Name``."""

COMPARISONS_PER_CLIP = 10
"""Comparisons, at most, for each clip that fits into a training's steps. Published ones are at 0.1 and less; far beyond, it is a
slip of the keyboard that would take days of somebody's answers."""


@dataclass(frozen=True)
class Experiment:
    """One experiment: an environment, a budget, and the settings of every part."""

    environment: str = "Pendulum-v1"
    """A gymnasium id ("module:Id-v0" imports the module first; "fixed/Id-v0" has all episodes last as long as the time limit lets
    them), rlhf_ray/CartPoleFixed-v0, HopperFixed-v0, MovingDot-v0 or Pong-v0, ALE/Breakout-v5 or another
    game of Atari's, or procgen/GAME-easy and the like."""
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
        require(seeds, "seed", self.seed, "it must be a whole number from 0 to 2147483647")
        require(isinstance(self.environment, str), "environment", self.environment, "it must be a name")
        require(self.checkpoint_every >= 1, "checkpoint_every", self.checkpoint_every, "it must be 1 or more")
        fragments = self.resolved_fragments()
        require(
            self.ppo.rollout_length >= fragments.length,
            "fragments.length",
            fragments.length,
            f"fragments are cut from rollouts of ppo.rollout_length={self.ppo.rollout_length} steps: "
            "shorten the fragments or lengthen the rollouts",
        )
        clips = self.total_env_steps // fragments.length
        require(
            self.preferences.comparisons <= COMPARISONS_PER_CLIP * max(1, clips),
            "preferences.comparisons",
            self.preferences.comparisons,
            f"total_env_steps={self.total_env_steps} make about {clips} clips of {fragments.length} steps, and each would be "
            f"asked about {2 * self.preferences.comparisons // max(1, clips)} times: ask for fewer (hundreds are usual) or raise "
            "total_env_steps",
        )
        needed, what = env_steps_needed(fragments, self.preferences, self.ppo.iteration_env_steps)
        require(self.total_env_steps >= needed, "total_env_steps", self.total_env_steps, what)

    def own_names(self) -> list[str]:
        """The names, ``module:Name``, of the environment and of parts that are a user's own."""
        parts = [getattr(getattr(self, group), name) for group, names in PARTS.items() for name in names]
        return [name for name in (self.environment, *parts) if ":" in name]

    def resolved_fragments(self, horizon: int | None = None) -> ResolvedFragments:
        """`FragmentSettings.resolved` for this experiment; the first guess where the environment's ``horizon`` is not known yet."""
        of = self.ppo.rollout_length
        return self.fragments.resolved(horizon=horizon, total_env_steps=self.total_env_steps, rollout=of)


def env_steps_needed(fragments: ResolvedFragments, preferences: PreferenceSettings, iteration: int) -> tuple[int, str]:
    """The environment steps that a training takes at least, with one ``iteration`` of PPO, and what they are for."""
    rounds = preferences.rounds
    needed = (
        fragments.initial_env_steps + rounds * fragments.between_rounds_env_steps(preferences.asks_people) + iteration
    )
    parts = [f"the first fragments (fragments.initial_env_steps={fragments.initial_env_steps})"]
    if fragments.exploration_env_steps:
        parts.append(
            f"exploration in preferences.rounds={rounds} (fragments.exploration_env_steps={fragments.exploration_env_steps})"
        )
    if preferences.asks_people:
        parts.append(
            f"filming for people in preferences.rounds={rounds} (fragments.film_env_steps={fragments.filmed_env_steps})"
        )
    return needed, f"{', '.join(parts)} and one iteration of PPO ({iteration}) take {needed}: raise it or lower those"


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
