"""Step: record episodes of the agent, greedy ones and ones with random actions, with everything that goes on inside."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from rlhf_ray.agents.agent import MEMORY, Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play
from rlhf_ray.agents.recorded import SHARES, load_episodes, split_of
from rlhf_ray.agents.recording import record_inside
from rlhf_ray.agents.replay import site_of
from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.recordings import Recording
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.effects import causes_of
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.measure.intervals import mean_interval
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step

NAME = "recording"
TITLE = "Recorded episodes"

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
SAME = 0.25
"""Share of different episodes up to which levels count as repeating. A small world has few levels, but more than that."""


def why_not(context: AgentContext) -> str | None:
    """Any agent can be recorded."""
    return None


def run(context: AgentContext) -> Section:
    """Record to ``context.out``, and check what was recorded."""
    rng = context.rng(NAME)
    batch = context.subject.make_batch(COPIES)
    try:
        count = _episodes(context, batch, rng)
        levels = rng.choice(2**31 - 1, size=count, replace=False).tolist()
        context.say(f"recording {count} episodes")
        record_inside(
            context.subject.agent,
            batch,
            levels,
            context.unfinished,
            acting=ACTING,
            epsilon=EPSILON,
            seed=context.subject.seed,
            max_steps=LONGEST,
            keep=_layers(context.subject.agent),
            keep_states=_keeps_states(batch),
        )
        shutil.copytree(context.unfinished, context.out, dirs_exist_ok=True)
        episodes = load_episodes(context.out, agent=context.subject.agent, frames=False)
        checks = [_repeats(context, batch), _remembers(context)]
        different = _different(context, batch.n)
    finally:
        batch.close()
    greedy = np.array(Recording(context.out).policies) == "greedy"
    return _section(context, episodes, greedy, checks, different)


def _episodes(context: AgentContext, batch: EnvBatch, rng: np.random.Generator) -> int:
    """Return how many episodes make the steps wanted, by the length of a few."""
    first = play(
        context.subject.agent, batch, rng.integers(2**31 - 1, size=batch.n).tolist(), max_steps=LONGEST, frames=False
    )
    space = batch.observation_space
    steps = context.subject.effort * min(
        STEPS, BYTES / max(1, int(np.prod(space.shape or (1,))) * (space.dtype or np.dtype("f4")).itemsize)
    )
    return max(FEWEST, round(steps / float(first.lengths.mean())))


def _layers(agent: Agent) -> tuple[str, ...]:
    """Return the layer to look into of an agent without memory, if it has one."""
    try:
        site = site_of(agent)
    except SettingError:
        return ()
    return () if site == MEMORY else (site,)


def _keeps_states(batch: EnvBatch) -> bool:
    try:
        return len(batch.states()[0]) <= STATE_BYTES
    except SettingError:
        return False


def _repeats(context: AgentContext, batch: EnvBatch) -> Check:
    """Play the first recorded episodes again, from their levels and actions: each frame must come back."""
    some = load_episodes(context.out, most=batch.n)
    rows = np.minimum(np.arange(batch.n), len(some) - 1)
    seen, wrong = batch.reset(some.levels[rows].tolist()), 0
    for t in range(some.actions.shape[1] + 1):
        real = t <= some.lengths
        wrong += int((seen[: len(some)] != some.observations[:, t])[real].any(axis=tuple(range(1, seen.ndim))).sum())
        if t < some.actions.shape[1]:
            seen = batch.step(some.actions[rows, t]).observations
    says = f"{wrong} frames differ when the same levels and actions are played again: the environment is not deterministic."
    return Check(
        "levels and actions repeat the frames", wrong == 0, float(wrong), "0 frames differ", says if wrong else ""
    )


def _remembers(context: AgentContext) -> Check:
    """Compute the agent's memory and logits anew, along whole recorded episodes."""
    some = load_episodes(context.out, most=COPIES)
    memory, worst = context.subject.agent.initial_memory(len(some)), 0.0
    with torch.no_grad():
        for t in range(some.actions.shape[1]):
            real = t < some.lengths
            step = context.subject.agent.step(torch.as_tensor(some.observations[:, t]), memory)
            worst = max(worst, float(np.abs(step.logits.numpy() - some.logits[:, t])[real].max(initial=0.0)))
            memory = step.memory
    says = f"Logits computed anew differ by up to {worst:.2g} from the recorded ones."
    return Check("memory and logits come out again", worst < 1e-3, worst, "< 0.001", says if worst >= 1e-3 else "")


