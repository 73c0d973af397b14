"""Saliency on the same frames: do values and actions of both depend on the same places?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import Moments, WorldMoments, moments_of
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.agent.comparison.pair import AgentPair, acts, mean_of
from rlhf_ray.interpret.agent.questions.quantities import Quantity, action_mean, log_odds, value
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.attribution.drawing import strip
from rlhf_ray.interpret.attribution.occlusion import Occlusion
from rlhf_ray.interpret.reward.regions import regions_of
from rlhf_ray.measure.intervals import MeanEstimate, bootstrap
from rlhf_ray.study.section import Picture, Section, Statement
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words, estimate

WORDS = Words(__file__)

MOMENTS, FEWEST, SHOWN = 80, 20, 5


@dataclass(frozen=True)
class MapAgreement:
    """Whether both maps of a quantity are alike, frame by frame.

    Attributes:
        title: the quantity's.
        correlation: over the parts of a frame; None if a map never varies.
        shuffled: the same with the second's map of another frame.
        untrained: each with the other one's untrained twins.
    """

    title: str
    correlation: MeanEstimate | None
    shuffled: MeanEstimate | None
    untrained: tuple[float | None, float | None]


@dataclass(frozen=True)
class ComparedMaps:
    """What the step finds: the agreement by quantity."""

    maps: dict[str, MapAgreement]


def run(context: StepContext[AgentPair]) -> Section:
    """Correlate the maps of both, frame by frame."""
    pair, frames = context.subject, context.subject.frames
    rng = np.random.default_rng([pair.seed, 0x5A])
    chosen = frames.moments[np.sort(rng.permutation(len(frames.moments))[: pair.count(MOMENTS, FEWEST)])]
    agreements: dict[str, MapAgreement] = {}
    pictures = []
    for quantity in _quantities(pair):
        context.say(f"saliency of {quantity.title}")
        (moments, first), (_, second) = (
            _maps(agent, thoughts, chosen, quantity)
            for agent, thoughts in zip(pair.agents, frames.thoughts, strict=True)
        )
        parts = [_parts(pair, maps) for maps in (first, second)]
        order = rng.permutation(len(chosen))
        both, shuffled = (_alike(parts[0], other, chosen.rows, pair.seed) for other in (parts[1], parts[1][order]))
        untrained = _beside(pair, 0, parts, chosen, quantity), _beside(pair, 1, parts, chosen, quantity)
        agreements[quantity.name] = MapAgreement(quantity.title, both, shuffled, untrained)
        if is_image(pair.first.observation_space):
            pictures.append(_picture(pair, quantity, moments, (first, second)))
    rows = [
        [one.title, estimate(one.correlation), estimate(one.shuffled), *one.untrained] for one in agreements.values()
    ]
    twins = [WORDS.text("untrained", name=name) for name in pair.names]
    table = WORDS.table("maps", rows, twins, frames=len(chosen))
    statements = _statements(list(agreements.values()))
    return WORDS.section(statements, tables=[table], pictures=pictures, figures=ComparedMaps(agreements))


def _quantities(pair: AgentPair) -> list[Quantity]:
    """Return the value, and what both do most variedly: an action's log-odds, or the mean of a Box dimension."""
    both = [acts(thoughts.logits[pair.frames.episodes.real], pair.space) for thoughts in pair.frames.thoughts]
    if isinstance(pair.space, gym.spaces.Discrete):
        if both[0].shape[1] < 2:
            return [value()]
        chosen = [np.eye(actions.shape[1])[actions.argmax(1)].mean(0) for actions in both]
        most = int(np.argmin(np.abs(np.mean(chosen, 0) - 0.5)))
        names = pair.action_names
        return [value(), log_odds(pair.space, most, names[most] if most < len(names) else "")]
    return [value(), action_mean(pair.space, int(np.argmax(np.mean([actions.std(0) for actions in both], 0))))]


def _maps(agent: Agent, thoughts: Episodes, chosen: Moments, quantity: Quantity) -> tuple[WorldMoments, FloatArray]:
    moments = moments_of(agent, thoughts, chosen.rows, chosen.steps)
    question = AgentQuestion(agent, quantity, sources=("frame",)).against(moments)
    return moments, Occlusion().attribute(question, moments)["frame"]


def _beside(
    pair: AgentPair, who: int, parts: Sequence[FloatArray], chosen: Moments, quantity: Quantity
) -> float | None:
    """Return the mean correlation of an agent's maps with those of the other one's untrained twins."""
    correlations = []
    for twin, thoughts in enumerate(pair.frames.untrained[1 - who]):
        fresh = pair.agents[1 - who].fresh(pair.seed + 1 + twin)
        assert fresh is not None, "it has thoughts"
        maps = _parts(pair, _maps(fresh, thoughts, chosen, quantity)[1])
        alike = _alike(parts[who], maps, chosen.rows, pair.seed)
        correlations.append(None if alike is None else alike.mean)
    return mean_of(correlations)


def _parts(pair: AgentPair, maps: FloatArray) -> FloatArray:
    """Return the sum of each part of each map, ``[n, parts]``."""
    sums: FloatArray = regions_of(pair.first.observation_space).sums(maps)
    return sums


def _alike(one: FloatArray, other: FloatArray, groups: IntArray, seed: int) -> MeanEstimate | None:
    """Return the mean over frames of the correlation over parts; frames with a map that does not vary don't count."""
    x, y = (maps - maps.mean(1, keepdims=True) for maps in (one, other))
    size = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    known = size > 1e-12
    return bootstrap((x * y).sum(1)[known] / size[known], groups[known], seed) if known.sum() >= 2 else None


def _picture(pair: AgentPair, quantity: Quantity, moments: WorldMoments, maps: Sequence[FloatArray]) -> Picture:
    shown = np.linspace(0, len(moments) - 1, min(SHOWN, len(moments))).round().astype(int)
    scaled = np.stack([one[shown] / max(float(np.abs(one).mean()), 1e-12) for one in maps])
    frames, heads = np.stack([moments.frames[shown]] * 2), [f"frame {number + 1}" for number in range(len(shown))]
    image = strip(frames, scaled, pair.names, heads, "each in units of its mean")
    return WORDS.picture("maps", image, quantity.name, title=quantity.title)


def _statements(agreements: Sequence[MapAgreement]) -> Iterator[Statement]:
    for one in agreements:
        if one.correlation is not None:
            yield WORDS.statement("maps", one=one, untrained=mean_of(one.untrained))


STEP = Step(WORDS.name, WORDS.title, run)
