"""Steps of a study run alone, as tests do, and steps of an environment to run them on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.functions import EnsembleReward
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.study.section import Section
from rlhf_ray.study.step import StepContext

if TYPE_CHECKING:
    from rlhf_ray.interpret.agent.subject import AgentContext


def context_of(
    agent: Any,
    batches: Callable[[int], EnvBatch],
    folder: Path,
    step: str = "out",
    needs: Iterable[str] = ("recording",),
    effort: float = 1.0,
    environment: str = "Tiny",
) -> AgentContext:
    """Return what a step gets that examines ``agent``: artefacts, its own as well, are in ``folder`` by the step's name."""
    from rlhf_ray.interpret.agent.subject import AgentSubject

    out = folder / step
    out.mkdir(exist_ok=True)
    subject = AgentSubject(agent, environment, 0, effort, batches)
    return StepContext(subject, {need: folder / need for need in needs}, out, folder / f"{step}_unfinished")


def run_step(module: Any, subject: Any) -> Section:
    """Run the step of ``module`` on ``subject``."""
    return module.run(StepContext(subject))


def why_not(module: Any, subject: Any) -> str | None:
    """Return why the step of ``module`` does not apply to ``subject``."""
    return module.why_not(StepContext(subject))


def steps_of(seen, after=None, *, actions=None, rewards=None, ends=None, length=12, columns=None) -> Transitions:
    """Steps with these observations, in episodes of ``length``. By default they lead nowhere, pay 0, and none ends an episode."""
    at, zeros = np.arange(len(seen)), np.zeros(len(seen))
    return Transitions(
        seen,
        zeros.astype(int) if actions is None else actions,
        seen if after is None else after,
        zeros.astype(bool) if ends is None else ends,
        zeros if rewards is None else rewards,
        at // length,
        at % length,
        columns or {},
    )


def ensemble_of(space, actions, **settings) -> EnsembleReward:
    """An untrained reward model; of two members that see the next state, unless ``settings`` say otherwise."""
    torch.manual_seed(0)
    settings = {"use_next_state": True, "ensemble_size": 2} | settings
    return EnsembleReward(RewardEnsemble(space, actions, RewardModelSettings(**settings)))
