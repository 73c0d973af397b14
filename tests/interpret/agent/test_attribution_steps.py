"""The steps attribution and search of the chain, on an untrained agent of MiniRun."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from rlhf_ray.agents.moments import action_size
from rlhf_ray.agents.recorded import load_episodes
from rlhf_ray.agents.recording import record_inside
from rlhf_ray.envs import make_batch
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.drawn_maps import DrawnMaps
from rlhf_ray.interpret.agent.questions.samples import GradientSamples
from rlhf_ray.interpret.agent.steps import attribution, quality
from rlhf_ray.interpret.agent.world_model.quality import HorizonCurve, Quality
from rlhf_ray.study import kept
from tests.interpret.agent.linear_world import ImageWorld, network_agent
from tests.interpret.contexts import context_of

MINIRUN = "rlhf_ray/MiniRun-v0"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    batch = make_batch(MINIRUN, 8)
    agent = network_agent(batch.observation_space, batch.action_space)
    record_inside(
        agent,
        batch,
        list(range(24)),
        folder / "recording",
        acting={"greedy": 0.5, "epsilon": 0.5},
        epsilon=0.5,
        keep_states=True,
    )
    memory = load_episodes(folder / "recording").memory.reshape(-1, agent.memory_size)
    (folder / "bases").mkdir()
    directions.fit("pca", memory, 3).save(folder / "bases" / "pca.npz")
    (folder / "world_model").mkdir()
    (folder / "quality").mkdir()
    curve, unknown = HorizonCurve(*np.zeros((3, 3))), (0.5, 0.5, 0.5)
    measured = Quality(2, 1, {}, {}, {}, curve, 0.5, None, unknown, unknown, valid_horizon=2)
    kept.save(quality.WORDS.section(figures=measured), folder / "quality", "", "")
    return agent, folder


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(attribution, "FEWEST", 8)
    monkeypatch.setattr(attribution, "COMPONENTS", 1)
    monkeypatch.setattr(attribution, "UNTRAINED", 1)
    monkeypatch.setattr(attribution, "METHODS", ("saliency", "integrated_gradients"))


def work_of(recorded, out, names, monkeypatch=None):
    agent, folder = recorded
    torch.set_num_threads(1)
    if monkeypatch is not None:
        world = ImageWorld(agent, action_size(agent.action_space))
        monkeypatch.setattr(attribution, "world_of", lambda work: world)
    context = context_of(agent, partial(make_batch, MINIRUN), out, "unused", (), 0.02, MINIRUN)
    return replace(context, folders={name: folder / name for name in names}, out=out)


@pytest.mark.slow
def test_attribution_without_a_world_model(recorded, tmp_path, monkeypatch):
    work = work_of(recorded, tmp_path, ["recording"])
    assert attribution.why_not(work) is None
    section = attribution.run(work)
    samples = GradientSamples.load(tmp_path)
    assert samples.observations.shape == (8, 5, 16, 16, 3)
    assert samples.quantities == ("value", "advantage", "action")
    assert samples.saliency.shape == (8, 3, 5, 16, 16)
    assert samples.memory_gradients.shape == (8, 3, 5, 8)
    assert samples.saliency.dtype == np.float16
    assert samples.saliency.any()
    assert np.isnan(samples.paths).all()
    assert not samples.simulated
    assert samples.estimator == "recording"
    assert {picture.name for picture in section.pictures} == {
        "curves",
        "saliency_value",
        "saliency_advantage",
        "saliency_action",
    }
    assert any(name.endswith("/pit") or name.endswith("/saw") for name in section.values["objects"])
    assert next(check for check in section.checks if "central differences" in check.name).passed
    assert section.values["samples"] == 8
    faithful = section.values["drawn"]["faithful"]
    for picture in section.pictures[1:]:
        name = picture.name.removeprefix("saliency_")
        drawn = faithful[f"{name}/gradient"] or faithful[f"{name}/occlusion"]
        assert (picture.crossed_out is None) == drawn
    again = tmp_path / "again"
    again.mkdir()
    monkeypatch.setattr(attribution, "maps_of", lambda *_: ([], {}, {}))
    monkeypatch.setattr(attribution, "_objects", lambda *_: {})
    monkeypatch.setattr(attribution, "judge_drawn", lambda *_: DrawnMaps())
    attribution.run(work_of(recorded, again, ["recording"]))
    assert (again / "samples.npz").read_bytes() == (tmp_path / "samples.npz").read_bytes()


@pytest.mark.soak
def test_attribution_in_a_world_model_greys_what_lies_beyond_its_horizon(recorded, tmp_path, monkeypatch):
    work = work_of(recorded, tmp_path, ["recording", "world_model", "quality", "bases"], monkeypatch)
    section = attribution.run(work)
    samples = GradientSamples.load(tmp_path)
    assert samples.simulated
    assert samples.horizon == 2
    assert samples.quantities == ("value", "advantage", "action", "loading_0")
    assert np.allclose(np.nansum(samples.paths[:, 0].astype(float), 2), 1.0, atol=5e-3)
    assert np.isnan(samples.paths[:, 3]).all()
    assert section.values["paths"]["value/3"]["beyond"]
    assert not section.values["paths"]["value/2"]["beyond"]
    assert any("trusted for 2 steps" in statement.text for statement in section.statements)
    assert all(check.passed for check in section.checks if check.name.startswith("paths add up"))
    assert set(section.values["estimators"]) == {"world", "memory"}
