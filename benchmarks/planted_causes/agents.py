"""Agents with a planted cause: of two lamps' pasts, of time, of a cue, of objects, and three that need nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import examples.worlds  # noqa: F401 - registers them
from benchmarks.planted_causes import Case
from benchmarks.planted_causes.shapes import Shapes
from rlhf_ray.agents.agent import Agent, NetworkAgent
from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.data.arrays import BoolArray
from rlhf_ray.envs.batches import make_batch
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from tests.interpret.agent.lamps import A2, ACTED, AGENTS, B3, BACK, OBSERVED, SIZE, Lamps, planted, remember

EFFORT = 0.05
MINIRUN, CUERUN = "rlhf_ray/MiniRun-v0", "rlhf_ray/CueRun-v0"
FIRST = SIZE
"""Place in memory of lamp A at step 0, beside what `remember` remembers."""


class MoreLamps(Lamps):
    """`Lamps` with further rules: "xor", lamp A 2 steps ago or else lamp B 3 steps ago; "mixed", lamp A now and lamp B 3 steps ago.

    And "first": lamp A at step 0.
    """

    def wanted(self) -> BoolArray:
        """See `Lamps`."""
        if self.rule == "xor":
            return (self.ago(0, 2) > 0) != (self.ago(1, 3) > 0)
        if self.rule == "mixed":
            return (self.ago(0, 0) > 0) & (self.ago(1, 3) > 0)
        if self.rule == "first":
            return self.state["lamps"][:, 0, BACK] > 0
        return super().wanted()

    def describe(self) -> dict[str, BoolArray]:
        """Return what `Lamps` does, and lamp A at step 0."""
        return super().describe() | {"first_a": self.state["lamps"][:, 0, BACK] > 0}


def keep_first(seen: Tensor, memory: Tensor) -> Tensor:
    """Remember what `remember` does, and lamp A at step 0."""
    first = torch.where(memory[:, SIZE - 1 : SIZE] == 0, seen[:, :1], memory[:, FIRST:])
    return torch.cat([remember(seen, memory[:, :FIRST]), first], 1)


def lamp_agent(decide: Callable[[Tensor, Tensor], Tensor], name: str) -> FunctionAgent:
    """An agent with `keep_first` that switches on where ``decide`` is positive; its value is lamp B now."""
    return FunctionAgent(
        lambda seen, memory: (torch.stack([-decide(seen, memory), decide(seen, memory)], 1), memory[:, BACK]),
        OBSERVED, ACTED, remember=keep_first, memory_size=SIZE + 1, name=name,
    )  # fmt: skip


MORE = {
    "xor": planted(lambda seen, memory: -memory[:, A2] * memory[:, B3], "xor"),
    "mixed": planted(lambda seen, memory: seen[:, 0] + memory[:, B3] - 1.0, "mixed"),
    "first": lamp_agent(lambda seen, memory: memory[:, FIRST], "first"),
    "constant": planted(lambda seen, memory: torch.ones(len(seen)), "constant"),
    "any": FunctionAgent(lambda seen, memory: (torch.zeros(len(seen), 2), torch.zeros(len(seen))), OBSERVED, ACTED, name="any"),
}  # fmt: skip
"""By the rule that each follows, or what it does."""


def untrained() -> Agent:
    """A recurrent network as it was drawn."""
    torch.manual_seed(0)
    network = ActorCriticNetwork(OBSERVED, ACTED, PolicyShape(hidden=(8,), memory="lstm", memory_units=4))
    return NetworkAgent(network, OBSERVED, ACTED, name="untrained")


def coin_seeker() -> Agent:
    """Jumps to the right while a coin is in view, and walks to the right otherwise; its value is how much of saws it sees."""
    batch = make_batch(MINIRUN, 1)

    def decide(seen: Tensor, _memory: Tensor) -> tuple[Tensor, Tensor]:
        red, green, blue = (seen[..., at] for at in range(3))
        coin = torch.relu(green - blue - 100.0).flatten(1).sum(1) / 300.0
        saw = torch.relu(torch.minimum(red - 180.0, 245.0 - red) * (blue > 215.0)).flatten(1).sum(1) / 40.0
        logits = torch.full((len(seen), 5), -3.0)
        logits[:, 1], logits[:, 4] = 0.0, coin - 0.5
        return logits, saw

    return FunctionAgent(decide, batch.observation_space, batch.action_space, name="coin seeker")


def saw_avoider() -> Agent:
    """Jumps over the saw in the next cell, and walks to the right otherwise."""
    batch = make_batch(MINIRUN, 1)

    def decide(seen: Tensor, _memory: Tensor) -> tuple[Tensor, Tensor]:
        cell = seen[:, 10:12, 6:8]  # two pixels a cell; the agent is in column 2, on row 5
        saw = (cell[..., 2] - cell[..., 0] - 5.0).abs().mean((1, 2))
        there = ((cell[..., 0] > 80) & (saw[:, None, None] < 6)).flatten(1).all(1).float()
        logits = torch.full((len(seen), 5), -3.0)
        logits[:, 1], logits[:, 4] = 0.0, 4.0 * there - 2.0
        return logits, there

    return FunctionAgent(decide, batch.observation_space, batch.action_space, name="saw avoider")


def cue_keeper() -> Agent:
    """Remembers the cue of CueRun and jumps at gates where it was red; it counts steps, too, which is its value."""
    batch = make_batch(CUERUN, 1)

    def keep(seen: Tensor, memory: Tensor) -> Tensor:
        sky = seen[:, 0, 6]
        cue = torch.where(sky[:, 1] < 100.0, (sky[:, 0] - sky[:, 2]) / 190.0, memory[:, 0])
        return torch.stack([cue, memory[:, 1] + 0.1], 1)

    def decide(seen: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        ahead = seen[:, 6, 6]
        jump = ((ahead[:, 0] - ahead[:, 2]).abs() < 1.0).float() * memory[:, 0]
        return torch.stack([torch.full_like(jump, -1.0), torch.zeros_like(jump), 4.0 * jump - 0.1], 1), memory[:, 1]

    space = batch.observation_space, batch.action_space
    return FunctionAgent(decide, *space, remember=keep, memory_size=2, name="cue keeper")


def colour_seer() -> Agent:
    """Takes what is red, whatever its shape."""
    batch = Shapes(1)

    def decide(seen: Tensor, _memory: Tensor) -> tuple[Tensor, Tensor]:
        red = (seen[..., 0] - seen[..., 2]).flatten(1).sum(1) / 1890.0
        return torch.stack([-2.0 * red, 2.0 * red], 1), torch.zeros(len(seen))

    return FunctionAgent(decide, batch.observation_space, batch.action_space, name="colour seer")


def lamps(name: str, truth: str, rule: str, agent: Callable[[], Agent], cause: str, flawed: bool = True) -> Case:
    """A case in the world of two lamps, where ``rule`` says what is worth 1."""

    def subject() -> AgentSubject:
        return AgentSubject(agent(), f"Lamps {rule}", 0, EFFORT, partial(MoreLamps, rule=rule))

    return Case(name, truth, subject, cause, flawed=flawed)


def world(name: str, truth: str, environment: str, agent: Callable[[], Agent], cause: str) -> Case:
    """A case in another environment."""
    batches = Shapes if environment == "Shapes" else None
    return Case(name, truth, lambda: AgentSubject(agent(), environment, 0, EFFORT, batches), cause)


CASES = [
    lamps("five steps ago", "lamp A five steps ago", "a5", lambda: AGENTS["a5"], r"^a[25]$|flip_a"),
    lamps("both lamps", "lamp A two steps ago and lamp B three steps ago", "both", lambda: AGENTS["both"], r"^(a2|b3)$"),
    lamps("late", "whether 7 steps have passed", "late", lambda: AGENTS["late"], "steps so far"),
    lamps("lamp in sight", "lamp A now", "a", lambda: AGENTS["a"], "flip_a|feature 0"),
    lamps("echo", "the last action's echo", "echo", lambda: AGENTS["echo"], "flip_echo|feature 2"),
    lamps("xor of memories", "lamp A two steps ago or else lamp B three steps ago", "xor", lambda: MORE["xor"], r"^(a2|b3)$"),
    lamps("sight and memory", "lamp A now and lamp B three steps ago", "mixed", lambda: MORE["mixed"], r"^b3$|flip_a|feature 0"),
    lamps("first step only", "lamp A at step 0", "first", lambda: MORE["first"], "first_a"),
    world("cue", "the cue of the first steps, in memory, at gates", CUERUN, cue_keeper, "cue"),
    world("coin", "the coin in sight; the value is the saw", MINIRUN, coin_seeker, "coin"),
    world("saw", "the saw in the next cell", MINIRUN, saw_avoider, "saw"),
    world("colour, not shape", "the object's colour, not its shape", "Shapes", colour_seer, "colour|object"),
    lamps("always on", "nothing: always the same action", "xor", lambda: MORE["constant"], "", flawed=False),
    lamps("any action", "nothing: as likely to do one as the other", "xor", lambda: MORE["any"], "", flawed=False),
    lamps("untrained", "nothing that pays: a network as it was drawn", "xor", untrained, "", flawed=False),
]  # fmt: skip

UNMOVED = {
    "five steps ago": ("flip_b", "flip_echo"),
    "both lamps": ("flip_echo",),
    "late": ("flip_a", "flip_b", "flip_echo"),
    "lamp in sight": ("flip_b", "flip_echo", "memory"),
    "echo": ("flip_a", "flip_b", "memory"),
    "xor of memories": ("flip_echo",),
    "sight and memory": ("flip_echo",),
    "first step only": ("flip_b", "flip_echo"),
    "coin": ("remove_saw", "remove_pit"),
    "saw": ("remove_coin", "move_coin", "remove_pit"),
    "colour, not shape": ("swap_shape",),
}
"""By case, how the names of rows begin whose change changes no action."""
