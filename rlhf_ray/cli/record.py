"""`rlhf-ray record`: record episodes of policies."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.presets import preset
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.lock import Lock
from rlhf_ray.data.transitions import GAMMA
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.progress import Counting
from rlhf_ray.settings.checks import Count, Natural, Share, check_values, require

if TYPE_CHECKING:
    from rlhf_ray.runs.record import RecordingPlan


COPIES = 16
"""Episodes that are played together with --inside."""


@dataclass(frozen=True)
class Record:
    """Record whole episodes of policies, with true rewards and final observations.

    The result is a dataset of steps, demonstrations, or clips to label. An interrupted recording continues when the command is
    repeated, and gets the same content as an uninterrupted one.
    """

    source: tyro.conf.Positional[str]
    """A run folder (the run may still be running) or one of its checkpoints, a preset or an environment id. With --inside: a run
    folder, a checkpoint, the folder of a saved agent (agent.json), a model of Stable-Baselines3 (.zip), or module:Name of your own
    agent."""
    out: Path
    """A folder for a recording: Arrow files (see rlhf_ray.data.recordings). Or an .npz file with flat arrays observations, actions,
    next_observations, rewards, terminals and timeouts."""
    mix: tuple[str, ...] = ()
    """The share of the steps of each policy, for example --mix expert=0.7 random=0.2 epsilon=0.1. policy: the run's, acting
    deterministically. expert: the environment's own scripted one. random: random actions. epsilon: the run's policy, or else the
    expert, with a share --epsilon of random actions. Default: the run's policy; the expert of an environment, if it has one; or
    random. With --inside: greedy (the most likely action), epsilon, and sampled (drawn from the policy); default: greedy."""
    epsilon: Share = 0.1
    """Share of random actions of the policy epsilon."""
    inside: bool = False
    """Record the agent's internals too: all logits, values, memory, and causes of ends, for `rlhf-ray interpret agent` and
    rlhf_ray.agents.recorded."""
    layers: tuple[str, ...] = ()
    """With --inside: layers whose outputs to record, for example --layers encoder.0."""
    states: bool = False
    """With --inside: record the environment's state at each observation, to go on from there."""
    environment: str | None = None
    """With --inside: the environment of an agent without a run."""
    episodes: Count | None = None
    """Number of episodes. Default: 20."""
    env_steps: Count | None = None
    """Number of environment steps instead; the last episode is recorded to its end. Without a time limit, episodes are cut."""
    actors: Natural = 0
    """Number of Ray actors that play, one CPU each. 0: play in this process, without Ray. The result is the same."""
    seed: int = 0
    """Random seed for the episodes and the random actions."""

    def __post_init__(self) -> None:
        check_values(self, "--")
        if self.episodes is not None and self.env_steps is not None:
            raise SettingError("Set either --episodes or --env-steps, not both.")
        if len(self.shares) != len(self.mix):
            raise SettingError(f"--mix is {' '.join(self.mix)}; it names a policy twice.")
        if self.inside:
            require(self.env_steps is None, "--env-steps", self.env_steps, "with --inside, set --episodes")
            require(self.out.suffix != ".npz", "--out", str(self.out), "with --inside, it must be a folder")
            return
        for name in ("layers", "states", "environment"):
            if getattr(self, name):
                raise SettingError(f"--{name} is for recordings with an agent's internals; add --inside.")

    @property
    def shares(self) -> dict[str, float]:
        """The share of each policy of ``mix``."""
        return dict(_share(word) for word in self.mix)


def run(words: list[str]) -> None:
    """Run the command."""
    command = parse_arguments(Record, "rlhf-ray record", words)
    with Lock(command.out):
        (_record_inside if command.inside else _record)(command)


