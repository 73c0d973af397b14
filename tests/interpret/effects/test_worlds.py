"""Edits of grids leave worlds that there can be: one agent, before and after each step."""

import numpy as np

from benchmarks.planted_causes.environments import KEYS, RANDOM, played
from rlhf_ray.envs.gridworld import AGENT, GOAL, OBJECTS
from rlhf_ray.interpret.effects.edits import object_codes, world_edits


def test_every_edit_leaves_one_agent_and_changes_what_it_says():
    data = played(KEYS)
    edits = dict(world_edits(data, OBJECTS, np.random.default_rng(0)))
    for name, change in edits.items():
        after = change(data, data)
        for frames in (after.observations, after.next_observations):
            assert ((frames == AGENT).sum(1) == 1).all(), name
    assert not any(name.startswith("the agent is not") or name == "the agent is there once more" for name in edits)
    gone = edits["the goal is not there"](data, data)
    assert not (gone.observations == GOAL).any()
    vanished = edits["the goal disappears in the step"](data, data)
    assert (vanished.observations == data.observations).all()
    assert not (vanished.next_observations == GOAL).any()
    twice = edits["the goal is there once more"](data, data)
    assert ((twice.observations == GOAL).sum(1) == (data.observations == GOAL).sum(1) + 1).all()


def test_objects_are_all_codes_but_free_cells_and_walls_that_never_move():
    assert set(object_codes(played(RANDOM))) == {AGENT, GOAL}
