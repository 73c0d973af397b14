"""Settings for fragments: the short segments of behaviour that are compared."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rlhf_ray.settings.checks import Bounds, Count, Discount, Natural, Share, changeable, check_values, require

Auto = Literal["auto"]


@dataclass(frozen=True)
class FragmentSettings:
    """How fragments (short segments of behaviour) are cut from the agent's rollouts."""

    length: Count | Auto = "auto"
    """Environment steps per fragment. Must fit into an episode and into a rollout (the agent's rollout_length). auto: a twentieth
    of an episode, between 10 and 50 steps."""
    start_share: Share | Auto = changeable("auto")
    """Fraction (0 to 1) of the compared fragments that are episode starts; the others start anywhere. Episode starts are rare, so
    each is compared more often. auto: 0.5 if initial_env_steps is auto (an agent that has fallen often stays down, and two such
    fragments are a tie), otherwise 0."""
    pool: Annotated[int, Bounds(2)] | Auto = "auto"
    """Number of fragments from which pairs are drawn; new fragments replace the oldest. With people and films of them: 9 % of that
    number, and at least 36. auto: 4,000 (of images, 500), and no more of a rollout than fit into it side by side, so that they
    come from much of what was done. A number: as many of each rollout as there are; a small pool shows the newest policy alone."""
    max_policy_age: Natural | None = None
    """Maximum age of a fragment from which pairs are drawn: how many versions (training iterations) its policy may be behind the
    newest in the pool. Random actions count as one version before the first policy. None: no limit but the size of the pool."""
    initial_env_steps: int | Auto = "auto"
    """Environment steps with random actions for the first fragments; count towards total_env_steps. Steps of the budget that do not
    fill an iteration are added. auto: ten episodes, at least 2,000 steps and at most a tenth of total_env_steps; repeats each
    random action for 1 to 25 steps, so that fragments show more than jitter; and while nearly all answers are ties, collects more
    fragments and saves labels until answers differ."""
    exploration_env_steps: int | float = 0
    """Environment steps before each later round, taken by the policy mixed with random actions, to get fragments of behaviour that
    the policy alone does not show: a number, or the share of total_env_steps that all of them take together, such as 0.05. Count
    towards total_env_steps."""
    random_action_share: Share = 0.3
    """Probability (0 to 1) of a random action in the exploration steps."""
    switch_probability: Discount = 1.0
    """Probability (above 0, up to 1) with which each exploration step draws anew, with random_action_share, whether its action is
    random. 1: each action independently. Less: stretches of random actions and of the policy, such as 0.5, two steps on average
    between draws, in `imitation`."""
    film_env_steps: Count = 200
    """With people as teachers: environment steps of the newest policy that are rendered before each later round; in asynchronous
    mode, only before rounds for which annotators need new clips. Environments without image observations are rendered only in
    these steps. Count towards total_env_steps."""

    def __post_init__(self) -> None:
        check_values(self, "fragments")
        length = 1 if self.length == "auto" else self.length
        require(
            self.initial_env_steps == "auto" or self.initial_env_steps >= 2 * length,
            "fragments.initial_env_steps",
            self.initial_env_steps,
            f"the first comparison needs two fragments of fragments.length={self.length} steps; set it to {2 * length} or more",
        )
        exploration = self.exploration_env_steps
        require(
            exploration >= 0 if isinstance(exploration, int) else 0 < exploration < 1 or exploration == 0,
            "fragments.exploration_env_steps",
            exploration,
            "it must be 0 or more, or a share of the training's steps between 0 and 1",
        )

    def resolved(
        self,
        *,
        horizon: int | None,
        total_env_steps: int,
        rollout: int | None = None,
        rounds: int = 0,
        images: bool = False,
    ) -> ResolvedFragments:
        """These settings with numbers in place of auto and of shares.

        Args:
            horizon: maximum episode length, in steps; None if unknown.
            total_env_steps: the run's total environment steps.
            rollout: steps of each rollout that fragments are cut from; None if unknown.
            rounds: number of labelling rounds after the first.
            images: whether observations are images.
        """
        length, initial, share, exploration = (
            getattr(self, name) for name in ("length", "initial_env_steps", "start_share", "exploration_env_steps")
        )
        varied = initial == "auto" or getattr(self, "varied", False)
        if length == "auto":
            half = None if initial == "auto" else max(1, initial // 2)
            most = [steps for steps in (50, horizon, rollout, half) if steps is not None]
            length = min(25 if horizon is None else max(horizon // 20, 10), *most)
        if initial == "auto":
            initial = max(2 * length, min(max(2_000, 10 * (horizon or 0)), total_env_steps // 10))
        if share == "auto":
            share = STARTS if varied else 0.0
        if isinstance(exploration, float):
            exploration = round(exploration * total_env_steps / rounds) if rounds else 0
        own: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(FragmentSettings)}
        own |= {"length": length, "initial_env_steps": initial, "start_share": share}
        apart = self.pool == "auto" or getattr(self, "apart", False)
        if self.pool == "auto":
            own["pool"] = POOL_OF_IMAGES if images else POOL
        return ResolvedFragments(**own | {"exploration_env_steps": exploration}, varied=varied, apart=apart)


STARTS = 0.5
"""`FragmentSettings.start_share` if both it and initial_env_steps are auto."""


POOL, POOL_OF_IMAGES = 4_000, 500
"""`FragmentSettings.pool` if it is auto."""


@dataclass(frozen=True)
class ResolvedFragments(FragmentSettings):
    """`FragmentSettings` with numbers in place of auto."""

    length: int = 25
    pool: int = POOL
    initial_env_steps: int = 2_000
    start_share: float = 0.0
    exploration_env_steps: int = 0
    varied: bool = False
    """Whether `initial_env_steps` was auto: random actions are repeated, and labels are saved while answers are ties."""
    apart: bool = False
    """Whether `pool` was auto: few enough fragments are cut that each step is in about one."""

    def between_rounds_env_steps(self, films: bool) -> int:
        """Environment steps outside the agent's iterations before each later round: for exploration, and for ``films``."""
        return self.exploration_env_steps + (self.filmed_env_steps if films else 0)

    @property
    def filmed_env_steps(self) -> int:
        """Environment steps rendered for people before each later round: at least two fragments."""
        return max(self.film_env_steps, 2 * self.length)
