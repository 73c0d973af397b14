"""What a run needs: room in a cluster, and environment steps, which its agent and its ring share."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from rlhf_ray.actors.placement import CPUS, await_room, missing, ring_bundles
from rlhf_ray.actors.ring import StepBudget
from rlhf_ray.actors.ring_actors import RingActors
from rlhf_ray.settings import Experiment, FragmentSettings, PreferenceSettings, RewardModelSettings, SettingError


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


def budget_of(
    *,
    total: int = 40_000,
    iteration: int = 1_000,
    rounds: int = 20,
    initial: int = 1_500,
    exploration: int = 0,
    film: int = 100,
    pretraining: int = 0,
    comparisons: int = 100,
    films: bool = False,
) -> StepBudget:
    experiment = Experiment(
        environment="Pendulum-v1",
        total_env_steps=total,
        fragments=FragmentSettings(
            length=10, initial_env_steps=initial, exploration_env_steps=exploration, film_env_steps=film
        ),
        preferences=PreferenceSettings(
            comparisons=comparisons, rounds=rounds if comparisons else 0, pretraining_env_steps=pretraining
        ),
    )
    fragments = experiment.fragments.resolved(horizon=200, total_env_steps=total)
    return StepBudget(experiment, fragments, iteration, films=films)


CASES: dict[str, dict[str, Any]] = {
    "the agent's alone": {},
    "explored between rounds": {"exploration": 400},
    "filmed between rounds": {"films": True, "film": 130},
    "pretrained": {"pretraining": 2_500, "exploration": 400},
    "a rest": {"total": 41_234, "exploration": 77, "rounds": 3},
}


@pytest.mark.parametrize("of", CASES.values(), ids=CASES)
@pytest.mark.parametrize("early", [0.0, 0.5, 1.0])
def test_the_progress_counts_the_agents_own_iterations_whenever_the_ring_takes_its_steps(of, early):
    """Of the ring's steps between rounds, the share `early` comes before the first iteration, the rest evenly."""
    budget = budget_of(**of)
    size = budget.iteration_env_steps
    between = of.get("rounds", 20) * (of.get("exploration", 0) + (of["film"] if of.get("films") else 0))
    pretraining = -(-of.get("pretraining", 0) // size)
    whole = budget.total - between - 1_500
    assert (budget.iterations, budget.initial_env_steps) == (whole // size, 1_500 + whole % size)
    assert budget.initial_env_steps + between + budget.iterations * size == budget.total
    assert budget.learning_iterations == budget.iterations - pretraining
    for number in range(budget.iterations):
        sampled = number * size
        last = number == budget.iterations - 1
        share = 1.0 if last else early + (1.0 - early) * number / budget.iterations
        taken = budget.initial_env_steps + int(between * share)
        learned = max(0, number - pretraining)
        assert budget.share(sampled, taken) == pytest.approx(learned / (budget.learning_iterations - 1))
        assert budget.pretrains(sampled) == (number < pretraining)
        assert not budget.finished(sampled, taken)
        progress = budget.progress(sampled, taken, number, None)  # type: ignore[arg-type]
        assert (progress.share, progress.env_steps) == (budget.share(sampled, taken), sampled + taken)
        assert progress.room == budget.total - sampled - taken - size  # an iteration of the agent always fits
        assert progress.iteration == number
    assert budget.finished(sampled + size, taken)
    assert budget.metrics(sampled + size, taken) == {
        "env_steps": budget.total,
        "finished": 1.0,
        "fragments_length": 10,
        "first_fragments_env_steps": budget.initial_env_steps,
    }


def test_more_initial_fragments_take_whole_iterations_from_the_agent() -> None:
    budget = budget_of()
    assert (budget.iterations, budget.initial_env_steps) == (38, 2_000)
    budget.share_out(3_001)
    assert (budget.iterations, budget.initial_env_steps) == (36, 4_000)
    assert budget.share(18_000, 4_000) == pytest.approx(18 / 35)


def test_steps_that_the_ring_leaves_are_the_agents() -> None:
    """A ring that explores less than planned leaves more iterations: the progress stays short of 1 until the last fits."""
    budget = budget_of(exploration=400)
    assert (budget.iterations, budget.initial_env_steps) == (30, 2_000)
    assert budget.share(29_000, 2_000) == pytest.approx(29 / 30)  # another may come
    assert budget.share(37_000, 2_000) == 1.0
    assert not budget.finished(37_000, 2_000)
    assert budget.finished(38_000, 2_000)


def test_a_training_without_labels_has_no_initial_fragments() -> None:
    budget = budget_of(comparisons=0, total=10_000)
    assert (budget.iterations, budget.initial_env_steps) == (10, 0)
    assert budget.metrics(1_000, 0) == {"env_steps": 1_000, "finished": 0.0}
