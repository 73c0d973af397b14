"""The run report, on run folders made up with the real classes."""

import base64
import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments
from rlhf_ray.data.nested import write_nested
from rlhf_ray.envs import make_env
from rlhf_ray.measure.held_out import ReliabilityBin
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.reward.distance_estimates import Estimate
from rlhf_ray.runs.distances import RewardDistances
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.report.run_report import STEPS, write_report
from rlhf_ray.runs.report.steps.fragments import choose, show_pairs
from rlhf_ray.runs.report.steps.learning import PLOTS, _reliability
from rlhf_ray.runs.report.steps.scores import score_section
from rlhf_ray.runs.report.steps.values import leaves
from rlhf_ray.runs.report.subject import read_run
from rlhf_ray.settings import Experiment, RewardModelSettings, load_experiment, save_experiment, to_json
from rlhf_ray.store import Event, PreferenceStore
from rlhf_ray.store.answers import REVIEWED_BY
from rlhf_ray.study.curves import COLOURS
from rlhf_ray.study.run import run_here
from rlhf_ray.study.section import Section
from tests.made_up import FORCES, VECTORS, some_comparisons
from tests.runs.report.whole_run import ABOUT, PER_ROUND, RESULT, ROUNDS, make_run
from tests.study.parts import Drawn, check_of

VOID = {"meta", "link", "img", "br", "hr", "path", "use", "rect"}


class Page(HTMLParser):
    """The tags of a page; every tag is closed."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def sections_of(folder: Path) -> dict[str, Section]:
    """The sections that are not skipped, by name."""
    sections = run_here(read_run(RunFolder(folder)), STEPS)
    return {section.name: section for section in sections if section.skipped is None}


def rows_of(section: Section) -> dict[str, list[Any]]:
    """All rows of a section's tables, by their first cells."""
    return {row[0]: list(row[1:]) for table in section.tables for row in table.rows}


@pytest.fixture(scope="module")
def vector_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vector") / "pendulum"
    make_run(folder, "Pendulum-v1", RewardModelSettings(hidden=(16,)), 25)
    assert write_report(folder) == folder / "report.html"
    return folder


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image") / "dot"
    settings = RewardModelSettings(hidden=(8,), ensemble_size=1, batch_size=4, initial_updates=2, updates=2)
    make_run(folder, "rlhf_ray/MovingDot-v0", settings, 5)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def sections(vector_run: Path) -> dict[str, Section]:
    return sections_of(vector_run)


@pytest.fixture
def run(vector_run: Path, tmp_path: Path) -> Path:
    """A copy of the vector run, to be damaged. Its metrics are one row: drawing curves takes the most time."""
    copy = Path(shutil.copytree(vector_run, tmp_path / "run"))
    (copy / "metrics.jsonl").write_text('{"iteration": 1}\n')
    return copy


def test_the_page_needs_nothing_but_itself(vector_run: Path, image_run: Path) -> None:
    for folder in (vector_run, image_run):
        page = (folder / "report.html").read_text()
        tags = Page(page).tags
        assert not re.search(r"https?:|//\w|@import|<script|javascript:", re.sub(r"base64,[\w+/=]+", "", page))
        names = ("src", "href", "srcset", "action", "data", "poster")
        references = [value for _, given in tags for name, value in given.items() if name in names and value]
        assert all(reference.startswith(("data:", "#")) for reference in references)
        assert page.count("Content-Security-Policy\" content=\"default-src 'none'; img-src data:") == 1
        ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        assert {reference for reference in references if reference.startswith("#")} <= {f"#{name}" for name in ids}
        assert len(page) < 1_000_000


@pytest.mark.slow
def test_the_same_folder_gives_the_same_page(vector_run: Path) -> None:
    before = (vector_run / "report.html").read_bytes()
    assert write_report(vector_run).read_bytes() == before


