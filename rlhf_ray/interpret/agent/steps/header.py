"""What the agent achieves: its return beside that of random actions, how episodes end, on how many levels, and a film."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.recorded import load_episodes
from rlhf_ray.data.arrays import Array, IntArray
from rlhf_ray.data.images import is_image
from rlhf_ray.data.recordings import Recording
from rlhf_ray.interpret.agent.steps.recording import LONGEST, RecordedEpisodes, checks_of
from rlhf_ray.interpret.agent.subject import FEW, AgentContext, nothing_recorded
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean, share_interval
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.plots import film, rgb
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step

NAME, TITLE = "header", "The agent"

MOST = 200
"""Levels that random actions are played on."""
FRAMES, SIDE, MILLISECONDS = 150, 128, 80
"""Frames of the film, at most; pixels of its smaller side, at least; time of each."""


@dataclass(frozen=True)
class Achieved:
    """What the step finds."""

    returns: MeanEstimate  # of greedy episodes
    random: MeanEstimate  # of random actions on the same levels
    beside_random: MeanEstimate  # the difference, by level
    spread: float  # standard deviation of the greedy returns
    ends: dict[str, MeanEstimate]  # share of the greedy episodes by how they end
    levels: int  # distinct levels among these
    action_share: float | None  # the share of steps with the most frequent action; of Box actions None

    @property
    def earns(self) -> bool:
        """Whether it earns more than random actions do, with the whole interval."""
        return self.beside_random.low is not None and self.beside_random.low > 0

    @property
    def unit(self) -> float:
        """What counts as a return of 1: what the agent gets more than random actions; else the spread of its returns, or 1."""
        if self.earns:
            return self.beside_random.mean
        return self.spread if self.spread > 1e-9 else 1.0


def run(context: AgentContext) -> Section:
    """Read the greedy episodes of the recording, and play their levels with random actions."""
    subject, folder = context.subject, context.folders["recording"]
    episodes = load_episodes(folder, frames=False, agent=subject.agent)
    greedy = episodes.select(np.flatnonzero(np.array(Recording(folder).policies) == "greedy"))
    groups = subject.groups(greedy.levels)
    figures = _measure(context, greedy, groups)
    beside, many = figures.beside_random, figures.levels >= FEW
    worse = beside.high is not None and beside.high <= 0
    better = False if worse else not beside.holds_zero or None
    remedy = "It earns no more than random actions do: train it longer."
    thin = "Intervals over fewer levels are too narrow."
    checks = [Check.of("return beside random actions", better, beside, "> 0", remedy)]
    if (share := figures.action_share) is not None:
        same = "It always does the same: no change of what it sees or remembers shows."
        checks.append(Check.of("steps with its most frequent action", share < 1 or None, share, "< 1", same))
    checks.append(Check.of("distinct levels", many or None, figures.levels, f"≥ {FEW}", thin))
    known = context.figures("recording", RecordedEpisodes)
    checks += [] if known is None else [check for check in checks_of(known) if not check.passed]
    rows = [["return", figures.returns.text()], ["return of random actions", figures.random.text()]]
    rows += [[f"episodes that end by {cause}", share.text()] for cause, share in figures.ends.items()]
    rows += [["levels", str(figures.levels)]]
    table = Table(["", "mean [95 % interval over levels]"], rows, "Greedy episodes of the recording.")
    pictures = []
    if is_image(subject.agent.observation_space):
        one = load_episodes(folder, most=1)
        pictures.append(Picture("film", draw_film(one.observations[0, : one.lengths[0] + 1]), "One episode, greedy."))
    return Section(NAME, TITLE, checks, (), [table], pictures, (), values_of(figures))


def _measure(context: AgentContext, greedy: Episodes, groups: IntArray) -> Achieved:
    few = slice(0, context.subject.count(MOST, 20))
    levels, count = greedy.levels[few], len(np.unique(groups))
    random = context.subject.play(levels, epsilon=1.0, seed=context.subject.seed, max_steps=LONGEST, frames=False)
    causes = np.array(greedy.ends)
    ends = {
        str(cause): share_interval(estimate_mean((causes == cause).astype(float), groups).mean * count, count)
        for cause in np.unique(causes)
    }
    share = None
    if greedy.actions.dtype.kind in "iu" and greedy.actions.ndim == 2:
        _, counts = np.unique(greedy.actions[greedy.real], return_counts=True)
        share = float(counts.max() / counts.sum())
    return Achieved(
        estimate_mean(greedy.returns, groups),
        estimate_mean(random.returns, groups[few]),
        estimate_mean(greedy.returns[few] - random.returns, groups[few]),
        float(greedy.returns.std()),
        dict(sorted(ends.items(), key=lambda end: -end[1].mean)),
        count,
        share,
    )


def draw_film(frames: Array) -> bytes:
    """Return frames ``[T, height, width, channels]`` of any number of channels as an animated WebP; of a stack, the newest."""
    some = frames[np.unique(np.linspace(0, len(frames) - 1, min(len(frames), FRAMES)).round().astype(int))]
    return film(list(rgb(some)), MILLISECONDS, SIDE)


STEP = Step(NAME, TITLE, run, needs=("recording",), why_not=nothing_recorded)
