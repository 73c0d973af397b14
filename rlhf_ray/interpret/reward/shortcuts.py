"""The shortcut finder: which parts of a step move the reward, and whether those are the parts that should.

It exchanges inputs, regions, moments and channels between steps (`rlhf_ray.interpret.reward.exchange`), joins those that move the
reward to causes (`rlhf_ray.interpret.reward.search`), and compares each cause with the true reward where that is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlhf_ray.data.images import is_image
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.association import fitted_truth
from rlhf_ray.interpret.reward.curves import Curve, curve_of
from rlhf_ray.interpret.reward.exchange import NOTHING, Effect, ExchangePairs, StepPart, moments, stack
from rlhf_ray.interpret.reward.findings import Findings
from rlhf_ray.interpret.reward.nudges import noise_share
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes, over_episodes
from rlhf_ray.interpret.effects.regions import Regions
from rlhf_ray.interpret.reward.search import Search, true_effect
from rlhf_ray.interpret.reward.summaries import summaries
from rlhf_ray.reward.functions import RewardFunction

PAIRS, PAIRS_OF_IMAGES = 1000, 160
SUMMARIES = 3


def find(
    reward: RewardFunction,
    data: Transitions,
    regions: Regions | None,
    rng: np.random.Generator,
    *,
    pairs: int | None = None,
    truth: RewardFunction | None = None,
    objects: Mapping[str, int] | None = None,
) -> Findings:
    """Find what moves ``reward``.

    Args:
        reward: the reward function.
        data: steps to exchange parts between, of several episodes if possible. True rewards are used where they are known.
        regions: parts of the observations; None for tables: then only whole inputs are exchanged.
        rng: draws the pairs.
        pairs: pairs of steps; by default 1,000, or 160 for images.
        truth: the true reward function, if it can be computed for any step: each cause then tells how it moves the true reward. For
            vectors, a stand-in is fitted to recorded true rewards if there is none.
        objects: object codes by name, for grids.
    """
    values = reward.of(data)
    scale = float(values.std()) if len(data) else 0.0
    if len(data) < 2 or np.ptp(values) <= 1e-6 * max(1e-3, float(np.abs(values).max())):
        return Findings(scale, len(data))
    image = is_image(reward.observation_space) or (regions is not None and regions.kind == "patch")
    vectors = regions is not None and regions.kind == "feature"
    drawn = ExchangePairs(reward, data, pairs or (PAIRS_OF_IMAGES if image else PAIRS), rng)
    inputs = [drawn.effect(part) for part in _inputs(reward, data)]
    stand_in = truth is None and vectors
    truth = fitted_truth(reward, data) if stand_in else truth
    times, frames = moments(data, reward), stack(data)
    searched = Findings(scale, len(data))
    if regions is not None and times:
        searched = Search(drawn, regions, times, data, truth, objects or {}, stand_in).extended(searched)
    flipped = _done_change(reward, data, scale) if "done" in reward.inputs else None
    searched = replace(searched, done_change=flipped)
    ignored = (*_silent(inputs, drawn, searched.pays_for_the_end), *searched.ignored)
    return replace(
        searched,
        pairs=len(drawn),
        inputs=tuple(inputs),
        moments=tuple(moment.name for moment in times),
        frames=1 if frames is None else len(frames),
        ignored=ignored,
        true_inputs=() if truth is None else tuple(true_effect(truth, drawn, effect.part) for effect in inputs),
        summaries=tuple(summaries(values, data, regions, objects, ignored)[:SUMMARIES]),
        action_curve=_action_curve(reward, data) if "action" in reward.inputs else None,
        noise=noise_share(reward, data, rng) if vectors else None,
        floor=drawn.floor,
        stand_in=stand_in,
    )


def _inputs(reward: RewardFunction, data: Transitions) -> list[StepPart]:
    everything = np.ones(data.observations.shape[1:], bool)
    parts = {
        "next_state": StepPart("the next state", next_state=everything),
        "state": StepPart("the state", state=everything),
        "action": StepPart("the action", action=True),
        "done": StepPart("the termination flag", done=True),
    }
    return [part for name, part in parts.items() if name in reward.inputs]


def _silent(inputs: Sequence[Effect], pairs: ExchangePairs, paid: bool) -> list[str]:
    """Return the inputs that move nothing; not the termination flag, if steps never have it, or switching it matters."""
    untold = not (pairs.own.terminated.any() or pairs.donor.terminated.any()) or paid
    silent = [effect.part for effect in inputs if effect.interval[1] < NOTHING]
    return [part.name for part in silent if not (part.done and untold)]


def _action_curve(reward: RewardFunction, data: Transitions) -> Curve | None:
    actions = data.actions.reshape(len(data), -1)
    if actions.shape[1] != 1:
        return None
    return curve_of(reward, data, StepPart("the action", action=True), [actions[:, 0]])


def _done_change(reward: RewardFunction, data: Transitions, scale: float) -> OverEpisodes:
    with_, without = (reward.of(data.with_(terminated=np.full(len(data), flag))) for flag in (True, False))
    changes = (with_ - without) / scale
    return over_episodes(lambda rows: float(changes[rows].mean()), data.episodes)
