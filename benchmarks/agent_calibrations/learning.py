"""Learning: agents with memory learn MiniRun (AT2) and CueRun (AT3), and in CueRun only by the cue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.agent_calibrations import Row, agent_for
from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play
from rlhf_ray.envs.batches import make_batch

AGENTS = ("minirun", "cuerun")

MINIRUN, CUERUN = "rlhf_ray/MiniRun-v0", "rlhf_ray/CueRun-v0"
EPISODES, COPIES = 1500, 250
FIRST_LEVEL = 10_000


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure AT2 and AT3 for each of ``seeds``, on levels from 10,000 on."""
    return [row for seed in seeds for row in (_minirun(seed), _cuerun(seed))]


def _minirun(seed: int) -> Row:
    agent = agent_for("minirun", seed)
    untrained = agent.fresh(seed)
    assert untrained is not None
    found = {
        "greedy": _played(agent, MINIRUN).returns.mean(),
        "sampled": _played(agent, MINIRUN, greedy=False, seed=seed).returns.mean(),
        "untrained, sampled": _played(untrained, MINIRUN, greedy=False, seed=seed).returns.mean(),
    }
    return Row(
        "AT2",
        f"return in MiniRun, seed {seed}",
        {name: round(float(value), 2) for name, value in found.items()},
        "greedy >= 9.5, untrained <= 2",
        bool(found["greedy"] >= 9.5 and found["untrained, sampled"] <= 2),
    )


def _cuerun(seed: int) -> Row:
    agent = agent_for("cuerun", seed)
    played, hidden = _played(agent, CUERUN), _without_cue(agent)
    first = np.array([cause == "first_gate" for cause in hidden.causes])
    found = {
        "wins": float((played.returns > 0).mean()),
        "wins without the cue": float((hidden.returns > 0).mean()),
        "passes the first gate without the cue": float(1 - first.mean()),
    }
    return Row(
        "AT3",
        f"wins in CueRun with and without the cue, seed {seed}",
        {name: round(value, 3) for name, value in found.items()},
        "wins >= 0.98, without the cue <= 0.60",
        found["wins"] >= 0.98 and found["wins without the cue"] <= 0.6,
    )


def _played(agent: Agent, environment: str, *, greedy: bool = True, seed: int = 0) -> Episodes:
    levels = range(FIRST_LEVEL, FIRST_LEVEL + EPISODES)
    return play(agent, make_batch(environment, COPIES), levels, greedy=greedy, seed=seed, frames=False)


def _without_cue(agent: Agent) -> Episodes:
    """Play the same levels with the cue hidden from the first frame on."""
    levels = list(range(FIRST_LEVEL, FIRST_LEVEL + EPISODES))
    maker = make_batch(CUERUN, EPISODES)
    maker.reset(levels)
    maker.edit("hide_cue")
    start = (maker.states(), agent.initial_memory(EPISODES).detach().numpy(), 0)
    return play(agent, make_batch(CUERUN, COPIES), levels, start=start, frames=False)
