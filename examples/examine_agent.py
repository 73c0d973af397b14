"""Does an agent use what it remembers? Take it out of its memory, in the real environment, and see; beside random directions.

    pip install /path/to/rlhf_ray
    python examples/examine_agent.py

The same for a run, with a report and a panel: `rlhf-ray interpret agent RUN`.

The agent is made by hand for CueRun, so its cause is known: the sky's colour in the first two frames says whether to jump at gates.
It also counts its steps, for nothing. Both can be read off its memory; only one is needed. Takes 15 seconds.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.agents.play import play
from rlhf_ray.envs import make_batch
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.controls import controlled
from rlhf_ray.interpret.directions.interventions import Intervention

make = partial(make_batch, "rlhf_ray/CueRun-v0")


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


def ablate(basis: directions.Directions, components: Sequence[int]) -> Intervention:
    """Set what the memory says of something to halfway between its two ends, at every step."""
    return Intervention(basis, components, "ablate_midpoint")


if __name__ == "__main__":
    batch = make(64)
    agent = FunctionAgent(decide, batch.observation_space, batch.action_space, remember=remember, memory_size=6)
    seen = play(agent, batch, range(300))
    late = seen.real & ~seen.states["cue_visible"][:, :-1].astype(bool)  # the picture no longer shows the cue
    memory = seen.memory[:, 1:][late]
    for name in ("cue", "x"):
        concept = seen.states[name][:, :-1][late]
        probe = directions.fit("probe", memory, 1, labels={name: concept})
        found = controlled(agent, make, range(10_000, 10_200), ablate, probe, [0], memory, labels=concept)
        needed = f"{found.effect.returns.difference.text()}: {'needed' if found.changes else 'not needed'}"
        print(f"without the {name} in its memory, the return changes by {needed}")
