"""Files that hold less than they should: each is one line that names the file."""

import numpy as np
import pytest

from rlhf_ray.cli.convert import run as convert
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.other_formats import MinariFolder
from rlhf_ray.queries.fitting import fit
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib.starting import fitted_reward
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.store import PreferenceStore
from tests.data.test_recordings import written
from tests.made_up import FORCES, VECTORS, some_comparisons


def test_a_relative_path_is_a_minari_data_set_too(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    written(tmp_path / "recording", (VECTORS, FORCES))
    monkeypatch.chdir(tmp_path)
    convert(["recording", "sub/pend-v0", "--to", "minari"])
    assert len(list(MinariFolder("sub/pend-v0"))) == 5
    (tmp_path / "sub" / "pend-v0" / "data" / "metadata.json").write_text("{")
    with pytest.raises(SettingError, match=r"pend-v0 can't be read as a Minari data set"):
        MinariFolder("sub/pend-v0")


@pytest.mark.parametrize(
    ("file", "content"), [("reward.json", "[]"), ("reward.json", "{"), ("reward.safetensors", "x")]
)
def test_a_damaged_reward_model_is_one_line(tmp_path, file, content):
    RewardEnsemble(VECTORS, FORCES, RewardModelSettings(hidden=(4,))).save(tmp_path / "rw")
    assert fitted_reward(tmp_path / "rw").settings.hidden == (4,)
    (tmp_path / "rw" / file).write_text(content)
    with pytest.raises(SettingError, match=r"rw can't be read as a reward model .*damaged") as found:
        fitted_reward(tmp_path / "rw")
    assert "\n" not in str(found.value)
    with pytest.raises(SettingError, match=r"reward.json is a file, but training uses a reward model's folder"):
        fitted_reward(tmp_path / "rw" / "reward.json")


def test_observations_that_are_not_finite_are_named(tmp_path):
    comparisons = some_comparisons(4)
    comparisons.pairs.left.observations[0, 0, 0] = np.nan
    store = PreferenceStore(tmp_path / "store")
    store.commit(comparisons, annotator="a")
    with pytest.raises(SettingError, match="store have observations that are NaN"):
        fit(store, VECTORS, FORCES)


def test_early_stopping_without_enough_held_out_comparisons_says_so(tmp_path, caplog):
    store = PreferenceStore(tmp_path / "store")
    store.commit(some_comparisons(20), annotator="a")
    fit(store, VECTORS, FORCES, RewardModelSettings(hidden=(4,), early_stopping=2), updates=2)
    assert "reward_model.early_stopping had no effect" in caplog.text
