"""The step budget: who takes which of a training's steps, and how far the agent is, against counting them out."""

from typing import Any

import pytest

from rlhf_ray.actors.ring import StepBudget
from rlhf_ray.settings import Experiment, FragmentSettings, PreferenceSettings


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
