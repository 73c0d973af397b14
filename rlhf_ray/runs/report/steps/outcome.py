"""The outcome of a run: true returns, accuracy, wrong answers and alarms with their bounds, and the amounts they took."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np

from rlhf_ray.agents.true_return import LONGEST
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.measure.error_rates import newest_rates
from rlhf_ray.measure.intervals import MeanEstimate, share_interval
from rlhf_ray.queries.machine import NAME
from rlhf_ray.runs.answer_alarms import MANY_WRONG, SEE
from rlhf_ray.runs.outcome import checks_of, share_of_the_way
from rlhf_ray.runs.report.subject import Run, is_number, part
from rlhf_ray.study.section import Check, Section, Table

AGENTS = {
    "random": "random actions",
    "trained": "trained on the learned reward",
    "reference": "reference: same settings, true reward",
}


def section(run: Run) -> Section:
    """Return the headline figures."""
    remedy = "Not evaluated: the run has not finished, or was killed. This is of training. `rlhf-ray evaluate RUN` evaluates it."
    training = Check(
        "true return", None, run.latest("true_return_mean"), bound="> that of random actions", remedy=remedy
    )
    checks = [*(checks_of(run.result) or [training]), *_of_labels(run)]
    recorded = (row["alarms"] for row in reversed(run.rows) if isinstance(row.get("alarms"), list))
    if (alarms := next(recorded, None)) is not None:
        remedy = f"{', '.join(alarms).replace('_', ' ')}: see Health."
        checks.append(Check.of("alarms on at the end", not alarms, len(alarms), "0", remedy))
    of_agents, amounts = {agent: [run.agent(agent, name) for name in _OF_AGENT] for agent in AGENTS}, _amounts(run)
    values = {"state": state(run), "true_returns": of_agents, "share_of_the_way": share_of_the_way(run.result)}
    values |= {name.replace(" ", "_"): value for name, value, _ in amounts}
    columns = ["agent", "true return", "± std", "episodes", "success rate"]
    tables = [
        Table(columns, list(_returns(of_agents)), "True return of the deterministic policy"),
        Table(["", "value", "of"], [amount for amount in amounts if amount[1] is not None], "Amounts"),
    ]
    return Section("outcome", "Outcome", checks, tables=tables, values=values)


_OF_AGENT = ("true_return_mean", "true_return_std", "episodes", "cut", "success_rate")


def state(run: Run) -> str:
    """Return complete, interrupted, or without a result: still running, or killed."""
    stopped = run.result.get("interrupted") or run.about.get("interrupted")
    return "interrupted" if stopped else "complete" if run.result else "without a result"


def _of_labels(run: Run) -> Iterator[Check]:
    accuracy, answers = run.number("held_out_accuracy"), int(run.number("held_out_decided") or 0)
    if accuracy is not None:
        share = share_interval(accuracy * answers, answers) if answers else MeanEstimate(accuracy, None, None)
        unsure = share.low is None or share.high is None or share.low <= 0.5 <= share.high
        remedy = "Too few held-out answers tell, or it has learned nothing: collect more (preferences.comparisons)."
        bound = f"> 0.5, on {answers} {'answer' if answers == 1 else 'answers'}"
        yield Check.of("held-out accuracy", None if unsure else accuracy > 0.5, share, bound, remedy)
    if (wrong := newest_rates(run.rows)[0]) is not None:
        rate = MeanEstimate(wrong.rate, wrong.low, wrong.high)
        bound = f"≤ {MANY_WRONG}, by its interval"
        passed = False if wrong.low > MANY_WRONG else True if wrong.high <= MANY_WRONG else None
        yield Check.of("answers that look wrong", passed, rate, bound, SEE)


def _returns(of_agents: dict[str, list[float | None]]) -> Iterator[list[Any]]:
    for agent, (mean, deviation, episodes, cut, success) in of_agents.items():
        counted = f"{episodes:g} ({cut:g} cut at {LONGEST:,} steps)" if cut and episodes else episodes
        yield [AGENTS[agent], mean, deviation, counted, success]


def _amounts(run: Run) -> list[tuple[str, Any, Any]]:
    """Return name, value and budget of what the run took; None where it is unknown."""
    steps, labels = run.settings.get("total_env_steps"), part(run.settings, "preferences").get("comparisons")
    seconds = run.number("train_seconds", "seconds")
    return [
        ("comparisons", run.number("comparisons"), labels if is_number(labels) else None),
        ("env steps", run.number("env_steps"), steps if is_number(steps) else None),
        ("iterations", run.latest("iteration"), None),
        ("training time", None if seconds is None else str(timedelta(seconds=round(seconds))), None),
        ("training return", run.latest("true_return_mean"), None),
        ("steps of a fragment", run.latest("fragments_length"), None),
        ("env steps of the first fragments", run.latest("first_fragments_env_steps"), None),
        ("share of the reward that is a sum of functions of single inputs", run.latest("additive_share"), None),
        ("evidence for such a sum alone beside an MLP alone, in nats", run.latest("additive_evidence"), None),
        *_of_machine(run),
    ]


def _of_machine(run: Run) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a machine that answers has cost, and how many of its answers people contradict."""
    if (kept := run.machine) is None:
        return
    yield "requests to the machine", kept.requests, part(run.settings, "machine").get("questions")
    yield "tokens of the machine, where its server says", kept.tokens, None
    yield "seconds that requests took, in sum", round(kept.seconds), None
    yield "pairs that people were asked about", len(kept.referred), part(run.settings, "machine").get("people")
    if run.comparisons is not None:
        wrong, both = contradicted(run.comparisons)
        share = share_interval(len(wrong), both)
        interval = (
            "" if share.low is None or share.high is None else f" ({100 * share.low:.0f}–{100 * share.high:.0f} %)"
        )
        yield "the machine's answers that people contradict" + interval, len(wrong), both


def contradicted(stored: Comparisons) -> tuple[list[str], int]:
    """Return the ids of pairs about which people say the opposite of the machine, and the number that both have decided."""
    decided = stored.preferences != 0.5
    said: dict[str, dict[bool, bool]] = {}
    for name, who, preference in zip(
        np.array(stored.pairs.ids)[decided],
        np.array(stored.annotators)[decided],
        stored.preferences[decided],
        strict=True,
    ):
        said.setdefault(str(name), {})[who == NAME] = float(preference) > 0.5
    both = {name: of for name, of in said.items() if len(of) == 2}
    return [name for name, of in both.items() if of[True] != of[False]], len(both)
