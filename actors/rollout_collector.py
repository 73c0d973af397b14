"""RolloutCollector: makes clips outside of PPO's own rollouts, with random actions or with some random actions mixed in."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from actors.fragmenter import Clips
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments, Trajectory, cut_fragments
from rlhf_ray.labelling.films import Camera, Episode, Film, film
from rlhf_ray.settings import ResolvedFragments

HOLDS = (1, 3, 6, 12, 25)
"""With `ResolvedFragments.varied`: steps that a random action is held for, on average, one of these for each rollout in turn. What
takes a swing or a push of some length (MountainCar, Acrobot) is reached in most episodes so, and never by trembling."""

EPISODE_FRAMES = 100
"""Frames, at most, of the film of an episode."""


class Policy(Protocol):
    """What the collector needs of a policy; how it is made is not its business."""

    def act(self, observation: Array, rng: np.random.Generator) -> Any:
        """An action for the environment, drawn from the policy, for one observation."""
        ...


PolicyFactory = Callable[[], Policy]
"""Makes a policy, its weights included."""


class RolloutCollector:
    """Steps one environment.

    Args:
        make_env: makes the environment.
        settings: fragments.
        seed: of environments and actions; each round draws from its own generator.
        niceness: added to its process's once the first clips are made, so that others come first where cores are few.
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
        self._left: tuple[Array, int] | None = None
        """Where an episode was left before its end: the newest observation, and the steps it had taken."""

    def collect(
        self,
        env_steps: int,
        rollouts: int,
        round_number: int,
        policy_version: int = RANDOM_POLICY,
        make_policy: PolicyFactory | None = None,
        part: int = 0,
        most: int | None = None,
    ) -> Clips:
        """Take exactly ``env_steps`` steps and cut fragments from them, as many as the pool has room for.

        Args:
            env_steps: environment steps, shared evenly by the rollouts.
            rollouts: how often the environment is begun anew (it also is when an episode ends); fewer times where the steps
                are too few for rollouts that hold a fragment.
            round_number: decides everything random.
            policy_version: of the policy that is made.
            make_policy: makes the policy to follow but for a share of random actions; None takes random actions only.
            part: which part of the round's steps these are, from 1; 0: all of them.
            most: fragments to cut; the pool's size unless given.
        """
        self._make_way(part)
        rng = np.random.default_rng([self.seed, 3, round_number] + [part] * (part > 0))
        policy = None if make_policy is None else make_policy()
        self.env.action_space.seed(int(rng.integers(2**31)))
        trajectories: list[Trajectory] = []
        lengths: list[int] = []
        horizon = self.env.spec and self.env.spec.max_episode_steps
        if self.settings.varied and policy is None and horizon and part == 0:
            rollouts = max(len(HOLDS), env_steps // horizon)  # whole episodes: what is rare may come late in them
        rollouts = max(1, min(rollouts, env_steps // self.settings.length))
        for i, steps in enumerate(np.diff(np.linspace(0, env_steps, rollouts + 1).round().astype(int))):
            while steps > 0:
                share, hold = self.settings.random_action_share, self._hold(i + max(0, part - 1))
                trajectory, ended = self._roll(int(steps), policy, rng, share, hold)
                steps -= len(trajectory)
                trajectories.append(trajectory)
                if ended:
                    lengths.append(len(trajectory))
        fragments = cut_fragments(
            trajectories,
            length=self.settings.length,
            count=most or self.settings.pool,
            start_share=self.settings.start_share,
            policy_version=policy_version,
            rng=rng,
        )
        too_short = sum(len(trajectory) < self.settings.length for trajectory in trajectories)
        return Clips(-1 - part, policy_version, fragments, too_short, tuple(lengths))

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
    ) -> tuple[Clips, Episode | None]:
        """Take exactly ``env_steps`` steps; film clips for people where observations are no images, and an episode.

        Only what is shown is rendered: the clips' steps, and of the first episode every so many.

        Args:
            env_steps: environment steps.
            clips: fragments to film, about; none of images, which can be shown as they are.
            number: decides everything random.
            taken: environment steps of the training before these, which the episode's film tells.
            policy_version: of the policy that is made.
            make_policy: makes the policy to follow; None takes random actions.
            episode: whether to film the first episode.
            part: which part of the steps with this number these are, from 1; 0: all of them. Unless an episode is filmed, a part
                goes on with the episode that the last one left.
        """
        self._make_way(part)
        rng = np.random.default_rng([self.seed, 5, number] + [part] * (part > 0))
        policy = None if make_policy is None else make_policy()
        self.env.action_space.seed(int(rng.integers(2**31)))
        camera = Camera(self.env)
        length = self.settings.length
        spacing = env_steps + 1 if camera.pixelated else max(length + 1, env_steps // clips)
        reels: list[_Reel] = []
        left = env_steps
        while left > 0:
            go_on = part > 0 and not reels and not episode and self._left is not None
            at_start = rng.random() < self.settings.start_share and not go_on
            first = 0 if at_start else int(rng.integers(max(1, spacing - length)))
            limit = min(left, (self.env.spec and self.env.spec.max_episode_steps) or left)
            stride = 0 if reels or not episode else math.ceil((limit + 1) / EPISODE_FRAMES)
            reel = _Reel(camera, first if not camera.pixelated else env_steps, spacing, length, stride)
            hold = self._hold(len(reels) + max(0, part - 1))
            reel.trajectory, reel.ended = self._roll(left, policy, rng, 0.0, hold, reel.see, go_on)
            left -= len(reel.trajectory)
            reels.append(reel)
        cuts = [(reel, start) for reel in reels for start in reel.windows()]
        fragments: Fragments | None = None
        films: tuple[Film, ...] = ()
        if cuts:
            fragments = Fragments.concatenate(
                [reel.trajectory.window(start, length, policy_version) for reel, start in cuts]
            )
            films = tuple(
                film(name, [reel.frames[t] for t in range(start, start + length + 1)], pixelated=False)
                for name, (reel, start) in zip(fragments.ids(), cuts, strict=True)
            )
        # An episode that a part begins with, or ends with, was cut for no reason of its own.
        whole = reels if part == 0 else [reel for reel in reels if reel.ended and reel.trajectory.start == 0]
        too_short = sum(len(reel.trajectory) < length for reel in whole)
        lengths = tuple(reel.trajectory.start + len(reel.trajectory) for reel in reels if reel.ended)
        shown = reels[0].episode(policy_version, taken) if episode else None
        return Clips(-1 - part, policy_version, fragments, too_short, lengths, films), shown

    def _make_way(self, part: int) -> None:
        """Let others come first from now on, unless these are the first clips, which people wait for: they come in parts."""
        if part == 0 and self._niceness:
            os.nice(self._niceness)
            self._niceness = 0

    def _hold(self, rollout: int) -> int:
        """Steps that random actions are held for, on average, in the ``rollout``-th rollout."""
        return HOLDS[rollout % len(HOLDS)] if self.settings.varied else 1

    def _roll(
        self,
        steps: int,
        policy: Policy | None,
        rng: np.random.Generator,
        random_share: float,
        hold: int,
        see: Callable[[int, Array], None] = lambda t, observation: None,
        go_on: bool = False,
    ) -> tuple[Trajectory, bool]:
        """At most ``steps`` steps of one episode, and whether it ended.

        From its beginning, or with ``go_on`` from where an episode was left, if one was. A random action is held for ``hold``
        steps, on average; ``see`` is shown each observation.
        """
        start, left, self._left = 0, self._left, None
        if go_on and left is not None:
            observation, start = left
        else:
            observation, _ = self.env.reset(seed=int(rng.integers(2**31)))
        see(0, observation)
        observations = [np.array(observation)]  # copies: some environments reuse their arrays
        actions: list[Array] = []
        rewards: list[float] = []
        terminated = truncated = False
        held = 0
        while len(actions) < steps and not (terminated or truncated):
            if held > 0:
                held -= 1
            elif policy is None or rng.random() < random_share:
                action = self.env.action_space.sample()
                held = 0 if hold == 1 else int(rng.geometric(1 / hold)) - 1
            else:
                action = policy.act(observation, rng)
            observation, reward, terminated, truncated, _ = self.env.step(action)
            observations.append(np.array(observation))
            actions.append(action)
            rewards.append(float(reward))
            see(len(actions), observation)
        trajectory = Trajectory(
            np.stack(observations), np.stack(actions), np.array(rewards, dtype=np.float64), bool(terminated), start
        )
        ended = bool(terminated or truncated)
        self._left = None if ended else (observations[-1], start + len(trajectory))
        return trajectory, ended


class _Reel:
    """The frames of one episode that somebody may be shown.

    Args:
        camera: takes them.
        first: step at which the first clip begins.
        spacing: steps from there to the beginning of the next one.
        length: of a clip.
        stride: every so many steps one frame is taken for the film of the episode; 0: none is.
    """

    trajectory: Trajectory
    ended: bool

    def __init__(self, camera: Camera, first: int, spacing: int, length: int, stride: int):
        self.camera, self.first, self.spacing, self.length, self.stride = camera, first, spacing, length, stride
        self.frames: dict[int, Array] = {}

    def see(self, t: int, observation: Array) -> None:
        """The episode's step ``t`` has led to ``observation``."""
        in_clip = t >= self.first and (t - self.first) % self.spacing <= self.length
        if in_clip or (self.stride and t % self.stride == 0):
            self.frames[t] = self.camera.frame(observation)

    def windows(self) -> list[int]:
        """Where clips begin that were filmed whole."""
        return list(range(self.first, len(self.trajectory) - self.length + 1, self.spacing))

    def episode(self, policy_version: int, taken: int) -> Episode:
        """The film of the whole episode."""
        shown = [frame for t, frame in self.frames.items() if t % self.stride == 0]
        name = hashlib.sha256(b"".join(frame.tobytes() for frame in shown)).hexdigest()
        made = film(name, shown, pixelated=self.camera.pixelated)
        return Episode(made, self.camera.fps / self.stride, len(self.trajectory), self.ended, policy_version, taken)
