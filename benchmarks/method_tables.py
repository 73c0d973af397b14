"""The tables and plots of docs/results_archive.md, what earlier versions did; this writes them.

docs/results.md has what this version does: `benchmarks/page_tables.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.cells import file_of
from benchmarks.method import TABLES
from benchmarks.record import ROOT
from benchmarks.tables import BLUE, GREY, REFERENCE, Table, difference, estimate, filled, number, save, text

PAGE = ROOT / "docs" / "results_archive.md"


def table_of(name: str) -> Table:
    """The table ``name`` of benchmarks/method.py."""
    return Table(name, TABLES[name]())


def by_task(table: Table) -> list[str]:
    """A row for each task: its variants' returns beside the true reward's agent."""
    lines = [
        "| task | | seeds | true return | trained on the true reward | random | normalised |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, variant, returns, scores in table.rows():
        best, score = text(table.returns(task, REFERENCE)), f"**{text(scores)}**" if scores else ""
        figures = (text(returns), best, number(table.random(task)), score)
        lines.append(f"| {task} | {variant} | {len(returns)} | {' | '.join(figures)} |")
    return lines


def by_success(table: Table) -> list[str]:
    """A row for each task: the share of episodes in which its variants' agents and the true reward's succeed, and the return."""
    lines = [
        "| task | | seeds | episodes that succeed | trained on the true reward | true return, normalised |",
        "|---|---|---|---|---|---|",
    ]
    for task in table.tasks:
        best = text(table.successes(task, REFERENCE))
        for variant in table.variants(task):
            if rates := table.successes(task, variant):
                score = text(table.normalised(task, variant))
                lines.append(f"| {task} | {variant} | {len(rates)} | **{text(rates)}** | {best} | {score} |")
    return lines


def by_variant(table: Table) -> list[str]:
    """A row for each variant: normalised on each task, and the difference on all from the variant that it adds to.

    That is the one that its name begins with, up to a comma, or else the first.
    """
    variants = table.variants()
    lines = [f"| normalised | {' | '.join(table.tasks)} | difference |", "|---" * (len(table.tasks) + 2) + "|"]
    for variant in variants:
        base = variant.split(",")[0] if "," in variant else variants[0]
        scores = [table.normalised(task, variant) for task in table.tasks]
        row = list(map(text, scores))
        both = [(mine, table.normalised(task, base)) for task, mine in zip(table.tasks, scores, strict=True)]
        both = [pair for pair in both if all(pair)]
        against = difference(*map(list, zip(*both, strict=True))).text(sign=True) if variant != base and both else ""
        if any(row):
            lines.append(f"| {variant} | {' | '.join(row)} | {against} |")
    return lines


def by_pair(table: Table) -> list[str]:
    """A row for each task and variant: true return, normalised, and how far the task's first variant is ahead."""
    lines = ["| task | | seeds | true return | normalised | the first is ahead by |", "|---|---|---|---|---|---|"]
    for task, variant, returns, scores in table.rows():
        first = table.normalised(task, table.variants(task)[0])
        compared = variant != table.variants(task)[0] and first and scores
        ahead = difference([first], [scores]).text(sign=True) if compared else ""
        lines.append(f"| {task} | {variant} | {len(returns)} | {text(returns)} | {text(scores)} | {ahead} |")
    return lines


def by_budget(table: Table) -> list[str]:
    """A row for each task, normalised with each variant, and one for all tasks that have the variant."""
    variants = table.variants()
    lines = [
        f"| normalised | PPO on the true reward | {' | '.join(variants)} | ahead of imitation |",
        "|---" * (len(variants) + 3) + "|",
    ]
    groups: dict[str, list[list[float]]] = {variant: [] for variant in variants}
    both: list[tuple[list[float], list[float]]] = []
    for task in table.tasks:
        scores = {variant: table.normalised(task, variant) for variant in variants}
        for variant, values in scores.items():
            groups[variant] += [values] if values else []
        ahead = ""
        if (theirs := scores["imitation, 350"]) and (mine := scores["350"]):
            both.append((mine, theirs))
            ahead = difference([mine], [theirs]).text(sign=True)
        row = list(map(text, scores.values()))
        if any(row):
            lines.append(f"| {task} | {text(table.returns(task, REFERENCE))} | {' | '.join(row)} | {ahead} |")
    row = [f"**{estimate(*values).text()}**" if values else "" for values in groups.values()]
    ahead = f"**{difference(*map(list, zip(*both, strict=True))).text(sign=True)}**" if both else ""
    return [*lines, f"| all | | {' | '.join(row)} | {ahead} |"]


LEARNED, STANDS = 0.9, 0.8
"""Normalised true return from which a run counts as learned, and stands wrong answers."""


