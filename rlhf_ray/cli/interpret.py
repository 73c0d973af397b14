"""`rlhf-ray interpret`: what does a reward look at, and what goes on inside an agent?"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from rlhf_ray.cli import overview
from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.presets import spaces_of
from rlhf_ray.cli.studies import check_amounts, own_steps, print_screen, run_shown, writable
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.lock import Lock
from rlhf_ray.interpret.reward.preprocess.problem import Options
from rlhf_ray.runs.interruption import nothing_to_save
from rlhf_ray.settings.checks import require

if TYPE_CHECKING:
    from rlhf_ray.interpret.reward.subject import Subject

SUBJECTS = {
    "reward": "a report: what the reward seems to reward, what it ignores, which checks failed, with the evidence",
    "agent": "a report and a panel: what the agent sees, remembers and uses, tested by intervention",
    "preprocess": "an equivalent reward that is easier to read: sparse or smooth, by potential shaping",
}


@dataclass(frozen=True)
class InterpretReward:
    """Report what a reward looks at: one HTML page and a JSON twin. A stopped report continues where it stopped."""

    run: tyro.conf.Positional[Path | None] = None
    """The run folder. Its reward model is examined on new steps of its policy."""
    model: str | None = None
    """A reward instead of the run's: a reward model's folder, a table (.npz), a network saved by imitation (.pt), or module:Name of
    your own function."""
    truth: str | None = None
    """module:Name of a function to judge the reward by, as with --model. Default: the recorded rewards, and the environment's own
    function where it agrees with them."""
    data: Path | None = None
    """Steps to look at instead of new ones: a recording of `rlhf-ray record`, an .npz, or trajectories saved by imitation."""
    environment: str | None = None
    """The environment, for its grid, its features' names and the agents trained in it. Not needed with RUN or a recording."""
    edits: Path | None = None
    """Your own counterfactuals: a JSON file of edits, or a folder of edited PNGs (docs/interpret_reward.md)."""
    out: Path | None = None
    """The report's folder. Default: interpret/reward in the run folder; without a run, reward_report."""
    steps: tuple[str, ...] = ()
    """Run these steps only, for example --steps header effects (docs/interpret_reward.md); or module:Name of yours."""
    methods: tuple[str, ...] = ()
    """Use these attribution methods only, for example --methods saliency occlusion_donor (docs/interpret_reward.md); or module:Name
    of yours."""
    effort: float = 1.0
    """Amount of work: 0.2 for a quick look, 3 for a thorough one."""
    gamma: float | None = None
    """Discount factor of the agent that learns from the reward. Default: the run's, else 0.99."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        if self.run is None and (self.model is None or self.data is None):
            raise SettingError("Give a run folder, or both --model and --data.")
        if self.run is not None and not (self.run / "config.json").exists() and (self.run / "reward.json").exists():
            raise SettingError(
                f"{self.run} is a reward model, not a run; give --model {self.run} and --data with steps."
            )
        check_amounts(self.effort, self.seed)
        rule = "it must be above 0 and at most 1"
        require(self.gamma is None or 0 < self.gamma <= 1, "--gamma", self.gamma, rule)


def no_subject(words: list[str]) -> None:
    """Run `rlhf-ray interpret` without a subject: explain what there is."""
    if not words or words[0] in ("-h", "--help"):
        text = "`rlhf-ray interpret reward --help` (or agent, preprocess) lists the options."
        print(overview("rlhf-ray interpret SUBJECT …", SUBJECTS, text))
        sys.exit(0 if words else 2)
    there = ", ".join(f"`rlhf-ray interpret {name}`" for name in SUBJECTS)
    raise SettingError(f"`rlhf-ray interpret {words[0]}` does not exist; there are {there}.")


def reward(words: list[str]) -> None:
    """Run `rlhf-ray interpret reward`."""
    command: InterpretReward = parse_arguments(InterpretReward, "rlhf-ray interpret reward", words)
    from rlhf_ray.data.places import in_job, run_path
    from rlhf_ray.interpret.attribution import known_methods
    from rlhf_ray.interpret.reward.report import reward_study, write_report

    known_methods(command.methods)
    out = writable(run_path(command.out or (command.run / "interpret" / "reward" if command.run else "reward_report")))
    with Lock(out):
        study = reward_study(_subject(command), out, own_steps(command.steps))
        sections = run_shown(study, command.steps, processes=in_job())
        source = str(command.data or "new rollouts of the run's policy")
        report = write_report(study, sections, {"model": str(command.model or command.run), "data": source})
    print_screen(report.screen, {"report": report.page})


def _subject(command: InterpretReward) -> Subject:
    """Load the reward, the true one if it is given, and the steps."""
    from rlhf_ray.data.inputs import shape_remedy
    from rlhf_ray.data.recordings import environment_of
    from rlhf_ray.interpret.reward.subject import Subject
    from rlhf_ray.reward.functions.loading import load_reward
    from rlhf_ray.runs.folder import RunFolder
    from rlhf_ray.runs.interpret import check_reported, check_steps, given_steps, steps_of_run

    folder = None if command.run is None else RunFolder.open(command.run)
    experiment = None if folder is None else folder.experiment()
    environment, gamma = command.environment, 0.99
    if experiment is not None:
        environment, gamma = environment or experiment.environment, experiment.agent_settings.gamma
    elif environment is None:
        assert command.data is not None
        environment = environment_of(command.data)
    spaces: tuple[Any, Any] = (None, None) if environment is None else spaces_of(environment)
    source = command.model or (None if folder is None else folder.path)
    assert source is not None
    function = load_reward(source, *spaces)
    if command.data is not None:
        data = given_steps(command.data, command.seed)
    else:
        assert folder is not None
        data = steps_of_run(folder, command.seed)
    if command.environment is not None and spaces[0].shape != data.observations.shape[1:]:
        raise SettingError(
            f"--environment is {environment}, which has observations of shape {spaces[0].shape}; those of the steps have "
            f"{data.observations.shape[1:]}. {shape_remedy(data.observations.shape[1:], spaces[0].shape)}"
        )
    check_reported(function)
    truth = None if command.truth is None else load_reward(command.truth, *spaces)
    for each in (function, truth):
        if each is not None:
            data = check_steps(each, data, command.data or str(environment))
    gamma = gamma if command.gamma is None else command.gamma
    return Subject(
        function, data, gamma, command.seed, environment, None, command.effort, command.edits, command.methods, truth
    )


@dataclass(frozen=True)
class InterpretAgent:
    """Report what an agent remembers, sees and uses: a page, its JSON twin, and a panel to explore. Finished steps are kept."""

    run: tyro.conf.Positional[Path]
    """A run folder, whose newest policy is examined; a checkpoint; the folder of a saved agent (agent.json); a model of
    Stable-Baselines3 (.zip); or module:Name of your own agent."""
    environment: str | None = None
    """The environment. Default: the run's. Needed for any other agent."""
    out: Path | None = None
    """The report's folder. Default: interpret/agent in the run folder; for any other agent, agent_report."""
    steps: tuple[str, ...] = ()
    """Run these steps only, and those that they read, for example --steps bases effects
    (docs/agent_report.md), or module:Name of your own."""
    methods: tuple[str, ...] = ()
    """Use these attribution methods only, for example --methods saliency occlusion_donor (docs/agent_report.md); or module:Name of
    your own."""
    effort: float = 1.0
    """Amount of work: 0.2 for a quick look, 3 for a thorough one."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        check_amounts(self.effort, self.seed)


def agent(words: list[str]) -> None:
    """Run `rlhf-ray interpret agent`."""
    command: InterpretAgent = parse_arguments(InterpretAgent, "rlhf-ray interpret agent", words)
    from rlhf_ray.agents.agent import NetworkAgent
    from rlhf_ray.data.places import run_path
    from rlhf_ray.interpret.agent.report import agent_study, write_agent_report
    from rlhf_ray.interpret.agent.steps.recording import check_agent
    from rlhf_ray.interpret.agent.subject import AgentSubject
    from rlhf_ray.interpret.attribution import known_methods
    from rlhf_ray.runs.policies import named_agent

    known_methods(command.methods)
    agent, environment, folder = named_agent(command.run, command.environment)
    default_out = Path("agent_report") if folder is None else folder.path / "interpret" / "agent"
    subject = AgentSubject(agent, environment, command.seed, command.effort, methods=command.methods)
    check_agent(subject)
    study = agent_study(subject, writable(run_path(command.out or default_out)), own_steps(command.steps))
    about: dict[str, Any] = {"agent": agent.name, "digest": agent.digest, "environment": environment}
    about |= {"seed": command.seed, "effort": command.effort, "from": str(command.run)}
    with Lock(study.folder):
        sections = run_shown(
            study, command.steps, processes=isinstance(agent, NetworkAgent)
        )  # functions may not travel
        page, screen = write_agent_report(sections, study.folder, about)
    print_screen(screen, {"panel": page.parent / "panel" / "index.html", "report": page})


@dataclass(frozen=True)
class Preprocess:
    """Add potential shaping to a reward so that it becomes sparse or smooth. Optimal policies stay the same."""

    path: tyro.conf.Positional[str]
    """A run folder, a reward model's folder, a table (.npz), or a network saved by imitation (.pt)."""
    data: Path | None = None
    """Steps to make it sparse or smooth on: a recording of `rlhf-ray record`, an .npz, or trajectories saved by imitation. Not
    needed with --environment if that has a table of its states."""
    environment: str | None = None
    """An environment with a table of its states, such as rlhf_ray/EmptyMaze10-v0: all its steps count, and optimal actions are
    compared."""
    out: Path = Path("preprocessed")
    """Folder for the new reward, its certificate and pictures."""
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        if (self.data is None) == (self.environment is None):
            raise SettingError("Give either --data with recorded steps, or --environment with a table of its states.")


