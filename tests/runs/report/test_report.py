"""The run report, on run folders made up with the real classes."""

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments, Trajectory, cut_fragments
from rlhf_ray.data.nested import write_nested
from rlhf_ray.data.plain import plain
from rlhf_ray.envs import make_env
from rlhf_ray.queries.selection import random_pairs
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.runs.report.clips import choose
from rlhf_ray.runs.report.run_report import write_report
from rlhf_ray.runs.report.summary import date, duration, number
from rlhf_ray.settings import (
    Experiment,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
    load_experiment,
    save_experiment,
    to_json,
)
from rlhf_ray.store import Event, PreferenceStore
from rlhf_ray.store.answers import REVIEWED_BY
from rlhf_ray.teachers import Oracle

ROUNDS, PER_ROUND, STEPS_PER_ROUND = 6, 6, 2_000
VOID = {"meta", "link", "img", "br", "hr", "path", "use", "rect"}


def make_run(
    folder: Path, environment: str, settings: RewardModelSettings, *, length: int, name: str | None = None
) -> Experiment:
    """A whole run folder of ``environment`` whose policy acts at random, except that the numbers say that it learns."""
    experiment = Experiment(
        environment=name or environment,
        total_env_steps=ROUNDS * STEPS_PER_ROUND,
        seed=3,
        preferences=PreferenceSettings(
            comparisons=ROUNDS * PER_ROUND, initial_comparisons=PER_ROUND, rounds=ROUNDS - 1
        ),
        reward_model=settings,
        ppo=PPOSettings(num_envs=8, minibatch_size=128),
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_experiment(experiment, folder / "config.json")
    (folder / "run.json").write_text(json.dumps(ABOUT))
    (folder / "result.json").write_text(json.dumps(RESULT | {"environment": experiment.environment, "seed": 3}))
    _fill(folder, environment, experiment, length)
    return experiment


ABOUT = {
    "format": "rlhf_ray.run/1",
    "started": "2026-03-09T17:05:00+01:00",
    "finished": "2026-03-09T16:17:00+00:00",
    "interrupted": False,
    "command": "rlhf-ray train --environment 'A & B'",
    "versions": {"rlhf_ray": "0.1.0", "ray": "2.60.0", "python": "3.11.9"},
    "machine": {"cpus": 2, "platform": "Linux-6.1-x86_64"},
}
RESULT = {
    "env_steps": 12_000,
    "comparisons": 36,
    "held_out_accuracy": 0.875,
    "random": {"true_return_mean": -1234.5, "true_return_std": 310.0, "episodes": 20},
    "trained": {"true_return_mean": -187.25, "true_return_std": 101.5, "episodes": 20},
    "reference": {"true_return_mean": -151.75, "true_return_std": 88.0, "episodes": 20},
    "normalised": 0.967,
    "train_seconds": 725.0,
    "interrupted": False,
}


def _fill(folder: Path, environment: str, experiment: Experiment, length: int) -> None:
    """Preferences, reward model and metrics, made as a run makes them."""
    env = make_env(environment)
    env.action_space.seed(0)
    rng = np.random.default_rng(0)
    store = PreferenceStore(folder / "preferences")
    trainer = RewardTrainer(
        experiment.reward_model, env.observation_space, env.action_space, held_out_share=0.2, seed=0
    )
    lines = []
    for round_number in range(ROUNDS):
        fragments = cut_fragments(
            [_play(env, seed, steps=60) for seed in range(3 * round_number, 3 * round_number + 3)],
            length=length,
            count=2 * PER_ROUND,
            start_share=0.25,
            policy_version=RANDOM_POLICY if round_number == 0 else round_number,
            rng=rng,
        )
        assert fragments is not None
        pairs = Pairs.of(fragments, random_pairs(len(fragments), PER_ROUND, rng), round_number)
        answers = Oracle().answer(pairs, rng)
        answers[0] = 0.5  # a tie in each round
        comparisons = Comparisons(pairs, answers)
        store.commit(comparisons, annotator="oracle")
        trainer.comparisons.add(comparisons)
        fit = trainer.fit(experiment.reward_model.updates)
        for i in (0, 1):
            iteration = 2 * round_number + i + 1
            progress = iteration / (2 * ROUNDS)
            row: dict[str, Any] = {
                "iteration": iteration,
                "env_steps": iteration * STEPS_PER_ROUND // 2,
                "comparisons": (round_number + 1) * PER_ROUND,
                "seconds": 60.0 * iteration,
                "true_return_mean": None if iteration == 1 else -1200 + 1050 * math.tanh(2.5 * progress),
                "learned_return_mean": 40 * progress + 6 * math.sin(iteration),
                "episode_length_mean": None if iteration == 1 else 200.0,
                "learned_reward_mean": 0.2 * progress,
                "reward_version": fit.version,
                "policy_entropy": 1.42 - progress,
                "value_explained_variance": 0.9 * progress,
                "too_short": iteration // 4,
                "clips_failed": 1 if iteration == 5 else 0,
            }
            if i == 0:
                held = dataclasses.asdict(fit)
                held |= {"round": round_number, "wanted": PER_ROUND, "answered": PER_ROUND - (round_number == 2)}
                row |= {"fit_seconds": held.pop("seconds")} | {k: v for k, v in held.items() if k != "comparisons"}
            lines.append(json.dumps(plain(row)))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    trainer.ensemble.save(folder / "reward_model")


def _play(env: Any, seed: int, steps: int) -> Trajectory:
    observations, actions, rewards = [env.reset(seed=seed)[0]], [], []
    for _ in range(steps):
        actions.append(env.action_space.sample())
        observation, reward, *_ = env.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
    return Trajectory(np.stack(observations), np.stack(actions), np.array(rewards, np.float64), terminated=False)


class Page(HTMLParser):
    """What a test asks of a page: its text, its tags, and whether every tag is closed."""

    def __init__(self, page: str):
        super().__init__()
        self.text = ""
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self.open == []
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data


def read(path: Path) -> tuple[str, Page]:
    page = path.read_text(encoding="utf-8")
    return page, Page(page)


def answers(page: str) -> dict[int, dict[str, str]]:
    """Which answer each side of each pair on the page is marked with."""
    marked = {}
    for number_, article in re.findall(r'<article class="pair" data-comparison="(\d+)">(.*?)</article>', page, re.S):
        sides = re.findall(r'data-side="(\w+)" data-answer="(\w+)">(.*?)</figure>', article, re.S)
        marked[int(number_)] = {side: answer for side, answer, _ in sides}
        for _, answer, content in sides:
            assert ("✓ preferred" in content) == (answer == "preferred")
            assert ("= equally good" in content) == (answer == "tie")
    return marked


@pytest.fixture(scope="module")
def vector_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vector") / "pendulum"
    make_run(folder, "Pendulum-v1", RewardModelSettings(hidden=(16,)), length=25)
    assert write_report(folder) == folder / "report.html"
    return folder


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image") / "dot"
    make_run(
        folder,
        "rlhf_ray/MovingDot-v0",
        RewardModelSettings(hidden=(8,), ensemble_size=1, batch_size=4, initial_updates=2, updates=2),
        length=5,
    )
    write_report(folder)
    return folder


@pytest.fixture
def run(vector_run: Path, tmp_path: Path) -> Path:
    """A copy of the vector run, to be damaged."""
    return Path(shutil.copytree(vector_run, tmp_path / "run"))


def test_the_page_needs_nothing_but_itself(vector_run: Path, image_run: Path) -> None:
    for folder in (vector_run, image_run):
        page, parsed = read(folder / "report.html")
        assert not re.search(r"https?:|//\w|@import|<script|javascript:", re.sub(r"base64,[\w+/=]+", "", page))
        references = [
            value
            for _, attributes in parsed.tags
            for name, value in attributes.items()
            if name in ("src", "href", "srcset", "action", "data", "poster") and value
        ]
        assert all(reference.startswith(("data:", "#")) for reference in references)
        assert not re.search(r"url\((?!#)", page)
        policies = [
            a["content"] for t, a in parsed.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
        ]
        assert len(policies) == 1
        assert policies[0] is not None
        assert policies[0].startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline';")
        ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        used = {r for r in references if r.startswith("#")} | set(re.findall(r"url\((#\w+)\)", page))
        assert used <= {f"#{name}" for name in ids}
        assert len(page) < 1_000_000


def test_the_same_folder_gives_the_same_page(vector_run: Path) -> None:
    before = (vector_run / "report.html").read_bytes()
    assert write_report(vector_run).read_bytes() == before


def test_the_result_is_shown(vector_run: Path) -> None:
    _, parsed = read(vector_run / "report.html")
    for shown in ("−1,234", "−187.2", "−151.8", "310", "101.5", "88", "97% of the way", "88%", "12,000", "12 min 5 s"):
        assert shown in parsed.text
    assert "9 March 2026, 16:05 UTC" in parsed.text
    assert "Pendulum-v1" in parsed.text
    assert "seed 3" in parsed.text
    assert "rlhf-ray train --environment 'A & B'" in parsed.text
    assert "Incomplete run" not in parsed.text


def test_the_preferred_side_is_marked(vector_run: Path, image_run: Path) -> None:
    for folder in (vector_run, image_run):
        page, _ = read(folder / "report.html")
        stored = PreferenceStore(folder / "preferences").load()
        assert stored is not None
        marked = answers(page)
        assert len(marked) == 6
        assert min(marked) <= PER_ROUND  # from the first round
        assert max(marked) > (ROUNDS - 1) * PER_ROUND  # to the last
        for shown, sides in marked.items():
            expected = {1.0: ("preferred", "other"), 0.0: ("other", "preferred"), 0.5: ("tie", "tie")}
            assert (sides["left"], sides["right"]) == expected[float(stored.preferences[shown - 1])]
        kinds = {tuple(sides.values()) for sides in marked.values()}
        assert ("tie", "tie") in kinds


def test_the_returns_of_a_pair_are_shown(vector_run: Path) -> None:
    page, _ = read(vector_run / "report.html")
    stored = PreferenceStore(vector_run / "preferences").load()
    assert stored is not None
    for shown in answers(page):
        article = page.split(f'data-comparison="{shown}"')[1].split("</article>")[0]
        for side in (stored.pairs.left, stored.pairs.right):
            fragment = side[shown - 1 : shown]
            assert f"<dt>True return</dt><dd>{number(float(fragment.returns()[0]))}</dd>" in article
            version = int(fragment.policy_versions[0])
            assert ("random actions" if version == RANDOM_POLICY else f"policy version {version}") in article


def test_images_are_film_strips(image_run: Path) -> None:
    page, parsed = read(image_run / "report.html")
    images = [attributes for tag, attributes in parsed.tags if tag == "img"]
    assert len(images) == 6 * 2 * 6  # pairs, sides, frames
    assert all((image["src"] or "").startswith("data:image/png;base64,") for image in images)
    assert "Step 5 of the right fragment" in page
    assert "observation[0]" not in page


def test_vectors_are_plots_on_one_scale(vector_run: Path) -> None:
    page, _ = read(vector_run / "report.html")
    for article in page.split('<article class="pair"')[1:]:
        left, right = (re.findall(r"<text[^>]*>([^<]*)</text>", side) for side in article.split("<figure")[1:])
        assert {"observation[0]", "observation[2]", "action"} <= set(left)
        assert left == right  # the same ticks


def test_alarms_are_listed_or_said_to_be_none_or_not_on_record(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    def page(**changes: Any) -> str:
        (run / "metrics.jsonl").write_text("\n".join(json.dumps(row | changes) for row in rows))
        return read(write_report(run))[1].text

    assert "Alarms were not recorded" in page()
    assert "No alarms." in page(alarms=[], raised=[])
    alarm = {
        "name": "clips_alike",
        "message": "Only 20 % of the clips are <different>.",
        "remedy": "Take longer clips.",
    }
    rows[3] |= {"alarms": ["clips_alike"], "raised": [alarm]}
    shown = page()
    assert f"⚠ clips alikeiteration {rows[3]['iteration']}, {number(rows[3]['env_steps'])} steps" in shown
    assert alarm["message"] in shown
    assert alarm["remedy"] in shown


def test_names_are_escaped(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    experiment = Experiment(environment="<img src=x onerror=alert(1)>&\"'")
    save_experiment(experiment, run / "config.json")
    (run / "run.json").write_text(json.dumps({"command": "</pre><b>", "versions": {"<i>": "<u>"}, "machine": 3}))
    page, parsed = read(write_report(run))
    assert "<img src=x" not in page
    assert not {"b", "i", "u"} & {tag for tag, _ in parsed.tags}
    assert experiment.environment in parsed.text
    assert "</pre><b>" in parsed.text


def test_settings_that_differ_from_the_defaults_are_marked(vector_run: Path) -> None:
    page, _ = read(vector_run / "report.html")
    changed = re.findall(r'<tr class="changed"><th scope="row">(\w+)</th><td>(.*?)</td>', page)
    defaults, values = to_json(Experiment()), to_json(load_experiment(vector_run / "config.json"))
    expected = {}
    for name, value in values.items():
        inner = value if isinstance(value, dict) else {name: value}
        default = defaults[name] if isinstance(value, dict) else {name: defaults[name]}
        expected |= {key: (v, default[key]) for key, v in inner.items() if v != default[key]}
    assert {"seed", "total_env_steps", "comparisons", "hidden", "num_envs"} <= set(expected)
    expected["hidden"] = ("16", "64 64")
    assert dict(changed) == {key: f"{v}<small>default {default}</small>" for key, (v, default) in expected.items()}
    shown = set(re.findall(r'<th scope="row">(\w+)</th>', page))
    for name, value in to_json(Experiment()).items():
        assert set(value if isinstance(value, dict) else [name]) <= shown


def test_what_is_worth_knowing(vector_run: Path) -> None:
    _, parsed = read(vector_run / "report.html")
    assert "⚠ Trajectories too short for a fragment3" in parsed.text
    assert "⚠ Rollouts without fragments because of an error1" in parsed.text
    assert "1 of 6 (round 2: 5 of 6)" in parsed.text
    assert "Ties among the answers6 of 36 (17%)" in parsed.text
    assert "Answers of oracle" in parsed.text


def test_an_interrupted_run_says_so(run: Path) -> None:
    (run / "result.json").write_text(json.dumps(RESULT | {"interrupted": True, "reference": None, "normalised": None}))
    _, parsed = read(write_report(run))
    assert "This run was interrupted at 12,000 of 12,000 environment steps" in parsed.text
    assert "not measured" in parsed.text
    assert "of the way" not in parsed.text
    assert "−187.2" in parsed.text


def test_a_killed_run_with_a_torn_line(run: Path) -> None:
    (run / "result.json").unlink()
    (run / "run.json").write_text(json.dumps(ABOUT | {"finished": None}))
    whole = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(whole[:7]) + whole[7][:40])
    _, parsed = read(write_report(run))
    assert "This run has no result" in parsed.text
    assert "at 7,000 of 12,000 environment steps" in parsed.text
    assert "not measured" in parsed.text
    latest = json.loads(whole[6])["true_return_mean"]
    assert f"True return in training{number(latest)}" in parsed.text


def test_no_difference_is_not_called_one(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    same = {"true_return_mean": -1200.0, "true_return_std": 300.0, "episodes": 20}
    (run / "result.json").write_text(json.dumps(RESULT | {"trained": same}))
    _, parsed = read(write_report(run))
    assert "not significantly different from random actions" in parsed.text


def _remove(*names: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        for name in names:
            shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()

    return damage


def _write(name: str, content: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / name).write_text(content)

    return damage


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
        (
            _write("metrics.jsonl", '{"iteration": 1, "env_steps": 100, "comparisons": 0}\n'),
            "No episode has ended yet.",
        ),
        (_write("metrics.jsonl", '{"iteration": 1}\n'), "No labelling rounds recorded."),
        (_remove("config.json"), "Settings unknown"),
        (_write("config.json", "{"), "config.json: "),
        (
            _write("config.json", '{"old": 1, "seed": {"a": 1}, "ppo": {"older": 2}}'),
            "older2default unknown: not a setting of this version",
        ),
        (_remove("run.json"), "The command was not recorded."),
        (_write("run.json", "[]"), "run.json: it is not a JSON object"),
        (_write("run.json", '{"started": "yesterday"}'), "started yesterday"),
        (_write("result.json", '{"trai'), "result.json: "),
        (_write("result.json", '{"trained": 3, "random": null, "env_steps": "x"}'), "not measured"),
        (_write("preferences/store.json", "{}"), "preferences/store.json: "),
        (_write("reward_model/reward.safetensors", "x"), "reward_model/reward.json: "),
        (_other_environments_model, "reward_model/reward.json: "),
        (
            _remove("config.json", "run.json", "result.json", "preferences", "reward_model"),
            "an unknown environment",
        ),
    ],
)
def test_what_is_missing_is_said_to_be_missing(run: Path, damage: Callable[[Path], None], said: str) -> None:
    (run / "metrics.jsonl").write_text('{"iteration": 1}\n')  # drawing curves takes the most time
    damage(run)
    files = {path for path in run.rglob("*") if path.name != "report.html"}
    _, parsed = read(write_report(run))
    assert said in parsed.text
    assert {path for path in run.rglob("*") if path.name != "report.html"} == files


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run folder: it has none of"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_fragments_without_a_true_reward(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
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
    page, parsed = read(write_report(run))
    assert answers(page) == {1: {"left": "preferred", "right": "other"}, 2: {"left": "tie", "right": "tie"}}
    assert "<dt>True return</dt><dd>–</dd>" in page
    assert "23 more components are not shown" in parsed.text


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


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (-1234567, "−1,234,567"),
        (-187.26, "−187.3"),
        (0.012345, "0.01235"),
        (1e-9, "1.000e−09"),
        (12345.6, "12,346"),
        (0.0, "0"),
    ],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_times() -> None:
    assert [duration(s) for s in (None, 4.21, 59.9, 725, 7320)] == [
        "–",
        "4.2 s",
        "1 min 0 s",
        "12 min 5 s",
        "2 h 2 min",
    ]
    assert date("2026-01-01T00:30:00+02:00") == "31 December 2025, 22:30 UTC"
    assert date(None) is None


def suspect(run: Path, suspicions: dict[tuple[str, str], float]) -> Page:
    """The report after a checkpoint with these suspicions."""
    ring = run / "checkpoints" / "00000012" / "ring"
    ring.mkdir(parents=True, exist_ok=True)
    write_nested({"trainer": {"suspicions": [[*key, chance] for key, chance in suspicions.items()]}}, ring)
    return read(write_report(run))[1]


def test_answers_to_look_at_again_are_shown_until_somebody_has(run: Path) -> None:
    title = "Answers to look at again"
    assert title not in read(run / "report.html")[1].text
    assert title not in suspect(run, {}).text
    store = PreferenceStore(run / "preferences")
    stored = store.snapshot()
    suspicions = {(pair, "oracle"): 0.99 - 0.01 * i for i, pair in enumerate(stored.ids[1:7])}
    shown = suspect(run, suspicions)
    assert "6 answers are more likely wrong than right" in shown.text
    assert "rlhf-ray links" not in shown.text  # no person's
    doubts = [int(of["data-doubt"] or 0) for tag, of in shown.tags if tag == "article" and "data-doubt" in of]
    assert doubts == [2, 3, 4, 5]
    side = "left" if stored.preferences[1] > 0.5 else "right"
    assert f"Comparison 2 · oracle prefers the {side} side; wrong with a probability of 99%" in shown.text
    row = store.events().to_pylist()[1]
    clips = {name: row[name] for name in ("left_id", "right_id", "preference")}
    kept = Event("kept", "supersede", "oracle", target=row["event_id"], extra={REVIEWED_BY: "ada"}, **clips)
    store.record([kept])
    assert "5 answers are more likely" in suspect(run, suspicions).text
    store.record([Event("ada's", "label", "ada", *(clips | {"preference": 0.5}).values())])
    mine = suspect(run, {(row["pair_id"], "ada"): 0.8})
    assert "1 answer is more likely" in mine.text
    assert "ada considers both equally good; wrong with a probability of 80%" in mine.text
    assert "rlhf-ray links" in mine.text
