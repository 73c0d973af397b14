"""Saliency on the same frames: do values and actions of both depend on the same places?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.moments import Moments, WorldMoments, moments_of
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.images import is_image
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.interpret.agent.comparison.pair import AgentPair, Onlooker, acts, mean_of
from rlhf_ray.interpret.agent.questions.quantities import Quantity, action_mean, log_odds, value
from rlhf_ray.interpret.agent.questions.question import AgentQuestion
from rlhf_ray.interpret.attribution.drawing import strip
from rlhf_ray.interpret.attribution.faithfulness import curves
from rlhf_ray.interpret.attribution.occlusion import Occlusion
from rlhf_ray.interpret.reward.regions import regions_of
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean
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
    some = np.sort(rng.permutation(len(frames.moments))[: pair.count(MOMENTS, FEWEST)])
    chosen, levels = frames.moments[some], frames.levels[some]
    agreements: dict[str, MapAgreement] = {}
    pictures = []
    for quantity in _quantities(pair):
        context.say(f"saliency of {quantity.title}")
        read = partial(_maps, chosen=chosen, quantity=quantity)
        maps = [read(onlooker) for onlooker in frames.agents]
        one, other = (_parts(pair, each) for each in maps)
        order = rng.permutation(len(chosen))
        both, shuffled = (_alike(one, parts, levels) for parts in (other, other[order]))

        def parts_of(onlooker: Onlooker, read: Callable[[Onlooker], FloatArray] = read) -> FloatArray:
            return _parts(pair, read(onlooker))

        def compare(mine: FloatArray, twins: FloatArray) -> float | None:
            alike = _alike(mine, twins, levels)
            return None if alike is None else alike.mean

        untrained = frames.beside_twins((one, other), parts_of, compare)
        agreements[quantity.name] = MapAgreement(quantity.title, both, shuffled, untrained)
        if is_image(pair.first.observation_space):
            pictures.append(
                _picture(pair, quantity, chosen, maps, _unfaithful(frames.agents, chosen, quantity, maps, rng))
            )
    rows = [
        [one.title, estimate(one.correlation), estimate(one.shuffled), *one.untrained] for one in agreements.values()
    ]
    twins = [WORDS.text("untrained", name=name) for name in pair.names]
    table = WORDS.table("maps", rows, twins, frames=len(chosen))
    statements = _statements(list(agreements.values()))
    return WORDS.section(statements, tables=[table], pictures=pictures, figures=ComparedMaps(agreements))


def _quantities(pair: AgentPair) -> list[Quantity]:
    """Return the value, and what both do most variedly: an action's log-odds, or the mean of a Box dimension."""
    both = [acts(onlooker.thoughts.logits[pair.frames.episodes.real], pair.space) for onlooker in pair.frames.agents]
    if isinstance(pair.space, gym.spaces.Discrete):
        if both[0].shape[1] < 2:
            return [value()]
        chosen = [np.eye(actions.shape[1])[actions.argmax(1)].mean(0) for actions in both]
        most = int(np.argmin(np.abs(np.mean(chosen, 0) - 0.5)))
        names = pair.subjects[0].action_names
        return [value(), log_odds(pair.space, most, names[most] if most < len(names) else "")]
    return [value(), action_mean(pair.space, int(np.argmax(np.mean([actions.std(0) for actions in both], 0))))]


def _asked(onlooker: Onlooker, chosen: Moments, quantity: Quantity) -> tuple[AgentQuestion, WorldMoments]:
    moments = moments_of(onlooker.agent, onlooker.thoughts, chosen.rows, chosen.steps)
    return AgentQuestion(onlooker.agent, quantity, sources=("frame",)).against(moments), moments


def _maps(onlooker: Onlooker, chosen: Moments, quantity: Quantity) -> FloatArray:
    question, moments = _asked(onlooker, chosen, quantity)
    return Occlusion().attribute(question, moments)["frame"]


def _unfaithful(
    agents: Sequence[Onlooker],
    chosen: Moments,
    quantity: Quantity,
    maps: Sequence[FloatArray],
    rng: np.random.Generator,
) -> list[int]:
    """Return whose maps order the frame no better than some random order; maps of zeros have no order."""
    found = []
    for number, (onlooker, own) in enumerate(zip(agents, maps, strict=True)):
        order = curves(*_asked(onlooker, chosen, quantity), {"own": own}, rng, "frame")["own"]
        if order.deletion[-1] > 0 and not order.faithful:
            found.append(number)
    return found


def _parts(pair: AgentPair, maps: FloatArray) -> FloatArray:
    """Return the sum of each part of each map, ``[n, parts]``."""
    sums: FloatArray = regions_of(pair.first.observation_space).sums(maps)
    return sums


def _alike(one: FloatArray, other: FloatArray, groups: IntArray) -> MeanEstimate | None:
    """Return the mean over frames of the correlation over parts; frames with a map that does not vary don't count."""
    x, y = (maps - maps.mean(1, keepdims=True) for maps in (one, other))
    size = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    known = size > 1e-12
    return estimate_mean((x * y).sum(1)[known] / size[known], groups[known]) if known.sum() >= 2 else None


def _picture(
    pair: AgentPair, quantity: Quantity, moments: Moments, maps: Sequence[FloatArray], unfaithful: Sequence[int]
) -> Picture:
    shown = np.linspace(0, len(moments) - 1, min(SHOWN, len(moments))).round().astype(int)
    scaled = np.stack([one[shown] / max(float(np.abs(one).mean()), 1e-12) for one in maps])
    seen, heads = (
        moments[shown].cut(pair.frames.episodes.observations),
        [f"frame {number + 1}" for number in range(len(shown))],
    )
    why = WORDS.text("unfaithful", names=[pair.names[number] for number in unfaithful]) if unfaithful else None
    frames = np.stack([seen, seen])
    names, unit = feature_names(pair.first.observation_space), "each in units of its mean"
    image = strip(frames, scaled, pair.names, heads, unit, crossed_out=why, names=names)
    return replace(WORDS.picture("maps", image, quantity.name, title=quantity.title), crossed_out=why)


def _statements(agreements: Sequence[MapAgreement]) -> Iterator[Statement]:
    for one in agreements:
        if one.correlation is not None:
            yield WORDS.statement("maps", one=one, untrained=mean_of(one.untrained))


STEP = Step(WORDS.name, WORDS.title, run)
