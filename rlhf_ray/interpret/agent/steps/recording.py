"""Record episodes of the agent, greedy ones and ones with random actions, with everything that goes on inside."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch

from rlhf_ray.agents.agent import MEMORY, Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import NotANumberError, play, site_of
from rlhf_ray.agents.recorded import SHARES, load_episodes, record_inside, split_of
from rlhf_ray.data.errors import BrokenAgentError, SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.recordings import Recording
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.subject import AgentContext, AgentSubject
from rlhf_ray.interpret.attribution.drawing import strip
from rlhf_ray.measure.intervals import mean_interval
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "recording", "Recorded episodes"

ACTING = {"greedy": 0.4, "epsilon": 0.6}
"""Shares of the episodes. Episodes with random actions show the world model what the agent would never do."""
EPSILON = 0.3
STEPS = 40_000
BYTES = 400 * 2**20
"""Steps to record, and bytes of observations, at effort 1: whichever is less."""
FEWEST, LONGEST = 40, 1000
"""Fewest episodes; steps after which an episode is cut."""
COPIES = 32
STATE_BYTES = 4096
"""States are kept if they are not larger: others come back by playing the level again."""
SHOWN = 10
"""Frames in the picture."""
HELD_OUT = 300
"""Held-out levels that are compared with each other: what most steps read."""
TRIED = 200
"""Steps that the agent acts before any step of the study: NaN weights show in the first."""
CLOSE = 1e-3
"""How far logits that are computed anew may be from recorded ones."""


@dataclass(frozen=True)
class Played:
    """Episodes of one way of acting: how many, their steps, their mean true return with its interval, and how they end."""

    episodes: int
    steps: int
    mean_return: float
    interval: list[float] | None
    causes: dict[str, int]


@dataclass(frozen=True)
class RecordedEpisodes:
    """What the step records and checks."""

    agent: str  # the agent's digest
    acting: dict[str, Played]  # the episodes by how they were acted: greedy, epsilon
    splits: dict[str, int]  # number of episodes of each split
    held_out: int  # levels of the test split, which intervals of other steps are over, at most `HELD_OUT`
    distinct: int  # how many different ones are among them, under the same actions
    wrong_frames: int  # frames that differ when levels and actions are played again
    worst_logit: float  # largest difference of logits that are computed anew


def check_agent(subject: AgentSubject) -> None:
    """Let the agent act, before any step.

    Raises:
        BrokenAgentError: it returns NaN or infinite numbers. Actions may have a log-odds of minus infinity.
    """
    try:
        played = subject.play(range(COPIES), max_steps=TRIED, frames=False)
    except NotANumberError as error:
        raise BrokenAgentError(
            f"{error} Its weights may be broken: train again, or give an earlier checkpoint."
        ) from error
    logits, values = played.logits[played.real], played.values[played.real]
    discrete = isinstance(subject.agent.action_space, gym.spaces.Discrete)
    broken = np.asarray(~np.isfinite(logits.max(1)) if discrete else ~np.isfinite(logits).all(1))
    for what, wrong in (("the inputs of its action distribution", broken), ("its value", ~np.isfinite(values))):
        if wrong.any():
            raise BrokenAgentError(
                f"{subject.agent.name} returns NaN or infinite numbers for {what}, at {int(wrong.sum())} of {len(wrong)} steps: "
                "train again, or give an earlier checkpoint."
            )


def run(context: AgentContext) -> Section:
    """Record to ``context.out``, and check what was recorded."""
    subject, rng = context.subject, context.rng(NAME)
    with closing(subject.make_batch(COPIES)) as batch:
        count = _episodes(context, batch, rng)
        levels = rng.choice(2**31 - 1, size=count, replace=False).tolist()
        context.say(f"recording {count} episodes")
        keep: tuple[str, ...] = ()
        keep_states = False
        with suppress(SettingError):  # there is nothing to look into
            keep = () if (site := site_of(subject.agent)) == MEMORY else (site,)
        with suppress(SettingError):  # the environment can't save them
            keep_states = len(batch.states()[0]) <= STATE_BYTES
        record_inside(
            subject.agent,
            batch,
            levels,
            context.unfinished,
            acting=ACTING,
            epsilon=EPSILON,
            seed=subject.seed,
            max_steps=LONGEST,
            keep=keep,
            keep_states=keep_states,
        )
        shutil.copytree(context.unfinished, context.out, dirs_exist_ok=True)
        figures = _measure(context, batch)
    pictures = []
    if is_image(subject.agent.observation_space):
        pictures.append(Picture("frames", _draw(load_episodes(context.out, most=1)), "Frames of the first episode."))
    return Section(NAME, TITLE, checks_of(figures), (), [_table(figures)], pictures, (), values_of(figures))


def _episodes(context: AgentContext, batch: EnvBatch, rng: np.random.Generator) -> int:
    """Return how many episodes make the steps wanted, by the length of a few."""
    levels = rng.integers(2**31 - 1, size=batch.n).tolist()
    first = play(context.subject.agent, batch, levels, max_steps=LONGEST, frames=False)
    space = batch.observation_space
    size = max(1, int(np.prod(space.shape or (1,))) * (space.dtype or np.dtype("f4")).itemsize)
    steps = context.subject.effort * min(STEPS, BYTES / size)
    return max(FEWEST, round(steps / float(first.lengths.mean())))


def _measure(context: AgentContext, batch: EnvBatch) -> RecordedEpisodes:
    agent = context.subject.agent
    episodes = load_episodes(context.out, agent=agent, frames=False)
    policies, causes = np.array(Recording(context.out).policies), np.array(episodes.ends)
    acting: dict[str, Played] = {}
    for name in ACTING:
        chosen = policies == name
        returns, steps = episodes.returns[chosen], int(episodes.lengths[chosen].sum())
        ends = dict(Counter(causes[chosen].tolist()).most_common())
        mean, interval = float(returns.mean()), mean_interval(returns.tolist())
        acting[name] = Played(int(chosen.sum()), steps, mean, interval, ends)
    splits = Counter(split_of(level) for level in episodes.levels)
    held_out = np.unique([level for level in episodes.levels if split_of(level) == "test"])[:HELD_OUT]
    groups = context.subject.groups(held_out)
    some = load_episodes(context.out, most=batch.n)
    wrong, worst = _wrong_frames(batch, some), _worst_logit(agent, some)
    counts = {name: splits[name] for name in SHARES}
    return RecordedEpisodes(agent.digest, acting, counts, len(held_out), len(np.unique(groups)), wrong, worst)


def _wrong_frames(batch: EnvBatch, some: Episodes) -> int:
    """Play recorded episodes again, from their levels and actions: each frame must come back."""
    rows = np.minimum(np.arange(batch.n), len(some) - 1)
    seen, wrong = batch.reset(some.levels[rows].tolist()), 0
    for t in range(some.actions.shape[1] + 1):
        real = t <= some.lengths
        wrong += int((seen[: len(some)] != some.observations[:, t])[real].any(axis=tuple(range(1, seen.ndim))).sum())
        if t < some.actions.shape[1]:
            seen = batch.step(some.actions[rows, t]).observations
    return wrong


def _worst_logit(agent: Agent, some: Episodes) -> float:
    """Compute the agent's memory and logits anew, along whole recorded episodes."""
    memory, worst = agent.initial_memory(len(some)), 0.0
    with torch.no_grad():
        for t in range(some.actions.shape[1]):
            real = t < some.lengths
            step = agent.step(torch.as_tensor(some.observations[:, t]), memory)
            worst = max(worst, float(np.abs(step.logits.numpy() - some.logits[:, t])[real].max(initial=0.0)))
            memory = step.memory
    return worst


