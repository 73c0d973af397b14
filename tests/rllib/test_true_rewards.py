"""The environment's own reward, about 1,000 at each step, reaches no part of the agent: only the true return and the teacher."""

from __future__ import annotations

from typing import Any

import pytest
from ray.rllib.core.rl_module.rl_module import RLModule

from rlhf_ray.policies.ppo_update import PPOUpdate
from rlhf_ray.policies.sac_update import SACUpdate
from rlhf_ray.rllib.learned_reward import LearnedReward
from rlhf_ray.rllib.learner import PPOLearner
from rlhf_ray.rllib.rllib_internals import local_learner
from rlhf_ray.rllib.sac_learner import TransitionBuffer
from tests.generous import LEAST, LENGTH, largest
from tests.rllib.test_meddling_environments import AGENTS, short
from tests.whole_runs import running

READ = (
    (RLModule, ("forward_exploration", "forward_train")),
    (LearnedReward, ("__call__",)),
    (PPOLearner, ("_rows_of_arrays", "_take_steps", "compute_loss_for_module")),
    (PPOUpdate, ("take_steps",)),
    (SACUpdate, ("step",)),
    (TransitionBuffer, ("add", "sample", "state")),
)
"""What reads for the agent, and what it returns."""

SEEN: dict[str, float] = {}
"""The largest number that each of them got or returned."""


def note(name: str, *things: Any) -> None:
    SEEN[name] = max(SEEN.get(name, 0.0), largest(things))


def spied(method: Any) -> Any:
    def spy(self: Any, *given: Any, **named: Any) -> Any:
        note(method.__qualname__, given, named)
        returned = method(self, *given, **named)
        note(method.__qualname__, returned)
        return returned

    return spy


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_no_part_of_the_agent_gets_the_true_reward(agent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    SEEN.clear()
    for kind, names in READ:
        for name in names:
            monkeypatch.setattr(kind, name, spied(getattr(kind, name)))
    with running(short(agent, "tests/Generous-v0").build_algo()) as algorithm:
        while not algorithm.finished:
            result = algorithm.train()
        assert result["env_runners"]["episode_return_mean"] > LENGTH * LEAST
        note("learner", vars(local_learner(algorithm.learner_group)))
        algorithm.save_to_path(tmp_path / "checkpoint")
    assert len(SEEN) > 2
    assert {name: number for name, number in SEEN.items() if number > LEAST / 2} == {}
