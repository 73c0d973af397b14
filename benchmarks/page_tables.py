"""The tables and pictures of docs/results.md, README.md, interpret_reward.md (audits) and people_err.md, from benchmarks/results.

python benchmarks/page_tables.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks import audits, default_reward
from benchmarks.page import ALL, IMITATION, NAME, cells
from benchmarks.record import RESULTS, ROOT
from benchmarks.tables import BLUE, DRAWS, GREY, REFERENCE, Table, estimate, filled, number, save

PAGE = ROOT / "docs" / "results.md"
PAGES = (PAGE, ROOT / "README.md", ROOT / "docs" / "interpret_reward.md", ROOT / "docs" / "people_err.md")
HOLDS = 0.75
"""Normalised true return below which a run counts as failed."""
STUCK = "learned reward per step"
"""The outcome's check of a policy that is stuck (`rlhf_ray.runs.outcome`)."""
ORANGE = "#d55e00"
AGENT, TEACHER = "PPO", "none wrong"


def table() -> Table:
    """The page's runs."""
    return Table(NAME, cells())


def by_row(found: Table) -> list[str]:
    """A row for each task and variant: what was run, how it ended on all seeds, what else there is to compare with."""
    lines = [
        f"| task | agent | labels | teacher | steps | seeds | normalised | worst | below {HOLDS} | true return | true reward's | "
        "CPU min |",
        "|" + "---|" * 12,
    ]
    for task, variant, returns, scores in found.rows():
        runs = found.found(task, variant)
        if len(runs) < 3:
            raise ValueError(f"{task}, {variant}, has {len(runs)} seeds: three are the least, or none")
        rival = variant in IMITATION
        agent = variant if rival else "SAC" if "--agent sac" in runs[0]["command"] else AGENT
        figures = (
            _short(task),
            agent,
            f"{max(run['comparisons'] for run in runs)}",
            TEACHER if rival else variant,
            f"{np.mean([run['env_steps'] for run in runs]) / 1000:.0f}k",
            f"{len(runs)}",
            f"**{estimate(scores).text()}**",
            number(min(scores)),
            f"{sum(score < HOLDS for score in scores)}",
            number(estimate(returns).value),
            estimate(found.returns(task, REFERENCE)).text(),
            number(float(np.mean([run["cpu_minutes"] for run in runs]))),
        )
        lines.append(f"| {' | '.join(figures)} |")
    return lines


