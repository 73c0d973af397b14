"""Record episodes of a mixture of policies, or an agent's internals, in this process or over Ray actors: the same bytes."""

from __future__ import annotations

import functools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium as gym

from rlhf_ray.actors.episode_player import EpisodePlayer, InsidePlayer
from rlhf_ray.actors.executor import Actor, Executor, LocalExecutor
from rlhf_ray.actors.ray_executor import players
from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.recorded import Block, InsidePlan, write_blocks
from rlhf_ray.agents.saved import PolicySource
from rlhf_ray.agents.true_return import LONGEST, LastResort, ended, warn_of_carried_state
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.recording_writer import RecordingWriter
from rlhf_ray.data.recordings import Recording
from rlhf_ray.data.seeds import generator
from rlhf_ray.data.transitions import GAMMA, RecordedEpisode
from rlhf_ray.envs import EnvCreator, check_spaces
from rlhf_ray.envs.batches import BatchCreator
from rlhf_ray.settings.checks import Count, Share, check_values

POLICIES = ("policy", "expert", "random", "epsilon")

AHEAD = 2
"""Episodes, or blocks of them, that each actor has to play next, so that it never waits."""

Watch = Callable[[Counter[str], Counter[str], float, float | None], None]
"""Called after each episode with the steps and episodes of each policy so far, the mean true return of the new episodes, and the
share of them that succeeded; None if the environment doesn't say."""


@dataclass(frozen=True)
class RecordingPlan:
    """What to record. The episodes depend on nothing else.

    Attributes:
        environment: a name for `rlhf_ray.envs.make_env`.
        mix: the share of the steps of each policy, which need not add up to 1. Names are those of `EpisodePlayer`.
        seed: seeds episodes and actions.
        episodes: number of episodes; None with ``env_steps``.
        env_steps: number of steps after which the last episode ends; None with ``episodes``. Episodes of an environment without a
            time limit are cut to exactly this number.
        epsilon: share of random actions of the policy ``epsilon``.
        policy: makes the policy ``policy``; None if there is none.
        gamma: discount factor of the return that normalises rewards.

    Raises:
        SettingError: the mixture names an unknown or unavailable policy, or a weight or number is invalid.
    """

    environment: str
    mix: Mapping[str, float]
    seed: int = 0
    episodes: Count | None = None
    env_steps: Count | None = None
    epsilon: Share = 0.1
    policy: PolicySource | None = None
    gamma: float = GAMMA

    def __post_init__(self) -> None:
        for name, weight in self.mix.items():
            if name not in POLICIES:
                raise SettingError(f"mix names the policy {name!r}; choose from {', '.join(POLICIES)}.")
            if not 0 < weight < float("inf"):
                raise SettingError(f"mix gives {name} the weight {weight:g}; it must be above 0.")
        if not self.mix:
            raise SettingError("mix is empty; name a policy, for example random=1.")
        if "policy" in self.mix and self.policy is None:
            raise SettingError(
                "mix names the policy 'policy', which only a run has; give a run folder, or use expert or random."
            )
        if (self.episodes is None) == (self.env_steps is None):
            raise SettingError("Set either episodes or env_steps, to say how much to record.")
        check_values(self)

    def about(self, env: gym.Env[Any, Any]) -> dict[str, Any]:
        """Return the plan as JSON values, for a recording's manifest.

        Raises:
            SettingError: the environment has no expert, but the mixture needs one.
        """
        wants = "expert" in self.mix or ("epsilon" in self.mix and self.policy is None)
        if wants and not hasattr(env.unwrapped, "expert"):
            raise SettingError(
                f"{self.environment} has no scripted expert (a method expert(rng) of the environment), which the mixture needs; "
                "use random=1, or record a run's policy."
            )
        about: dict[str, Any] = {
            "environment": self.environment,
            "policies": list(self.mix),
            "mix": dict(self.mix),
            "seed": self.seed,
            "episodes": self.episodes,
            "env_steps": self.env_steps,
        }
        if "epsilon" in self.mix:
            about["epsilon"] = self.epsilon
        if self.policy is not None:
            about["policy"] = self.policy.digest()
        if (grid := getattr(env.unwrapped, "grid", None)) is not None:
            about["grid"] = [int(size) for size in grid]
        return about

    @property
    def longest(self) -> int:
        """The most steps of an episode in an environment without a time limit: each policy gets its share of ``env_steps``."""
        if self.env_steps is None:
            return LONGEST
        return min(LONGEST, math.ceil(self.env_steps * min(self.mix.values()) / sum(self.mix.values())))

    def turn(self, steps: Mapping[str, float]) -> str:
        """Return whose turn it is: the policy that is furthest behind its share of the steps."""
        return min(self.mix, key=lambda name: steps[name] / self.mix[name])

    def over(self, episodes: int, steps: int) -> bool:
        """Return whether that is enough."""
        return steps >= self.env_steps if self.env_steps is not None else episodes >= (self.episodes or 0)


