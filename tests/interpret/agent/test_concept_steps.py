"""The steps concepts, bases, clusters, behaviours and dynamics of the chain, on an untrained agent of MiniRun."""

from __future__ import annotations

import importlib
from functools import partial

import numpy as np
import pytest
import torch

from rlhf_ray.agents.moments import action_size
from rlhf_ray.agents.recording import record_inside
from rlhf_ray.envs import make_batch
from rlhf_ray.interpret import directions
from rlhf_ray.study import kept
from tests.interpret.agent.linear_world import ImageWorld, network_agent
from tests.interpret.contexts import context_of

pytestmark = pytest.mark.soak

MINIRUN = "rlhf_ray/MiniRun-v0"


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Run the steps in order on a small recording, inside a world that is no good."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("chain")
    batch = make_batch(MINIRUN, 8)
    agent = network_agent(batch.observation_space, batch.action_space)
    acting = {"greedy": 0.5, "epsilon": 0.5}
    record_inside(agent, batch, list(range(24)), folder / "recording", acting=acting, epsilon=0.8)
    world = ImageWorld(agent, action_size(agent.action_space))
    needs = ["recording"]
    sections = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("concepts", "bases", "clusters", "behaviours", "dynamics"):
            step = importlib.import_module(f"rlhf_ray.interpret.agent.steps.{name}")
            if name == "dynamics":  # a world model: of its quality nothing is asked here
                patch.setattr(step, "world_of", lambda work: world)
                needs.append("world_model")
            work = context_of(agent, partial(make_batch, MINIRUN), folder, name, needs, 0.02)
            assert step.STEP.why_not(work) is None
            sections[name] = step.run(work)
            kept.save(sections[name], work.out, "", "")
            needs.append(name)
    return folder, sections


def test_concepts_stand_beside_their_controls(chain):
    _, sections = chain
    decoded = sections["concepts"].values["concepts"]
    assert {"jump_phase", "coin_distance"} <= {each["concept"] for each in decoded}
    for each in decoded:
        assert set(each["controls"]) == {"one frame", "untrained agent"}
    assert {picture.name for picture in sections["concepts"].pictures} >= {"concepts_r2"}


def test_bases_are_kept_one_file_each(chain):
    folder, sections = chain
    found = {path.stem: directions.load(path) for path in (folder / "bases").glob("*.npz")}
    assert {"pca", "ica", "nmf"} <= set(found)
    assert all(basis.kind == name for name, basis in found.items())
    rows = {row[0]: row for row in sections["bases"].tables[0].rows}
    assert set(rows) == {directions.TITLES[name] for name in found}


def test_behaviours_rule_the_dynamics(chain):
    folder, sections = chain
    with np.load(folder / "behaviours" / "behaviours.npz") as file:
        labels = file["labels"]
    figures = sections["dynamics"].values["behaviours"]
    behaving = {each["behaviour"] for each in figures}
    assert behaving <= {f"B{at}" for at in np.unique(labels[labels >= 0])}
    assert {name for each in figures for name in each["agreements"]} >= {"memory", "world", "world, actions cut"}
    with np.load(folder / "dynamics" / "dynamics.npz") as file:
        one = next(name for name in file.files if name.startswith("1/") and name.endswith("Jacobian, memory"))
        assert file[one].shape == (8, 8)
