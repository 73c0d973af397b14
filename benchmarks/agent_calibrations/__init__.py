"""Calibration of the tools that explain agents: each tool on agents and worlds whose answer is known. One file per topic."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import examples.worlds  # noqa: F401 - registers them
from rlhf_ray.agents.agent import NetworkAgent

WORLDS = Path(__file__).parents[2] / "examples" / "worlds"
AGENTS = Path(os.environ.get("RLHF_RAY_AGENTS", Path(__file__).parents[1] / "agents"))
"""Trained agents, one folder each; trained when first asked for."""


@dataclass(frozen=True)
class Row:
    """One measured claim.

    Attributes:
        id: short id, for example ``P1``.
        what: what was measured, with the seed if there is one.
        value: the measured value or values.
        bound: what it has to be, in words.
        passed: whether it is.
    """

    id: str
    what: str
    value: float | dict[str, float] | str
    bound: str
    passed: bool


def agent_for(name: str, seed: int) -> NetworkAgent:
    """Return the agent that `rlhf-ray train examples/worlds/NAME.json --true-reward` trains."""
    folder = AGENTS / f"{name}_{seed}"
    if not (folder / "agent.json").exists():
        train(name, seed)
    return NetworkAgent.load(folder)


def train(name: str, seed: int) -> None:
    """Train an agent and save it in `AGENTS`."""
    from rlhf_ray.rllib.agents import agent_of  # slow import that a calibration with trained agents does not need

    run = AGENTS / "runs" / f"{name}_{seed}"
    command = [sys.executable, "-m", "rlhf_ray", "train", str(WORLDS / f"{name}.json"), "--allow-import", "worlds"]
    command += ["--true-reward", "--seed", str(seed), "--run-dir", str(run)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(WORLDS.parent)})
    agent = agent_of(run, name=f"{name}, seed {seed}")
    assert isinstance(agent, NetworkAgent)
    agent.save(AGENTS / f"{name}_{seed}")
