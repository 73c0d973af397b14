"""What answers tell of those who gave them: known agreement, known buttons."""

import itertools
from pathlib import Path

import krippendorff
import numpy as np
import pytest
import torch

from rlhf_ray.data.arrays import Array
from rlhf_ray.labelling.answers import statistics
from rlhf_ray.labelling.second_looks import replacing
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.comparison_set import ComparisonSet
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.report.subject import read_run
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.store import Event, PreferenceStore
from rlhf_ray.store.answers import Presses
from tests.made_up import FORCES, VECTORS, some_fragments

CLIPS = some_fragments(24)
IDS = CLIPS.ids()
PAIRS = list(itertools.combinations(range(24), 2))[:200]


def asked(path: Path, answers: dict[str, Array], turned: str = "") -> PreferenceStore:
    """A store with people's answers (left is better: 1, 0 or 0.5) to the first pairs, each shown on sides of its own.

    For the annotator ``turned``, the pairs are stored in the other order.
    """
    sides, store = np.random.default_rng(1), PreferenceStore(path)
    events = []
    for name, said in answers.items():
        for i, preference in enumerate(said.tolist()):
            left, right = (IDS[clip] for clip in PAIRS[i])
            if name == turned:
                left, right, preference = right, left, 1 - preference
            swapped = bool(sides.random() < 0.5)
            events.append(Event(f"{name}{i}", "label", name, left, right, float(preference), presented_swapped=swapped))
    store.record(events, CLIPS)
    return store


@pytest.mark.parametrize("turned", ["", "bob"])
@pytest.mark.parametrize("wrong", [0.1, 0.25])
def test_errors_lower_agreement_as_much_as_the_package_says(wrong, turned, tmp_path):
    rng = np.random.default_rng(3)
    truth = rng.integers(2, size=200)
    ada, bob = (truth ^ (rng.random(200) < wrong) for _ in range(2))
    found = asked(tmp_path, {"ada": ada, "bob": bob}, turned).agreement()
    data = np.array([ada, bob], float)
    second = krippendorff.alpha(reliability_data=data, level_of_measurement="nominal", value_domain=[0.0, 1.0])
    assert found.alpha == pytest.approx(second)
    assert found.alpha == pytest.approx((1 - 2 * wrong) ** 2, abs=0.15)
    assert (found.units, found.raw) == (200, np.mean(ada == bob))


def test_answers_that_the_owner_changed_count_as_their_annotators_gave_them(tmp_path):
    coins, sides = np.random.default_rng(5).integers(2, size=(2, 100)), ("left", "right")
    run = RunFolder(tmp_path)
    store = asked(run.preferences, {"ada": coins[0], "bob": coins[1]})
    before = store.agreement(), store.presses(), statistics(store.events(), {})["annotators"]
    for turn in range(2):  # to what ada said, and back to bob's own: the note keeps what bob said first
        rows = [row for row in store.snapshot().labels.to_pylist() if row["annotator"] == "bob"]
        said = coins[turn]
        for number, row in enumerate(rows):
            answer = sides[int((said[number] < 0.5) != row["presented_swapped"])]
            store.record([Event(f"{turn} {number}", "supersede", "bob", **replacing(row, "ada", answer))])
        assert np.mean([row["preference"] for row in store.snapshot().labels.to_pylist()][-100:]) == np.mean(said)
        assert (store.agreement(), store.presses(), statistics(store.events(), {})["annotators"]) == before
        assert read_run(run).presses == before[1]


def test_fits_and_counts_of_ties_see_what_annotators_chose_not_what_the_owner_made_of_it(tmp_path):
    run = RunFolder(tmp_path)
    store = asked(run.preferences, {"ada": np.array([1.0, 0.5, 0.0]), "bob": np.array([0.5, 0.5, 1.0])})
    before = store.presses()
    for number, row in enumerate(store.snapshot().labels.to_pylist()):
        answer = "left" if row["preference"] == 0.5 else "equal"
        store.record([Event(f"{number}", "supersede", row["annotator"], **replacing(row, "owner", answer))])
    loaded = store.load()
    assert (loaded.preferences == 0.5).sum() == 3
    told = read_run(run).comparisons
    assert loaded.ties == store.describe()["ties"] == told.ties == sum(p.equal for p in before.values())
    fitted = ComparisonSet(RewardEnsemble(VECTORS, FORCES, RewardModelSettings(hidden=(8,))), 0.0)
    fitted.apply(store.since(0))
    assert fitted.presses(torch.arange(6)) == store.presses() == before


def test_scripted_and_excluded_answers_are_no_opinions_of_people(tmp_path):
    coins = np.random.default_rng(5).integers(2, size=(3, 40))
    store = asked(tmp_path, dict(zip(("ada", "bob", "cora"), coins, strict=True)))
    store.record([Event("s", "label", "oracle", IDS[0], IDS[1], 1.0, annotator_type="scripted")])
    three = store.agreement()
    store.weigh("cora", 0.0)
    two = store.agreement()
    assert three.units == two.units == 40
    assert two.raw == np.mean(coins[0] == coins[1]) != three.raw


@pytest.mark.parametrize(
    ("presses", "side", "equal"),
    [
        (Presses(16, 0), "left", False),
        (Presses(0, 16, 4), "right", False),
        (Presses(15, 0), None, False),
        (Presses(40, 10), "left", False),
        (Presses(39, 11), None, False),
        (Presses(2, 2, 17), None, True),
        (Presses(2, 2, 16), None, False),
        (Presses(0, 0, 19), None, False),
        (Presses(), None, False),
    ],
)
def test_when_answers_are_odd(presses, side, equal):
    assert (presses.one_sided, presses.mostly_equal) == (side, equal)
