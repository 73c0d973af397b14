"""PreferenceWrapper: what `HumanPreferencesEnv` and `HumanPreferencesVectorEnv` offer: pausing, exploring, waiting, saving."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.bounds import without_formal
from rlhf_ray.data.defaults import own_defaults
from rlhf_ray.data.images import is_image
from rlhf_ray.data.seeds import generator
from rlhf_ray.data.spaces import seeded
from rlhf_ray.data.switching import Switching
from rlhf_ray.labelling.camera import fps_of
from rlhf_ray.queries.gatherers import who_sees_films
from rlhf_ray.settings import FragmentSettings, LabellingSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.settings.checks import require
from rlhf_ray.wrappers.arguments import Transform, Wait, check_wait, seen_space, transform_for
from rlhf_ray.wrappers.learning import LearningSession
from rlhf_ray.wrappers.session import FixedSession, RewardSession
from rlhf_ray.wrappers.stepping import Stepping


class PreferenceWrapper(Stepping):
    """What users call; the subclasses' docstrings document the arguments."""

    @own_defaults()
    def __init__(
        self,
        env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any],
        *,
        total_env_steps: int,
        fragments: FragmentSettings | None = None,
        preferences: PreferenceSettings | None = None,
        reward_model: RewardModelSettings | Path | str | None = None,
        folder: Path | str | None = None,
        observation_transform: Transform | None = None,
        ask: bool = True,
        fit: bool = True,
        wait: Wait = False,
        labelling: LabellingSettings | None = None,
        seed: int = 0,
    ):
        self._open = False  # until __init__ succeeds: gymnasium closes environments on deletion
        recorder = self._recorder_for(env)
        observation_space, action_space = self._spaces(env)
        seen = None if observation_transform is None else self._transformed(env, observation_transform)
        title = getattr(env.spec, "id", None) or str(env)
        space = seen_space(observation_space, seen, action_space, title)
        viewer = who_sees_films(preferences) if preferences is not None and ask else None
        if viewer is not None and not is_image(space):
            self._check_shown(env, viewer)
        check_wait(preferences, wait)
        spaces = (space, action_space)
        session: RewardSession
        if isinstance(reward_model, Path | str):
            session = FixedSession(Path(reward_model), spaces, total_env_steps, seed)
        else:
            session = LearningSession(
                spaces,
                total_env_steps,
                seed,
                fragments=fragments,
                preferences=preferences,
                reward_model=reward_model,
                folder=folder,
                ask=ask,
                fit=fit,
                labelling=labelling,
                waits=wait == "always",
                title=title,
                fps=fps_of(env, title),
            )
        self._join(env, session, recorder, transform_for(observation_space, observation_transform), wait)

    def __getstate__(self) -> Any:
        """Refuse to be pickled, by `SubprocVecEnv` for example, unless the reward is fixed."""
        self._session.check_may_leave()
        return super().__getstate__()

    def use_true_reward(self) -> None:
        """Return the true reward from now on, for comparison or evaluation. Learning continues and steps count (see `pause`)."""
        self._true = True

    def use_learned_reward(self) -> None:
        """Return the learned reward again (the default)."""
        self._true = False

    def pause(self) -> None:
        """Stop counting steps towards ``total_env_steps`` and stop cutting fragments, to evaluate in this environment."""
        if not self._paused:
            self._recorder.forget()
        self._paused = True

    def resume(self) -> None:
        """End a `pause`."""
        self._paused = False

    def pause_collecting(self) -> None:
        """Stop cutting clips and asking questions, while training, its step count and fits to given answers go on.

        Applies to all environments that share the reward. Open questions stay open. Labels still fall due, and are asked for after
        `resume_collecting`; those of a pause that lasts to the end of the training are never asked for.
        """
        self._session.collect(False)

    def resume_collecting(self) -> None:
        """End a `pause_collecting`."""
        self._session.collect(True)

    def explore(self, policy: Callable[[Any], Any], env_steps: int) -> None:
        """Step this environment with ``policy``'s actions mixed with random ones, for clips that the policy alone does not give.

        Each action is random with ``fragments.random_action_share``; below 1, ``fragments.switch_probability`` makes stretches of
        either, as in `rlhf-ray train`. The steps count towards ``total_env_steps``, and their clips are compared like the agent's;
        `true_returns` does not have their episodes. Starts with a reset. Reset the environment afterwards too, or explore in one
        that nothing else steps, made with ``env.share(…)``.

        Args:
            policy: maps the environment's observation (of a vector environment: the batch) to an action (the batch of actions).
                Called at each step, also where the action is random.
            env_steps: number of environment steps; a vector environment rounds up to steps of all its environments.

        Raises:
            RuntimeError: there is nothing to explore for: ``ask=False``, a fixed reward, or a pause.
            SettingError: ``env_steps`` is below the length of a clip.
        """
        session = self._session
        if not self._records:
            raise RuntimeError("explore() makes clips to ask about, but this environment asks nothing: it is paused, "
                               "has a fixed reward, or ask=False.")  # fmt: skip
        fragments = session.fragments
        steps = f"a clip has fragments.length={fragments.length} steps"
        require(env_steps >= fragments.length, "env_steps", env_steps, steps)
        self._prepare()
        rng = generator(session.seed, "exploration", self._source, session.windows)
        drawn = self._own_actions(int(rng.integers(2**31)))
        switching: dict[int, Switching] = {}

        def choose(observation: Any) -> Any:
            chosen = policy(observation)
            for i in np.flatnonzero(self._recorder.lengths == 0).tolist():  # a new episode
                switching[i] = Switching(fragments.random_action_share, fragments.switch_probability, rng)
            random = np.array([switching[i].random() for i in range(self._recorder.copies)])
            return self._mix(random, drawn.sample(), chosen)

        returns, self._exploring = list(self.true_returns), True
        try:
            self._play(choose, env_steps, int(rng.integers(2**31)))
            session.send(self._recorder, self._source, wait=True)
        finally:
            self._exploring = False
            self.true_returns.clear()
            self.true_returns.extend(returns)

    def wait_for_reward(self) -> None:
        """Wait until there is a learned reward; see ``wait``.

        If the first fragments are missing, takes random actions to collect them; reset the environment afterwards.

        Raises:
            RuntimeError: there will be no reward, because nothing is fitted or there are no preferences to fit to.
        """
        self._session.begin()
        if self._session.random_steps_wanted:
            self._session.gathering = True
            try:
                self._act_randomly(self._session.random_steps_wanted)
                self._session.send(self._recorder, self._source)
            finally:
                self._session.gathering = False
        self._session.wait()

    def relabel(self, observations: Any, actions: Array, next_observations: Any, terminated: Array) -> FloatArray:
        """Compute the learned reward of ``n`` steps with the newest version, to update a replay buffer.

        Args:
            observations: the environment's observations before the steps, ``[n, *shape]`` (for a Dict space, a dict of these).
            actions: the actions passed to `step`, ``[n, *shape]``.
            next_observations: the environment's observations after the steps, before any reset, shaped like ``observations``.
            terminated: ``[n]`` bool; False for truncated episodes.

        Returns:
            The rewards, ``[n]`` float32.

        Raises:
            RuntimeError: there is no learned reward yet.
        """
        seen = [self._see_all(batch) for batch in (observations, next_observations)]
        rewards = self._session.rewards(seen[0], np.asarray(actions), seen[1], np.asarray(terminated))
        if rewards is None:
            raise RuntimeError("There is no learned reward yet; call wait_for_reward() first.")
        return rewards

    def save(self, path: Path | str) -> None:
        """Save preferences, reward model and counters to the folder ``path``, to continue from with `load`.

        With a scripted teacher, waits for due labels and their fit; with people it does not wait, and warns about missing labels.

        The folder contains ``preferences`` (a preference store for `rlhf-ray store`), ``reward_model`` (for `RewardEnsemble.load`;
        missing before the first version) and the state of the actors. Replaces an earlier save atomically. Does not save your
        agent.

        Raises:
            ValueError: ``path`` exists and was not written by `save`.
        """
        self._session.save(Path(path))

    def load(self, path: Path | str) -> None:
        """Continue from a folder written by `save`, or add the preferences of the preference store ``path``.

        Call it before the first reset.

        Raises:
            RuntimeError: the environment was already reset.
        """
        self._session.load(Path(path))

    @property
    def links(self) -> dict[str, str]:
        """With ``preferences.teacher="human"``: the annotators' links, by name."""
        return self._session.links

    def status(self) -> dict[str, Any]:
        """The progress, as a dict.

        ``env_steps``, ``comparisons`` and ``skipped`` pairs so far, ``comparisons_due`` so far, the ``reward_version`` in use (0:
        none yet), ``unlearned_steps`` (steps with reward 0.0 before the first version), ``fragments_dropped`` (windows whose
        fragments were dropped because the actors were busy), and whether it is ``collecting`` (see `pause_collecting`). After the
        first fit, also the last fit's metrics, by the names that `rlhf_ray.data.metrics` describes: ``train_accuracy``,
        ``held_out_accuracy``, ``held_out_brier``, ``held_out_calibration_error``, ``error_rate`` of all answers,
        ``error_rate/NAME`` and ``rationality/NAME`` of each annotator, ``method/NAME`` and others.
        """
        return self._session.status()

    def close(self, **arguments: Any) -> None:
        """Close the environment; with the last one, stop the actors, and Ray if it was started here. Idempotent."""
        if self._open:
            self._open = False
            try:
                super().close(**arguments)  # type: ignore[misc]
            finally:
                self._session.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; a vector environment accepts ``options["reset_mask"]``. The first reset may wait; see ``wait``."""
        self._prepare()
        return self._reset(seed=seed, options=options)

    def _prepare(self) -> None:
        """Start the ring; the first time, wait for the reward if ``wait`` is set."""
        self._session.begin()
        if self._wait:
            self._wait = False
            self.wait_for_reward()

    def _act_randomly(self, env_steps: int) -> None:
        """Reset, and take ``env_steps`` random actions."""
        rng = generator(self._session.seed, "first actions", self._source)
        actions = self._own_actions(int(rng.integers(2**31)))
        self._play(lambda observation: actions.sample(), env_steps, int(rng.integers(2**31)))

    def _own_actions(self, seed: int) -> gym.Space[Any]:
        """The action space with its own random numbers: the agent may sample from the environment's own space."""
        return seeded(without_formal(self.env.action_space), seed)
