"""World models: errors, agents inside, simulations (MiniRun: AT4, AT5, AT7, AT15-AT17, AT22), long horizons (StaticBounce: AT6)."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.agent_calibrations import agent_for
from benchmarks.calibrations import Row
from rlhf_ray.envs.batches import make_batch
from rlhf_ray.envs.static_bounce import sticky_actions
from rlhf_ray.interpret.agent.agent import Agent, AgentStep, Edit, NetworkAgent
from rlhf_ray.interpret.agent.episodes import Episodes
from rlhf_ray.interpret.agent.play import play
from rlhf_ray.interpret.agent.world_model.model import RecurrentWorld
from rlhf_ray.interpret.agent.world_model.quality import Quality, measure
from rlhf_ray.interpret.agent.world_model.simulate import Estimator, simulate
from rlhf_ray.interpret.agent.world_model.training import WorldTraining, train_world
from rlhf_ray.interpret.agent.world_model.windows import EpisodeWindows, as_policy_actions, cut_out
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape

AGENTS = ("minirun",)

MINIRUN, BOUNCE = "rlhf_ray/MiniRun-v0", "rlhf_ray/StaticBounce-v0"
LENGTH = 48
"""Cells of MiniRun's levels, so that episodes last 24 steps; the agent was trained on shorter ones."""
TRAIN, HELD_OUT = range(1500), range(100_000, 100_300)
EPSILON = 0.15
BATCHES = {MINIRUN: 3000, BOUNCE: 5000}
COPIES = 100
STEPS = 24
PROCESSES = 2


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure all rows for each of ``seeds``."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        for seed in seeds:
            agent_for("minirun", seed)  # trained here if need be, not in two processes at once
        parts = [pool.submit(part, seed) for part in (static_bounce, minirun) for seed in seeds]
        return [row for part in parts for row in part.result()]


def minirun(seed: int) -> list[Row]:
    """AT4, AT5, AT7, AT15, AT16, AT17 and AT22."""
    torch.set_num_threads(1)
    agent = agent_for("minirun", seed)
    batch = make_batch(MINIRUN, COPIES, length=LENGTH)

    def of(player: Agent, levels: range = HELD_OUT, epsilon: float = EPSILON) -> Episodes:
        return play(player, batch, levels, epsilon=epsilon, seed=seed)

    world = _trained(agent, of(agent, TRAIN), MINIRUN, seed)
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


def static_bounce(seed: int) -> list[Row]:
    """AT6."""
    torch.set_num_threads(1)
    batch = make_batch(BOUNCE, 1)
    spaces = batch.observation_space, batch.action_space
    agent = NetworkAgent(ActorCriticNetwork(*spaces, PolicyShape("small", features=8)), *spaces)
    world = _trained(agent, _sticky(agent, range(1000), seed), BOUNCE, seed)
    quality = measure(world, agent, _sticky(agent, HELD_OUT, seed + 1000), steps=STEPS)
    found = {
        "k=1 ratio": (quality.ratio(1), 0.20, False),
        "k=4 ratio": (quality.ratio(4), 0.10, False),
        "k=23 ratio": (quality.ratio(23), 0.20, False),
        "k=23 skill": (quality.skill(23), 0.75, True),
        "reward AUC": (quality.reward[0], 0.93, True),
    }
    return [_row("AT6", f"StaticBounce, {name}, seed {seed}", *of) for name, of in found.items()]


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


def _trained(agent: Agent, episodes: Episodes, name: str, seed: int) -> RecurrentWorld:
    settings = WorldTraining(batches=BATCHES[name], seed=seed)
    return train_world(agent, EpisodeWindows(episodes, settings.length), settings)


def _sticky(agent: Agent, levels: Sequence[int], seed: int) -> Episodes:
    """Play StaticBounce with sticky random actions."""
    n, steps = len(levels), 60
    batch = make_batch(BOUNCE, n)
    actions = sticky_actions(np.random.default_rng(seed), n, steps)
    seen, rewards = [batch.reset(levels)], []
    for t in range(steps):
        step = batch.step(actions[:, t])
        seen.append(step.observations)
        rewards.append(step.rewards)
    assert isinstance(agent.action_space, gym.spaces.Discrete)
    return Episodes(
        observations=np.stack(seen, 1),
        actions=actions,
        logits=np.zeros((n, steps, int(agent.action_space.n)), np.float32),
        values=np.zeros((n, steps), np.float32),
        memory=np.zeros((n, steps + 1, agent.memory_size), np.float32),
        rewards=np.stack(rewards, 1),
        lengths=np.full(n, steps),
        terminated=np.zeros(n, bool),
        truncated=np.ones(n, bool),
        causes=[""] * n,
        levels=np.asarray(levels),
    )


def _one_step(quality: Quality, seed: int) -> list[Row]:
    shuffled = float(quality.errors["shuffled_actions"].mean[1] / quality.errors["model"].mean[1])
    return [
        _row("AT4", f"1 step, ratio to copy-last, seed {seed}", quality.ratio(1), 0.10, False),
        _row("AT4", f"1 step, skill over mean frame, seed {seed}", quality.skill(1), 0.85, True),
        _row("AT4", f"1 step, shuffled actions, times the error, seed {seed}", shuffled, 1.5, True),
    ]


