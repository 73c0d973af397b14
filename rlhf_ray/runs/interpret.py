"""Steps for reports on rewards: of a run's policy and random actions, of its labelled clips, or of a recording; and checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.true_return import with_an_end
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.images import is_image
from rlhf_ray.data.inputs import check_observations, check_recorded, in_type
from rlhf_ray.data.recordings import load_transitions, recorded_in
from rlhf_ray.data.rollout import Act, rollout
from rlhf_ray.data.spaces import seeded, shaped
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.consistency import check_function
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.policies import newest_policy
from rlhf_ray.store import PreferenceStore

STEPS, IMAGE_STEPS = 6000, 1500
"""New steps to look at, of vectors and of images."""

MOST_STEPS = 20_000
"""Steps of a recording to look at; a quarter for images."""

EPSILON = 0.3
"""Share of random actions in a third of the steps: between what the policy does and what random actions do."""


def steps_of_run(folder: RunFolder, seed: int, count: int | None = None) -> Transitions:
    """Roll out a run's newest policy: a third of the steps as it is, a third with random actions among its own, a third random.

    The column ``policy`` says which: 0 the policy, 1 mixed, 2 random. ``count``: None: `STEPS`, or `IMAGE_STEPS`.
    """
    environment = folder.experiment().environment
    policy, _ = newest_policy(folder)
    env = with_an_end(environment)
    rng = np.random.default_rng([seed, 14])
    drawn = seeded(env.action_space, seed)
    budget = count or (IMAGE_STEPS if is_image(env.observation_space) else STEPS)

    def follows(epsilon: float) -> Act:
        acting = policy.begin()

        def act(seen: Array) -> Any:
            if rng.random() >= epsilon:
                return acting.act(seen, rng)
            acting.see(seen)
            return drawn.sample()

        return act

    parts = []
    for number, epsilon in enumerate((0.0, EPSILON, 1.0)):
        rolled: list[Transitions] = []
        while (left := budget // 3 - sum(map(len, rolled))) > 0:
            # Several short episodes say more than one long one.
            most = min(left, max(50, budget // 12))
            trajectory = rollout(env, follows(epsilon), steps=most, seed=int(rng.integers(2**31))).trajectory
            rolled.append(Transitions.of_trajectories([trajectory]))
        joined = Transitions.concatenate(rolled)
        parts.append(joined.with_(columns={"policy": np.full(len(joined), number)}))
    env.close()  # type: ignore[no-untyped-call]
    return Transitions.concatenate(parts)


def given_steps(path: Path, seed: int) -> Transitions:
    """Load steps from a file or folder: whole episodes, drawn at random if there are more than the report looks at.

    Raises:
        SettingError: there are no steps.
    """
    most = 4 * MOST_STEPS
    data = load_steps(path, most)
    if not len(data):
        raise SettingError(f"--data is {path}, which holds no steps; give a recording with at least one episode.")
    if is_image(data.observations[0]):
        most //= 4
    names = np.random.default_rng([seed, 15]).permutation(np.unique(data.episodes))
    kept: list[int] = []
    count = 0
    for name in names:
        count += int((data.episodes == name).sum())
        if kept and count > most // 4:
            break
        kept.append(int(name))
    return data[np.isin(data.episodes, kept)]


def check_reported(reward: RewardFunction) -> None:
    """Check that the report supports the reward's actions.

    Raises:
        SettingError: they have several components.
    """
    if isinstance(reward.action_space, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        raise SettingError(
            f"The actions of the reward {reward.name!r} are {reward.action_space}; the reward's report supports Discrete and Box "
            "actions: use one Discrete space with one action per combination."
        )


def check_steps(reward: RewardFunction, data: Transitions, where: Path | str) -> Transitions:
    """Check that steps are of the environment that the reward is for, and that it is a function of them.

    ``where``: the file or folder that they come from; the name of the environment, for new steps of a run.

    Returns:
        The steps, with observations of the type of the reward's space, and actions of the shape of its space.

    Raises:
        SettingError: they are not, or it isn't.
    """
    if len(data):
        spaces, what = (reward.observation_space, reward.action_space), f"The steps in {where}"
        of_run = not isinstance(where, Path) or (where / "config.json").exists()
        own = of_run or recorded_in(where, spaces[0])
        data = data.with_(actions=shaped(data.actions, spaces[1]))
        check_recorded(data.observations, data.actions, spaces, what, own=own)
        check_observations(data.next_observations, spaces[0], what, own=own)
        seen = [in_type(values, spaces[0]) for values in (data.observations, data.next_observations)]
        data = data.with_(observations=seen[0], next_observations=seen[1])
    try:
        reward.of(data)
    except SettingError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or ["no message"])[0][:200].rstrip(".")
        raise SettingError(
            f"The reward {reward.name!r} does not work on the steps in {where}: {type(error).__name__}: {first}."
        ) from error
    check_function(reward, data)
    return data


def load_steps(path: Path | str, most: int | None = None) -> Transitions:
    """Load the first ``most`` steps (None: all) from a run folder's labelled clips, or from what `load_transitions` accepts.

    Raises:
        SettingError: there are no steps.
    """
    folder = RunFolder(path)
    if not folder.config.exists():
        return load_transitions(path, most)
    last = None if most is None else max(1, most)  # each comparison has a step or more
    there = folder.preferences.exists()
    comparisons = PreferenceStore(folder.preferences, create=False).load(last) if there else None
    if comparisons is None:
        raise SettingError(
            f"{folder.path} has no labelled clips; record steps with `rlhf-ray record {path} --out FOLDER`."
        )
    pairs = comparisons.pairs
    found = transitions_of(Fragments.concatenate([pairs.left, pairs.right]))
    return found if most is None else found[:most]


def transitions_of(fragments: Fragments) -> Transitions:
    """Convert fragments to steps. Each different fragment becomes one episode; ``policy_version`` is among the columns."""
    first = sorted({name: i for i, name in reversed(list(enumerate(fragments.ids())))}.values())
    of = fragments[np.array(first)]
    return Transitions.of_fragments(of).with_(columns={"policy_version": np.repeat(of.policy_versions, of.length)})
