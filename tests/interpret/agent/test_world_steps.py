"""The step of the world model, on a recording of a small agent."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from rlhf_ray.agents.recorded import record_inside
from rlhf_ray.envs import make_batch
from rlhf_ray.interpret.agent.steps import world_model
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.agent.world_model.model import WorldShape, load_world
from rlhf_ray.study import kept
from tests.agents.made import network_agent
from tests.interpret.contexts import context_of

torch.set_num_threads(1)
MINIRUN = "rlhf_ray/MiniRun-v0"


@pytest.mark.slow
def test_the_step_trains_and_measures_a_world_model(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(world_model, "FEWEST", 3)
    monkeypatch.setattr(
        WorldShape, "for_space", lambda space: WorldShape(memory=4, groups=1, classes=4, channels=8, shared=8)
    )
    batch = make_batch(MINIRUN, 8)
    agent = network_agent(batch.observation_space, batch.action_space, features=8)
    record_inside(agent, batch, range(24), tmp_path / "recording", max_steps=12)
    told: list[str] = []

    def work(name: str) -> AgentContext:
        needs = ("recording", "world_model")
        context = context_of(agent, partial(make_batch, MINIRUN), tmp_path, name, needs, 0.001, MINIRUN)
        return replace(context, say=told.append)

    training = work("world_model")
    assert world_model.STEP.why_not(training) is None
    made = world_model.run(training)
    world = load_world(tmp_path / "world_model", agent=agent)
    assert made.values["world"] == world.digest
    assert world.about["environment"] == MINIRUN
    assert told

    kept.save(made, tmp_path / "world_model", "", "")
    found = training.figures("world_model", world_model.WorldModel)
    assert found is not None
    quality = found.quality
    assert world_model.valid_horizon(training) == quality.valid_horizon
    assert not training.warnings
    assert len(quality.errors["model"].mean) == quality.steps + 1
    assert [picture.name for picture in made.pictures] == ["horizon", "strips", "training"]
    assert all(picture.image.startswith(b"\x89PNG") for picture in made.pictures)
    assert {check.name for check in made.checks if check.passed is not None}
    assert np.isfinite(quality.errors["copy_last"].mean[1])