def _check_recordable(spaces: tuple[gym.Space[Any], gym.Space[Any]], environment: str) -> None:
    """Check that a recording can hold an environment's observations and actions: those that train takes, and all other arrays."""
    numbers = (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
    boxes = [space for space in spaces if isinstance(space, gym.spaces.Box)]
    if not all(space.shape and all(space.shape) for space in boxes) or not all(
        isinstance(space, (*numbers, gym.spaces.Box)) for space in spaces
    ):
        check_spaces(*spaces, environment)


def record(plan: RecordingPlan, out: Path, *, actors: int = 0, watch: Watch = lambda *so_far: None) -> int:
    """Record whole episodes.

    Args:
        plan: what to record.
        out: the folder of a recording, which an interrupted one with the same plan continues; or an ``.npz`` file of
            demonstrations, written at the end.
        actors: number of Ray actors that play; with 0 or 1, this process does, without Ray.
        watch: called after each episode.

    Returns:
        The number of steps recorded before and now.

    Raises:
        SettingError: ``out`` holds something else, or the environment's spaces can't be recorded.
    """
    make_env = functools.partial(_make_env, EnvCreator(plan.environment), plan.longest)
    warn_of_carried_state(plan.environment)
    env = make_env()
    try:
        spaces, endless = (env.observation_space, env.action_space), isinstance(env, LastResort)
        _check_recordable(spaces, plan.environment)
        about = plan.about(env)
    finally:
        env.close()  # type: ignore[no-untyped-call]
    steps: Counter[str] = Counter()
    episodes: Counter[str] = Counter()
    kept: list[RecordedEpisode] = []
    writer: RecordingWriter | None = None
    if out.suffix != ".npz":
        writer = RecordingWriter(out, *spaces, about, plan.gamma)
        before = Recording(out)
        steps, episodes = before.steps_of_policies(), Counter(before.policies)
    returns: list[float] = []
    succeeded: list[bool | None] = []
    for episode in _episodes(plan, make_env, actors, steps, episodes):
        if endless and plan.env_steps is not None:
            episode = episode.first(plan.env_steps - steps.total())
        steps[episode.policy] += len(episode.trajectory)
        episodes[episode.policy] += 1
        returns.append(float(episode.trajectory.rewards.sum()))
        succeeded.append(episode.succeeded)
        if writer is not None:
            writer.add(episode)
        else:
            kept.append(episode)
        said = any(success is not None for success in succeeded)
        watch(steps, episodes, fmean(returns), fmean(map(bool, succeeded)) if said else None)
    if writer is not None:
        writer.finish()
    else:
        Demonstrations.of([each.trajectory for each in kept]).save(out, spaces)
    return steps.total()


def _make_env(creator: EnvCreator, longest: int) -> gym.Env[Any, Any]:
    return ended(creator({}), longest)


def _episodes(
    plan: RecordingPlan,
    make_env: Callable[[], gym.Env[Any, Any]],
    actors: int,
    steps: Mapping[str, int],
    episodes: Mapping[str, int],
) -> Iterator[RecordedEpisode]:
    """Yield the episodes after the first ``episodes`` of each policy, which had ``steps`` steps."""
    if plan.over(sum(episodes.values()), sum(steps.values())):
        return
    arguments = (make_env, plan.seed, plan.epsilon, plan.policy)
    if actors <= 1:
        here = LocalExecutor()
        yield from _played(plan, here, [here.start(EpisodePlayer, "player", *arguments)], 1, steps, episodes)
        return
    with players(EpisodePlayer, actors, *arguments) as (ray, playing):
        yield from _played(plan, ray, playing, AHEAD * actors, steps, episodes)


def _played(
    plan: RecordingPlan,
    executor: Executor,
    actors: Sequence[Actor[EpisodePlayer]],
    ahead: int,
    steps_before: Mapping[str, int],
    episodes_before: Mapping[str, int],
) -> Iterator[RecordedEpisode]:
    """Yield episodes in the order of `RecordingPlan.turn`, which needs the length of each; ``ahead`` are played before that."""
    steps, episodes = Counter(steps_before), Counter(episodes_before)
    playing: dict[tuple[str, int], tuple[int, Any]] = {}
    while not plan.over(episodes.total(), steps.total()):
        # The next ones if episodes are as long as the mean of their policy's. An episode played too early is used later.
        expected: Counter[str] = Counter(steps)
        numbers = Counter(episodes)
        for i in range(ahead):
            policy = plan.turn(expected)
            key = policy, numbers[policy]
            if key not in playing and (i == 0 or len(playing) < 2 * ahead):
                busy = Counter(player for player, reference in playing.values() if not executor.ready(reference))
                player = min(range(len(actors)), key=busy.__getitem__)
                playing[key] = player, actors[player].call(EpisodePlayer.play, *key)
            numbers[policy] += 1
            expected[policy] += max(1, round(steps[policy] / max(1, episodes[policy])))
        policy = plan.turn(steps)
        _, reference = playing.pop((policy, episodes[policy]))
        episode: RecordedEpisode = executor.get(reference)
        steps[policy] += len(episode.trajectory)
        episodes[policy] += 1
        yield episode


def levels_of(seed: int, episodes: int) -> list[int]:
    """Return the seeds of ``episodes`` different levels."""
    return [int(level) for level in generator(seed, "recordings").choice(2**31 - 1, size=episodes, replace=False)]


def record_inside_with(
    plan: InsidePlan,
    agent: Agent,
    folder: Path,
    *,
    actors: int = 0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Recording:
    """Record the episodes of ``plan``; an interrupted recording is continued. ``watch`` is told how many are recorded, of how many.

    ``actors``: number of Ray actors that play, one CPU each; with 0 or 1, this process does, without Ray.

    Raises:
        SettingError: ``folder`` holds something else.
    """
    make = BatchCreator(plan.environment)

    def alone(blocks: Sequence[Block]) -> Iterator[list[RecordedEpisode]]:
        if blocks:
            player = InsidePlayer(plan, agent, make)
            try:
                yield from map(player.play, blocks)
            finally:
                player.close()

    def together(blocks: Sequence[Block]) -> Iterator[list[RecordedEpisode]]:
        if not blocks:
            return
        with players(InsidePlayer, min(actors, len(blocks)), plan, agent, make) as (ray, playing):

            def play(number: int) -> Any:
                return playing[number % len(playing)].call(InsidePlayer.play, blocks[number])

            ahead = deque(map(play, range(min(AHEAD * actors, len(blocks)))))
            for following in range(len(ahead), len(blocks) + len(ahead)):
                yield ray.get(ahead.popleft())
                if following < len(blocks):
                    ahead.append(play(following))

    return write_blocks(plan, agent, folder, together if actors > 1 else alone, watch)
