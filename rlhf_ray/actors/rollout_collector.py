"""RolloutCollector: makes and films fragments apart from the agent's own rollouts, with random or partly random actions."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.saved import ActingPolicy
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments, Trajectory, cut_fragments
from rlhf_ray.data.rollout import Act, Rollout, See, Switching, rollout
from rlhf_ray.data.seeds import generator
from rlhf_ray.data.spaces import seeded
from rlhf_ray.labelling.camera import Camera
from rlhf_ray.labelling.films import Episode, Film, Reel, film
from rlhf_ray.queries.pool import CutFragments
from rlhf_ray.settings import ResolvedFragments

HOLDS = (1, 3, 6, 12, 25)
"""With `ResolvedFragments.varied`: mean numbers of steps to repeat a random action, one per rollout in turn. Tasks that need
sustained actions (MountainCar, Acrobot) then make progress in most episodes; with independent random actions they never do."""


PolicyFactory = Callable[[], ActingPolicy]
"""Makes a policy, including its weights."""


class RolloutCollector:
    """Steps one environment and cuts fragments.

    Args:
        seed: seeds environments and actions; each round has its own generator.
        niceness: added to the process's niceness once the initial fragments are made, so that other processes come first.
    """

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        settings: ResolvedFragments,
        seed: int,
        niceness: int = 0,
    ):
        self.settings = settings
        self._niceness = niceness
        self.seed = seed
        self.env = make_env()
        self._actions = self.env.action_space
        """What random actions are drawn from: a copy of its own in each call."""
        self._left: Rollout | None = None
        """The rollout whose episode has not ended, if any."""
        self._acting: ActingPolicy | None = None
        """The policy in the newest episode, with its memory of it; None for random actions only."""

    def collect(
        self,
        env_steps: int,
        rollouts: int,
        number: int,
        policy_version: int = RANDOM_POLICY,
        make_policy: PolicyFactory | None = None,
        part: int = 0,
        most: int | None = None,
        mixed: bool = False,
    ) -> tuple[int, CutFragments]:
        """Take exactly ``env_steps`` steps and cut fragments from them, up to the pool's size.

        Args:
            env_steps: environment steps, split evenly among the rollouts.
            rollouts: number of rollouts, each starting with a reset (episodes that end add further resets); reduced if the steps
                don't suffice for a fragment per rollout.
            number: seeds the random draws.
            policy_version: version of the policy.
            make_policy: makes the policy to follow, apart from a share of random actions; None for random actions only.
            part: index of this part of the steps with this number, from 1; 0 for all of them.
            most: number of fragments to cut; defaults to the pool's size.
            mixed: whether every other rollout follows the policy without random actions, and the rest takes random actions only.

        Returns:
            The steps taken, and the fragments.
        """
        self._make_way(part)
        rng = generator(self.seed, "rollouts", number, *[part] * (part > 0))
        policy = None if make_policy is None else make_policy()
        self._actions = seeded(self.env.action_space, int(rng.integers(2**31)))
        trajectories: list[Trajectory] = []
        lengths: list[int] = []
        horizon = self.env.spec and self.env.spec.max_episode_steps
        if self.settings.varied and (policy is None or mixed) and horizon and part == 0:
            rollouts = max(len(HOLDS), env_steps // horizon)  # whole episodes: rare events may come late in them
        rollouts = max(1, min(rollouts, env_steps // self.settings.length))
        if mixed and policy is not None:
            rollouts = max(2, rollouts)
        for i, steps in enumerate(np.diff(np.linspace(0, env_steps, rollouts + 1).round().astype(int))):
            while steps > 0:
                share, hold = self.settings.random_action_share, self._hold(i + max(0, part - 1))
                follows = policy if not mixed or i % 2 else None
                rolled = self._roll(int(steps), follows, rng, 0.0 if mixed else share, hold)
                steps -= len(rolled.trajectory)
                trajectories.append(rolled.trajectory)
                if rolled.ended:
                    lengths.append(len(rolled.trajectory))
        fragments = cut_fragments(
            trajectories,
            length=self.settings.length,
            count=most or self.settings.pool,
            start_share=self.settings.start_share,
            policy_version=policy_version,
            rng=rng,
            apart=self.settings.apart,
        )
        return env_steps, CutFragments(-1 - part, policy_version, fragments, tuple(lengths))

    def film(
        self,
        env_steps: int,
        clips: int,
        number: int,
        taken: int,
        policy_version: int = RANDOM_POLICY,
        make_policy: PolicyFactory | None = None,
        episode: bool = True,
        part: int = 0,
    ) -> tuple[int, CutFragments, tuple[Film, ...], Episode | None]:
        """Take exactly ``env_steps`` steps; film fragments for people if observations are not images, and optionally an episode.

        Only the frames that people see are rendered: those of the fragments, and every few steps of the first episode.

        Args:
            env_steps: environment steps.
            clips: approximate number of fragments to film; none for image observations, which are shown as they are.
            number: seeds the random draws.
            taken: environment steps of the training before these; shown with the episode's film.
            policy_version: version of the policy.
            make_policy: makes the policy to follow; None for random actions.
            episode: whether to film the first episode.
            part: index of this part of the steps with this number, from 1; 0 for all of them. Unless an episode is filmed, a part
                continues the episode that the previous one left unfinished.

        Returns:
            The steps taken, the fragments, their films, and the episode's film or None.
        """
        self._make_way(part)
        rng = generator(self.seed, "films", number, *[part] * (part > 0))
        policy = None if make_policy is None else make_policy()
        self._actions = seeded(self.env.action_space, int(rng.integers(2**31)))
        camera = Camera(self.env)
        length = self.settings.length
        spacing = env_steps + 1 if camera.pixelated else max(length + 1, env_steps // clips)
        rolled: list[tuple[Rollout, Reel]] = []
        left = env_steps
        while left > 0:
            after = self._left if part > 0 and not rolled and not episode else None
            at_start = rng.random() < self.settings.start_share and after is None
            first = 0 if at_start else int(rng.integers(max(1, spacing - length)))
            limit = min(left, (self.env.spec and self.env.spec.max_episode_steps) or left)
            reel = Reel(camera, first if not camera.pixelated else env_steps, spacing, length)
            if episode and not rolled:
                reel.show(limit)
            hold = self._hold(len(rolled) + max(0, part - 1))
            rolled.append((self._roll(left, policy, rng, 0.0, hold, reel.see, after), reel))
            left -= len(rolled[-1][0].trajectory)
        cuts = [
            (rollout.trajectory, reel, start)
            for rollout, reel in rolled
            for start in reel.windows(len(rollout.trajectory))
        ]
        fragments: Fragments | None = None
        films: tuple[Film, ...] = ()
        if cuts:
            fragments = Fragments.concatenate(
                [rollout.window(start, length, policy_version) for rollout, _, start in cuts]
            )
            films = tuple(
                film(name, [reel.frames[t] for t in range(start, start + length + 1)], pixelated=False)
                for name, (_, reel, start) in zip(fragments.ids(), cuts, strict=True)
            )
        every = [rollout for rollout, _ in rolled]
        lengths = tuple(rollout.trajectory.start + len(rollout.trajectory) for rollout in every if rollout.ended)
        shown = (
            rolled[0][1].episode(len(every[0].trajectory), every[0].ended, policy_version, taken) if episode else None
        )
        return env_steps, CutFragments(-1 - part, policy_version, fragments, lengths), films, shown

    def _make_way(self, part: int) -> None:
        """Raise the niceness, except for initial fragments that people wait for, which come in parts."""
        if part == 0 and self._niceness:
            os.nice(self._niceness)
            self._niceness = 0

    def _hold(self, rollout: int) -> int:
        """Return the mean number of steps that a random action is repeated for in rollout number ``rollout``."""
        return HOLDS[rollout % len(HOLDS)] if self.settings.varied else 1

    def _roll(
        self,
        steps: int,
        policy: ActingPolicy | None,
        rng: np.random.Generator,
        random_share: float,
        hold: int,
        see: See = lambda step, observation: None,
        after: Rollout | None = None,
    ) -> Rollout:
        """Take at most ``steps`` steps of one episode, from its start or continuing ``after``."""
        seed = int(rng.integers(2**31)) if after is None else None
        self._acting = None if policy is None else policy.begin(None if after is None else self._acting)
        act = self._act(self._acting, rng, random_share, hold)
        rolled = rollout(self.env, act, steps=steps, seed=seed, after=after, see=see)
        self._left = None if rolled.ended else rolled
        return rolled

    def _act(self, policy: ActingPolicy | None, rng: np.random.Generator, random_share: float, hold: int) -> Act:
        """Return a function that follows the policy, or repeats random actions for ``hold`` steps on average."""
        held, action = 0, None
        switching = Switching(random_share, self.settings.switch_probability, rng)

        def act(observation: Array) -> Any:
            nonlocal held, action
            if held > 0:
                held -= 1
            else:
                if policy is not None and not switching.random():
                    return policy.act(observation, rng)
                action = self._actions.sample()
                held = 0 if hold == 1 else int(rng.geometric(1 / hold)) - 1
            if policy is not None:
                policy.see(observation)
            return action

        return act
