"""What a run came to, in numbers and in plain words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.metrics import METRICS, described, metric_of
from rlhf_ray.queries.schedule import gathered, held_back
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.runs.report.plots import is_number
from rlhf_ray.runs.report.verdict import compare, share_of_the_way, verdicts

MANY_TIES = 0.25
"""Share of ties above which they are worth a warning."""

AGENTS = {
    "random": "Random actions",
    "trained": "Trained from comparisons",
    "reference": "Reference: same PPO, true reward",
}


@dataclass(frozen=True)
class Run:
    """What a run folder holds; None or empty for what is missing."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    """As they were written, since a run may be older or newer than the settings of today."""
    about: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    comparisons: Comparisons | None = None
    reward: RewardEnsemble | None = None
    unreadable: tuple[str, ...] = ()
    """What is there and cannot be read, each with the reason."""

    @property
    def environment(self) -> str:
        """The environment's name, as far as any file tells."""
        return str(self._told("environment", "an unknown environment"))

    @property
    def seed(self) -> Any:
        """The seed, or None."""
        return self._told("seed", None)

    @property
    def step_budget(self) -> float | None:
        """The environment steps the settings allow, or None."""
        value = self.settings.get("total_env_steps")
        return value if is_number(value) else None

    @property
    def label_budget(self) -> float | None:
        """The comparisons the settings allow, or None."""
        preferences = self.settings.get("preferences")
        value = preferences.get("comparisons") if isinstance(preferences, dict) else None
        return value if is_number(value) else None

    def _told(self, name: str, default: Any) -> Any:
        return self.settings.get(name, (self.result or {}).get(name, default))

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped by somebody and still came to a result."""
        return bool((self.result or {}).get("interrupted") or self.about.get("interrupted"))

    def latest(self, metric: str) -> float | None:
        """The last value of a metric that is a number."""
        return next((row[metric] for row in reversed(self.rows) if is_number(row.get(metric))), None)

    def outcome(self, name: str, metric: str | None = None) -> float | None:
        """A number of the result, or else the latest of the metric (called ``name`` too if not given)."""
        value = (self.result or {}).get(name)
        return value if is_number(value) else self.latest(metric or name)

    def agent(self, agent: str, name: str) -> float | None:
        """A number of the result about one of the `AGENTS`."""
        values = (self.result or {}).get(agent)
        value = values.get(name) if isinstance(values, dict) else None
        return value if is_number(value) else None


@dataclass(frozen=True)
class Note:
    """Something worth knowing about a run; ``warns`` if it calls for attention."""

    subject: str
    amount: str
    meaning: str
    warns: bool


def status(run: Run) -> str | None:
    """One sentence about a run that is not whole; None for one that is."""
    steps = run.outcome("env_steps")
    reached = "" if steps is None else f" at {number(steps)}"
    if steps is not None and run.step_budget is not None:
        reached += f" of {number(run.step_budget)}"
    reached += " environment steps" if reached else ""
    if run.interrupted:
        return f"This run was interrupted{reached}. What follows is what it had come to by then."
    if run.result is None:
        seen = f" The last iteration on record ended{reached}." if reached else ""
        return (
            f"This run has no result: it is still going on, or it was killed.{seen} The agents have not been evaluated."
        )
    return None


def reading(run: Run) -> str:
    """What the headline numbers say, in a sentence or two."""
    sentences = []
    random, trained = (run.agent(agent, "true_return_mean") for agent in ("random", "trained"))
    if random is not None and trained is not None:
        sentences.append(_gain(run, random, trained))
    accuracy, held_out = run.outcome("held_out_accuracy"), run.latest("held_out")
    if accuracy is not None:
        among = f" ({number(int(held_out))} held out)" if held_out else ""
        sentences.append(
            f"The reward model agrees with {percent(accuracy)} of the answers it was not trained on{among}; chance is 50%."
        )
    return " ".join(sentences)


def warnings(run: Run) -> list[str]:
    """What the headline numbers could hide (`verdicts`): sentences."""
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
        f"up from {number(random)} of random actions" if surely_better else f"that of random actions {number(random)}"
    )
    sentence += f" trained agent's true return is {number(trained)}, {against}"
    share = share_of_the_way(agents)
    if share is not None:
        sentence += f": {percent(share)} of the way to the same PPO trained on the true reward"
    return f"{sentence}."


def headline(run: Run) -> list[tuple[str, str, str, str, bool]]:
    """Rows of the headline table: agent, true return, standard deviation, episodes, and whether it is the trained one."""
    rows = []
    for agent, label in AGENTS.items():
        mean, deviation, episodes = (
            run.agent(agent, name) for name in ("true_return_mean", "true_return_std", "episodes")
        )
        shown = "not measured" if mean is None else number(mean)
        rows.append((label, shown, number(deviation), number(episodes), agent == "trained"))
    return rows


def facts(run: Run) -> list[tuple[str, str, str]]:
    """The other headline numbers: name, value, and what it is out of."""
    accuracy, held_out = run.outcome("held_out_accuracy"), run.latest("held_out")
    iterations = run.latest("iteration")
    of_comparisons = "" if run.label_budget is None else f"of {number(run.label_budget)}"
    of_steps = "" if run.step_budget is None else f"of {number(run.step_budget)}"
    found = [
        ("Comparisons", number(run.outcome("comparisons")), of_comparisons),
        (
            "Held-out accuracy",
            "–" if accuracy is None else percent(accuracy),
            f"of {number(int(held_out))} comparisons" if held_out else "",
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


def notes(run: Run) -> list[Note]:
    """What to know before trusting the numbers."""
    too_short = int(run.latest("too_short") or 0)
    failed = int(sum(row["clips_failed"] for row in run.rows if is_number(row.get("clips_failed"))))
    found = [Note("A part of the run folder cannot be read", "", reason, True) for reason in run.unreadable]
    if run.rows:
        found += [
            Note(
                "Stretches of episodes too short for a fragment",
                number(too_short),
                "They cannot be asked about. A shorter fragments.length would let them.",
                too_short > 0,
            ),
            Note(
                "Rollouts that gave no clips because of an error",
                number(failed),
                "Training went on without them; the log of the run says why.",
                failed > 0,
            ),
            _short_rounds(run),
        ]
    latest = next((row for row in reversed(run.rows) if is_number(row.get("first_clips_gathered"))), None)
    if latest is not None:
        gathered_more, held = gathered(latest), held_back(latest)
        found += [
            Note(
                "First clips",
                f"{number(latest['first_clips_env_steps'])} steps",
                gathered_more or f"Clips of {latest['fragments_length']} steps, chosen from the episodes' length.",
                gathered_more is not None,
            ),
            Note(
                "Labels held back",
                number(latest["labels_held_back"]),
                held or "Labels are held back while nearly all answers are ties.",
                latest["labels_held_back"] > 0,
            ),
        ]
    if run.comparisons is not None:
        ties, answers = run.comparisons.ties, len(run.comparisons)
        found.append(
            Note(
                "Ties among the answers",
                f"{number(ties)} of {number(answers)} ({percent(ties / answers)})",
                "A tie teaches only that two clips are alike. Where there are many, longer fragments may differ more.",
                ties / answers > MANY_TIES,
            )
        )
    return found


def alarms(run: Run) -> list[dict[str, Any]] | None:
    """Each alarm that was raised: name, message, remedy, and at which iteration and env_steps; None where none watched."""
    if not any("raised" in row for row in run.rows):
        return None
    return [
        alarm | {name: number(row.get(name)) for name in ("iteration", "env_steps")}
        for row in run.rows
        for alarm in row.get("raised", [])
    ]


def metrics(run: Run) -> list[tuple[str, str, str]]:
    """Each number of the run's metrics: its name, the newest value, and what it is."""
    names = dict.fromkeys(name for row in run.rows for name in row)
    newest = [(name, run.latest(name)) for name in sorted(names, key=_declared_at)]
    return [(name, number(value), described(name)) for name, value in newest if value is not None]


