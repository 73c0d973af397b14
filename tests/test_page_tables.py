"""The figures of docs/results.md, of runs and audits whose outcome is known by construction."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks import page_tables
from benchmarks.cells import Cell
from benchmarks.tables import REFERENCE, Table


def run(value: float, words: str = "-m rlhf_ray train Made-v0", minutes: float = 0.5) -> dict[str, Any]:
    return {
        "return": value, "random": 0.0, "comparisons": 300, "env_steps": 200_192, "cpu_minutes": minutes,
        "command": f"python {words}", "success_rate": None, "checks": ["true return"] if value < 50 else [],
    }  # fmt: skip


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Table:
    """Of four seeds one fails; the true reward's agents get 90, 100, 110 and once 1000, which an interquartile mean leaves out."""
    cells = {f"results/Made-v0/none wrong/{seed}": run(value) for seed, value in enumerate((105.0, 105.0, 105.0, 10.0))}
    cells |= {f"results/Made-v0/imitation/{seed}": run(50.0, "benchmarks/imitation_agent.py", 3.0) for seed in range(3)}
    cells |= {
        f"reference/Made-v0/{REFERENCE}/{seed}": run(value) for seed, value in enumerate((90.0, 100.0, 110.0, 1000.0))
    }
    monkeypatch.setattr("benchmarks.tables.kept", lambda name: cells)
    planned = [Cell(*key.split("/")[:3], int(key.split("/")[3]), ()) for key in cells]
    return Table("results", planned)


def test_a_row_tells_what_was_run_how_it_ended_and_what_it_cost(made: Table) -> None:
    ours, theirs = ([cell.strip() for cell in row.strip("| ").split("|")] for row in page_tables.by_row(made)[2:])
    assert ours[:6] == ["Made-v0", "PPO", "300", "none wrong", "200k", "4"]
    assert ours[6].startswith("**1.00 (")  # of 105, beside (100 + 110) / 2
    assert ours[7:10] == ["0.10", "1", "105"]  # 10 / 105; one below .75
    assert ours[10].startswith("105 (")
    assert ours[11] == "0.50"
    assert theirs[:6] == ["Made-v0", "imitation", "300", "none wrong", "200k", "3"]
    assert (theirs[7], theirs[8], theirs[11]) == ("0.48", "3", "3.00")


def test_what_is_divided_by_is_what_is_printed(made: Table) -> None:
    printed = float(page_tables.by_row(made)[2].split("|")[11].split("(")[0])
    np.testing.assert_allclose(made.normalised("Made-v0", "none wrong"), np.array([105, 105, 105, 10]) / printed)


def test_runs_that_failed_and_were_named_as_stuck_are_counted_apart_from_those_that_held(made: Table) -> None:
    assert page_tables.named(made, "Made-v0") == (1, 0, 3, 0)  # three of imitation, which has no outcome, don't count
    for seed in (0, 3):
        made.cells[f"results/Made-v0/none wrong/{seed}"]["checks"].append(page_tables.STUCK)
    assert page_tables.named(made, "Made-v0") == (1, 1, 3, 1)


def test_a_default_reward_is_beside_the_best_of_what_was_fitted() -> None:
    def row(default: float, best: float) -> dict[str, list[float]]:
        others = {name: [0.1, 0.1] for name in page_tables.default_reward.CHANGES}
        return others | {"default": [default, default], "10, without action": [best, best - 0.2]}

    runs = {f"rlhf_ray/Made-v0/20 % wrong/{seed}": row(*values) for seed, values in enumerate(((0.6, 1.0), (0.7, 0.8)))}
    (found,) = list(page_tables.by_setting(runs))[2:]
    cells = [cell.strip() for cell in found.strip("| ").split("|")]
    assert cells[:5] == ["Made-v0", "20 % wrong", "2", "0.65", "0.80 (10, without action)"]
    assert cells[5:] == ["**0.81**", "0.10", "0.10"]


def test_a_row_of_two_seeds_is_refused(made: Table) -> None:
    made.planned = [cell for cell in made.planned if not (cell.variant == "imitation" and cell.seed == 2)]
    with pytest.raises(ValueError, match="three are the least"):
        page_tables.by_row(made)


def test_a_rank_correlation_has_an_interval_that_holds_it_and_within_tasks_leaves_their_levels_out() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(size=60)
    other = one + rng.normal(size=60)
    value, low, high = page_tables.rank_correlation(list(one), list(other))
    assert value == pytest.approx(stats.spearmanr(one, other)[0])
    assert low < value < high
    tasks = ["easy"] * 30 + ["hard"] * 30
    level = np.repeat([10.0, 0.0], 30)  # what tasks differ in, and nothing else
    noise = rng.normal(size=(2, 60))
    between = page_tables.rank_correlation(list(level + noise[0]), list(level + noise[1]))[0]
    inside = [page_tables.within(list(level + each), tasks) for each in noise]
    assert between > 0.6
    assert abs(page_tables.rank_correlation(*inside)[0]) < 0.3
    assert sorted(page_tables.within([5.0, 3.0, 9.0, 1.0], ["a", "a", "b", "b"])) == [0.25, 0.25, 0.75, 0.75]


def test_calibration_tells_what_came_of_what_was_expected() -> None:
    rewards = {
        str(i): {"taught": t, "anew": a} for i, (t, a) in enumerate([(0.9, 1.0), (1.0, 0.5), (0.1, 0.2), (None, 0.7)])
    }
    rows = [[cell.strip() for cell in row.strip("| ").split("|")] for row in page_tables.by_bin(rewards)[2:]]
    assert rows == [
        ["below 0.25", "1", "0.10", "0.20", "1"],
        ["0.75 and more", "2", "0.95", "0.75", "1"],
        ["not told", "1", "", "0.70", "1"],
    ]


def test_an_audit_is_normalised_by_the_scale_of_its_own_page(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"taught": [0.5, 0.4, 0.6], "scale": [20.0, 520.0], "anew": 270.0, "run": 520.0}
    monkeypatch.setattr(page_tables.audits, "rows", lambda: {"results/rlhf_ray/Made-v0/10 % wrong/5000": row})
    (found,) = page_tables.audited().values()
    assert (found["anew"], found["run"], found["taught"]) == (0.5, 1.0, 0.5)
    assert (found["task"], found["teacher"]) == ("rlhf_ray/Made-v0", "10 % wrong")
