"""The header: what an agent achieves beside random actions, by figures known from the rules of its world."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.recorded import record_inside
from rlhf_ray.interpret.agent.steps import header
from rlhf_ray.study.section import Section
from tests.interpret.agent.lamps import AGENTS, STEPS, Lamps, planted
from tests.interpret.contexts import context_of


def found(agent: Agent, rule: str, folder: Path) -> Section:
    make = partial(Lamps, rule=rule)
    record_inside(agent, make(20), range(60), folder / "recording", acting={"greedy": 0.5, "epsilon": 0.5})
    return header.run(context_of(agent, make, folder, "header"))


def test_an_agent_that_follows_the_rule_earns_every_step(tmp_path: Path) -> None:
    section = found(AGENTS["a"], "a", tmp_path)
    beside, share, levels = section.checks
    assert (beside.passed, share.passed, levels.passed) == (True, True, True)
    assert section.values["returns"]["mean"] == STEPS
    assert beside.value == pytest.approx(STEPS / 2, abs=1.0)  # random actions are right at half of the steps
    assert section.values["ends"]["timeout"]["mean"] == 1.0


def test_an_agent_that_always_does_the_same_or_does_it_wrong_is_told(tmp_path: Path) -> None:
    for name, sign in (("same", 0.0), ("wrong", -1.0)):
        agent = planted(lambda seen, memory, sign=sign: sign * seen[:, 0] + (sign == 0.0), name)  # type: ignore[misc]
        (tmp_path / name).mkdir()
        beside, share, _ = found(agent, "a", tmp_path / name).checks
        assert (beside.passed is False) == (name == "wrong")
        assert (share.passed is None) == (name == "same")


def test_a_film_shows_every_frame_larger(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (7, 16, 20, 6)).astype(np.uint8)
    film = Image.open(io.BytesIO(header.draw_film(frames)))
    assert (film.n_frames, film.size) == (7, (160, 128))  # type: ignore[attr-defined]
    film.seek(3)
    assert np.array_equal(np.asarray(film.convert("RGB"))[::8, ::8], frames[3, ..., 3:])
