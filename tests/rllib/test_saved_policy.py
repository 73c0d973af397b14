"""A policy on disk acts without RLlib as its RLModule does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rlhf_ray.agents.saved import POLICY_FILE, WEIGHTS_FILE, SavedPolicy
from rlhf_ray.data.errors import SettingError
from rlhf_ray.rllib import checkpoint_parts
from rlhf_ray.rllib.policy import CollectorPolicy, built, policy_spec
from rlhf_ray.rllib.sac_module import SoftActorCritic
from rlhf_ray.settings import PPOSettings

VECTOR, IMAGE = gym.spaces.Box(-2.0, 2.0, (3,)), gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
DISCRETE, SEVERAL = gym.spaces.Discrete(4), gym.spaces.MultiDiscrete([2, 3])
BOX = gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))
POLICIES: dict[str, tuple[Any, Any, RLModuleSpec]] = {
    "discrete": (VECTOR, DISCRETE, policy_spec(PPOSettings(hidden=(8,)))),
    "box": (VECTOR, BOX, policy_spec(PPOSettings(normalize_observations=True))),
    "several": (VECTOR, SEVERAL, policy_spec(PPOSettings())),
    "image": (IMAGE, DISCRETE, policy_spec(PPOSettings(network="small"))),
    "memory": (VECTOR, DISCRETE, policy_spec(PPOSettings(memory="gru", memory_units=8))),
    "sac": (
        VECTOR,
        BOX,
        RLModuleSpec(module_class=SoftActorCritic, model_config={"hidden": [8], "initial_alpha": 0.1}),
    ),
}


def saved(name: str, folder: Path) -> tuple[CollectorPolicy, SavedPolicy]:
    """The policy as an RLModule, and what is read of its folder. Weights are large, so that memory and values matter."""
    observation_space, action_space, spec = POLICIES[name]
    torch.manual_seed(0)
    module = built(spec, observation_space, action_space)
    module.set_state({key: 2.0 * value for key, value in module.get_state().items()})
    checkpoint_parts._write(module, folder)
    found = SavedPolicy.load(folder)
    assert found is not None
    return CollectorPolicy(module), found


@pytest.mark.parametrize("name", POLICIES)
def test_it_acts_as_the_module_does(name: str, tmp_path: Path) -> None:
    theirs, found = saved(name, tmp_path / "policy")
    mine = found()
    space = POLICIES[name][0]
    space.seed(1)
    seen = np.stack([[space.sample() for _ in range(5)] for _ in range(4)])
    for step, observations in enumerate(seen):
        first = np.full(5, step == 0) | (np.arange(5) == step)  # episodes begin at different steps
        np.testing.assert_allclose(mine.best(observations, first), theirs.best(observations, first), atol=1e-5)
    mine, their = mine.begin(), theirs.begin()
    mine.see(seen[0, 0])
    their.see(seen[0, 0])
    if name in ("discrete", "memory", "image", "box"):  # RLlib draws other distributions with torch's generator
        for number, observation in enumerate(seen[1]):
            drawn = [each.act(observation, np.random.default_rng(number)) for each in (mine, their)]
            np.testing.assert_allclose(drawn[0], drawn[1], atol=1e-5)
    draw = found().drawn(0)
    drawn = np.stack([draw(seen[0], np.ones(5, bool)) for _ in range(400)])
    assert drawn.shape == (400, 5, *POLICIES[name][1].shape)
    again = mine.maker()()
    np.testing.assert_array_equal(again.best(seen[0]), found().best(seen[0]))
    assert mine.maker().digest() == theirs.maker().digest()


def test_damage_is_one_line_and_networks_of_others_are_left_to_rllib(tmp_path: Path) -> None:
    saved("discrete", tmp_path / "policy")
    file = tmp_path / "policy" / POLICY_FILE
    about = json.loads(file.read_text())
    for change, said in (({"format": "other/9"}, "update rlhf_ray"), ({"digest": "0" * 16}, "damaged")):
        file.write_text(json.dumps(about | change))
        with pytest.raises(SettingError, match=said):
            SavedPolicy.load(tmp_path / "policy")
    file.write_text(json.dumps(about | {"module": "somebody:Network"}))
    assert SavedPolicy.load(tmp_path / "policy") is None
    assert SavedPolicy.load(tmp_path / "nothing") is None
    file.write_text(json.dumps(about))
    (tmp_path / "policy" / WEIGHTS_FILE).write_bytes(b"nothing")
    with pytest.raises(SettingError, match="damaged"):
        SavedPolicy.load(tmp_path / "policy")
