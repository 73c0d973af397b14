"""Each alarm, provoked by metrics, and three through the classes that make their number. Runs that learn raise none."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from scipy import stats

from rlhf_ray.data.comparisons import Comparisons, side_of
from rlhf_ray.queries.pool import CutFragments, FragmentPool
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.runs.answer_alarms import Alarm
from rlhf_ray.runs.health import QUIET, SETTLED_FOR, STARVING_ITERATIONS, Health, _Moves
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.store.answers import Presses
from tests.made_up import CHOICES, FORCES, VECTORS, some_comparisons, some_fragments

MEASURED = json.loads(Path(__file__).with_name("measured_curves.json").read_text())
"""Of each environment, two runs that came to the reference's return: by iteration, in the metrics' names."""
ITERATIONS = 60


def healthy(iterations: int = ITERATIONS, seed: int = 0) -> list[dict[str, Any]]:
    """The metrics of a run that learns: returns rise with noise, a label round before each second iteration."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(iterations):
        row: dict[str, Any] = {
            "iteration": i + 1,
            "env_steps": 1_000 * (i + 1),
            "comparisons": 50 + 5 * (i // 2),
            "true_return_mean": None if i == 0 else -1200 + 1000 * np.tanh(4 * i / iterations) + 60 * rng.normal(),
            "learned_return_mean": None if i == 0 else 200 * np.tanh(4 * i / iterations) + 20 * rng.normal(),
            "policy_entropy": 1.4 - i / iterations,
            "reward_version": i // 2 + 1,
            "distinct_fragments": 1.0,
        }
        if i % 2 == 0:
            row |= {"wanted": 5, "answered": 5, "ties": i // 10, "reward_std": 1.0 + 0.1 * i + 0.2 * rng.random()}
            row |= {"disagreement": 0.08, **chosen(ada=Presses(left := int(rng.binomial(45, 0.5)), 45 - left, 5))}
            row |= {"held_out_decided": 8 + i // 4, "held_out_accuracy": rng.binomial(8 + i // 4, 0.7) / (8 + i // 4)}
        rows.append(row)
    return rows


def chosen(**presses: Presses) -> dict[str, int]:
    """The metrics of what annotators chose."""
    return {f"chosen_{side}/{name}": n for name, of in presses.items() for side, n in dataclasses.asdict(of).items()}


def watch(rows: list[dict[str, Any]], action_space: gym.Space[Any] = CHOICES) -> list[tuple[int, Alarm]]:
    """The alarms that the rows raise, each with the position of the row."""
    health = Health(action_space)
    return [(i, alarm) for i, row in enumerate(rows) for alarm in health.watch(row)]


def the_one(raised: list[tuple[int, Alarm]]) -> tuple[int, Alarm]:
    assert len(raised) == 1, raised
    return raised[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_learns_raises_none(seed: int) -> None:
    rows = healthy(seed=seed)
    for space in (CHOICES, FORCES):
        assert watch(rows, space) == []


@pytest.mark.parametrize("environment", MEASURED)
def test_the_curves_of_measured_runs(environment: str) -> None:
    """They raise none as they are, with the other seed's curve as the learned return; and one where they run backwards."""
    first, second = MEASURED[environment]
    for run, other in ((first, second), (second, first)):
        curves = run["true_return_mean"], other["true_return_mean"], run["held_out_accuracy"]
        names = ("true_return_mean", "learned_return_mean", "held_out_accuracy")
        rows = [
            dict(zip(names, values, strict=True)) | {"held_out_decided": 15} for values in zip(*curves, strict=True)
        ]
        assert watch(rows) == []
        known = [row for row in reversed(rows) if row["true_return_mean"]]
        unlearning = [row | {"learned_return_mean": -row["true_return_mean"]} for row in known]
        assert watch(unlearning)[0][1].name == "reward_hacking"


def drifting(**slopes: float) -> list[dict[str, Any]]:
    """A run that learns, in which metrics go on in a straight line from the 30th iteration on."""
    rows = healthy()
    if "learned_gain" in slopes:
        for row in rows:
            row["learned_gain"] = 0.1 if row["learned_return_mean"] is None else row["learned_return_mean"] / 200
    for i, row in enumerate(rows[30:]):
        row |= {name: rows[29][name] + slope * i for name, slope in slopes.items()}
    return rows


@pytest.mark.parametrize(
    ("slopes", "said"),
    [
        ({"true_return_mean": -30, "learned_return_mean": 10}, "true return fell"),
        ({"true_return_mean": -30, "learned_return_mean": -10}, None),
        # A policy that forgets lowers the true return; fits that stretch the reward raise the learned one all the same.
        ({"true_return_mean": -30, "learned_return_mean": 10, "learned_gain": -0.02}, None),
        # Each fit puts the mean of what it has seen at 0, so the learned return of an exploit may stay where it is.
        (
            {"true_return_mean": -30, "learned_return_mean": 0, "learned_gain": 0.05},
            "learned reward above the probe set's rose",
        ),
    ],
)
def test_a_learned_reward_that_rises_while_the_true_one_falls(slopes: dict[str, float], said: str | None) -> None:
    raised = watch(drifting(**slopes))
    if said is None:
        assert raised == []
        return
    at, alarm = the_one(raised)
    assert alarm.name == "reward_hacking"
    assert 30 < at < 55
    assert said in alarm.message


def test_a_learned_return_that_rises_while_the_held_out_accuracy_falls() -> None:
    rows = drifting(learned_return_mean=10)
    for i, row in enumerate(rows):
        row["true_return_mean"] = 0.0  # where people answer, there may be no true reward
        if i >= 30 and "held_out_decided" in row:
            row |= {"held_out_decided": 20, "held_out_accuracy": 0.9 if i < 45 else 0.5}
    at, alarm = the_one(watch(rows))
    assert alarm.name == "reward_hacking"
    assert at >= 45
    assert "0.90 to 0.50" in alarm.message


@pytest.mark.parametrize("noise", [0.2, 4.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_return_has_moved_by_three_of_welchs_standard_errors_and_a_fifth_of_its_span(seed: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(0, 1, 15), rng.normal(2, 4, 15), rng.normal(5, noise, 10)])
    found = _Moves(values)
    last, directions = values[-10:], []
    means = [values[start : start + 10].mean() for start in range(31)]
    for start in range(21):
        moved = stats.ttest_ind(last, values[start : start + 10], equal_var=False).statistic
        far = abs(means[-1] - means[start]) > 0.2 * (max(means) - min(means))
        directions.append(np.sign(moved) if abs(moved) > 3 and far else 0)
    assert found.means == pytest.approx(means)
    assert found.direction.tolist() == directions


def test_a_reward_scale_that_jumps() -> None:
    rows = healthy()
    rows[20]["reward_std"] *= 10
    rows[22]["reward_std"] *= 10
    at, alarm = the_one(watch(rows))
    assert (at, alarm.name) == (20, "reward_scale")
    assert "version 10 to 11" in alarm.message
    for part, factor in ((rows[24::2], 10), (rows[:20:2], 100)):  # so that it never falls; so that it only falls
        for row in part:
            row["reward_std"] *= factor
        assert the_one(watch(rows))[0] == 20


@pytest.mark.parametrize(
    ("space", "entropy", "said"),
    [
        (CHOICES, 0.001, "0.072 %"),
        (FORCES, 1.4 + 2 * np.log(0.01), "standard deviation is 1 %"),  # in both dimensions a hundredth of the start
        (FORCES, -0.5, None),  # negative, which for continuous actions says nothing by itself
    ],
)
def test_a_policy_that_settles_on_one_action(space: gym.Space[Any], entropy: float, said: str | None) -> None:
    rows = [row | {"policy_entropy": entropy} if i >= 40 else row for i, row in enumerate(healthy())]
    raised = watch(rows, space)
    assert [(at, alarm.name) for at, alarm in raised] == ([(40 + SETTLED_FOR - 1, "entropy_collapse")] if said else [])
    assert all(str(said) in alarm.message for _, alarm in raised)


def test_labels_that_stay_behind_round_after_round() -> None:
    rows = healthy()
    for comparisons, answered, said in ((120, 0, "120 of 160 due"), (120, 10, "120 of 150 due"), (270, 10, None)):
        for row in rows[30:]:
            row["comparisons"] = comparisons  # 270 are nine tenths of 300
            if "wanted" in row:
                row |= {"wanted": 40, "answered": answered}
        starving = [(at, alarm) for at, alarm in watch(rows) if alarm.name == "labels_starving"]
        assert [at for at, _ in starving] == ([34] if said else [])
        assert all(str(said) in alarm.message for _, alarm in starving)
    once = healthy()
    once[30]["answered"] = 0
    assert watch(once) == []


def test_labels_that_stay_behind_while_training_goes_on() -> None:
    # What a round came to says nothing here: its questions are open.
    rows: list[dict[str, Any]] = [
        {"labels_due": 50 + i, "comparisons": 50 + i - (i > 5), "wanted": 40, "answered": 0} for i in range(60)
    ]
    assert watch(rows) == []
    for i, row in enumerate(rows[20:]):
        row["comparisons"] = 60 + i // 5
    at, alarm = the_one(watch(rows))
    assert alarm.name == "labels_starving"
    assert at >= 20 + STARVING_ITERATIONS - 1


def test_answers_that_are_nearly_all_ties() -> None:
    rows = healthy()
    for row in rows[30:]:
        if "ties" in row:
            row["ties"] = row["comparisons"] - 2
    at, alarm = the_one(watch(rows))
    assert (at, alarm.name) == (30, "fragments_alike")
    assert "123 of 125 answers are ties" in alarm.message


def test_answers_that_are_all_ties_are_named_and_not_the_noise_that_is_fitted_to_them() -> None:
    rows = [row | {"disagreement": 1e-5} if "ties" in row else row for row in healthy()]
    for row in rows:
        row["true_return_mean"] = -1200 - (row["learned_return_mean"] or 0)
        if "ties" in row:
            row["ties"] = row["comparisons"]
            row["reward_std"] *= 100.0 ** (row["reward_version"] % 2)
    raised = watch(rows)
    assert {alarm.name for _, alarm in raised} == {"fragments_alike"}
    assert raised[0][1].message.startswith(
        f"All {rows[raised[0][0]]['comparisons']} answers are ties, held-out ones too"
    )


def test_episodes_that_never_end_in_an_environment_without_a_time_limit() -> None:
    endless = [{**row, "true_return_mean": None} for row in healthy()]
    assert "endless_episodes" not in {alarm.name for _, alarm in watch(endless)}
    health = Health(CHOICES, limited=False)
    raised = [alarm for row in endless for alarm in health.watch(row) if alarm.name == "endless_episodes"]
    assert len(raised) == 1
    assert f"No episode has ended in {endless[1]['env_steps']:,} environment steps" in raised[0].message
    for row in healthy():  # some end after all
        health.watch(row)
    assert "endless_episodes" not in health.active


def test_an_alarm_that_stays_on_is_raised_once_and_one_that_comes_back_twice() -> None:
    health = Health(CHOICES)
    on, off = {"distinct_fragments": 0.1}, {"distinct_fragments": 1.0}
    raised = [len(health.watch(on if i % 2 else off)) for i in range(40)]  # back and forth
    assert sum(raised) == 1
    assert health.active == ["fragments_alike"]
    for _ in range(QUIET):
        assert health.watch(off) == []
    assert health.active == []
    assert [alarm.name for alarm in health.watch(on)] == ["fragments_alike"]


def test_rows_without_metrics_raise_none() -> None:
    assert watch([{}, {"true_return_mean": None, "disagreement": None}]) == []


@pytest.mark.parametrize(("presses", "raises"), [((True, False), True), ((True, True), False)], ids=["left", "first"])
def test_an_annotator_who_always_presses_one_button_though_sides_are_shuffled(
    presses: tuple[bool, bool], raises: bool
) -> None:
    """One presses left, whatever is shown there; another one prefers the pair's first fragment, wherever it is shown."""
    pairs, swapped = some_comparisons(60).pairs, np.arange(60) % 2 == 0
    answers = np.where(swapped, not presses[0] if raises else presses[1], presses[0]).astype(np.float32)
    trainer = RewardTrainer(RewardModelSettings(hidden=(8,)), VECTORS, FORCES, held_out_share=0.1, seed=0)
    trainer.comparisons.add(Comparisons(pairs, answers, ("bea",) * 60, tuple(map(side_of, answers, swapped))))
    raised = [alarm for _, alarm in watch([trainer.fit(5).metrics()]) if alarm.name == "one_sided_answers"]
    assert bool(raised) == raises
    said = "50 of the last 50 answers of bea (ties excluded) are for the fragment shown on the left"
    assert all(said in alarm.message and "rlhf-ray store weigh RUN bea 0" in alarm.remedy for alarm in raised)


def test_one_annotator_of_three_who_presses_one_button_is_named() -> None:
    good = {"ada": Presses(22, 24, 4), "cora": Presses(5, 3, 1)}
    _, alarm = the_one(watch([chosen(**good, bob=Presses(3, 47))]))
    assert alarm.name == "one_sided_answers"
    assert "47 of the last 50 answers of bob" in alarm.message
    assert "shown on the right" in alarm.message
    assert watch([chosen(**good, bob=Presses())]) == []  # of weight 0


def test_an_annotator_for_whom_everything_is_equal_is_named() -> None:
    ada, bob = Presses(24, 20, 6), Presses(1, 1, 48)
    _, alarm = the_one(watch([chosen(ada=ada, bob=bob) | {"ties": 54, "comparisons": 100}]))
    assert alarm.name == "equal_answers"
    assert "48 of the last 50 answers of bob are “equally good”; of the others' answers, 12 %." in alarm.message
    assert "talk to bob" in alarm.remedy
    assert "ada" not in alarm.remedy
    both = watch([chosen(ada=ada, bob=bob) | {"ties": 90, "comparisons": 100}])
    assert [alarm.name for _, alarm in both] == ["equal_answers", "fragments_alike"]
    held = {"labels_held_back": 5, "newest_answers": 10, "newest_ties": 10}
    _, alarm = the_one(watch([chosen(bob=Presses(0, 0, 10)) | held]))
    assert (alarm.name, alarm.value, alarm.bound) == ("labels_held_back", 5, "0")
    assert watch([chosen(bob=bob) | {"ties": 48, "comparisons": 100}]) == []  # alone: perhaps the fragments are alike


@pytest.mark.parametrize(
    ("right", "answers", "raises"), [(2, 10, True), (3, 10, False), (0, 7, False), (40, 100, True), (45, 100, False)]
)
def test_held_out_accuracy_below_chance(right: int, answers: int, raises: bool) -> None:
    row = {"held_out": answers + 5, "held_out_decided": answers, "held_out_accuracy": right / answers}
    raised = watch([row])
    assert [alarm.name for _, alarm in raised] == (["below_chance"] if raises else [])
    if raises:
        assert f"Held-out accuracy is {right / answers:.2f} on {answers} answers" in raised[0][1].message


@pytest.mark.parametrize("collapsed", [False, True])
def test_an_ensemble_whose_members_are_one_model(collapsed: bool) -> None:
    settings = RewardModelSettings(hidden=(8,), bootstrap=not collapsed, weight_decay=0.01, use_action=True)
    trainer = RewardTrainer(settings, VECTORS, FORCES, held_out_share=0.1, seed=0)
    if collapsed:  # the same weights at the start, and the same comparisons
        for weights in trainer.ensemble.networks.parameters():
            weights.data.copy_(weights.data[:1].expand_as(weights))
    trainer.comparisons.add(some_comparisons(60))
    raised = [alarm.name for _, alarm in watch([trainer.fit(50).metrics()])]
    assert raised == (["ensemble_collapse"] if collapsed else [])


@pytest.mark.parametrize(("different", "names"), [(20, []), (4, ["fragments_alike"])])
def test_clips_that_are_copies(different: int, names: list[str]) -> None:
    pool = FragmentPool(
        FragmentSettings(length=5, pool=400), PreferenceSettings(), RewardModelSettings(), VECTORS, FORCES, seed=0
    )
    clips = some_fragments(different)[np.arange(20) % different]
    pool.add(CutFragments(source=0, policy_version=0, fragments=clips, episode_lengths=()))
    raised = watch([{"distinct_fragments": pool.report().distinct}])
    assert [alarm.name for _, alarm in raised] == names
    if names:
        assert "Only 20 %" in raised[0][1].message


def test_labels_that_are_held_back_raise_one_alarm_and_not_that_of_ties_too() -> None:
    rows = [row | {"labels_held_back": 0, "newest_answers": 10, "newest_ties": 9} for row in healthy()]
    for i, row in enumerate(rows[30:]):
        row |= {"labels_held_back": i + 1, "newest_answers": 12, "newest_ties": 12}
        if "ties" in row:
            row["ties"] = row["comparisons"]
    i, alarm = the_one(watch(rows))
    assert (i, alarm.name) == (30, "labels_held_back")
    assert "12 of the newest 12 answers are ties: holding back 1 labels" in alarm.message
    assert "fragments.length" in alarm.remedy
