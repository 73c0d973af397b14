"""Fitting on a GPU, and what is said where there is none."""

import dataclasses

import numpy as np
import pytest
import torch

from rlhf_ray.data.comparisons import Changes
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.settings import RewardModelSettings, SettingError
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, some_comparisons

SMALL = RewardModelSettings(
    hidden=(8,), batch_size=8, use_next_state=True, use_done=True, discount=0.9, precision="float32"
)
ON_A_GPU = dataclasses.replace(SMALL, gpus=1.0)
SPACES = [(VECTORS, FORCES), (IMAGES, CHOICES)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named_with_the_remedy() -> None:
    with pytest.raises(SettingError, match=r"reward_model\.gpus is 0\.5.*sees no GPU.*set it to 0.*CUDA build"):
        RewardTrainer(dataclasses.replace(SMALL, gpus=0.5), VECTORS, FORCES, held_out_share=0.0, seed=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize(("observations", "actions"), SPACES)
def test_a_fit_on_the_gpu_is_that_on_the_cpu_but_for_rounding(observations: object, actions: object) -> None:
    comparisons = some_comparisons(40, observations=observations, actions=actions)  # type: ignore[arg-type]
    here, there = (
        RewardTrainer(settings, observations, actions, held_out_share=0.2, seed=0)  # type: ignore[arg-type]
        for settings in (SMALL, ON_A_GPU)
    )
    for trainer in (here, there):
        trainer.comparisons.add(comparisons)
        trainer.fit(20)
    for name, value in here.ensemble.state().items():
        assert np.allclose(value, there.ensemble.state()[name], atol=1e-3), name
    here.load_state(there.state(), Changes(1, comparisons))  # states go from one to the other
    there.load_state(here.state(), Changes(1, comparisons))
    reports = [trainer.fit(20) for trainer in (here, there)]
    assert reports[0].train_loss == pytest.approx(reports[1].train_loss, abs=1e-3)
