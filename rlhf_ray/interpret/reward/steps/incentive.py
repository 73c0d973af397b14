"""What an agent learns from the reward, judged by the true one."""

from __future__ import annotations

from dataclasses import replace

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.reward.incentive import Incentive, incentives, shifted
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.teaching import GOOD, GOOD_PPO
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Check, Section, Statement, Strength
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

OWN = 10.0
"""Weight of the environment that was asked about, beside those that shift it: shares of the gain are hardly as large."""


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there is no test: the environment is unknown, or PPO would take too long."""
    if context.subject.environment is None:
        return WORDS.text("unknown")
    return WORDS.text("images") if is_image(context.subject.reward.observation_space) else None


def run(context: StepContext[Subject]) -> Section:
    """Train on the learned reward and judge by the true one."""
    subject = context.subject
    assert subject.environment is not None, "why_not() says so"
    worlds, seed = shifted(subject.environment), subject.seed
    try:
        gamma, effort = subject.gamma, subject.effort
        figures = incentives(subject.reward, worlds, gamma=gamma, seed=seed, effort=effort, truth=subject.truth)
    except (SettingError, ImportError) as error:
        return replace(WORDS.section(), skipped=str(error))
    judged = [one for one in figures if one.finding != "nothing to gain"]
    here = [one for one in figures if one.finding == "nothing to gain" and str(one.world) == subject.environment]
    return WORDS.section(
        [*(_statement(one, str(one.world) != subject.environment) for one in judged), *map(_nothing, here)],
        [_check(one) for one in judged],
        [WORDS.table("returns", [_row(one) for one in figures])],
        figures={str(one.world): one for one in figures},
    )


def _statement(one: Incentive, elsewhere: bool) -> Statement:
    weight = 0.0 if one.share is None else one.share if one.finding == "same" else 1 - one.share
    weight += 0 if elsewhere else OWN
    strong: Strength = "weak"
    if one.share is not None and one.finding != "undecided":
        low, high = one.interval or (one.share, one.share)
        strong = strength((low, high) if one.finding == "same" else (1 - high, 1 - low))
    key = (
        "shifted"
        if one.finding == "same" and one.shifted and one.is_line and one.level_matters and one.correlation is not None
        else one.finding
    )
    return WORDS.statement(key, weight, strong, one=one, elsewhere=elsewhere, least=_least(one))


def _nothing(one: Incentive) -> Statement:
    return WORDS.statement("nothing", one=one, top=one.best if one.top is None else one.top)


def _check(one: Incentive) -> Check:
    passed = None if one.finding == "undecided" else one.finding == "same"
    return WORDS.check("teaches", passed, one.share, one=one, least=_least(one))


def _least(one: Incentive) -> float:
    return GOOD if one.exact else GOOD_PPO


def _row(one: Incentive) -> list[str]:
    returns = (one.random, one.best, one.learned, one.without_level)
    level = "unrelated" if one.level is None else f"{one.level:.2g}"
    constants = "–" if one.mends is None else WORDS.text("constants", one=one)
    names = [str(one.world), one.solver]
    return [*names, *(f"{value:.3g}" for value in returns), constants, level, WORDS.text(one.finding)]


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