def preprocess(words: list[str]) -> None:
    """Run `rlhf-ray interpret preprocess`."""
    command: Preprocess = parse_arguments(Preprocess, "rlhf-ray interpret preprocess", words)
    writable(command.out)
    with Lock(command.out):
        _preprocess(command)


def _preprocess(command: Preprocess) -> None:
    with nothing_to_save():
        import torch

        from rlhf_ray import envs
        from rlhf_ray.data.recordings import load_transitions
        from rlhf_ray.interpret.reward.preprocess.certificate import tables_of
        from rlhf_ray.interpret.reward.preprocess.run import preprocess, write
        from rlhf_ray.reward.functions.loading import load_reward
        from rlhf_ray.runs.interpret import check_steps
    torch.set_num_threads(1)
    if command.environment is None:
        assert command.data is not None
        reward = load_reward(command.path)
        found = preprocess(reward, check_steps(reward, load_transitions(command.data), command.data), command.options)
    else:
        try:
            env = envs.make_env(command.environment)
        except (ValueError, ImportError) as error:
            raise SettingError(str(error)) from error
        reward = load_reward(command.path, env.observation_space, env.action_space)
        tables = tables_of(env, command.options.gamma)
        if tables is None:
            raise SettingError(
                f"--environment is {command.environment}, which has no table of its states; give recorded steps with --data."
            )
        found = preprocess(reward, tables.mdp, command.options, observations=tables.observations)
    write(found, command.out, base_path=command.path)
    print(f"{command.out}: {found.certificate}")
    for warning in found.certificate.warnings:
        print(f"Warning: {warning}")
