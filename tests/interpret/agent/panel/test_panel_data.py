"""What a panel is made of: samples of real episodes, gradients, pairs, and packed numbers."""

import base64
import json
import re
import zlib
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.agents.play import play, site_of, values_at
from rlhf_ray.agents.recorded import record_inside
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.panel import PanelData, write, write_panel
from rlhf_ray.interpret.agent.panel.data import LIKELIEST, VALUE, collect, pieces_of
from rlhf_ray.interpret.agent.panel.write import plan_for, sheet_image, write_sheets
from rlhf_ray.interpret.agent.questions import UNCHECKED, UNFAITHFUL, Faithful
from rlhf_ray.interpret.agent.steps import panel
from rlhf_ray.interpret.agent.steps.panel import PairMaker
from rlhf_ray.interpret.attribution.drawing import RAISES
from rlhf_ray.interpret.directions.interventions import Intervention
from tests.agents.test_play import agent_of
from tests.interpret.agent.corridor import Corridors
from tests.interpret.agent.panel.filters import shown_curved, shown_half
from tests.interpret.agent.panel.made_up import made_up
from tests.interpret.agent.worlds import LinearWorld
from tests.interpret.contexts import context_of


@cache
def corridor_panel(memory: str = "gru", box: bool = False):
    """A panel of corridors, with the agent, its basis and its episodes."""
    make = partial(Corridors, box=box)
    agent = agent_of(memory, box)
    episodes = play(agent, make(16), range(40), epsilon=0.3, keep_states=True)
    site = site_of(agent)
    basis = directions.fit("pca", values_at(agent, episodes, site)[episodes.real], 3)
    rng = np.random.default_rng(0)
    pieces = pieces_of(episodes, 30, 4, rng)
    made = PairMaker(agent, make, episodes, pieces, basis, site)
    pairs = made.of_interventions(2)[0] + made.of_edits(rng)
    names = make(1).action_names
    more = {"title": "Corridors", "action_names": names, "pairs": pairs, "horizon": 2}
    data = collect(agent, episodes, pieces, basis, site, rng, **more)
    return data, agent, basis, episodes, pieces


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "box"), [("gru", False), ("none", True)])
def test_a_panel_of_any_agent(memory, box, opened, tmp_path):
    data, agent, basis, episodes, pieces = corridor_panel(memory, box)
    assert len(data.pairs) >= 3  # one component or more, and both edits
    assert {"remove_trap", "shorten"} <= {pair.name for pair in data.pairs}
    for sample, (row, start) in enumerate(zip(pieces.rows, pieces.steps, strict=True)):
        np.testing.assert_array_equal(data.observations[sample, 0], episodes.observations[row, start])
        assert data.values[sample, 0] == episodes.values[row, start]

    # A gradient by a score is what moving this score changes, by the same intervention that the tools use.
    quantity = next(iter(data.gradients))
    assert quantity == VALUE
    for component, (sample, step) in enumerate(np.argwhere(data.real)[[0, 20, 40]]):
        row, time = pieces.rows[sample], pieces.times[sample, step]
        seen = torch.as_tensor(episodes.observations[row, time][None])
        memory_before = torch.as_tensor(episodes.memory[row, time][None])

        def value(amount, seen=seen, memory_before=memory_before, component=component):
            edit = Intervention(basis, [component], "steer", amount=amount, site=site_of(agent)).edit(0)
            return agent.step(seen, memory_before, edits={site_of(agent): edit}).value.item()

        slope = (value(1e-2) - value(-1e-2)) / 2e-2
        assert data.gradients[VALUE][sample, step, component] == pytest.approx(slope, rel=0.02, abs=1e-4)
    assert np.isnan(data.gradients[VALUE][~data.real]).all()
    assert (LIKELIEST in data.gradients) == (not box)
    assert bool(data.paths) == (memory == "gru")

    page = opened("#t=1", write_panel(data, tmp_path))
    numbers = [float(text.replace("−", "-")) for text in page.locator("#features output").all_inner_texts()]
    np.testing.assert_allclose(numbers, data.observations[0, min(1, data.lengths[0] - 1)], atol=0.006)
    page.locator("#pair-scrub").fill("1")
    assert page.locator("#features-b output").count() == 3
    assert "value" in page.locator("#does-a").inner_text()


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_packed_numbers_saturate_and_keep_their_sign_and_gaps(numbers):
    numbers = np.array(numbers)
    shown = shown_curved(numbers)
    finite = np.isfinite(numbers)
    np.testing.assert_array_equal(np.isnan(shown), np.isnan(numbers))
    assert (np.sign(shown[finite]) * np.sign(numbers[finite]) >= 0).all()
    scale = np.abs(numbers[finite]).max(initial=0.0) or 1.0
    assert (np.abs(shown[finite] - numbers[finite]) <= scale / 100).all()
    assert (np.abs(shown_half(numbers[~np.isnan(numbers)])) <= write.LARGEST_HALF).all()