def test_the_result_is_shown(vector_run: Path, sections: dict[str, Section]) -> None:
    outcome = sections["outcome"]
    assert outcome.values["share_of_the_way"] == pytest.approx((1234.5 - 187.25) / (1234.5 - 151.75))
    check = check_of(outcome, "true return")
    half = stats.t.ppf(0.975, 19) * 101.5 / 19**0.5
    assert (check.passed, check.value) == (True, -187.25)
    assert check.bound == "> −1234 of random actions, by more than 0: 892 to 1202"
    assert (check.low, check.high) == pytest.approx((-187.25 - half, -187.25 + half))
    accuracy = check_of(outcome, "held-out accuracy")
    assert accuracy.value == pytest.approx(0.875)
    rows = rows_of(outcome)
    assert rows["trained on the learned reward"] == [-187.25, 101.5, 20, None]
    assert rows["env steps"] == [12_000, 12_000]
    assert rows["training time"] == ["0:12:05", None]
    about = json.loads((vector_run / "report.json").read_text())["about"]
    assert (about["environment"], about["seed"]) == ("Pendulum-v1", "3")
    assert about["command"] == ABOUT["command"]
    assert about["ray"] == "2.60.0"
    assert about["machine: cpus"] == "2"


def test_every_curve_that_was_recorded_is_drawn(sections: dict[str, Section]) -> None:
    drawn = {picture.name for picture in sections["learning"].pictures}
    assert drawn == {*PLOTS, "reliability"} - {"drift", "distances"}


@pytest.mark.slow
def test_compared_fragments_are_spread_over_the_run(vector_run: Path, image_run: Path) -> None:
    for folder in (vector_run, image_run):
        section = sections_of(folder)["fragments"]
        stored = PreferenceStore(folder / "preferences").load()
        pairs = section.values["pairs"]
        assert len(pairs) == len(section.pictures) == 6
        assert pairs[0]["number"] <= PER_ROUND  # from the first round
        assert pairs[-1]["number"] > (ROUNDS - 1) * PER_ROUND  # to the last
        assert 0.5 in [pair["preference"] for pair in pairs]
        for pair in pairs:
            row = pair["number"] - 1
            sides = (stored.pairs.left[row : row + 1], stored.pairs.right[row : row + 1])
            assert pair["preference"] == stored.preferences[row]
            assert pair["true_returns"] == pytest.approx([float(side.returns()[0]) for side in sides])
            versions = [int(side.policy_versions[0]) for side in sides]
            assert pair["policies"] == [None if version == RANDOM_POLICY else version for version in versions]


def test_learned_returns_are_sums_of_the_rewards_that_predict_returns() -> None:
    torch.manual_seed(0)
    ensemble = RewardEnsemble(VECTORS, FORCES, RewardModelSettings(hidden=(8,), ensemble_size=3))
    ensemble.reward_mean.copy_(torch.tensor([40.0, -7.0, 3.0]))  # far from the likelihood's scale
    ensemble.reward_std.copy_(torch.tensor([2.0, 0.5, 9.0]))
    comparisons = dataclasses.replace(some_comparisons(3), annotators=("ada",) * 3)
    pairs, _ = show_pairs(comparisons, ensemble, np.arange(3))
    for i, pair in enumerate(pairs):
        sides = (comparisons.pairs.left, comparisons.pairs.right)
        for side, learned in zip(sides, pair["learned_returns"], strict=True):
            seen, ended = side.observations[i], np.arange(side.length) == side.length - 1
            steps = ensemble.predict(seen[:-1], side.actions[i], seen[1:], ended & side.terminated[i])
            assert learned == pytest.approx(steps.sum(), abs=1e-4)