def plot(found: Table, path: Path) -> None:
    """A panel for each task: every seed of each variant, normalised, beside those of the true reward."""
    width = 5
    rows = -(-len(found.tasks) // width)
    figure, panels = plt.subplots(
        rows,
        min(width, len(found.tasks)),
        figsize=(11, 3.2 * rows),
        sharey=True,
        constrained_layout=True,
        squeeze=False,
    )
    rng = np.random.default_rng(0)
    for panel, task in zip(panels.flat, found.tasks, strict=False):
        variants = [REFERENCE, *found.variants(task)]
        for place, variant in enumerate(variants):
            if not len(scores := np.asarray(found.normalised(task, variant))):
                continue
            colour = GREY if variant == REFERENCE else ORANGE if variant in IMITATION else BLUE
            panel.plot(
                place + rng.uniform(-0.2, 0.2, len(scores)), scores, "o", color=colour, alpha=0.5, markersize=3.5
            )
            panel.plot([place - 0.3, place + 0.3], [estimate(scores).value] * 2, color=colour, linewidth=1.8)
        panel.axhline(1, color=GREY, linewidth=0.8, linestyle="--")
        panel.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
        panel.set_xticks(range(len(variants)), variants, rotation=90, fontsize=7)
        panel.set_title(_short(task), fontsize=9)
    for panel in list(panels.flat)[len(found.tasks) :]:
        panel.set_visible(False)
    for row in panels:
        row[0].set_ylabel("normalised true return", fontsize=8)
    save(figure, path)


# Audits.

FIGURES: Mapping[str, str] = {
    "taught": "share of the true return that an agent of the audit gets",
    "steps": "correlation with the true reward, step by step",
    "ranks": "the same of ranks",
    "returns": "correlation of the episodes' returns",
    "pairs": "pairs of steps in the true order",
    "epic": "EPIC distance, negated",
    "top_difference": "difference of the top row of what it looks at, negated",
}
DISTANCES = ("epic", "top_difference")
"""Smaller is better."""


def audited() -> dict[str, Mapping[str, Any]]:
    """Each audited reward, with the true returns normalised that its two agents got: ``anew`` and ``run``."""
    made = {}
    for key, row in audits.rows().items():
        _, *task, teacher, _ = key.split("/")
        low, high = row["scale"]
        normal = {name: (row[name] - low) / (high - low) for name in ("anew", "run")}
        share = row["taught"][0] if row["taught"] else None
        made[key] = {**row, **normal, "taught": share, "task": "/".join(task), "teacher": teacher}
    return made


def within(values: Sequence[float], tasks: Sequence[str]) -> Any:
    """The ranks of the values within their tasks, from 0 to 1."""
    ranks = np.empty(len(values))
    for task in set(tasks):
        of = [place for place, name in enumerate(tasks) if name == task]
        ranks[of] = (stats.rankdata(np.asarray(values)[of]) - 0.5) / len(of)
    return ranks


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Spearman's, with its 95 % bootstrap interval."""
    pairs, rng = np.stack([one, other]), np.random.default_rng(0)
    draws = [
        stats.spearmanr(*pairs[:, rng.integers(pairs.shape[1], size=pairs.shape[1])])[0] for _ in range(DRAWS // 5)
    ]
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return float(stats.spearmanr(*pairs)[0]), float(low), float(high)


def by_figure(rewards: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A row for each figure of the audit: how it ranks rewards beside the returns that came."""
    lines = [
        "| figure | rewards | the fresh agent's return | within tasks | the return of the run |",
        "|---|---|---|---|---|",
    ]
    for name, words in FIGURES.items():
        known = [row for row in rewards.values() if row[name] is not None]
        if len(known) < 3:
            continue
        values = [-row[name] if name in DISTANCES else row[name] for row in known]
        tasks = [row["task"] for row in known]
        anew, run = ([row[of] for row in known] for of in ("anew", "run"))
        columns = ((values, anew), (within(values, tasks), within(anew, tasks)), (values, run))
        told = ("{} ({} to {})".format(*map(number, rank_correlation(*pair))) for pair in columns)
        lines.append(f"| {words} | {len(known)} | {' | '.join(told)} |")
    return lines


BINS = ((-np.inf, 0.25), (0.25, HOLDS), (HOLDS, np.inf))


def by_bin(rewards: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A row for each range of what the audit expects an agent to get: what the fresh agents got."""
    lines = ["| expected | rewards | mean expected | mean return that came | below 0.75 |", "|---|---|---|---|---|"]
    for low, high in BINS:
        among = [row for row in rewards.values() if row["taught"] is not None and low <= row["taught"] < high]
        if among:
            words = f"below {high}" if low == -np.inf else f"{low} to {high}" if high < np.inf else f"{low} and more"
            expected, came = (np.array([row[of] for row in among]) for of in ("taught", "anew"))
            told = (number(expected.mean()), number(came.mean()), f"{(came < HOLDS).sum()}")
            lines.append(f"| {words} | {len(among)} | {' | '.join(told)} |")
    if unknown := [row["anew"] for row in rewards.values() if row["taught"] is None]:
        told = ("", number(float(np.mean(unknown))), f"{sum(one < HOLDS for one in unknown)}")
        lines.append(f"| not told | {len(unknown)} | {' | '.join(told)} |")
    return lines


def plot_audits(rewards: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """What audits said against what fresh agents got."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, constrained_layout=True)
    for panel, name in zip(panels, ("taught", "steps"), strict=True):
        for task in dict.fromkeys(row["task"] for row in rewards.values()):
            known = [row for row in rewards.values() if row["task"] == task and row[name] is not None]
            label = _short(task)
            panel.plot(
                [row[name] for row in known], [row["anew"] for row in known], "o", alpha=0.6, markersize=4, label=label
            )
        panel.set_xlabel(FIGURES[name], fontsize=8)
    low, high = panels[0].get_xlim()
    panels[0].plot([low, high], [low, high], color=GREY, linewidth=0.8, linestyle="--")
    panels[0].set_ylabel("normalised true return of a fresh agent", fontsize=8)
    panels[0].legend(fontsize=7, frameon=False)
    save(figure, path)


# The page.


def commit(rows: Mapping[str, Any]) -> str:
    """The one at which all of them were measured.

    Raises:
        ValueError: there are several, or none.
    """
    found = {row["commit"] for row in rows.values()}
    if len(found) != 1:
        raise ValueError(
            f"Runs of one version only, not of {', '.join(sorted(found))}: drop the others, or run them anew."
        )
    return found.pop()


def _results() -> Iterator[str]:
    found = table()
    yield from by_row(found)
    yield from ("", f"`benchmarks/page.py`, `benchmarks/results/method_{NAME}.json`; {commit(found.cells)}.")


def _alarms() -> Iterator[str]:
    """How many runs of each task failed, and which of them the outcome names as stuck, without a true reward."""
    found = table()
    yield f"| task | runs | below {HOLDS} | of them named | others named |"
    yield "|---|---|---|---|---|"
    counts = {task: named(found, task) for task in found.tasks}
    for task, (failed, told, held, accused) in counts.items():
        yield f"| {_short(task)} | {failed + held} | {failed} | {told} | {accused} |"
    failed, told, held, accused = np.sum(list(counts.values()), 0)
    yield f"| **all** | {failed + held} | {failed} | **{told}** | **{accused}** |"


def named(found: Table, task: str) -> tuple[int, int, int, int]:
    """Count a task's runs that failed, those of them that are named as stuck, those that held, and those of them so named."""
    counts = np.zeros((2, 2), int)
    for variant in found.variants(task):
        if variant not in IMITATION:
            for run, score in zip(found.found(task, variant), found.normalised(task, variant), strict=True):
                counts[int(score >= HOLDS), int(STUCK in run["checks"])] += 1
    (failed, told), (held, accused) = ((int(row.sum()), int(row[1])) for row in counts)
    return failed, told, held, accused


def _rewards() -> Iterator[str]:
    found = json.loads((RESULTS / f"{default_reward.NAME}.json").read_text())
    yield from by_setting(found["runs"])
    yield from ("", f"`benchmarks/default_reward.py`, `benchmarks/results/default_reward.json`; {found['commit']}.")


def by_setting(runs: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[str]:
    """How steps of the default reward correlate with the true ones, beside the best of twelve MLPs: means of runs and parts."""
    rows: dict[tuple[str, str], list[Mapping[str, Sequence[float]]]] = {}
    for key, row in runs.items():
        *task, teacher, _ = key.split("/")
        rows.setdefault(("/".join(task), teacher), []).append(row)
    yield f"| task | teacher | runs | default | best of twelve | share of it | {' | '.join(SHOWN)} |"
    yield "|" + "---|" * (6 + len(SHOWN))
    tasks = list(dict.fromkeys(task for task, _ in rows))
    for task, teacher in sorted(rows, key=lambda row: (tasks.index(row[0]), ALL.index(row[1]))):
        of_row = rows[task, teacher]
        means = {name: float(np.mean([run[name] for run in of_row])) for name in default_reward.CHANGES}
        default = means.pop("default")
        best = max(means, key=lambda name: means[name])
        told = (number(default), f"{number(means[best])} ({best})", f"**{number(default / means[best])}**")
        others = (number(means[name]) for name in SHOWN)
        yield f"| {_short(task)} | {teacher} | {len(of_row)} | {' | '.join((*told, *others))} |"


SHOWN = ("0.01, with action", "3, with action")
"""MLPs that have a column of their own."""


def _audits() -> Iterator[str]:
    rewards = audited()
    yield from (*by_figure(rewards), "", *by_bin(rewards))
    yield from ("", f"`benchmarks/audits.py`, `benchmarks/results/audits.json`; {commit(audits.rows())}.")


def _planted() -> Iterator[str]:
    found = json.loads((RESULTS / "planted_scores.json").read_text())
    yield "| | causes of rewards named | of the frozen half | causes of agents | flawed, called so | sound, called so | told |"
    yield "|" + "---|" * 7
    for tool, halves in found["scores"].items():
        whole = halves["all"]
        counts = [
            whole["rewards"],
            halves["frozen"]["rewards"],
            whole["agents"],
            whole["called_flawed"],
            whole["called_sound"],
        ]
        yield f"| {tool} | {' | '.join(f'{some} of {all_}' for some, all_ in counts)} | **{number(whole['told'])}** |"
    yield from (
        "",
        f"`benchmarks/planted_score.py --baselines`, `benchmarks/results/planted_scores.json`; {found['commit']}.",
    )


def _readme() -> Iterator[str]:
    """README.md's table: the interquartile mean, and how many of the seeds failed."""
    found = table()
    rivals = [rival for rival in IMITATION if any(found.returns(task, rival) for task in found.tasks)]
    columns = (*ALL, *rivals)
    yield f"| normalised true return | {' | '.join(columns)} |"
    yield "|" + "---|" * (len(columns) + 1)
    for task in found.tasks:
        told = (_told(found.normalised(task, variant)) for variant in columns)
        yield f"| {_short(task)} | {' | '.join(told)} |"


def _told(scores: Sequence[float]) -> str:
    if not scores:
        return ""
    failed = sum(score < HOLDS for score in scores)
    return f"{number(estimate(scores).value)}" + (f" ({failed} of {len(scores)} failed)" if failed else "")


def _short(task: str) -> str:
    return task.rpartition(":")[2].removeprefix("rlhf_ray/").removeprefix("envpool/")


PARTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "results": _results,
    "alarms": _alarms,
    "audits": _audits,
    "rewards": _rewards,
    "planted": _planted,
    "readme": _readme,
}


def markdown(name: str) -> str:
    """The table ``name`` with where it comes from."""
    return "\n".join(PARTS[name]())


def main() -> None:
    """Write the tables and the pictures."""
    for page in PAGES:
        page.write_text(filled(page.read_text(), markdown))
    plot(table(), PAGE.parent / "results.png")
    plot_audits(audited(), PAGE.parent / "audits.png")


if __name__ == "__main__":
    main()
