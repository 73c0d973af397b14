"""The event simulation of a cluster, in cases that can be worked out by hand."""

import dataclasses

import pytest
import simpy

from benchmarks.cluster_model import Cluster, Costs, Line, Node, simulate

SAMPLING = Costs(
    rollout=Line(1.0, 0.0),
    spread=0.0,
    step_bytes=0.0,
    clips_bytes=0.0,
    handling=Line(0.0, 0.0),
    iteration=0.0,
    learning=Line(0.0, 0.0),
    reduce=0.0,
    clips=0.0,
    fit=0.0,
    ray=Line(0.0, 0.0),
)


def speed(costs: Costs, **cluster: object) -> float:
    return simulate(costs, Cluster(**{"steps": 100, **cluster})).env_steps_per_second  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "runners", "cores", "expected"),
    [(1, 1, 1, 100.0), (1, 2, 2, 200.0), (1, 2, 1, 100.0), (1, 4, 2, 200.0), (10, 15, 16, 15_000.0)],
)
def test_what_samples_shares_the_cores(nodes: int, runners: int, cores: int, expected: float) -> None:
    assert speed(SAMPLING, nodes=nodes, runners=runners, cores=cores, home_cores=4) == pytest.approx(expected, rel=1e-6)


def test_learning_overlaps_sampling_and_binds_where_it_takes_longer() -> None:
    costs = dataclasses.replace(SAMPLING, learning=Line(0.0, 0.004))
    assert speed(costs, nodes=1, runners=1, cores=2) == pytest.approx(100.0, rel=1e-6)
    outcome = simulate(costs, Cluster(steps=100, nodes=1, runners=4, cores=5))  # 1.6 s to learn from what 1 s samples
    assert outcome.env_steps_per_second == pytest.approx(400 / 1.6, rel=1e-6)
    assert outcome.binds == "the run's process"
    two = simulate(costs, Cluster(steps=100, nodes=1, runners=4, cores=6, learners=2))
    assert two.env_steps_per_second == pytest.approx(400.0, rel=1e-6)
    assert two.binds == "env runners"


def test_on_one_core_everything_adds_up() -> None:
    costs = dataclasses.replace(SAMPLING, learning=Line(0.0, 0.005), iteration=0.25, fit=0.25)
    assert speed(costs, nodes=1, runners=1, cores=1) == pytest.approx(100 / 2.0, rel=0.02)


def test_longer_rollouts_pay_fixed_costs_less_often() -> None:
    costs = dataclasses.replace(SAMPLING, rollout=Line(1.0, 0.01))
    assert speed(costs, nodes=1, runners=1, cores=2) == pytest.approx(100 / 2.0, rel=1e-6)
    assert speed(costs, nodes=1, runners=1, cores=2, steps=900) == pytest.approx(900 / 10.0, rel=1e-6)


def test_env_runners_do_not_wait_for_each_other() -> None:
    spread = dataclasses.replace(SAMPLING, spread=0.25)
    assert speed(spread, nodes=4, runners=4, cores=4) == pytest.approx(
        speed(SAMPLING, nodes=4, runners=4, cores=4), rel=0.08
    )


def test_rollouts_pass_the_network_once() -> None:
    costs = dataclasses.replace(SAMPLING, step_bytes=1e7)
    outcome = simulate(costs, Cluster(steps=100, nodes=4, runners=1, cores=1, home_cores=4, network=1e9))
    assert outcome.env_steps_per_second == pytest.approx(400 / 4.0, rel=1e-6)
    assert outcome.binds == "network"


def test_work_on_a_node_is_shared_while_there_is_more_than_one_at_it() -> None:
    env, ended = simpy.Environment(), []
    node = Node(env, 1)

    def process(seconds: float):  # type: ignore[no-untyped-def]
        yield node.work(seconds)
        ended.append(env.now)

    env.process(process(1.0))
    env.process(process(3.0))
    env.run()
    assert ended == pytest.approx([2.0, 4.0])
