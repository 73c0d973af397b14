"""What a run needs of a cluster, what is missing, and waiting for it."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from rlhf_ray.actors.placement import CPUS, await_room, missing, ring_bundles
from rlhf_ray.actors.ring_actors import RingActors
from rlhf_ray.settings import RewardModelSettings, SettingError


def test_the_rings_bundle_holds_its_actors() -> None:
    [bundle] = ring_bundles(0.0)
    assert sum(CPUS.values()) <= bundle.pop("CPU") < sum(CPUS.values()) + 1
    assert not bundle


def test_a_reward_trainer_with_a_gpu_has_a_bundle_of_its_own_before_the_last() -> None:
    trainer, others = ring_bundles(0.5)
    assert trainer == {"CPU": CPUS["reward_trainer"], "GPU": 0.5}
    rest = sum(CPUS.values()) - CPUS["reward_trainer"]
    assert rest <= others.pop("CPU") < rest + 1
    assert not others


@pytest.mark.parametrize(
    ("apart", "gpus", "shares"), [(True, 0.0, False), (False, 0.0, True), (False, 0.5, False), (True, 0.5, False)]
)
def test_a_reward_trainer_that_others_need_not_wait_for_or_with_a_gpu_shares_no_process(apart, gpus, shares):
    started: dict[str, dict[str, Any]] = {}
    executor: Any = SimpleNamespace(start=lambda kind, role, *arguments, **how: started.update({role: how}))
    spaces = {"observation_space": None, "action_space": None, "fragments": None, "preferences": None}
    of: Any = SimpleNamespace(**spaces, store="", seed=0, reward_model=RewardModelSettings(gpus=gpus))
    RingActors(of, executor, fits_apart=apart)
    assert started == {
        "store": {"shares": True}, "pool": {"shares": True}, "reward_trainer": {"gpus": gpus, "shares": shares}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bundles", "nodes", "words"),
    [
        ([], [], None),
        ([{"CPU": 1.0}] * 3, [{"CPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}], None),
        ([{"CPU": 1.0, "GPU": 0.5}] * 2, [{"CPU": 2.0, "GPU": 1.0}], None),
        (
            [{"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}],
            [{"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0}],
            None,
        ),  # first those with a GPU,
        ([{"CPU": 1.0}, {"CPU": 3.0}], [{"CPU": 3.0}, {"CPU": 1.0}], None),  # and those that need most
        ([{"CPU": 0.1}] * 3, [{"CPU": 0.3}], None),  # 0.3 - 0.1 - 0.1 is less than 0.1
        ([{"CPU": 1.0}] * 3, [{"CPU": 2.0}], ["3 CPU in 3 bundles", "2 CPU on 1 nodes"]),
        ([{"CPU": 3.0}], [{"CPU": 2.0}, {"CPU": 2.0}], ["4 CPU on 2 nodes", "(3 CPU)"]),
        ([{"CPU": 1.0, "GPU": 1.0}], [{"CPU": 8.0}], ["1 GPU", "0 GPU"]),
        ([{"CPU": 1.0}], [], ["0 CPU on 0 nodes"]),
    ],
)
def test_what_is_missing_is_said(bundles, nodes, words):
    said = missing(bundles, nodes)
    assert (said is None) == (words is None)
    assert all(word in str(said) for word in words or [])


@pytest.mark.usefixtures("ray_session")
def test_a_cluster_that_could_never_hold_a_run_is_named_as_too_small() -> None:
    with pytest.raises(SettingError, match=r"1000 CPU.*ppo\.num_env_runners"):
        await_room([{"CPU": 1.0}, {"CPU": 1000.0}], nodes_within=0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_busy_cluster_is_waited_for() -> None:
    @ray.remote
    class Occupant:
        def here(self) -> bool:
            return True

    everything = ray.cluster_resources()["CPU"]
    occupant = Occupant.options(num_cpus=everything).remote()  # type: ignore[attr-defined]
    ray.get(occupant.here.remote())
    said: list[str] = []
    there = threading.Event()

    def wait() -> None:
        await_room([{"CPU": 1.0}], nodes_within=0.0, say=said.append)
        there.set()

    threading.Thread(target=wait, daemon=True).start()
    time.sleep(1.5)
    assert not there.is_set()
    assert len(said) == 1
    assert "other runs" in said[0]
    ray.kill(occupant)
    assert there.wait(30)