def _declared_at(name: str) -> int:
    """The place of the metric in the table of all: those that are not declared come last."""
    found = metric_of(name)
    return list(METRICS).index(found[0].name) if found is not None else len(METRICS)


def _short_rounds(run: Run) -> Note:
    held = [row for row in run.rows if is_number(row.get("wanted")) and is_number(row.get("answered"))]
    short = [row for row in held if row["answered"] < row["wanted"]]
    amount = f"{number(len(short))} of {number(len(held))}"
    if short:
        missing = ", ".join(f"round {row.get('round', '?')}: {row['answered']} of {row['wanted']}" for row in short[:5])
        amount += f" ({missing}{', …' if len(short) > 5 else ''})"
    return Note(
        "Rounds with fewer answers than wanted",
        amount,
        "There were too few fragments to make pairs of, or answers failed to come. Later rounds ask for what is missing.",
        bool(short),
    )


def number(value: float | None) -> str:
    """A number to be read: four significant digits for a fraction, thousands separated, – for none."""
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
    """A setting's value as on a page."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def percent(share: float) -> str:
    """A share between 0 and 1 in percent."""
    return f"{100 * share:.0f}%".replace("-", "−") if abs(share) < 10 else f"{number(round(100 * share))}%"


def duration(seconds: float | None) -> str:
    """A time in its two largest units."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if whole < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def date(text: object) -> str | None:
    """An ISO time as people write it, in UTC; None where there is none, and as it is where it is no such time."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return str(text)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"
