"""World models in MiniRun: errors (AT4, AT5), agents inside (AT7, AT22), simulations (AT15, AT16, AT17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from benchmarks.agent_calibrations import Row, agent_for
from rlhf_ray.agents.agent import Agent, AgentStep, Edit, NetworkAgent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play
from rlhf_ray.envs.batches import make_batch
from rlhf_ray.interpret.agent.world_model.model import RecurrentWorld
from rlhf_ray.interpret.agent.world_model.quality import Quality, cut_out, measure
from rlhf_ray.interpret.agent.world_model.simulate import simulate
from rlhf_ray.interpret.agent.world_model.training import WorldTraining, as_policy_actions, train_world
from tests.agents.made import EpisodeWindows

AGENTS = ("minirun",)

MINIRUN = "rlhf_ray/MiniRun-v0"
LENGTH = 48
"""Cells of MiniRun's levels, so that episodes last 24 steps; the agent was trained on shorter ones."""
TRAIN, HELD_OUT = range(1500), range(100_000, 100_300)
EPSILON = 0.15
TRAIN_EPSILON = (0.15, 0.15, 0.5)
"""Share of random actions in each third of the training's episodes: other agents act otherwise (AT22)."""
BATCHES = 3000
COPIES = 100
STEPS = 24


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure all rows for each of ``seeds``."""
    torch.set_num_threads(1)
    return [row for seed in seeds for row in _minirun(seed)]


def _minirun(seed: int) -> list[Row]:
    agent = agent_for("minirun", seed)
    batch = make_batch(MINIRUN, COPIES, length=LENGTH)

    def of(player: Agent, levels: range = HELD_OUT, epsilon: float = EPSILON) -> Episodes:
        return play(player, batch, levels, epsilon=epsilon, seed=seed)

    played = [of(agent, TRAIN[third::3], epsilon) for third, epsilon in enumerate(TRAIN_EPSILON)]
    world = _trained(agent, Episodes.concatenate(played), seed)
    noisy, greedy = of(agent), of(agent, epsilon=0.0)
    quality = measure(world, agent, noisy, steps=STEPS)
    closed = measure(world, agent, greedy, steps=STEPS, starts=2)
    return [
        *_one_step(quality, seed),
        *_scrolling(quality, seed),
        *_closed_loop(closed, seed),
        *_simulations(world, agent, greedy, seed),
        *_exchanged(
            world,
            agent,
            {"training": noisy, "untrained": of(_untrained(agent, seed)), "constant": of(Constant(agent))},
            seed,
        ),
    ]


class Constant:
    """An agent that always takes one action and remembers what another agent remembers."""

    layers: Sequence[str] = ()

    def __init__(self, agent: Agent, action: int = 1):
        self.agent, self.action = agent, action
        self.name, self.digest = f"always {action}", f"always{action}"
        self.observation_space, self.action_space = agent.observation_space, agent.action_space
        self.memory_size, self.initial_memory = agent.memory_size, agent.initial_memory

    def step(
        self,
        observations: torch.Tensor,
        memory: torch.Tensor,
        *,
        edits: Mapping[str, Edit] = {},
        keep: Sequence[str] = (),
    ) -> AgentStep:
        """See `Agent.step`."""
        step = self.agent.step(observations, memory)
        logits = torch.full_like(step.logits, -10.0)
        logits[:, self.action] = 10.0
        return AgentStep(logits, step.value, step.memory)

    def fresh(self, seed: int) -> None:
        """There are no weights."""


def _untrained(agent: NetworkAgent, seed: int) -> Agent:
    return agent.fresh(seed + 1)


def _trained(agent: Agent, episodes: Episodes, seed: int) -> RecurrentWorld:
    settings = WorldTraining(batches=BATCHES, seed=seed)
    return train_world(agent, EpisodeWindows(episodes, settings.length), settings)


def _one_step(quality: Quality, seed: int) -> list[Row]:
    shuffled = float(quality.errors["shuffled_actions"].mean[1] / quality.errors["model"].mean[1])
    return [
        bounded("AT4", f"1 step, ratio to copy-last, seed {seed}", quality.ratio(1), 0.10, False),
        bounded("AT4", f"1 step, skill over mean frame, seed {seed}", quality.skill(1), 0.85, True),
        bounded("AT4", f"1 step, shuffled actions, times the error, seed {seed}", shuffled, 1.5, True),
    ]


def _scrolling(quality: Quality, seed: int) -> list[Row]:
    last = STEPS
    return [
        bounded("AT5", f"MiniRun({LENGTH}), k=4 skill, seed {seed}", quality.skill(4), 0.45, True),
        bounded(
            "AT5", f"MiniRun({LENGTH}), k={last} ratio to copy-last, seed {seed}", quality.ratio(last), 0.60, False
        ),
        bounded("AT5", f"MiniRun({LENGTH}), k={last} skill, seed {seed}", quality.skill(last), 0.03, True),
    ]


def _closed_loop(quality: Quality, seed: int) -> list[Row]:
    assert quality.memory is not None
    agreement, memory = quality.agreement.mean, quality.memory.mean
    return [
        bounded("AT7", f"action agreement k=1, seed {seed}", float(agreement[1]), 0.97, True),
        bounded("AT7", f"action agreement k=2, seed {seed}", float(agreement[2]), 0.85, True),
        bounded("AT7", f"memory cosine k=1, seed {seed}", float(memory[1]), 0.98, True),
        Row("AT7", f"valid horizon, seed {seed}", quality.valid_horizon, "told", True),
    ]


def _simulations(world: RecurrentWorld, agent: Agent, episodes: Episodes, seed: int) -> list[Row]:
    long = np.flatnonzero(episodes.lengths >= world.context + 5)[:64]
    windows = cut_out(episodes, long, np.ones(len(long), np.int64), world.context)
    actions = as_policy_actions(windows.actions, agent.action_space)
    memory = torch.as_tensor(windows.memory[:, -1])
    context = torch.as_tensor(windows.observations), actions, memory

    whole, cut = (simulate(world, agent, *context, 4, through_actions=on) for on in (True, False))
    now = (whole.gradients(whole.values[:, 0])["memory"] - cut.gradients(cut.values[:, 0])["memory"]).abs().max()
    later, cut_later = (of.gradients(of.values[:, 4]) for of in (whole, cut))
    told = {
        "difference at k=0": float(now),
        "sign flips at k=4": float((later["memory"][:, 0].sign() != cut_later["memory"][:, 0].sign()).float().mean()),
        "into the world": float(later["states"][:, 0].norm(dim=-1).mean()),
        "into the world, cut": float(cut_later["states"][:, 0].norm(dim=-1).mean()),
    }
    same = bool(torch.equal(whole.values, cut.values)) and float(now) <= 1e-6
    found = [Row("AT15", f"cut action to world, seed {seed}", told, "k=0 gradient identical to 1e-6", same)]

    at_once = simulate(world, agent, *context, 0)
    gradient = at_once.gradients(at_once.values[:, 0])["memory"][:, 0]
    worst = 0.0
    for unit in range(agent.memory_size):
        by = torch.zeros(agent.memory_size)
        by[unit] = 1e-2
        up, down = (simulate(world, agent, *context[:2], memory + sign * by, 0).values[:, 0] for sign in (1, -1))
        worst = max(
            worst, float((((up - down).detach() / 2e-2 - gradient[:, unit]).abs() / gradient.abs().amax(1)).max())
        )
    found.append(bounded("AT16", f"autograd against differences, relative error, seed {seed}", worst, 1e-2, False))

    together = simulate(world, agent, *context, 4)
    differ = 0.0
    for i in range(0, len(long), 4):
        alone = simulate(world, agent, context[0][i : i + 1], context[1][i : i + 1], context[2][i : i + 1], 4)
        differ = max(differ, float((alone.values[0] - together.values[i]).detach().abs().max()))
    found.append(bounded("AT17", f"batch invariance, change of value, seed {seed}", differ, 1e-5, False))
    return found


def _exchanged(world: RecurrentWorld, agent: Agent, played: Mapping[str, Episodes], seed: int) -> list[Row]:
    errors = {name: float(measure(world, agent, of, steps=4).errors["model"].mean[4]) for name, of in played.items()}
    return [
        bounded(
            "AT22",
            f"4-step error, {name} agent against training's, seed {seed}",
            errors[name] / errors["training"],
            1.5,
            False,
        )
        for name in errors
        if name != "training"
    ]


def bounded(id: str, what: str, value: float, bound: float, above: bool) -> Row:
    passed = value >= bound if above else value <= bound
    return Row(id, what, round(value, 7), f"{'>=' if above else '<='} {bound:g}", bool(passed))
