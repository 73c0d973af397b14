"""Texts and numbers of the run report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rlhf_ray.agents.true_return import LONGEST
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.metrics import described, in_order, metric_of
from rlhf_ray.measure.error_rates import newest_rates
from rlhf_ray.measure.held_out import PredictionScores
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.queries.schedule import gathered, held_back
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.runs.all_metrics import all_metrics
from rlhf_ray.runs.distances import DISTANCES, RewardDistances
from rlhf_ray.runs.report.plots import is_number
from rlhf_ray.runs.report.verdict import compare, share_of_the_way, verdicts
from rlhf_ray.runs.reward_scores import RewardScores
from rlhf_ray.store.answers import Presses, count_presses

MANY_TIES = 0.25
"""Fraction of ties above which the report warns."""

AGENTS = {
    "random": "Random actions",
    "trained": "Trained on the learned reward",
    "reference": "Reference: same settings, true reward",
}


@dataclass(frozen=True)
class Run:
    """The contents of a run folder; None or empty for missing parts."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    """As written: the run may be of an older or newer version than these settings."""
    about: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    comparisons: Comparisons | None = None
    reward: RewardEnsemble | None = None
    scores: RewardScores | None = None
    distances: RewardDistances | None = None
    doubts: tuple[tuple[float, dict[str, Any]], ...] = ()
    """The answers that are more likely wrong than right, with how likely (`doubtful`); the likeliest first."""
    unreadable: tuple[str, ...] = ()
    """Unreadable files, each with the reason."""

    @property
    def environment(self) -> str:
        """The environment's name, if any file has it."""
        return str(self._told("environment", "an unknown environment"))

    @property
    def seed(self) -> Any:
        """The seed, or None."""
        return self._told("seed", None)

    @property
    def step_budget(self) -> float | None:
        """The budget of environment steps, or None."""
        value = self.settings.get("total_env_steps")
        return value if is_number(value) else None

    @property
    def label_budget(self) -> float | None:
        """The budget of comparisons, or None."""
        preferences = self.settings.get("preferences")
        value = preferences.get("comparisons") if isinstance(preferences, dict) else None
        return value if is_number(value) else None

    def _told(self, name: str, default: Any) -> Any:
        return self.settings.get(name, (self.result or {}).get(name, default))

    @property
    def interrupted(self) -> bool:
        """Whether the run was interrupted and still wrote a result."""
        return bool((self.result or {}).get("interrupted") or self.about.get("interrupted"))

    def latest(self, metric: str) -> float | None:
        """The last numeric value of a metric."""
        return next((row[metric] for row in reversed(self.rows) if is_number(row.get(metric))), None)

    @property
    def held_out(self) -> int | None:
        """The number of answers behind the held-out accuracy; in runs of earlier versions, ties count as well."""
        decided = self.outcome("held_out_decided")
        value = self.latest("held_out") if decided is None else decided
        return None if value is None else int(value)

    def outcome(self, name: str, metric: str | None = None) -> float | None:
        """A number from the result, or else the latest value of ``metric`` (default: ``name``)."""
        value = (self.result or {}).get(name)
        return value if is_number(value) else self.latest(metric or name)

    def agent(self, agent: str, name: str) -> float | None:
        """A number from the result for one of the `AGENTS`."""
        values = (self.result or {}).get(agent)
        value = values.get(name) if isinstance(values, dict) else None
        return value if is_number(value) else None


@dataclass(frozen=True)
class Note:
    """A note about a run; ``warns`` if it needs attention."""

    subject: str
    amount: str
    meaning: str
    warns: bool


def status(run: Run) -> str | None:
    """A sentence about an incomplete run; None for a complete one."""
    steps = run.outcome("env_steps")
    reached = "" if steps is None else f" at {number(steps)}"
    if steps is not None and run.step_budget is not None:
        reached += f" of {number(run.step_budget)}"
    reached += " environment steps" if reached else ""
    if run.interrupted:
        return f"This run was interrupted{reached}. The report shows its state at that point."
    if run.result is None:
        seen = f" The last recorded iteration ended{reached}." if reached else ""
        return f"This run has no result: it is still running or was killed.{seen} The agents have not been evaluated."
    return None


