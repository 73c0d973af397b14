"""`rlhf-ray interpret agent`: what goes on inside an agent?"""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.interpret import check_amounts, check_writable
from rlhf_ray.data.errors import SettingError

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

    from rlhf_ray.interpret.agent.agent import Agent
    from rlhf_ray.interpret.agent.report import AgentVerdict
    from rlhf_ray.interpret.agent.runner import Say, Submit
    from rlhf_ray.runs.progress import Counting

WORKERS = 2
"""Steps that run at the same time."""


@dataclass(frozen=True)
class InterpretAgent:
    """Report what goes on inside an agent: a page, its JSON twin, and a panel to explore. Finished steps are kept."""

    run: tyro.conf.Positional[Path]
    """A run folder, whose newest policy is examined; the folder of a saved agent (agent.json); or module:Name of your own agent."""
    environment: str | None = None
    """The environment. Default: the run's. Needed for any other agent."""
    out: Path | None = None
    """The report's folder. Default: interpret/agent in the run folder; for any other agent, agent_report."""
    steps: tuple[str, ...] = ()
    """Run these steps only, and those that they read, for example --steps bases interventions (docs/agent_report.md)."""
    against: Path | None = None
    """Compare with another agent of the same environment (a run folder, a saved agent, module:Name): do they use the same features?
    The page is against_NAME/comparison.html in the report's folder."""
    effort: float = 1.0
    """Amount of work: 0.2 for a quick look, 3 for a thorough one."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        check_amounts(self.effort, self.seed)
        if self.against is not None and self.steps:
            raise SettingError("--steps chooses steps of one agent's report; leave it out with --against.")


def agent_command(words: list[str]) -> None:
    """Run `rlhf-ray interpret agent`."""
    command: InterpretAgent = parse_arguments(InterpretAgent, "rlhf-ray interpret agent", words)
    if command.against is not None:
        _compare(command, command.against)
        return
    import torch

    from rlhf_ray.data.places import in_job, run_path
    from rlhf_ray.interpret.agent.agent import NetworkAgent
    from rlhf_ray.interpret.agent.report import write_agent_report
    from rlhf_ray.interpret.agent.runner import Chain, run_chain, with_needed
    from rlhf_ray.interpret.agent.steps import NAMES
    from rlhf_ray.runs.interpret import map_over_ray
    from rlhf_ray.runs.progress import Counting

    if unknown := [name for name in command.steps if name not in NAMES]:
        raise SettingError(f"--steps has {unknown[0]!r}; the steps are {', '.join(NAMES)}.")
    agent, environment, default_out = _subject(command)
    out = _writable(run_path(command.out or default_out))
    torch.set_num_threads(1)
    chain = Chain(agent, environment, out, command.seed, command.effort)
    names = with_needed(command.steps or NAMES)
    try:
        with Counting("steps", len(names)) as bar:
            shown = _Shown(bar)
            own = not isinstance(agent, NetworkAgent)  # functions may not travel
            with _here(shown.says) if own else _pool(shown.says) as submit:
                mapper = map_over_ray if in_job() else map
                sections = run_chain(chain, names, submit=submit, mapper=mapper, told=shown.finished)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; finished steps are kept, and the same command continues") from None
    about: dict[str, Any] = {"agent": agent.name, "digest": agent.digest, "environment": environment}
    about |= {"seed": command.seed, "effort": command.effort, "from": str(command.run)}
    page, verdict = write_agent_report(sections, out, about)
    _say(verdict, page)


class _Shown:
    """What the bar shows: how many steps are finished, and what the running ones are doing."""

    def __init__(self, bar: Counting):
        self._bar, self._done = bar, 0
        self._doing: dict[str, str] = {}
        self._over: set[str] = set()

    def says(self, name: str, text: str) -> None:
        """A step is doing something."""
        if name not in self._over:  # words of a finished step can come late
            self._doing[name] = text
            self._show()

    def finished(self, name: str, kept: bool) -> None:
        """A step is finished."""
        self._over.add(name)
        self._doing.pop(name, None)
        self._done += 1
        self._show()

    def _show(self) -> None:
        self._bar.show(self._done, "; ".join(dict(self._doing).values()))


@contextlib.contextmanager
def _here(says: Say) -> Iterator[None]:
    """Run steps in this process."""
    from rlhf_ray.interpret.agent.runner import listen

    listen(says)
    try:
        yield None
    finally:
        listen(lambda name, text: None)


@contextlib.contextmanager
def _pool(says: Say) -> Iterator[Submit]:
    """Run steps in processes of a pool; stop them at once when the block is interrupted."""
    spawn = get_context("spawn")
    queue: SimpleQueue[tuple[str, str] | None] = spawn.SimpleQueue()
    listener = Thread(target=_listen, args=(queue, says), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(WORKERS, spawn, _start_worker, (queue,))
    try:
        yield pool.submit
    except BaseException:
        for process in active_children():
            process.terminate()  # the queue may stay locked: don't wait for the listener
        raise
    else:
        queue.put(None)
        listener.join()
    finally:
        pool.shutdown(cancel_futures=True)


def _listen(queue: SimpleQueue[tuple[str, str] | None], says: Say) -> None:
    while (said := queue.get()) is not None:
        says(*said)


def _start_worker(queue: SimpleQueue[tuple[str, str] | None]) -> None:
    """Prepare a process of the pool. The command stops it: Ctrl-C reaches all processes of a terminal."""
    import torch

    from rlhf_ray.interpret.agent.runner import listen

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    listen(lambda name, text: queue.put((name, text)))


def _compare(command: InterpretAgent, against: Path) -> None:
    """Compare the agent with another one."""
    import re

    import torch
    from rich.console import Console

    from rlhf_ray.data.places import run_path
    from rlhf_ray.envs.batches import BatchCreator
    from rlhf_ray.interpret.agent.comparison import PARTS, AgentPair, compare, write_comparison
    from rlhf_ray.runs.agents import named_agent
    from rlhf_ray.runs.progress import Counting

    agent, environment, default_out = _subject(command)
    other, _, _ = named_agent(against, environment)
    pair = AgentPair(agent, other, environment, BatchCreator(environment), command.seed, command.effort)
    name = re.sub(r"[^\w.-]+", "_", against.resolve().name if against.exists() else str(against))
    out = _writable(run_path(command.out or default_out / f"against_{name}"))
    torch.set_num_threads(1)
    done = itertools.count(1)
    try:
        with Counting("parts", len(PARTS)) as bar:
            sections = compare(pair, out, lambda of, kept: bar.show(next(done), f"{of} (kept)" if kept else of))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; finished parts are kept, and the same command continues") from None
    page, found = write_comparison(pair, sections, out, {"from": str(command.run), "against": str(against)})
    console = Console()
    console.print("Do they use the same features?", style="bold")
    for sentence in found.sentences:
        console.print(f"  {sentence}", highlight=False, markup=False)
    for section in sections:
        for check in section.checks:
            if check.passed is False:
                console.print(f"  {section.title}: {check.says}", highlight=False, markup=False)
    console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)


def _writable(out: Path) -> Path:
    check_writable(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"--out is {out}, which can't be made ({error.strerror}); give another folder.") from None
    return out


def _subject(command: InterpretAgent) -> tuple[Agent, str, Path]:
    """Load the agent; return it with its environment's name and the report's default folder."""
    from rlhf_ray.runs.agents import named_agent

    agent, environment, folder = named_agent(command.run, command.environment)
    return agent, environment, Path("agent_report") if folder is None else folder.path / "interpret" / "agent"


def _say(verdict: AgentVerdict, page: Path) -> None:
    """Print the verdict."""
    from rich.console import Console

    from rlhf_ray.interpret.report.said import MOST

    console = Console()
    heads = {
        "uses": "It uses",
        "holds": "It holds or sees, but is not shown to need",
        "ignores": "It ignores, as far as was tested",
        "warnings": "Warnings",
        "failed": "Failed checks",
    }
    for kind, head in heads.items():
        said = getattr(verdict, kind)
        if said:
            console.print(head, style="bold")
            for each in said[:MOST]:
                console.print(f"  {each.text}", highlight=False, markup=False)
    panel = page.parent / "panel" / "index.html"
    for what, path in (("panel", panel), ("report", page)):
        if path.exists():
            console.print(f"{what}: {path}", highlight=False, markup=False, soft_wrap=True)
