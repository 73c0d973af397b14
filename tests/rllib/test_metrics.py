"""A run's metrics as gauges, and the Grafana dashboard of them."""

import contextlib
import copy
import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any, cast

import pytest
import ray

from rlhf_ray.data import metrics as metrics_module
from rlhf_ray.data.metrics import METRICS, Metric, UndeclaredMetricError, declare, described, metric_of
from rlhf_ray.rllib.metrics import Gauges, flat_metrics
from rlhf_ray.runs.callbacks import TrainingRun
from rlhf_ray.runs.expert import _metrics
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.metrics_files import TensorBoard
from rlhf_ray.runs.report.steps.values import newest_metrics
from rlhf_ray.runs.report.subject import Run
from rlhf_ray.settings import Experiment

ROOT = Path(__file__).resolve().parents[2]
RESULT: dict[str, Any] = {
    "training_iteration": 3,
    "env_runners": {
        "num_env_steps_sampled_lifetime": 4800,
        **{"episode_return_min": -900.0, "episode_return_mean": -500.0, "episode_return_max": -100.0},
        **{"episode_len_min": 10, "episode_len_mean": 200.0, "episode_len_max": 300},
    },
    "learners": {
        "default_policy": {"learned_reward_mean": 0.5, "entropy": 1.0, "vf_explained_var": 0.1, "reward_version": 2.0}
    },
    "timers": {"env_runner_sampling_timer": 0.1, "learner_update_timer": 0.2},
    "preferences": {
        **{"env_steps": 4800.0, "comparisons": 60.0, "reward_version": 2.0, "rounds": 2.0, "too_short": 0.0},
        **{"distinct_fragments": 1.0, "fragments_policy_version": 2.0, "iteration_seconds": 0.4},
        "stages": {
            **{
                "fitting_rate": 20.0,
                "fitting_idle": 0.9,
                "fitting_queue": 1.0,
                "labels_due": 64.0,
                "reward_age": 1600.0,
            },
            **{"label_seconds": 2.5, "explorations_dropped": 0.0, "questions_lost": 0.0, "commits_failed": 0.0},
        },
        "round": {
            **{"iteration": 3.0, "round": 2.0, "wanted": 5.0, "answered": 5.0, "gradient_steps": 20.0, "ties": 0.0},
            **{
                "train_loss": 0.5,
                "train_accuracy": 0.8,
                "held_out_loss": 0.6,
                "held_out_accuracy": 0.7,
                "held_out": 6.0,
            },
            **{"reward_mean": 0.0, "reward_std": 1.0, "disagreement": 0.1, "fit_seconds": 0.3},
            **{"chosen_left/ada": 12.0, "error_rate/ada": 0.125},
        },
    },
}


class Told(Gauges):
    """Writes down what would be shown."""

    def __init__(self) -> None:
        super().__init__("run")
        self.told: dict[tuple[str, str], float] = {}

    def _set(self, name: str, value: float, **tags: str) -> None:
        self.told[name, tags.get("stage", "")] = value


def test_metrics_are_flat_and_name_each_annotators_error_rate() -> None:
    metrics = flat_metrics(RESULT)
    assert metrics["learned_return_mean"] == 100.0
    assert metrics["env_steps"] == 4800
    assert isinstance(metrics["env_steps"], int)
    assert metrics["error_rate/ada"] == 0.125
    assert metrics["chosen_left/ada"] == 12
    assert isinstance(metrics["chosen_left/ada"], int)
    assert metrics["held_out_accuracy"] == 0.7


@pytest.mark.parametrize("metrics", [flat_metrics(RESULT), _metrics(RESULT)], ids=["preferences", "expert"])
def test_a_mean_is_the_mean(metrics: dict[str, Any]) -> None:
    assert (metrics["true_return_mean"], metrics["episode_length_mean"]) == (-500.0, 200.0)


def test_a_fit_of_an_earlier_iteration_is_not_told_again() -> None:
    metrics = flat_metrics(RESULT | {"training_iteration": 4})
    assert "held_out_accuracy" not in metrics
    assert "error_rate/ada" not in metrics


def test_stages_share_gauges_and_people_are_left_out() -> None:
    gauges = Told()
    gauges.set(RESULT)
    assert gauges.told["stage_rate", "fitting"] == 20.0
    assert gauges.told["stage_queue", "fitting"] == 1.0
    assert gauges.told["label_seconds", ""] == 2.5
    assert not any("ada" in name for name, _ in gauges.told)


def test_of_a_metric_by_annotator_the_value_for_all_is_shown() -> None:
    names = [metric.name for metric in METRICS.values() if metric.whole and metric.gauge]
    assert names
    result = copy.deepcopy(RESULT)
    result["preferences"]["round"] |= dict.fromkeys(names, 2.0) | {f"{names[0]}/ada": 1.0}
    gauges = Told()
    gauges.set(result)
    assert [gauges.told[name, ""] for name in names] == [2.0] * len(names)


def test_what_is_unknown_yet_is_not_shown() -> None:
    gauges = Told()
    gauges.set(RESULT | {"env_runners": {}})
    assert ("true_return_mean", "") not in gauges.told