def reading(run: Run) -> str:
    """The headline numbers in a sentence or two."""
    sentences = []
    random, trained = (run.agent(agent, "true_return_mean") for agent in ("random", "trained"))
    if random is not None and trained is not None:
        sentences.append(_gain(run, random, trained))
    accuracy, held_out = run.outcome("held_out_accuracy"), run.held_out
    if accuracy is not None:
        among = f" ({number(held_out)} of them)" if held_out else ""
        sentences.append(
            f"The reward model agrees with {percent(accuracy)} of the held-out answers{among}; chance is 50%."
        )
    if (wrong := newest_rates(run.rows)[0]) is not None:
        sentences.append(f"By the reward model, {wrong.sentence()}.")
    return " ".join(sentences)


def warnings(run: Run) -> list[str]:
    """Caveats about the headline numbers (`verdicts`), as sentences."""
    return [verdict.message for verdict in verdicts(run.result or {})]


def _gain(run: Run, random: float, trained: float) -> str:
    comparisons, steps = run.outcome("comparisons"), run.outcome("env_steps")
    after = []
    if comparisons:
        after.append(f"{number(comparisons)} comparisons")
    if steps is not None:
        after.append(f"{number(steps)} environment steps")
    sentence = f"After {' and '.join(after)}, the" if after else "The"
    agents: dict[str, Any] = run.result or {}
    surely_better = compare(agents["trained"], agents["random"]) > 0
    against = (
        f"up from {number(random)} for random actions" if surely_better else f"and {number(random)} for random actions"
    )
    sentence += f" trained agent's true return is {number(trained)}, {against}"
    share = share_of_the_way(agents)
    if share is not None:
        sentence += f": {percent(share)} of the way to the agent on the true reward"
    return f"{sentence}."


def headline(run: Run) -> list[tuple[str, str, str, str, bool]]:
    """Rows of the headline table: agent, true return, standard deviation, episodes, and whether it is the trained agent."""
    rows = []
    for agent, label in AGENTS.items():
        mean, deviation, episodes = (
            run.agent(agent, name) for name in ("true_return_mean", "true_return_std", "episodes")
        )
        shown = "not measured" if mean is None else number(mean)
        cut = run.agent(agent, "cut")
        counted = number(episodes) + (f" ({number(cut)} cut at {number(LONGEST)} steps)" if cut else "")
        rows.append((label, shown, number(deviation), counted, agent == "trained"))
    return rows


def facts(run: Run) -> list[tuple[str, str, str]]:
    """The other headline numbers: name, value, and total."""
    accuracy, held_out = run.outcome("held_out_accuracy"), run.held_out
    iterations = run.latest("iteration")
    of_comparisons = "" if run.label_budget is None else f"of {number(run.label_budget)}"
    of_steps = "" if run.step_budget is None else f"of {number(run.step_budget)}"
    found = [
        ("Comparisons", number(run.outcome("comparisons")), of_comparisons),
        (
            "Held-out accuracy",
            "–" if accuracy is None else percent(accuracy),
            f"of {number(held_out)} answers" if held_out and accuracy is not None else _all_ties(run),
        ),
        ("Environment steps", number(run.outcome("env_steps")), of_steps),
        (
            "Training time",
            duration(run.outcome("train_seconds", "seconds")),
            f"{number(iterations)} iterations" if iterations else "",
        ),
    ]
    if run.result is None:
        found.insert(0, ("True return in training", number(run.latest("true_return_mean")), "latest iteration"))
    return found


def _all_ties(run: Run) -> str:
    """Say that there is no accuracy because all held-out comparisons are ties; empty if none was held out."""
    held_out = run.latest("held_out")
    return f"of {number(int(held_out))} comparisons, all ties" if held_out else ""