def _scrolling(quality: Quality, seed: int) -> list[Row]:
    last = STEPS
    return [
        _row("AT5", f"MiniRun({LENGTH}), k=4 skill, seed {seed}", quality.skill(4), 0.45, True),
        _row("AT5", f"MiniRun({LENGTH}), k={last} ratio to copy-last, seed {seed}", quality.ratio(last), 0.60, False),
        _row("AT5", f"MiniRun({LENGTH}), k={last} skill, seed {seed}", quality.skill(last), 0.03, True),
    ]


def _closed_loop(quality: Quality, seed: int) -> list[Row]:
    assert quality.memory is not None
    agreement, memory = quality.agreement.mean, quality.memory.mean
    return [
        _row("AT7", f"action agreement k=1, seed {seed}", float(agreement[1]), 0.97, True),
        _row("AT7", f"action agreement k=2, seed {seed}", float(agreement[2]), 0.85, True),
        _row("AT7", f"memory cosine k=1, seed {seed}", float(memory[1]), 0.98, True),
        Row("AT7", f"valid horizon, seed {seed}", quality.valid_horizon, "told", True),
    ]


def _simulations(world: RecurrentWorld, agent: Agent, episodes: Episodes, seed: int) -> list[Row]:
    long = np.flatnonzero(episodes.lengths >= world.context + 5)[:64]
    windows = cut_out(episodes, long, np.ones(len(long), np.int64), world.context)
    actions = as_policy_actions(windows.actions, agent.action_space)
    memory = torch.as_tensor(windows.memory[:, -1])
    context = torch.as_tensor(windows.observations), actions, memory

    found = []
    estimators: tuple[Estimator, ...] = ("straight_through", "softmax")
    for estimator in estimators:
        whole = simulate(world, agent, *context, 4, estimator=estimator)
        cut = simulate(world, agent, *context, 4, estimator=estimator, cut={"action"})
        now = (whole.gradients(whole.values[:, 0]).memory - cut.gradients(cut.values[:, 0]).memory).abs().max()
        later, cut_later = (of.gradients(of.values[:, 4]) for of in (whole, cut))
        flips = (later.memory[:, 0].sign() != cut_later.memory[:, 0].sign()).float().mean()
        told = {
            "difference at k=0": float(now),
            "sign flips at k=4": float(flips),
            "into the world": float(later.states[:, 0].norm(dim=-1).mean()),
            "into the world, cut": float(cut_later.states[:, 0].norm(dim=-1).mean()),
        }
        same = bool(torch.equal(whole.values, cut.values)) and float(now) <= 1e-6
        found.append(
            Row("AT15", f"cut action to world, {estimator}, seed {seed}", told, "k=0 gradient identical to 1e-6", same)
        )

    at_once = simulate(world, agent, *context, 0)
    gradient = at_once.gradients(at_once.values[:, 0]).memory[:, 0]
    worst = 0.0
    for unit in range(agent.memory_size):
        by = torch.zeros(agent.memory_size)
        by[unit] = 1e-2
        up, down = (simulate(world, agent, *context[:2], memory + sign * by, 0).values[:, 0] for sign in (1, -1))
        worst = max(
            worst, float((((up - down).detach() / 2e-2 - gradient[:, unit]).abs() / gradient.abs().amax(1)).max())
        )
    found.append(_row("AT16", f"autograd against differences, relative error, seed {seed}", worst, 1e-2, False))

    together = simulate(world, agent, *context, 4)
    differ = 0.0
    for i in range(0, len(long), 4):
        alone = simulate(world, agent, context[0][i : i + 1], context[1][i : i + 1], context[2][i : i + 1], 4)
        differ = max(differ, float((alone.values[0] - together.values[i]).detach().abs().max()))
    found.append(_row("AT17", f"batch invariance, change of value, seed {seed}", differ, 1e-5, False))
    return found


def _exchanged(world: RecurrentWorld, agent: Agent, played: Mapping[str, Episodes], seed: int) -> list[Row]:
    errors = {name: float(measure(world, agent, of, steps=4).errors["model"].mean[4]) for name, of in played.items()}
    return [
        _row(
            "AT22",
            f"4-step error, {name} agent against training's, seed {seed}",
            errors[name] / errors["training"],
            1.5,
            False,
        )
        for name in errors
        if name != "training"
    ]


def _row(id: str, what: str, value: float, bound: float, above: bool) -> Row:
    passed = value >= bound if above else value <= bound
    return Row(id, what, round(value, 7), f"{'>=' if above else '<='} {bound:g}", bool(passed))


def main(arguments: Sequence[str]) -> None:
    """Print the rows of one part and seed: ``minirun 0`` or ``static_bounce 0``."""
    parts: Mapping[str, Any] = {"minirun": minirun, "static_bounce": static_bounce}
    for row in parts[arguments[0]](int(arguments[1])):
        print(row)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