def _record(command: Record) -> None:
    """Record steps."""
    plan, who = _plan(command)
    from rlhf_ray.agents.true_return import success_of
    from rlhf_ray.runs.record import record

    steps: Counter[str] = Counter()
    episodes: Counter[str] = Counter()
    outcome = ""

    def watch(steps_now: Counter[str], episodes_now: Counter[str], mean: float, success: float | None) -> None:
        nonlocal steps, episodes, outcome
        steps, episodes = steps_now, episodes_now
        share = success_of(success)
        outcome = f"mean true return {mean:.1f}" + (f", {share} of episodes succeeded" if share else "")
        bar.show((episodes if plan.env_steps is None else steps).total(), outcome)

    what, total = ("env steps", plan.env_steps) if plan.env_steps else ("episodes", plan.episodes or 0)
    with _continued(command.out), Counting(what, total) as bar:
        count = record(plan, command.out, actors=command.actors, watch=watch)
    if not episodes:
        print(f"{command.out} is already complete: {count} steps")
        return
    shares = ", ".join(f"{steps[name] / count:.0%} {name}" for name in plan.mix)
    acted = who if list(plan.mix) == ["policy"] else f"{shares} ({who})" if "policy" in plan.mix else shares
    print(f"{command.out}: {count} steps in {episodes.total()} episodes of {acted}, {outcome}")


def _record_inside(command: Record) -> None:
    """Record an agent's internals."""
    import torch

    from rlhf_ray.agents.recorded import InsidePlan
    from rlhf_ray.runs.policies import named_agent
    from rlhf_ray.runs.record import levels_of, record_inside_with

    torch.set_num_threads(1)
    acting = command.shares or {"greedy": 1.0}
    episodes = 20 if command.episodes is None else command.episodes
    levels = levels_of(command.seed, episodes)
    agent, environment, folder = named_agent(Path(command.source), command.environment)
    plan = InsidePlan(
        environment,
        levels,
        acting,
        command.epsilon,
        command.seed,
        min(COPIES, episodes),
        keep=command.layers,
        keep_states=command.states,
        gamma=folder.experiment().agent_settings.gamma if folder else GAMMA,
    )
    with _continued(command.out), Counting("episodes", episodes) as bar:
        recording = record_inside_with(
            plan, agent, command.out, actors=command.actors, watch=lambda done, total: bar.show(done, "")
        )
    print(
        f"{command.out}: {len(recording)} steps in {episodes} episodes of {agent.name} ({agent.digest}), with its internals"
    )


def _plan(command: Record) -> tuple[RecordingPlan, str]:
    """What to record, and a description of the run's policy."""
    mix = command.shares
    folder = RunFolder.of_policy(command.source)
    of_run, path = folder.config.exists(), folder.path
    if not of_run and path.exists() and ("/" in command.source or path.is_file() or (path / "agent.json").exists()):
        raise SettingError(
            f"{path} is not a run folder (no config.json); give the folder of a run, or add --inside for an agent without a run."
        )
    experiment = folder.experiment() if of_run else preset(command.source)
    from rlhf_ray import envs
    from rlhf_ray.runs.record import RecordingPlan

    policy, who, gamma, environment = None, "", GAMMA, experiment.environment
    if of_run:
        from rlhf_ray.runs.policies import newest_policy

        mix, gamma = mix or {"policy": 1.0}, experiment.agent_settings.gamma
        if {"policy", "epsilon"} & mix.keys():
            newest, iteration = newest_policy(folder)
            policy, who = newest.maker(), f"the policy of iteration {iteration}"
    elif not mix:
        env = envs.make_env(environment)
        mix = {"expert" if hasattr(env.unwrapped, "expert") else "random": 1.0}
        env.close()  # type: ignore[no-untyped-call]
    episodes = 20 if command.episodes is None and command.env_steps is None else command.episodes
    plan = RecordingPlan(environment, mix, command.seed, episodes, command.env_steps, command.epsilon, policy, gamma)
    return plan, who


def _share(word: str) -> tuple[str, float]:
    name, _, value = word.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise SettingError(f"--mix has {word!r}; write POLICY=SHARE, for example expert=0.7.") from None


@contextlib.contextmanager
def _continued(out: Path) -> Iterator[None]:
    """On an interrupt, raise KeyboardInterrupt with the way to continue."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        said = "nothing is saved" if out.suffix == ".npz" else f"repeat the command to continue {out}"
        raise KeyboardInterrupt(f"stopped; {said}") from stopped