def test_saliency_saturates_instead_of_wrapping():
    packed = write.saturated(np.array([0.0, 1.0, 6.0, -6.0, np.inf, np.nan]), 1.0)
    levels = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.int8)
    assert levels.tolist() == [0, 127, 127, -127, 127, write.MISSING]


def test_sheets_hold_every_frame_and_keep_to_their_budget(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (5, 7, 10, 12, 3)).astype(np.uint8)
    plan = plan_for(5, 7, 10, 12)
    sheet = np.asarray(sheet_image(plan, frames))
    for group in range(5):
        for step in range(7):
            row, column = divmod(group * plan["steps"] + step, plan["columns"])
            tile = sheet[row * 10 : row * 10 + 10, column * 12 : column * 12 + 12]
            np.testing.assert_array_equal(tile, frames[group, step])
    assert write_sheets(frames, tmp_path, "s", 1 << 20)["quality"] is None
    size = (tmp_path / "s0.webp").stat().st_size
    assert write_sheets(frames, tmp_path, "s", size // 2)["quality"] is not None
    assert (tmp_path / "s0.webp").stat().st_size <= size // 2
    write_sheets(frames[..., :1], tmp_path, "g", 1 << 20)  # one channel; and a stack of them


def test_a_panel_written_again_is_the_same_and_forgets_the_old(tmp_path):
    write_panel(made_up(20), tmp_path)
    first = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    write_panel(made_up(9, pairs=False), tmp_path)
    assert not (tmp_path / "frames" / "p0_0.webp").exists()
    write_panel(made_up(20), tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == first
    text = (tmp_path / "data" / "core.js").read_text()
    assert json.loads(text[text.index(",") + 1 : -3])["count"] == 20
    write_panel(made_up(1, 1, 2, pairs=False), tmp_path)  # one step of one sample


def test_wrong_shapes_are_told():
    data = made_up(3)
    fields = {name: getattr(data, name) for name in ("title", "observations", "lengths", "actions", "action_names")}
    fields |= {name: getattr(data, name) for name in ("values", "rewards", "loadings", "components")}
    with pytest.raises(SettingError, match=r"values have shape \(3, 5\); it must be \(3, 12\)"):
        PanelData(**fields | {"values": data.values[:, :5]})
    with pytest.raises(SettingError, match="lengths must be 1 to 12"):
        PanelData(**fields | {"lengths": np.array([0, 1, 13])})


def test_maps_that_are_not_faithful_are_doubted(tmp_path):
    _, agent, basis, episodes, pieces = corridor_panel()
    faithful, rng = Faithful({"value/difference_x_gradient": False}), np.random.default_rng(0)
    doubted = collect(agent, episodes, pieces[:6], basis, site_of(agent), rng, title="C", faithful=faithful)
    assert [doubted.saliency[name].doubt for name in (VALUE, LIKELIEST)] == [UNFAITHFUL, UNCHECKED]
    write_panel(doubted, tmp_path)
    told = re.findall(r'"doubt":"([^"]*)"', (tmp_path / "data" / "core.js").read_text())
    assert told == [UNFAITHFUL, UNCHECKED]
    colours = (tmp_path / "colours.css").read_text()
    assert colours.count(f"--raises: {RAISES}") == 1, "one colour code in the panel and in pictures"
    known = Faithful({"value/difference_x_gradient": True, "action/difference_x_gradient": True})
    assert not known.doubt("value", "difference_x_gradient")


def test_dreamed_pairs_start_alike_and_differ_by_the_intervention():
    _, agent, basis, episodes, pieces = corridor_panel()
    world = LinearWorld(actions=3, context=2)
    pairs = PairMaker(agent, Corridors, episodes, pieces, basis, site_of(agent)).simulated(world, [0, 1])
    assert [pair.simulated for pair in pairs] == [True, True]
    for pair in pairs:
        np.testing.assert_array_equal(pair.a.observations[0], pair.b.observations[0])
        assert not np.allclose(pair.a.values, pair.b.values)
        assert pair.a.actions.shape == (16,)
        assert pair.sample is not None


def test_the_step_writes_a_panel_from_a_recording_alone(tmp_path):
    agent = agent_of("gru", False)
    record_inside(agent, Corridors(16), range(40), tmp_path / "recording", keep_states=True)
    work = context_of(agent, Corridors, tmp_path, "panel", effort=0.02)
    section = panel.run(work)
    assert (tmp_path / "panel" / "index.html").exists()
    assert section.values["comparisons"] > 2
    assert panel.STEP.why_not(work) is None
    assert panel.STEP.why_not(replace(work, folders={}))
