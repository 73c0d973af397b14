"""What recorder, world model and environments refuse, and what doesn't depend on how many are computed at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.agents.episodes import draw_moments
from rlhf_ray.agents.play import play
from rlhf_ray.agents.recorded import Windows, load_episodes, record_inside
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.batches import make_batch
from rlhf_ray.interpret.agent.world_model.model import RecurrentWorld, WorldShape
from rlhf_ray.interpret.agent.world_model.simulate import simulate
from tests.agents.made import network_agent
from tests.interpret.agent.lamps import AGENTS, Lamps

MINIRUN = "rlhf_ray/MiniRun-v0"
SMALL = WorldShape(memory=16, groups=2, classes=4)


@pytest.fixture(scope="module")
def agent() -> NetworkAgent:
    torch.set_num_threads(1)
    batch = make_batch(MINIRUN, 1)
    return network_agent(batch.observation_space, batch.action_space, features=16)


def test_a_changed_byte_of_a_recording_is_refused(tmp_path: Path) -> None:
    record_inside(AGENTS["a"], Lamps(10), list(range(10)), tmp_path / "whole")
    (chunk,) = [each for each in (tmp_path / "whole").iterdir() if each.suffix == ".arrow"]
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    for opened in (lambda: load_episodes(tmp_path / "whole"), lambda: Windows(tmp_path / "whole", 4)[np.arange(1)]):
        with pytest.raises(SettingError, match="is damaged") as raised:
            opened()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "options"), [(MINIRUN, {"length": 48}), (MINIRUN, {"coin": "end"}), ("rlhf_ray/CueRun-v0", {})]
)
def test_states_of_other_worlds_and_options_are_refused(agent: NetworkAgent, name: str, options: dict) -> None:  # type: ignore[type-arg]
    episodes = play(agent, make_batch(MINIRUN, 4), range(4), max_steps=3, keep_states=True)
    start = [states[0] for states in episodes.env_states[:2]], episodes.memory[:2, 0], 0
    with pytest.raises(SettingError, match="make the environment with the options that the state was saved with"):
        play(agent, make_batch(name, 2, **options), range(2), start=start)


@pytest.mark.parametrize("n", [1, 7, 64])
def test_nothing_depends_on_how_many_are_computed_at_once(agent: NetworkAgent, n: int) -> None:
    levels = range(40, 54)
    whole, part = (
        play(agent, make_batch(MINIRUN, copies), levels, max_steps=12, keep_states=True) for copies in (14, n)
    )
    np.testing.assert_array_equal(whole.actions, part.actions)
    np.testing.assert_allclose(whole.memory, part.memory, atol=1e-5)
    world = RecurrentWorld(agent.observation_space, agent.action_space, SMALL, agent.digest)
    moments = draw_moments(agent, whole, 64, np.random.default_rng(0), context=world.context)
    given = moments.observations, moments.actions, moments.memory
    with torch.no_grad():
        every = simulate(world, agent, *given, 3)
        some = simulate(world, agent, *(each[:n] for each in given), 3)
    assert len(some.values) == min(n, len(moments))
    assert (some.values - every.values[:n]).abs().max() <= 1e-5
    assert (some.memory - every.memory[:n]).abs().max() <= 1e-5
