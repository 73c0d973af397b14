"""Section: what an agent learns from the reward, judged by the true one."""

from __future__ import annotations

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.reward.incentive import Incentive, incentives, shifted
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.study.section import Check, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "incentive"
TITLE = "What an agent learns from it"


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there is no test: the environment is unknown, or PPO would take too long."""
    subject = context.subject
    if subject.environment is None:
        return "The incentive test trains agents; give the environment's name."
    if is_image(subject.reward.observation_space):
        return "The incentive test trains small networks for seconds, which is not enough for images."
    return None


def run(context: StepContext[Subject]) -> Section:
    """Train on the learned reward and judge by the true one."""
    subject = context.subject
    assert subject.environment is not None
    try:
        found = incentives(
            subject.reward,
            shifted(subject.environment),
            gamma=subject.gamma,
            seed=subject.seed,
            effort=subject.effort,
        )
    except (SettingError, ImportError) as error:
        return Section(NAME, TITLE, skipped=str(error))
    rows = [
        [
            str(of.world),
            of.solver,
            f"{of.random:.3g}",
            f"{of.best:.3g}",
            f"{of.learned:.3g}",
            f"{of.without_level:.3g}",
            "unrelated" if of.level is None else f"{of.level:.2g}",
            MEANINGS[of.finding],
        ]
        for of in found
    ]
    columns = ("environment", "solver", "random", "true reward", "this reward", "less its level", "level", "finding")
    values = {
        str(of.world): {
            "solver": of.solver,
            "random": of.random,
            "best": of.best,
            "learned": of.learned,
            "without_level": of.without_level,
            "share": None if of.finding == "undecided" else of.share,
            "level": of.level,
            "level_matters": of.level_matters,
            "starc": of.starc,
            "finding": of.finding,
            "gain_error": of.gain_error,
        }
        for of in found
    }
    caption = (
        "True returns of policies trained on the true reward, on this one, and on this one less the constant (its level) by which "
        "it exceeds the true one. Value iteration: discounted and exact. PPO: short, so its returns are noisy."
    )
    return Section(
        NAME,
        TITLE,
        [_statement(of) for of in found if of.finding != "nothing to gain"],
        [_check(of) for of in found if of.finding != "nothing to gain"],
        [Table(columns, rows, caption)],
        values=values,
    )


MEANINGS = {
    "same": "teaches the task",
    "level": "shifted level",
    "ranking": "changed ranking",
    "nothing to gain": "nothing to gain",
    "undecided": "undecided",
}


def _undecided(of: Incentive) -> str:
    return (
        f"In {of.world}, undecided what this reward teaches: the short PPO hardly learned on the true reward either (true return "
        f"{of.best:.3g}; random actions {of.random:.3g}). A larger effort trains longer."
    )


def _statement(of: Incentive) -> Statement:
    if of.finding == "undecided":
        return Statement("warning", _undecided(of))
    share = f"{100 * of.share:.0f} % of the possible gain in true return over random actions"
    if of.finding == "same":
        text = f"In {of.world}, an agent trained on this reward gets {share}: it teaches the task."
        return Statement("rewards", text, of.share)
    if of.finding == "level":
        text = (
            f"In {of.world}, an agent trained on this reward gets {share}, and {100 * of.share_without_level:.0f} % once the "
            f"constant {of.level:.2g} is subtracted: its level is shifted, which matters because episodes can end early."
        )
        return Statement("warning", text, 1 - of.share)
    text = f"In {of.world}, an agent trained on this reward gets {share}, and no constant mends it: it prefers other behaviour."
    return Statement("warning", text, 1 - of.share)


def _check(of: Incentive) -> Check:
    says = {"same": "", "level": "The reward's level is shifted.", "ranking": "The reward ranks behaviour differently."}
    bound = "> 0.9" if of.solver == "value iteration" else "> 0.7"
    if of.finding == "undecided":
        return Check(f"teaches the task in {of.world}", None, None, bound, _undecided(of))
    return Check(f"teaches the task in {of.world}", of.finding == "same", of.share, bound, says[of.finding])


STEP = Step(NAME, TITLE, run, why_not=why_not)