def test_the_first_screen_has_the_outcome_the_learning_curve_and_the_newest_film_once(
    image_run: Path, vector_run: Path, run: Path
) -> None:
    assert {picture.kind for picture in sections_of(image_run)["fragments"].pictures} == {"webp"}
    curve = base64.b64encode(sections_of(vector_run)["learning"].pictures[0].image).decode()
    page = (vector_run / "report.html").read_text()
    assert page.count(curve) == 1
    assert page.index(curve) < page.index('class="step"')
    assert page.count("true return<b>−187</b>") == 1
    assert "webp" not in page
    for number, name in enumerate(("newer", "older")):
        Image.new("RGB", (4 + number, 4)).save(run / f"{name}.webp")
        os.utime(run / f"{name}.webp", (1000 - number, 1000 - number))
    with_film = write_report(run).read_text()
    assert with_film.count("data:image/webp") == 1
    assert base64.b64encode((run / "newer.webp").read_bytes()).decode() in with_film


@pytest.mark.slow
def test_alarms_are_checks_with_figure_bound_and_remedy(run: Path) -> None:
    def health(**changes: Any) -> Section:
        (run / "metrics.jsonl").write_text(json.dumps({"iteration": 4, "env_steps": 4000} | changes))
        return sections_of(run)["health"]

    assert check_of(health(), "alarms").passed is None
    assert check_of(health(raised=[]), "alarms").passed is True
    alarm: dict[str, Any] = {"name": "fragments_alike", "message": "All <alike>.", "remedy": "Take longer clips."}
    alarm |= {"value": 0.1, "bound": "≥ 0.5"}
    check = check_of(health(raised=[alarm], alarms=["fragments_alike"]), "fragments alike")
    assert (check.name, check.passed, check.value, check.bound) == ("fragments alike, iteration 4", False, 0.1, "≥ 0.5")
    assert check.remedy == "All <alike>. Take longer clips."
    on = check_of(sections_of(run)["outcome"], "alarms on at the end")
    assert (on.passed, on.value, on.remedy) == (False, 1, "fragments alike: see Health.")
    own = check_of(health(raised=[{"name": "mine", "message": "Of a callback.", "remedy": "None."}]), "mine")
    assert (own.passed, own.value, own.bound) == (False, None, "")