def notes(run: Run) -> list[Note]:
    """Notes for interpreting the numbers."""
    too_short = int(run.latest("too_short") or 0)
    failed = int(sum(row["clips_failed"] for row in run.rows if is_number(row.get("clips_failed"))))
    found = [Note("Unreadable file in the run folder", "", reason, True) for reason in run.unreadable]
    if run.rows:
        found += [
            Note(
                "Trajectories too short for a fragment",
                number(too_short),
                "They can't be compared. A smaller fragments.length would include them.",
                too_short > 0,
            ),
            Note(
                "Rollouts without fragments because of an error",
                number(failed),
                "Training continued without them; see the run's log for the reason.",
                failed > 0,
            ),
            _short_rounds(run),
        ]
    latest = next((row for row in reversed(run.rows) if is_number(row.get("first_clips_gathered"))), None)
    if latest is not None:
        gathered_more, held = gathered(latest), held_back(latest)
        found += [
            Note(
                "First fragments",
                f"{number(latest['first_clips_env_steps'])} steps",
                gathered_more or f"Fragments of {latest['fragments_length']} steps, chosen by episode length.",
                gathered_more is not None,
            ),
            Note(
                "Labels held back",
                number(latest["labels_held_back"]),
                held or "Labels are held back while nearly all answers are ties.",
                latest["labels_held_back"] > 0,
            ),
        ]
    skipped = next((row["skipped"] for row in reversed(run.rows) if is_number(row.get("skipped"))), 0)
    if skipped:
        counted = run.settings.get("preferences", {}).get("skips_count", False)
        found.append(
            Note(
                "Skipped pairs",
                number(skipped),
                "An annotator could not decide them. They are not trained on"
                + (" and used up the label budget." if counted else "; others were asked in their place."),
                skipped > (run.outcome("comparisons") or 0),
            )
        )
    if run.comparisons is not None:
        ties, answers = run.comparisons.ties, len(run.comparisons)
        found.append(
            Note(
                "Ties among the answers",
                f"{number(ties)} of {number(answers)} ({percent(ties / answers)})",
                "A tie only says that two fragments are similar. If there are many ties, try longer fragments.",
                ties / answers > MANY_TIES,
            )
        )
        chosen = count_presses(zip(run.comparisons.annotators, run.comparisons.chosen, strict=True))
        found += [_chosen(name, presses) for name, presses in chosen.items()]
    for name, rate in newest_rates(run.rows)[1].items():
        meaning = f"By the reward model, {rate.sentence(name)}."
        found.append(Note(f"Error rate of {name}", f"{rate}", meaning, rate.kind in ("guesses", "inverted")))
    return found


def _chosen(name: str, presses: Presses) -> Note:
    """Which sides an annotator chose, as shown."""
    meaning = "Sides are random as shown, so about half of the decided answers should be for each."
    if presses.one_sided:
        meaning = (
            f"Nearly all are for the {presses.one_sided} side, although sides are random: the same button every time?"
        )
    elif presses.mostly_equal:
        meaning = "Nearly all are “equally good”: the same button every time?"
    return Note(f"Answers of {name}", f"{presses}", meaning, presses.one_sided is not None or presses.mostly_equal)


def alarms(run: Run) -> list[dict[str, Any]] | None:
    """The raised alarms with name, message, remedy, iteration and env_steps; None if alarms were not recorded."""
    if not any("raised" in row for row in run.rows):
        return None
    return [
        alarm | {name: number(row.get(name)) for name in ("iteration", "env_steps")}
        for row in run.rows
        for alarm in row.get("raised", [])
    ]


def metrics(run: Run) -> list[tuple[str, str, str]]:
    """The run's numeric metrics: name, latest value and description."""
    all_metrics()
    names = dict.fromkeys(name for row in run.rows for name in row)
    newest = [(name, run.latest(name)) for name in sorted(names, key=_declared_at)]
    return [(name, number(value), described(name)) for name, value in newest if value is not None]