@pytest.mark.parametrize(
    ("place", "kind"), [("learners", "learner"), ("env_runners", "runner"), ("preferences", "ring")]
)
def test_a_new_metric_is_one_that_is_declared_and_logged(monkeypatch, tmp_path, place, kind):
    monkeypatch.setitem(METRICS, "surprise", None)
    del METRICS["surprise"]  # put back as it was: undeclared
    declare("agent", Metric("surprise", f"How surprised the {kind} is.", "nats", int))
    result = copy.deepcopy(RESULT)
    (result[place]["default_policy"] if place == "learners" else result[place])["surprise"] = 3.0
    metrics = flat_metrics(result)
    assert metrics["surprise"] == 3
    assert isinstance(metrics["surprise"], int)
    gauges = Told()
    gauges.set(result)
    assert gauges.told["surprise", ""] == 3.0
    folder, events = RunFolder.create(tmp_path / "run", Experiment()), TensorBoard()
    events.on_start(TrainingRun(folder.experiment(), folder, cast(Any, None)))
    events.on_metrics({"env_steps": 1, "surprise": 3.0})
    (file,) = folder.tensorboard.iterdir()
    assert described("surprise") == f"How surprised the {kind} is. [nats]"
    assert described("surprise").encode() in file.read_bytes()
    assert newest_metrics(Run("run", rows=[metrics]))["surprise"] == 3


def test_comparisons_are_those_stored_and_not_those_of_an_earlier_fit() -> None:
    result = copy.deepcopy(RESULT)
    result["preferences"]["round"]["comparisons"] = 21.0
    assert flat_metrics(result)["comparisons"] == 60


def test_every_number_of_a_run_is_declared() -> None:
    told = {**RESULT["preferences"]["round"], **RESULT["preferences"]["stages"], **RESULT["preferences"]}
    assert {name for name in told if metric_of(name) is None} == {"round", "stages"} - METRICS.keys()
    assert [metric_of(name) for name in ("fitting_queue", "error_rate/ada")] == [
        (METRICS["stage_queue"], "fitting"),
        (METRICS["error_rate"], "ada"),
    ]
    assert metric_of("seconds_of_mine") is None


def test_a_number_that_nobody_declared_is_an_error_here_and_a_warning_elsewhere(monkeypatch, caplog):
    result = copy.deepcopy(RESULT)
    result["preferences"]["round"]["surprise"] = 3.0
    with pytest.raises(UndeclaredMetricError, match="surprise is reported, but not declared"):
        flat_metrics(result)
    monkeypatch.setattr(metrics_module, "strict", False)
    for _ in range(2):
        assert "surprise" not in flat_metrics(result)
    assert [record.getMessage() for record in caplog.records] == ["The metric surprise is not declared, and left out."]


def test_two_metrics_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="Another metric is called 'ties'"):
        declare("labels", Metric("ties", "Something else."))
    with pytest.raises(ValueError, match="group is 'mood'"):
        declare("mood", Metric("surprise", "How surprised."))


def test_dashboard_and_documents_speak_of_declared_metrics() -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    shown = set(re.findall(r"ray_rlhf_(\w+)", json.dumps(dashboard)))
    assert shown <= {name for name, metric in METRICS.items() if metric.gauge}
    documents = [path.read_text() for path in (ROOT / "docs").glob("*.md")]
    named = {name for text in documents for name in re.findall(r"`(\w+)` in the\s+metrics", text)}
    table = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    named |= {name for row in table for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 20
    assert named <= METRICS.keys()
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.usefixtures("ray_session")
def test_prometheus_can_read_them_from_ray() -> None:
    Gauges("ein Läufer").set(RESULT)  # Ray's tags are ASCII
    Gauges("this run").set(RESULT)
    page = f"http://127.0.0.1:{ray.nodes()[0]['MetricsExportPort']}/metrics"
    deadline, lines = time.monotonic() + 120, list[str]()
    while not lines and time.monotonic() < deadline:
        time.sleep(0.2)
        with contextlib.suppress(OSError), urllib.request.urlopen(page, timeout=10) as answer:
            found = [line for line in answer.read().decode().splitlines() if line.startswith("ray_rlhf_env_steps{")]
            lines = [line for line in found if 'run="this run"' in line]
    assert lines
    assert lines[0].endswith(" 4800.0")


@pytest.mark.parametrize(
    ("acted", "updated", "age"), [(0.0, 1.0, 0.0), (4.0, 5.0, 0.0), (2.5, 5.0, 1.5), (None, 5.0, None)]
)
def test_the_policys_age_is_the_updates_since_it_acted(acted: float | None, updated: float, age: float | None) -> None:
    """RLlib's learner reports its number after the update: 1 for the first, to which the policy of number 0 is 0 updates old."""
    result = copy.deepcopy(RESULT)
    if acted is not None:
        result["env_runners"]["weights_seq_no"] = acted
    result["learners"]["default_policy"]["weights_seq_no"] = updated
    assert flat_metrics(result)["policy_age"] == age