def test_names_are_escaped(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    save_experiment(Experiment(environment="<img src=x onerror=alert(1)>&\"'"), run / "config.json")
    (run / "run.json").write_text(json.dumps({"command": "</pre><b>", "versions": {"<i>": "<u>"}, "machine": 3}))
    page = write_report(run).read_text()
    assert "<img src=x" not in page
    assert not {"i", "u"} & {tag for tag, _ in Page(page).tags}


def test_settings_that_differ_from_the_defaults_are_marked(vector_run: Path, sections: dict[str, Section]) -> None:
    rows = rows_of(sections["values"])
    defaults = dict(leaves(to_json(Experiment())))
    values = dict(leaves(to_json(load_experiment(vector_run / "config.json"))))
    assert set(values) <= set(rows)
    marked = {name for name in values if rows[name][1]}
    assert marked == {name for name in values if values[name] != defaults[name]}
    assert rows["reward_model.hidden"] == ["16", "64 64"]
    assert rows["too_short"][0] == 3


def test_what_is_worth_knowing(sections: dict[str, Section]) -> None:
    health = sections["health"]
    assert {check.name: check.value for check in health.checks if check.passed is False} == {
        "episodes too short for a fragment": 3,
        "rollouts without fragments because of an error": 1,
        "labelling rounds, of 6, with too few answers": 1,
    }
    assert "Round 2: 5 of 6." in check_of(health, "labelling rounds").remedy
    assert check_of(health, "share of ties (6 of 36 answers)").value == pytest.approx(1 / 6)
    presses = health.values["presses"]["oracle"]
    assert presses["equal"] == 6
    assert sum(presses.values()) == 36


@pytest.mark.parametrize("said", ["result", "run"])
def test_an_interrupted_run_says_so(run: Path, said: str) -> None:
    stopped = {"interrupted": True}
    result = RESULT | {"reference": None} | (stopped if said == "result" else {})
    (run / "result.json").write_text(json.dumps(result))
    (run / "run.json").write_text(json.dumps(ABOUT | stopped))
    outcome = sections_of(run)["outcome"]
    assert outcome.values["state"] == "interrupted"
    assert outcome.values["share_of_the_way"] is None
    assert rows_of(outcome)["reference: same settings, true reward"][0] is None
    assert "interrupted, 12,000 of 12,000 environment steps" in write_report(run).read_text()


@pytest.mark.slow
def test_a_killed_run_with_a_torn_line(run: Path, vector_run: Path) -> None:
    (run / "result.json").unlink()
    whole = (vector_run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(whole[:7]) + whole[7][:40])
    outcome = sections_of(run)["outcome"]
    assert outcome.values["state"] == "without a result"
    assert outcome.values["env_steps"] == 7000
    assert outcome.values["training_return"] == json.loads(whole[6])["true_return_mean"]


def _remove(*names: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        for name in names:
            shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()

    return damage


def _write(name: str, content: str) -> Callable[[Path], Any]:
    return lambda run: (run / name).write_text(content)


def _empty_store(run: Path) -> None:
    shutil.rmtree(run / "preferences")
    PreferenceStore(run / "preferences")


def _other_environments_model(run: Path) -> None:
    env = make_env("CartPole-v1")
    trainer = RewardTrainer(RewardModelSettings(), env.observation_space, env.action_space, held_out_share=0.1, seed=0)  # type: ignore[arg-type]
    trainer.ensemble.save(run / "reward_model")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_remove("preferences"), "This folder has no stored comparisons."),
        (_empty_store, "This folder has no stored comparisons."),
        (_remove("reward_model"), "this folder has no saved reward model"),
        (_remove("metrics.jsonl"), "No iterations recorded"),
        (_write("metrics.jsonl", ""), "No iterations recorded"),
        (_remove("config.json"), "Pendulum-v1"),
        (_write("config.json", "{"), "config.json: "),
        (_write("config.json", '{"seed": {"a": 1}, "ppo": {"older": 2}}'), "unknown: not a setting of this version"),
        (_remove("run.json"), "not recorded"),
        (_write("run.json", "[]"), "run.json: it is not a JSON object"),
        (_write("run.json", '{"started": "yesterday"}'), "started yesterday"),
        (_write("result.json", '{"trai'), "result.json: "),
        (_write("result.json", '{"trained": 3, "random": null, "env_steps": "x"}'), "Not evaluated"),
        (_write("preferences/store.json", "{}"), "preferences/store.json: "),
        (_write("reward_model/reward.safetensors", "x"), "reward_model/reward.json: "),
        (_other_environments_model, "reward_model/reward.json: "),
        (_remove("config.json", "run.json", "result.json", "preferences", "reward_model"), "unknown"),
    ],
)
def test_what_is_missing_is_said_to_be_missing(run: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(run)
    ours = ("report.html", "report.json")
    files = {path for path in run.rglob("*") if path.name not in ours}
    page = write_report(run).read_text()
    assert said in page
    assert "stopped with an error" not in page
    assert {path for path in run.rglob("*") if path.name not in ours} == files


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run folder: it has none of"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_fragments_without_a_true_reward(run: Path) -> None:
    shutil.rmtree(run / "preferences")
    rng = np.random.default_rng(0)
    fragments = Fragments(
        observations=rng.normal(size=(4, 4, 30)).astype(np.float32),
        actions=rng.normal(size=(4, 3, 9)).astype(np.float32),
        rewards=np.full((4, 3), np.nan),
        terminated=np.zeros(4, bool),
        starts=np.zeros(4, np.int64),
        policy_versions=np.zeros(4, np.int64),
    )
    fragments.observations[0, 0, 0] = np.inf
    pairs = Pairs.of(fragments, np.array([[0, 1], [2, 3]]))
    PreferenceStore(run / "preferences").commit(Comparisons(pairs, np.array([1, 0.5], np.float32)), annotator="ada")
    section = sections_of(run)["fragments"]
    assert [pair["preference"] for pair in section.values["pairs"]] == [1.0, 0.5]
    assert section.values["pairs"][0]["true_returns"] == [None, None]
    assert "23 more components are not shown" in section.pictures[0].caption


@pytest.mark.parametrize(
    ("preferences", "count", "expected"),
    [
        ([1, 0, 1, 0, 1, 0, 1], 3, [0, 3, 6]),
        ([1, 0.5, 1, 0, 1, 0, 1], 3, [0, 1, 6]),
        ([0.5, 0.5, 0.5], 2, [0, 1]),
        ([1, 0], 6, [0, 1]),
        ([0.5, 1], 6, [0, 1]),
    ],
)
def test_pairs_are_spread_over_the_run(preferences: list[float], count: int, expected: list[int]) -> None:
    values: FloatArray = np.array(preferences, np.float32)
    assert choose(values, count).tolist() == expected


def suspect(run: Path, suspicions: dict[tuple[str, str], float]) -> Any:
    """What the report says after a checkpoint with these suspicions."""
    ring = run / "checkpoints" / "00000012" / "ring"
    ring.mkdir(parents=True, exist_ok=True)
    write_nested({"trainer": {"suspicions": [[*key, chance] for key, chance in suspicions.items()]}}, ring)
    return sections_of(run).get("doubts")


@pytest.mark.slow
def test_answers_to_look_at_again_are_shown_until_somebody_has(run: Path) -> None:
    assert suspect(run, {}) is None
    store = PreferenceStore(run / "preferences")
    suspicions = {(pair, "oracle"): 0.99 - 0.01 * i for i, pair in enumerate(store.snapshot().ids[1:7])}
    shown = suspect(run, suspicions)
    assert shown.values["doubts"] == 6
    assert "rlhf-ray links" not in shown.notes[0]  # no person's
    assert [pair["number"] for pair in shown.values["pairs"]] == [2, 3, 4, 5]
    assert "wrong with a probability of 99 %" in shown.pictures[0].caption
    row = store.events().to_pylist()[1]
    clips = {name: row[name] for name in ("left_id", "right_id", "preference")}
    kept = Event("kept", "supersede", "oracle", target=row["event_id"], extra={REVIEWED_BY: "ada"}, **clips)
    store.record([kept])
    assert suspect(run, suspicions).values["doubts"] == 5
    store.record([Event("ada's", "label", "ada", *(clips | {"preference": 0.5}).values())])
    mine = suspect(run, {(row["pair_id"], "ada"): 0.8})
    assert (mine.values["doubts"], mine.values["pairs"][0]["annotator"]) == (1, "ada")
    assert "rlhf-ray links" in mine.notes[0]


def test_calibration_is_drawn_at_its_numbers() -> None:
    drawn = Drawn(_reliability([ReliabilityBin(0.5, 0.6, 8, 0.55, MeanEstimate(0.75, 0.4, 0.95))]))
    x, y = drawn.axis(0, lambda text: "." in text), drawn.axis(1)
    ((across, down),), (interval,) = drawn.dots[COLOURS[2]], (line for line in drawn.lines[COLOURS[2]] if len(line) > 1)
    np.testing.assert_allclose([x(across), y(down), *y(interval[:, 1])], [0.55, 0.75, 0.4, 0.95], atol=0.001)
    assert "8" in drawn.texts


def test_who_has_measured_distances_is_not_told_how() -> None:
    measured = RewardDistances(1, {"starc": Estimate(0.1, 0.0, 0.2, 100)})
    (note,) = score_section(None, measured).notes
    assert "need the true reward as a formula, which this environment lacks." in note
    assert "--distances" not in note