GROUPS = {"annotator": "Annotator", "age": "Chosen fits ago", "policy": "Policy version"}
"""How a report calls the groups of held-out answers."""


def scores(of: RewardScores | None) -> list[tuple[str, str, list[str]]]:
    """Rows of the table of held-out answers: kind of group, group, and its numbers; empty without scores."""
    if of is None:
        return []
    rows = [("All", "", of.overall)]
    for kind, groups in of.groups.items():
        rows += [(GROUPS[kind], name, each) for name, each in groups.items()]
    return [
        (
            kind,
            name,
            [
                f"{number(each.answers)}{ties_of(each)}",
                interval(each.accuracy),
                interval(each.log_likelihood),
                interval(each.brier),
                f"{each.calibration_error:.2f} ({each.chance:.2f})",
            ],
        )
        for kind, name, each in rows
    ]


def ties_of(scores: PredictionScores) -> str:
    """Say how many of the answers are ties, which accuracy leaves out; empty if none is."""
    ties = scores.answers - scores.decided
    return f" ({ties} ties)" if ties else ""


def truth(of: RewardScores | None, distances: RewardDistances | None) -> list[tuple[str, str]]:
    """Rows of the table that compares the learned with the true reward; empty where the true one is unknown."""
    rows = []
    if of is not None and math.isfinite(of.correlations.steps_linear.mean):
        found = of.correlations
        rows = [
            ("Correlation of step rewards, linear", interval(found.steps_linear)),
            ("Correlation of step rewards, ranks", interval(found.steps_rank)),
            ("Correlation of fragment returns, linear", interval(found.returns_linear)),
            ("Correlation of fragment returns, ranks", interval(found.returns_rank)),
        ]
    if distances is not None:
        for name, value in distances.values.items():
            estimate = MeanEstimate(value.value, value.low, value.high)
            rows.append((f"{DISTANCES[name]}, new steps, reward version {distances.version}", interval(estimate)))
    return rows


def interval(of: MeanEstimate) -> str:
    """Format a mean with its interval; – if it is unknown."""
    return "–" if not math.isfinite(of.mean) else of.text().replace("-", "−")


def _declared_at(name: str) -> int:
    """Position of the metric among all declared ones; undeclared metrics come last."""
    known, found = [metric.name for metric in in_order()], metric_of(name)
    return known.index(found[0].name) if found is not None else len(known)


def _short_rounds(run: Run) -> Note:
    held = [row for row in run.rows if is_number(row.get("wanted")) and is_number(row.get("answered"))]
    short = [row for row in held if row["answered"] < row["wanted"]]
    amount = f"{number(len(short))} of {number(len(held))}"
    if short:
        missing = ", ".join(f"round {row.get('round', '?')}: {row['answered']} of {row['wanted']}" for row in short[:5])
        amount += f" ({missing}{', …' if len(short) > 5 else ''})"
    return Note(
        "Rounds with too few answers",
        amount,
        "There were too few fragments to pair, or answers are missing. Later rounds ask for the missing ones.",
        bool(short),
    )


def number(value: float | None) -> str:
    """Format a number: four significant digits for fractions, thousands separators, – for None."""
    if value is None or not math.isfinite(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        text = f"{int(value):,}"
    elif 1e-4 <= abs(value) < 1e15:
        decimals = min(6, max(0, 3 - math.floor(math.log10(abs(value)))))
        text = f"{value:,.{decimals}f}"
    else:
        text = f"{value:.3e}"
    return text.replace("-", "−")


def setting(value: object) -> str:
    """Format a setting's value."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def percent(share: float) -> str:
    """Format a fraction as percent."""
    return f"{100 * share:.0f}%".replace("-", "−") if abs(share) < 10 else f"{number(round(100 * share))}%"


def duration(seconds: float | None) -> str:
    """Format a duration in its two largest units."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if whole < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def date(text: object) -> str | None:
    """Format an ISO time in UTC; None for an empty text, and unchanged if it is not an ISO time."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return str(text)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"
