"""The front door: `learn`, what a `LearnedRun` holds, `evaluate`, `explain`. ``import rlhf_ray as rr`` has these and the rest.

Reading a run needs neither Ray nor RLlib; `learn` starts Ray only if the settings need it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from rlhf_ray import tune_configs
from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.saved import AgentPolicy
from rlhf_ray.agents.true_return import TrueReturn
from rlhf_ray.agents.true_return import evaluate as true_return
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import make_run_folder
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
    SACSettings,
)
from rlhf_ray.settings.start import Start
from rlhf_ray.store import PreferenceStore

Env = str | Experiment | Callable[..., "gym.Env[Any, Any]"]
"""An environment: a name for `rlhf_ray.envs.make_env`, a preset's name, an experiment, or a class or function that makes one. The
latter is known to this process alone, and the number of times it is made is open."""


class LearnedRun:
    """A run, running or finished: what it learned, read from its folder.

    Args:
        path: the run's folder.

    Raises:
        SettingError: it is not a run folder.
    """

    def __init__(self, path: Path | str):
        self.folder = RunFolder.open(path)
        self.path = self.folder.path

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def experiment(self) -> Experiment:
        """The settings."""
        return self.folder.experiment()

    @property
    def agent(self) -> Agent:
        """The newest policy, as an agent that tools can look into."""
        from rlhf_ray.runs.policies import newest_agent

        return newest_agent(self.folder)

    @property
    def reward(self) -> RewardFunction:
        """The newest learned reward."""
        return RewardFunction.load(self.path)

    @property
    def store(self) -> PreferenceStore:
        """The preference store, on disk."""
        return PreferenceStore(self.folder.preferences, create=False)

    @property
    def labels(self) -> Comparisons | None:
        """The answered comparisons with their clips, in memory; None before the first answer."""
        return self.store.load()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics, one row per iteration."""
        return self.folder.rows()

    @property
    def outcome(self) -> dict[str, Any]:
        """The outcome (`rlhf_ray.runs.outcome.Outcome`) as JSON values; empty while the run is running."""
        return json.loads(self.folder.result.read_text()) if self.folder.result.exists() else {}

    @property
    def true_return(self) -> float | None:
        """The trained agent's mean true return at the end of the run; None if it was not measured."""
        trained = self.outcome.get("trained")
        return None if trained is None else float(trained["true_return_mean"])

    @property
    def held_out_accuracy(self) -> float | None:
        """The share of held-out answers that the reward predicts; None if there are none."""
        return self.folder.last_metrics().get("held_out_accuracy")

    def steps(self, count: int | None = None, *, seed: int = 0) -> Transitions:
        """Roll out new steps: a third of the newest policy, a third with random actions among its own, a third random.

        Args:
            count: how many steps, about; None: as many as a reward's report looks at.
            seed: seeds episodes and actions.
        """
        from rlhf_ray.runs.interpret import steps_of_run

        return steps_of_run(self.folder, seed, count)

    def evaluate(self, episodes: int = 20, *, seed: int | None = None) -> TrueReturn:
        """Measure the true return of the newest policy's most likely actions; ``seed``: None: the run's, as `learn` does."""
        from rlhf_ray.runs.policies import newest_policy

        experiment = self.experiment
        seed = experiment.seed if seed is None else seed
        return true_return(experiment.environment, newest_policy(self.folder)[0].best, episodes=episodes, seed=seed)

    def report(self) -> Path:
        """Write the run's report and return the path of its page."""
        from rlhf_ray.runs.report.run_report import write_report

        return write_report(self.path)


def learn(
    env: Env = "Pendulum-v1",
    *,
    comparisons: int | None = None,
    env_steps: int | None = None,
    teacher: Any = None,
    selection: Any = None,
    reward_model: Any = None,
    agent: str | PPOSettings | SACSettings | None = None,
    preferences: PreferenceSettings | None = None,
    fragments: FragmentSettings | None = None,
    seed: int | None = None,
    folder: Path | str | None = None,
    start: Start | None = None,
    callbacks: Sequence[Any] = (),
    evaluation_episodes: int = 20,
    progress: bool = True,
) -> LearnedRun:
    """Learn a reward from comparisons and an agent from the reward, as `rlhf-ray train` does.

    Args:
        env: the environment. A preset or an experiment brings its own settings; the arguments below replace them.
        comparisons: the label budget. The initial comparisons change with it.
        env_steps: total environment steps.
        teacher: who answers: a name (`rlhf_ray.names`), ``human`` for people at the labelling page, or a `Teacher` of your own.
        selection: which pairs to ask about: a name or a `Selection`.
        reward_model: a network's name or class, or settings.
        agent: ``ppo``, ``sac``, or settings of one of them.
        preferences: settings of the comparisons.
        fragments: settings of the clips.
        seed: the same seed and settings give the same run.
        folder: the run's folder, which must be empty or not exist; None: a new one under ``runs/``.
        start: labels, a policy, a reward or demonstrations to start from.
        callbacks: of `Callback`.
        evaluation_episodes: episodes to evaluate the agent on at the end.
        progress: whether to print the progress.

    Raises:
        SettingError: a setting is invalid. Nothing is created then.
    """
    from rlhf_ray.runs.new_run import new_run
    from rlhf_ray.runs.progress import ProgressBars
    from rlhf_ray.runs.quiet import quiet
    from rlhf_ray.runs.train import train

    quiet()
    changed: dict[str, Any] = {
        "total_env_steps": env_steps,
        "seed": seed,
        "fragments": fragments,
    }
    if isinstance(agent, PPOSettings | SACSettings):
        changed["agent"] = "ppo" if isinstance(agent, PPOSettings) else "sac"
        changed[changed["agent"]] = agent
    else:
        changed["agent"] = agent
    before = preset(env)
    asked = (preferences or before.preferences).with_comparisons(comparisons)
    parts = {name: part for name, part in (("teacher", teacher), ("selection", selection)) if part is not None}
    if teacher == "human":  # the agent goes on learning while people answer
        parts["mode"] = "asynchronous"
    changed["preferences"] = dataclasses.replace(asked, **parts)
    if reward_model is not None and not isinstance(reward_model, RewardModelSettings):
        reward_model = dataclasses.replace(before.reward_model, network=reward_model)
    changed["reward_model"] = reward_model
    experiment = dataclasses.replace(before, **{name: value for name, value in changed.items() if value is not None})
    path = make_run_folder(experiment.environment, experiment.seed) if folder is None else Path(folder)
    try:
        run = new_run(path, experiment, start, options={"evaluation_episodes": evaluation_episodes})
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()  # if it is empty
    with contextlib.ExitStack() as shown:
        printing = [shown.enter_context(ProgressBars(run.experiment()))] if progress else []
        train(run, evaluation_episodes=evaluation_episodes, callbacks=[*callbacks, *printing])
    return LearnedRun(run.path)


