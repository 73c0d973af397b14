"""How clips are cut from what the agent does."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from rlhf_ray.settings.checks import require

Auto = Literal["auto"]


@dataclass(frozen=True)
class FragmentSettings:
    """How clips are cut from what the agent does."""

    length: int | Auto = "auto"
    """Steps per fragment. Must fit into an episode and into a rollout (ppo.rollout_length). auto: a twentieth of an episode, from
    10 to 50 steps."""
    start_share: float | Auto = "auto"
    """Share of the fragments asked about (0 to 1) that are the beginnings of episodes; the rest begin anywhere. Beginnings are
    few, so that each is asked about more often, against others. auto: a quarter where initial_env_steps is auto (what falls never
    rises again, and two clips of what has fallen are a tie), else none."""
    pool: int = 400
    """Fragments kept to choose pairs from: those of the newest rollouts replace the oldest."""
    initial_env_steps: int | Auto = "auto"
    """Environment steps taken with random actions to make the first fragments. They count towards total_env_steps. auto: ten
    episodes, from 2,000 steps to a tenth of all; random actions are held for 1 to 25 steps, so that the clips are of more than
    trembling; and where nearly all answers are ties, more clips are gathered and labels held back until answers differ."""
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
        for name, value in (("length", self.length), ("initial_env_steps", self.initial_env_steps)):
            valid = isinstance(value, int) or value == "auto"
            require(valid, f"fragments.{name}", value, "it is a number of steps, or auto")
        length = 1 if self.length == "auto" else self.length
        require(length >= 1, "fragments.length", self.length, "a fragment has at least 1 step")
        share = self.start_share
        valid = share == "auto" or (isinstance(share, int | float) and 0 <= share <= 1)
        require(valid, "fragments.start_share", share, "it is a share between 0 and 1, or auto")
        require(self.pool >= 2, "fragments.pool", self.pool, "a pair needs at least 2 fragments")
        require(
            self.initial_env_steps == "auto" or self.initial_env_steps >= 2 * length,
            "fragments.initial_env_steps",
            self.initial_env_steps,
            f"the first pair needs two fragments of fragments.length={self.length} steps, so set it to at least {2 * length}",
        )
        require(
            self.exploration_env_steps >= 0,
            "fragments.exploration_env_steps",
            self.exploration_env_steps,
            "it must be 0 or more",
        )
        require(self.film_env_steps >= 1, "fragments.film_env_steps", self.film_env_steps, "it must be 1 or more")
        require(
            0 <= self.random_action_share <= 1,
            "fragments.random_action_share",
            self.random_action_share,
            "it is a share between 0 and 1",
        )

    def resolved(self, *, horizon: int | None, total_env_steps: int, rollout: int | None = None) -> ResolvedFragments:
        """The same with numbers in place of auto.

        Args:
            horizon: steps of the environment's episodes, at most; None where that is not known.
            total_env_steps: of the whole training.
            rollout: steps of each rollout that fragments are cut from.
        """
        if self.length == "auto":
            most = [steps for steps in (50, horizon, rollout) if steps is not None]
            if self.initial_env_steps != "auto":
                most.append(max(1, self.initial_env_steps // 2))
            length = min(25 if horizon is None else max(horizon // 20, 10), *most)
        else:
            length = self.length
        if self.initial_env_steps == "auto":
            initial = max(2 * length, min(max(2_000, 10 * (horizon or 0)), total_env_steps // 10))
        else:
            initial = self.initial_env_steps
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(FragmentSettings)}
        varied = self.initial_env_steps == "auto" or getattr(self, "varied", False)
        share = (STARTS if varied else 0.0) if self.start_share == "auto" else self.start_share
        chosen = {"length": length, "initial_env_steps": initial, "start_share": share}
        return ResolvedFragments(**own | chosen, varied=varied)


STARTS = 0.25
"""What `FragmentSettings.start_share` is where that and initial_env_steps are auto."""


@dataclass(frozen=True)
class ResolvedFragments(FragmentSettings):
    """`FragmentSettings` as the parts of a run know them: with numbers in place of auto."""

    length: int = 25
    initial_env_steps: int = 2_000
    start_share: float = 0.0
    varied: bool = False
    """Whether the first clips are made and labels are spent as `initial_env_steps` says of auto."""

    def between_rounds_env_steps(self, people: bool) -> int:
        """Environment steps before each later round that are not PPO's: exploration, and filming where ``people`` are asked."""
        return self.exploration_env_steps + (self.filmed_env_steps if people else 0)

    @property
    def filmed_env_steps(self) -> int:
        """Environment steps before each later round that are filmed for people: two clips at least."""
        return max(self.film_env_steps, 2 * self.length)
