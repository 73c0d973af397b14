"""Saliency on the same frames: do values and actions of both depend on the same places?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import WorldMoments, moments_of
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.comparison.pair import AgentPair, acts, mean_of, text
from rlhf_ray.interpret.agent.questions.quantities import Quantity, action_mean, log_odds, value
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.attribution.drawing import strip
from rlhf_ray.interpret.attribution.occlusion import Occlusion
from rlhf_ray.interpret.reward.regions import regions_of
from rlhf_ray.measure.intervals import MeanEstimate, bootstrap
from rlhf_ray.study.section import Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "saliency"
TITLE = "Where each one looks"

MOMENTS, SHOWN = 80, 5


def run(context: StepContext[AgentPair]) -> Section:
    """Correlate the maps of both, frame by frame."""
    pair = context.subject
    frames = pair.frames
    rng = np.random.default_rng([pair.seed, 0x5A])
    at = np.sort(rng.permutation(len(frames.moments.rows))[: pair.count(MOMENTS, 20)])
    rows, times = frames.moments.rows[at], frames.moments.steps[at]
    names = pair.action_names
    table: list[list[Any]] = []
    figures: dict[str, Any] = {}
    pictures = []
    for quantity in _quantities(pair, names):
        context.say(f"saliency of {quantity.title}")
        moments, maps = zip(
            *(_maps(a, t, rows, times, quantity) for a, t in zip(pair.agents, frames.thoughts, strict=True)),
            strict=True,
        )
        flat = [_parts(pair, each) for each in maps]
        found = _alike(flat[0], flat[1], rows, pair.seed)
        shuffled = _alike(flat[0], flat[1][rng.permutation(len(at))], rows, pair.seed)
        beside = []
        for who in (0, 1):
            each = []
            for twin, thoughts in enumerate(frames.untrained[1 - who]):
                fresh = pair.agents[1 - who].fresh(pair.seed + 1 + twin)
                assert fresh is not None
                one = _alike(flat[who], _parts(pair, _maps(fresh, thoughts, rows, times, quantity)[1]), rows, pair.seed)
                if one is not None:
                    each.append(one.mean)
            beside.append(mean_of(each))
        table.append([quantity.title, text(found), text(shuffled), *beside])
        figures[quantity.name] = {
            "correlation": None if found is None else asdict(found),
            "shuffled": None if shuffled is None else asdict(shuffled),
            "untrained": beside,
        }
        if is_image(pair.first.observation_space):
            pictures.append(_picture(pair, quantity, moments[0], maps))
    heads = ("", "correlation", "other frame", f"{pair.names[0]} and untrained", f"{pair.names[1]} and untrained")
    caption = (
        f"Correlation, over the parts of a frame, of how much each part matters to both (occlusion), on {len(at)} frames: mean and "
        "95 % interval over episodes. Beside: the second's map of another frame, and an untrained twin of the other agent."
    )
    return Section(
        NAME, TITLE, _statements(figures, {each.name: each.title for each in _quantities(pair, names)}),
        tables=[Table(heads, table, caption)], pictures=pictures, values=figures,
    )  # fmt: skip


def _quantities(pair: AgentPair, names: Sequence[str]) -> list[Quantity]:
    """Return the value, and what both do most variedly: an action's log-odds, or the mean of a Box dimension."""
    both = [acts(each.logits[pair.frames.episodes.real], pair.space) for each in pair.frames.thoughts]
    if isinstance(pair.space, gym.spaces.Discrete):
        chosen = [np.eye(of.shape[1])[of.argmax(1)].mean(0) for of in both]
        if both[0].shape[1] < 2:
            return [value()]
        most = int(np.argmin(np.abs(np.mean(chosen, 0) - 0.5)))
        return [value(), log_odds(pair.space, most, names[most] if most < len(names) else "")]
    return [value(), action_mean(pair.space, int(np.argmax(np.mean([of.std(0) for of in both], 0))))]


def _maps(
    agent: Agent, thoughts: Episodes, rows: Any, times: Any, quantity: Quantity
) -> tuple[WorldMoments, FloatArray]:
    moments = moments_of(agent, thoughts, rows, times)
    question = AgentQuestion(agent, quantity, sources=("frame",)).against(moments)
    return moments, Occlusion().attribute(question, moments)["frame"]


def _parts(pair: AgentPair, maps: FloatArray) -> FloatArray:
    """Return the sum of each part of each map, ``[n, parts]``."""
    sums: FloatArray = regions_of(pair.first.observation_space).sums(maps)
    return sums


def _alike(one: FloatArray, other: FloatArray, groups: Any, seed: int) -> MeanEstimate | None:
    """Return the mean over frames of the correlation over parts; frames with a map that does not vary don't count."""
    x, y = (each - each.mean(1, keepdims=True) for each in (one, other))
    size = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    known = size > 1e-12
    if known.sum() < 2:
        return None
    return bootstrap((x * y).sum(1)[known] / size[known], groups[known], seed)


def _picture(pair: AgentPair, quantity: Quantity, moments: WorldMoments, maps: Sequence[FloatArray]) -> Picture:
    shown = np.linspace(0, len(moments) - 1, min(SHOWN, len(moments))).round().astype(int)
    scaled = np.stack([each[shown] / max(float(np.abs(each).mean()), 1e-12) for each in maps])
    frames = np.stack([moments.frames[shown]] * 2)
    image = strip(
        frames, scaled, pair.names, [f"frame {at + 1}" for at in range(len(shown))], "each in units of its mean"
    )
    return Picture(quantity.name, image, f"What matters to the {quantity.title}, on the same frames.")


def _statements(figures: dict[str, Any], titles: dict[str, str]) -> list[Statement]:
    found = []
    for name, each in figures.items():
        if each["correlation"] is None:
            continue
        beside = mean_of(of for of in each["untrained"] if of is not None)
        found_here = text(MeanEstimate(**each["correlation"]))
        said = f"Saliency maps of the {titles[name]} have a correlation of {found_here} on the same frames"
        said += "." if beside is None else f"; with untrained agents {beside:.2f}."
        found.append(Statement("uses", said))
    return found


STEP = Step(NAME, TITLE, run)