def preset(env: Env) -> Experiment:
    """Return the settings of a preset, by its name, or default settings for any other environment."""
    if isinstance(env, Experiment):
        return env
    if isinstance(env, str):
        if env not in tune_configs.names():
            return Experiment(environment=env)
        experiment: Experiment = tune_configs.load(env).experiment
        return experiment
    name = f"own/{getattr(env, '__name__', type(env).__name__)}-v0"
    known = gym.registry.get(name)
    if known is None or getattr(known.entry_point, "func", None) is not env:
        with contextlib.closing(env()) as made:
            spec = made.spec
        # Not the class itself: gymnasium reads its `metadata`, which is a property of a wrapper's class.
        make = functools.partial(env)
        gym.register(name, entry_point=make, max_episode_steps=None if spec is None else spec.max_episode_steps)
    return Experiment(environment=name)


def evaluate(
    agent: Agent | LearnedRun | Path | str | None, env: Env | None = None, *, episodes: int = 20, seed: int = 0
) -> TrueReturn:
    """Measure the true return of an agent's most likely actions.

    Args:
        agent: an agent; a run or its folder; None for random actions.
        env: its environment; not needed with a run.
        episodes: number of episodes. Their initial states depend on ``seed`` only.
        seed: seeds the episodes.

    Raises:
        SettingError: there is no agent, or its environment is not known.
    """
    if isinstance(agent, Path | str):
        agent = LearnedRun(agent)
    if isinstance(agent, LearnedRun):
        return agent.evaluate(episodes, seed=seed)
    if env is None:
        raise SettingError("env is None; name the environment of an agent without a run.")
    act = None if agent is None else AgentPolicy(agent).best
    return true_return(preset(env).environment, act, episodes=episodes, seed=seed)


def explain(
    what: RewardFunction | Agent,
    on: Transitions | Env | None = None,
    *,
    steps: Transitions | None = None,
    env: Env | None = None,
    out: Path | str | None = None,
    only: Sequence[str] | None = None,
    effort: float = 1.0,
    seed: int = 0,
) -> Path:
    """Write the report about a reward on steps, or about an agent in its environment.

    Args:
        what: the reward or the agent.
        on: the steps of a reward, or the environment of an agent; the same as ``steps`` and ``env``.
        steps: steps to examine a reward on, whole episodes where possible.
        env: the environment. For a reward it is not needed, but tells more.
        out: the report's folder; None: ``reward_report`` or ``agent_report``. Finished steps of the report are kept there.
        only: the report's steps, by name or as ``module:Name`` of your own; None: all.
        effort: amount of work: 0.1 for a quick look.
        seed: seeds every draw.

    Returns:
        The path of the page ``report.html``.

    Raises:
        SettingError: the steps or the environment are missing, or what is examined does not work on them.
    """
    if isinstance(on, Transitions):
        steps = on
    else:
        env = env if on is None else on
    name = None if env is None else preset(env).environment
    if isinstance(what, RewardFunction):
        if steps is None:
            raise SettingError("steps is None; give the steps to examine the reward on.")
        from rlhf_ray.interpret.reward.report import report_reward
        from rlhf_ray.interpret.reward.subject import Subject

        subject = Subject(what, steps, environment=name, effort=effort, seed=seed)
        return report_reward(subject, Path(out or "reward_report"), only).page
    if name is None:
        raise SettingError("env is None; name the environment of the agent.")
    from rlhf_ray.interpret.agent.report import report_agent
    from rlhf_ray.interpret.agent.subject import AgentSubject

    return report_agent(AgentSubject(what, name, seed, effort), Path(out or "agent_report"), only)


def names() -> dict[str, list[str]]:
    """Return the names that settings take: presets, teachers, selections, schedules, gatherers, networks, losses, methods."""
    from rlhf_ray.queries.gatherers import GATHERERS
    from rlhf_ray.queries.schedule import LABEL_RATES
    from rlhf_ray.queries.selection import SELECTIONS
    from rlhf_ray.reward.likelihood import LOSSES
    from rlhf_ray.reward.methods import METHODS
    from rlhf_ray.reward.networks import NETWORKS
    from rlhf_ray.teachers import TEACHERS

    registries: Sequence[Any] = (TEACHERS, SELECTIONS, LABEL_RATES, GATHERERS, NETWORKS, LOSSES, METHODS)
    found = {each.setting: [*each.parts, *each.others] for each in registries}
    return {"preset": tune_configs.names()} | found