def checks_of(figures: RecordedEpisodes) -> list[Check]:
    """Check that world and agent repeat themselves."""
    other = "What a change does can't be told from that: seed everything in reset(seed=…)."
    noise = "What a change does can't be told from that: switch dropout and other noise off."
    again, answers = "frames that differ when levels are played again", "logits' difference when computed again"
    close = figures.worst_logit < CLOSE
    return [
        Check.of(again, not figures.wrong_frames, figures.wrong_frames, "0", other),
        Check.of(answers, close, figures.worst_logit, f"< {CLOSE:g}", noise),
    ]


def _table(figures: RecordedEpisodes) -> Table:
    rows = []
    for name, played in figures.acting.items():
        low, high = played.interval or (np.nan, np.nan)
        ends = ", ".join(f"{cause} {count / played.episodes:.0%}" for cause, count in played.causes.items())
        title = "greedy" if name == "greedy" else f"{EPSILON:.0%} random actions"
        rows.append([title, played.episodes, played.steps, f"{played.mean_return:.2f} [{low:.2f}, {high:.2f}]", ends])
    splits = ", ".join(f"{name} {count}" for name, count in figures.splits.items())
    caption = (
        f"What was recorded, with everything that goes on inside the agent. Episodes by their levels' split: {splits}."
    )
    return Table(["acting", "episodes", "steps", "return", "how they end"], rows, caption)


def _draw(episode: Episodes) -> bytes:
    """Draw frames of the first episode, evenly spaced from the first to the last."""
    length = int(episode.lengths[0])
    steps = np.unique(np.linspace(0, length, min(SHOWN, length + 1)).round().astype(int))
    return strip(episode.observations[:1, steps], None, [""], [f"step {step}" for step in steps])


STEP = Step(NAME, TITLE, run)
