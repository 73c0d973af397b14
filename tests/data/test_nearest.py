"""Misspelt and misplaced names of settings and parts find the ones that are meant."""

import pytest

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import Registry, did_you_mean
from rlhf_ray.sweeps.space import kinds


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("ppo.gama", "ppo.gamma"),
        ("ppo.GAMMA", "ppo.gamma"),
        ("labeling.port", "labelling.port"),
        ("ensemble-size", "reward_model.ensemble_size"),
    ],
)
def test_the_nearest_settings_are_named(given, meant):
    assert did_you_mean(given, kinds()) == f"did you mean {meant}?"


def test_several_are_named_and_nothing_near_is_no_suggestion():
    assert did_you_mean("gamma", ["sac.gamma", "ppo.gamma"], "--{}") == "did you mean --sac.gamma or --ppo.gamma?"
    assert did_you_mean("nonsense", kinds()) == did_you_mean("x", []) == ""


def test_parts_are_suggested_too():
    registry: Registry[object] = Registry("group.part", object, {"steady": object})
    with pytest.raises(
        SettingError, match=r"is 'stedy'; did you mean steady\? It must be one of steady, or module:Name"
    ):
        registry.find("stedy")
    with pytest.raises(
        SettingError, match=r"has no OrderdDict: correct the name \(did you mean OrderedDict\?\), or define it"
    ):
        registry.find("collections:OrderdDict")
