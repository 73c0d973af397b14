"""The step attribution, on an untrained agent of MiniRun."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from rlhf_ray.agents.episodes import action_size
from rlhf_ray.agents.recorded import load_episodes, record_inside
from rlhf_ray.envs import make_batch
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.steps import attribution
from tests.interpret.agent.linear_world import ImageWorld, network_agent
from tests.interpret.contexts import context_of

MINIRUN = "rlhf_ray/MiniRun-v0"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    batch = make_batch(MINIRUN, 8)
    agent = network_agent(batch.observation_space, batch.action_space)
    record_inside(
        agent, batch, list(range(24)), folder / "recording", acting={"greedy": 0.5, "epsilon": 0.5}, epsilon=0.5
    )
    memory = load_episodes(folder / "recording").memory.reshape(-1, agent.memory_size)
    (folder / "bases").mkdir()
    directions.fit("pca", memory, 3).save(folder / "bases" / "pca.npz")
    return agent, folder


@pytest.mark.slow
@pytest.mark.parametrize("simulated", [False, True])
def test_saliency_through_time_with_and_without_a_world_model(recorded, simulated, tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(attribution, "FEWEST", 8)
    monkeypatch.setattr(attribution, "COMPONENTS", 1)
    monkeypatch.setattr(attribution, "METHODS", ("saliency", "integrated_gradients"))
    agent, folder = recorded
    names = ["recording"]
    if simulated:
        names.append("bases")
        world = ImageWorld(agent, action_size(agent.action_space))
        monkeypatch.setattr(attribution, "world_of", lambda context: world)
        monkeypatch.setattr(attribution, "valid_horizon", lambda context: 2)
    context = context_of(agent, partial(make_batch, MINIRUN), tmp_path, "attribution", (), 0.02, MINIRUN)
    context = replace(context, folders={name: folder / name for name in names})
    assert attribution.STEP.why_not(context) is None
    section = attribution.run(context)
    quantities = ["value", "advantage", "action", *["loading_0"] * simulated]
    assert section.values["valid_horizon"] == (2 if simulated else None)
    assert {picture.name for picture in section.pictures} >= {f"saliency_{name}" for name in quantities}
    faithful = section.values["faithful"]["by_map"]
    assert {"value/saliency", "value/integrated_gradients", "advantage/smoothgrad"} < set(faithful)
    assert {"deletion", "random_deletion"} < set(section.values["areas"]["value/saliency"])
    for picture in section.pictures[1:]:
        assert (picture.crossed_out is None) == faithful[f"{picture.name.removeprefix('saliency_')}/smoothgrad"]
