"""Misspelt, abbreviated and misplaced names of settings find the ones that are meant."""

import pytest

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.nearest import did_you_mean, nearest
from rlhf_ray.data.registry import Registry
from rlhf_ray.sweeps.space import kinds


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("ppo.lr", "ppo.learning_rate"),
        ("ppo.gama", "ppo.gamma"),
        ("ppo.GAMMA", "ppo.gamma"),
        ("ppo.ent_coef", "ppo.entropy_coefficient"),
        ("ppo.n-epochs", "ppo.epochs"),
        ("ppo.clip_range", "ppo.clip"),
        ("reward.lr", "reward_model.learning_rate"),
        ("labeling.port", "labelling.port"),
        ("total-timesteps", "total_env_steps"),
        ("ensemble-size", "reward_model.ensemble_size"),
    ],
)
def test_the_nearest_setting_comes_first(given: str, meant: str) -> None:
    assert nearest(given, kinds())[0] == meant


def test_a_name_that_several_groups_have_names_them_all() -> None:
    assert sorted(nearest("gamma", kinds())) == ["ppo.gamma", "sac.gamma"]
    assert did_you_mean("gamma", ["sac.gamma", "ppo.gamma"], "--{}") == "did you mean --sac.gamma or --ppo.gamma?"


def test_parts_are_suggested_too() -> None:
    registry: Registry[object] = Registry("group.part", object, {"steady": object})
    with pytest.raises(
        SettingError, match=r"is 'stedy'; did you mean steady\? It must be one of steady, or module:Name"
    ):
        registry.find("stedy")
    with pytest.raises(
        SettingError, match=r"has no OrderdDict: correct the name \(did you mean OrderedDict\?\), or define it"
    ):
        registry.find("collections:OrderdDict")


def test_nothing_near_is_no_suggestion() -> None:
    assert did_you_mean("nonsense", kinds()) == ""
    assert nearest("x", []) == []
