"""Does an agent use what it remembers? Take it out of its memory, in the real environment, and see; beside random directions.

    pip install /path/to/rlhf_ray
    python examples/examine_agent.py

The same for a run, with a report and a panel: `rlhf-ray interpret agent RUN`.

The agent is made by hand for CueRun, so its cause is known: the sky's colour in the first two frames says whether to jump at gates.
It also counts its steps, for nothing. Both can be read off its memory; only one is needed. Takes 15 seconds.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

import rlhf_ray as rr
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.steps.effects import Bench, removal
from rlhf_ray.interpret.directions.controls import random_bases

make = partial(rr.make_batch, "worlds:rlhf_ray/CueRun-v0")


def remember(frame: Tensor, memory: Tensor) -> Tensor:
    """Keep the cue (1 red, -1 blue) and the count of steps, and a blurred trace of the picture, ``[n, 6]``."""
    red, green, blue = frame[:, 0, 15].unbind(1)
    cue = torch.where((green < 100) & ((red - blue).abs() > 100), torch.sign(red - blue), memory[:, 0])
    trace = 0.7 * memory[:, 2:] + 0.3 * frame[:, 4:12:2, 8, 1] / 255
    return torch.cat([cue[:, None], memory[:, 1:2] + 0.1, trace], 1)


def decide(frame: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """At a gate with a red cue, jump, or wait to land first; else run: logits of noop, right, jump_right, and a value."""
    gate = ((frame[:, 8, 6, 0] - frame[:, 8, 6, 2]).abs() < 20).float()
    on_ground = (frame[:, 10, 4, 1] > 240).float()
    push = 5 * gate * memory[:, 0]
    return torch.stack([push * (1 - on_ground), 0 * push + 1, push * on_ground], 1), 10 - memory[:, 1]


if __name__ == "__main__":
    batch = make(64)
    agent = rr.FunctionAgent(decide, batch.observation_space, batch.action_space, remember=remember, memory_size=6)
    seen = rr.play(agent, batch, range(300))
    late = seen.real & ~seen.states["cue_visible"][:, :-1].astype(bool)  # the picture no longer shows the cue
    memory = seen.memory[:, 1:][late]
    plain = rr.play(agent, batch, range(10_000, 10_060), keep_states=True)
    bench = Bench(agent, make, plain, np.arange(len(plain)), unit=1.0, moments=4, most=100)
    for name in ("cue", "x"):
        probe = directions.fit("probe", memory, 1, labels={name: seen.states[name][:, :-1][late]})
        found = bench.effect(removal(probe, "memory", random_bases(probe, [0], memory, count=5)))
        changes = ", ".join(f"{column} {figure.text()}" for column, figure in found.figures.items())
        print(f"without the {name} in its memory: {changes} (random directions: {found.control:.2f})")