def _different(context: AgentContext, most: int) -> tuple[int, int]:
    """Return how many of the first greedy episodes differ from each other in any frame, and how many they are."""
    some = load_episodes(context.out, most=most)
    greedy = np.flatnonzero(np.array(Recording(context.out).policies)[: len(some)] == "greedy")
    return len({some.observations[i, : some.lengths[i] + 1].tobytes() for i in greedy}), len(greedy)


def _section(
    context: AgentContext, episodes: Episodes, greedy: BoolArray, checks: list[Check], different: tuple[int, int]
) -> Section:
    returns, rows = episodes.returns, []
    values: dict[str, Any] = {}
    for name, chosen in (("greedy", greedy), (f"{EPSILON:.0%} random actions", ~greedy)):
        causes = Counter(np.array(causes_of(episodes))[chosen].tolist())
        low, high = mean_interval(returns[chosen].tolist()) or (np.nan, np.nan)
        rows.append(
            [
                name,
                int(chosen.sum()),
                int(episodes.lengths[chosen].sum()),
                f"{returns[chosen].mean():.2f} ({low:.2f} to {high:.2f})",
                ", ".join(f"{cause} {count / chosen.sum():.0%}" for cause, count in causes.most_common()),
            ]
        )
        values["greedy" if chosen is greedy else "epsilon"] = {
            "episodes": int(chosen.sum()),
            "steps": int(episodes.lengths[chosen].sum()),
            "return": float(returns[chosen].mean()),
            "interval": [float(low), float(high)],
            "causes": dict(causes),
        }
    splits = Counter(split_of(level) for level in episodes.levels)
    held = ", ".join(f"{splits[name]} {name}" for name in SHARES)
    statements = []
    if different[0] <= SAME * different[1]:  # equal returns alone prove nothing: an agent may always win
        says = (
            f"Levels repeat: of {different[1]} greedy episodes on as many levels, only {different[0]} differ in any frame. Levels "
            "held out are then no new ones."
        )
        statements.append(Statement("warning", says, 1.0))
    table = Table(
        ["actions", "episodes", "steps", "true return (95 % interval)", "ends"],
        rows,
        f"Recorded episodes, each on a level of its own: {held}. A level is in one split only. Of the first {different[1]} greedy "
        f"episodes, {different[0]} differ in any frame.",
    )
    pictures = []
    if is_image(context.subject.agent.observation_space):
        pictures.append(Picture("frames", _strip(load_episodes(context.out, most=1)), "Frames of one greedy episode."))
    values |= {"splits": dict(splits), "agent": context.subject.agent.digest}
    return Section(NAME, TITLE, statements, checks, [table], pictures, values)


def _strip(episode: Episodes) -> bytes:
    """Draw frames of the first episode, evenly spaced from the first to the last."""
    length = int(episode.lengths[0])
    at = np.unique(np.linspace(0, length, min(SHOWN, length + 1)).round().astype(int))
    figure = Figure((1.2 * len(at), 1.5), layout="constrained")
    for axes, t in zip(figure.subplots(1, len(at), squeeze=False)[0], at, strict=True):
        frame: Array = episode.observations[0, t]
        axes.imshow(frame[..., :3] if frame.shape[-1] >= 3 else frame[..., -1], cmap="gray", interpolation="nearest")
        axes.set(xticks=[], yticks=[], title=f"step {t}")
    return png(figure)


STEP = Step(NAME, TITLE, run, why_not=why_not)
