"""The outcome's figures keep their bounds or not, and the terminal, the result and the report say so."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats

from rlhf_ray.agents.true_return import TrueReturn, evaluate
from rlhf_ray.data.system import CORES
from rlhf_ray.measure.error_rates import ErrorRate
from rlhf_ray.measure.intervals import estimate_mean
from rlhf_ray.runs.callbacks import TrainingRun
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.outcome import Outcome, checks_of, difference, share_of_the_way
from rlhf_ray.runs.progress import ProgressBars
from rlhf_ray.runs.report.run_report import write_report
from rlhf_ray.settings import Experiment, PreferenceSettings
from rlhf_ray.study.section import Check, figure


def agent(mean: float, std: float, spread: float | None = 0.58, episodes: int = 20) -> dict[str, Any]:
    told = {"true_return_mean": mean, "true_return_std": std, "episodes": episodes}
    return told if spread is None else told | {"action_spread": spread}


RETURN, REFERENCE, WAY = "true return", "reference's true return", "share of the way to the reference"
REACHED = "learned reward per step"
THRESHOLD, ACTIONS = "return beside the environment's threshold", "variation of actions beside random ones"


def agents(*each: tuple[Any, ...], threshold: float | None = None) -> dict[str, Any]:
    """The result of random actions, the trained agent and perhaps a reference, in this order."""
    result: dict[str, Any] = {} if threshold is None else {"reward_threshold": threshold}
    return result | {name: agent(*of) for name, of in zip(("random", "trained", "reference"), each, strict=False)}


def reached(learned: float, best: float) -> dict[str, Any]:
    """A poor agent, what it earns per step of the learned reward, and what the best fragments do."""
    result = agents((-1218, 287), (-900, 99)) | {"best_fragments": best, "environment": "Pendulum-v1"}
    result["trained"]["learned_reward"] = learned
    return result


CASES: dict[str, tuple[dict[str, Any], dict[str, bool | None] | None, bool]] = {
    "learned": (agents((-1218, 287), (-148, 99), (-146, 98)), {}, True),
    "far from the reference": (agents((20, 9), (392, 40), (500, 0)), {WAY: False}, True),
    "four fifths of the way": (agents((0, 1), (8, 1), (10, 1)), {}, True),
    "below the environment's threshold": (agents((20, 9), (296, 90), threshold=475.0), {THRESHOLD: False}, False),
    "at the threshold": (agents((0, 1), (8, 1), threshold=8.0), {}, False),
    "a reference says more than it": (agents((-50, 9), (960, 30), (970, 40), threshold=4800.0), {}, True),
    "no better than random": (agents((-499, 4), (-500, 0)), {RETURN: False}, False),
    "both never move": (agents((0, 0), (0, 0)), {RETURN: False}, False),
    "worse than random": (agents((25, 9), (9, 1)), {RETURN: False}, False),
    "better by 1.5 standard errors": (agents((0.0, 19**0.5), (1.5 * 2**0.5, 19**0.5)), {RETURN: None}, False),
    "MountainCarContinuous, standing still like its reference": (
        agents((-33.3, 0.4), (-0.2, 0.0, 0.02), (-0.1, 0.0, 0.03)),
        {ACTIONS: False, REFERENCE: False},
        False,
    ),
    "a reference that did not learn": (
        agents((-499, 4), (-498.7, 4), (-499.5, 3)),
        {RETURN: False, REFERENCE: False},
        False,
    ),
    "one episode tells nothing": (agents((-900, 0, 0.58, 1), (-100, 0, 0.58, 1)), {RETURN: None}, False),
    "actions were not measured": (agents((21, 9, None), (500, 0, None), (500, 0, None)), {}, True),
    "nobody's actions vary": (agents((-900, 90, 0.0), (-100, 90, 0.0)), {}, False),
    "reaches what it was shown": (reached(0.9, 1.2), {}, False),
    "stuck far below what it was shown": (
        reached(0.3, 1.2),
        {REACHED: False},
        False,
    ),
    "nothing evaluated": ({}, {}, False),
    "no random actions": ({"trained": agent(5, 1), "reference": agent(9, 1)}, None, False),
    "no trained agent": ({"random": agent(0, 1), "reference": agent(9, 1)}, None, False),
}


@pytest.mark.parametrize(("result", "expected", "told"), CASES.values(), ids=CASES.keys())
def test_figures_and_their_bounds(result: dict[str, Any], expected: dict[str, bool | None] | None, told: bool) -> None:
    checks = checks_of(result)
    assert {check.name: check.passed for check in checks if check.passed is not True} == (expected or {})
    assert all(bool(check.remedy) == (check.passed is not True) for check in checks)
    assert (share_of_the_way(result) is not None) == told
    assert expected is not None or not checks


def test_of_a_policy_that_is_stuck_the_remedy_is_a_command() -> None:
    result = reached(0.3, 1.2)
    assert the(result, REACHED).bound == f"≥ {figure(0.8)}"
    assert "`rlhf-ray train RUN/config.json --reward-from RUN`" in the(result, REACHED).remedy


def the(result: dict[str, Any], name: str) -> Check:
    (check,) = (check for check in checks_of(result) if check.name == name)
    return check


@pytest.mark.parametrize("episodes", [2, 3, 5, 20])
def test_intervals_are_those_of_the_returns_of_the_episodes(episodes: int) -> None:
    returns = np.random.default_rng(episodes).normal(8.0, 3.0, episodes)
    known = agent(float(returns.mean()), float(returns.std()), episodes=episodes)
    result = {"random": agent(0, 1, episodes=10), "trained": known, "reference": agent(16, 0)}
    check, way, expected = the(result, RETURN), the(result, WAY), estimate_mean(returns)
    assert (check.low, check.high) == pytest.approx((expected.low, expected.high))
    assert (16 * way.low, 16 * way.high) == pytest.approx((expected.low, expected.high))
    assert share_of_the_way(agents((0, 1), (5, 1), (9, 1))) == pytest.approx(5 / 9)
    assert check.bound.startswith("> 0 of random actions, by more than 0: ")
    assert way.bound == "≥ 0.8"
    assert (the(result, REFERENCE).low, the(result, REFERENCE).high) == (16.0, 16.0)


@pytest.mark.parametrize(
    ("trained", "episodes", "advice"),
    [
        (-0.3, 20, "Train longer (--resume), with more comparisons"),  # worse by the noise
        (0.5, 20, "Train longer"),
        (1.8, 20, "About 60 episodes (--evaluation-episodes) would decide it. Train longer"),
        (0.0, 1, "One episode has no noise"),
    ],
)
def test_more_episodes_are_advised_only_where_they_could_show_something(
    trained: float, episodes: int, advice: str
) -> None:
    # Half the interval of a difference of means is 2.02 * sqrt(2 * 19 / 19) = 2.86 with 20 episodes.
    result = {"random": agent(0.0, 19**0.5, episodes=episodes), "trained": agent(trained, 19**0.5, episodes=episodes)}
    assert the(result, RETURN).remedy.startswith(advice)


def test_what_acting_at_random_earned_in_training_is_said_beside_a_policy_that_stands_still_without() -> None:
    for earned, deviation, said in ((-206.4, 0, True), (-500.0, 0, False), (-487.0, 7, False), (-485.0, 7, True)):
        # Two of its deviations above its mean are -486.
        result = {"random": agent(-498, 7), "trained": agent(-500, deviation, 0.0), "training_return": earned}
        assert ("the stochastic policy reached" in the(result, ACTIONS).remedy) == said


def test_doing_nothing_is_said_in_the_terminal_and_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def still(observations: Any, first: Any) -> Any:
        return np.zeros((len(observations), 1), dtype=np.float32)

    random, trained = (evaluate("MountainCarContinuous-v0", act, episodes=2, seed=0) for act in (None, still))
    assert trained.true_return_mean > random.true_return_mean  # what looked like success
    folder = ended(tmp_path / "run", "MountainCarContinuous-v0", random, trained, skipped=1)
    said = "takes nearly the same action at every step"
    assert said in (printed := capsys.readouterr().out)
    assert "0 labels (1 pair skipped), " in printed
    assert said in write_report(folder.path).read_text()
    checks = json.loads(folder.result.read_text())["checks"]
    assert {check["name"]: check["passed"] for check in checks} == {RETURN: True, ACTIONS: False}


def ended(path: Path, environment: str, random: TrueReturn, trained: TrueReturn, **more: Any) -> RunFolder:
    """The folder of a run that came to this, which the terminal tells."""
    folder = RunFolder.create(path, Experiment(environment=environment))
    numbers = {"random": dataclasses.asdict(random), "trained": dataclasses.asdict(trained)}
    outcome = Outcome(environment, 0, 0, 0, random=random, trained=trained, checks=checks_of(numbers), **more)
    folder.finish(dataclasses.asdict(outcome), interrupted=False)
    progress = ProgressBars(folder.experiment())
    progress.on_start(started(folder))
    progress.on_end(outcome)
    return folder


def started(folder: RunFolder, needs_ray: bool = True) -> TrainingRun:
    algorithm = SimpleNamespace(config=SimpleNamespace(needs_ray=needs_ray))
    return TrainingRun(folder.experiment(), folder, cast(Any, algorithm))


def test_a_run_in_one_process_says_how_many_cores_it_uses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    monkeypatch.setenv(CORES, "1")
    ProgressBars(folder.experiment()).on_start(started(folder, needs_ray=False))
    assert capsys.readouterr().out == "uses 1 core\n"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    for bound, said in (
        ("", "uses up to 2 cores; --cores N bounds them"),
        ("2", "uses up to 2 cores"),
        ("99", "uses up to 2 cores: --cores is 99, and this process may use no more than 2"),
    ):
        monkeypatch.setenv(CORES, bound)
        ProgressBars(folder.experiment()).on_start(started(folder, needs_ray=False))
        assert capsys.readouterr().out == f"{said}\n"
    ProgressBars(folder.experiment()).on_start(started(folder))
    assert capsys.readouterr().out == ""


def test_the_progress_line_keeps_the_last_known_values(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressBars(Experiment(preferences=PreferenceSettings(comparisons=50)))
    progress.LINE_EVERY = -1.0
    row = {"raised": [], "iteration": 1, "env_steps": 5, "comparisons": 3, "reward_version": 1}
    progress.on_metrics(
        row | {"true_return_mean": -20.0, "learned_return_mean": 4.0, "held_out_accuracy": 0.9, "held_out_decided": 1}
    )
    progress.on_metrics(row | {"true_return_mean": None, "learned_return_mean": float("nan")})
    first, second = capsys.readouterr().out.splitlines()
    assert "true return -20.0, learned 4.0, held-out accuracy 0.90 (1 answer)" in first
    assert second == first


def test_wrong_answers_are_told_in_the_terminal_and_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment(preferences=PreferenceSettings(comparisons=50)))
    row = {"raised": [], "iteration": 1, "env_steps": 5, "comparisons": 40, "reward_version": 1}
    some, guessed = ErrorRate(0.12, 0.08, 0.17, 30), ErrorRate(0.5, 0.4, 0.6, 80, 0.5)
    rows = [row | some.metrics() | guessed.metrics("ben"), row | {"iteration": 2}]
    folder.metrics.write_text("".join(json.dumps(one) + "\n" for one in rows))
    said = "about 12 % of the answers look wrong (8–17 %)"
    for shown in (rows, rows[1:]):  # anew, and resumed
        progress = ProgressBars(folder.experiment())
        progress.LINE_EVERY = -1.0
        if shown is not rows:
            progress.on_start(started(folder))
        for one in shown:
            progress.on_metrics(dict(one))
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(shown)
        assert all(said in line for line in lines)
    page = write_report(folder.path).read_text()
    assert "answers that look wrong<b>0.120</b>" in page
    assert "0.0800 to 0.170" in page
    assert "undecided: ≤ 0.15, by its interval" in page
    assert "about 50 % of ben&#39;s answers look wrong (40–60 %), as if guessed" in page
    for high, verdict in ((0.14, "keeps"), (0.16, "undecided:")):
        folder.metrics.write_text(json.dumps(row | ErrorRate(0.12, 0.1, high, 30).metrics()) + "\n")
        page = write_report(folder.path).read_text()
        assert f"{verdict} ≤ 0.15, by its interval" in page


def test_what_was_chosen_and_done_about_ties_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressBars(Experiment())
    progress.LINE_EVERY = -1.0
    row = {"raised": [], "iteration": 1, "env_steps": 5, "comparisons": 30, "reward_version": 1}
    row |= {"true_return_mean": None, "learned_return_mean": None, "fragments_length": 25}
    row |= {"first_fragments_env_steps": 18080, "first_fragments_gathered": 3}
    progress.on_metrics(row)
    progress.on_metrics(row)
    chosen, done, *lines = capsys.readouterr().out.splitlines()
    assert chosen == "fragments of 25 steps, the first from 18080 random steps"
    assert done.startswith(
        "Nearly all of the first answers were ties, so initial fragments were collected 3 times (18080 env"
    )
    assert len(lines) == 2


def test_the_report_says_which_kind_of_reward_the_answers_chose(tmp_path: Path) -> None:
    agent = TrueReturn(-90.0, 1.0, 4, 1.0)
    folder = ended(tmp_path / "run", "Pendulum-v1", agent, agent)
    assert "single inputs" not in write_report(folder.path).read_text()
    folder.metrics.write_text(json.dumps({"additive_share": 0.8125, "additive_evidence": -7.25}) + "\n")
    page = write_report(folder.path).read_text()
    assert re.search(r"sum of functions of single inputs</th><td[^>]*>0.812", page)
    assert re.search(r"in nats</th><td[^>]*>.7.25", page)


def test_episodes_that_were_cut_are_said_in_the_terminal_the_report_and_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random, trained = TrueReturn(-90.0, 1.0, 4, 1.0, cut=4), TrueReturn(-20.0, 1.0, 4, 1.0, cut=3)
    numbers = {"random": dataclasses.asdict(random), "trained": dataclasses.asdict(trained)}
    check = the(numbers, "episodes cut")
    assert (check.value, check.passed) == (7, False)
    assert "10,000 steps" in check.remedy
    folder = ended(tmp_path / "run", "Pendulum-v1", random, trained)
    assert "4 (3 cut at 10,000 steps)" in capsys.readouterr().out
    assert "4 (3 cut at 10,000 steps)" in write_report(folder.path).read_text()
    assert json.loads(folder.result.read_text())["trained"]["cut"] == 3


@pytest.mark.parametrize("seed", range(5))
def test_a_return_is_above_another_by_the_interval_of_welchs_t_that_is_shown(seed: int) -> None:
    rng = np.random.default_rng(seed)
    returns = [rng.normal(mean, deviation, count) for mean, deviation, count in ((3, 1, 5), (2, 4, 12))]
    one, other = (agent(float(of.mean()), float(of.std()), episodes=len(of)) for of in returns)
    expected = stats.ttest_ind(*returns, equal_var=False).confidence_interval(0.95)
    found, turned = difference(one, other), difference(other, one)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert (turned.low, turned.high) == pytest.approx((-expected.high, -expected.low))
    check = the({"random": other, "trained": one}, RETURN)
    assert (check.passed is True) == (stats.ttest_ind(*returns, equal_var=False, alternative="greater").pvalue < 0.025)
    assert check.bound.endswith(f"by more than 0: {figure(found.low)} to {figure(found.high)}")


def test_as_many_episodes_are_asked_for_as_would_tell() -> None:
    """0.6 of half an interval of 20 episodes is a whole one of 55.6: of 60, since tens are said."""
    half = stats.t.ppf(0.975, 19) * 4.0 / math.sqrt(19)
    result = {"random": agent(0.0, 4.0, episodes=20), "trained": agent(0.6 * half, 0.0, episodes=33)}
    assert "About 60 episodes" in the(result, RETURN).remedy
    result["trained"]["true_return_mean"] = 0.49 * half  # less than half: more would hardly tell
    assert "episodes" not in the(result, RETURN).remedy