def by_seed(table: Table, least: float = LEARNED) -> list[str]:
    """A row for each task and variant: the interquartile mean hides a quarter of the seeds on each side, the rest does not.

    Runs are counted that come to less than ``least``.
    """
    lines = [
        f"| task | | seeds | interquartile mean | worst | below {least} | true return, worst | PPO on the true reward | random |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for task in table.tasks:
        for variant in table.variants(task):
            scores, returns = table.normalised(task, variant), table.returns(task, variant)
            if scores:
                failed = sum(score < least for score in scores)
                lines.append(
                    f"| {task} | {variant} | {len(scores)} | **{estimate(scores).text()}** | {number(min(scores))} | {failed} | "
                    f"{number(min(returns))} | {estimate(table.returns(task, REFERENCE)).text()} | {number(table.random(task))} |"
                )
    return lines


def by_error(table: Table) -> list[str]:
    """As `by_seed`, with another bound."""
    return by_seed(table, STANDS)


LAYOUTS: Mapping[str, Callable[[Table], list[str]]] = {
    "presets": by_seed,
    "people": by_error,
    "learning": by_task,
    "budgets": by_budget,
    "control": by_task,
    "metaworld": by_success,
    "imitation": by_pair,
    "labels": by_variant,
    "parts": by_variant,
    "teachers": by_variant,
    "sac": by_pair,
    "coinrun": by_task,
}


def markdown(name: str) -> str:
    """The table ``name`` with where it comes from."""
    table = table_of(name)
    if not table.cells:
        return f"`benchmarks/method.py {name}` has not been run yet."
    commits = sorted({cell["commit"] for cell in table.cells.values()})
    left = f" {table.missing()} of its runs are still to come." if table.missing() else ""
    source = f"`benchmarks/method.py {name}`, `benchmarks/results/{file_of(f'method_{name}').name}`; {', '.join(commits)}.{left}"
    return "\n".join([*LAYOUTS[name](table), "", source])


def plot_curves(name: str, path: Path) -> None:
    """A panel for each task of the table ``name``: each seed's true return while its agent learns from comparisons."""
    table = table_of(name)
    width = 3.7 * max(len(table.tasks), 1.4)
    figure, rows = plt.subplots(1, len(table.tasks), figsize=(width, 3.1), constrained_layout=True, squeeze=False)
    panels = rows[0]
    for panel, task in zip(panels, table.tasks, strict=True):
        variant = table.variants(task)[0]
        for cell in table.found(task, variant):
            steps, values = np.transpose(cell["curve"])
            panel.plot(steps / 1000, values, color=BLUE, alpha=0.7, linewidth=1.2)
        panel.plot([], [], color=BLUE, label="learned from comparisons")
        best = estimate(table.returns(task, REFERENCE)).value
        levels = ((best, "PPO on the true reward", "--"), (table.random(task), "random actions", ":"))
        for level, label, style in levels:
            panel.axhline(level, color=GREY, linestyle=style, linewidth=1.2, label=label)
        panel.set_title(f"{task}, {table.found(task, variant)[0]['comparisons']} comparisons", fontsize=10)
        panel.set_xlabel("environment steps (thousands)")
    panels[0].set_ylabel("true return of an episode")
    figure.legend(
        *panels[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside lower center", ncols=3
    )
    save(figure, path)


def plot_parts(path: Path) -> None:
    """Each variant of the table ``parts`` on each task: every seed, and the interquartile mean with its interval."""
    table = table_of("parts")
    variants = [one for one in table.variants() if any(table.normalised(task, one) for task in table.tasks)]
    size = (4.2 * len(table.tasks), 0.27 * len(variants) + 1)
    figure, panels = plt.subplots(1, len(table.tasks), figsize=size, sharey=True, constrained_layout=True)
    for panel, task in zip(panels, table.tasks, strict=True):
        for row, variant in enumerate(variants):
            if not (scores := table.normalised(task, variant)):
                continue
            found = estimate(scores)
            panel.plot(scores, [row] * len(scores), "o", color=GREY, alpha=0.4, markersize=3)
            panel.plot([found.low, found.high], [row, row], color=BLUE, linewidth=1.6)
            panel.plot(found.value, row, "o", color=BLUE, markersize=6)
            if row == 0:
                panel.axvline(found.value, color=GREY, linewidth=0.8, linestyle=":")
        panel.set_title(task, fontsize=10)
        panel.set_xlabel("normalised true return")
    panels[0].set_yticks(range(len(variants)), variants, fontsize=8)
    panels[0].invert_yaxis()
    save(figure, path)


def plot_budgets(path: Path) -> None:
    """The table ``budgets``: of each task that has them, the interquartile mean of each variant with its interval."""
    table = table_of("budgets")
    variants = table.variants()
    tasks = [task for task in table.tasks if any(table.normalised(task, variant) for variant in variants)]
    figure, panel = plt.subplots(figsize=(7, 0.62 * len(tasks) + 1), constrained_layout=True)
    shades = ["#9ecae1", "#4292c6", "#08306b", "#d95f02"]
    for index, (variant, colour) in enumerate(zip(variants, shades, strict=True)):
        panel.plot([], [], "o-", color=colour, markersize=5, label=variant)
        for row, task in enumerate(tasks):
            if scores := table.normalised(task, variant):
                found, place = estimate(scores), row + 0.18 * (index - 1.5)
                panel.plot([found.low, found.high], [place, place], color=colour, linewidth=1.6)
                panel.plot(found.value, place, "o", color=colour, markersize=5)
    panel.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    panel.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
    panel.set_yticks(range(len(tasks)), tasks, fontsize=8)
    panel.invert_yaxis()
    panel.set_xlabel("normalised true return: 0 random, 1 PPO on the true reward")
    panel.legend(title="comparisons", fontsize=8, title_fontsize=8, frameon=False, loc="lower right")
    save(figure, path)


def main() -> None:
    """Write the tables and the plots."""
    PAGE.write_text(filled(PAGE.read_text(), markdown))
    for name in ("presets", "learning", "coinrun"):
        if name == "presets" or not table_of(name).missing():
            plot_curves(name, PAGE.parent / f"{name}.png")
    if not table_of("parts").missing():
        plot_parts(PAGE.parent / "parts.png")
    plot_budgets(PAGE.parent / "budgets.png")


if __name__ == "__main__":
    main()
