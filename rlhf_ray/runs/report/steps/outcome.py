"""The outcome of a run: true returns, budgets, accuracy, and what must not be read into them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from rlhf_ray.agents.true_return import LONGEST
from rlhf_ray.measure.error_rates import ErrorRate, newest_rates
from rlhf_ray.runs.outcome import Verdict
from rlhf_ray.runs.report.subject import Run, is_number, part
from rlhf_ray.runs.report.verdict import compare, share_of_the_way, verdicts
from rlhf_ray.study.figures import DRAWN
from rlhf_ray.study.section import Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words, number

WORDS = Words(__file__)

AGENTS = ("random", "trained", "reference")


@dataclass(frozen=True)
class RunSummary:
    """What came of a run; None where it is unknown.

    Attributes:
        state: complete, interrupted, or without a result: still running, or killed.
        true_returns: of each agent: mean, standard deviation over episodes, episodes and how many of them were cut.
        success_rates: of each agent whose environment says whether an episode succeeded.
        training_return: true return in training, at the end.
        better: whether the trained agent is better than random actions beyond noise.
        share_of_the_way: of the trained agent, from random actions to the reference.
        held_out_answers: answers behind the accuracy, without ties.
        fragment_steps, first_env_steps: length of a fragment, and environment steps of the first ones.
        wrong_answers: error rate of all answers.
        verdicts: caveats.
    """

    state: str
    true_returns: dict[str, list[float | None]]
    success_rates: dict[str, float]
    training_return: float | None
    better: bool
    share_of_the_way: float | None
    env_steps: float | None
    env_steps_budget: float | None
    comparisons: float | None
    comparisons_budget: float | None
    iterations: float | None
    training_seconds: float | None
    held_out_accuracy: float | None
    held_out_answers: int | None
    fragment_steps: float | None
    first_env_steps: float | None
    wrong_answers: ErrorRate | None = field(metadata=DRAWN)
    verdicts: list[Verdict] = field(metadata=DRAWN)


def run(context: StepContext[Run]) -> Section:
    """Tell the headline numbers."""
    figures = measure(context.subject)
    return WORDS.section(_statements(figures), (), list(_tables(figures)), (), figures)


def measure(run: Run) -> RunSummary:
    """Read the figures from the result, or else from the metrics."""
    stopped = run.result.get("interrupted") or run.about.get("interrupted")
    returns = {
        agent: [run.agent(agent, f"true_return_{name}") for name in ("mean", "std")]
        + [run.agent(agent, name) for name in ("episodes", "cut")]
        for agent in AGENTS
    }
    evaluated = returns["random"][0] is not None and returns["trained"][0] is not None
    steps, budget = run.settings.get("total_env_steps"), part(run.settings, "preferences").get("comparisons")
    decided = run.number("held_out_decided")
    held_out = run.latest("held_out") if decided is None else decided
    return RunSummary(
        "interrupted" if stopped else "complete" if run.result else "without a result",
        returns,
        {agent: rate for agent in AGENTS if (rate := run.agent(agent, "success_rate")) is not None},
        run.latest("true_return_mean"),
        evaluated and compare(run.result["trained"], run.result["random"]) > 0,
        share_of_the_way(run.result),
        run.number("env_steps"),
        steps if is_number(steps) else None,
        run.number("comparisons"),
        budget if is_number(budget) else None,
        run.latest("iteration"),
        run.number("train_seconds", "seconds"),
        run.number("held_out_accuracy"),
        None if held_out is None else int(held_out),
        run.latest("fragments_length"),
        run.latest("first_fragments_env_steps"),
        newest_rates(run.rows)[0],
        verdicts(run.result),
    )


def _statements(figures: RunSummary) -> Iterator[Statement]:
    if figures.true_returns["trained"][0] is not None and figures.true_returns["random"][0] is not None:
        yield WORDS.statement("returns", 3.0, figures=figures)
    if figures.held_out_accuracy is not None:
        yield WORDS.statement("accuracy", 2.0, figures=figures)
    if figures.wrong_answers is not None:
        yield WORDS.statement("wrong", 1.0, wrong=figures.wrong_answers.sentence())
    if figures.state != "complete":
        key = "interrupted" if figures.state == "interrupted" else "no_result"
        yield WORDS.statement(key, 2.0, figures=figures)
    for verdict in figures.verdicts:
        yield WORDS.statement("verdict", 1.0, message=verdict.message)


def _tables(figures: RunSummary) -> Iterator[Table]:
    rows = []
    for agent, (mean, deviation, episodes, cut) in figures.true_returns.items():
        counted = f"{episodes:g} ({cut:g} cut at {LONGEST:,} steps)" if cut and episodes else episodes
        shown = ["not measured", None] if mean is None else [number(mean), deviation]
        rows.append([WORDS.text(agent), *shown, counted])
    yield WORDS.table("true_returns", rows)
    seconds = figures.training_seconds
    facts: list[tuple[str, Any, Any]] = [
        *((f"success rate, {WORDS.text(agent).lower()}", rate, None) for agent, rate in figures.success_rates.items()),
        ("comparisons", figures.comparisons, figures.comparisons_budget),
        ("environment steps", figures.env_steps, figures.env_steps_budget),
        ("iterations", figures.iterations, None),
        ("training time", None if seconds is None else str(timedelta(seconds=round(seconds))), None),
        ("true return in training, at the end", figures.training_return, None),
        ("held-out accuracy", figures.held_out_accuracy, f"{figures.held_out_answers} answers"),
        ("steps of a fragment", figures.fragment_steps, None),
        ("environment steps of the first fragments", figures.first_env_steps, None),
    ]
    yield WORDS.table("facts", [fact for fact in facts if fact[1] is not None])


STEP = Step(WORDS.name, WORDS.title, run)
