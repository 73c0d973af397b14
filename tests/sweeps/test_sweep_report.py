"""The sweep report, on made-up trials."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlhf_ray.settings import Experiment, to_json
from rlhf_ray.sweeps.report import write_sweep_report


def trial(name: str, objective: float | None, status: str = "finished", **settings: Any) -> dict[str, Any]:
    steps = 4000 if status == "finished" else 800
    return {
        "name": name,
        "status": status,
        "objective": objective,
        "env_steps": steps,
        "held_out_accuracy": 0.875,
        "comparisons": 40,
        "settings": {"ppo.gamma": 0.95, "fragments.length": 10, **settings},
        "curve": [] if objective is None else [[steps / 2, objective - 100], [steps, objective]],
        "error": "RuntimeError: <b>boom</b>" if status == "failed" else None,
    }


def write(folder: Path, **changes: Any) -> str:
    trials = [
        trial("a", -120.5, **{"ppo.gamma": 0.98}),
        trial("b", -500.0, "stopped early", **{"fragments.length": 25}),
        trial("c", None, "failed"),
    ]
    sweep: dict[str, Any] = {
        "format": "rlhf_ray.sweep/1",
        "plan": {
            "name": "pendulum",
            "experiment": to_json(Experiment()),
            "space": {
                "ppo.gamma": {"low": 0.9, "high": 0.99, "log": False},
                "fragments.length": {"values": [10, 25]},
            },
            "trials": 3,
            "search": "random",
            "schedule": "asha",
            "metric": "return",
            "evaluation_episodes": 20,
        },
        "objective": "true return",
        "complete": True,
        "best": "a",
        "trials": trials,
        "seeds": None,
        "over_seeds": None,
        "command": "rlhf-ray tune pendulum --run-dir '<x>'",
    }
    (folder / "trials.json").write_text(json.dumps(sweep | changes))
    return write_sweep_report(folder).read_text()


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL)).split())


def test_it_names_the_best_and_what_all_took(tmp_path: Path) -> None:
    text = text_of(write(tmp_path))
    assert "The best of 3 trials reached a true return of −120.5 (1 stopped early, 1 failed)" in text
    assert "in a total of 5,600 env steps" in text
    assert "rlhf-ray train best.json" in text
    assert "--seeds 5" in text


def test_there_is_a_plot_for_each_setting_with_a_dot_for_each_measured_trial(tmp_path: Path) -> None:
    page = write(tmp_path)
    for name in ("ppo.gamma", "fragments.length"):
        (plot,) = re.findall(
            rf'<svg[^>]*aria-label="true return of each trial against {name}\.".*?</svg>', page, re.DOTALL
        )
        dots = re.findall(r"<use [^>]*style=\"[^\"]*var\(--(?:true|learned)\)[^\"]*\"", plot)
        assert len(dots) == 2, dots
        assert sum("fill: none" in dot or "fill-opacity: 0" in dot for dot in dots) == 1  # the one that was stopped
    assert "0.9 to 0.99" in page
    assert "one of 10, 25" in page


def test_text_from_the_folder_is_escaped_and_nothing_is_loaded(tmp_path: Path) -> None:
    page = write(tmp_path)
    assert "<b>boom" not in page
    assert "&lt;b&gt;boom" in page
    assert "&lt;x&gt;" in page
    assert "default-src 'none'" in page
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", page)


def test_other_seeds_are_shown_with_their_interval(tmp_path: Path) -> None:
    seeds = [trial(f"s{i}", -150.0 - i, seed=i) for i in range(3)]
    over = {"mean": -151.0, "interval_95": [-153.5, -148.5], "each": [-150.0, -151.0, -152.0]}
    text = text_of(write(tmp_path, seeds=seeds, over_seeds=over))
    assert "With 3 other seeds, its settings reach −151 (95 % interval of the mean: −153.5 to −148.5)." in text
    assert "trained with 3 other seeds." in text
    assert "--seeds 5" not in text


@pytest.mark.parametrize("trials", [[], [trial("c", None, "failed")]])
def test_a_sweep_without_a_measurement_says_so(tmp_path: Path, trials: list[Any]) -> None:
    text = text_of(write(tmp_path, trials=trials, best=None))
    assert "No trial ran long enough to be measured." in text


def test_a_sweep_that_was_stopped_says_how_to_go_on(tmp_path: Path) -> None:
    assert "rlhf-ray tune --resume" in text_of(write(tmp_path, complete=False))
    assert "rlhf-ray tune --resume" not in text_of(write(tmp_path))
